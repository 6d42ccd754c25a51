// A server on stdin and stdout behind HTTP: messages pass as they are, one process for each session. Prints its URL.
//
//   node mcp-bridge.mjs COMMAND [ARGUMENT...]
import { randomUUID } from "node:crypto";
import http from "node:http";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const [command, ...args] = process.argv.slice(2);
const sessions = new Map();
const processes = new Set();

async function begin() {
    const web = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => void sessions.set(id, web),
    });
    const stdio = new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
    web.onmessage = (message) => void stdio.send(message);
    stdio.onmessage = (message) => void web.send(message);
    web.onclose = () => void stdio.close();
    await stdio.start();
    await web.start();
    processes.add(stdio);
    return web;
}

const server = http.createServer(async (request, response) => {
    const session = sessions.get(request.headers["mcp-session-id"]) ?? (await begin());
    await session.handleRequest(request, response);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/mcp`));
process.on("SIGTERM", async () => {
    await Promise.all([...processes].map((stdio) => stdio.close()));
    process.exit(0);
});
