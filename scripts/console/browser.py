"""Three nodes, and a browser at the console of one of them. Used by scripts/console-test.py."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from playwright.sync_api import expect

BINARY = pathlib.Path(os.environ.get("CONCORD_BIN", "target/debug/concord")).resolve()
KEY = "console-test-key-0123456789abcdef"
PATIENCE_MS = 30_000
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class Cluster:
    """Three nodes, each a process with a directory of its own."""

    def __init__(self, home):
        self.home, self.processes = home, {}
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        self.api = {n: f"127.0.0.1:{ports[n - 1]}" for n in (1, 2, 3)}
        self.peer = {n: f"127.0.0.1:{ports[n + 2]}" for n in (1, 2, 3)}

    def start(self, n):
        env = {
            **os.environ, "CONCORD_NODE_ID": str(n), "CONCORD_API_ADDR": self.api[n], "CONCORD_PEER_ADDR": self.peer[n],
            "CONCORD_DATA_DIR": str(self.home / f"node{n}"), "CONCORD_CLUSTER_SECRET": "console-test-secret-0123456789abcdef",
            "CONCORD_API_KEY": KEY, "CONCORD_LOG": "warn",
        }
        log = open(self.home / f"node{n}.log", "ab")
        self.processes[n] = subprocess.Popen([BINARY, "serve"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, n):
        self.processes[n].kill()
        self.processes[n].wait()

    @contextlib.contextmanager
    def paused(self, n):
        """A node that stands still: its connections stay open, and nothing comes."""
        self.processes[n].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes[n].send_signal(signal.SIGCONT)

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def form(self):
        for n in self.api:
            self.start(n)
        wait_for(lambda: all(self.call(n, "GET", "/livez", root="")[0] == 200 for n in self.api), "the nodes to start")
        members = [{"id": n, "api_addr": self.api[n], "peer_addr": self.peer[n]} for n in self.api]
        status, body = self.call(1, "POST", "/cluster/init", {"members": members})
        assert status == 200, body
        self.wait_ready()

    def wait_ready(self):
        wait_for(lambda: all(self.call(n, "GET", "/readyz", root="")[0] == 200 for n in self.api), "the nodes to be ready")

    def call(self, n, method, path, body=None, headers=(), root="/api/v1"):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.api[n]}{root}{path}", data, method=method)
        for name, value in [("Authorization", KEY), ("Content-Type", "application/json"), *headers]:
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            return 0, str(error)

    def data(self, n, path):
        status, body = self.call(n, "GET", path)
        assert status == 200, (path, status, body)
        return json.loads(body)["data"]

    def leader(self, among=(1, 2, 3)):
        found = []

        def ask():
            found[:] = [self.data(n, "/cluster")["leader_id"] for n in among]
            return found[0] in among and len(set(found)) == 1

        wait_for(ask, "a leader")
        return found[0]


def shortcut(page, key):
    """Presses the key of a button or link of the page, once the page has it: before, the key does nothing."""
    expect(page.locator(f'[data-key="{key}"]:not([disabled])')).to_have_count(1)
    page.keyboard.press(key)


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE_MS / 1000
    while True:
        with contextlib.suppress(AssertionError, KeyError):
            if condition():
                return
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.05)


class Console:
    """A browser at the console of one node, with everything that it asked for."""

    def __init__(self, playwright, cluster, node, options):
        self.cluster, self.node, self.options = cluster, node, options
        self.origin = f"http://{cluster.api[node]}"
        self.browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox", "--disable-dev-shm-usage"])
        self.context = self.browser.new_context(viewport={"width": 1380, "height": 860}, color_scheme="light")
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=self.origin)
        self.context.add_init_script("window.broken = []; addEventListener('securitypolicyviolation', (e) => broken.push(`${e.violatedDirective} ${e.blockedURI}`));")
        self.asked, self.failures, self.seen = [], [], set()
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.failures.append(f"{error} {error.stack}"))
        self.page.on("console", lambda message: self.failures.append(message.text) if message.type == "error" and "Failed to load resource" not in message.text else None)
        if options.files:
            self.context.route("**/ui/**", self.from_directory)
        self.axe = pathlib.Path(os.environ["AXE"]).read_text()

    def visitor(self):
        """A page of somebody else: nothing is shared with the page of this console."""
        page = self.browser.new_page(viewport={"width": 1380, "height": 860}, color_scheme="light")
        page.on("pageerror", lambda error: self.failures.append(f"{error} {error.stack}"))
        if self.options.files:
            page.route("**/ui/**", self.from_directory)
        page.goto(f"{self.origin}/ui/")
        return page

    def from_directory(self, route):
        name = route.request.url.split("/ui/", 1)[1].split("?")[0] or "index.html"
        file = pathlib.Path(self.options.files) / name
        kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
        with urllib.request.urlopen(f"{self.origin}/ui/") as page:
            policy = page.headers["content-security-policy"]
        route.fulfill(body=file.read_bytes(), headers={"content-type": kinds.get(file.suffix, "text/plain"), "content-security-policy": policy})

    def open(self, place, heading=None):
        self.page.goto(f"{self.origin}/ui/#/{place}")
        if heading:
            expect(self.heading(heading)).to_be_visible()

    def heading(self, name):
        return self.page.get_by_role("heading", name=name, exact=True)

    def button(self, name, **more):
        return self.page.get_by_role("button", name=name, **{"exact": True, **more})

    def said(self, text):
        """A message that has not been waited for before."""
        message = self.page.locator(".messages .message:not([data-heard])", has_text=text)
        expect(message).to_be_visible()
        message.evaluate("(element) => { element.dataset.heard = true; }")

    def state(self, text):
        expect(self.page.locator(".state")).to_contain_text(text)

    def edit_text(self, label, text):
        """Replaces what the editor holds, as a person would: select all, paste."""
        field = self.page.locator(".editor").get_by_role("textbox", name=label)
        field.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def editor_shows(self, *texts):
        """Waits: the editor follows what is set elsewhere on the page after the browser has painted that."""
        for text in texts:
            expect(self.page.locator(".editor-host .cm-content")).to_contain_text(text)

    def look(self, name, page=None, narrow=False):
        """Both themes, and where asked a phone: no violation of the rules, and a screenshot."""
        page = page or self.page
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            expect(page.locator(f"html[data-theme={theme}]")).to_have_count(1)
            self.judge(page, f"{name}-{theme}")
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        if narrow or self.options.shots:
            before = page.viewport_size
            page.set_viewport_size({"width": 390, "height": 844})
            self.judge(page, f"{name}-narrow")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} scrolls sideways"
            page.set_viewport_size(before)
        page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        self.seen.add(name)

    def judge(self, page, name):
        if self.options.shots:
            page.screenshot(path=f"{self.options.shots}/{name}.png", full_page=name.endswith("narrow"))
        if not page.evaluate("typeof window.axe === 'object'"):
            page.evaluate(self.axe)
        found = page.evaluate("(tags) => axe.run(document, { runOnly: tags, resultTypes: ['violations'] })", AXE_RULES)["violations"]
        lines = [f"{item['id']}: {item['help']}: {node['html'][:160]} {node['failureSummary'][:300]}" for item in found for node in item["nodes"][:3]]
        assert not found, f"{name}:\n" + "\n".join(lines)
