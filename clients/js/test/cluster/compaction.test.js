// What a watch and a cache do when the changes that they would go on from are no longer retained, on real nodes.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ExpiredError, op } from "../../src/index.js";
import { until } from "../fake.js";
import { Nodes } from "./nodes.js";

test("changes that are compacted: an error, or the present state once more", async () => {
  const nodes = await Nodes.start({ CONCORD_HISTORY_REVISIONS: "32" });
  try {
    const concord = nodes.client();
    await concord.definitions.create("d");
    await concord.configs("d").create("a", { n: 0 });
    const seen = [];
    const stop = new AbortController();
    const slow = concord.watch({ definitions: "d", initial: true, signal: stop.signal });
    const first = (await slow.next()).value;
    assert.equal(first?.kind, "state");
    // The connection of the watch ends with its node while it is not read, and many changes follow.
    for (const n of [0, 1, 2]) {
      await nodes.kill(n);
      nodes.run(n);
      await nodes.ready();
    }
    await concord.batch([op.create("d", "b", { n: 0 })]);
    let n = 0;
    await until(async () => {
      for (let i = 0; i < 50; i += 1) await concord.configs("d").put("a", { n: (n += 1) });
      try {
        for await (const event of nodes.client().watch({ definitions: "d", from: first?.revision ?? 1 })) if (event) return false;
      } catch (error) {
        if (error instanceof ExpiredError) return true;
        throw error;
      }
      return false;
    }, "the compaction");
    for await (const event of slow) {
      seen.push(event);
      if (event.kind === "state" && event.complete) break;
    }
    stop.abort();
    const reset = seen.findIndex(({ kind }) => kind === "reset");
    assert.ok(reset >= 0, seen.map(({ kind }) => kind).join());
    const state = seen.slice(reset + 1).flatMap((event) => (event.kind === "state" ? event.configs : []));
    assert.deepEqual(state.map(({ key, data }) => [key, data.n]), [["a", n], ["b", 0]]);
  } finally {
    await nodes.end();
  }
});
