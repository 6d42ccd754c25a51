"""What the console does when its node stands still, or a proxy holds back. Used by scripts/console-test.py."""

import re
import time

from playwright.sync_api import expect

from browser import KEY, wait_for
from forms import definition, edit

# The console ends a connection after 25 seconds without a byte.
SILENT_MS_MAX = 32_000
# One attempt, and what the page takes to say so.
PATIENCE_MS = 90_000


def check_silence(c):
    """The console's own node stands still: nothing is *Live*, a save is unknown and nothing typed is lost; then all is there again."""
    with definition(c, "silent", {"properties": {"n": {"type": "integer"}}}, [("one", {"n": 1}), ("two", {"n": 1})]):
        others = [c.context.new_page() for _ in range(2)]
        for page, place in zip(others, ("watch?definition=silent", "d/silent"), strict=True):
            page.goto(f"{c.origin}/ui/#/{place}")
            page.get_by_label("Access key").fill(KEY)
            page.keyboard.press("Enter")
        changes, table = others
        expect(changes.get_by_text("Live", exact=True)).to_be_visible()
        expect(table.locator(".dot.live")).to_be_visible()
        leader = c.cluster.leader()
        if leader == c.node:
            other = next(n for n in (1, 2, 3) if n != c.node)
            assert c.cluster.call(1, "POST", "/cluster/leader", {"id": other})[0] == 200
            wait_for(lambda: c.cluster.leader() != c.node, "another leader")
        form = edit(c, "silent", "one")
        form.get_by_label("n", exact=True).fill("2")
        c.state("The node would take it")
        asker = next(n for n in (1, 2, 3) if n != c.node)
        sent = []
        c.page.on("request", lambda request: sent.append(request) if request.method == "PUT" and "dry_run" not in request.url else None)
        with c.cluster.paused(c.node):
            began = time.monotonic()
            c.button("Save").click()
            expect(c.button("Saving…")).to_be_visible()
            expect(changes.get_by_text("Connecting again…")).to_be_visible(timeout=SILENT_MS_MAX)
            c.silent = {"live": time.monotonic() - began}
            expect(table.locator(".dot.waiting")).to_be_visible(timeout=SILENT_MS_MAX)
            expect(c.page.get_by_role("alert").filter(has_text="Outcome unknown")).to_be_visible(timeout=PATIENCE_MS)
            c.silent["save"] = time.monotonic() - began
            expect(form.get_by_label("n", exact=True)).to_have_value("2")
            assert c.cluster.call(asker, "PUT", "/config_definition/silent/config/two", {"data": {"n": 7}})[0] == 200
            # A dry run without an answer is no rejection.
            form.get_by_label("n", exact=True).fill("3")
            expect(c.page.locator(".trouble")).to_contain_text("does not answer", timeout=PATIENCE_MS)
            form.get_by_label("n", exact=True).fill("2")
        print("  the node stands still: no longer Live after {live:.0f} s, a save unknown after {save:.0f} s".format(**c.silent))
        expect(changes.get_by_text("Live", exact=True)).to_be_visible(timeout=PATIENCE_MS)
        expect(changes.get_by_role("row").filter(has_text="n 1 → 7")).to_have_count(1, timeout=PATIENCE_MS)
        expect(table.locator(".dot.live")).to_be_visible(timeout=PATIENCE_MS)
        expect(table.get_by_role("row").filter(has_text="two")).to_contain_text("7", timeout=PATIENCE_MS)
        c.button("Send it again").click()
        c.said("one is saved")
        keys = {request.headers["idempotency-key"] for request in sent}
        assert len(sent) >= 2 and len(keys) == 1, [request.headers for request in sent]
        expect(c.page.locator(".trouble")).to_have_count(0)
        for page in others:
            page.close()
        history = c.cluster.data(asker, "/config_definition/silent/config/one/history")["results"]
        assert [entry["operation"] for entry in history] == ["update", "create"], "done once"
        assert history[0]["data"] == {"n": 2}


def check_silence_of_pages(c):
    """A module of a page that is held back is called so, and shown when it comes; a slow answer is not cut."""
    held = []
    c.page.route("**/ui/pages/usage.js", lambda route: held.append(route))
    c.page.goto(f"{c.origin}/ui/#/")
    c.page.reload()
    expect(c.heading("Definitions")).to_be_visible()
    c.page.get_by_role("link", name="Usage").click()
    expect(c.page.get_by_role("alert")).to_contain_text(re.compile("no answer"), timeout=SILENT_MS_MAX)
    expect(c.button("Load the console again")).to_be_visible()
    held[0].fallback()
    expect(c.heading("Usage")).to_be_visible()
    c.page.unroute("**/ui/pages/usage.js")
    # The bound is on the silence: a stream with a part each second stays, one without ends.
    took = c.page.evaluate("""async () => {
        const { Listening } = await import("/ui/lib/silence.js");
        const parts = (count, pause) => new ReadableStream({
            async pull(controller) {
                if (count === 0) { controller.close(); return; }
                count -= 1;
                await new Promise((go) => setTimeout(go, pause));
                controller.enqueue(new TextEncoder().encode("ä"));
            },
        });
        const slow = new Listening(undefined, 1000);
        const whole = await slow.text(parts(12, 200));
        const cut = new Listening(undefined, 300);
        cut.signal.addEventListener("abort", () => {});
        const silent = new ReadableStream({ start(controller) { cut.signal.addEventListener("abort", () => controller.error(cut.signal.reason)); } });
        const error = await cut.text(silent).catch((error) => error.name);
        const stop = new AbortController();
        const outer = new Listening(stop.signal);
        stop.abort();
        return [whole, slow.isSilent, error, cut.isSilent, outer.signal.aborted, outer.isSilent];
    }""")
    assert took == ["ä" * 12, False, "AbortError", True, True, False], took
