"""The pages of an incident: changes are found and taken back, and the audit logs of all nodes are one list. Used by scripts/console-test.py."""

import json
import re

from playwright.sync_api import expect

from browser import wait_for
from forms import definition

SECRET = {"properties": {"password": {"type": "string", "x-concord-secret": True}}}


def put(c, key, data, headers=()):
    status, body = c.cluster.call(1, "PUT", f"/config_definition/prod.limits/config/{key}", {"data": data}, headers)
    assert status == 200, body


def data(c, key):
    status, body = c.cluster.call(1, "GET", f"/config_definition/prod.limits/config/{key}")
    return json.loads(body)["data"]["data"] if status == 200 else None


def run(c):
    """What a pipeline does: one batch. Its revision."""
    of = lambda op, key, **more: {"op": op, "config_definition_key": "prod.limits", "config_key": key, **more}
    batch = [of("put_config", "a", data={"n": 2, "password": "run-secret"}), of("put_config", "b", data={"n": 2}), of("delete_config", "c"), of("create_config", "d", data={"n": 2})]
    status, body = c.cluster.call(1, "POST", "/batch", {"operations": batch}, [("X-Change-Reason", "CI run 4711")])
    assert status == 200, body
    return json.loads(body)["data"]["revision"]


def check_undo(c):
    """A run is taken back with a preview, except what was changed since; nothing of a secret is shown."""
    with definition(c, "prod.limits", SECRET, [("a", {"n": 1, "password": "old-secret"}), ("b", {"n": 1}), ("c", {"n": 1})]):
        revision = run(c)
        put(c, "b", {"n": 3})
        c.open("watch?definition=prod.limits", "Changes")
        row = c.page.get_by_role("row").filter(has_text="CI run 4711")
        expect(row).to_contain_text("prod.limits / a")
        c.button(f"Undo revision {revision}").click()
        dialog = c.page.get_by_role("dialog")
        expect(dialog).to_contain_text("3 configs would be set back")
        expect(dialog.get_by_text(re.compile("changed since, at revision"))).to_be_visible()
        part = dialog.get_by_role("region", name="prod.limits / a")
        expect(part.get_by_role("row").filter(has_text="n")).to_contain_text("1")
        assert "-secret" not in c.page.content()
        c.look("undo")
        # To look is not to press.
        part.get_by_role("button", name="Lines").click()
        dialog.get_by_role("button", name="Copy as…").click()
        copy = c.page.get_by_role("dialog").last
        copy.get_by_role("button", name="CLI").click()
        copy.get_by_role("button", name="Show the text").click()
        expect(copy.locator("pre")).to_contain_text(f"concord undo {revision}")
        copy.get_by_role("button", name="Close").click()
        assert data(c, "d") == {"n": 2}, "nothing was undone"
        dialog.get_by_role("button", name="Undo 3 configs").click()
        c.said("3 configs set back as revision")
        assert [data(c, key) for key in "abcd"] == [{"n": 1, "password": "old-secret"}, {"n": 3}, {"n": 1}, None]
        expect(c.page.get_by_role("row").filter(has_text=f"undo of revision {revision}")).to_be_visible()
        # What was undone is not there to be undone again.
        c.button(f"Undo revision {revision}").click()
        expect(dialog).to_contain_text("Nothing to undo")
        expect(dialog).to_contain_text("4 records not undone")
        dialog.get_by_role("button", name="Close").last.click()
        # Somebody changes a config between the look and the press.
        again = run(c)
        c.button(f"Undo revision {again}").click()
        expect(dialog.get_by_role("button", name="Undo 4 configs")).to_be_enabled()
        put(c, "b", {"n": 9})
        dialog.get_by_role("button", name="Undo 4 configs").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Somebody has changed it")
        assert [data(c, key) for key in "abcd"] == [{"n": 2, "password": "run-secret"}, {"n": 9}, None, {"n": 2}]
        c.page.keyboard.press("Escape")


def check_undo_unseen_secrets(c):
    """A key that sees no secret value sets one back all the same, and sees nothing of it."""
    with definition(c, "prod.limits", SECRET, [("a", {"n": 1, "password": "old-secret"}), ("b", {"n": 1}), ("c", {"n": 1, "password": "gone-secret"})]):
        revision = run(c)
        grants = [{"verbs": ["read", "write"], "definitions": ["prod.*"]}]
        status, answer = c.cluster.call(1, "POST", "/api_key/", {"name": "blind", "grants": grants})
        made = json.loads(answer)["data"]
        page = c.visitor()
        page.get_by_label("Access key").fill(made["api_key"])
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Changes").click()
        page.get_by_role("button", name=f"Undo revision {revision}").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("prod.limits / c: it has secret values that your key may not see")
        dialog.get_by_role("button", name="Undo 3 configs").click()
        expect(page.get_by_text("3 configs set back as revision").first).to_be_visible()
        assert "-secret" not in page.content()
        page.close()
        assert [data(c, key) for key in "abcd"] == [{"n": 1, "password": "old-secret"}, {"n": 1}, None, None]
        assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200


def check_find_changes(c):
    """Changes are found by time, by the name of a key, by an environment; older ones page by page."""
    with definition(c, "prod.limits", {}, [("a", {"n": 0})]), definition(c, "dev.limits", {}, [("a", {"n": 0})]):
        status, answer = c.cluster.call(1, "POST", "/api_key/", {"name": "the nightly job", "grants": [{"verbs": ["read", "write"], "definitions": ["*"]}]})
        made = json.loads(answer)["data"]
        for n in range(1, 61):
            put(c, "a", {"n": n})
        put(c, "a", {"n": 100}, [("Authorization", made["api_key"])])
        rows = c.page.get_by_role("region", name="Changes").locator("tbody tr")
        c.open("", "Definitions")
        c.page.get_by_role("link", name="Changes").click()
        expect(rows).to_have_count(50)
        c.button("Earlier changes").click()
        expect(rows.nth(60)).to_contain_text("n 0 → 1")
        c.page.get_by_label("By", exact=True).fill("the nightly job")
        c.button("Filter").click()
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("the nightly job")
        # What comes is filtered as well.
        put(c, "a", {"n": 101})
        put(c, "a", {"n": 102}, [("Authorization", made["api_key"])])
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("n 101 → 102")
        c.look("changes-found")
        c.button("Show all").click()
        c.page.get_by_label("Definition", exact=True).fill("dev.*")
        c.button("Filter").click()
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("dev.limits / a")
        c.page.get_by_label("Since", exact=True).select_option("1h")
        expect(rows).to_have_count(2)
        c.page.get_by_label("By", exact=True).fill("nobody")
        c.button("Filter").click()
        expect(c.page.get_by_text("Nothing that fits was changed")).to_be_visible()
        assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200


def check_audit_of_all(c):
    """The audit page has the lines of all nodes, newest first; a node that stands still is named."""
    with definition(c, "audited", {}, [("one", {"n": 0})]):
        for n in c.cluster.api:
            assert c.cluster.call(n, "PUT", "/config_definition/audited/config/one", {"data": {"n": n}}, [("X-Request-ID", f"by-node-{n}")])[0] == 200
        c.open("audit?definition=audited", "Audit")
        rows = c.page.get_by_role("region", name="Audit log").locator("tbody tr").filter(has_text="PUT")

        def is_there():
            c.button("Reload").click()
            expect(c.page.locator(".loading")).to_have_count(0)
            return rows.count() == 3

        wait_for(is_there, "the lines of all nodes")
        assert [row.locator("td").nth(1).inner_text() for row in rows.all()] == ["3", "2", "1"]
        c.look("audit-all")
        other = next(n for n in c.cluster.api if n != c.node and n != c.cluster.leader())
        with c.cluster.paused(other):
            c.button("Reload").click()
            expect(c.page.get_by_role("alert")).to_contain_text(f"Lines of node {other} are missing")
            expect(rows).to_have_count(2)
        c.button("Reload").click()
        expect(c.page.get_by_role("alert")).to_have_count(0)
        expect(rows).to_have_count(3)
