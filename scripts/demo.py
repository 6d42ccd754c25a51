"""Loads the sample of a small company's services, queries it on every node, kills the leader, looks again.

Only the public interface is used, and only Python's standard library. Every answer is compared with what the
sample itself says; the first difference ends the run with exit code 1.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("CONCORD_DATA", ROOT / "cluster" / "data"))
KEY = os.environ.get("CONCORD_API_KEY") or (DATA / "root.key").read_text().strip()
API = "/api/v1/config_definition"


def setting(node, name):
    for line in (ROOT / "cluster" / f"node{node}.env").read_text().splitlines():
        if line.startswith(f"{name}="):
            return line.split("=", 1)[1]
    sys.exit(f"cluster/node{node}.env does not say {name}")


NODES = {n: f"http://{setting(n, 'CONCORD_API_ADDR')}" for n in (1, 2, 3)}


def ask(base, method, path, body=None, headers=None):
    """(status, body). A refused or broken connection is status 0."""
    request = urllib.request.Request(
        base + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": KEY, "Content-Type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read() or b"null")
    except (urllib.error.URLError, ConnectionError, TimeoutError) as fault:
        return 0, str(fault)


def same(what, got, expected):
    if got != expected:
        sys.exit(f"demo: {what}: expected {expected!r}, got {got!r}")


def write(method, path, body=None):
    """A write that is sent to one node after the other until one decides it; its key makes a repetition harmless."""
    mark = {"Idempotency-Key": f"demo-{random.getrandbits(96):024x}"}
    until = time.monotonic() + 60
    attempt = random.randrange(3)
    while time.monotonic() < until:
        attempt += 1
        status, answer = ask(NODES[1 + attempt % 3], method, path, body, mark)
        if status not in (0, 429, 503, 504):
            return status, answer
        time.sleep(0.1)
    sys.exit(f"demo: {method} {path} was not decided within 60 s: {answer}")


TEXT, INTEGER, NUMBER, FLAG = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def shape(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def sample():
    """{definition: (indexes, schema, {config: data})}, the same in every run."""
    dice = random.Random(20)
    regions = ["eu-central", "eu-west", "us-east", "ap-south"]
    teams = ["payments", "search", "identity", "delivery", "growth"]
    service = shape(
        ["team", "tier", "runtime", "endpoints"],
        team={"enum": teams},
        tier={"type": "integer", "minimum": 1, "maximum": 4},
        region={"type": "string", "enum": regions},
        runtime=shape(
            ["image", "replicas"],
            image={"type": "string", "pattern": "^[a-z0-9./-]+:[0-9]+\\.[0-9]+\\.[0-9]+$"},
            replicas={"type": "integer", "minimum": 1, "maximum": 64},
            memory_mib=INTEGER,
            limits=shape(["cpu"], cpu=NUMBER),
        ),
        endpoints={"type": "array", "minItems": 1, "items": shape(["path", "port"], path=TEXT, port=INTEGER)},
        tags={"type": "array", "items": TEXT, "uniqueItems": True},
    )
    services = {}
    for n in range(300):
        team = dice.choice(teams)
        services[f"{team}-{n:03}"] = {
            "team": team,
            "tier": dice.randint(1, 4),
            "region": dice.choice(regions),
            "runtime": {
                "image": f"registry/{team}/svc-{n}:{dice.randint(1, 9)}.{dice.randint(0, 20)}.0",
                "replicas": dice.randint(1, 12),
                "memory_mib": 256 * dice.randint(1, 16),
                "limits": {"cpu": dice.choice([0.25, 0.5, 1.0, 2.0])},
            },
            "endpoints": [{"path": f"/v{i}", "port": 8000 + i} for i in range(1, dice.randint(2, 4))],
            "tags": dice.sample(["critical", "batch", "public", "internal", "gdpr"], dice.randint(1, 3)),
        }
    flag = shape(
        ["enabled", "rollout"],
        enabled=FLAG,
        rollout={"type": "number", "minimum": 0, "maximum": 100},
        owner=TEXT,
        audience=shape([], countries={"type": "array", "items": {"type": "string", "pattern": "^[A-Z]{2}$"}}, plan={"enum": ["free", "pro", "enterprise"]}),
    )
    flags = {}
    for n in range(150):
        flags[f"flag.{n:03}"] = {
            "enabled": dice.random() < 0.5,
            "rollout": dice.choice([0, 5, 12.5, 50, 100]),
            "owner": f"{dice.choice(teams)}@example.com",
            "audience": {"countries": dice.sample(["DE", "FR", "US", "IN", "BR"], 2), "plan": dice.choice(["free", "pro", "enterprise"])},
        }
    database = shape(
        ["engine", "primary"],
        engine={"enum": ["postgres", "redis", "kafka"]},
        primary=shape(["host", "port"], host=TEXT, port={"type": "integer", "minimum": 1, "maximum": 65535}),
        replicas={"type": "array", "items": shape(["host"], host=TEXT, lag_ms=NUMBER)},
        retention_days={"type": ["integer", "null"]},
    )
    databases = {}
    for n in range(60):
        databases[f"db{n}"] = {
            "engine": dice.choice(["postgres", "redis", "kafka"]),
            "primary": {"host": f"db{n}.internal", "port": dice.choice([5432, 6379, 9092])},
            "replicas": [{"host": f"db{n}-r{i}.internal", "lag_ms": round(dice.random() * 10, 3)} for i in range(dice.randint(0, 3))],
            "retention_days": dice.choice([7, 30, 365, None]),
        }
    return {
        "demo.service": (["team", "tier", "region", "runtime.replicas", "tags"], service, services),
        "demo.flag": (["enabled", "rollout", "audience.plan"], flag, flags),
        "demo.database": (["engine", "primary.port", "retention_days"], database, databases),
    }


QUERIES = [
    ("demo.service", "team=search&sort_by=config_key&sort_order=asc", lambda d: d["team"] == "search"),
    ("demo.service", "tier[lte]=2&region=eu-west&region=us-east", lambda d: d["tier"] <= 2 and d["region"] in ("eu-west", "us-east")),
    ("demo.service", "tags=gdpr&runtime.replicas[gt]=6", lambda d: "gdpr" in d["tags"] and d["runtime"]["replicas"] > 6),
    ("demo.flag", "enabled=true&rollout[gte]=12.5&audience.plan=pro", lambda d: d["enabled"] and d["rollout"] >= 12.5 and d["audience"]["plan"] == "pro"),
    ("demo.database", "retention_days=null", lambda d: d["retention_days"] is None),
    ("demo.database", "engine[in]=redis,kafka&primary.port[ne]=5432", lambda d: d["engine"] != "postgres" and d["primary"]["port"] != 5432),
]


def compare(base, sets):
    """Every record and every query of the sample, on one node."""
    for definition, (_, schema, configs) in sets.items():
        status, answer = ask(base, "GET", f"{API}/{definition}")
        same(f"{definition} on {base}", (status, answer["data"]["json_schema"]), (200, schema))
        status, answer = ask(base, "GET", f"{API}/{definition}/config/?limit=1000")
        same(f"list of {definition} on {base}", status, 200)
        got = {row["config_key"]: row["data"] for row in answer["data"]["results"]}
        same(f"configs of {definition} on {base}", got, configs)
    for definition, query, holds in QUERIES:
        expected = {key for key, data in sets[definition][2].items() if holds(data)}
        quoted = urllib.parse.quote(query, safe="=&")
        status, answer = ask(base, "GET", f"{API}/{definition}/config/?limit=1000&{quoted}")
        same(f"{definition}?{query} on {base}", status, 200)
        got = {row["config_key"] for row in answer["data"]["results"]}
        same(f"{definition}?{query} on {base}", (got, answer["data"]["meta"]["total"]), (expected, len(expected)))
        print(f"  {definition}?{query}: {len(expected)} configs")


def leader():
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for base in NODES.values():
            status, answer = ask(base, "GET", "/api/v1/cluster")
            if status == 200 and answer["data"]["leader_id"]:
                return answer["data"]["leader_id"]
        time.sleep(0.1)
    sys.exit("demo: no node names a leader within 60 s")


def main():
    sets = sample()
    print("loading", sum(len(configs) for _, _, configs in sets.values()), "configs of", len(sets), "definitions")
    for definition, (indexes, schema, configs) in sets.items():
        write("DELETE", f"{API}/{definition}")
        body = {"config_definition_key": definition, "indexes": indexes, "json_schema": schema}
        same(f"create {definition}", write("POST", f"{API}/", body)[0], 201)
        for key, data in configs.items():
            status, answer = write("POST", f"{API}/{definition}/config/", {"config_key": key, "data": data})
            same(f"create {definition} {key}", (status, answer.get("data")), (201, data))
    broken = write("PUT", f"{API}/demo.flag/config/flag.000", {"data": {"enabled": "yes", "rollout": 101}})
    same("data that breaks its schema", broken[0], 422)
    print("refused, with every violation:", *(f"{e['loc']}: {e['msg']}" for e in broken[1]["errors"]), sep="\n  ")
    for node, base in NODES.items():
        print(f"node {node}:")
        compare(base, sets)
    victim = leader()
    print(f"killing the leader, node {victim}")
    script = str(ROOT / "scripts" / "cluster.sh")
    subprocess.run([script, "kill", str(victim)], check=True)
    start = time.monotonic()
    same("an answer of the killed node", ask(NODES[victim], "GET", "/livez")[0], 0)
    changed = dict(sets["demo.flag"][2]["flag.001"], rollout=50, owner="after-the-kill@example.com")
    same("a write after the kill", write("PUT", f"{API}/demo.flag/config/flag.001", {"data": changed})[0], 200)
    sets["demo.flag"][2]["flag.001"] = changed
    print(f"the next write was acknowledged {time.monotonic() - start:.1f} s after the kill")
    for node, base in NODES.items():
        if node != victim:
            print(f"node {node}:")
            compare(base, sets)
    subprocess.run([script, "start", str(victim)], check=True)
    until = time.monotonic() + 120
    while ask(NODES[victim], "GET", "/readyz")[0] != 200:
        if time.monotonic() > until:
            sys.exit(f"demo: node {victim} is not ready 120 s after its start")
        time.sleep(0.1)
    print(f"node {victim}, started again:")
    compare(NODES[victim], sets)
    for definition in sets:
        same(f"delete {definition}", write("DELETE", f"{API}/{definition}")[0], 200)
    print("everything was there, on every node")


if __name__ == "__main__":
    main()
