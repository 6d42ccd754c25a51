"""The rules of environments: changed by who may, never unseen, and with the refusal of the node. Used by scripts/console-test.py."""

import json
import re

from playwright.sync_api import expect

from forms import definition
from reviews import PLAIN, Person

BYPASS = [("X-Change-Reason", "the check is over")]


def environment(c, name="prod"):
    return c.cluster.data(1, f"/environment/{name}")


def check_environment_rules(c):
    """An environment is made, its rules are changed on what was shown, refused, bypassed by the root key alone, and it is deleted."""
    with definition(c, "prod.limits", PLAIN, [("a", {"n": 1})]):
        ann, bob, eve = Person(c, "ann"), Person(c, "bob"), Person(c, "eve", ["read", "approve"])
        c.open("environments", "Environments")
        c.button("New environment…").click()
        dialog = c.page.get_by_role("dialog")
        changes = dialog.get_by_role("region", name="What changes")
        expect(changes).to_contain_text("Name the environment first")
        dialog.get_by_label("Environment").fill("prod")
        dialog.get_by_label("Approvals needed").fill("11")
        expect(changes).to_contain_text("something above is missing")
        expect(dialog.get_by_role("button", name="Create it")).to_be_disabled()
        dialog.get_by_label("Approvals needed").fill("5")
        expect(changes).to_contain_text("The environment prod is created")
        expect(changes).to_contain_text("Approvals that a change request needs: 0 → 5")
        c.look("environment-new", narrow=True)
        dialog.get_by_role("button", name="Create it").click()
        # The refusal is that of the node.
        expect(dialog.get_by_role("alert")).to_contain_text("5 approvals need 6 persons")
        assert c.cluster.call(1, "GET", "/environment/prod")[0] == 404
        dialog.get_by_label("Approvals needed").fill("1")
        dialog.get_by_role("button", name="Create it").click()
        c.said("prod is created")
        row = c.page.get_by_role("row").filter(has=c.page.get_by_role("rowheader", name="prod", exact=True))
        expect(row).to_contain_text("allowed")
        expect(row).to_contain_text("3 persons could approve")
        found = environment(c)
        assert (found["direct"], found["approvals"], found["freeze"]) == ("allow", 1, []), found

        # Somebody else changes it while the dialog is open: nothing is overwritten unseen, and what was typed stays.
        c.button("Rules of prod").click()
        dialog.get_by_label("Direct changes").select_option("refuse")
        expect(changes).to_contain_text("allowed → refused")
        freeze = {"from": "2199-12-23T18:00:00Z", "until": "2200-01-02T08:00:00Z", "reason": "holidays"}
        assert c.cluster.call(1, "PUT", "/environment/prod", {"approvals": 2, "freeze": [freeze]})[0] == 200
        dialog.get_by_role("button", name="Change them").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Somebody has changed it")
        assert environment(c)["direct"] == "allow"
        dialog.get_by_role("button", name="Show the rules as they are now").click()
        expect(dialog.get_by_label("Approvals needed")).to_have_value("2")
        expect(dialog.get_by_label("Direct changes")).to_have_value("refuse")
        c.look("environment-rules", narrow=True)
        dialog.get_by_role("button", name="Change them").click()
        c.said("The rules of prod are changed")
        found = environment(c)
        assert (found["direct"], found["approvals"], len(found["freeze"])) == ("refuse", 2, 1), found
        expect(row).to_contain_text("by change request")

        # One approver less than are needed: the page says so.
        assert c.cluster.call(1, "DELETE", f"/api_key/{eve.id}")[0] == 200
        c.page.reload()
        expect(row).to_contain_text("2 persons could approve, and 3 are needed")
        c.look("environments-approvers", narrow=True)

        # Who has no root key proposes, and has no bypass of these rules.
        page = ann.open("environments", "Environments")
        page.get_by_role("button", name="Rules of prod").click()
        theirs = page.get_by_role("dialog")
        theirs.get_by_label("Approvals needed").fill("1")
        expect(theirs.get_by_role("region", name="What changes")).to_contain_text("2 → 1")
        expect(theirs.get_by_role("button", name="Change them")).to_have_count(0)
        expect(theirs.get_by_role("button", name="By a bypass…")).to_have_count(0)
        theirs.get_by_role("button", name="Propose…").click()
        theirs.get_by_role("button", name="Propose it").click()
        expect(page.get_by_role("heading", name="change the rules of prod")).to_be_visible()
        made = page.url.split("/")[-1]
        assert ann.call("GET", f"/change_request/{made}")[1]["data"]["operations"] == [{"op": "put_environment", "environment": "prod"}]
        preview = ann.call("GET", f"/change_request/{made}?include=preview")[1]["data"]["preview"]["records"][0]
        assert preview["fields"] == ["/approvals"], preview
        ann.does(made, "withdraw")

        # The root key may, with a reason that others review.
        c.button("Rules of prod").click()
        dialog.get_by_label("Approvals needed").fill("1")
        expect(dialog.get_by_role("button", name="Change them")).to_have_count(0)
        dialog.get_by_role("button", name="By a bypass…").click()
        expect(dialog.get_by_role("button", name="Change it by a bypass")).to_be_disabled()
        dialog.get_by_label("Reason of the bypass").fill("incident 4715")
        c.look("environment-bypass", narrow=True)
        dialog.get_by_role("button", name="Change it by a bypass").click()
        c.said("The rules of prod are changed")
        assert environment(c)["approvals"] == 1
        unreviewed = c.cluster.data(1, "/change_request/?unreviewed=true")["results"]
        assert unreviewed[0]["title"] == "incident 4715" and unreviewed[0]["environment"] == "prod", unreviewed[0]

        # A freeze that is planned, and taken back: in this environment only by a change request, or at once by a bypass.
        c.button("Freeze prod").click()
        dialog.get_by_label("Reason").fill("release")
        dialog.get_by_label("For").select_option("")
        expect(dialog.get_by_role("button", name="Freeze it")).to_be_disabled()
        dialog.get_by_label("From (UTC)").fill("2198-05-01T10:00")
        dialog.get_by_label("Until (UTC)").fill("2198-05-01T12:00")
        expect(changes).to_contain_text("A freeze release from 2198-05-01 10:00:00Z")
        expect(dialog).to_contain_text("It takes change requests only")
        c.look("freeze-planned", narrow=True)
        dialog.get_by_role("button", name="By a bypass…").click()
        dialog.get_by_label("Reason of the bypass").fill("incident 4716")
        dialog.get_by_role("button", name="Change it by a bypass").click()
        c.said("The freeze of prod is planned")
        assert [one["reason"] for one in environment(c)["freeze"]] == ["release", "holidays"]
        c.button("End the freeze of prod: release").click()
        expect(changes).to_contain_text("The freeze release ends")
        expect(changes).not_to_contain_text("holidays")
        dialog.get_by_role("button", name="Cancel").click()

        # A key that only reads sees the rules, and changes nothing.
        reader = Person(c, "rea", ["read"])
        page = reader.open("environments", "Environments")
        expect(page.get_by_role("row").filter(has_text="prod")).to_contain_text("holidays")
        for name in ("New environment…", "Freeze…", "Rules of prod", "Freeze prod", "Delete the environment prod", "End the freeze of prod: holidays"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        page.get_by_role("row").filter(has_text="prod").get_by_role("link", name="1", exact=True).click()
        expect(page.get_by_role("link", name="prod.limits")).to_be_visible()
        expect(page.get_by_text("prod.*")).to_be_visible()
        reader.end()

        # It is deleted by who may do so directly, once its name is typed.
        assert c.cluster.call(1, "PUT", "/environment/prod?bypass=true", {"direct": "allow", "freeze": []}, BYPASS)[0] == 200
        c.page.reload()
        expect(row).to_contain_text("allowed")
        c.button("Delete the environment prod").click()
        expect(dialog).to_contain_text("1 definition of it stays")
        expect(dialog.get_by_role("button", name="Delete it")).to_be_disabled()
        c.look("environment-delete", narrow=True)
        dialog.get_by_label(re.compile("^Type prod")).fill("prod")
        dialog.get_by_role("button", name="Delete it").click()
        c.said("The environment prod is deleted")
        expect(c.page.get_by_text("There is no environment yet")).to_be_visible()
        for person in (ann, bob, eve):
            person.end()

        # A new one takes its definitions out of default: what that changes is said, and nothing else changes.
        assert c.cluster.call(1, "PUT", "/environment/default", {"direct": "refuse", "freeze": [freeze]})[0] == 201
        c.page.reload()
        c.button("New environment…").click()
        dialog.get_by_label("Environment").fill("team")
        expect(changes).to_contain_text("Until now the rules of default hold for them")
        expect(dialog.get_by_label("Direct changes")).to_have_value("refuse")
        expect(changes).not_to_contain_text("allowed")
        dialog.get_by_label("Direct changes").select_option("allow")
        expect(changes).to_contain_text("refused → allowed")
        c.look("environment-of-default", narrow=True)
        dialog.get_by_label("Direct changes").select_option("refuse")
        dialog.get_by_role("button", name="By a bypass…").click()
        dialog.get_by_label("Reason of the bypass").fill("incident 4721")
        dialog.get_by_role("button", name="Change it by a bypass").click()
        c.said("team is created")
        found = environment(c, "team")
        assert (found["direct"], found["approvals"], [one["reason"] for one in found["freeze"]]) == ("refuse", 0, ["holidays"]), found
        for name in ("team", "default"):
            assert c.cluster.call(1, "DELETE", f"/environment/{name}?bypass=true", headers=BYPASS)[0] == 200
        assert json.loads(c.cluster.call(1, "GET", "/environment/")[1])["data"]["results"] == []
