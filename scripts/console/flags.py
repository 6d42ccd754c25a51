"""Feature flags: made, switched, ruled by a form and tried; proposed where an environment takes change requests only. Used by scripts/console-test.py."""

import json

from playwright.sync_api import expect

from browser import shortcut
from forms import definition
from reviews import restricted

SCHEMA = {"if": {"required": ["$evaluators"]}, "then": {}, "else": {"required": ["state", "variants"], "properties": {"state": {"enum": ["ENABLED", "DISABLED"]}}}}
OFF = {"state": "ENABLED", "variants": {"on": True, "off": False}, "defaultVariant": "off"}
# Numbers that no browser can hold, a member that the form does not know, and a rule that it can't show.
LIMIT = '{"state":"ENABLED","variants":{"low":1.50,"high":12345678901234567890123},"defaultVariant":"low","owner":7.0,"targeting":{"$ref":"beta-users"}}'
SHARED = {"$evaluators": {"beta-users": {"if": [{"in": [{"var": "email"}, ["ada@example.com"]]}, "high", None]}}}
KEYS = 40


def text_of(c, name, key):
    status, body = c.cluster.call(1, "GET", f"/config_definition/{name}/config/{key}")
    assert status == 200, body
    return body


def flag(c, name, key):
    return json.loads(text_of(c, name, key))["data"]["data"]


def evaluated(c, name, key, context):
    status, body = c.cluster.call(1, "POST", f"/flags/{name}/ofrep/v1/evaluate/flags/{key}", {"context": context})
    assert status == 200, body
    return json.loads(body)


def row(page, region, name):
    rows = page.get_by_role("region", name=region, exact=True).get_by_role("row")
    return rows.filter(has=page.get_by_role("rowheader", name=name, exact=True))


def pressed(page, group, name):
    expect(page.get_by_role("group", name=group, exact=True).get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")


def look(c, name, page=None):
    """From the top: what the frame of the page covers in part is no fault of the page."""
    (page or c.page).evaluate("scrollTo(0, 0)")
    c.look(name, page, narrow=True)


def ask(page, group, name):
    """Presses a switch, and returns the dialog that asks first."""
    page.get_by_role("group", name=group, exact=True).get_by_role("button", name=name, exact=True).click()
    return page.get_by_role("dialog")


def check_flags(c):
    """A flag is made in two environments, switched in one, and its rule is a form that reads back what it wrote."""
    with definition(c, "staging.flags", SCHEMA), definition(c, "prod.flags", SCHEMA, [("limit", LIMIT), ("shared~", SHARED)]):
        c.open("", "Definitions")
        c.page.keyboard.press("g")
        c.page.keyboard.press("f")
        expect(c.heading("Flags")).to_be_visible()
        cells = row(c.page, "Flags", "limit").get_by_role("cell")
        expect(cells.nth(0)).to_have_text("limit in prod: low rule")
        expect(cells.nth(1)).to_have_text("–")
        expect(c.page.get_by_role("rowheader")).to_have_count(1)
        shortcut(c.page, "n")
        dialog = c.page.get_by_role("dialog")
        dialog.get_by_label("Key").fill("beta")
        dialog.get_by_label("Reason").fill("launch")
        look(c, "flag-new")
        dialog.get_by_role("button", name="Create it").click()
        c.said("The flag beta is created")
        expect(c.heading("beta")).to_be_visible()
        assert flag(c, "staging.flags", "beta") == flag(c, "prod.flags", "beta") == OFF
        pressed(c.page, "beta in prod", "Off")
        look(c, "flag")

        dialog = ask(c.page, "beta in staging", "On")
        expect(dialog).to_contain_text("Everybody gets on")
        dialog.get_by_label("Reason").fill("try it")
        dialog.get_by_role("button", name="Turn it on").click()
        c.said("beta is on in staging")
        pressed(c.page, "beta in staging", "On")
        pressed(c.page, "beta in prod", "Off")
        assert flag(c, "staging.flags", "beta") == {**OFF, "defaultVariant": "on"} and flag(c, "prod.flags", "beta") == OFF
        history = c.cluster.data(1, "/config_definition/staging.flags/config/beta/history")["results"]
        assert [entry["reason"] for entry in history] == ["try it", "launch"], history

        # A rule, by the form. What is missing is not saved.
        form = c.page.get_by_role("region", name="Form", exact=True)
        form.get_by_role("button", name="Add a condition").click()
        expect(form.get_by_role("button", name="Save")).to_be_disabled()
        condition = form.get_by_role("group", name="Condition 1", exact=True)
        condition.get_by_label("Attribute").fill("country")
        condition.get_by_label("Operator").select_option("is one of")
        condition.get_by_label("Value").fill('de, 7.0, "7"')
        expect(condition.get_by_label("Variant")).to_have_value("on")
        form.get_by_label("Everybody else gets").select_option("a variant by percentage")
        slider = form.get_by_role("slider", name="Percentage that gets on")
        expect(slider).to_have_value("10")
        slider.fill("30")
        expect(form.get_by_role("group", name="Share 2")).to_contain_text("70 %")
        form.get_by_label("Reason").fill("30 % of all others")
        look(c, "flag-rule")
        form.get_by_role("button", name="Save").click()
        c.said("beta is saved in prod")
        expect(form.get_by_role("button", name="Save")).to_be_disabled()
        rule = '"targeting":{"if":[{"in":[{"var":"country"},["de",7.0,"7"]]},"on",{"fractional":[["on",30],["off",70]]}]}'
        assert rule in text_of(c, "prod.flags", "beta"), text_of(c, "prod.flags", "beta")
        c.page.reload()
        expect(condition.get_by_label("Attribute")).to_have_value("country")
        expect(condition.get_by_label("Value")).to_have_value('de, 7.0, "7"')
        expect(slider).to_have_value("30")
        expect(form.get_by_role("button", name="Save")).to_be_disabled()
        expect(row(c.page, "Environments of the flag", "prod")).to_contain_text("rule")

        try_it(c)
        switch_with_rule(c, form)
        edit_conflict(c, form)
        unseen_rule(c, form)


def try_it(c):
    """One user, and many: the results are those of the API."""
    tester = c.page.get_by_role("region", name="Try it", exact=True)
    tester.get_by_label("Targeting key").fill("ada")
    tester.get_by_role("button", name="Add an attribute").click()
    expect(tester.get_by_role("button", name="Evaluate", exact=True)).to_be_disabled()
    attribute = tester.get_by_role("group", name="Attribute 1")
    attribute.get_by_label("Name").fill("country")
    attribute.get_by_label("Value").fill("de")
    tester.get_by_role("button", name="Evaluate", exact=True).click()
    for name, expected in (("prod", "on true TARGETING_MATCH"), ("staging", "on true STATIC")):
        cells = row(c.page, "What is served", name).get_by_role("cell")
        found = " ".join(cells.nth(place).inner_text().split()[0] for place in range(3))
        assert found == expected, (name, found)
    tester.get_by_role("button", name="Remove attribute 1").click()
    tester.get_by_label("Keys").fill(str(KEYS))
    tester.get_by_role("button", name="Who gets what").click()
    counted = sum(evaluated(c, "prod.flags", "beta", {"targetingKey": f"user-{n + 1}"})["value"] for n in range(KEYS))
    assert 2 < counted < KEYS - 2, counted
    cells = row(c.page, "Who gets what", "on").get_by_role("cell")
    expect(cells.nth(0)).to_have_text(f"{counted} {round(counted * 100 / KEYS)} %")
    expect(cells.nth(1)).to_have_text(f"{KEYS} 100 %")
    look(c, "flag-tried")


def switch_with_rule(c, form):
    """A rule decides before the default variant: so the person chooses what becomes of it."""
    dialog = ask(c.page, "beta in prod", "On")
    dialog.get_by_role("button", name="Turn it on").click()
    expect(dialog).to_be_visible()
    dialog.get_by_label("Keep the rule").check()
    look(c, "flag-switch")
    dialog.get_by_role("button", name="Turn it on").click()
    c.said("beta is on in prod")
    found = flag(c, "prod.flags", "beta")
    assert found["defaultVariant"] == "on" and "targeting" in found, found
    dialog = ask(c.page, "beta in prod", "Off")
    dialog.get_by_label("Remove the rule").check()
    dialog.get_by_role("button", name="Turn it off").click()
    c.said("beta is off in prod")
    assert flag(c, "prod.flags", "beta") == OFF
    expect(form).to_contain_text("There is no condition")


def edit_conflict(c, form):
    """Nothing is overwritten unseen, and somebody who edits is told."""
    form.get_by_label("State").select_option("disabled")
    status, body = c.cluster.call(1, "PUT", "/config_definition/prod.flags/config/beta", {"data": {**OFF, "owner": "shop"}})
    assert status == 200, body
    alert = form.get_by_role("alert")
    expect(alert).to_contain_text("was changed while you edit")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("button", name="Save")).to_be_enabled()
    assert flag(c, "prod.flags", "beta") == {**OFF, "owner": "shop"}
    look(c, "flag-changed")
    form.get_by_role("button", name="Show it as it is now").click()
    expect(form.get_by_label("State")).to_have_value("ENABLED")
    expect(alert).to_have_count(0)
    form.get_by_label("State").select_option("disabled")
    form.get_by_role("button", name="Save").click()
    c.said("beta is saved in prod")
    assert flag(c, "prod.flags", "beta") == {**OFF, "owner": "shop", "state": "DISABLED"}


def unseen_rule(c, form):
    """A rule that the form can't show is shown as JSON, and stays as it is with all else."""
    c.open("flags/prod.flags/limit", "limit")
    expect(form).to_contain_text("The form can't show this rule")
    expect(form.get_by_label("JSON of the rule")).to_contain_text("beta-users")
    expect(form.get_by_label("Value of high")).to_have_value("12345678901234567890123")
    form.get_by_label("Value of low").fill("2.50")
    form.get_by_label("Name of a new variant").fill("none")
    form.get_by_role("button", name="Add a variant").click()
    form.get_by_label("Value of none").fill("[1, ")
    expect(form.get_by_role("button", name="Save")).to_be_disabled()
    form.get_by_label("Value of none").fill('["7", 7.0]')
    look(c, "flag-json")
    form.get_by_role("button", name="Save").click()
    c.said("limit is saved in prod")
    expected = LIMIT.replace("1.50", "2.50").replace("123}", '123,"none":["7",7.0]}')
    assert f'"data":{expected}' in text_of(c, "prod.flags", "limit"), text_of(c, "prod.flags", "limit")
    c.page.get_by_role("link", name="edit it as JSON").click()
    expect(c.heading("Edit limit")).to_be_visible()
    c.open("flags", "Flags")
    expect(row(c.page, "Flags", "beta").get_by_role("cell").nth(0)).to_have_text("beta in prod: disabled")
    look(c, "flags")
    c.page.get_by_label("Search flags by key").fill("lim")
    expect(c.page.get_by_role("rowheader")).to_have_count(1)


def check_flags_secret(c):
    """A flag with a secret value is no form: its JSON has dots until somebody asks."""
    schema = {"properties": {"variants": {"additionalProperties": {"x-concord-secret": True}}}}
    with definition(c, "prod.flags", schema, [("token", {**OFF, "variants": {"a": "hunter2"}, "defaultVariant": "a"})]):
        c.open("flags/prod.flags/token", "token")
        form = c.page.get_by_role("region", name="Form", exact=True)
        expect(form).to_contain_text("The flag has secret values")
        expect(form.get_by_role("textbox")).to_have_count(0)
        assert "hunter2" not in c.page.content()
        look(c, "flag-secret")


def check_flags_restricted(c):
    """In a restricted environment a switch and a form propose, and nothing changes before it is applied."""
    with definition(c, "prod.flags", SCHEMA, [("beta", OFF)]), restricted(c) as (ann, bob):
        page = ann.open("flags/prod.flags/beta", "beta")
        form = page.get_by_role("region", name="Form", exact=True)
        expect(form.get_by_role("button", name="Propose…")).to_be_disabled()
        expect(form.get_by_role("button", name="Save")).to_have_count(0)
        form.get_by_label("Everybody gets").select_option("a variant by percentage")
        form.get_by_role("button", name="Propose…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Title")).to_have_value("change the flag beta")
        dialog.get_by_role("button", name="Cancel").click()
        form.get_by_role("button", name="Discard").click()
        dialog = ask(page, "beta in prod", "On")
        dialog.get_by_label("Reason").fill("launch")
        dialog.get_by_role("button", name="Propose…").click()
        expect(dialog.get_by_label("Title")).to_have_value("launch")
        look(c, "flag-propose", page)
        dialog.get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="launch", exact=True)).to_be_visible()
        assert flag(c, "prod.flags", "beta") == OFF
        change = page.url.split("/")[-1]
        read = ann.call("GET", f"/change_request/{change}")[1]["data"]
        bob.does(change, "approve", digest=read["digest"])
        ann.does(change, "apply", digest=read["digest"])
        assert flag(c, "prod.flags", "beta") == {**OFF, "defaultVariant": "on"}
        ann.open("flags/prod.flags/beta", "beta")
        pressed(page, "beta in prod", "On")
        # A new flag is proposed as well.
        ann.open("flags", "Flags")
        shortcut(page, "n")
        dialog.get_by_label("Key").fill("gamma")
        dialog.get_by_role("button", name="Propose…").click()
        dialog.get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="create the flag gamma", exact=True)).to_be_visible()
        ann.does(page.url.split("/")[-1], "withdraw")
