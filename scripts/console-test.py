"""Clicks through the console in a real browser, on three real nodes. Started by scripts/console-test.sh.

    console-test.py [--shots DIR] [--files DIR] [--only NAME...] [--documents COUNT] [--seed SEED]

Each function below whose name begins with `check_` is a capability; they run in their order and build on one another. In
the middle the leader is killed. On every page, in both themes, axe-core looks for what people with a keyboard or a screen
reader would miss. Nothing may be fetched from elsewhere, and the page's policy may never be broken.

--shots DIR  writes a screenshot of every page in both themes, and as wide as a phone
--files DIR  serves the console's files from a directory instead of the binary, to work on them without a build
--only NAME  runs the sign-in and these checks only
--documents COUNT  random documents that are changed in the form: 1,000 are of 30 schemas
--seed SEED  of these documents

EDITS=1000 SEED=7 say how many edits `check_secret_edits` makes, and which.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "console"))
from browser import BINARY, KEY, PATIENCE_MS, Cluster, Console, shortcut, wait_for  # noqa: E402
from pages import (  # noqa: E402, F401: what pages show
    check_dry_runs, check_go_to_config, check_kept_secrets, check_key_times, check_last_changes, check_secrets, check_typing_goes_on, check_widths,
)
from secret_edits import check_secret_edits  # noqa: E402, F401: random edits by a key that sees no secret values
from undo import check_audit_of_all, check_find_changes, check_undo, check_undo_unseen_secrets  # noqa: E402, F401: an incident
from reviews import check_bypass_review, check_change_times, check_changes_narrow, check_edit_request, check_promote, check_propose, check_propose_elsewhere, check_reviews, check_reviews_end, check_reviews_follow  # noqa: E402, F401: change requests
from rollouts import check_readers, check_rollout, check_rollout_ends  # noqa: E402, F401: release in stages
from flags import check_flags, check_flags_restricted, check_flags_secret  # noqa: E402, F401: feature flags
from environments import check_environment_rules  # noqa: E402, F401: the rules of environments
from silence import check_silence, check_silence_of_pages  # noqa: E402, F401: a node that stands still
from forms import (  # noqa: E402, F401: the checks of the form, which run first
    check_form_documents, check_form_focus, check_form_large, check_form_names, check_form_recursion, check_form_texts,
)

CONFIGS = 10_000
FIRST_LOAD_BYTES_MAX = 60 * 1024
SCHEMA = {
    "type": "object", "title": "Service limits", "required": ["plan", "owner"], "additionalProperties": False,
    "properties": {
        "plan": {"enum": ["free", "pro", "enterprise"], "description": "What the tenant pays for"},
        "owner": {"type": "string", "minLength": 2, "description": "The team that answers for it"},
        "enabled": {"type": "boolean", "default": True},
        "quota": {"type": "object", "properties": {"requests": {"type": "integer", "minimum": 0}, "burst": {"type": "number"}}},
        "regions": {"type": "array", "items": {"enum": ["eu", "us", "ap"]}},
        "note": {"type": ["string", "null"]},
    },
}


# --- What the console can do ---------------------------------------------------------------------------------------


def sign_in(c):
    """A wrong key is refused and not kept; the first load is small; the key is in no address."""
    sizes = {}

    def finished(request):
        response = request.response()
        sizes[request.url] = sizes.get(request.url, 0) + request.sizes()["responseBodySize"] if response else 0

    c.page.on("requestfinished", finished)
    c.page.goto(f"{c.origin}/ui")
    expect(c.page.get_by_label("Access key")).to_be_focused()
    c.look("sign-in")
    c.page.get_by_label("Access key").fill("a wrong key")
    c.page.keyboard.press("Enter")
    expect(c.page.get_by_role("alert")).to_contain_text("not accepted")
    assert c.page.evaluate("sessionStorage.length") == 0
    c.page.get_by_label("Access key").fill(KEY)
    c.page.keyboard.press("Enter")
    expect(c.heading("Definitions")).to_be_visible()
    expect(c.page.get_by_text("There is no definition yet")).to_be_visible()
    c.page.remove_listener("requestfinished", finished)
    files = {url: size for url, size in sizes.items() if "/ui" in url}
    assert not any("editor.js" in url for url in files), "the editor is loaded when somebody edits"
    total = sum(files.values())
    c.first_load = total
    if not c.options.files:
        assert 10_000 < total <= FIRST_LOAD_BYTES_MAX, f"the first load has {total} bytes: {files}"
    assert KEY not in c.page.url and c.page.evaluate("[...Object.keys(localStorage)].filter((name) => name.includes('key')).length") == 0
    c.look("definitions-empty")


def check_modules(c):
    """What the modules without a page promise."""
    units = (pathlib.Path(__file__).resolve().parent / "console" / "units.js").read_text()
    wrong = c.page.evaluate(units[units.index("async (seed)"):].replace('"./lib/', '"/ui/lib/'), 7)
    assert not wrong, wrong


def check_new_definition(c):
    """A definition from the keyboard: its key, its schema, its indexed fields, tried by the node meanwhile."""
    c.open("", "Definitions")
    expect(c.page.get_by_text("There is no definition yet")).to_be_visible()
    shortcut(c.page, "n")
    expect(c.heading("New definition")).to_be_visible()
    c.page.get_by_label("Key", exact=True).fill("limits")
    c.edit_text("JSON schema", '{"properties": {"a": 12}}')
    c.state("The node would not take it")
    c.edit_text("JSON schema", '{"properties": ')
    c.state("No JSON")
    c.look("new-definition")
    c.edit_text("JSON schema", json.dumps(SCHEMA, indent=2))
    for path in ("plan", "owner", "enabled", "quota.requests"):
        c.page.get_by_role("checkbox", name=path, exact=True).check()
    c.state("The node would take it")
    c.button("Create it").click()
    expect(c.heading("limits")).to_be_visible()
    assert c.cluster.data(1, "/config_definition/limits")["indexes"] == ["plan", "owner", "enabled", "quota.requests"]
    expect(c.page.get_by_text("There is no config yet")).to_be_visible()
    c.look("configs-empty")


def check_new_config(c):
    """The form and the JSON are one state; what breaks the schema is said at its place before anything is saved."""
    shortcut(c.page, "n")
    expect(c.heading("New config")).to_be_visible()
    c.page.get_by_label("Key", exact=True).fill("first")
    form = c.page.get_by_role("region", name="Form")
    form.get_by_label("owner", exact=True).fill("x")
    c.state("1 place breaks the schema")
    expect(form.locator(".error")).to_contain_text("2")
    c.look("new-config")
    form.get_by_label("owner", exact=True).fill("search")
    form.get_by_role("button", name="Set quota").click()
    form.get_by_role("button", name="Set requests").click()
    form.get_by_label("requests", exact=True).fill("250")
    form.get_by_role("button", name="Set regions").click()
    form.get_by_role("button", name="Add an item").click()
    c.editor_shows('"requests": 250', '"regions": ["eu"]')
    # A number that no browser can hold, beside one that keeps its decimal.
    c.edit_text("Data of the config as JSON", '{"plan": "free", "owner": "search", "quota": {"requests": 123456789012345678901234567890, "burst": 7.0}}')
    expect(form.get_by_label("requests", exact=True)).to_have_value("123456789012345678901234567890")
    c.page.get_by_label("Reason", exact=True).fill("der erste – für alle")
    c.state("The node would take it")
    c.page.keyboard.press("Control+s")
    expect(c.heading("first")).to_be_visible()
    _, body = c.cluster.call(1, "GET", "/config_definition/limits/config/first")
    assert '"requests":123456789012345678901234567890,"burst":7.0' in body, body
    entry = c.cluster.data(1, "/config_definition/limits/config/first/history")["results"][0]
    assert entry["reason"] == "der erste – für alle", entry


def seed(c):
    plans, owners = ["free", "pro", "enterprise"], ["search", "payments", "billing", "core"]
    for begin in range(0, CONFIGS, 1000):
        operations = [{
            "op": "create_config", "config_definition_key": "limits", "config_key": f"tenant-{n:05}",
            "data": {"plan": plans[n % 3], "owner": owners[n % 4], "enabled": n % 5 != 0, "quota": {"requests": n * 7 % 100_000, "burst": 1.5}},
        } for n in range(begin, begin + 1000)]
        status, body = c.cluster.call(1, "POST", "/batch", {"operations": operations}, [("X-Change-Reason", "first load")])
        assert status == 200, body


def check_table(c):
    """Ten thousand configs: any place of them at once; filters, sorts, search; the address says it all."""
    seed(c)
    c.open("d/limits", "limits")
    table = c.page.get_by_role("table", name="Configs of limits")
    expect(c.page.get_by_text(f"{CONFIGS + 1:,} configs")).to_be_visible()
    assert table.get_by_role("row").count() < 60, "only what is in view is in the page"
    for place, key in ((0.5, "tenant-05"), (1, f"tenant-{CONFIGS - 1:05}"), (0.25, "tenant-02")):
        began = time.monotonic()
        table.evaluate("(box, at) => { box.scrollTop = at * (box.scrollHeight - box.clientHeight); }", place)
        expect(table.get_by_role("cell", name=re.compile(f"^{key}")).first).to_be_visible()
        took = time.monotonic() - began
        c.scrolled = max(getattr(c, "scrolled", 0), took)
    table.evaluate("(box) => { box.scrollTop = 0; }")
    c.look("configs")
    c.button("quota.requests").click()
    c.button("quota.requests").click()
    expect(table.get_by_role("columnheader", name="quota.requests")).to_have_attribute("aria-sort", "descending")
    expect(table.get_by_role("cell").nth(0)).to_contain_text("first")
    c.button("+ Filter").click()
    c.page.get_by_label("Field", exact=True).select_option("quota.requests")
    c.page.get_by_label("Comparison", exact=True).select_option("gte")
    c.page.get_by_label("Value", exact=True).fill("69000")
    c.button("Add").click()
    expected = sum(1 for n in range(CONFIGS) if n * 7 % 100_000 >= 69000) + 1
    expect(c.page.get_by_text(f"{expected:,} configs found")).to_be_visible()
    c.look("configs-filtered")
    c.page.reload()
    expect(c.page.get_by_text(f"{expected:,} configs found")).to_be_visible()
    c.page.get_by_label("Search configs by key").fill("no such key")
    expect(c.page.get_by_text("No config fits")).to_be_visible()
    c.button("Show all").click()
    expect(c.page.get_by_text(f"{CONFIGS + 1:,} configs")).to_be_visible()
    c.button("+ Filter").click()
    c.page.get_by_label("Field", exact=True).select_option("created_at")
    c.page.get_by_label("Value", exact=True).fill("yesterday")
    c.button("Add").click()
    expect(c.page.get_by_role("alert")).to_contain_text("Not valid")
    c.page.get_by_role("button", name=re.compile("Remove the filter")).click()
    # The keyboard alone: into the table, down, open.
    c.open("d/limits?by=config_key&order=asc", "limits")
    expect(table.get_by_role("cell", name="first", exact=True)).to_be_visible()
    table.focus()
    c.page.keyboard.press("ArrowDown")
    c.page.keyboard.press("Enter")
    expect(c.heading("tenant-00000")).to_be_visible()


def check_live(c):
    """What somebody else writes appears by itself and is marked."""
    c.open("d/limits?q=live-", "limits")
    expect(c.page.locator(".dot.live")).to_be_visible()
    assert c.cluster.call(3, "PUT", "/config_definition/limits/config/live-1", {"data": {"plan": "pro", "owner": "core"}}, [("If-None-Match", "*")])[0] == 201
    row = c.page.get_by_role("table").get_by_role("row").filter(has_text="live-1")
    expect(row).to_be_visible()
    assert c.cluster.call(3, "PUT", "/config_definition/limits/config/live-1", {"data": {"plan": "free", "owner": "core"}})[0] == 200
    expect(row).to_contain_text("free")
    assert c.cluster.call(3, "DELETE", "/config_definition/limits/config/live-1")[0] == 200
    expect(row).to_have_count(0)


def check_view_and_edit(c):
    """View first, edit second; leaving with unsaved text asks."""
    c.open("d/limits/c/tenant-00001", "tenant-00001")
    expect(c.page.get_by_role("region", name="Fields")).to_contain_text("What the tenant pays for")
    c.look("config")
    shortcut(c.page, "e")
    expect(c.heading("Edit tenant-00001")).to_be_visible()
    form = c.page.get_by_role("region", name="Form")
    form.get_by_label("plan", exact=True).select_option("enterprise")
    c.state("The node would take it")
    c.look("edit")
    c.page.once("dialog", lambda dialog: dialog.dismiss())
    c.page.get_by_role("link", name="Cluster").click()
    expect(c.heading("Edit tenant-00001")).to_be_visible()
    c.edit_text("Data of the config as JSON", '{"plan": "gold", "owner": "core", "extra": 1}')
    c.state("2 places break the schema")
    c.edit_text("Data of the config as JSON", '{"plan": "pro", "owner": "core", "note": null}')
    c.state("The node would take it")
    c.button("Save").click()
    c.said("tenant-00001 is saved")
    assert c.cluster.data(2, "/config_definition/limits/config/tenant-00001")["data"] == {"plan": "pro", "owner": "core", "note": None}


def check_three_way(c):
    """Somebody saves the config while it is edited: both changes are put together, and nothing is overwritten unseen."""
    put = lambda data: c.cluster.call(3, "PUT", "/config_definition/limits/config/both", {"data": data})
    assert c.cluster.call(3, "POST", "/config_definition/limits/config/", {"config_key": "both", "data": {"plan": "free", "owner": "core", "enabled": True}})[0] == 201
    c.open("d/limits/c/both/edit", "Edit both")
    form = c.page.get_by_role("region", name="Form")
    form.get_by_label("plan", exact=True).select_option("pro")
    form.get_by_label("owner", exact=True).fill("mine")
    assert put({"plan": "enterprise", "owner": "core", "enabled": False})[0] == 200
    expect(c.page.get_by_text("Changed by root while you edit")).to_be_visible()
    c.look("edit-changed")
    c.button("Put both together").click()
    dialog = c.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Go on with the result")).to_be_disabled()
    c.look("three-way")
    dialog.get_by_role("radio", name="Yours at plan").check()
    dialog.get_by_role("button", name="Go on with the result").click()
    c.state("The node would take it")
    # It changes once more, and the save itself finds out.
    assert put({"plan": "enterprise", "owner": "core", "enabled": False, "note": "again"})[0] == 200
    c.button("Save").click()
    dialog = c.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    choices = dialog.get_by_role("radio", name=re.compile("Yours at (plan|owner)"))
    expect(choices.first).to_be_visible()
    for choice in choices.all():
        choice.check()
    dialog.get_by_role("button", name="Go on with the result").click()
    c.state("The node would take it")
    c.button("Save").click()
    c.said("both is saved")
    assert c.cluster.data(1, "/config_definition/limits/config/both")["data"] == {"plan": "pro", "owner": "mine", "enabled": False, "note": "again"}


def check_unknown_outcome(c):
    """An answer that is lost leaves the write unknown, and it is called so; sent again it is done once."""
    lost = []

    def lose(route):
        if route.request.method == "PUT" and "dry_run" not in route.request.url and not lost:
            lost.append(route.request.headers["idempotency-key"])
            route.fetch()
            route.abort()
        else:
            route.fallback()

    before = len(c.cluster.data(1, "/config_definition/limits/config/both/history")["results"])
    c.open("d/limits/c/both/edit", "Edit both")
    c.page.get_by_role("region", name="Form").get_by_label("owner", exact=True).fill("once")
    c.state("The node would take it")
    c.page.route("**/config/both*", lose)
    c.button("Save").click()
    expect(c.page.get_by_role("alert").filter(has_text="Outcome unknown")).to_be_visible()
    c.look("unknown")
    sent = lambda: c.page.expect_request(lambda request: request.method == "PUT" and "dry_run" not in request.url)
    # A refusal of the second copy says nothing of the first one.
    refusal = json.dumps({"status": "ERROR", "errors": [{"msg": "not now", "type": "forbidden_error", "code": "forbidden"}]})
    refuse = lambda route: route.fulfill(status=403, content_type="application/json", body=refusal) if route.request.method == "PUT" else route.fallback()
    c.page.route("**/config/both", refuse)
    with sent() as again:
        c.button("Send it again").click()
    assert again.value.headers["idempotency-key"] == lost[0]
    expect(c.page.get_by_role("alert").filter(has_text="Outcome unknown")).to_contain_text("not now")
    c.page.unroute("**/config/both")
    # The same saved once more is the same write.
    with sent() as again:
        c.button("Save").click()
    assert again.value.headers["idempotency-key"] == lost[0]
    c.said("both is saved")
    c.page.unroute("**/config/both*")
    assert len(c.cluster.data(1, "/config_definition/limits/config/both/history")["results"]) == before + 1


def check_leader_dies(c):
    """The leader is killed under a save and an open watch: the save is certain or repeated, the changes go on."""
    c.open("d/limits/c/tenant-00002/edit", "Edit tenant-00002")
    c.page.get_by_role("region", name="Form").get_by_label("owner", exact=True).fill("after the leader")
    c.state("The node would take it")
    changes = c.context.new_page()
    changes.goto(f"{c.origin}/ui/")
    changes.get_by_label("Access key").fill(KEY)
    changes.keyboard.press("Enter")
    changes.get_by_role("link", name="Changes").click()
    expect(changes.locator(".dot.live")).to_be_visible()
    leader = c.cluster.leader()
    assert leader != c.node
    c.cluster.kill(leader)
    c.button("Save").click()
    again = c.button("Send it again")
    expect(c.heading("tenant-00002").or_(again).first).to_be_visible()
    if again.is_visible():
        # The answer went with the leader: unknown, so it is said, and sent once more under the same key.
        again.click()
    c.said("tenant-00002 is saved")
    expect(changes.get_by_role("row").filter(has_text="after the leader")).to_be_visible()
    changes.close()
    history = c.cluster.data(c.node, "/config_definition/limits/config/tenant-00002/history")["results"]
    assert [entry["operation"] for entry in history] == ["update", "create"], "done once"
    c.open("cluster", "Cluster")
    rest = [n for n in (1, 2, 3) if n != leader]
    expect(c.page.locator(".facts").get_by_text(f"node {c.cluster.leader(rest)}", exact=True)).to_be_visible()
    c.cluster.start(leader)
    c.cluster.wait_ready()


def check_history(c):
    """What each change did, in places and in lines; one click brings an old content back, and a deleted config too."""
    c.open("d/limits/c/both", "both")
    shortcut(c.page, "h")
    changes = c.page.get_by_role("region", name="Changes")
    expect(changes.get_by_role("button").first).to_contain_text("changed")
    expect(c.page.get_by_role("region", name=re.compile("What revision"))).to_contain_text("owner")
    c.look("history")
    c.button("Lines").click()
    expect(c.page.locator(".lines .plus").first).to_be_visible()
    c.look("history-lines")
    changes.get_by_role("button").last.click()
    c.button("Roll back to this").click()
    dialog = c.page.get_by_role("dialog")
    expect(dialog).to_contain_text("enabled")
    c.look("rollback")
    dialog.get_by_role("button", name="Roll back", exact=True).click()
    c.said("what it was")
    assert c.cluster.data(1, "/config_definition/limits/config/both")["data"] == {"plan": "free", "owner": "core", "enabled": True}
    c.open("d/limits/c/both", "both")
    c.button("Delete").click()
    c.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(c.heading("limits")).to_be_visible()
    c.open("d/limits/c/both", "both")
    expect(c.page.get_by_text("There is no such config now")).to_be_visible()
    c.page.get_by_role("link", name="its history").click()
    changes.get_by_role("button").nth(1).click()
    c.button("Bring it back").click()
    c.page.get_by_role("dialog").get_by_role("button", name="Roll back", exact=True).click()
    c.said("what it was")
    assert c.cluster.data(1, "/config_definition/limits/config/both")["data"]["plan"] == "free"


def check_schema(c):
    """A schema says what it would break before it is stored; it can be stored all the same, by typing the name."""
    c.open("d/limits/schema", "limits")
    c.look("schema")
    c.button("Edit the schema").click()
    tight = json.loads(json.dumps(SCHEMA))
    tight["properties"]["quota"]["properties"]["requests"]["maximum"] = 99_999
    c.edit_text("JSON schema", json.dumps(tight, indent=2))
    c.state("1 config would break")
    expect(c.page.get_by_role("region", name="What would break")).to_contain_text("first")
    expect(c.button("Save")).to_be_disabled()
    c.look("schema-breaks")
    c.button("Store all the same…").click()
    dialog = c.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Store it")).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    wide = json.loads(json.dumps(SCHEMA))
    wide["properties"]["region"] = {"type": "string"}
    c.edit_text("JSON schema", json.dumps(wide, indent=2))
    c.state("configs fit")
    c.button("Save").click()
    c.said("The schema of limits is changed")
    assert "region" in c.cluster.data(1, "/config_definition/limits/schema")["json_schema"]["properties"]
    c.open("d/limits/history", "limits")
    expect(c.page.get_by_role("region", name=re.compile("What revision"))).to_contain_text("region")
    c.look("definition-history")


def check_indexes(c):
    """A further index is built with its progress in view; unique fields; what can't be is said."""
    c.open("d/limits/indexes", "limits")
    c.look("indexes")
    c.page.get_by_label("A further indexed field").fill("note")
    c.page.get_by_role("region", name="Indexes").get_by_role("button", name="Add").click()
    c.button("Save").click()
    c.said("Saved")
    row = c.page.get_by_role("listitem").filter(has_text="note")
    expect(row).to_contain_text("ready")
    wait_for(lambda: all(state["state"] == "ready" for state in c.cluster.data(1, "/config_definition/limits/indexes")["indexes"]), "the index")
    unique = c.page.get_by_role("region", name="Unique paths")
    unique.get_by_label("A further unique field").select_option("owner")
    unique.get_by_role("button", name="Add").click()
    unique.get_by_role("button", name="Save").click()
    expect(unique.get_by_role("alert")).to_contain_text("conflicts")
    unique.get_by_role("button", name="Undo").click()
    c.button("Protect it").click()
    c.said("limits is protected")
    expect(c.button("Delete limits…")).to_be_disabled()
    c.button("End the protection").click()
    c.said("limits is no longer protected")
    expect(c.button("Delete limits…")).to_be_enabled()
    c.open("d/limits", "limits")
    expect(c.page.get_by_role("columnheader", name="note")).to_be_visible()


def check_watch(c):
    """Changes of one definition as they happen, from a revision, held while they are read."""
    revision = c.cluster.data(1, "/cluster")["revision"]
    c.open(f"watch?definition=limits&from={revision}", "Changes")
    for n in range(3):
        assert c.cluster.call(1, "PUT", f"/config_definition/limits/config/tenant-0010{n}", {"data": {"plan": "free", "owner": "core", "quota": {"burst": 2.0}}}, [("X-Change-Reason", f"turn {n}")])[0] == 200
    expect(c.page.get_by_role("row").filter(has_text="turn 2")).to_contain_text("quota.burst 1.5 → 2.0")
    c.look("changes")
    c.button("Pause").click()
    assert c.cluster.call(1, "DELETE", "/config_definition/limits/config/tenant-00103")[0] == 200
    c.button("Go on (1 more)").click()
    expect(c.page.get_by_role("row").filter(has_text="tenant-00103")).to_contain_text("deleted")
    # A tab that is not seen holds no connection; what happened meanwhile is there when it is seen again.
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }"
    c.page.evaluate(hide, True)
    expect(c.page.get_by_text("Connecting again…")).to_be_visible()
    assert c.cluster.call(1, "DELETE", "/config_definition/limits/config/tenant-00104")[0] == 200
    c.page.evaluate(hide, False)
    expect(c.page.get_by_role("row").filter(has_text="tenant-00104")).to_have_count(1)
    c.open("watch?definition=limits&from=999999999", "Changes")
    expect(c.page.get_by_role("alert")).to_be_visible()


def check_together(c):
    """A change, a new config and a deletion of several pages are made as one; what is wrong is said at its change."""
    for key in ("one", "two"):
        assert c.cluster.call(3, "POST", "/config_definition/limits/config/", {"config_key": key, "data": {"plan": "free", "owner": "core"}})[0] == 201
    c.open("together", "Change set")
    expect(c.page.get_by_text("The change set is empty")).to_be_visible()
    c.open("d/limits/c/one/edit", "Edit one")
    c.page.get_by_role("region", name="Form").get_by_label("plan", exact=True).select_option("pro")
    c.state("The node would take it")
    c.button("Add to the change set").click()
    expect(c.heading("Change set")).to_be_visible()
    c.open("d/limits/new", "New config")
    c.page.get_by_label("Key", exact=True).fill("three")
    c.edit_text("Data of the config as JSON", '{"plan": "pro", "owner": "core", "quota": {"burst": 7.0}}')
    c.state("The node would take it")
    c.button("Add to the change set").click()
    c.open("d/limits/c/two", "two")
    c.button("Delete").click()
    c.page.get_by_role("dialog").get_by_role("button", name="Add to the change set").click()
    expect(c.page.get_by_role("link", name="Change set (3)")).to_be_visible()
    c.state("The node would take all of it")
    expect(c.page.get_by_role("region", name="limits / one", exact=True)).to_contain_text("only at revision")
    c.look("together")
    # Somebody else is faster with one of them: it is said there, and nothing of it is made.
    assert c.cluster.call(3, "PATCH", "/config_definition/limits/config/one", b'{"owner": "other"}', [("Content-Type", "application/merge-patch+json")])[0] == 200
    c.button("Make 3 changes").click()
    expect(c.page.get_by_role("region", name="limits / one", exact=True).get_by_role("alert")).to_be_visible()
    c.look("together-refused")
    assert c.cluster.call(1, "GET", "/config_definition/limits/config/three")[0] == 404
    c.page.get_by_role("region", name="limits / one", exact=True).get_by_role("link", name="Edit again").click()
    # What was collected, put together with the change of the other.
    c.button("Put both together").click()
    dialog = c.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Go on with the result").click()
    c.state("The node would take it")
    c.editor_shows('"plan": "pro"', '"owner": "other"')
    c.button("Add to the change set").click()
    c.page.get_by_role("region", name="limits / three", exact=True).get_by_role("link", name="Edit again").click()
    expect(c.page.get_by_label("Key", exact=True)).to_have_value("three")
    c.editor_shows('"burst": 7.0')
    c.button("Add to the change set").click()
    c.state("The node would take all of it")
    c.page.get_by_label("Reason", exact=True).fill("all at once")
    c.button("Make 3 changes").click()
    c.said("3 changes made as revision")
    expect(c.page.get_by_text("The change set is empty")).to_be_visible()
    made = [c.cluster.data(2, f"/config_definition/limits/config/{key}/history")["results"][0] for key in ("one", "two", "three")]
    assert len({entry["revision"] for entry in made}) == 1 and [entry["operation"] for entry in made] == ["update", "delete", "create"], made
    assert all(entry["reason"] == "all at once" for entry in made)
    assert '"burst":7.0' in c.cluster.call(1, "GET", "/config_definition/limits/config/three")[1]
    assert c.cluster.data(1, "/config_definition/limits/config/one")["data"] == {"plan": "pro", "owner": "other"}


def check_cluster(c):
    """Members, leader, lag, who answers, disk and memory; leadership moves by a click."""
    c.open("cluster", "Cluster")
    expect(c.page.get_by_role("row")).to_have_count(4)
    health = c.page.get_by_role("region", name=re.compile("Disk and memory"))
    expect(health).to_contain_text(re.compile(r"Memory in use.*MiB.*Free on its volume.*[GT]iB", re.S))
    assert "not told" not in health.inner_text(), health.inner_text()
    # Of the others, too: a node asks them every ten seconds.
    for cells in (c.page.get_by_role("row").nth(n).get_by_role("cell") for n in (1, 2, 3)):
        expect(cells.nth(4)).to_have_text(re.compile("[0-9] MiB$"), timeout=30_000)
        expect(cells.nth(5)).to_have_text(re.compile("[0-9] [GT]iB"), timeout=30_000)
    c.look("cluster")
    target = c.node
    if c.cluster.leader() != target:
        row = c.page.get_by_role("row").filter(has=c.page.get_by_text("this one"))
        row.get_by_role("button", name="Make leader…").click()
        c.look("cluster-leader")
        c.page.get_by_role("dialog").get_by_role("button", name="Make it leader").click()
        c.said("Leadership moved")
    assert c.cluster.leader() == target
    expect(c.page.get_by_role("row").filter(has_text="follower").first).to_contain_text(re.compile("none|entr"))
    # The leader knows who answers.
    other = next(n for n in (1, 2, 3) if n != target)
    row = c.page.get_by_role("row").filter(has_text=c.cluster.peer[other])
    expect(row.get_by_text("yes", exact=True)).to_be_visible()
    c.cluster.kill(other)
    expect(row.get_by_text("no", exact=True)).to_be_visible()
    c.look("cluster-member-gone")
    c.cluster.start(other)
    c.cluster.wait_ready()
    expect(row.get_by_text("yes", exact=True)).to_be_visible()


def check_usage(c):
    """A noisy key and a growing definition come first; what is counted is told for one node, since then or since its start."""
    status, answer = c.cluster.call(1, "POST", "/api_key/", {"name": "the noisy job", "grants": [{"verbs": ["read", "write"], "definitions": ["*"]}]})
    assert status == 201, answer
    made = json.loads(answer)["data"]
    assert c.cluster.call(1, "POST", "/config_definition/", {"config_definition_key": "grows"})[0] == 201
    assert c.cluster.call(1, "POST", "/config_definition/grows/config/", {"config_key": "one", "data": {}})[0] == 201
    header = [("Authorization", f"Bearer {made['api_key']}")]
    wait_for(lambda: c.cluster.call(c.node, "GET", "/config_definition/grows/config/one", None, header)[0] == 200, "the key and the config on this node")
    c.open("usage", "Usage")
    keys, definitions = (c.page.get_by_role("region", name=name, exact=True) for name in ("Access keys", "Definitions"))
    # What the page itself has asked for since its first answer: from then on it counts.
    expect(keys.get_by_role("row").filter(has_text="root")).to_be_visible()
    for n in range(30):
        assert c.cluster.call(c.node, "PUT", "/config_definition/grows/config/one", {"data": {"text": "x" * 20_000 * (n + 1)}}, header)[0] == 200
        assert c.cluster.call(c.node, "GET", "/config_definition/grows/config/one", None, header)[0] == 200
    expect(definitions.get_by_role("row").nth(1)).to_contain_text("grows")
    expect(keys.get_by_role("row").nth(1)).to_contain_text("the noisy job")
    row = keys.get_by_role("row").filter(has_text=made["key_id"]).get_by_role("cell")
    expect(row.nth(3)).to_have_text("60")
    expect(row.nth(7)).to_have_text("30")
    c.look("usage")
    definitions.get_by_role("button", name="Configs").click()
    expect(definitions.locator("th[aria-sort=descending]")).to_contain_text("Configs")
    c.button("Since start").click()
    expect(definitions.get_by_role("row").filter(has_text="grows").get_by_role("cell").nth(2)).to_have_text("–")
    assert made["api_key"] not in c.page.content()
    assert c.cluster.call(1, "DELETE", "/config_definition/grows")[0] == 200
    expect(definitions.get_by_role("row").filter(has_text="grows")).to_contain_text("deleted")
    assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200


def check_copy(c):
    """What is copied runs in a shell as it is, and holds no key."""
    client = pathlib.Path(__file__).resolve().parent.parent / "clients" / "python" / "src"
    env = {**os.environ, "CONCORD_API_KEY": KEY, "PATH": f"{BINARY.parent}:{os.environ['PATH']}", "PYTHONPATH": f"{client}:{os.environ.get('PYTHONPATH', '')}"}
    run = lambda command: subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    def texts():
        dialog = c.page.get_by_role("dialog")
        found = {}
        forms = dialog.get_by_role("group", name="Form").get_by_role("button")
        expect(forms.first).to_be_visible()  # `all` takes what is there and waits for nothing
        for form in [button.inner_text() for button in forms.all()]:
            dialog.get_by_role("button", name=form, exact=True).click()
            dialog.get_by_role("button", name="Copy", exact=True).click()
            found[form] = c.page.evaluate("navigator.clipboard.readText()")
            assert KEY not in found[form] and found[form] == dialog.locator("pre").inner_text()
        return found

    c.open("d/limits?f.owner=core&q=tenant-0000&order=asc", "limits")
    expect(c.page.get_by_text("configs found")).to_be_visible()
    c.button("Copy as…").click()
    c.look("copy-as")
    copied = texts()
    from_curl = json.loads(run(["bash", "-c", copied["curl"]]).stdout)["data"]
    from_python = run([sys.executable, "-c", copied["Python"]])
    assert "concord_client" in copied["Python"]
    assert from_curl["results"] and from_python.stdout.split("\n")[:-1] == [f"{config['config_key']} {config['data']}" for config in from_curl["results"]], from_python.stderr
    from_cli = run(["bash", "-c", copied["CLI"]])
    assert json.loads(from_cli.stdout)["results"] == from_curl["results"], from_cli.stderr
    c.page.keyboard.press("Escape")
    c.open("d/limits/c/both/edit", "Edit both")
    c.page.get_by_role("region", name="Form").get_by_label("owner", exact=True).fill("it's \"copied\" $HOME – ü 😀")
    c.page.get_by_label("Reason", exact=True).fill("für curl")
    c.state("The node would take it")
    c.button("Copy as…").click()
    copied = texts()
    assert run(["bash", "-c", copied["curl"]]).returncode == 0
    assert c.cluster.data(1, "/config_definition/limits/config/both/history")["results"][0]["reason"] == "für curl"
    assert c.cluster.data(1, "/config_definition/limits/config/both")["data"]["owner"] == "it's \"copied\" $HOME – ü 😀"
    answer = run([sys.executable, "-c", copied["Python"]])
    assert "PreconditionFailed" in answer.stderr, "the condition of the text holds no longer"
    answer = run(["bash", "-c", copied["CLI"]])
    assert answer.returncode == 4 and "config put limits both --if-match" in copied["CLI"], answer.stderr
    python = copied["Python"].replace(re.search(r"if_match=\d+", copied["Python"])[0], f"if_match={c.cluster.data(1, '/config_definition/limits/config/both/history')['results'][0]['revision']}")
    again = run([sys.executable, "-c", python.replace("für curl", "für Python").replace(r"f\U000000fcr curl", "für Python")])
    assert again.returncode == 0 and again.stdout.strip().isdigit(), again.stderr
    assert c.cluster.data(1, "/config_definition/limits/config/both/history")["results"][0]["reason"] == "für Python"
    c.page.keyboard.press("Escape")
    c.page.once("dialog", lambda dialog: dialog.accept())
    for place, title, command in [("", "Definitions", "definition get"), ("d/limits/indexes", "limits", "definition reindex"),
                                  ("d/limits/c/both/history", "both", "config history")]:
        c.open(place, title)
        c.button("Copy as…").click()
        copied = texts()
        answer = run(["bash", "-c", copied["CLI"]])
        assert command in copied["CLI"] and answer.returncode == 0 and answer.stdout, answer.stderr
        c.page.keyboard.press("Escape")
    c.page.get_by_role("link", name="Cluster").click()
    c.button("Copy as…").click()
    copied = texts()
    shown = run([sys.executable, "-c", copied["Python"]])
    assert "'leader_id'" in shown.stdout, shown.stderr
    status = run(["bash", "-c", copied["CLI"]])
    assert status.returncode == 0 and json.loads(status.stdout)["members"], status.stderr
    c.page.keyboard.press("Escape")


def check_keyboard(c):
    """Places by their names and by their keys; help."""
    c.open("", "Definitions")
    c.look("definitions")
    c.page.keyboard.press("?")
    expect(c.page.get_by_role("dialog")).to_contain_text("Keyboard")
    c.look("keyboard")
    c.page.keyboard.press("Escape")
    c.page.keyboard.press("/")
    c.page.get_by_role("combobox").fill("lim")
    expect(c.page.get_by_role("option", name="limits")).to_be_visible()
    c.look("go-to")
    c.page.get_by_role("combobox").fill("limits/first")
    expect(c.page.get_by_role("option", name="limits / first")).to_be_visible()
    c.page.keyboard.press("Enter")
    expect(c.heading("first")).to_be_visible()
    c.page.keyboard.press("g")
    c.page.keyboard.press("c")
    expect(c.heading("Cluster")).to_be_visible()
    c.open("nowhere")
    expect(c.page.get_by_text("There is no such page")).to_be_visible()


def check_attestation(c):
    """A key of a person: its holder makes a secret of their own without other permissions, and others attest it."""
    def create(body, header=()):
        status, answer = c.cluster.call(1, "POST", "/api_key/", body, header)
        assert status == 201, answer
        return json.loads(answer)["data"]

    manager = create({"name": "manager", "grants": [{"verbs": ["keys"]}]})
    header = [("Authorization", f"Bearer {manager['api_key']}")]
    made = create({"name": "ada's", "person": "Ada@example.com", "grants": []}, header)
    c.open("keys", "Keys")
    row = c.page.get_by_role("row").filter(has_text="ada's")
    expect(row).to_contain_text("ada@example.com not attested")
    other = c.visitor()
    other.get_by_label("Access key").fill(made["api_key"])
    other.keyboard.press("Enter")
    other.get_by_role("link", name="Keys").click()
    expect(other.get_by_text("who made your key has had it")).to_be_visible()
    expect(other.get_by_role("button", name="New key")).to_have_count(0)
    other.get_by_role("button", name="Rotate your key…").click()
    other.get_by_role("dialog").get_by_label("Seconds for which the old one is good").fill("0")
    other.get_by_role("dialog").get_by_role("button", name="Make a new secret").click()
    expect(other.get_by_label("The key", exact=True)).not_to_have_text(made["api_key"])
    other.close()
    c.open("keys", "Keys")
    c.page.reload()
    c.button("Attest ada's").click()
    c.look("key-attest")
    c.page.get_by_role("dialog").get_by_role("button", name="Attest it").click()
    c.said("The key is attested")
    expect(row).to_contain_text("attested by root")
    for key in (made, manager):
        assert c.cluster.call(1, "DELETE", f"/api_key/{key['key_id']}")[0] == 200


def check_keys_and_audit(c):
    """Keys are created, used, changed, rotated, revoked; a limited key sees what it may; the audit log says so."""
    if c.cluster.call(1, "GET", "/whoami")[0] == 404:
        expect(c.page.get_by_role("link", name="Keys")).to_have_count(0)
        print("  this binary has no access keys: the pages are not shown")
        return
    c.open("keys", "Keys")
    shortcut(c.page, "n")
    dialog = c.page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("reader")
    dialog.get_by_label("Definitions", exact=True).fill("lim*")
    c.look("key-new")
    dialog.get_by_role("button", name="Create the key").click()
    expect(c.heading("The key, this once")).to_be_visible()
    text = c.page.get_by_label("The key", exact=True).inner_text()
    c.button("I have kept it").click()
    expect(c.page.get_by_role("row").filter(has_text="reader")).to_contain_text("lim*")
    c.look("keys")
    other = c.visitor()
    other.get_by_label("Access key").fill(text)
    other.keyboard.press("Enter")
    expect(other.get_by_role("link", name="limits")).to_be_visible()
    expect(other.get_by_role("link", name="New definition")).to_have_count(0)
    expect(other.get_by_role("link", name="Keys")).to_have_count(0)
    other.get_by_role("link", name="limits").click()
    expect(other.get_by_role("cell", name="first", exact=True)).to_be_visible()
    expect(other.get_by_role("link", name="New config")).to_have_count(0)
    other.get_by_role("link", name="Schema").click()
    expect(other.get_by_role("region", name="Schema")).to_be_visible()
    expect(other.get_by_role("button", name="Edit the schema")).to_have_count(0)
    c.button("Change reader").click()
    dialog = c.page.get_by_role("dialog")
    dialog.get_by_role("checkbox", name=re.compile("^write")).check()
    dialog.get_by_role("button", name="Change", exact=True).click()
    c.said("The key is changed")
    expect(c.page.get_by_role("row").filter(has_text="reader")).to_contain_text("write")
    c.button("Rotate reader").click()
    c.page.get_by_role("dialog").get_by_label("Seconds for which the old one is good").fill("0")
    c.page.get_by_role("dialog").get_by_role("button", name="Make a new secret").click()
    expect(c.page.get_by_label("The key", exact=True)).not_to_have_text(text)
    c.button("I have kept it").click()
    c.button("Revoke reader").click()
    c.page.get_by_role("dialog").get_by_role("button", name="Revoke it").click()
    c.said("reader is revoked")
    other.get_by_role("link", name="History").click()
    expect(other.get_by_text("no longer accepted")).to_be_visible()
    other.close()
    if c.cluster.call(1, "GET", "/audit")[0] == 200:
        c.open("audit", "Audit")
        expect(c.page.get_by_role("row").nth(1)).to_be_visible()
        c.look("audit")


def check_own_node_dies(c):
    """The node of the page itself dies: the page says so, names the others, keeps what was typed, and goes on."""
    c.open("d/limits/c/first/edit", "Edit first")
    c.page.get_by_role("region", name="Form").get_by_label("owner", exact=True).fill("typed before")
    c.state("The node would take it")
    c.cluster.kill(c.node)
    c.page.get_by_role("region", name="Form").get_by_label("owner", exact=True).fill("typed meanwhile")
    expect(c.page.locator(".trouble")).to_contain_text("does not answer")
    expect(c.page.locator(".trouble").get_by_role("link")).to_have_count(2)
    c.look("node-gone")
    c.cluster.start(c.node)
    c.cluster.wait_ready()
    c.state("The node would take it")
    expect(c.page.locator(".trouble")).to_have_count(0)
    c.button("Save").click()
    c.said("first is saved")


def check_environments(c):
    """A freeze is seen where one would edit, refuses what is saved, and is ended; what was typed is saved then."""
    c.open("environments", "Environments")
    expect(c.page.get_by_text("There is no environment yet")).to_be_visible()
    shortcut(c.page, "n")
    dialog = c.page.get_by_role("dialog")
    dialog.get_by_label("Environment").fill("default")
    dialog.get_by_label("Reason").fill("incident 4711")
    c.look("freeze")
    dialog.get_by_role("button", name="Freeze it").click()
    c.said("default is frozen")
    expect(c.page.get_by_role("row").filter(has_text="default")).to_contain_text("incident 4711")
    c.look("environments")
    banner = c.page.get_by_text("is frozen until").first
    for place, heading in (("d/limits", "limits"), ("d/limits/schema", "limits"), ("d/limits/c/first", "first")):
        c.open(place, heading)
        expect(banner).to_be_visible()
    c.look("config-frozen")
    c.open("d/limits/c/first/edit", "Edit first")
    expect(banner).to_be_visible()
    c.edit_text("Data of the config as JSON", '{"plan": "pro", "owner": "frozen"}')
    c.state("The node would not take it")
    c.button("Save").click()
    expect(c.page.get_by_role("alert").first).to_contain_text("the environment `default` is frozen until")
    c.look("edit-frozen")
    found = c.cluster.data(1, "/environment/default")
    assert found["frozen_until"] and found["freeze"][0]["reason"] == "incident 4711", found
    other = c.visitor()
    other.get_by_label("Access key").fill(KEY)
    other.keyboard.press("Enter")
    other.get_by_role("link", name="Environments").click()
    other.get_by_role("button", name="End the freeze of default: incident 4711").click()
    other.get_by_role("dialog").get_by_role("button", name="End it").click()
    expect(other.get_by_text("allowed")).to_be_visible()
    other.close()
    c.button("Save").click()
    c.said("first is saved")
    assert c.cluster.data(2, "/config_definition/limits/config/first")["data"]["owner"] == "frozen"


def check_delete_definition(c):
    """A definition goes only when its name is typed; then it is gone."""
    c.open("d/limits/indexes", "limits")
    c.button("Delete limits…").click()
    dialog = c.page.get_by_role("dialog")
    expect(dialog).to_contain_text("configs")
    expect(dialog.get_by_role("button", name="Delete it")).to_be_disabled()
    c.look("delete-definition")
    dialog.get_by_label("Type limits to go on").fill("limits")
    dialog.get_by_role("button", name="Delete it").click()
    expect(c.page.get_by_text("There is no definition yet")).to_be_visible()


def check_sign_out(c):
    """The key is forgotten, and so is what it showed."""
    c.button("Sign out").click()
    expect(c.page.get_by_label("Access key")).to_be_visible()
    assert c.page.evaluate("sessionStorage.length") == 0
    expect(c.heading("Definitions")).to_have_count(0)


def main():
    expect.set_options(timeout=PATIENCE_MS)
    parser = argparse.ArgumentParser(description="The console in a real browser")
    parser.add_argument("--shots")
    parser.add_argument("--files")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.shots:
        pathlib.Path(options.shots).mkdir(parents=True, exist_ok=True)
    checks = [value for name, value in globals().items() if name.startswith("check_")]
    if options.only:
        checks = [check for check in checks if check.__name__.removeprefix("check_") in options.only]
    home = pathlib.Path(tempfile.mkdtemp(prefix="concord-console-"))
    cluster = Cluster(home)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        cluster.form()
        follower = next(n for n in (1, 2, 3) if n != cluster.leader())
        with sync_playwright() as playwright:
            console = Console(playwright, cluster, follower, options)
            for check in [sign_in, *checks]:
                start = time.monotonic()
                try:
                    check(console)
                except Exception:
                    if options.shots:
                        console.page.screenshot(path=f"{options.shots}/failed.png")
                    print(f"FAILED {check.__name__}; the page failed with {console.failures}; at {console.page.url}", file=sys.stderr)
                    raise
                assert not console.failures, (check.__name__, console.failures, console.page.evaluate("broken"))
                assert console.page.evaluate("broken") == [], (check.__name__, console.page.evaluate("broken"))
                print(f"{check.__name__.removeprefix('check_'):24} {time.monotonic() - start:5.1f} s", flush=True)
            elsewhere = {url for url in console.asked if not url.startswith(console.origin)}
            assert not elsewhere, f"fetched from elsewhere: {elsewhere}"
            console.browser.close()
        scrolled = f", any place of {CONFIGS:,} configs within {console.scrolled * 1000:.0f} ms" if hasattr(console, "scrolled") else ""
        print(f"first load {console.first_load:,} bytes{scrolled}; {len(console.seen)} pages in two themes without a violation; {time.monotonic() - began:.0f} s")
    finally:
        cluster.end()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
