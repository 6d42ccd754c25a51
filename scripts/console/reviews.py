"""Change requests: proposed, reviewed and applied by two persons, each at a page of their own. Used by scripts/console-test.py."""

import contextlib
import json
import re
import time

from playwright.sync_api import expect

from browser import shortcut, wait_for
from forms import definition

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "password": {"type": "string", "x-concord-secret": True}}}
PLAIN = {"properties": {"n": {"type": "integer"}}}
VERBS = ["read", "write", "define", "delete", "approve", "bypass"]


class Person:
    """An access key that the root key made for a person, and so is attested; and a page of theirs."""

    def __init__(self, c, name, verbs=VERBS, definitions=("prod.*",)):
        self.c, self.name = c, name
        grants = [{"verbs": list(verbs), "definitions": list(definitions)}]
        status, body = c.cluster.call(1, "POST", "/api_key/", {"name": name, "person": f"{name}@example.com", "grants": grants})
        assert status == 201, body
        made = json.loads(body)["data"]
        self.id, self.key, self.page = made["key_id"], made["api_key"], None

    def call(self, method, path, body=None, headers=()):
        status, text = self.c.cluster.call(1, method, path, body, [("Authorization", self.key), *headers])
        return status, json.loads(text)

    def does(self, change, action, **body):
        status, answer = self.call("POST", f"/change_request/{change}/{action}", body)
        assert status == 200, answer
        return answer["data"]

    def propose(self, title, *operations):
        status, answer = self.call("POST", "/change_request/", {"title": title, "operations": list(operations)})
        assert status == 201, answer
        return answer["data"]

    def open(self, place, heading=None):
        if self.page is None:
            self.page = self.c.visitor()
            self.page.get_by_label("Access key").fill(self.key)
            self.page.keyboard.press("Enter")
            expect(self.page.get_by_role("heading", name="Definitions", exact=True)).to_be_visible()
        self.page.goto(f"{self.c.origin}/ui/#/{place}")
        if heading:
            expect(self.page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        return self.page

    def end(self):
        if self.page:
            self.page.close()
        assert self.c.cluster.call(1, "DELETE", f"/api_key/{self.id}")[0] in (200, 404), "it is revoked, by this or by the check"


@contextlib.contextmanager
def restricted(c, names=("ann", "bob"), **more):
    """An environment that takes change requests with one approval only, and its persons."""
    persons = [Person(c, name, **more) for name in names]
    status, body = c.cluster.call(1, "PUT", "/environment/prod", {"direct": "refuse", "approvals": 1, "freeze": []})
    assert status == 201, body
    yield persons
    ann, bob = persons[:2]
    change = ann.propose("the check is over", {"op": "delete_environment", "environment": "prod"})
    bob.does(change["change_id"], "approve", digest=change["digest"])
    ann.does(change["change_id"], "apply", digest=change["digest"])
    for person in persons:
        person.end()


def review_bypasses(person):
    """Nothing is left that waits for a review: other checks count what does."""
    for change in person.call("GET", "/change_request/?unreviewed=true")[1]["data"]["results"]:
        person.does(change["change_id"], "review", digest=change["digest"])


def put(key, data, **more):
    return {"op": "put_config", "config_definition_key": "prod.limits", "config_key": key, "data": data, **more}


def data(c, key):
    status, body = c.cluster.call(1, "GET", f"/config_definition/prod.limits/config/{key}")
    return json.loads(body)["data"]["data"] if status == 200 else None


def state(page, text):
    expect(page.locator(".title .state")).to_have_text(text)


def edit_json(page, text):
    page.locator(".editor").get_by_role("textbox", name="Data of the config as JSON").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def press(page, opener, button):
    """Opens a dialog and presses its button."""
    page.get_by_role("button", name=opener, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


def check_reviews(c):
    """One person proposes, another one sees it and approves it, a newer edition is not approved by mistake, and it is applied."""
    with definition(c, "prod.limits", SCHEMA, [("a", {"n": 1, "password": "old-secret"})]), restricted(c) as (ann, bob):
        page = ann.open("d/prod.limits/c/a", "a")
        expect(page.get_by_text("takes change requests only")).to_be_visible()
        shortcut(page, "e")
        expect(page.get_by_role("button", name="Propose…")).to_be_disabled()
        expect(page.get_by_role("button", name="Save", exact=True)).to_have_count(0)
        edit_json(page, '{"n": "x", "password": {"$concord-keep": true}}')
        state(page, "The node checks it when you propose it")
        c.look("edit-restricted", page)
        # What the node refuses is said in the dialog, and stands at its field afterwards.
        page.keyboard.press("Control+s")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Title").fill("more for a")
        dialog.get_by_label("Description").fill("ticket 4711")
        dialog.get_by_role("button", name="Propose it").click()
        expect(dialog.get_by_role("alert")).to_contain_text("integer")
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("region", name="Form").locator(".place.wrong")).to_contain_text("integer")
        edit_json(page, '{"n": 2, "password": {"$concord-keep": true}}')
        page.get_by_label("Reason", exact=True).fill("more for a")
        page.get_by_role("button", name="Propose…").click()
        expect(dialog.get_by_label("Title")).to_have_value("more for a")
        dialog.get_by_label("Description").fill("ticket 4711")
        c.look("propose", page, narrow=True)
        dialog.get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="more for a", exact=True)).to_be_visible()
        state(page, "waits for approval")
        expect(page.get_by_text("You can't approve it: nobody approves or reviews what they did themselves")).to_be_visible()
        expect(page.get_by_role("button", name="Approve…")).to_have_count(0)
        expect(page.get_by_role("button", name="Apply…")).to_be_disabled()
        change = page.url.split("/")[-1]
        assert data(c, "a") == {"n": 1, "password": "old-secret"}, "nothing is changed yet"

        other = bob.open("", "Definitions")
        expect(other.get_by_role("link", name="Reviews (1 to review)")).to_be_visible()
        other.keyboard.press("g")
        other.keyboard.press("r")
        row = other.get_by_role("row").filter(has_text="more for a")
        expect(row).to_contain_text("0 of 1")
        expect(row).to_contain_text("ann@example.com")
        c.look("reviews", other, narrow=True)
        row.get_by_role("link", name="more for a").click()
        part = other.get_by_role("region", name="prod.limits / a", exact=True)
        expect(part.get_by_role("row").filter(has_text="n")).to_contain_text("12")
        expect(part).to_contain_text("Your key may not see 1 value")
        expect(other.get_by_text("ticket 4711")).to_be_visible()
        assert "secret" not in other.content().replace("x-concord-secret", ""), "nothing of a secret value is shown"
        c.look("review", other, narrow=True)

        # A newer edition between the look and the press: the digest that was shown is refused.
        dialog = other.get_by_role("dialog")
        shortcut(other, "a")
        digest = ann.call("GET", f"/change_request/{change}")[1]["data"]["digest"]
        expect(dialog).to_contain_text(digest)
        c.look("review-approve", other)
        status, answer = ann.call("PUT", f"/change_request/{change}", {"title": "more for a", "description": "ticket 4711", "operations": [put("a", {"n": 3, "password": "new-secret"})]})
        assert status == 200, answer
        dialog.get_by_role("button", name="Approve", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("It has a newer edition")
        dialog.get_by_role("button", name="Cancel").click()
        expect(other.get_by_role("alert")).to_contain_text("It has a newer edition, 2")
        expect(other.get_by_role("button", name="Approve…")).to_be_disabled()
        expect(part.get_by_role("row").filter(has_text="n")).to_contain_text("12")
        other.get_by_role("button", name="Show the newer one").click()
        expect(part.get_by_role("row").filter(has_text="n")).to_contain_text("13")
        other.get_by_role("button", name="Approve…").click()
        dialog.get_by_label("What you say to it").fill("looks right")
        dialog.get_by_role("button", name="Approve", exact=True).click()
        state(other, "can be applied")
        votes = other.get_by_role("region", name="Votes")
        expect(votes).to_contain_text("1 of 1 approval")
        expect(votes.get_by_role("listitem")).to_contain_text(["bob@example.com approves it"])
        expect(votes.get_by_role("listitem")).to_contain_text(["saw no secret values"])
        expect(other.get_by_role("navigation", name="Pages").get_by_role("link", name="Reviews", exact=True)).to_be_visible()

        # The page of the other person follows by itself: it shows an edition that this person has not seen yet.
        expect(page.get_by_role("alert")).to_contain_text("It has a newer edition, 2")
        page.get_by_role("button", name="Show the newer one").click()
        state(page, "can be applied")
        c.look("review-approved", page)
        press(page, "Apply…", "Apply")
        state(page, re.compile("applied as revision"))
        assert data(c, "a") == {"n": 3, "password": "new-secret"}
        state(other, re.compile("applied as revision"))
        done = page.get_by_role("region", name="What it changed")
        expect(done.get_by_role("region", name="prod.limits / a", exact=True).get_by_role("row").nth(1)).to_have_text("n13")
        expect(done).to_contain_text("Your key may not see 1 value")
        assert "new-secret" not in page.content()
        c.look("review-applied", page, narrow=True)
        done.get_by_role("link", name=re.compile("^revision")).click()
        expect(page.get_by_role("row").filter(has_text="prod.limits / a")).to_be_visible()


def check_reviews_end(c):
    """Rejected, stale and rebased, withdrawn, and an approval that ends with its key: the page says what is missing."""
    with definition(c, "prod.limits", SCHEMA, [("a", {"n": 1}), ("b", {"n": 1})]), restricted(c, ("ann", "bob", "cy")) as (ann, bob, cy):
        rejected = ann.propose("too much", put("a", {"n": 1000}))
        page = bob.open(f"reviews/{rejected['change_id']}", "too much")
        page.get_by_role("button", name="Reject…").click()
        page.get_by_role("dialog").get_by_label("Why").fill("ask first")
        page.get_by_role("dialog").get_by_role("button", name="Reject", exact=True).click()
        state(page, "rejected")
        expect(page.get_by_role("region", name="Votes")).to_contain_text("ask first")
        expect(page.get_by_text("This edition is rejected")).to_be_visible()
        press(page, "Withdraw…", "Withdraw")
        state(page, "withdrawn")

        stale = ann.propose("stale soon", put("a", {"n": 5}))
        mine = ann.open(f"reviews/{stale['change_id']}", "stale soon")
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/a?bypass=true", {"data": {"n": 2}}, [("X-Change-Reason", "incident 4712")])
        assert status == 200, answer
        state(mine, "stale")
        expect(mine.get_by_role("region", name="prod.limits / a", exact=True)).to_contain_text("It was changed since")
        c.look("review-stale", mine, narrow=True)
        press(mine, "Rebase…", "Rebase")
        state(mine, "waits for approval")
        expect(mine.get_by_role("region", name="prod.limits / a", exact=True).get_by_role("row").filter(has_text="n")).to_contain_text("25")

        page = cy.open(f"reviews/{stale['change_id']}", "stale soon")
        press(page, "Approve…", "Approve")
        state(mine, "can be applied")
        assert c.cluster.call(1, "PATCH", f"/api_key/{cy.id}", {"grants": [{"verbs": ["read"], "definitions": ["prod.*"]}]})[0] == 200
        votes = mine.get_by_role("region", name="Votes")
        expect(votes).to_contain_text("only 0 of them count")
        state(mine, "waits for approval")
        assert c.cluster.call(1, "DELETE", f"/api_key/{cy.id}")[0] == 200
        expect(votes).to_contain_text("does not count: the key is revoked")
        expect(mine.get_by_text("1 approval of 1 is missing")).to_be_visible()
        c.look("review-uncounted", mine)
        expect(mine.get_by_role("button", name="Apply…")).to_be_disabled()

        # The lists: one's own, all with their states; a link to one.
        mine.get_by_role("link", name="Reviews").first.click()
        mine.get_by_role("link", name="Mine").click()
        expect(mine.get_by_role("row").filter(has_text="stale soon")).to_contain_text("waits for approval")
        expect(mine.get_by_role("row").filter(has_text="too much")).to_contain_text("withdrawn")
        mine.get_by_label("State").select_option("closed")
        expect(mine.get_by_role("row").filter(has_text="stale soon")).to_have_count(0)
        expect(mine.get_by_role("row").filter(has_text="too much")).to_be_visible()
        mine.get_by_role("button", name="Show all").click()
        mine.get_by_label("Title or id").fill("stale")
        mine.get_by_role("button", name="Find").click()
        expect(mine.get_by_role("row").filter(has_text="too much")).to_have_count(0)
        c.look("reviews-mine", mine, narrow=True)
        ann.does(stale["change_id"], "withdraw")


# A list is read every few seconds where its events can't be followed.
POLLED_MS_MAX = 20_000
# What an event takes to the page.
FOLLOWED_MS_MAX = 5_000


def check_reviews_follow(c):
    """The lists follow the events, are read now and then where they can't be followed, and show what needs the person and why."""
    with definition(c, "prod.limits", SCHEMA, [("a", {"n": 1}), ("b", {"n": 1})]), restricted(c) as (ann, bob):
        page = bob.open("reviews", "Reviews")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        lists = []
        page.on("request", lambda request: lists.append(request.url) if "/change_request/?" in request.url else None)
        changes = []
        for number in range(4):
            changes.append(ann.propose(f"change {number}", put("a", {"n": number + 10})))
            expect(page.get_by_role("link", name=f"change {number}")).to_be_visible(timeout=FOLLOWED_MS_MAX)
        ann.does(changes[3]["change_id"], "withdraw")
        expect(page.get_by_role("link", name="change 3")).to_have_count(0, timeout=FOLLOWED_MS_MAX)
        # Its own page: a vote of somebody else is there at once.
        own = ann.open(f"reviews/{changes[0]['change_id']}", "change 0")
        expect(own.locator(".dot.live")).to_be_visible()
        bob.does(changes[0]["change_id"], "approve", digest=changes[0]["digest"])
        expect(own.locator(".title .state")).to_have_text("can be applied", timeout=FOLLOWED_MS_MAX)
        expect(page.get_by_role("link", name="change 0")).to_have_count(0, timeout=FOLLOWED_MS_MAX)

        # Nothing is asked for where nothing happens, but for the few readings that find what no event tells.
        page.wait_for_timeout(1_000)
        lists.clear()
        page.wait_for_timeout(12_000)
        assert len(lists) <= 16, lists

        # Without the events the list is read all the same, and says so.
        page.route("**/api/v1/watch?*", lambda route: route.abort())
        page.goto(f"{c.origin}/ui/#/reviews?view=open")
        expect(page.get_by_text("Connecting again…")).to_be_visible()
        unheard = ann.propose("unheard", put("a", {"n": 99}))
        expect(page.get_by_role("link", name="unheard")).to_be_visible(timeout=POLLED_MS_MAX)
        page.unroute("**/api/v1/watch?*")
        expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=POLLED_MS_MAX)
        bob.does(unheard["change_id"], "reject", digest=unheard["digest"], comment="ask first")
        expect(page.get_by_role("row").filter(has_text="unheard")).to_contain_text("rejected", timeout=FOLLOWED_MS_MAX)

        # What needs its author, with what to do; the states of one that is open.
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/b?bypass=true", {"data": {"n": 2}}, [("X-Change-Reason", "incident 4717")])
        assert status == 200, answer
        stale = ann.propose("stale soon", put("b", {"n": 3}))
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/b?bypass=true", {"data": {"n": 4}}, [("X-Change-Reason", "incident 4718")])
        assert status == 200, answer
        own = ann.open("reviews", "Reviews")
        region = own.get_by_role("region", name="Your own, to go on with")
        for title, step in (("change 0", "apply it"), ("unheard", "edit or withdraw it"), ("stale soon", "rebase it")):
            expect(region.get_by_role("row").filter(has_text=title)).to_contain_text(step)
        expect(region.get_by_role("row")).to_have_count(4)
        expect(own.get_by_role("region", name="To review")).to_have_count(0)
        c.look("reviews-needs-me", own, narrow=True)
        other = bob.open("reviews", "Reviews")
        expect(other.get_by_role("region", name="To review").get_by_role("row").filter(has_text="incident 4717")).to_be_visible()
        other.get_by_role("link", name="Open", exact=True).click()
        for state, title in (("stale", "stale soon"), ("rejected", "unheard"), ("ready", "change 0"), ("approval", "change 1")):
            other.get_by_label("State").select_option(state)
            expect(other.get_by_role("row").filter(has_text=title)).to_be_visible()
            assert f"state={state}" in other.url
            if state != "approval":
                expect(other.get_by_role("row")).to_have_count(2)
        # One that the cluster could not apply.
        failing = ann.call("POST", "/change_request/", {"title": "by the cluster", "operations": [put("a", {"n": 7})], "apply": "when_approved"})[1]["data"]
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/a?bypass=true", {"data": {"n": 5}}, [("X-Change-Reason", "incident 4719")])
        assert status == 200, answer
        bob.does(failing["change_id"], "approve", digest=failing["digest"])
        wait_for(lambda: ann.call("GET", f"/change_request/{failing['change_id']}")[1]["data"]["phase"] == "closed", "the cluster to give it up")
        other.get_by_role("link", name="All", exact=True).click()
        other.get_by_label("State").select_option("failed")
        expect(other.get_by_role("row")).to_have_count(2)
        expect(other.get_by_role("row").filter(has_text="by the cluster")).to_contain_text("failed: could not be applied")
        c.look("reviews-failed", other, narrow=True)
        for change in ann.call("GET", "/change_request/?phase=open")[1]["data"]["results"]:
            ann.does(change["change_id"], "withdraw")


def check_edit_request(c):
    """An open change request is edited: what is lost is asked, nothing that is not shown is written, and no newer edition or vote is passed over."""
    marked = {**SCHEMA, "properties": {**SCHEMA["properties"], "users": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "token": {"type": "string", "x-concord-secret": True}}}}}}
    large = 123456789012345678901234567890
    with definition(c, "prod.limits", marked, [("a", {"n": 1, "password": "stored-secret"}), ("b", {"n": 1})]), restricted(c, ("ann", "bob", "cy")) as (ann, bob, cy):
        begin = time.strftime("%Y-%m-%dT%H:%M:%S.123456Z", time.gmtime(time.time() + 86_400))
        status, answer = ann.call("POST", "/change_request/", {"title": "two records", "description": "ticket 4720", "operations": [put("a", {"n": 2, "password": "proposed-secret"}), put("b", {"n": large})], "schedule": {"not_before": begin}})
        assert status == 201, answer
        change = answer["data"]
        bob.does(change["change_id"], "approve", digest=change["digest"])
        page = ann.open(f"reviews/{change['change_id']}", "two records")
        page.get_by_role("link", name="Edit…").click()
        expect(page.get_by_role("heading", name="Edit the change request")).to_be_visible()
        send = page.get_by_role("button", name="Send edition 2…")
        expect(send).to_be_disabled()
        part = page.get_by_role("region", name="prod.limits / a", exact=True)
        expect(part).to_contain_text("Your key may not see 1 value of this edition: password")
        expect(part.get_by_role("row").filter(has_text="password")).to_have_count(0)
        assert "secret" not in page.content().replace("x-concord-secret", "").replace("secret values", "")
        page.get_by_label("Title").fill("two records, edited")
        page.get_by_role("button", name="Edit the JSON: prod.limits / b").click()
        field = page.locator(".editor").get_by_role("textbox", name="prod.limits / b as JSON")
        expect(field).to_contain_text(str(large))
        field.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text('{"n": ')
        expect(send).to_be_disabled()
        expect(page.locator(".title .state")).to_have_text("A place is no JSON")
        page.keyboard.press("Control+a")
        page.keyboard.insert_text('{"n": "x"}')
        c.look("edit-request", page, narrow=True)
        # What the node refuses is said, and what was typed stays.
        send.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 approval given so far is lost")
        expect(dialog.get_by_role("button", name="Send it")).to_be_disabled()
        dialog.get_by_label("that I can't see").check()
        dialog.get_by_role("button", name="Send it").click()
        expect(dialog.get_by_role("alert")).to_contain_text("integer")
        dialog.get_by_role("button", name="Cancel").click()
        field.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(f'{{"n": {large + 1}}}')
        # Another approval comes while the question is open: it is named before it is lost.
        send.click()
        cy.does(change["change_id"], "approve", digest=change["digest"])
        dialog.get_by_label("that I can't see").check()
        c.look("edit-request-send", page, narrow=True)
        dialog.get_by_role("button", name="Send it").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Somebody has changed it")
        dialog.get_by_role("button", name="Look at it again").click()
        expect(dialog).to_contain_text("2 approvals given so far are lost")
        dialog.get_by_role("button", name="Send it").click()
        expect(page.get_by_role("heading", name="two records, edited")).to_be_visible()
        state(page, "waits for approval")
        now = ann.call("GET", f"/change_request/{change['change_id']}")[1]["data"]
        assert (now["edition"], now["approvals"], now["description"], now["schedule"]) == (2, [], "ticket 4720", change["schedule"]), now

        # Somebody else sends an edition meanwhile: it is not passed over.
        other = bob.open(f"reviews/{change['change_id']}/edit", "Edit the change request")
        other.get_by_role("button", name="Leave it out: prod.limits / b").click()
        status, answer = cy.call("PUT", f"/change_request/{change['change_id']}", {"title": "of cy", "schedule": change["schedule"], "operations": [put("a", {"n": 8, "password": {"$concord-keep": True}}), put("b", {"n": large})]})
        assert status == 200, answer
        other.get_by_role("button", name="Send edition 3…").click()
        theirs = other.get_by_role("dialog")
        theirs.get_by_label("that I can't see").check()
        theirs.get_by_role("button", name="Send it").click()
        theirs.get_by_role("button", name="Look at it again").click()
        expect(theirs).to_contain_text("It has a newer edition, 3")
        theirs.get_by_role("button", name="Begin again from it").click()
        expect(other.get_by_label("Title")).to_have_value("of cy")
        other.get_by_role("button", name="Leave it out: prod.limits / b").click()
        other.get_by_role("button", name="Send edition 4…").click()
        expect(theirs).to_contain_text("Nobody has approved or rejected it so far")
        theirs.get_by_label("that I can't see").check()
        theirs.get_by_role("button", name="Send it").click()
        expect(other.get_by_role("heading", name="of cy")).to_be_visible()
        last = Person(c, "dan")
        digest = last.call("GET", f"/change_request/{change['change_id']}")[1]["data"]["digest"]
        last.does(change["change_id"], "approve", digest=digest)
        last.does(change["change_id"], "apply", digest=digest)
        assert c.cluster.data(1, f"/change_request/{change['change_id']}")["phase"] == "scheduled"
        last.does(change["change_id"], "withdraw")

        # Who sees the values writes them again; numbers keep their digits, and the schema goes with it unchanged.
        wide = {**marked, "title": "Limits"}
        seeing = Person(c, "fay", [*VERBS, "reveal"])
        made = seeing.propose("a schema too", {"op": "set_schema", "config_definition_key": "prod.limits", "json_schema": wide, "policy": "force"}, put("a", {"n": large, "password": "proposed-secret"}), {"op": "delete_config", "config_definition_key": "prod.limits", "config_key": "b"})
        page = seeing.open(f"reviews/{made['change_id']}/edit", "Edit the change request")
        page.get_by_label("Description").fill("only this")
        assert "proposed-secret" not in page.content()
        page.get_by_role("button", name="Send edition 2…").click()
        page.get_by_role("dialog").get_by_role("button", name="Send it").click()
        expect(page.get_by_text("only this")).to_be_visible()
        digest = ann.call("GET", f"/change_request/{made['change_id']}")[1]["data"]["digest"]
        bob.does(made["change_id"], "approve", digest=digest)
        bob.does(made["change_id"], "apply", digest=digest)
        assert data(c, "a") == {"n": large, "password": "proposed-secret"}
        assert data(c, "b") is None and c.cluster.data(1, "/config_definition/prod.limits")["json_schema"] == wide
        # The marker of who does not see it keeps the value that the config has, and not the one of the edition.
        made = ann.propose("another password", put("a", {"n": 1, "password": "lost-secret"}))
        page = ann.open(f"reviews/{made['change_id']}/edit", "Edit the change request")
        page.get_by_label("Description").fill("without it")
        page.get_by_role("button", name="Send edition 2…").click()
        page.get_by_role("dialog").get_by_label("that I can't see").check()
        page.get_by_role("dialog").get_by_role("button", name="Send it").click()
        expect(page.get_by_text("without it")).to_be_visible()
        digest = ann.call("GET", f"/change_request/{made['change_id']}")[1]["data"]["digest"]
        bob.does(made["change_id"], "approve", digest=digest)
        bob.does(made["change_id"], "apply", digest=digest)
        assert data(c, "a") == {"n": 1, "password": "proposed-secret"}

        rules = ann.propose("rules", {"op": "put_environment", "environment": "prod", "approvals": 2, "freeze": []})
        page = ann.open(f"reviews/{rules['change_id']}/edit", "Edit the change request")
        page.get_by_role("button", name="Edit the JSON: prod").click()
        page.locator(".editor").get_by_role("textbox", name="prod as JSON").click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text('{"direct": "refuse", "approvals": 1, "freeze": []}')
        page.get_by_role("button", name="Send edition 2…").click()
        dialog.get_by_role("button", name="Send it").click()
        expect(page.get_by_role("heading", name="rules", exact=True)).to_be_visible()
        assert ann.call("GET", f"/change_request/{rules['change_id']}?include=preview")[1]["data"]["preview"]["records"][0]["after"]["approvals"] == 1
        ann.does(rules["change_id"], "withdraw")

        # What others have changed since is not taken back without a word.
        stale = ann.propose("stale", put("a", {"n": 5, "password": {"$concord-keep": True}}))
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/a?bypass=true", {"data": {"n": 77, "password": {"$concord-keep": True}}}, [("X-Change-Reason", "incident 4722")])
        assert status == 200, answer
        page = ann.open(f"reviews/{stale['change_id']}/edit", "Edit the change request")
        expect(page.get_by_role("region", name="prod.limits / a", exact=True)).to_contain_text("It was changed since this edition was sent")
        expect(page.get_by_role("region", name="prod.limits / a", exact=True).get_by_role("row").nth(1)).to_have_text("n775")
        page.get_by_label("Title").fill("stale, edited")
        page.get_by_role("button", name="Send edition 2…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("that I can't see").check()
        expect(dialog.get_by_role("button", name="Send it")).to_be_disabled()
        dialog.get_by_label("Mine takes back what others have changed in 1 record").check()
        dialog.get_by_role("button", name="Send it").click()
        expect(page.get_by_role("heading", name="stale, edited")).to_be_visible()
        state(page, "waits for approval")
        ann.does(stale["change_id"], "withdraw")

        # The root key sees the values, and only when it asks for them; within a list nobody can say what a marker keeps.
        listed = ann.propose("in a list", put("a", {"n": 1, "users": [{"name": "x", "token": "listed-secret"}]}))
        page = ann.open(f"reviews/{listed['change_id']}/edit", "Edit the change request")
        expect(page.get_by_text("It can't be edited here")).to_be_visible()
        c.open(f"reviews/{listed['change_id']}/edit", "Edit the change request")
        expect(c.page.get_by_role("region", name="prod.limits / a", exact=True)).to_contain_text("••••••")
        assert "listed-secret" not in c.page.content()
        c.button("Edit the JSON (it has secret values): prod.limits / a").click()
        expect(c.page.locator(".editor").get_by_role("textbox")).to_contain_text("listed-secret")
        reader = Person(c, "rea", ["read"])
        page = reader.open(f"reviews/{listed['change_id']}", "in a list")
        expect(page.get_by_role("link", name="Edit…")).to_have_count(0)
        page = reader.open(f"reviews/{listed['change_id']}/edit", "Edit the change request")
        expect(page.get_by_text("your key may not propose")).to_be_visible()
        ann.does(listed["change_id"], "withdraw")
        review_bypasses(bob)
        for person in (reader, last, seeing):
            person.end()


def check_bypass_review(c):
    """A bypass waits for the review of another person, who is told so; the root key has no vote."""
    with definition(c, "prod.limits", SCHEMA, [("a", {"n": 1})]), restricted(c) as (ann, bob):
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/a?bypass=true", {"data": {"n": 9}}, [("X-Change-Reason", "incident 4713")])
        assert status == 200, answer
        c.open("reviews?view=all&state=unreviewed", "Reviews")
        expect(c.page.get_by_role("row").filter(has_text="incident 4713")).to_contain_text("bypass, not reviewed")
        c.page.get_by_role("link", name="Needs me").click()
        expect(c.page.get_by_text("You have no vote on change requests: the root key never approves")).to_be_visible()
        c.look("reviews-root")
        page = bob.open("reviews", "Reviews")
        page.get_by_role("link", name="incident 4713").click()
        expect(page.get_by_role("heading", name="incident 4713", exact=True)).to_be_visible()
        expect(page.get_by_role("region", name="prod.limits / a", exact=True).get_by_role("row").nth(1)).to_have_text("n19")
        c.look("review-bypass", page)
        page.get_by_role("button", name="Review…").click()
        page.get_by_role("dialog").get_by_label("What you say to it").fill("was right")
        page.get_by_role("dialog").get_by_role("button", name="Review", exact=True).click()
        state(page, "bypass, reviewed")
        expect(page.get_by_role("region", name="Votes")).to_contain_text("was right")
        page.get_by_role("navigation", name="Where this is").get_by_role("link", name="Reviews").click()
        expect(page.get_by_text("Nothing needs you")).to_be_visible()


def check_change_times(c):
    """The cluster applies what is approved, or at its time, and takes it back; who approved it takes it back before, others by a bypass that is reviewed."""
    with definition(c, "prod.limits", PLAIN, [("a", {"n": 1}), ("b", {"n": 1})]), restricted(c, ("ann", "bob", "cy")) as (ann, bob, cy):
        page = ann.open("d/prod.limits/c/a/edit", "Edit a")
        edit_json(page, '{"n": 2}')
        page.get_by_role("button", name="Propose…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("When it is applied, and taken back").click()
        dialog.get_by_label("Who applies it").select_option("when_approved")
        dialog.get_by_label("Take it back after").select_option("900")
        c.look("propose-times", page, narrow=True)
        dialog.get_by_role("button", name="Propose it").click()
        expect(page.get_by_text("As soon as enough persons approve it, the cluster applies it.")).to_be_visible()
        expect(page.get_by_text("The cluster takes it back 15 minutes after it is applied.")).to_be_visible()
        other = bob.open(f"reviews/{page.url.split('/')[-1]}", "change prod.limits / a")
        other.get_by_role("button", name="Approve…").click()
        expect(other.get_by_role("dialog")).to_contain_text("the cluster applies it.")
        expect(other.get_by_role("dialog")).to_contain_text("takes it back 15 minutes after")
        c.look("review-approve-times", other)
        other.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
        state(page, "applied, to be taken back")
        assert data(c, "a") == {"n": 2}
        expect(page.get_by_role("button", name="Take back…")).to_have_count(0)
        c.look("review-armed", page, narrow=True)
        state(other, "applied, to be taken back")
        press(other, "Take back…", "Take it back")
        state(other, "taken back")
        assert data(c, "a") == {"n": 1}
        c.look("review-reverted", other)

        # One that the cluster would take back is kept by who approved it, who says why.
        status, answer = ann.call("POST", "/change_request/", {"title": "for a week", "operations": [put("a", {"n": 6})], "revert_after_s": 604_800})
        assert status == 201, answer
        week = answer["data"]
        bob.does(week["change_id"], "approve", digest=week["digest"])
        ann.does(week["change_id"], "apply", digest=week["digest"])
        page = ann.open(f"reviews/{week['change_id']}", "for a week")
        expect(page.get_by_role("button", name="Keep…")).to_have_count(0)
        other = bob.open(f"reviews/{week['change_id']}", "for a week")
        other.get_by_role("button", name="Keep…").click()
        other.get_by_role("dialog").get_by_label("Why").fill("they have bought it")
        c.look("review-keep", other, narrow=True)
        other.get_by_role("dialog").get_by_role("button", name="Keep it").click()
        state(other, "applied, and kept")
        state(page, "applied, and kept")
        expect(page.get_by_text("bob@example.com keeps it")).to_contain_text("they have bought it")
        expect(other.get_by_role("button", name="Take back…")).to_have_count(0)
        assert data(c, "a") == {"n": 6}
        status, answer = ann.call("PUT", "/config_definition/prod.limits/config/a?bypass=true", {"data": {"n": 1}}, [("X-Change-Reason", "the check goes on")])
        assert status == 200, answer
        review_bypasses(bob)

        # Left to the cluster until its time comes.
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 15))
        status, answer = ann.call("POST", "/change_request/", {"title": "tonight", "operations": [put("b", {"n": 5})], "schedule": {"not_before": begin}})
        assert status == 201, answer
        change = answer["data"]
        bob.does(change["change_id"], "approve", digest=change["digest"])
        page = ann.open(f"reviews/{change['change_id']}", "tonight")
        expect(page.get_by_text("It is applied not before")).to_be_visible()
        press(page, "Schedule…", "Apply")
        state(page, "scheduled")
        assert data(c, "b") == {"n": 1}
        c.look("review-scheduled", page, narrow=True)
        state(page, re.compile("applied as revision"))
        expect(page.get_by_text("the cluster, to whom")).to_be_visible()
        assert data(c, "b") == {"n": 5}
        # By a person whose approval did not count.
        third = cy.open(f"reviews/{change['change_id']}", "tonight")
        third.get_by_role("button", name="Take back by a bypass…").click()
        third.get_by_role("dialog").get_by_label("Reason").fill("incident 4715")
        third.get_by_role("dialog").get_by_role("button", name="Take it back", exact=True).click()
        state(third, "taken back by a bypass, not reviewed")
        assert data(c, "b") == {"n": 1}
        other = bob.open("reviews", "Reviews")
        other.get_by_role("link", name="tonight").click()
        press(other, "Review…", "Review")
        state(other, "taken back by a bypass, reviewed")


def check_propose(c):
    """Where nothing is restricted, Propose stands beside Save; a freeze refuses what is saved and offers it; a key that only proposes sees no Save."""
    with definition(c, "free.limits", SCHEMA, [("a", {"n": 1})]):
        c.open("d/free.limits/c/a/edit", "Edit a")
        c.edit_text("Data of the config as JSON", '{"n": 2}')
        c.state("The node would take it")
        c.look("edit-both")
        c.button("Propose…").click()
        c.page.get_by_role("dialog").get_by_label("Title").fill("by the root key")
        c.page.get_by_role("dialog").get_by_role("button", name="Propose it").click()
        expect(c.heading("by the root key")).to_be_visible()
        press(c.page, "Apply…", "Apply")
        expect(c.page.locator(".title .state")).to_contain_text("applied as revision")
        assert c.cluster.data(1, "/config_definition/free.limits/config/a")["data"] == {"n": 2}
        # Another key writes and reads, but no dry run says why not: the environment is frozen meanwhile.
        c.open("d/free.limits/c/a/edit", "Edit a")
        c.edit_text("Data of the config as JSON", '{"n": 3}')
        c.state("The node would take it")
        freeze = {"until": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400)), "reason": "release"}
        status, body = c.cluster.call(1, "PUT", "/environment/free", {"freeze": [freeze]})
        assert status == 201, body
        c.button("Save").click()
        expect(c.page.get_by_role("alert").first).to_contain_text("is frozen until")
        c.button("Propose it…").click()
        c.page.get_by_role("dialog").get_by_role("button", name="Propose it").click()
        expect(c.heading("change free.limits / a")).to_be_visible()
        expect(c.page.get_by_text("it can't be applied before")).to_be_visible()
        press(c.page, "Apply…", "Apply")
        expect(c.page.get_by_role("dialog").get_by_role("alert")).to_contain_text("is frozen until")
        c.page.keyboard.press("Escape")
        press(c.page, "Withdraw…", "Withdraw")
        expect(c.page.locator(".title .state")).to_contain_text("withdrawn")
        assert c.cluster.call(1, "DELETE", "/environment/free")[0] == 200
        eve = Person(c, "eve", ["read", "propose"], ["free.*"])
        page = eve.open("d/free.limits/c/a", "a")
        page.get_by_role("link", name="Edit").click()
        expect(page.get_by_role("button", name="Save", exact=True)).to_have_count(0)
        edit_json(page, '{"n": 4}')
        page.get_by_role("button", name="Propose…").click()
        page.get_by_role("dialog").get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="change free.limits / a")).to_be_visible()
        press(page, "Withdraw…", "Withdraw")
        state(page, "withdrawn")
        eve.end()


def check_propose_elsewhere(c):
    """Each page that writes proposes instead, in an environment that takes change requests only."""
    with definition(c, "prod.limits", PLAIN, [("a", {"n": 1}), ("b", {"n": 1})], ["n"]):
        status, body = c.cluster.call(1, "PUT", "/config_definition/prod.limits/config/a", {"data": {"n": 2}})
        assert status == 200, body
        with restricted(c) as (ann, bob):
            proposed = lambda: ann.call("GET", "/change_request/?phase=open")[1]["data"]["results"]

            def propose(page, *expected):
                dialog = page.get_by_role("dialog").last
                dialog.get_by_role("button", name="Propose it").click()
                expect(page.get_by_role("region", name="What it would change")).to_be_visible()
                change = ann.call("GET", f"/change_request/{page.url.split('/')[-1]}")[1]["data"]
                assert [one["op"] for one in change["operations"]] == list(expected), change
                return change

            page = ann.open("d/prod.limits/c/b", "b")
            press(page, "Delete", "Propose…")
            change = propose(page, "delete_config")
            assert change["title"] == "delete prod.limits / b", change

            page = ann.open("d/prod.limits/c/a/history", "a")
            page.get_by_role("region", name="Changes").get_by_role("button").nth(1).click()
            page.get_by_role("button", name="Roll back to this").click()
            page.get_by_role("dialog").get_by_role("button", name="Propose…").click()
            propose(page, "put_config")

            page = ann.open("watch?definition=prod.limits", "Changes")
            page.get_by_role("button", name=re.compile("Undo revision")).first.click()
            page.get_by_role("dialog").get_by_role("button", name="Propose…").click()
            propose(page, "put_config")

            page = ann.open("d/prod.limits/schema", "prod.limits")
            page.get_by_role("button", name="Edit the schema").click()
            page.locator(".editor").get_by_role("textbox", name="JSON schema").click()
            page.keyboard.press("Control+a")
            page.keyboard.insert_text(json.dumps({"properties": {"n": {"type": "integer", "maximum": 1}}}))
            page.get_by_role("button", name="Propose…").click()
            page.get_by_role("dialog").get_by_label("Store it even if configs break it").check()
            propose(page, "set_schema")
            expect(page.get_by_text("The schema is stored even if configs break it")).to_be_visible()
            c.look("review-schema", page)

            page = ann.open("d/prod.limits/indexes", "prod.limits")
            page.get_by_role("button", name="Remove the indexed field n").click()
            page.get_by_role("button", name="Propose…").click()
            propose(page, "set_indexes")
            page = ann.open("d/prod.limits/indexes", "prod.limits")
            page.get_by_role("button", name="Propose to protect it…").click()
            propose(page, "set_protection")
            page = ann.open("d/prod.limits/indexes", "prod.limits")
            page.get_by_role("button", name="Delete prod.limits…").click()
            page.get_by_role("dialog").get_by_role("button", name="Propose…").click()
            propose(page, "delete_definition")
            expect(page.get_by_text("2 configs of it go with it")).to_be_visible()

            page = ann.open("new", "New definition")
            page.get_by_label("Key", exact=True).fill("prod.new")
            page.get_by_role("button", name="Propose…").click()
            propose(page, "create_definition")

            page = ann.open("d/prod.limits/new", "New config")
            page.get_by_label("Key", exact=True).fill("made")
            page.get_by_role("button", name="Add to the change set").click()
            page.get_by_role("button", name="Propose…").click()
            propose(page, "put_config")
            expect(page.get_by_role("link", name=re.compile("Change set"))).to_have_count(0)

            # A freeze is added at once; to end it is a change request.
            page = ann.open("environments", "Environments")
            expect(page.get_by_role("row").filter(has_text="prod")).to_contain_text("by change request")
            c.look("environments-restricted", page, narrow=True)
            page.get_by_role("button", name="Freeze prod").click()
            page.get_by_role("dialog").get_by_label("Reason").fill("incident 4714")
            page.get_by_role("dialog").get_by_role("button", name="Freeze it").click()
            page.get_by_role("button", name="End the freeze of prod: incident 4714").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("It takes change requests only")
            dialog.get_by_role("button", name="Propose…").click()
            change = propose(page, "put_environment")
            expect(page.get_by_text("1 definition with 2 configs has these rules")).to_be_visible()
            bob.does(change["change_id"], "approve", digest=change["digest"])
            ann.does(change["change_id"], "apply", digest=change["digest"])
            wait_for(lambda: c.cluster.data(1, "/environment/prod")["freeze"] == [], "the freeze to end")
            for change in proposed():
                ann.does(change["change_id"], "withdraw")
            assert data(c, "a") == {"n": 2} and data(c, "b") == {"n": 1}, "nothing was changed"


def check_promote(c):
    """Two environments are compared, and one becomes as the other is by a change request; a secret value that the key does not see is left and named."""
    secret, shown = "prod-secret", re.compile("(prod|staging|open)-secret")
    changed = {**SCHEMA, "properties": {**SCHEMA["properties"], "m": {"type": "integer"}}}
    with definition(c, "staging.limits", SCHEMA, [("a", {"n": 2, "password": "staging-secret"}), ("b", {"n": 7}), ("c", {"n": 1, "password": "staging-secret"}), ("same", {"n": 1})]), \
            definition(c, "staging.open", SCHEMA, [("x", {"n": 1, "password": "open-secret"})]), definition(c, "prod.open", PLAIN, [("x", {"n": 1})]), \
            definition(c, "staging.extra", changed, [("x", {"m": 1})]), definition(c, "prod.extra", SCHEMA, [("x", {"n": 1})]), \
            definition(c, "prod.limits", SCHEMA, [("a", {"n": 1, "password": secret}), ("same", {"n": 1}), ("z", {"n": 9})]), \
            restricted(c, definitions=("prod.*", "staging.*")) as (ann, bob):
        page = ann.open("environments", "Environments")
        page.get_by_role("link", name="Compare with prod").click()
        expect(page.get_by_label("Target")).to_have_value("prod")
        page.get_by_label("Source").fill("staging")
        page.get_by_role("button", name="Compare", exact=True).click()
        region = lambda name: page.get_by_role("region", name=name, exact=True)
        expect(region("prod.limits / a").get_by_role("row").nth(1)).to_have_text("n12")
        expect(region("prod.limits / a")).to_contain_text("Your key may not see the secret values at password")
        expect(region("prod.limits / c")).to_contain_text("it is new, and your key may not see its secret value at password")
        expect(region("prod.limits / z")).to_contain_text("only in prod")
        expect(region("prod.open / x")).to_contain_text("password is secret in the source, and not in the target")
        expect(region("prod.limits / same")).to_have_count(0)
        assert not shown.search(page.content())
        c.look("compare", page, narrow=True)
        page.get_by_label("Definitions too").check()
        page.get_by_label("Delete 1 config that only prod has").check()
        expect(region("prod.extra")).to_contain_text("json_schema.properties.m")
        for name in ("prod.extra", "prod.open", "prod.open / x"):
            box = page.get_by_role("checkbox", name=f"Promote {name}", exact=True)
            if box.count():
                box.uncheck()
        page.get_by_role("checkbox", name="Promote prod.extra / x", exact=True).uncheck()
        page.get_by_role("button", name="Promote…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Title")).to_have_value("promote staging to prod")
        dialog.get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="promote staging to prod")).to_be_visible()
        change = ann.call("GET", f"/change_request/{page.url.split('/')[-1]}")[1]["data"]
        assert [(one["op"], one["config_key"]) for one in change["operations"]] == [("delete_config", "z"), ("put_config", "a"), ("put_config", "b")], change
        other = bob.open(f"reviews/{change['change_id']}", "promote staging to prod")
        press(other, "Approve…", "Approve")
        state(page, "can be applied")
        press(page, "Apply…", "Apply")
        state(page, re.compile("applied as revision"))
        assert [data(c, key) for key in "abcz"] == [{"n": 2, "password": secret}, {"n": 7}, None, None]
        # The definition and its config together, by the root key, which sees the secret values as dots.
        c.open("compare?from=staging&to=prod", "Compare environments")
        expect(c.page.get_by_role("region", name="prod.limits / c", exact=True)).to_contain_text("••••••")
        # A secret value never goes where everybody may see it.
        expect(c.page.get_by_role("region", name="prod.open / x", exact=True)).to_contain_text("password is secret in the source, and not in the target")
        assert not shown.search(c.page.content())
        c.page.get_by_label("Definitions too").check()
        c.button("Promote…").click()
        c.page.get_by_role("dialog").get_by_role("button", name="Propose it").click()
        expect(c.heading("promote staging to prod")).to_be_visible()
        assert not shown.search(c.page.content())
        digest = c.page.get_by_role("definition").filter(has=c.page.locator("code")).inner_text()
        made = c.page.url.split("/")[-1]
        for person in (ann, bob):
            person.does(made, "approve", digest=digest)
        press(c.page, "Apply…", "Apply")
        expect(c.page.locator(".title .state")).to_contain_text("applied as revision")
        assert c.cluster.data(1, "/config_definition/prod.open/config/x")["data"] == {"n": 1, "password": "open-secret"}
        assert data(c, "a") == {"n": 2, "password": "staging-secret"} and data(c, "c") == {"n": 1, "password": "staging-secret"}
        assert c.cluster.data(1, "/config_definition/prod.extra/config/x")["data"] == {"m": 1}
        c.open("compare?from=staging&to=prod", "Compare environments")
        expect(c.page.get_by_text("Nothing differs")).to_be_visible()


def check_changes_narrow(c):
    """On a phone the list of changes is as wide as the phone: each row is a block."""
    with definition(c, "prod.limits", SCHEMA, [("a" * 60, {"n": 1})]):
        change = {"n": 123456789, "region": "europe-west4", "owner": "payments"}
        status, body = c.cluster.call(1, "PUT", f"/config_definition/prod.limits/config/{'a' * 60}", {"data": change}, [("X-Change-Reason", "configuration rollback")])
        assert status == 200, body
        before = c.page.viewport_size
        c.page.set_viewport_size({"width": 390, "height": 844})
        c.open("watch?definition=prod.limits", "Changes")
        row = c.page.get_by_role("row").filter(has_text="configuration rollback")
        expect(row).to_be_visible()
        box = c.page.get_by_role("region", name="Changes")
        assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth"), "it scrolls sideways"
        assert row.get_by_role("button", name="Undo").bounding_box()["x"] < 390
        c.page.set_viewport_size(before)
        c.look("changes-stacked", narrow=True)
