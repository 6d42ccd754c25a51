"""Random edits in the form and in its JSON, by a key that may not see secret values. Used by scripts/console-test.py.

Each edit begins with a random document that the root key stores. Somebody with a key without `reveal` opens the editor,
changes one or several places, and saves. Meanwhile the same changes are made to a model, in which an element of a list
takes its secret values with it.

**Invariant:** what is stored then is what the model says, or the save was refused with a reason and nothing changed. No
secret value that is stored is ever on the page, in the browser's storage, or in what the node answered.

EDITS=1000 sets how many edits there are, SEED which.
"""

import contextlib
import json
import os
import random
import re
import time
from collections import Counter

from playwright.sync_api import expect

from browser import PATIENCE_MS, wait_for
from documents import Number
from forms import definition
from pages import WHOLE
from secret_documents import (
    MEMBER_NAMES, NUMBERS, PLAIN_TEXTS, SECRET_NUMBER, SECRET_TEXT, Secret, SecretSchemas, parsed, shown_text, stored_text, with_secrets,
)

STRAYED = "the node would keep the secret value of another element here"
UNCHANGED = "Nothing is changed yet"
EDITS = 30
EDITS_OF_A_SCHEMA = 8
TURNS_MAX = 4
SECRETS = re.compile(rf"{SECRET_TEXT}[0-9a-f]{{12}}|{SECRET_NUMBER}\d{{11}}")

# What the page reads from the node, streams included, is kept to be searched.
LISTEN = """
window.answers = [];
const fetched = window.fetch;
window.fetch = async (...all) => {
    const answer = await fetched(...all);
    const heard = { text: [...answer.headers].join("\\n"), isDone: !answer.body };
    answers.push(heard);
    const read = async (reader, decoder) => {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            heard.text += decoder.decode(value, { stream: true });
        }
    };
    if (answer.body) read(answer.clone().body.getReader(), new TextDecoder()).catch(() => {}).finally(() => { heard.isDone = true; });
    return answer;
};"""
# What was heard since the last time. A stream goes on, perhaps in the middle of a word.
HEARD = """answers.splice(0).map((one) => {
    const { text } = one;
    one.text = text.slice(-40);
    if (!one.isDone) answers.push(one);
    return text;
}).join("\\n")"""
STORED = "[JSON.stringify(localStorage), JSON.stringify({ ...sessionStorage, 'concord-key': '' }), document.cookie, location.href]"

# What somebody can do in the form: { path, act }, and the elements for it in `window.controls`.
ACTIONS = """(form) => {
    const found = [];
    window.controls = [];
    const add = (path, act, element, more = {}) => { if (element) { found.push({ path, act, ...more }); controls.push(element); } };
    const name = (head) => head.querySelector(".name").firstChild?.data ?? "";
    function inside(box, path) {
        let place = 0;
        for (const child of box.children) {
            if (child.matches(".item")) {
                const here = [...path, place++];
                one(child.querySelector(":scope > .place, :scope > fieldset"), here);
                for (const [way, button] of [...child.querySelectorAll(":scope > .bar button")].entries()) add(here, "move", button, { by: way ? 1 : -1 });
            } else if (child.matches(".place, fieldset")) one(child, [...path, name(child.querySelector(child.matches("fieldset") ? ":scope > legend" : ":scope > label"))]);
            else if (child.matches(".add")) add(path, "member", child.querySelector("input"));
            else if (child.matches("button")) add(path, "item", child);
        }
    }
    function one(box, path) {
        const isGroup = box.matches("fieldset");
        const head = isGroup ? box.querySelector(":scope > legend") : box;
        for (const button of head.querySelectorAll("button")) {
            const [label, text] = [button.getAttribute("aria-label") ?? "", button.textContent];
            const act = label.startsWith("Remove ") ? "remove" : text === "Show" ? "show" : text === "Hide" ? "hide" : text === "null" ? "null"
                : { Set: "set", "Replace it": "replace", "Give it a value": "give" }[text];
            if (!act) throw new Error(`what does ${label} ${text}?`);
            add(path, act, button);
        }
        const kind = head.querySelector("select.kind");
        add(path, "kind", kind, { options: kind && [...kind.options].map((option) => option.value) });
        if (isGroup) { inside(box, path); return; }
        const control = box.querySelector("textarea, input, select:not(.kind)");
        if (!control) return;
        const options = control.matches("select") ? [...control.options].map((option) => option.textContent) : undefined;
        add(path, options ? "choose" : control.matches("textarea.mono") ? "json" : control.matches("textarea") ? "text" : control.type === "checkbox" ? "check" : "number", control, { options });
    }
    inside(form, []);
    return found;
}"""

# The JSON beside the form, when it has caught up with it.
SHOWN = """async () => {
    const part = document.querySelector("[aria-label='JSON editor']");
    part.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const editor = part.querySelector(".editor-host")?.shadowRoot?.querySelector(".cm-editor");
    return editor ? (await import("/ui/vendor/editor.js")).EditorView.findFromDOM(editor).state.doc.toString() : null;
}"""


def at(value, path):
    for part in path:
        value = value[part]
    return value


def places(value, path=()):
    """Every place in a value, with the value there."""
    yield path, value
    for part, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, part))


class Editing:
    """One visit of the editor, with the model of what it changes."""

    def __init__(self, blind, place, schema, before, chance):
        self.blind, self.page, self.schema, self.chance = blind, blind.page, schema, chance
        self.name, self.config = place
        self.model = with_secrets(schema, before)
        self.begin = shown_text(self.model)
        self.form = self.page.get_by_role("region", name="Form").locator(".form")
        self.did = []

    def open(self):
        self.page.goto(f"{self.blind.origin}/ui/#/d/{self.name}/c/{self.config}/edit")
        expect(self.page.get_by_role("heading", name=f"Edit {self.config}", exact=True)).to_be_visible()
        show = self.page.get_by_role("button", name="Show the JSON")
        expect(show.or_(self.page.locator(".editor"))).to_be_visible()
        if show.is_visible():
            show.click()
        wait_for(lambda: self.shown() is not None, "the JSON editor")
        self.compare()

    def shown(self):
        text = self.page.evaluate(SHOWN)
        return None if text is None else parsed(text)

    def compare(self):
        """The form and the JSON are one state: it is that of the model."""
        wanted = shown_text(self.model)
        try:
            wait_for(lambda: shown_text(self.shown()) == wanted, "the JSON")
        except AssertionError:
            raise AssertionError(f"{self}: the JSON is {shown_text(self.shown())}") from None
        self.blind.visible.update(SECRETS.findall(self.visible(self.model)))
        self.blind.search(f"{self}", wanted)

    def visible(self, value):
        """The text of everything that the key may see once the value is stored."""
        return shown_text(with_secrets(self.schema, parsed(shown_text(value))))

    def __str__(self):
        return f"{self.name} / {self.config}: {'; '.join(self.did)}: {shown_text(self.model)}"

    def fresh(self):
        """A text that stands nowhere yet."""
        return f"{self.chance.choice(PLAIN_TEXTS)}{SECRET_TEXT}{self.chance.randrange(1 << 48):012x}"

    def number(self):
        return Number(self.chance.choice([*NUMBERS, f"{SECRET_NUMBER}{self.chance.randrange(10**10, 10**11)}"]))

    def text(self):
        """A text that is new, or that stands elsewhere already: then elements of a list may come to look alike."""
        texts = [item for _, item in places(self.model) if isinstance(item, str) and not SECRETS.search(item)]
        return self.chance.choice(texts) if texts and self.chance.random() < 0.4 else self.fresh()

    def turn(self):
        """One change, in the form or in the JSON; what it was."""
        if isinstance(self.model, Secret) or self.chance.random() < 0.15:
            return self.type_json()
        actions = self.form.evaluate(ACTIONS)
        elements = [(tuple(action["path"]), action["act"]) for action in actions]
        pairs = self.alike([path for path, act in elements if act == "text"])
        if pairs and self.chance.random() < 0.4:
            return self.trade(elements, *self.chance.choice(pairs))
        act = self.chance.choice(sorted({act for _, act in elements}))
        number = self.chance.choice([number for number, action in enumerate(actions) if action["act"] == act])
        action, path, element = actions[number], elements[number][0], self.element(number)
        before = None if act == "set" else at(self.model, path)
        self.did.append(f"{act} {list(path)}")
        getattr(self, f"do_{act}")(path, element, action, before)
        self.compare()
        return act

    def element(self, number):
        return self.page.evaluate_handle("(number) => controls[number]", number).as_element()

    def alike(self, paths):
        """The pairs of texts in two elements of a list that differ in this text only, but for secret values."""
        found = []
        for path in paths:
            for depth, place in enumerate(path):
                items = at(self.model, path[:depth])
                for other in range(len(items)) if isinstance(items, list) else ():
                    there = (*path[:depth], other, *path[depth + 1:])
                    if other != place and there in paths:
                        copy = copied(items)
                        at(copy, path[depth:-1])[path[-1]] = at(self.model, there)
                        has_secret = any(isinstance(item, Secret) for _, item in places(items[place]))
                        if has_secret and shown_text(copy[place]) == shown_text(copy[other]) != shown_text(items[place]):
                            found.append((path, there))
        return found

    def trade(self, elements, path, other):
        """An element of a list comes to look like another one, which goes or comes to look like it."""
        [mine, its] = [at(self.model, place) for place in (path, other)]
        self.element(elements.index((path, "text"))).fill(its)
        self.put(path, its)
        holder = next(other[:depth + 1] for depth in range(len(path)) if path[depth] != other[depth])
        self.did.append(f"trade {list(path)} with {list(other)}")
        if self.chance.random() < 0.5:
            self.element(elements.index((holder, "remove"))).click()
            del at(self.model, holder[:-1])[holder[-1]]
        else:
            self.element(elements.index((other, "text"))).fill(mine)
            self.put(other, mine)
        self.compare()
        return "trade"

    def put(self, path, value):
        at(self.model, path[:-1])[path[-1]] = value

    def takes(self, path):
        """What a place begins with is seen in the JSON. It is nothing that was there."""
        found = []

        def has_come():
            with contextlib.suppress(IndexError, TypeError):
                found[:] = [at(self.shown(), path)]
            return found

        wait_for(has_come, f"{self}: a value")
        assert "$concord-keep" not in stored_text(found[0]), f"{self}: {stored_text(found[0])}"
        return found[0]

    def go_on(self, path):
        """Somebody types into a new text: the cursor is there."""
        if at(self.model, path) == "" and self.page.evaluate("document.activeElement.matches('textarea.text')") and self.chance.random() < 0.8:
            wanted = self.fresh()
            self.page.keyboard.insert_text(wanted)
            self.put(path, wanted)

    def do_text(self, path, element, action, before):
        wanted = self.text()
        if self.chance.random() < 0.3:
            element.focus()
            self.page.keyboard.press("Control+End")
            self.page.keyboard.type("!")
            wanted = f"{before}!"
        else:
            element.fill(wanted)
        self.put(path, wanted)

    def do_number(self, path, element, action, before):
        wanted = self.number()
        element.fill(wanted.text)
        self.put(path, wanted)

    def do_check(self, path, element, action, before):
        element.click()
        self.put(path, not before)

    def do_choose(self, path, element, action, before):
        place, wanted = self.chance.choice(list(enumerate(action["options"])))
        element.select_option(index=place)
        self.put(path, parsed(wanted if re.fullmatch(r'".*"|-?\d.*|true|false|null', wanted) else json.dumps(wanted)))

    def do_json(self, path, element, action, before):
        assert shown_text(parsed(element.input_value())) == shown_text(before), f"{self}: {element.input_value()}"
        self.put(path, self.changed(before))
        element.fill(shown_text(at(self.model, path)))

    def do_remove(self, path, element, action, before):
        element.click()
        del at(self.model, path[:-1])[path[-1]]

    def do_move(self, path, element, action, before):
        element.click()
        items, place = at(self.model, path[:-1]), path[-1]
        to = place + action["by"]
        if 0 <= to < len(items):
            items[place], items[to] = items[to], items[place]

    def do_show(self, path, element, action, before):
        element.click()

    do_hide = do_show

    def do_set(self, path, element, action, before):
        element.click()
        self.put(path, self.takes(path))
        self.go_on(path)

    do_replace = do_give = do_set

    def do_null(self, path, element, action, before):
        element.click()
        self.put(path, None)

    def do_item(self, path, element, action, before):
        element.click()
        before.append(self.takes((*path, len(before))))
        self.go_on((*path, len(before) - 1))

    def do_member(self, path, element, action, before):
        name = self.chance.choice([*MEMBER_NAMES, f"m{self.chance.randrange(99)}"])
        element.fill(name)
        element.press("Enter")
        if name not in before:
            self.put((*path, name), self.takes((*path, name)))
            self.go_on((*path, name))

    def do_kind(self, path, element, action, before):
        element.select_option(value=self.chance.choice(action["options"]))
        value = at(self.shown(), path)
        if shown_text(value) != shown_text(before):
            self.put(path, self.takes(path))

    def changed(self, value):
        """A value with one place changed, as somebody would who edits its JSON. What is new looks like nothing else."""
        value = copied(value)
        found = [path for path, item in places(value) if path and (not isinstance(item, dict | list) or isinstance(at(value, path[:-1]), list))]
        if not found:
            return {f"n{self.chance.randrange(1 << 32):x}": self.fresh()} if isinstance(value, dict) else [self.fresh()] if isinstance(value, list) else self.fresh()
        path = self.chance.choice(found)
        holder, item = at(value, path[:-1]), at(value, path)
        if isinstance(item, dict | list) and self.chance.random() < 0.6 or isinstance(holder, list) and self.chance.random() < 0.2:
            # Somebody moves an element in the text. Those that look alike are the same there.
            rest = [one for place, one in enumerate(holder) if place != path[-1]]
            if shown_text(item) not in map(shown_text, rest):
                rest.insert(self.chance.randrange(len(rest) + 1), item)
                holder[:] = rest
        elif isinstance(item, dict | list) or self.chance.random() < 0.2:
            if not isinstance(holder, list) or sum(shown_text(one) == shown_text(item) for one in holder) == 1:
                del holder[path[-1]]
        elif isinstance(item, bool):
            holder[path[-1]] = not item
        else:
            holder[path[-1]] = self.number() if isinstance(item, Number) else self.fresh()
        return value

    def type_json(self):
        self.did.append("JSON")
        self.model = {"n": self.fresh()} if isinstance(self.model, Secret) else self.changed(self.model)
        field = self.page.locator(".editor").get_by_role("textbox", name="Data of the config as JSON")
        field.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(shown_text(self.model))
        self.page.keyboard.press("Escape")
        self.compare()
        return "JSON"

    def save(self):
        """Saves; the reason why it was refused, or None when it is done."""
        button = self.page.get_by_role("button", name="Save", exact=True)
        if button.is_disabled():
            expect(self.page.locator(".state")).to_have_text(UNCHANGED)
            return UNCHANGED
        before = len(self.blind.saved)
        button.click()
        # What the console itself does not send, because a secret value would go to another element.
        kept_back = self.form.get_by_text(STRAYED).first
        until = time.monotonic() + PATIENCE_MS / 1000
        while len(self.blind.saved) == before:
            assert time.monotonic() < until, f"{self}: nothing came of the save"
            if kept_back.is_visible():
                return STRAYED
            self.page.wait_for_timeout(5)
        response = self.blind.saved[before]
        sent = shown_text(parsed(response.request.post_data)["data"])
        assert sent == shown_text(self.model), f"{self}: sent was {sent}"
        if response.status == 200:
            expect(self.page.get_by_role("heading", name=self.config, exact=True)).to_be_visible()
            return None
        assert response.status == 422, f"{self}: {response.status} {response.text()}"
        reason = response.json()["errors"][0]["msg"]
        expect(self.page.get_by_role("alert").filter(has_text=reason).first).to_be_visible()
        return reason


def copied(value):
    """A copy, with the same secrets in it."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


class Blind:
    """Somebody at the console of a node, with a key that may not see secret values."""

    def __init__(self, c, key):
        self.c, self.key, self.origin, self.saved, self.failures = c, key, c.origin, [], []
        # Words that look like secrets and were typed where everybody may see them.
        self.visible = set()
        self.context = c.browser.new_context(viewport={"width": 1380, "height": 860}, reduced_motion="reduce")
        self.context.add_init_script(LISTEN)
        if c.options.files:
            self.context.route("**/ui/**", c.from_directory)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.page.on("pageerror", lambda error: self.failures.append(f"{error} {error.stack}"))
        self.page.on("response", lambda response: self.saved.append(response) if response.request.method == "PUT" and "dry_run" not in response.url else None)
        self.page.goto(f"{self.origin}/ui/")
        self.page.get_by_label("Access key").fill(key)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("heading", name="Definitions", exact=True)).to_be_visible()

    def search(self, what, typed=""):
        """No secret value is anywhere but those that somebody just typed, and those are on the page only."""
        heard, stored = self.page.evaluate(HEARD), "\n".join(self.page.evaluate(STORED))
        for place, text, allowed in (("page", self.page.evaluate(WHOLE), typed), ("answers", heard, ""), ("storage", stored, "")):
            found = [word for word in SECRETS.findall(text) if word not in self.visible and word not in allowed]
            assert not found, f"{what}: {found} in the {place}"
        assert not self.failures, f"{what}: {self.failures}"


def check_secret_edits(c):
    """Random edits by a key that sees no secret values move, lose and show none."""
    edits, seed = int(os.environ.get("EDITS", EDITS)), int(os.environ.get("SEED", "7"))
    status, answer = c.cluster.call(1, "POST", "/api_key/", {"name": "blind", "grants": [{"verbs": ["read", "write"], "definitions": ["blind-*"]}]})
    assert status == 201, answer
    made = json.loads(answer)["data"]
    wait_for(lambda: c.cluster.call(c.node, "GET", "/whoami", None, [("Authorization", f"Bearer {made['api_key']}")])[0] == 200, "the key")
    blind = Blind(c, made["api_key"])
    results, acts, began = Counter(), Counter(), time.monotonic()
    for first in range(0, edits, EDITS_OF_A_SCHEMA):
        schema = SecretSchemas(random.Random(f"{seed}/{first}")).whole()
        with definition(c, f"blind-{first}", schema):
            for number in range(first, min(first + EDITS_OF_A_SCHEMA, edits)):
                try:
                    edit_once(blind, f"blind-{first}", f"c{number}", schema, random.Random(f"{seed}/{first}/{number}"), results, acts)
                except Exception:
                    print(f"  edit {number} of seed {seed}, schema {json.dumps(schema)}")
                    raise
    blind.context.close()
    assert c.cluster.call(1, "DELETE", f"/api_key/{made['key_id']}")[0] == 200
    refused = edits - results["done"]
    print(f"  {edits} edits of seed {seed}: {results['done']} done, {refused} refused {dict(results)}, by kind {dict(acts)}, {time.monotonic() - began:.0f} s")
    assert results["done"] > refused, results


def edit_once(blind, name, config, schema, chance, results, acts):
    c, path = blind.c, f"/config_definition/{name}/config/{config}"
    body = f'{{"data": {stored_text(SecretSchemas(chance).document(schema))}}}'
    status, answer = c.cluster.call(1, "PUT", f"{path}?upsert=true", body.encode())
    assert status in (200, 201), (body, answer)
    before = stored(c, path)
    editing = Editing(blind, (name, config), schema, before, chance)
    editing.open()
    for _ in range(chance.choice([1, 1, 1, 2, 3, TURNS_MAX])):
        acts[editing.turn()] += 1
    reason = editing.save()
    after = stored(c, path)
    if reason is None:
        assert stored_text(after) == stored_text(editing.model), f"{editing}\nbefore {stored_text(before)}\nnow    {stored_text(after)}\nwanted {stored_text(editing.model)}"
        blind.search(f"{editing}, saved")
    else:
        assert stored_text(after) == stored_text(before), f"{editing}: {reason}, but\n{stored_text(before)} is\n{stored_text(after)}"
    results["done" if reason is None else kind_of(c, path, editing, reason)] += 1
    if chance.random() < 0.1:
        look_elsewhere(blind, name, config, chance)


def stored(c, path):
    status, text = c.cluster.call(1, "GET", path)
    assert status == 200, text
    return parsed(text)["data"]["data"]


def kind_of(c, path, editing, reason):
    """Why a save was refused: for a reason that it has to have."""
    place = f"{editing}: refused: {reason}"
    wanted = stored_text(editing.model)
    if reason == UNCHANGED:
        assert shown_text(editing.model) == editing.begin, place
        return "nothing changed"
    if reason == STRAYED:
        # What the node would have made of it.
        header = [("Authorization", f"Bearer {editing.blind.key}")]
        status, _ = c.cluster.call(1, "PUT", path, f'{{"data": {shown_text(editing.model)}}}'.encode(), header)
        # Where the values are the same, nobody is harmed who is told so, and the key can't know.
        return "another element's, the same" if status == 200 and stored_text(stored(c, path)) == wanted else "another element's"
    status, answer = c.cluster.call(1, "PUT", f"{path}?dry_run=true", f'{{"data": {wanted}}}'.encode())
    if status == 422:
        return "breaks the schema"
    if "which secret value to keep" in reason:
        return "unclear"
    if "this field is not secret" in reason:
        # An element of a tuple has gone to a place with another schema.
        assert any(isinstance(item, Secret) and not isinstance(there, Secret) for item, there in ends(editing)), place
        return "moved out of a secret place"
    assert "shown to you as `null`" in reason and any(item is None and isinstance(there, Secret) for item, there in ends(editing)), f"{place}; the root key: {status} {answer}"
    return "null at a secret place"


def ends(editing):
    """Each value of the model beside what its place is by the schema."""
    there = dict(places(with_secrets(editing.schema, parsed(stored_text(editing.model)))))
    return [(item, there.get(path)) for path, item in places(editing.model)]


def look_elsewhere(blind, name, config, chance):
    for place, heading in chance.sample([(f"d/{name}", name), (f"d/{name}/c/{config}", config), (f"d/{name}/c/{config}/history", config), ("watch", "Changes")], 2):
        blind.page.goto(f"{blind.origin}/ui/#/{place}")
        expect(blind.page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        expect(blind.page.locator(".loading")).to_have_count(0)
        blind.search(place)
