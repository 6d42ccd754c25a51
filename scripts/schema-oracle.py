#!/usr/bin/env python3
"""Cases for crates/model/tests/oracle.rs, one JSON object a line, with what Python makes of each:

    schema-oracle.py [--numbers 2000] [--unions 500] [--seed 1]

A case of numbers has a bound, a number, and whether `fractions.Fraction` says that the number keeps to the bound. A case of
unions has a schema with `anyOf` and `oneOf`, data in which one place is broken, that place, and the one that `best_match` of
jsonschema names. Run by schema-oracle.sh, which installs jsonschema.
"""

import argparse
import fractions
import json
import random

import jsonschema
from jsonschema import exceptions

BOUNDS = {
    "minimum": lambda number, bound: number >= bound,
    "maximum": lambda number, bound: number <= bound,
    "exclusiveMinimum": lambda number, bound: number > bound,
    "exclusiveMaximum": lambda number, bound: number < bound,
    "multipleOf": lambda number, bound: (number / bound).denominator == 1,
    "const": lambda number, bound: number == bound,
    "enum": lambda number, bound: number == bound,
    "type": lambda number, bound: number.denominator == 1,
}
NEAR = [2**53 - 1, 2**53, 2**53 + 1, 2**52 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64, 2**64 + 1, 10**18, 10**22, 10**30]


def written(rng, value):
    """A text of a number of finite decimals, in one of the ways to write it."""
    digits, exponent = value
    if digits == 0:
        return rng.choice(["0", "-0", "0.0", "0e5", "-0.00e-3"])
    sign, digits = ("-", -digits) if digits < 0 else ("", digits)
    shift = rng.choice([0, 0, 0, 1, 2, 5, 20])
    text = str(digits) + "0" * shift
    exponent -= shift
    if exponent >= 0 and (exponent < 40 and rng.random() < 0.7):
        return sign + text + "0" * exponent
    if rng.random() < 0.6 and -60 < exponent < 0:
        text = text.rjust(1 - exponent, "0")
        text = text[:exponent] + "." + text[exponent:]
        return sign + text
    if rng.random() < 0.3 and len(text) > 1:
        exponent += len(text) - 1
        text = text[0] + "." + text[1:]
    return f"{sign}{text}{rng.choice('eE')}{rng.choice(['', '+']) if exponent >= 0 else ''}{exponent}"


def number(rng):
    """A number as (digits, exponent of ten)."""
    kind = rng.random()
    if kind < 0.3:
        digits = rng.choice(NEAR) + rng.randint(-2, 2)
    elif kind < 0.6:
        digits = rng.randint(0, 200)
    else:
        digits = rng.randint(0, 10 ** rng.randint(1, 40))
    exponent = rng.choice([0, 0, 0, 0, -1, -2, -3, -20, 3, 19, -320, 320]) + rng.choice([0, 0, rng.randint(-5, 5)])
    return (rng.choice([1, 1, -1]) * digits, exponent)


def fraction(value):
    digits, exponent = value
    return fractions.Fraction(digits) * fractions.Fraction(10) ** exponent


def near(rng, value):
    """The same number, one that differs in a late digit, or a multiple."""
    digits, exponent = value
    kind = rng.random()
    if kind < 0.3:
        return value
    if kind < 0.6:
        late = rng.choice([1, 3, 18, 25])
        return (digits * 10**late + rng.choice([1, -1]), exponent - late)
    return (digits * rng.choice([2, 3, -7, 1000, 10**20]), exponent + rng.choice([0, 0, 2]))


def numbers(rng, count):
    for index in range(count):
        # Ten numbers for each bound: compiling a schema takes longer than a check.
        if index % 10 == 0:
            keyword = rng.choice(list(BOUNDS))
            bound = number(rng)
            if keyword == "multipleOf":
                bound = (abs(bound[0]) or 1, bound[1])
            text = written(rng, bound)
            text = {"enum": f"[{text}]", "type": '"integer"'}.get(keyword, text)
        data = near(rng, bound) if rng.random() < 0.7 else number(rng)
        valid = BOUNDS[keyword](fraction(data), fraction(bound))
        print(f'{{"schema": {{"{keyword}": {text}}}, "data": {written(rng, data)}, "valid": {json.dumps(valid)}}}')


class Scalar:
    """A value of one type: `good` and `bad` make texts that keep and break the schema."""

    def __init__(self, rng):
        self.schema, self.good, self.bad = rng.choice([
            ({"type": "integer", "minimum": 1, "maximum": 65535}, lambda: rng.randint(1, 65535), [0, 99999, "x", 1.5]),
            ({"type": "string", "minLength": 2, "pattern": "^[a-z]*$"}, lambda: rng.choice(["ab", "abc", "name"]), ["", "A9", 5]),
            ({"type": "boolean"}, lambda: rng.random() < 0.5, ["true", 1]),
            ({"type": "number", "exclusiveMinimum": 0}, lambda: rng.choice([0.5, 3, 7.25]), [0, -1.5, "1"]),
            ({"enum": ["red", "green", "blue"]}, lambda: rng.choice(["red", "blue"]), ["pink", 3]),
        ])

    def make(self, rng):
        value = self.good()
        return value, [((), bad) for bad in self.bad]


class List:
    def __init__(self, rng, depth):
        self.items = member(rng, depth - 1)
        self.schema = {"type": "array", "items": self.items.schema, "maxItems": 4}

    def make(self, rng):
        made = [self.items.make(rng) for _ in range(rng.randint(1, 3))]
        value = [one for one, _ in made]
        breaks = [((), "list"), ((), value * 5)]
        for index, (_, inner) in enumerate(made):
            breaks += [((index, *path), [*value[:index], bad, *value[index + 1:]]) for path, bad in inner]
        return value, breaks


class Model:
    """An object; with a tag, its member `kind` has this value."""

    def __init__(self, rng, depth, tag=None, names="abcdefgh"):
        self.members = {name: member(rng, depth - 1) for name in rng.sample(names, rng.randint(1, 4))}
        self.tags = tag
        self.required = rng.sample(list(self.members), rng.randint(1, len(self.members)))
        properties = {name: one.schema for name, one in self.members.items()}
        if tag:
            properties = {"kind": {"const": tag[0]} if len(tag) == 1 else {"enum": tag}, **properties}
            self.required = ["kind", *self.required]
        self.closed = rng.random() < 0.5
        self.schema = {"type": "object", "properties": properties, "required": self.required}
        if self.closed:
            self.schema["additionalProperties"] = False

    def make(self, rng):
        made = {name: one.make(rng) for name, one in self.members.items() if name in self.required or rng.random() < 0.7}
        value = {name: one for name, (one, _) in made.items()}
        if self.tags:
            value = {"kind": rng.choice(self.tags), **value}
        breaks = [((), "object")]
        breaks += [((), {n: v for n, v in value.items() if n != gone}) for gone in self.required if gone != "kind"]
        if self.tags:
            breaks.append((("kind",), {**value, "kind": "unknown"}))
        if self.closed:
            breaks.append(((), {**value, "surplus": 1}))
        for name, (_, inner) in made.items():
            breaks += [((name, *path), {**value, name: bad}) for path, bad in inner]
        return value, breaks


class Union:
    """The kinds that libraries write: an optional value, a tagged union, one of models, one of scalars."""

    def __init__(self, rng, depth):
        kind = rng.random()
        null = {"type": "null"}
        if kind < 0.4:
            self.branches = [Model(rng, depth) if rng.random() < 0.7 else member(rng, depth - 1)]
            extra = [null]
        elif kind < 0.75:
            tags = [["card"], ["bank", "sepa"], ["cash"], ["voucher"]]
            self.branches = [Model(rng, depth, tag) for tag in tags[: rng.randint(2, 4)]]
            extra = [null] if rng.random() < 0.3 else []
        elif kind < 0.9:
            self.branches = [Model(rng, depth, names="abcd"), Model(rng, depth, names="mnop")]
            extra = []
        else:
            self.branches = [Scalar(rng), Model(rng, depth)]
            extra = [null]
        schemas = [branch.schema for branch in self.branches] + extra
        rng.shuffle(schemas)
        self.schema = {rng.choice(["anyOf", "oneOf"]): schemas}

    def make(self, rng):
        return rng.choice(self.branches).make(rng)


def member(rng, depth):
    if depth <= 0:
        return Scalar(rng)
    kind = rng.random()
    if kind < 0.4:
        return Scalar(rng)
    if kind < 0.5:
        return List(rng, depth)
    return Union(rng, depth) if kind < 0.8 else Model(rng, depth)


def unions(rng, count):
    while count > 0:
        one = {"properties": {"u": Union(rng, 3)}}
        schema = {"type": "object", "properties": {"u": one["properties"]["u"].schema}}
        validator = jsonschema.Draft202012Validator(schema)
        value, breaks = one["properties"]["u"].make(rng)
        if not validator.is_valid({"u": value}):
            continue
        for path, bad in rng.sample(breaks, min(4, len(breaks))):
            data = {"u": bad}
            best = exceptions.best_match(validator.iter_errors(data))
            # What is broken in one branch may be right in another one.
            if best is not None and count > 0:
                count -= 1
                case = {"schema": schema, "data": data, "broken": ["u", *path], "best": list(best.absolute_path)}
                print(json.dumps(case))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--numbers", type=int, default=2000)
    parser.add_argument("--unions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    numbers(rng, asked.numbers)
    unions(rng, asked.unions)


main()
