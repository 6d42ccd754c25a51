"""Random schemas, and random documents of them as texts of JSON, for scripts/console/forms.py.

Documents are as odd as JSON allows: texts with all line ends and blanks, numbers in any spelling, members in any order and
with any name. What is stored is read without loss: a number is its text, and members have an order.
"""

import dataclasses
import json

MEMBER_NAMES = ["a", "b", "a-b", "a.b", "a b", " ", "0", "10", "2", "__proto__", "constructor", "é", "$ref", "toString", "x/y", "~", "A", "日本", "\n", '"']
PARTS = ["", " ", "  ", "\t", "\n", "\r", "\r\n", "a", "b", "0", "7", "null", "true", '"', "\\", "{", "}", "[", "é", "😀", "\u00a0", "\u200b", "\u2028", "\ufeff", "x" * 90, "-", "–", "/", "<b>", "&amp;"]
NUMBERS = ["0", "-0", "-0.0", "7", "7.0", "7.00", "1e5", "1E5", "1e+5", "1.50e-7", "123456789012345678901234567890", "0.1", "-12.5", "1e400", "100", "9007199254740993"]
CHOICES = [7, "7", None, "null", True, "true", "", " ", "a", "a  b", 7.5, "x\ny"]


class Schemas:
    """Makes one schema; `chance` is a random.Random."""

    def __init__(self, chance):
        self.chance = chance

    def whole(self):
        names = self.chance.sample(MEMBER_NAMES, self.chance.randint(4, 9))
        schema = {"type": "object", "properties": {name: self.part(3) for name in names}, "$defs": {"again": self.object(1, {"next": {"$ref": "#/$defs/again"}})}}
        if self.chance.random() < 0.5:
            schema["required"] = self.chance.sample(names, 2)
        return schema

    def object(self, depth, more=None):
        names = self.chance.sample(MEMBER_NAMES, self.chance.randint(1, 4))
        return {"type": "object", "properties": {**{name: self.part(depth - 1) for name in names}, **(more or {})}}

    def part(self, depth):
        flat = ["string", "string", "number", "integer", "boolean", "enum", "nullable", "decimal", "several", "any"]
        kind = self.chance.choice(flat + (["object", "object", "array", "array", "map", "union", "optional", "again", "tuple"] if depth > 0 else []))
        if kind in ("string", "number", "integer", "boolean"):
            return {"type": kind}
        if kind == "enum":
            return {"enum": self.chance.sample(CHOICES, self.chance.randint(2, 6))}
        if kind == "nullable":
            return {"type": [self.chance.choice(["string", "integer", "boolean"]), "null"]}
        if kind == "decimal":
            return {"anyOf": [{"type": "number"}, {"type": "string"}]}
        if kind == "several":
            return {"type": ["integer", "string", "boolean"]}
        if kind == "any":
            return {}
        if kind == "object":
            return self.object(depth)
        if kind == "array":
            return {"type": "array", "items": self.part(depth - 1)}
        if kind == "tuple":
            return {"type": "array", "prefixItems": [self.part(depth - 1), self.part(depth - 1)]}
        if kind == "map":
            return {"type": "object", "additionalProperties": self.part(depth - 1)}
        if kind == "optional":
            return {"anyOf": [self.object(depth), {"type": "null"}]}
        if kind == "again":
            return {"$ref": "#/$defs/again"}
        branch = lambda name: {"type": "object", "required": ["kind"], "properties": {"kind": {"const": name}, "value": self.part(depth - 1)}, "additionalProperties": False}
        return {self.chance.choice(["anyOf", "oneOf"]): [branch("one"), branch("two"), {"type": "string"}]}


def document(chance, root):
    """The text of a random document of a schema."""
    return text_of(chance, root, root, 6)


def string(chance):
    return quoted("".join(chance.choice(PARTS) for _ in range(chance.choice([0, 1, 1, 2, 3, 6]))))


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def text_of(chance, root, schema, depth):
    again = lambda part: text_of(chance, root, part, depth - 1)
    if "$ref" in schema:
        return text_of(chance, root, root["$defs"]["again"], depth)
    if "const" in schema:
        return quoted(schema["const"])
    if "enum" in schema:
        return quoted(chance.choice(schema["enum"]))
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return again(chance.choice(branches))
    kinds = schema.get("type", ["string", "number", "boolean", "null", "array", "object"])
    kind = chance.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "string":
        return string(chance)
    if kind == "number":
        return chance.choice(NUMBERS)
    if kind == "integer":
        return chance.choice(["0", "-1", "7", "7.0", "123456789012345678901234567890", "1e2"])
    if kind == "boolean":
        return chance.choice(["true", "false"])
    if kind == "null":
        return "null"
    if kind == "array":
        first = [again(part) for part in schema.get("prefixItems", [])]
        return f"[{','.join(first + [again(schema.get('items', {})) for _ in range(chance.randint(0, 3) if depth > 0 else 0)])}]"
    return members(chance, root, schema, depth)


def members(chance, root, schema, depth):
    properties, required = schema.get("properties", {}), schema.get("required", [])
    found = [(name, part) for name, part in properties.items() if name in required or (depth > 0 and chance.random() < 0.7)]
    if depth > 0 and schema.get("additionalProperties", True) is not False:
        part = schema.get("additionalProperties", {"type": "string"})
        others = [name for name in MEMBER_NAMES if name not in properties]
        found += [(name, part) for name in chance.sample(others, chance.randint(0, 3 if "additionalProperties" in schema else 1))]
    chance.shuffle(found)
    return "{%s}" % ",".join(f"{quoted(name)}:{text_of(chance, root, part, depth - 1)}" for name, part in found)


@dataclasses.dataclass(frozen=True)
class Object:
    """Members in their order."""

    members: tuple


@dataclasses.dataclass(frozen=True)
class Number:
    """A number as it is written."""

    text: str


def exact(text):
    """A JSON text without loss."""
    return json.loads(text, object_pairs_hook=lambda pairs: Object(tuple(pairs)), parse_int=Number, parse_float=Number)


def leaf(value):
    """A value that is no object and no list, as it is written."""
    return value.text if isinstance(value, Number) else quoted(value) if not isinstance(value, Object | list) else "(many)"


def differences(before, after, path=()):
    """Where two values differ: (path, before, after). Another order of members is a difference."""
    if isinstance(before, Object) and isinstance(after, Object):
        if [name for name, _ in before.members] != [name for name, _ in after.members]:
            return [(path, [name for name, _ in before.members], [name for name, _ in after.members])]
        return [found for (name, old), (_, new) in zip(before.members, after.members, strict=True) for found in differences(old, new, (*path, name))]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [found for place, (old, new) in enumerate(zip(before, after, strict=True)) for found in differences(old, new, (*path, place))]
    return [] if before == after and type(before) is type(after) else [(path, leaf(before), leaf(after))]
