"""Rollouts: proposed with stages, begun, followed, steered and taken back at the pages of two persons. Used by scripts/console-test.py."""

import json
import re

from playwright.sync_api import expect

from browser import shortcut, wait_for
from forms import definition
from reviews import PLAIN, Person, data, edit_json, press, put, restricted, state

# What readers say is read every two seconds.
HEARD_MS_MAX = 10_000
OUTPUT = "error: no such region\nexit status 1"


def report(c, change, reader, word, detail="", **labels):
    """What a reader says of the candidate."""
    body = {"reader": reader, "labels": labels, "state": word, "detail": detail}
    status, answer = c.cluster.call(1, "POST", f"/change_request/{change}/report", body)
    assert status == 200, answer
    return json.loads(answer)["data"]


def released(person, other, title, rollout, *operations):
    """A change request that is approved and whose rollout has begun."""
    status, answer = person.call("POST", "/change_request/", {"title": title, "rollout": rollout, "operations": list(operations)})
    assert status == 201, answer
    change = answer["data"]
    other.does(change["change_id"], "approve", digest=change["digest"])
    assert person.does(change["change_id"], "apply", digest=change["digest"])["phase"] == "rolling"
    return change["change_id"]


def stage(page, name):
    return page.get_by_role("list", name="Stages").get_by_role("listitem").filter(has_text=name)


def fill_stages(dialog):
    """Two stages, the first one for the readers of a ring; what is wrong is said, and can't be sent."""
    dialog.get_by_label("Release").select_option("own")
    first = dialog.get_by_role("group", name="Stage 1")
    first.get_by_label("Share, %").fill("0")
    expect(dialog).to_contain_text("Stage 1: a share is 0.01 to 100 percent")
    expect(dialog.get_by_role("button", name="Propose it")).to_be_disabled()
    first.get_by_label("Share, %").fill("")
    first.get_by_label("Labels").fill("ring=canary, ring=beta")
    first.get_by_label("Minutes").fill("60")
    first.get_by_label("Healthy").fill("2")
    second = dialog.get_by_role("group", name="Stage 2")
    second.get_by_label("Share, %").fill("12.5")
    second.get_by_label("Minutes").fill("0.5")
    dialog.get_by_role("button", name="Add a stage").click()
    dialog.get_by_role("button", name="Remove stage 3").click()
    dialog.get_by_label("Readers that may fail").fill("1")


def check_rollout(c):
    """Somebody proposes stages and begins them; a failure shows up by itself; who may, pauses, goes on and takes it back."""
    with definition(c, "prod.limits", PLAIN, [("a", {"n": 1}), ("b", {"n": 1})]), restricted(c) as (ann, bob):
        page = ann.open("d/prod.limits/c/a", "a")
        shortcut(page, "e")
        edit_json(page, '{"n": 2}')
        page.get_by_label("Reason", exact=True).fill("more for a")
        page.get_by_role("button", name="Propose…").click()
        dialog = page.get_by_role("dialog")
        fill_stages(dialog)
        c.look("propose-stages", page, narrow=True)
        dialog.get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="more for a", exact=True)).to_be_visible()
        change = page.url.split("/")[-1]
        sent = ann.call("GET", f"/change_request/{change}")[1]["data"]
        assert sent["rollout"] == {
            "stages": [{"labels": {"ring": ["canary", "beta"]}, "share": 100, "for_s": 3600, "min_healthy": 2}, {"labels": {}, "share": 12.5, "for_s": 30, "min_healthy": 0}],
            "max_failed": 1, "gates": [], "on_fail": "abort", "timeout_s": 3600, "status": None}, sent
        expect(stage(page, "Stage 1")).to_contain_text("all readers with ring canary or beta")
        expect(stage(page, "Stage 2")).to_contain_text("to come")
        expect(page.get_by_role("region", name="Rollout")).to_contain_text("begins when it is applied")
        c.look("review-stages", page, narrow=True)
        bob.does(change, "approve", digest=sent["digest"])
        press(page, "Begin the rollout…", "Begin it")
        state(page, "rolling, stage 1 of 2")
        expect(stage(page, "Stage 1")).to_have_attribute("aria-current", "step")
        expect(page.get_by_role("button", name="Edit…")).to_have_count(0)
        expect(page.get_by_role("region", name="What it would change")).to_be_visible()

        # What readers say comes by itself.
        assert report(c, change, "host-1", "failed", OUTPUT, ring="canary")["counted"], "it is in the stage"
        report(c, change, "host-2", "healthy", ring="beta")
        failures = page.get_by_role("region", name="Failures")
        expect(failures).to_contain_text("host-1", timeout=HEARD_MS_MAX)
        expect(failures).to_contain_text("ring=canary")
        expect(failures.get_by_role("region", name="What host-1 says")).to_have_text(OUTPUT)
        expect(stage(page, "Stage 1")).to_contain_text("1 of the 2 needed run well, 1 failed (at most 1 may)")
        expect(page.get_by_role("region", name="Rollout")).to_contain_text("1 more reader that runs well")
        c.look("review-rolling", page, narrow=True)
        steered(c, page, bob, change)
        config_pages(c, page, ann, bob, change)

        # The stage ends by hand; then it is taken back.
        page = ann.open(f"reviews/{change}", "more for a")
        press(page, "Next stage…", "End the stage")
        state(page, "rolling, stage 2 of 2")
        expect(stage(page, "Stage 1")).to_contain_text("by ann@example.com")
        page.get_by_role("button", name="Take back…").click()
        page.get_by_role("dialog").get_by_label("Why").fill("it was this")
        c.look("review-take-back", page)
        page.get_by_role("dialog").get_by_role("button", name="Take it back", exact=True).click()
        state(page, "withdrawn")
        expect(page.get_by_text("it was this")).to_be_visible()
        expect(page.get_by_role("region", name="Rollout")).to_have_count(0)
        assert data(c, "a") == {"n": 1}


def steered(c, page, bob, change):
    """Paused by one, seen by the other, in the lists; what has happened meanwhile is said, and the page shows it."""
    other = bob.open(f"reviews/{change}", "more for a")
    other.get_by_role("button", name="Pause…").click()
    other.get_by_role("dialog").get_by_label("Why").fill("errors rise")
    other.get_by_role("dialog").get_by_role("button", name="Pause it").click()
    state(other, "rollout paused, stage 1 of 2")
    for one in (other, page):
        expect(one.get_by_role("region", name="Rollout")).to_contain_text("by bob@example.com: errors rise")
    expect(page.get_by_role("region", name="Rollout")).to_contain_text("somebody who resumes it or takes it back")
    c.look("review-paused", page, narrow=True)
    other.goto(f"{c.origin}/ui/#/reviews")
    region = other.get_by_role("region", name="Paused rollouts, for you to decide")
    expect(region.get_by_role("row").filter(has_text="more for a")).to_contain_text("resume it, or take it back")
    other.get_by_role("link", name="Open", exact=True).click()
    for name in ("rolling", "paused"):
        other.get_by_label("State").select_option(name)
        expect(other.get_by_role("row").filter(has_text="more for a")).to_contain_text("rollout paused, stage 1 of 2")
    c.look("reviews-rolling", other, narrow=True)
    other.get_by_label("State").select_option("approval")
    expect(other.get_by_role("row").filter(has_text="more for a")).to_have_count(0)
    # Two persons resume it: the second one is told, and sees that it goes on.
    page.get_by_role("button", name="Resume…").click()
    dialog = page.get_by_role("dialog")
    bob.does(change, "resume")
    dialog.get_by_role("button", name="Resume it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The rollout is at another stage")
    state(page, "rolling, stage 1 of 2")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Pause…")).to_be_visible()


def config_pages(c, page, ann, bob, change):
    """A config says that a rollout has it, and so does what is refused because of that."""
    # The rollout is looked at for each config of its definitions.
    with page.expect_response(re.compile(f"/change_request/{change}$")):
        ann.open("d/prod.limits/c/b", "b")
    expect(page.get_by_role("region", name="Fields")).to_be_visible()
    expect(page.get_by_text("A rollout has this config")).to_have_count(0)
    ann.open("d/prod.limits/c/a", "a")
    expect(page.get_by_text("A rollout has this config")).to_be_visible()
    c.look("config-rolling", page, narrow=True)
    page.get_by_role("link", name="more for a").click()
    expect(page.get_by_role("heading", name="more for a", exact=True)).to_be_visible()
    second = ann.propose("another one", put("a", {"n": 5}))
    bob.does(second["change_id"], "approve", digest=second["digest"])
    ann.open(f"reviews/{second['change_id']}", "another one")
    press(page, "Apply…", "Apply")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("A rollout has it.")
    dialog.get_by_role("link", name="Show the rollout").click()
    expect(page.get_by_role("heading", name="more for a", exact=True)).to_be_visible()
    ann.does(second["change_id"], "withdraw")


def check_readers(c):
    """The page of a config lists which programs reject it."""
    with definition(c, "prod.limits", PLAIN, [("b", {"n": 1})]):
        body = {"reader": "host-9", "labels": {"ring": "canary"}, "instance": "one", "revision": 1 << 53, "state": "failed", "detail": "n is too small"}
        status, answer = c.cluster.call(1, "POST", "/config_definition/prod.limits/config/b/report", body)
        assert status == 200 and json.loads(answer)["data"]["counted"], answer
        c.open("d/prod.limits/c/b", "b")
        readers = c.page.get_by_role("region", name="Readers", exact=True)
        expect(readers).to_contain_text("1 failed and 0 healthy by their reports of the last minute")
        row = readers.get_by_role("row").filter(has_text="host-9")
        for text in ("ring=canary", "failed", "n is too small"):
            expect(row).to_contain_text(text)
        c.look("config-readers", narrow=True)


def check_rollout_ends(c):
    """The cluster takes one back when readers fail, and applies another one; gates are shown, and a new edition keeps its stages."""
    with definition(c, "prod.limits", PLAIN, [("a", {"n": 1})]), restricted(c) as (ann, bob):
        cy = Person(c, "cy", verbs=["read"])
        change = released(ann, bob, "too much", "canary", put("a", {"n": 1000}))
        watching = cy.open(f"reviews/{change}", "too much")
        state(watching, "rolling, stage 1 of 1")
        expect(stage(watching, "Stage 1")).to_contain_text("10 % of the readers")
        for name in ("Pause…", "Next stage…", "Take back…"):
            expect(watching.get_by_role("button", name=name)).to_have_count(0)
        # One of ten readers is in it.
        assert any(report(c, change, f"host-{n}", "failed", "boom")["counted"] for n in range(200))
        state(watching, "failed: its rollout was taken back")
        assert data(c, "a") == {"n": 1}
        page = ann.open("reviews?view=all&state=back", "Reviews")
        expect(page.get_by_role("row").filter(has_text="too much")).to_contain_text("failed: its rollout was taken back")

        plan = {"stages": [{"share": 50, "for_s": 0}], "gates": [{"name": "errors", "fresh_s": 3600}], "on_fail": "pause", "timeout_s": 600}
        status, answer = ann.call("POST", "/change_request/", {"title": "by a gate", "rollout": plan, "operations": [put("a", {"n": 2})]})
        assert status == 201, answer
        change, kept = answer["data"]["change_id"], answer["data"]["rollout"]
        page = ann.open(f"reviews/{change}/edit", "Edit the change request")
        expect(page.get_by_label("Gates")).to_have_value("errors=3600")
        expect(page.get_by_label("Pause if a stage is late")).to_have_value("10")
        page.get_by_label("Title").fill("by one gate")
        page.get_by_role("button", name="Send edition 2…").click()
        page.get_by_role("dialog").get_by_role("button", name="Send it").click()
        expect(page.get_by_role("heading", name="by one gate", exact=True)).to_be_visible()
        assert ann.call("GET", f"/change_request/{change}")[1]["data"]["rollout"] == kept, "it is released as before"
        page = ann.open(f"reviews/{change}/edit", "Edit the change request")
        page.get_by_role("group", name="Stage 1").get_by_label("Share, %").fill("25")
        page.get_by_label("Gates").fill("errors")
        expect(page.get_by_text("Gates: names with seconds are expected")).to_be_visible()
        page.get_by_label("Gates").fill("errors=1800")
        page.get_by_label("Pause if a stage is late").fill("20")
        c.look("edit-request-stages", page, narrow=True)
        page.get_by_role("button", name="Send edition 3…").click()
        page.get_by_role("dialog").get_by_role("button", name="Send it").click()
        expect(stage(page, "Stage 1")).to_contain_text("25 % of the readers")
        now = ann.call("GET", f"/change_request/{change}")[1]["data"]
        gates = [{"name": "errors", "fresh_s": 1800}]
        assert now["rollout"] == {**kept, "stages": [{**kept["stages"][0], "share": 25}], "gates": gates, "timeout_s": 1200}, now

        bob.does(change, "approve", digest=now["digest"])
        ann.does(change, "apply", digest=now["digest"])
        gates = page.get_by_role("region", name="Gates")
        expect(gates).to_contain_text("has said nothing for 30 minutes", timeout=HEARD_MS_MAX)
        expect(page.get_by_role("region", name="Rollout")).to_contain_text("the gate errors to say that all is well")
        gate(c, False, "3 % of requests")
        expect(gates).to_contain_text("says that something is wrong", timeout=HEARD_MS_MAX)
        expect(gates).to_contain_text("3 % of requests")
        state(page, "rollout paused, stage 1 of 1")
        expect(page.get_by_role("region", name="Rollout")).to_contain_text("by the cluster")
        c.look("review-gate", page, narrow=True)
        gate(c, True, "0.1 % of requests")
        press(page, "Resume…", "Resume it")
        state(page, re.compile("applied as revision"))
        assert data(c, "a") == {"n": 2}
        wait_for(lambda: c.cluster.data(c.node, "/change_request/?phase=rolling")["results"] == [], "the end of it")
        cy.end()


def gate(c, is_ok, evidence):
    status, answer = c.cluster.call(1, "POST", "/gate/errors", {"ok": is_ok, "evidence": evidence})
    assert status == 200, answer
