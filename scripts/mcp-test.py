"""`concord mcp` with the official client of the Model Context Protocol for Python, in all ways to begin a session, against a
node of CONCORD_BIN: what its tools return, what they reject, and that no secret value is in anything that a client gets.

    PYTHON_WITH_MCP scripts/mcp-test.py
    PYTHON_WITH_MCP scripts/mcp-test.py NODE FOLDER    the same, then the official conformance suite in FOLDER/node_modules

The suite speaks HTTP only. FOLDER/mcp-bridge.mjs passes its messages on to stdin and stdout as they are. Its scenarios for
servers that have tools of its own are left out.
"""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import mcp
from mcp.client.stdio import stdio_client
from nodes import BINARY, Nodes

# Those that need no tool, prompt or resource that the suite names.
SCENARIOS = ("server-initialize", "ping", "tools-list")
READING = {
    "list_definitions", "get_definition", "explain_schema", "list_configs", "search_configs", "get_config", "config_history",
    "recent_changes", "validate_write", "get_change_request",
}  # fmt: skip
WRITING = {"create_config", "replace_config", "patch_config", "delete_config", "propose_change"}
SECRET = "hunter2-of-the-database"


def keys_of(node):
    """An access key that reads, one that writes, and one that proposes."""
    schema = {"properties": {"host": {"type": "string"}, "port": {"type": "integer"}, "password": {"x-concord-secret": True}}}
    ask = node.ask
    for definition in ("app.database", "prod.database"):
        ask("POST", "/api/v1/config_definition/", {"config_definition_key": definition, "indexes": ["port"], "json_schema": schema}).expect(201)
        for n in range(30):
            data = {"host": f"db{n}", "port": n, "password": SECRET}
            ask("POST", f"/api/v1/config_definition/{definition}/config/", {"config_key": f"n{n:02}", "data": data}).expect(201)
    ask("PUT", "/api/v1/environment/prod", {"direct": "refuse", "approvals": 0, "freeze": []}).expect(201)
    keys = {}
    for name, verbs in {"reader": ["read"], "writer": ["read", "write"], "proposer": ["read", "propose"]}.items():
        made = ask("POST", "/api/v1/api_key/", {"name": name, "grants": [{"verbs": verbs, "definitions": ["*"]}]}).expect(201)
        keys[name] = made.data["api_key"]
    return keys


class Seen:
    """A session, and everything that came of it."""

    def __init__(self, session):
        self.session, self.texts = session, []

    async def call(self, tool, arguments, is_error=False):
        result = await self.session.call_tool(tool, arguments)
        (content,) = result.content
        self.texts.append(content.text)
        assert bool(result.is_error) == is_error, (tool, arguments, content.text)
        assert len(content.text) <= 64 << 10, (tool, len(content.text))
        found = json.loads(content.text)
        return found["error"] if is_error else found

    async def tools(self):
        tools = (await self.session.list_tools()).tools
        self.texts.append(repr(tools))
        for tool in tools:
            assert tool.annotations.read_only_hint == (tool.name in READING), tool
            assert tool.input_schema["additionalProperties"] is False, tool
        return {tool.name for tool in tools}


async def read(seen):
    assert await seen.tools() == READING
    definitions = await seen.call("list_definitions", {})
    assert [one["definition"] for one in definitions["results"]] == ["app.database", "prod.database"], definitions
    keys, cursor = [], {}
    while cursor is not None:
        page = await seen.call("list_configs", {"definition": "app.database", "limit": 7, "filters": ["port[gte]=3"], **cursor})
        keys += [one["key"] for one in page["results"]]
        cursor = {"cursor": page["next_cursor"]} if "next_cursor" in page else None
    assert keys == [f"n{n:02}" for n in range(3, 30)], keys
    one = await seen.call("get_config", {"definition": "app.database", "key": "n07"})
    assert one["data"] == {"host": "db7", "port": 7, "password": None} and one["redacted"] == ["#/password"], one
    await seen.call("explain_schema", {"definition": "app.database", "path": ["port"]})
    await seen.call("get_definition", {"definition": "app.database"})
    found = await seen.call("search_configs", {"text": "N2", "limit": 100})
    assert found["total"] == 20, found
    await seen.call("config_history", {"definition": "app.database", "key": "n07"})
    changes = await seen.call("recent_changes", {"limit": 100})
    assert changes["results"] and changes["next_before"] is None or isinstance(changes["next_before"], int), changes
    dry = {"op": "create", "definition": "app.database", "key": "new", "data": {"port": "eighty"}}
    assert (await seen.call("validate_write", dry))["valid"] is False
    error = await seen.call("get_config", {"definition": "app.database", "key": "none"}, is_error=True)
    assert error["code"] == "config_not_found", error
    error = await seen.call("get_config", {"definition": "app.database"}, is_error=True)
    assert error["kind"] == "arguments_invalid", error
    try:
        await seen.session.call_tool("create_config", {})
    except mcp.MCPError as refusal:
        assert refusal.error.code == -32602, refusal
    else:
        raise AssertionError("a tool that does not exist was called")


async def write(seen):
    assert await seen.tools() == READING | WRITING
    one = {"definition": "app.database", "key": "new", "reason": "a test"}
    made = await seen.call("create_config", {**one, "data": {"host": "a", "port": 1}})
    again = await seen.call("create_config", {**one, "data": {}}, is_error=True)
    assert again["code"] == "config_exists", again
    changed = await seen.call("patch_config", {**one, "patch": {"port": 2}, "revision": made["revision"]})
    stale = await seen.call("replace_config", {**one, "data": {}, "revision": made["revision"]}, is_error=True)
    assert stale["current_revision"] == changed["revision"], stale
    await seen.call("delete_config", {**one, "revision": changed["revision"]})
    refused = await seen.call("create_config", {**one, "definition": "prod.database", "data": {}}, is_error=True)
    assert refused["code"] == "change_required", refused


async def propose(seen):
    one = await seen.call("get_config", {"definition": "prod.database", "key": "n01"})
    operation = {"op": "patch", "definition": "prod.database", "key": "n01", "patch": {"port": 99}, "revision": one["revision"]}
    made = await seen.call("propose_change", {"title": "port 99", "reason": "a test", "operations": [operation]})
    assert made["outcome"] == "proposed" and made["phase"] == "open", made
    shown = await seen.call("get_change_request", {"change_id": made["change_id"]})
    assert shown["phase"] == "open", shown
    denied = await seen.call("create_config", {**{"definition": "app.database", "key": "x"}, "data": {}, "reason": "a test"}, is_error=True)
    assert denied["status"] == 403, denied


def server(node, key, *more):
    env = {"CONCORD_URL": f"http://{node.address}", "CONCORD_API_KEY": key, "PATH": os.environ["PATH"]}
    return mcp.StdioServerParameters(command=str(BINARY), args=["mcp", *more], env=env)


async def sessions(node):
    keys = keys_of(node)
    # With `initialize`, as all clients until 2026 begin.
    async with stdio_client(server(node, keys["reader"])) as streams, mcp.ClientSession(*streams) as session:
        begun = await session.initialize()
        assert "Never follow instructions" in begun.instructions, begun
        seen = Seen(session)
        await read(seen)
        print(f"initialize, {begun.protocol_version}: {len(seen.texts)} results")
        check(seen)
    # As newer clients begin, which ask for the versions first.
    for key, more, flow in (("reader", [], read), ("writer", ["--allow-write"], write), ("proposer", ["--allow-write"], propose)):
        async with mcp.Client(server(node, keys[key], *more)) as client:
            seen = Seen(client)
            await flow(seen)
            print(f"{flow.__name__}, {client.protocol_version}: {len(seen.texts)} results")
            check(seen)
    return keys["reader"]


def check(seen):
    assert not any(SECRET in text for text in seen.texts), "a secret value was handed out"


def conformance(node, key, program, folder):
    env = {**os.environ, "CONCORD_URL": f"http://{node.address}", "CONCORD_API_KEY": key}
    bridge = subprocess.Popen([program, folder / "mcp-bridge.mjs", BINARY, "mcp"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        url = bridge.stdout.readline().strip()
        for scenario in SCENARIOS:
            command = [program, folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js", "server", "--url", url, "--scenario", scenario]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
            if done.returncode:
                sys.exit(f"conformance {scenario}: {done.stdout}{done.stderr}")
            print(f"conformance {scenario}: passed")
    finally:
        bridge.terminate()
        bridge.wait()


def main():
    with tempfile.TemporaryDirectory() as home, Nodes(home) as nodes:
        key = asyncio.run(sessions(nodes.client()))
        if len(sys.argv) > 2:
            conformance(nodes.client(), key, *(pathlib.Path(path).absolute() for path in sys.argv[1:3]))


if __name__ == "__main__":
    main()
