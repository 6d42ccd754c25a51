"""Both clients beside a model while nodes are killed and paused.

    CONCORD_BIN=target/release/concord python soak.py --seconds 600 --seed 1

Writers change configs on condition of their revisions, two watches and two caches follow, a third cache is started
again and again from its file. At the end the service's own history judges:

- **no lost update**: each write builds on the one before; an acknowledged one is there once, one of unknown outcome at
  most once, a refused one never;
- **no missed change**: each watch has what the history has, each once and in order;
- **no stale value called fresh**: a value with the age `a` has every write that was acknowledged longer than `a` before
  it was read; `live` values are no older than their bound; no cache goes back; a batch is never seen in part.

The first breach ends the run with exit code 1. `--bug NAME` puts a known bug into the client (`tests/bugs.py`): the
soak must find it.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import collections
import contextlib
import json
import pathlib
import random
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("src", "tests"):
    sys.path.insert(0, str(HERE / folder))

from bugs import BUGS  # noqa: E402
from concord_client import (  # noqa: E402
    ApiError,
    AsyncClient,
    Client,
    ConcordError,
    NotCached,
    NotFound,
    NotReady,
    Unavailable,
    UnknownOutcome,
    Value,
    op,
)
from concord_client._flow import clock  # noqa: E402
from nodes import Cluster, cluster, wait_for  # noqa: E402

DEFINITION = "soak"
KEYS = [f"k{n}" for n in range(6)]
PAIR = ["pair-one", "pair-two"]
PASSING = [f"e{n}" for n in range(4)]
DISTURBANCES = ["kill one", "kill leader", "pause one", "pause leader", "kill two", "pause two", "kill all"]
FRESH_S = 15.0
FILE_DRIFT_S = 0.05
"""Between the wall clock, by which a file's age is counted, and the one of this program."""


class Model:
    """What was sent, and what became of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.breaches: List[str] = []
        self.is_over = threading.Event()
        self.acknowledged: Dict[str, int] = {}
        self.unknown: Set[str] = set()
        self.refused: Set[str] = set()
        self.visible: Dict[str, Tuple[List[float], List[int]]] = {key: ([], []) for key in [*KEYS, *PAIR]}
        """Of each config: when acknowledged writes were acknowledged, and the highest revision until then."""
        self.seen: Set[Tuple[str, int, int]] = set()
        self.counts: collections.Counter[str] = collections.Counter()
        self.ages: Dict[str, float] = collections.defaultdict(float)

    def breach(self, text: str) -> None:
        with self.lock:
            self.breaches.append(text)
        self.is_over.set()

    @contextlib.contextmanager
    def outcome(self, token: str, keys: List[str]) -> Iterator[List[Optional[int]]]:
        """Notes what became of a write; the revision is put into the list."""
        done: List[Optional[int]] = []
        try:
            yield done
        except UnknownOutcome:
            with self.lock:
                self.unknown.add(token)
            self.counts["unknown"] += 1
        except (ApiError, Unavailable) as error:
            with self.lock:
                self.refused.add(token)
            self.counts[f"refused: {type(error).__name__}"] += 1
        else:
            at, revision = clock(), done[0] or 0
            with self.lock:
                self.acknowledged[token] = revision
                for key in keys:
                    times, highest = self.visible[key]
                    times.append(at)
                    highest.append(max([revision, *highest[-1:]]))
            self.counts["acknowledged"] += 1

    def acknowledged_before(self, key: str, at: float) -> int:
        """The highest revision of a config that was acknowledged before a time."""
        with self.lock:
            times, highest = self.visible[key]
            place = bisect.bisect_left(times, at)
            return highest[place - 1] if place else 0

    def judge_value(self, what: str, key: str, read_at: float, value: Value, drift_s: float = 0.0) -> None:
        needed = self.acknowledged_before(key, read_at - value.age_s - drift_s)
        if (value.revision or 0) < needed:
            self.breach(f"{what}: {value} of the state {value.state_revision} lacks the revision {needed}")
        if value.is_fresh and value.age_s > FRESH_S:
            self.breach(f"{what}: {key} is called fresh and is {value.age_s:.3f} s old")
        with self.lock:
            self.seen.add((key, value.revision or 0, value.data["n"]))
        self.counts[f"{what}: {value.source}"] += 1
        if value.age_s != float("inf"):
            self.ages[value.source] = max(self.ages[value.source], value.age_s)


class Reader:
    """Reads one cache, and judges what it sees."""

    def __init__(self, model: Model, what: str) -> None:
        self.model, self.what, self.last = model, what, dict.fromkeys([*KEYS, *PAIR], 0)

    def read(self, cache: Any, random_: random.Random) -> None:
        key = random_.choice(KEYS)
        read_at = clock()
        value = cache.get(DEFINITION, key)
        self.model.judge_value(self.what, key, read_at, value)
        if (value.revision or 0) < self.last[key]:
            self.model.breach(f"{self.what}: {key} went back from {self.last[key]} to {value.revision}")
        self.last[key] = value.revision or 0

    def read_pair(self, cache: Any) -> None:
        found = cache.snapshot(DEFINITION)
        one, two = (found[DEFINITION, key].data["n"] for key in PAIR)
        if one != two:
            self.model.breach(f"{self.what}: a batch is seen in part: {one} and {two}")


def write_one(client: Client, model: Model, random_: random.Random, name: str) -> None:
    """A writer: read, compute, write on condition."""
    number = 0
    while not model.is_over.is_set():
        number += 1
        token, began = f"{name}-{number}", clock()
        try:
            if random_.random() < 0.2:
                found = client.read_many([(DEFINITION, key) for key in PAIR]).found
                pair = [found[DEFINITION, key] for key in PAIR]
                data = {"n": pair[0].data["n"] + 1, "token": token}
                puts = [op.put(DEFINITION, each.key, data, if_match=each.revision) for each in pair]
                with model.outcome(token, PAIR) as done:
                    done.append(client.batch(puts).revision)
            elif random_.random() < 0.2:
                passing = random_.choice(PASSING)
                if random_.random() < 0.5:
                    with model.outcome(token, []) as done:
                        done.append(client.upsert(DEFINITION, passing, {"n": 0, "token": token}).revision)
                else:
                    with contextlib.suppress(NotFound, UnknownOutcome):
                        client.delete(DEFINITION, passing)
            else:
                key = random_.choice(KEYS)
                config = client.get(DEFINITION, key)
                needed = model.acknowledged_before(key, began)
                if (config.revision or 0) < needed:
                    model.breach(f"a read of {key} has revision {config.revision} and lacks {needed}")
                data = {"n": config.data["n"] + 1, "token": token}
                with model.outcome(token, [key]) as done:
                    done.append(client.put(DEFINITION, key, data, if_match=config.revision).revision)
        except (ConcordError, KeyError) as error:
            model.counts[f"no answer: {type(error).__name__}"] += 1
        time.sleep(random_.random() * 0.05)


class Log:
    """What a watch has handed out."""

    def __init__(self) -> None:
        self.events: List[Any] = []

    @property
    def revision(self) -> int:
        return self.events[-1].revision if self.events else 0


def watch(client: Client, model: Model, log: Log, begin: int, is_settled: threading.Event) -> None:
    for event in client.watch(DEFINITION, from_revision=begin, prev=True, wait_s=3, idle_events=True):
        if getattr(event, "changes", None):
            log.events.append(event)
        if is_settled.is_set():
            return


def read_cache(cache: Any, model: Model, seed: str) -> None:
    reader, random_ = Reader(model, "threads"), random.Random(seed)
    while not model.is_over.is_set():
        for _ in range(20):
            reader.read(cache, random_)
        reader.read_pair(cache)
        time.sleep(0.005)


async def asynchronous(
    nodes: Cluster, model: Model, log: Log, begin: int, seed: str, is_settled: threading.Event, file: str
) -> None:
    """The client for asyncio: a writer, a watch and a cache with its reader."""
    random_ = random.Random(seed)

    async def follow(client: AsyncClient) -> None:
        async for event in client.watch(DEFINITION, from_revision=begin, prev=True, wait_s=3, idle_events=True):
            if getattr(event, "changes", None):
                log.events.append(event)
            if is_settled.is_set():
                return

    async def write(client: AsyncClient) -> None:
        number = 0
        while not model.is_over.is_set():
            number += 1
            key, token = random_.choice(KEYS), f"async-{number}"
            try:
                config = await client.get(DEFINITION, key)
                data = {"n": config.data["n"] + 1, "token": token}
                with model.outcome(token, [key]) as done:
                    done.append((await client.put(DEFINITION, key, data, if_match=config.revision)).revision)
            except ConcordError as error:
                model.counts[f"no answer: {type(error).__name__}"] += 1
            await asyncio.sleep(random_.random() * 0.05)

    async def read(cache: Any) -> None:
        reader = Reader(model, "asyncio")
        while not model.is_over.is_set():
            reader.read(cache, random_)
            reader.read_pair(cache)
            await asyncio.sleep(0.002)

    client = AsyncClient(nodes.urls, nodes.key, timeout=10)
    async with client, client.cache(DEFINITION, file=file, fresh_s=FRESH_S, start_timeout=60) as cache:
        await asyncio.gather(follow(client), write(client), read(cache))


def restart_from_file(client: Client, model: Model, file: str, random_: random.Random) -> None:
    """A program that starts, reads, and ends, whether there are nodes or not."""
    try:
        with client.cache(DEFINITION, file=file, fresh_s=FRESH_S, start_timeout=0.3) as cache:
            for _ in range(50):
                key, read_at = random_.choice(KEYS), clock()
                model.judge_value("restarted", key, read_at, cache.get(DEFINITION, key), FILE_DRIFT_S)
                time.sleep(0.002)
    except (NotReady, NotCached) as error:
        model.counts[f"restarted: {type(error).__name__}"] += 1


def disturb(nodes: Cluster, model: Model, random_: random.Random, end: float, restart: Callable[[], None]) -> None:
    """Kills and pauses nodes until the time is over, and heals them after each disturbance."""
    while time.monotonic() < end and not model.is_over.is_set():
        kind = random_.choice(
            ["kill one", "kill leader", "pause one", "pause leader", "kill two", "pause two", "kill all"]
        )
        model.counts[kind] += 1
        count = {"one": 1, "two": 2, "all": 3}.get(kind.split()[1], 0)
        chosen = random_.sample(sorted(nodes.api), count) if count else [nodes.leader()]
        act = nodes.pause if kind.startswith("pause") else nodes.kill
        for n in chosen:
            act(n)
        until = time.monotonic() + random_.choice([0.3, 2, 5, 8, 20 if kind == "kill all" else 10])
        while time.monotonic() < min(until, end) and not model.is_over.is_set():
            restart()
            time.sleep(0.2)
        for n in chosen:
            (nodes.resume if kind.startswith("pause") else nodes.start)(n)
        calm = time.monotonic() + random_.choice([0, 1, 3])
        while time.monotonic() < calm:
            restart()
            time.sleep(0.1)
        print(f"{end - time.monotonic():5.0f} s left: {kind} {chosen}; {dict(model.counts)}", flush=True)


def judge_history(client: Client, model: Model, logs: Dict[str, Log], begin: int) -> None:
    """Compares everything with the service's own history."""
    applied: Dict[str, Set[int]] = collections.defaultdict(set)
    changes: Dict[Tuple[int, str], Any] = {}
    for key in [*KEYS, *PAIR, *PASSING]:
        with contextlib.suppress(NotFound):
            previous = None
            for past in reversed(list(client.history(DEFINITION, key))):
                if past.revision < begin:
                    previous = past
                    continue
                changes[past.revision, key] = past
                if past.data is not None:
                    applied[past.data["token"]].add(past.revision)
                if key not in PASSING:
                    if previous is None or past.data["n"] != previous.data["n"] + 1:
                        model.breach(f"a lost update: {key} at {past.revision}: {past.data} after {previous}")
                    previous = past
    for token, revision in model.acknowledged.items():
        if applied[token] != {revision}:
            model.breach(f"the acknowledged write {token} of {revision} is at {applied[token]}")
    for token in model.unknown:
        if len(applied[token]) > 1:
            model.breach(f"the write {token} of unknown outcome was applied at {applied[token]}")
    for token in model.refused:
        if applied[token]:
            model.breach(f"the refused write {token} was applied at {applied[token]}")
    for key, revision, number in model.seen:
        shown = changes.get((revision, key))
        if revision >= begin and (shown is None or shown.data["n"] != number):
            model.breach(f"a cache showed {key} at {revision} as {number}; the history has {shown}")
    for name, log in logs.items():
        revisions = [event.revision for event in log.events]
        if revisions != sorted(set(revisions)):
            model.breach(f"the watch of {name} has revisions twice or out of order")
        told = {(event.revision, change.key): change.data for event in log.events for change in event.changes}
        for place in sorted(set(changes) ^ set(told)):
            model.breach(f"the watch of {name} and the history differ at {place}")
        for place, data in told.items():
            if place in changes and changes[place].data != data:
                model.breach(f"the watch of {name} has {data} at {place}, the history {changes[place].data}")
    model.counts["changes in the history"] = len(changes)
    model.counts["applied of unknown outcome"] = sum(1 for token in model.unknown if applied[token])


def settled(client: Client, logs: Dict[str, Log], caches: List[Any]) -> bool:
    """Whether the watches and caches have the last change, and the caches are confirmed."""
    try:
        last = max(next(client.history(DEFINITION, key)).revision for key in [*KEYS, *PAIR])
    except ConcordError:
        return False
    has_all = all(log.revision >= last for log in logs.values()) and all(
        each.status.revision >= last for each in caches
    )
    return has_all and all(each.status.source == "live" for each in caches)


def run(seconds: float, seed: int) -> int:
    model, random_ = Model(), random.Random(seed)
    logs = {"threads": Log(), "asyncio": Log()}
    is_settled = threading.Event()
    with cluster() as nodes, Client(nodes.urls, nodes.key, timeout=10) as client:
        client.create_definition(DEFINITION, timeout=60)
        puts = [op.create(DEFINITION, key, {"n": 0, "token": f"first-{key}"}) for key in [*KEYS, *PAIR]]
        begin = (client.batch(puts, timeout=60).revision or 0) + 1
        files = [str(nodes.home / f"known-{n}.json") for n in range(2)]
        main = client.cache(DEFINITION, file=files[0], fresh_s=FRESH_S, start_timeout=60).start()
        threads = [threading.Thread(target=watch, args=(client, model, logs["threads"], begin, is_settled))]
        threads.append(threading.Thread(target=read_cache, args=(main, model, f"{seed}-reader")))
        for n in range(3):
            arguments = (client, model, random.Random(f"{seed}-{n}"), f"writer{n}")
            threads.append(threading.Thread(target=write_one, args=arguments))
        task = asynchronous(nodes, model, logs["asyncio"], begin, f"{seed}-async", is_settled, files[1])
        threads.append(threading.Thread(target=asyncio.run, args=(task,)))
        for each in threads:
            each.start()
        restart_random = random.Random(f"{seed}-restart")
        restart = lambda: restart_from_file(client, model, files[0], restart_random)  # noqa: E731
        try:
            disturb(nodes, model, random_, time.monotonic() + seconds, restart)
        finally:
            model.is_over.set()
        nodes.wait_ready()
        if not model.breaches:
            wait_for(lambda: settled(client, logs, [main]), "the watches and caches to have everything")
        is_settled.set()
        for each in threads:
            each.join()
        if not model.breaches:
            judge_history(client, model, logs, begin)
            final = {each.key: each.data for each in client.list(DEFINITION)}
            if {key: value.data for (_, key), value in main.snapshot().items()} != final:
                model.breach("the cache differs from the list at the end")
            began = time.perf_counter()
            for _ in range(200_000):
                main.get(DEFINITION, "k0")
            model.counts["reads of the cache per second"] = round(200_000 / (time.perf_counter() - began))
    print(json.dumps({"seed": seed, "seconds": seconds, **model.counts, "greatest ages": dict(model.ages)}, indent=1))
    for breach in model.breaches[:20]:
        print(f"soak: BREACH: {breach}", file=sys.stderr)
    return bool(model.breaches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bug", choices=sorted(BUGS), help="a known bug that must be found")
    given = parser.parse_args()
    if given.bug:
        BUGS[given.bug]()
    sys.exit(run(given.seconds, given.seed))
