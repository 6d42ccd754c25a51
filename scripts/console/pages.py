"""What the console's pages show, hide and call things: secrets, the last changes, names, dry runs. Used by scripts/console-test.py."""

import json
import re

from playwright.sync_api import expect

from browser import wait_for
from forms import definition, edit, save

DOTS = "••••••"
SECRET = {"properties": {
    "host": {"type": "string"}, "password": {"type": "string", "x-concord-secret": True},
    "replicas": {"type": "array", "items": {"type": "object", "properties": {"host": {"type": "string"}, "token": {"type": "string", "x-concord-secret": True}}}},
    "either": {"anyOf": [{"type": "object", "additionalProperties": {"$ref": "#/$defs/hidden"}}, {"type": "string"}]},
}, "$defs": {"hidden": {"type": "string", "x-concord-secret": True}}}
SECRETS = {"host": "db1", "password": "hunter2", "replicas": [{"host": "a", "token": "token-of-a"}, {"host": "b", "token": "token-of-b"}], "either": {"k": "third-secret"}}
WORDS = ["hunter2", "token-of-a", "token-of-b", "third-secret", "changed-secret"]


# Everything that the page holds: texts, attributes, what is typed into fields, also inside of the editor's shadow.
WHOLE = """() => {
    const found = [document.title, location.href];
    const walk = (node) => {
        if (node.nodeType === Node.TEXT_NODE) found.push(node.data);
        for (const attribute of node.attributes ?? []) found.push(attribute.value);
        if (typeof node.value === "string") found.push(node.value);
        for (const child of [...node.childNodes, ...(node.shadowRoot ? [node.shadowRoot] : [])]) walk(child);
    };
    walk(document.documentElement);
    return found.join("\\n");
}"""


def nothing_secret(c):
    whole = c.page.evaluate(WHOLE)
    assert not any(word in whole for word in WORDS), [line for line in whole.split("\n") if any(word in line for word in WORDS)]


# The next key is there before the page has followed the address: typed as soon as the address has the text "no".
TYPE_ON = """(label) => {
    const { replaceState } = history;
    history.replaceState = function (state, title, address) {
        replaceState.call(history, state, title, address);
        if (!/=no($|&)/.test(address)) return;
        history.replaceState = replaceState;
        const field = document.querySelector(`input[aria-label="${label}"]`) ?? [...document.querySelectorAll("label")].find((one) => one.textContent.trim() === label).control;
        field.value = "no-such";
        field.dispatchEvent(new Event("input", { bubbles: true }));
    };
}"""


def check_typing_goes_on(c):
    """What is typed while the address changes stays, in each field whose text is in the address."""
    with definition(c, "prod.typed", {}, [("a", {})]):
        for place, heading, label, shown, sent in [
            ("", "Definitions", "Search definitions by key", "No definition fits", "search=no-such"),
            ("d/prod.typed", "prod.typed", "Search configs by key", "No config fits", "q=no-such"),
            ("watch", "Changes", "By", "Nothing that fits was changed", "by=no-such"),
            ("compare?from=prod", "Compare environments", "Target", "As of revision", "to=no-such"),
        ]:
            c.open(place, heading)
            c.page.evaluate(TYPE_ON, label)
            field = c.page.get_by_label(label, exact=True)
            field.fill("no")
            searches = label.startswith("Search")
            if not searches:
                field.press("Enter")
                expect(c.page).to_have_url(re.compile("=no($|&)"))
            expect(c.page.get_by_text(re.compile(shown)).first).to_be_visible()
            if not searches:
                field.press("Enter")
            expect(c.page).to_have_url(re.compile(sent))
            expect(field).to_have_value("no-such")


def check_secrets(c):
    """Secret values are dots on every page until somebody asks for them; a save changes none of them."""
    with definition(c, "secrets", SECRET, [("all", SECRETS)]):
        # Without an indexed field the table shows the data.
        c.open("d/secrets", "secrets")
        row = c.page.get_by_role("table").get_by_role("row").filter(has_text="db1")
        expect(row).to_contain_text(f'"password":{DOTS}')
        nothing_secret(c)
        c.open("d/secrets/c/all", "all")
        fields = c.page.get_by_role("region", name="Fields")
        expect(fields).to_contain_text(DOTS)
        expect(c.page.get_by_role("region", name="JSON", exact=True)).to_contain_text(DOTS)
        nothing_secret(c)
        c.look("config-secret")
        fields.get_by_role("button", name="Show password").click()
        expect(fields).to_contain_text("hunter2")
        fields.get_by_role("button", name="Hide password").click()
        c.button("Show the secrets").click()
        expect(c.page.get_by_label("JSON of the config")).to_contain_text("token-of-a")
        c.button("Hide the secrets").click()
        c.button("Delete").click()
        expect(c.page.get_by_role("dialog")).to_be_visible()
        nothing_secret(c)
        c.page.keyboard.press("Escape")
        form = edit(c, "secrets", "all")
        expect(form).to_contain_text(DOTS)
        nothing_secret(c)
        c.look("edit-secret")
        # As one JSON text it has a secret part.
        form.get_by_label("Kind of either", exact=True).select_option("json")
        expect(form.get_by_role("button", name="Show either")).to_be_visible()
        nothing_secret(c)
        form.get_by_label("host", exact=True).first.fill("db2")
        form.get_by_role("button", name="Show password").click()
        expect(form.get_by_label("password", exact=True)).to_be_focused()
        form.get_by_label("password", exact=True).fill("changed-secret")
        form.get_by_role("button", name="Hide password").click()
        c.state("The node would take it")
        nothing_secret(c)
        c.button("Copy as…").click()
        dialog = c.page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Show the text")).to_be_visible()
        nothing_secret(c)
        dialog.get_by_role("button", name="Show the text").click()
        expect(dialog.locator("pre")).to_contain_text("changed-secret")
        c.page.keyboard.press("Escape")
        c.button("Show the JSON").click()
        c.editor_shows("changed-secret")
        save(c, "all")
        assert c.cluster.data(1, "/config_definition/secrets/config/all")["data"] == {**SECRETS, "host": "db2", "password": "changed-secret"}
        secret_history(c)
        secret_changes(c)
        c.open("watch?definition=secrets", "Changes")
        row = c.page.get_by_role("row").filter(has_text="db2").first
        expect(row).to_contain_text(f"password {DOTS}")
        nothing_secret(c)
        for place, heading in (("d/secrets/schema", "secrets"), ("d/secrets/indexes", "secrets"), ("d/secrets/history", "secrets"), ("audit?definition=secrets", "Audit"), ("usage", "Usage"), ("keys", "Keys")):
            c.open(place, heading)
            expect(c.page.locator(".loading")).to_have_count(0)
            nothing_secret(c)
        c.page.keyboard.press("/")
        c.page.get_by_role("combobox").fill("secrets / all")
        expect(c.page.get_by_role("option", name="secrets / all").first).to_be_visible()
        nothing_secret(c)
        c.page.keyboard.press("Escape")
        c.open("watch?definition=secrets", "Changes")
        # Of a definition that is gone nobody knows what was secret.
    c.page.reload()
    expect(c.page.get_by_role("row").filter(has_text="definition deleted")).to_be_visible()
    expect(c.page.get_by_role("row").filter(has_text="its schema is gone").first).to_be_visible()
    nothing_secret(c)


def secret_history(c):
    c.open("d/secrets/c/all/history", "all")
    expect(c.page.get_by_role("region", name=re.compile("What revision"))).to_contain_text("password")
    c.page.get_by_text("The whole content").click()
    nothing_secret(c)
    c.button("Lines").click()
    expect(c.page.locator(".lines")).to_contain_text("db2")
    nothing_secret(c)
    c.page.get_by_role("region", name="Changes").get_by_role("button").last.click()
    c.button("Roll back to this").click()
    expect(c.page.get_by_role("dialog")).to_contain_text("db1")
    nothing_secret(c)
    c.page.keyboard.press("Escape")


def secret_changes(c):
    """A conflict that brings a secret value of somebody else, and the change set."""
    put = lambda data: c.cluster.call(1, "PUT", "/config_definition/secrets/config/plain", {"data": data})
    assert c.cluster.call(1, "POST", "/config_definition/secrets/config/", {"config_key": "plain", "data": {"host": "db3"}})[0] == 201
    form = edit(c, "secrets", "plain")
    expect(c.page.locator(".editor-host")).to_be_visible()
    form.get_by_label("host", exact=True).fill("db4")
    assert put({"host": "db5", "password": "hunter2"})[0] == 200
    c.button("Put both together").click()
    dialog = c.page.get_by_role("dialog")
    dialog.get_by_text("The result", exact=True).click()
    dialog.get_by_role("radio", name="Yours at host").check()
    nothing_secret(c)
    dialog.get_by_role("button", name="Go on with the result").click()
    expect(c.button("Show the JSON")).to_be_visible()
    c.state("The node would take it")
    nothing_secret(c)
    c.button("Add to the change set").click()
    c.state("The node would take all of it")
    nothing_secret(c)
    c.button("Copy as…").click()
    expect(c.button("Show the text")).to_be_visible()
    nothing_secret(c)
    c.page.keyboard.press("Escape")
    c.page.get_by_role("link", name="Edit again").click()
    expect(c.button("Show the JSON")).to_be_visible()
    nothing_secret(c)
    c.page.once("dialog", lambda dialog: dialog.accept())
    c.open("d/secrets/new", "New config")
    c.page.get_by_label("Key", exact=True).fill("made")
    form = c.page.get_by_role("region", name="Form")
    form.get_by_role("button", name="Set password").click()
    form.get_by_label("password", exact=True).fill("hunter2")
    c.state("The node would take it")
    c.button("Add to the change set").click()
    c.state("The node would take all of it")
    nothing_secret(c)
    c.page.get_by_role("region", name="secrets / made", exact=True).get_by_role("link", name="Edit again").click()
    expect(c.button("Show the JSON")).to_be_visible()
    nothing_secret(c)
    c.page.once("dialog", lambda dialog: dialog.accept())
    c.open("together", "Change set")
    c.button("Empty the change set…").click()
    c.page.get_by_role("dialog").get_by_role("button", name="Empty it").click()
    expect(c.page.get_by_text("The change set is empty")).to_be_visible()


def check_kept_secrets(c):
    """What a key may not see goes with its element when that is moved, and what the node says of it stands at the field."""
    with definition(c, "kept", SECRET, [("all", SECRETS)]):
        status, answer = c.cluster.call(1, "POST", "/api_key/", {"name": "blind", "grants": [{"verbs": ["read", "write"], "definitions": ["kept"]}]})
        assert status == 201, answer
        made = json.loads(answer)["data"]
        page = c.visitor()
        page.get_by_label("Access key").fill(made["api_key"])
        page.keyboard.press("Enter")
        page.get_by_role("link", name="kept").click()
        page.goto(f"{c.origin}/ui/#/d/kept/c/all/edit")
        form = page.get_by_role("region", name="Form")
        expect(form.get_by_text("hidden, stays as it is")).to_have_count(4)
        keep = {"$concord-keep": True}
        moved = [{"host": "b", "token": keep}, {"host": "a", "token": keep}]

        def refuse(route):
            if json.loads(route.request.post_data)["data"]["replicas"] != moved:
                route.fallback()
                return
            errors = [{"msg": "the element has moved", "loc": ["data", "replicas", 0, "token"], "type": "validation_error"}]
            route.fulfill(status=422, content_type="application/json", body=json.dumps({"status": "ERROR", "errors": errors}))

        page.route("**/config/all?dry_run=true", refuse)
        form.get_by_role("button", name="Move item 2 up").click()
        expect(form.locator(".place.wrong")).to_contain_text("the element has moved")
        expect(form.locator(".place.wrong")).to_contain_text("hidden, stays as it is")
        page.close()
        assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200


def check_last_changes(c):
    """The page of changes begins with the last ones, and says which fields differ and whose key it was."""
    with definition(c, "recent", {}, [("one", {"a": 1, "b": 7.0, "c": "x" * 300})]):
        status, answer = c.cluster.call(1, "POST", "/api_key/", {"name": "the deploy job", "grants": [{"verbs": ["read", "write"], "definitions": ["*"]}]})
        made = json.loads(answer)["data"]
        headers = [("Authorization", made["api_key"]), ("X-Change-Reason", "a turn")]
        assert c.cluster.call(1, "PUT", "/config_definition/recent/config/one", {"data": {"a": 2, "b": 7.0, "c": "x" * 300, "d": None}}, headers)[0] == 200
        c.open("", "Definitions")
        c.page.get_by_role("link", name="Changes").click()
        row = c.page.get_by_role("row").filter(has_text="a turn")
        expect(row).to_contain_text("the deploy job")
        expect(row.locator(".differing li")).to_have_text([re.compile(r"^a 1 → 2$"), re.compile(r"^d null$")])
        c.look("changes-last")
        c.open("d/recent/c/one/history", "one")
        expect(c.page.get_by_role("region", name="Changes").get_by_role("button").first).to_contain_text("by the deploy job")
        assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200


def check_dry_runs(c):
    """A dry run is no line among the writes of the audit page, and is called so where it is shown."""
    with definition(c, "dry", {}, [("one", {"a": 1})]):
        assert c.cluster.call(c.node, "PUT", "/config_definition/dry/config/one?dry_run=true", {"data": {"a": 2}})[0] == 200
        c.open("audit?definition=dry", "Audit")
        table = c.page.get_by_role("region", name="Audit log")

        def is_there():
            c.button("Reload").click()
            return c.page.get_by_text("1 dry run not shown").is_visible()

        wait_for(is_there, "the line of the dry run")
        expect(table.get_by_text("dry run", exact=True)).to_have_count(0)
        c.page.get_by_label("Dry runs").check()
        expect(table.get_by_text("dry run", exact=True)).to_have_count(1)


def check_key_times(c):
    """The change of one thing of a key leaves everything else of it as it is, the seconds included."""
    grants = [{"verbs": ["read"], "definitions": ["a*", "b"]}]
    body = {"name": "exact", "grants": grants, "expires_at": "2199-03-04T05:06:07Z", "quota": {"requests_per_second": 12345}}
    status, answer = c.cluster.call(1, "POST", "/api_key/", body)
    assert status == 201, answer
    made = json.loads(answer)["data"]
    before = c.cluster.data(1, f"/api_key/{made['key_id']}")
    c.open("keys", "Keys")
    c.button("Change exact").click()
    dialog = c.page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("renamed")
    dialog.get_by_role("button", name="Change", exact=True).click()
    c.said("The key is changed")
    after = c.cluster.data(1, f"/api_key/{made['key_id']}")
    same = ("modified_at", "revision")
    assert {**after, **{name: before[name] for name in same}} == {**before, "name": "renamed"}, (before, after)
    assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200


def check_go_to_config(c):
    """A config is found by its key alone."""
    with definition(c, "found", {}, [("tenant-042", {"a": 1}), ("tenant-043", {"a": 1})]):
        c.open("", "Definitions")
        c.page.keyboard.press("/")
        c.page.get_by_role("combobox").fill("tenant-042")
        expect(c.page.get_by_role("option", name="found / tenant-042")).to_be_visible()
        c.page.keyboard.press("Enter")
        expect(c.heading("tenant-042")).to_be_visible()


def check_widths(c):
    """No page scrolls sideways, however long a key and however narrow the window; everything can be reached on a phone."""
    key, config = "d" * 255, "c" * 255
    schema = {"properties": {"n" * 255: {"type": "string", "title": "t" * 255}, "list": {"type": "array", "items": {"type": "object", "properties": {"m" * 120: {"type": "integer"}}}}}}
    wide = {}
    flags = f"{'e' * 200}.flags"
    flag = {"state": "ENABLED", "variants": {"w" * 200: "v" * 500, "x" * 200: {"y": "z" * 300}}, "defaultVariant": "w" * 200,
            "targeting": {"if": [{"in": [{"var": "a" * 200}, ["b" * 200, "c" * 200]]}, "x" * 200, {"fractional": [["w" * 200, 10], ["x" * 200, 90]]}]}}
    with definition(c, flags, {}, [(config, flag)]), definition(c, key, schema, [(config, {"n" * 255: "v" * 500, "list": [{"m" * 120: 1}], "x" * 300: {"y": "z" * 300}})], ["n" * 255]):
        change = {"title": "t" * 255, "operations": [{"op": "put_config", "config_definition_key": key, "config_key": config, "data": {"n" * 255: "w" * 500, "list": [{"m" * 120: 2}]}}]}
        status, answer = c.cluster.call(1, "POST", "/change_request/", change)
        assert status == 201, answer
        made = json.loads(answer)["data"]["change_id"]
        pages = [("flags", "Flags"), (f"flags/{flags}/{config}", config), (f"reviews/{made}", "t" * 255), (f"reviews/{made}/edit", "Edit the change request"), (f"?definition={key[:200]}*", "Definitions"), ("reviews?view=open", "Reviews"), ("environments", "Environments"), ("compare?from=a&to=b", "Compare environments"), ("", "Definitions"), (f"d/{key}", key), (f"d/{key}/schema", key), (f"d/{key}/indexes", key), (f"d/{key}/history", key), (f"d/{key}/c/{config}", config),
                 (f"d/{key}/c/{config}/edit", f"Edit {config}"), (f"d/{key}/c/{config}/history", config), (f"d/{key}/new", "New config"), ("watch", "Changes"),
                 (f"watch?definition={key}", "Changes"), ("cluster", "Cluster"), ("usage", "Usage"), ("keys", "Keys"), ("audit", "Audit"), ("new", "New definition"), ("together", "Change set")]
        before = c.page.viewport_size
        for width in (1280, 390, 375):
            c.page.set_viewport_size({"width": width, "height": 800})
            for place, heading in pages:
                c.open(place, heading)
                expect(c.page.locator(".loading")).to_have_count(0)
                found = c.page.evaluate("document.documentElement.scrollWidth")
                if found > width:
                    wide[width, place.replace(key, "KEY").replace(config, "CONFIG")] = found, c.page.evaluate("""(width) => [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > width + 1
                        && !e.closest('.scroll, .table, pre, .tabs, .unseen, .skip')).slice(0, 4).map((e) => e.outerHTML.slice(0, 90))""", width)
            c.button("Go to… /").or_(c.page.get_by_role("button", name="Go to…")).first.click()
            c.page.get_by_role("combobox").fill("d" * 40)
            expect(c.page.get_by_role("option").first).to_be_visible()
            if c.page.evaluate("document.documentElement.scrollWidth") > width:
                wide[width, "go to"] = True
            c.page.keyboard.press("Escape")
        c.page.set_viewport_size(before)
        assert c.cluster.call(1, "POST", f"/change_request/{made}/withdraw", {})[0] == 200
    assert not wide, wide
