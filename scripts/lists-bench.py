#!/usr/bin/env python3
"""What lists cost on three nodes: by a label and by a plain index, with `fields` and compression, of the past.

    CONCORD_BIN=target/release/concord scripts/lists-bench.py [--configs 100000] [labels] [parts] [past]

Prints the tables of docs/performance-log.md. One caller asks, one request after the other, of a follower; variants
take turns in random order, so that what the machine does meanwhile meets all of them. Times are medians, and ratios
those of the pairs.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from nodes import Nodes, wait_for  # noqa: E402

DEFINITIONS = "/api/v1/config_definition/"
TEAMS, LABELS = 100, ("team", "tier", "region", "stage", "owner")


def data_of(place, draw, labels=True):
    """A config of about 300 bytes: a plain field, and five labels with the same number of values."""
    team = f"team-{place % TEAMS:02}"
    data = {"team": team, "port": place, "text": "".join(draw.choices("abcdefghijklmnop ", k=140))}
    if labels:
        data["labels"] = {"team": team, "tier": f"tier-{place % 3}", "region": f"region-{place % 7}", "stage": f"stage-{place % 5}",
                          "owner": f"owner-{place % 1000:03}"}
    return data


def fill(client, key, count, make):
    for first in range(0, count, 500):
        operations = [{"op": "create_config", "config_definition_key": key, "config_key": f"k{place:07}", "data": make(place)}
                      for place in range(first, min(first + 500, count))]
        client.ask("POST", "/api/v1/batch", {"operations": operations}).expect(200)


def timed(act):
    begun = time.perf_counter()
    answer = act()
    return (time.perf_counter() - begun) * 1000, answer


def in_turns(variants, rounds, seed=1):
    """{name: times in ms} of variants that take turns, after one round that does not count."""
    draw, times = random.Random(seed), {name: [] for name in variants}
    for turn in range(rounds + 1):
        names = list(variants)
        draw.shuffle(names)
        for name in names:
            took, _ = timed(variants[name])
            if turn:
                times[name].append(took)
    return times


def ratio(times, base):
    return statistics.median(one / other for one, other in zip(times, base))


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "|".join("---" if place == 0 else "---:" for place in range(len(head))) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def labels(nodes, options):
    """A label's query beside a plain index's, and what labels add to a write."""
    leader = nodes.client(nodes.leader())
    follower = nodes.client(next(n for n in nodes.api if n != nodes.leader()))
    draw = random.Random(2)
    leader.ask("POST", DEFINITIONS, {"config_definition_key": "app", "indexes": ["team", "port", "labels.*"]}).expect(201)
    took, _ = timed(lambda: fill(leader, "app", options.configs, lambda place: data_of(place, draw)))
    print(f"{options.configs} configs with 5 labels each were made in {took / 1000:.0f} s; memory of a node "
          f"{max(nodes.memory_kb(n) for n in nodes.api) >> 10} MB\n")
    path = f"{DEFINITIONS}app/config/"

    def asks(**query):
        def ask():
            answer = follower.get(path, **{name.replace("__", "."): text for name, text in query.items()})
            assert answer.expect(200).data["meta"]["total"] > 0, answer.body[:300]
        return ask

    rows = []
    for what, plain, label in (
        ("a page of 10 of 1 %, by the time of change", asks(team="team-07"), asks(labels__team="team-07")),
        ("a page of 100 of 1 %, by the key", asks(team="team-07", limit=100, sort_by="config_key"), asks(labels__team="team-07", limit=100, sort_by="config_key")),
        ("any of three values, 3 %", asks(**{"team[in]": "team-01,team-02,team-03"}), asks(**{"labels__team[in]": "team-01,team-02,team-03"})),
        ("`[prefix]`, 10 %", asks(**{"team[prefix]": "team-0"}), asks(**{"labels__team[prefix]": "team-0"})),
        ("`[ne]`, 99 %", asks(**{"team[ne]": "team-07"}), asks(**{"labels__team[ne]": "team-07"})),
        ("two filters", asks(team="team-07", **{"port[lt]": options.configs // 2}), asks(labels__team="team-07", **{"port[lt]": options.configs // 2})),
    ):
        times = in_turns({"plain": plain, "label": label}, options.rounds)
        rows.append((what, f"{statistics.median(times['plain']):.2f}", f"{statistics.median(times['label']):.2f}", f"{ratio(times['label'], times['plain']):.2f}"))
    table(("query", "plain index, ms", "label, ms", "ratio"), rows)

    variants = {"no index": ([], 0), "one plain index": (["team"], 0), "5 plain indexes": ([f"plain.{name}" for name in LABELS], 0), "5 labels": (["labels.*"], 5)}
    for number, (indexes, _) in enumerate(variants.values()):
        leader.ask("POST", DEFINITIONS, {"config_definition_key": f"w{number}", "indexes": indexes}).expect(201)
        fill(leader, f"w{number}", 2000, lambda place: {**data_of(place, draw), "plain": data_of(place, draw)["labels"]})
    turn = iter(range(10**9))

    def writes(number):
        def act():
            place = next(turn)
            operations = []
            for one in range(200):
                data = data_of(place * 7919 + one * 13, draw)
                operations.append({"op": "put_config", "config_definition_key": f"w{number}", "config_key": f"k{one * 7 % 2000:07}", "data": {**data, "plain": data["labels"]}})
            body = json.dumps({"operations": operations})
            before = nodes.cpu_s()
            leader.ask("POST", "/api/v1/batch", body).expect(200)
            revision = nodes.cluster(nodes.leader())["revision"]
            wait_for(lambda: all(nodes.cluster(n)["revision"] >= revision for n in nodes.api), "the followers to apply")
            return nodes.cpu_s() - before
        return act

    acts, spent = {name: writes(number) for number, name in enumerate(variants)}, {name: [] for name in variants}
    for turn_ in range(options.rounds + 1):
        for name in random.Random(turn_).sample(list(acts), len(acts)):
            # Ticks are 10 ms: ten batches of 200 changes are enough of them.
            used = sum(acts[name]() for _ in range(10))
            if turn_:
                spent[name].append(used * 1e6 / 2000)
    base = spent["no index"]
    table(("a change in a batch of 200, all indexed values change", "µs of the three nodes", "ratio", "each value, µs"),
          [(name, f"{statistics.median(times):.0f}", f"{ratio(times, base):.2f}",
            "" if name == "no index" else f"{statistics.median(a - b for a, b in zip(times, base)) / (1 if 'one' in name else 5):.1f}") for name, times in spent.items()])


def parts(nodes, options):
    """Lists with `fields` and compression: bytes and time."""
    leader = nodes.client(nodes.leader())
    follower = nodes.client(next(n for n in nodes.api if n != nodes.leader()))
    draw = random.Random(3)
    leader.ask("POST", DEFINITIONS, {"config_definition_key": "page", "indexes": ["team"]}).expect(201)
    fill(leader, "page", 10_000, lambda place: data_of(place, draw))
    path = f"{DEFINITIONS}page/config/"

    def asks(coding=None, **query):
        headers = [("Accept-Encoding", coding)] if coding else []
        def ask():
            answer = follower.ask("GET", path, query=list(query.items()), headers=headers).expect(200)
            assert answer.headers.get("Content-Encoding") == coding, answer.headers
            return answer
        return ask

    for limit in (100, 1000):
        common = {"team[prefix]": "team-", "limit": limit, "sort_by": "config_key"}
        variants = {
            "whole": asks(**common), "`fields=team,port`": asks(fields="team,port", **common), "gzip": asks("gzip", **common), "br": asks("br", **common),
            "zstd": asks("zstd", **common), "`fields` and gzip": asks("gzip", fields="team,port", **common),
        }
        sizes = {name: len(variant().body) for name, variant in variants.items()}
        times = in_turns(variants, options.rounds)
        # The processor time of the node that answers, by ticks of 10 ms.
        number, cpu = next(n for n in nodes.api if n != nodes.leader()), {name: [] for name in variants}
        for turn in range(5):
            for name in random.Random(turn).sample(list(variants), len(variants)):
                before, count = nodes.cpu_s(number), 100 if limit == 100 else 20
                for _ in range(count):
                    variants[name]()
                cpu[name].append((nodes.cpu_s(number) - before) * 1e6 / count)
        whole = sizes["whole"]
        table((f"a page of {limit}", "bytes", "share", "time, ms", "ratio", "µs of the node", "ratio"),
              [(name, f"{sizes[name]:,}", f"{sizes[name] / whole:.2f}", f"{statistics.median(times[name]):.2f}", f"{ratio(times[name], times['whole']):.2f}",
                f"{statistics.median(cpu[name]):.0f}", f"{ratio(cpu[name], cpu['whole']):.2f}") for name in variants])


def past(nodes, options):
    """Lists of earlier revisions: made, found, and the memory."""
    leader = nodes.client(nodes.leader())
    number = next(n for n in nodes.api if n != nodes.leader())
    follower = nodes.client(number)
    draw = random.Random(4)
    leader.ask("POST", DEFINITIONS, {"config_definition_key": "past", "indexes": ["team", "port"]}).expect(201)
    configs = min(options.configs, 50_000)
    fill(leader, "past", configs, lambda place: data_of(place, draw, labels=False))
    path, rows = f"{DEFINITIONS}past/config/", []
    query = {"team": "team-07", "sort_by": "port", "limit": 10}
    then = int(leader.get(path, limit=1).expect(200).headers["X-Concord-Revision"])
    changes = 0
    for total in options.changes:
        while changes < total:
            operations = [{"op": "put_config", "config_definition_key": "past", "config_key": f"k{draw.randrange(configs):07}",
                           "data": data_of(draw.randrange(configs), draw, labels=False)} for _ in range(500)]
            leader.ask("POST", "/api/v1/batch", {"operations": operations}).expect(200)
            changes += 500
        newest = int(leader.get(path, limit=1).expect(200).headers["X-Concord-Revision"])
        follower.get(path, min_revision=newest, **query).expect(200)
        memory = nodes.memory_kb(number)
        made, _ = timed(lambda: follower.get(path, revision=then, **query).expect(200))
        grown = max(nodes.memory_kb(number) - memory, 0) / 1024
        times = in_turns({"now": lambda: follower.get(path, **query).expect(200),
                          "then": lambda: follower.get(path, revision=then, **query).expect(200)}, options.rounds)
        rows.append((f"{changes:,}", f"{made:.0f}", f"{statistics.median(times['then']):.2f}", f"{statistics.median(times['now']):.2f}", f"{grown:.0f}"))
        # What was made is retained for a minute after its last use: the next row begins without it.
        if total != options.changes[-1]:
            time.sleep(options.pause)
    table(("changes since", "first list, ms", "further lists, ms", "the same list of now, ms", "memory, MB more"), rows)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--configs", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=31)
    options.add_argument("--changes", type=int, nargs="+", default=[1_000, 10_000, 50_000], help="changes since the earlier revision")
    options.add_argument("--pause", type=float, default=65, help="seconds until an earlier state is released")
    options.add_argument("what", nargs="*", default=["labels", "parts", "past"])
    options = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="concord-lists-") as home, Nodes(home, 3, {"CONCORD_AUDIT": "off"}) as nodes:
        for what in options.what:
            {"labels": labels, "parts": parts, "past": past}[what](nodes, options)


main()
