"""The client in a real browser: its source as it is, a cache in localStorage, other nodes when one dies.

Started by scripts/clients-test.sh, with CHROMIUM, CONCORD_BIN and a Python that has Playwright. The page comes from
another origin than the nodes, as that of a program does.
"""

import functools
import http.server
import os
import pathlib
import sys
import tempfile
import threading

from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts" / "console"))
from browser import KEY, Cluster  # noqa: E402

PATIENCE_MS = 120_000
# Runs in the page: everything that a program in a browser does.
PROGRAM = """async ({ urls, key }) => {
  const { Concord, ConflictError, webStorage } = await import("/src/index.js");
  const concord = new Concord({ urls, key, timeoutMs: 60000 });
  await concord.definitions.create("flags", { indexes: ["on"] });
  const flags = concord.configs("flags");
  const { revision } = await flags.create("dark", { on: false }, { reason: "größer" });
  let code = "";
  try { await flags.create("dark", {}); } catch (error) { if (error instanceof ConflictError) code = error.code; }
  await flags.put("dark", { on: true }, { ifRevision: revision });
  window.seen = [];
  window.stop = new AbortController();
  (async () => {
    for await (const event of concord.watch({ definitions: "flags", from: revision, signal: window.stop.signal })) {
      if (event.kind === "change") window.seen.push(...event.changes.map((change) => JSON.stringify(change.data)));
    }
  })();
  window.cache = concord.cache("flags", { storage: webStorage("flags"), confirmMs: 300, freshForMs: 2000, saveMs: 50 });
  await window.cache.ready({ timeoutMs: 60000 });
  window.flags = flags;
  const listed = await flags.list({ filter: { on: true } }).all();
  const history = await flags.history("dark").all();
  return { code, listed: listed.map((one) => one.key), reason: history.at(-1).reason, kind: window.cache.source().kind };
}"""
AGAIN = """async ({ urls, key }) => {
  const { Concord, webStorage } = await import("/src/index.js");
  window.cache = new Concord({ urls, key }).cache("flags", { storage: webStorage("flags") });
  await window.cache.ready({ timeoutMs: 500 });
  const entry = window.cache.entry("flags", "dark");
  return { data: entry.data, kind: entry.source.kind, ageMs: entry.source.ageMs };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(ROOT / "clients" / "js")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["CONCORD_CORS_ORIGINS"] = origin = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory(prefix="concord-js-browser-") as home, sync_playwright() as playwright:
        cluster = Cluster(pathlib.Path(home))
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            cluster.form()
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            errors = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{origin}/README.md")
            page.goto(f"{origin}/src/")
            given = {"urls": [f"http://{cluster.api[n]}" for n in (1, 2, 3)], "key": KEY}
            found = page.evaluate(PROGRAM, given)
            assert found == {"code": "config_exists", "listed": ["dark"], "reason": "größer", "kind": "live"}, found

            cluster.kill(1)  # The node that the page uses.
            page.evaluate("() => window.flags.put('dark', { on: 'soon' })")
            page.wait_for_function("() => window.cache.get('flags', 'dark').on === 'soon' && window.seen.length === 3")
            assert page.evaluate("window.seen") == ['{"on":false}', '{"on":true}', '{"on":"soon"}']
            page.wait_for_function("() => window.cache.source().kind === 'live' && localStorage.getItem('flags').includes('soon')")

            for n in (2, 3):
                cluster.kill(n)
            page.wait_for_function("() => window.cache.source().kind === 'cache'")
            assert page.evaluate("window.cache.get('flags', 'dark')") == {"on": "soon"}
            page.evaluate("() => { window.stop.abort(); return window.cache.close(); }")
            page.reload()
            again = page.evaluate(AGAIN, given)
            assert again["data"] == {"on": "soon"} and again["kind"] == "file" and again["ageMs"] > 2000, again
            page.evaluate("() => window.cache.close()")
            assert not errors, errors
        finally:
            browser.close()
            cluster.end()
            server.shutdown()
    print("the client works in a browser")


if __name__ == "__main__":
    main()
