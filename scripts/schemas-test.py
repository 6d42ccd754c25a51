#!/usr/bin/env python3
"""Definitions from the schemas that Pydantic, zod and schemars write: are documents judged and found as they should be?

    schemas-test.py [--documents 30] [--queries 2500] [--seed 1] [--only NAME]...

For each schema, valid and invalid documents are made at random (schemas/documents.py) and judged three times: by a node, in
dry runs; by Python's `jsonschema`; and by the library that wrote the schema. Every difference must be one of those that
DIFFERENCES names with its reason. Then the valid ones are stored, every path of the schema is indexed and filtered with
every operator, and the keys that the node finds are compared with what schemas/filters.py finds by looking at each document.

Run by schemas-test.sh, which installs what it needs. CONCORD_BIN names the binary; SCHEMARS_BIN, where it is set, the built
program in schemas/schemars: without it serde is not asked. ZOD_MODELS is zod_models.mjs beside an installed zod.
"""

import argparse
import collections
import fnmatch
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "schemas"))

import documents as made  # noqa: E402
import filters  # noqa: E402
from nodes import Nodes  # noqa: E402

PYDANTIC = [sys.executable, str(HERE / "schemas" / "pydantic_models.py")]
ZOD = ["node", os.environ.get("ZOD_MODELS", str(HERE / "schemas" / "zod_models.mjs"))]
SERDE = [os.environ["SCHEMARS_BIN"]] if "SCHEMARS_BIN" in os.environ else None
CREATE = "/api/v1/config_definition/"

# Who may differ from the node: (who, which of the two accepts, of which schemas, what the other one objects to, why). An
# objection is the keyword of the schema, or the library's own code.
DIFFERENCES = [
    ("jsonschema", "jsonschema", "*", "format:email", "takes any text with an @ for an address"),
    ("jsonschema", "jsonschema", "zod-texts", "not compliant with \"base64\" *", "does not check `contentEncoding`, which draft 7 allows to"),
    ("pydantic", "node", "*", "integral number", "7.0 is an integer in JSON Schema, and none in the strict mode"),
    ("pydantic", "node", "*", "base64_decode", "the schema has a format `base64`, which no draft defines"),
    ("pydantic", "node", "pydantic-login", "value_error", "the schema has a format `base64`, which no draft defines"),
    ("pydantic", "node", "*", "decimal_*", "the schema lets a Decimal be any number or text"),
    ("pydantic", "node", "pydantic-price", "greater_than_equal", "the schema bounds a Decimal as a number, not as a text"),
    ("pydantic", "node", "pydantic-areas", "*", "the schema has the pattern of keys as `patternProperties`, so other keys are free"),
    ("pydantic", "node", "*", "url_scheme", "the schema says of an AnyHttpUrl that it is a URI"),
    ("pydantic", "node", "pydantic-network", "value_error", "the schema has a format `ipv4network`, which no draft defines"),
    ("pydantic", "pydantic", "*", "format:date-time", "a time without its offset, or a number as text, is no `date-time` of RFC 3339"),
    ("pydantic", "pydantic", "*", "format:time", "a time of day without its offset is no `time` of RFC 3339"),
    ("pydantic", "pydantic", "*", "format:email", "blanks around an address are cut off"),
    ("pydantic", "pydantic", "*", "format:duration", "a negative duration is none of RFC 3339"),
    ("pydantic", "pydantic", "*", "format:uuid", "a UUID without hyphens is none of RFC 4122"),
    ("pydantic", "pydantic", "*", "uniqueItems", "a set takes equal elements, its schema does not"),
    ("schemars", "node", "*", "integral number", "7.0 is an integer in JSON Schema, and none to serde"),
    ("schemars", "node", "*", "invalid type: floating point * expected [iu]*", "the schema has no maximum for the larger integers"),
    ("schemars", "node", "schemars-enums", "data did not match any variant of untagged enum *", "the schema has no maximum for the larger integers"),
    ("schemars", "schemars", "schemars-flattened", "const", "serde takes the number of a variant for its name"),
    ("schemars", "schemars", "schemars-flattened", "type:string", "serde takes the number of a variant for its name"),
    ("schemars", "schemars", "schemars-rules", "const", "serde takes the number of a variant for its name"),
    ("schemars", "schemars", "schemars-rules", "type:string", "serde takes the number of a variant for its name"),
    ("schemars", "schemars", "schemars-strict", "m??Length", "`#[schemars(length)]` is of the schema alone"),
    ("schemars", "schemars", "schemars-strict", "pattern", "`#[schemars(regex)]` is of the schema alone"),
    ("schemars", "schemars", "schemars-strict", "m??imum", "`#[schemars(range)]` is of the schema alone"),
    ("schemars", "schemars", "*", "uniqueItems", "a set takes equal elements, its schema does not"),
    ("schemars", "schemars", "*", "format:uuid", "a UUID without hyphens is none of RFC 4122"),
    ("schemars", "schemars", "*", "format:date", "chrono takes blanks around a date"),
    ("schemars", "schemars", "*", "format:date-time", "chrono takes a blank for the T"),
    ("zod", "node", "*", "invalid_string:datetime", "`datetime()` takes UTC only, its schema is `date-time`"),
    ("zod", "node", "*", "invalid_string:email", "an address ends with two letters or more, by RFC 5321 with any label"),
    ("zod", "node", "zod-numbers4", "invalid_type:*", "a record of an enum demands all its keys, its schema does not"),
    ("zod", "node", "zod-mixed4", "too_*:array", "the schema of a tuple does not say how long it is"),
    ("zod", "node", "zod-mixed4", "invalid_type:*", "the schema of a tuple does not say how long it is"),
    ("zod", "zod", "zod-texts4", "pattern", "its pattern of an IPv6 address has one group before `::`, its own check any number"),
    ("zod", "zod", "*", "format:uri", "blanks around a URL are cut off, as browsers do"),
    ("zod", "zod", "*", "additionalProperties", "an object drops unknown members, its schema forbids them"),
    ("zod", "zod", "*", "format:time", "`z.iso.time()` has no offset, a `time` of RFC 3339 must"),
]


def output(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def all_schemas():
    """{name: (command of the library's verdicts or None, schema)}"""
    found = {}
    for library, command in (("pydantic", PYDANTIC), ("zod", ZOD)):
        for name, schema in json.loads(output([*command, "schemas"])).items():
            found[f"{library}-{name}"] = (command, schema)
    if SERDE:
        current = json.loads(output([*SERDE, "schemas"]))
        assert current == json.loads((HERE / "schemas" / "schemars.json").read_text()), "schemas/schemars.json is of another version"
    for name, schema in json.loads((HERE / "schemas" / "schemars.json").read_text()).items():
        found[f"schemars-{name}"] = (SERDE, schema)
    return found


def library_verdicts(command, name, texts):
    lines = "".join(json.dumps([name.split("-", 1)[1], text]) + "\n" for text in texts)
    done = subprocess.run([*command, "verdicts"], input=lines, check=True, stdout=subprocess.PIPE, text=True)
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(texts), f"{name}: {len(verdicts)} verdicts on {len(texts)} documents"
    return verdicts


def with_integers(text):
    """A document with each 7.0 written as 7."""
    return json.dumps(json.loads(text, parse_float=lambda digits: int(float(digits)) if float(digits).is_integer() else float(digits)), ensure_ascii=False)


class Run:
    """One run, and what it has found."""

    def __init__(self, client, options):
        self.client, self.options = client, options
        self.differences, self.examples = collections.Counter(), {}
        self.documents, self.queries, self.refused_queries, self.wrong, self.paths, self.refused_paths = 0, 0, 0, [], 0, []

    def node_verdict(self, key, text):
        answer = self.client.ask("POST", f"{CREATE}{key}/config/?dry_run=true", f'{{"config_key": "k", "data": {text}}}')
        answer.expect(201, 422)
        errors = [] if answer.status == 201 else answer.json["errors"]
        assert all(error["loc"][0] == "data" for error in errors), f"{key}: {answer.body!r}"
        formats = {name for error in errors for name in re.findall(r'is not a "([^"]+)"', error["msg"])}
        messages = {re.sub(r"^.*? is (?=not )", "", error["msg"], flags=re.S)[:80] for error in errors}
        return answer.status == 201, {f"format:{name}" for name in formats} or messages

    def differ(self, who, accepts, objections, example):
        for objection in sorted(objections) or ["*"]:
            self.differences[who, accepts, example[0], objection] += 1
            self.examples.setdefault((who, accepts, example[0], objection), example)

    def judge(self, name, command, schema):
        """Compares the verdicts; the valid documents."""
        key = name
        self.client.ask("POST", CREATE, {"config_definition_key": key, "json_schema": schema}).expect(201)
        valid, invalid = made.valid_and_invalid(schema, self.options.documents, f"{self.options.seed} {name}")
        judge, texts = made.validator(schema), [*valid, *invalid]
        verdicts = library_verdicts(command, name, texts) if command else [None] * len(texts)
        # The verdicts on the same with each 7.0 written as 7.
        integral = [with_integers(text) for text in texts]
        with_7 = library_verdicts(command, name, integral) if command else verdicts
        accepted = []
        for text, verdict, other in zip(texts, verdicts, with_7):
            document = valid.get(text, invalid.get(text))
            (ours, messages), python = self.node_verdict(key, text), text in valid
            self.documents += 1
            # What the schema itself objects to, as `jsonschema` names it; where that does not, as the node does.
            objections = lambda: messages if python else set().union(*(made.leaves(error) for error in judge.iter_errors(document)))
            if ours != python:
                self.differ("jsonschema", "node" if ours else "jsonschema", objections(), (name, text))
            if verdict and verdict[0] != ours:
                library = name.split("-")[0]
                theirs = {"integral number"} if verdict and other[0] else set(verdict[1])
                self.differ(library, "node" if ours else library, theirs if ours else objections(), (name, text))
            if ours and python:
                accepted.append(text)
        self.client.ask("DELETE", f"{CREATE}{key}").expect(200)
        return accepted, (len(valid), len(invalid))

    def store(self, key, schema, texts):
        """Makes the definition with all its paths indexed, and the configs. {text of the path: its steps}"""
        paths = filters.candidates(schema)
        while True:
            patterns = [path for path, steps in paths.items() if None in steps or "[]" in steps]
            surplus = set(patterns[16:])
            indexed = [path for path in paths if path not in surplus][:64]
            body = {"config_definition_key": key, "indexes": indexed, "json_schema": schema}
            answer = self.client.ask("POST", CREATE, body).expect(201, 422)
            if answer.status == 201:
                break
            refused = [indexed[error["loc"][1]] for error in answer.json["errors"]]
            assert refused, answer.body
            self.refused_paths.extend((key, path) for path in refused)
            for path in refused:
                del paths[path]
        self.paths += len(indexed)
        for first in range(0, len(texts), 50):
            operations = ", ".join(
                f'{{"op": "create_config", "config_definition_key": "{key}", "config_key": "k{place:05}", "data": {texts[place]}}}'
                for place in range(first, min(first + 50, len(texts)))
            )
            self.client.ask("POST", "/api/v1/batch", f'{{"operations": [{operations}]}}').expect(200)
        return {path: paths[path] for path in indexed}

    def filter(self, key, schema, texts, count, draw):
        """So many queries of a definition's configs, every operator for every path."""
        paths = self.store(key, schema, texts)
        data = {f"k{place:05}": filters.parsed(text) for place, text in enumerate(texts)}
        begun = self.queries
        while paths and self.queries - begun < count:
            for path, steps in paths.items():
                query_steps, query_path = named(path, steps, data, draw)
                if query_path is None:
                    continue
                brute = filters.Path(schema, query_steps)
                values = [value for one in data.values() for value in filters.indexed(one, query_steps)[0]]
                for operator in ("", "in", "ne", "gte", "gt", "lte", "lt", "prefix", "exists"):
                    self.query(key, query_path, operator, filter_text(operator, brute, values, draw), brute, data)
        self.client.ask("DELETE", f"{CREATE}{key}").expect(200)

    def query(self, key, path, operator, text, brute, data):
        name = path if "." in path or path.split("[")[0] not in RESERVED else f"data.{path}"
        name += f"[{operator}]" if operator else ""
        try:
            expected = {config for config, document in data.items() if brute.matches(operator, text, document)}
        except filters.Refused:
            expected = None
        query = [(name, text), ("limit", 1000), ("fields", "none"), ("sort_by", "config_key"), ("sort_order", "asc")]
        answer = self.client.ask("GET", f"{CREATE}{key}/config/", query=query)
        self.queries += 1
        if answer.status == 422 and "not of the declared type" not in answer.body.decode() and expected is not None:
            found = answer.body[:300]
        elif answer.status == 422:
            found, self.refused_queries = None, self.refused_queries + 1
        else:
            answer.expect(200)
            found = {config["config_key"] for config in answer.data["results"]}
            assert answer.data["meta"]["total"] == len(found), answer.body[:300]
        if found != expected:
            count = lambda keys: len(keys) if isinstance(keys, set) else keys
            self.wrong.append(f"{key}: {name}={text!r}: {count(found)} instead of {count(expected)}; kinds {sorted(brute.kinds)}")


# Names that are parameters of a list before they are paths.
RESERVED = {"page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor", "config_key",
            "created_at", "modified_at"}


def named(path, steps, data, draw):
    """A path with members of the data in place of what a pattern leaves open: (steps, text)"""
    chosen = []
    for step in steps:
        if step is not None:
            chosen.append(step)
            continue
        maps = [found for one in data.values() for found in filters.select(one, chosen) if isinstance(found, dict)]
        # A member with an empty name has no path.
        members = sorted({name for found in maps for name in found if name})
        if not members:
            return None, None
        chosen.append(draw.choice(members))
    text = ""
    for step in chosen:
        if step == "[]":
            text += "[]"
        else:
            text += ("." if text else "") + "".join("\\" + char if char in "\\.*[" else char for char in step)
    return (chosen, text) if text else (None, None)


def filter_text(operator, brute, values, draw):
    """The text of a filter: mostly about a value that is there."""
    if operator == "exists":
        return draw.choice(["true", "false"])
    if operator == "prefix":
        strings = [value for value in values if isinstance(value, str) and value]
        return draw.choice(strings)[: draw.randint(1, 3)] if strings and draw.random() < 0.9 else draw.choice(["a", "", "zz"])
    if operator == "in":
        return ",".join(text_of(brute, values, draw) for _ in range(draw.randint(1, 3)))
    return text_of(brute, values, draw)


def text_of(brute, values, draw):
    if not values or draw.random() < 0.15:
        value = draw.choice([None, True, False, filters.decimal.Decimal(7), "7", "null", "a", "true", "", {}, "no such text"])
    else:
        value = draw.choice(values)
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return value if brute.kinds == {"string"} or draw.random() < 0.5 else quoted
    if isinstance(value, filters.decimal.Decimal):
        return draw.choice([str(value), str(value), format(value, "E").replace("E+", "E"), f"{value:f}" + ("" if "." in f"{value:f}" else ".0")])
    shuffled = dict(sorted(value.items(), key=lambda _: draw.random())) if isinstance(value, dict) else value
    return json.dumps(shuffled, default=lambda number: float(number) if number != int(number) else int(number), ensure_ascii=False)


def report(run, sizes, begun):
    wrong = len(run.wrong)
    print(f"{len(sizes)} schemas, {run.documents} documents: {sum(one[0] for one in sizes.values())} valid, {sum(one[1] for one in sizes.values())} invalid")
    by_reason = collections.Counter()
    for (who, accepts, name, objection), count in sorted(run.differences.items()):
        reason = named_reason(who, accepts, name, objection)
        by_reason[who, accepts, reason or f"NOT NAMED: {objection} in {name}"] += count
        wrong += reason is None
        if reason is None or run.options.verbose:
            print(f"  {name}, accepted by {accepts}, {objection}: {run.examples[who, accepts, name, objection][1][:600]}")
    for (who, accepts, reason), count in by_reason.items():
        print(f"  {count} where {accepts} accepts and {who if accepts == 'node' else 'the node'} does not: {reason}")
    print(f"{run.queries} filters on {run.paths} paths ({run.refused_queries} of them refused as ill-typed): {len(run.wrong)} wrong")
    for line in run.wrong[:40]:
        print(f"  {line}")
    for key, path in run.refused_paths:
        print(f"  {key}: the path {path} is refused")
    print(f"{time.monotonic() - begun:.0f} s, seed {run.options.seed}")
    return wrong


def named_reason(who, accepts, name, objection):
    for *where, names, objections, reason in DIFFERENCES:
        if where == [who, accepts] and fnmatch.fnmatchcase(name, names) and fnmatch.fnmatchcase(objection, objections):
            return reason
    return None


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--documents", type=int, default=30)
    options.add_argument("--queries", type=int, default=2500)
    options.add_argument("--configs", type=int, default=60)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", action="append")
    options.add_argument("--verbose", action="store_true")
    options = options.parse_args()
    begun, sizes = time.monotonic(), {}
    schemas = {name: found for name, found in all_schemas().items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory(prefix="concord-schemas-") as home, Nodes(home) as nodes:
        run, draw = Run(nodes.client(), options), random.Random(options.seed)
        for name, (command, schema) in schemas.items():
            accepted, sizes[name] = run.judge(name, command, schema)
            few = [one for one, size in zip(("valid", "invalid"), sizes[name]) if size < options.documents]
            assert not few, f"{name}: only {sizes[name]} valid and invalid documents were made"
            run.filter(name, schema, accepted[: options.configs], options.queries / len(schemas), draw)
    sys.exit(1 if report(run, sizes, begun) else 0)


if __name__ == "__main__":
    main()
