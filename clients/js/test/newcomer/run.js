// Runs the programs of this folder in the folder that the package was installed in: node run.js FOLDER. With three nodes.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { KEY, Nodes } from "../cluster/nodes.js";

const folder = process.argv[2];
const nodes = await Nodes.start();
try {
  const run = (program, env) => execFileSync(process.execPath, [program], { cwd: folder, env: { ...process.env, ...env }, encoding: "utf8" });
  const printed = run("program.js", { CONCORD_URL: nodes.urls.join(), CONCORD_API_KEY: KEY });
  assert.equal(printed, readFileSync(join(import.meta.dirname ?? new URL(".", import.meta.url).pathname, "expected.txt"), "utf8"));
  assert.equal(run("program.mjs", {}), "7 file true\n");
} finally {
  await nodes.end();
}
