"""What the console's form promises: it holds what it is given, however odd or large it is. Used by scripts/console-test.py."""

import contextlib
import json
import random
import re

from playwright.sync_api import expect

from browser import wait_for
from documents import Schemas, differences, document, exact

# CPU time of the page's main thread: for a key typed into a form of 600 KB, all that comes of it included, and to open it.
KEY_MS_MAX = 50
OPEN_MS_MAX = 2_000
LARGE_OBJECTS = 9_000


@contextlib.contextmanager
def definition(c, key, schema, configs=(), indexes=()):
    """A definition with configs, given as texts of JSON, for as long as a check takes."""
    body = {"config_definition_key": key, "json_schema": schema, "indexes": list(indexes)}
    status, answer = c.cluster.call(1, "POST", "/config_definition/", body)
    assert status == 201, answer
    for config, data in configs:
        store(c, key, config, data)
    wait_for(lambda: c.cluster.data(c.node, f"/config_definition/{key}/config/?limit=1")["results"] or not configs, "the follower")
    yield
    assert c.cluster.call(1, "DELETE", f"/config_definition/{key}")[0] == 200


def store(c, key, config, data):
    text = data if isinstance(data, str) else json.dumps(data)
    status, answer = c.cluster.call(1, "POST", f"/config_definition/{key}/config/", f'{{"config_key": "{config}", "data": {text}}}'.encode())
    assert status == 201, (text[:500], answer)


def stored(c, key, config):
    """The data of a config, without loss."""
    status, text = c.cluster.call(1, "GET", f"/config_definition/{key}/config/{config}")
    assert status == 200, text
    return dict(dict(exact(text).members)["data"].members)["data"]


def edit(c, key, config):
    c.open(f"d/{key}/c/{config}/edit", f"Edit {config}")
    return c.page.get_by_role("region", name="Form")


def save(c, config):
    c.button("Save").click()
    c.said(f"{config} is saved")


def check_form_texts(c):
    """Line ends and blanks are neither changed nor unseen; values that look alike are told apart."""
    texts = {
        "crlf": "first\r\nsecond\r\n", "cr": "one\rtwo", "mixed": "a\r\nb\nc\r", "lines": "x\ny\n", "blanks": "  a  b ",
        "tab": "a\tb", "empty": "", "blank": " ", "invisible": "a\u00a0b\u200bc",
    }
    schema = {"properties": {name: {"type": "string"} for name in texts}}
    with definition(c, "texts", schema, [("all", texts)]):
        form = edit(c, "texts", "all")
        for name in ("crlf", "lines", "blanks", "tab"):
            form.get_by_label(name, exact=True).press("Control+End")
            c.page.keyboard.type("!")
            texts[name] += "!"
        # What no text field can hold is edited as JSON.
        for name in ("cr", "mixed"):
            field = form.get_by_label(name, exact=True)
            expect(field).to_have_value(json.dumps(texts[name]))
            field.press("Control+End")
            c.page.keyboard.press("ArrowLeft")
            c.page.keyboard.type("!")
            texts[name] += "!"
        place = lambda name: form.locator(".place").filter(has=c.page.get_by_label(name, exact=True))
        expect(place("crlf")).to_contain_text("lines end with CR LF")
        expect(place("blanks")).to_contain_text("begins with a blank")
        expect(place("blank")).to_contain_text("ends with a blank")
        expect(place("empty")).to_contain_text("empty text")
        expect(place("tab")).to_contain_text("has a tab")
        expect(place("invisible")).to_contain_text("U+00A0, U+200B")
        c.state("The node would take it")
        c.look("form-texts")
        save(c, "all")
        assert c.cluster.data(1, "/config_definition/texts/config/all")["data"] == texts
        # A name is not ended by a key pressed by habit; a text of several lines is typed all the same.
        form = edit(c, "texts", "all")
        field = form.get_by_label("empty", exact=True)
        field.fill("name")
        field.press("Enter")
        expect(place("empty")).to_contain_text("Shift and Enter")
        expect(field).to_have_value("name")
        field.press("Shift+Enter")
        c.page.keyboard.type("next")
        expect(field).to_have_value("name\nnext")
        # Pasted with the line ends of Windows.
        save(c, "all")
        assert c.cluster.data(1, "/config_definition/texts/config/all")["data"]["empty"] == "name\nnext"

    values = ["7", '"7"', "null", '"null"', '" "', '""', "true", '"true"', "[]", '"[]"', '"a  b"', '"a b"', '"7.0"', "7.0"]
    data = ",".join(f'"f{place:02}": {value}' for place, value in enumerate(values))
    with definition(c, "alike", {}, [("all", f"{{{data}}}")], [f"f{place:02}" for place in range(len(values))]):
        c.open("d/alike", "alike")
        row = c.page.get_by_role("table").get_by_role("row").filter(has_text="all")
        expect(row).to_be_visible()
        cells = [cell.inner_text() for cell in row.get_by_role("cell").all()[1:-1]]
        assert len(set(cells)) == len(values), cells
        c.open("d/alike/c/all", "all")
        fields = c.page.get_by_role("region", name="Fields").locator("dd")
        expect(fields.first).to_be_visible()
        shown = [field.inner_text() for field in fields.all()]
        assert len(set(shown)) == len(values), shown
        styles = {field.evaluate("(element) => getComputedStyle(element).whiteSpaceCollapse") for field in fields.all()}
        assert styles == {"preserve"}, styles


def check_form_focus(c):
    """The control under the cursor is never replaced, however the value looks while it is typed; a new one gets the focus."""
    schema = {"properties": {
        "text": {"type": "string"}, "number": {"type": "integer"}, "choice": {"enum": ["a", "b"]}, "union": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "list": {"type": "array", "items": {"type": "number"}},
    }}
    with definition(c, "focus", {}, [("all", {"text": "", "number": "5", "choice": "c", "union": "2.1000", "list": [1, 2, 3], "free": None})]):
        # Stored without a schema: what breaks it is edited as JSON.
        assert c.cluster.call(1, "PUT", "/config_definition/focus/schema?policy=force", {"json_schema": schema})[0] == 200
        form = edit(c, "focus", "all")
        text = "".join(chr(ord("a") + n % 26) for n in range(100))
        form.get_by_label("text", exact=True).focus()
        c.page.keyboard.type(text)
        expect(form.get_by_label("text", exact=True)).to_have_value(text)
        for label, typed in (("number", "17"), ("choice", '"b"'), ("free", '{"a": ["x"]}')):
            field = form.get_by_label(label, exact=False).and_(form.locator("textarea, input")).first
            field.focus()
            c.page.keyboard.press("Control+a")
            c.page.keyboard.type(typed)
            assert c.page.evaluate("document.activeElement.value") == typed, label
        # A decimal that may be a number or a text is typed as it is, without quotes.
        field = form.get_by_label("union", exact=True)
        expect(field).to_have_value("2.1000")
        # The kind changes before the browser has painted what was typed.
        form.evaluate("""async (form) => {
            const [control, chooser] = [form.querySelector("[aria-label='Kind of union']").closest(".place").querySelector("input, textarea"), form.querySelector("[aria-label='Kind of union']")];
            control.focus();
            control.value = "2.2000";
            control.dispatchEvent(new Event("input", { bubbles: true }));
            for (let turn = 0; turn < 50; turn += 1) await null;
            chooser.value = [...chooser.options].find((option) => option.text === "number").value;
            chooser.dispatchEvent(new Event("change", { bubbles: true }));
        }""")
        expect(form.get_by_label("union", exact=True)).to_be_focused()
        expect(form.get_by_label("union", exact=True)).to_have_value("2.2000")
        # What is typed and is no number yet goes with its element.
        form.get_by_label("2", exact=True).fill("12x")
        form.get_by_role("button", name="Move item 2 up").click()
        expect(form.get_by_label("1", exact=True)).to_have_value("12x")
        expect(form.get_by_label("2", exact=True)).to_have_value("1")
        form.get_by_role("button", name="Remove 2", exact=True).click()
        expect(form.get_by_label("1", exact=True)).to_have_value("12x")
        form.get_by_role("button", name="Add an item").first.click()
        expect(form.get_by_label("3", exact=True)).to_be_focused()
        c.state("The node would take it")
        save(c, "all")
        assert c.cluster.call(1, "GET", "/config_definition/focus/config/all")[1].find('"union":2.2000,"list":[2,3,0],"free":{"a":["x"]}') > 0


def check_form_recursion(c):
    """A schema that leads back to itself, once or many times, has a form with an end."""
    tree = {"type": ["object", "null"], "required": ["v", "next"], "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}
    wide = {"type": "object", "required": list("abcdefgh"), "properties": {name: {"$ref": "#/$defs/node"} for name in "abcdefgh"}, "$defs": {
        "node": {"type": "object", "required": list("abcdefgh"), "properties": {name: {"$ref": "#/$defs/node"} for name in "abcdefgh"}},
    }}
    union = {"properties": {"u": {"$ref": "#/$defs/u"}}, "$defs": {"u": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "string"}]}, "list": {"type": "array", "items": {"$ref": "#/$defs/u"}}}}
    with definition(c, "tree", tree, [("one", {"v": 1, "next": None})]), definition(c, "wide", wide), definition(c, "union", union, [("one", {"u": ["a", ["b"]]})]):
        c.open("d/tree/new", "New config")
        expect(c.page.get_by_role("region", name="Form").get_by_label("v", exact=True).first).to_be_visible()
        form = edit(c, "tree", "one")
        form.get_by_role("button", name="Give it a value").click()
        expect(form.get_by_label("v", exact=True)).to_have_count(2)
        c.state("The node would take it")
        save(c, "one")
        c.open("d/wide/new", "New config")
        expect(c.page.get_by_role("region", name="Form").get_by_role("button", name="Remove a").or_(c.page.get_by_role("region", name="Form").locator("fieldset")).first).to_be_visible()
        form = edit(c, "union", "one")
        form.get_by_label("1", exact=True).last.fill("changed")
        c.state("The node would take it")
        save(c, "one")
        assert c.cluster.data(1, "/config_definition/union/config/one")["data"] == {"u": ["a", ["changed"]]}
    c.open("new", "New definition")
    c.edit_text("JSON schema", json.dumps(wide))
    expect(c.page.get_by_text("The schema names no field")).to_be_visible()
    # The browser asks about the text only if it reloads the page with it.
    leave = lambda dialog: dialog.accept()
    c.page.on("dialog", leave)
    c.open("", "Definitions")
    c.page.remove_listener("dialog", leave)


def check_form_names(c):
    """Each label leads to its own control; columns of patterns show values; members of a map have their names as titles."""
    schema = {"properties": {
        "a-b": {"type": "string"}, "a": {"type": "object", "properties": {"b": {"type": "string"}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}}, "items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "mails": {"type": "object", "additionalProperties": {"title": "Localized", "type": "object", "properties": {"subject": {"type": "string"}}}},
        "limit": {"type": "integer", "default": 5, "maximum": 9},
    }}
    data = {"a-b": "first", "a": {"b": "second"}, "labels": {"team": "core", "x.y": "z"}, "items": [{"name": "one"}, {"name": "two"}], "mails": {"de": {"subject": "Hallo"}, "en": {"subject": "Hello"}}}
    with definition(c, "names", schema, [("all", data)], ["labels.*", "items[].name"]):
        c.open("d/names", "names")
        row = c.page.get_by_role("table").get_by_role("row").filter(has_text="all")
        expect(row).to_contain_text("core, z")
        expect(row).to_contain_text("one, two")
        expect(c.page.get_by_role("columnheader", name="labels.*").get_by_role("button")).to_have_count(0)
        form = edit(c, "names", "all")
        form.get_by_label("a-b", exact=True).fill("FIRST")
        form.get_by_label("b", exact=True).fill("SECOND")
        every = c.page.evaluate("[...document.querySelectorAll('.form [id]')].map((element) => element.id)")
        assert len(every) == len(set(every)), every
        legends = form.locator("legend").all_inner_texts()
        assert {"de", "en"} <= {text.split("\n")[0].split(" ")[0].removesuffix("✕") for text in legends}, legends
        assert not any("not in the schema" in text for text in legends), legends
        absent = form.locator(".place.absent").filter(has_text="limit")
        expect(absent).to_contain_text("5 (default)")
        expect(absent).to_contain_text("whole number")
        expect(absent).to_contain_text("≤ 9")
        c.state("The node would take it")
        save(c, "all")
        found = c.cluster.data(1, "/config_definition/names/config/all")["data"]
        assert found == {**data, "a-b": "FIRST", "a": {"b": "SECOND"}}, found
        c.open("d/names/c/all", "all")
        expect(c.page.get_by_role("region", name="Fields")).to_contain_text("5 (default)")


def spending(c):
    """A function that says how many milliseconds of CPU time the page's main thread took since the last call."""
    session = c.context.new_cdp_session(c.page)
    session.send("Performance.enable")
    last = [0]

    def spent():
        now = next(one["value"] for one in session.send("Performance.getMetrics")["metrics"] if one["name"] == "ThreadTime")
        took, last[0] = (now - last[0]) * 1000, now
        return took

    spent()
    return spent


def check_form_large(c):
    """A form of 600 KB opens at once, and a key typed into it is painted at once."""
    schema = {"properties": {"title": {"type": "string"}, "items": {"type": "array", "items": {"type": "object", "properties": {
        "id": {"type": "integer"}, "name": {"type": "string"}, "on": {"type": "boolean"}, "note": {"type": ["string", "null"]}}}}}}
    data = {"title": "large", "items": [{"id": n, "name": f"item number {n}", "on": n % 2 == 0, "note": None} for n in range(LARGE_OBJECTS)]}
    text = json.dumps(data, separators=(",", ":"))
    c.large = {"bytes": len(text)}
    with definition(c, "large", schema, [("all", text)]):
        c.open("d/large", "large")
        spent = spending(c)
        form = edit(c, "large", "all")
        expect(form.get_by_label("title", exact=True)).to_be_visible()
        expect(c.page.locator(".editor-host")).to_be_visible()
        c.large["open"] = spent()
        for label in ("title", "name"):
            field = form.get_by_label(label, exact=True).first
            field.press("Control+End")
            expect(field).to_be_focused()
            spent()
            c.page.keyboard.type("0123456789", delay=20)
            # Until the browser has painted what came of the last key.
            c.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
            c.large[label] = spent() / 10
        c.state("The node would take it")
        # The end of the list is drawn when it is gone to.
        c.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        expect(form.get_by_label(str(LARGE_OBJECTS), exact=True).or_(form.locator("legend").filter(has_text=re.compile(f"^{LARGE_OBJECTS}"))).first).to_be_attached()
        save(c, "all")
        data["title"] += "0123456789"
        data["items"][0]["name"] += "0123456789"
        assert c.cluster.data(1, "/config_definition/large/config/all")["data"] == data
        print("  {bytes:,} bytes: opened in {open:.0f} ms of CPU, a key in {title:.0f} ms, in a list {name:.0f} ms".format(**c.large))
        assert c.large["title"] < KEY_MS_MAX and c.large["name"] < KEY_MS_MAX, c.large
        assert c.large["open"] < OPEN_MS_MAX, c.large


def check_form_documents(c):
    """Random documents of random schemas: one field is changed in the form, and nothing else differs in what is stored."""
    total, seed = c.options.documents, c.options.seed
    count = max(1, min(30, total // 4))
    changed = 0
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        schema = Schemas(chance).whole()
        share = total // count + (number < total % count)
        texts = {f"c{n:03}": document(chance, schema) for n in range(share)}
        key = f"random-{number:02}"
        with definition(c, key, schema, texts.items()):
            for config in texts:
                before = stored(c, key, config)
                form = edit(c, key, config)
                what = change_one(c, form, chance)
                if what is None:
                    continue
                save(c, config)
                found = differences(before, stored(c, key, config))
                assert len(found) == 1, f"seed {seed}, schema {number}, {config}: {what} changed {found}\n{texts[config]}\n{json.dumps(schema)}"
                assert found[0][2] == what, f"seed {seed}, schema {number}, {config}: {what} and not {found}"
                changed += 1
    assert changed >= total * 0.9, f"{changed} of {total} could be changed"
    print(f"  {changed} documents of {count} schemas, seed {seed}: one place changed in each, nothing else")


def change_one(c, form, chance):
    """Changes one control of the form; the value that must come of it, as it is stored."""
    controls = form.locator(".place :is(textarea, select:not(.kind), input)")
    expect(form.locator(".place, fieldset").first).to_be_visible()
    places = list(range(controls.count()))
    chance.shuffle(places)
    for place in places:
        control = controls.nth(place)
        kind = control.evaluate("(e) => e.tagName === 'TEXTAREA' ? e.className : e.type")
        value = control.input_value() if kind not in ("checkbox",) else None
        if kind == "checkbox":
            wanted = not control.is_checked()
            control.set_checked(wanted)
            return "true" if wanted else "false"
        if kind == "select-one":
            options = control.evaluate("(e) => [...e.options].map((option) => option.value)")
            others = [option for option in options if option != value]
            if not others:
                continue
            chosen = chance.choice(others)
            control.select_option(chosen)
            words = control.evaluate("(e, value) => [...e.options].find((option) => option.value === value).textContent", chosen)
            return words if re.fullmatch(r'".*"|-?\d.*|true|false|null', words) else json.dumps(words, ensure_ascii=False)
        if kind == "text" and control.get_attribute("inputmode") == "decimal":
            wanted = chance.choice(["41", "-3", "12345678901234567890123"])
            wanted = wanted if value != wanted else "40"
            control.fill(wanted)
            return wanted
        control.focus()
        c.page.keyboard.press("Control+End")
        if kind == "mono" and value.startswith('"'):
            c.page.keyboard.press("ArrowLeft")
            c.page.keyboard.type("!")
            return json.dumps(json.loads(value) + "!", ensure_ascii=False)
        if kind == "mono":
            continue
        end = "\r\n" if "lines end with CR LF" in control.locator("xpath=..").inner_text() else "\n"
        c.page.keyboard.type("!")
        return json.dumps(value.replace("\n", end) + "!", ensure_ascii=False)
    return None
