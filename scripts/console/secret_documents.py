"""Random schemas with secret fields, and random documents of them. Used by scripts/console/secret_edits.py.

Which values are secret is decided here by the rules of docs/guides/secret-fields.md, apart from the node and the console.
Objects are dicts in their order, lists are lists, and a number is its text.

A text that the service must hide contains SECRET_TEXT, a number SECRET_NUMBER: a page is searched for both.
"""

import json

from documents import Number, quoted

MARK = "x-concord-secret"
KEEP = {"$concord-keep": True}
MEMBER_NAMES = ["a", "b", "c", "d", "host", "a-b", "a.b", "a b", " ", "0", "10", "__proto__", "constructor", "é", "$ref", "x/y", "~", "~1", "%41", ",", "日本", '"', "\\"]
PLAIN_TEXTS = ["", " ", "a", "b", "one", "two", "0", "7", "null", "true", "x\ny", "\t", "é😀", '"', "<b>", "••••••"]
NUMBERS = ["0", "-0", "7", "7.0", "1e+5", "1.50e-7", "123456789012345678901234567890"]
SECRET_TEXT, SECRET_NUMBER = "secret-", "90909"
# More paths than `X-Concord-Redacted` names: it has one kilobyte.
MANY = 60


class Secret:
    """A stored value that the key may not see. Two of them are never equal: each is one value at one place."""

    def __init__(self, value):
        self.value = value


def text_of(value, secret):
    """A value as JSON on one line; `secret` makes JSON of a `Secret`."""
    if isinstance(value, Secret):
        return text_of(secret(value), secret)
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        return "{%s}" % ",".join(f"{quoted(name)}:{text_of(item, secret)}" for name, item in value.items())
    if isinstance(value, list):
        return f"[{','.join(text_of(item, secret) for item in value)}]"
    return quoted(value)


def stored_text(value):
    """As the service stores it."""
    return text_of(value, lambda secret: secret.value)


def shown_text(value):
    """As a key without `reveal` writes it."""
    return text_of(value, lambda _: KEEP)


def parsed(text):
    return json.loads(text, parse_int=Number, parse_float=Number)


def closure(root, schemas):
    """All subschemas that apply to the same value as these."""
    found, todo = [], list(schemas)
    while todo:
        schema = todo.pop()
        if not isinstance(schema, dict) or any(schema is other for other in found):
            continue
        found.append(schema)
        todo += [root["$defs"]["again"]] if "$ref" in schema else []
        todo += schema.get("anyOf", []) + schema.get("oneOf", [])
    return found


def inner(root, schemas, part):
    """The subschemas of a member or an element."""
    found = []
    for schema in schemas:
        if isinstance(part, int):
            first = schema.get("prefixItems", [])
            found.append(first[part] if part < len(first) else schema.get("items"))
        else:
            found.append(schema.get("properties", {}).get(part, schema.get("additionalProperties")))
    return closure(root, found)


def with_secrets(root, value, schemas=None):
    """A value with a `Secret` at each place that a mark could apply to."""
    schemas = closure(root, [root]) if schemas is None else schemas
    if any(schema.get(MARK) for schema in schemas):
        return Secret(value)
    if isinstance(value, dict):
        return {name: with_secrets(root, item, inner(root, schemas, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [with_secrets(root, item, inner(root, schemas, place)) for place, item in enumerate(value)]
    return value


class SecretSchemas:
    """Makes schemas and documents; `chance` is a random.Random."""

    def __init__(self, chance):
        self.chance = chance

    def hex(self):
        return f"{self.chance.randrange(1 << 48):012x}"

    def whole(self):
        names = self.chance.sample(MEMBER_NAMES, self.chance.randint(3, 6))
        properties = {name: self.part(3) for name in names}
        # Lists of objects with secret members are where a value could go to another element.
        element = {"host": {"type": "string"}, "token": {"type": self.chance.choice(["string", "integer"]), MARK: True}, **(self.object(1)["properties"] if self.chance.random() < 0.4 else {})}
        properties["replicas"] = {"type": "array", "items": {"type": "object", "properties": element, "required": ["host", "token"]}}
        if self.chance.random() < 0.05:
            properties["many"] = {"type": "object", "additionalProperties": {"type": "string", MARK: True}}
        again = self.object(1)
        again["properties"]["next"] = {"$ref": "#/$defs/again"}
        whole = {"type": "object", "properties": properties, "required": [*self.chance.sample(names, 1), "replicas"], "$defs": {"again": again}}
        return {**whole, MARK: True} if self.chance.random() < 0.02 else whole

    def object(self, depth):
        names = self.chance.sample(MEMBER_NAMES, self.chance.randint(1, 3))
        found = {"type": "object", "properties": {name: self.part(depth - 1) for name in names}}
        if self.chance.random() < 0.3:
            found["required"] = names[:1]
        return found

    def part(self, depth):
        found = self.unmarked(depth)
        return {**found, MARK: True} if self.chance.random() < 0.2 else found

    def unmarked(self, depth):
        flat = ["string", "string", "string", "number", "integer", "boolean", "enum", "nullable", "decimal", "several", "any"]
        kind = self.chance.choice(flat + (["object", "object", "array", "array", "map", "union", "optional", "again", "tuple"] if depth > 0 else []))
        if kind in ("string", "number", "integer", "boolean"):
            return {"type": kind}
        if kind == "enum":
            return {"enum": self.chance.sample([None, True, "7", "a", "a  b", "x\ny", 7], self.chance.randint(2, 5))}
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
        if kind == "union":
            branch = lambda name: {"type": "object", "required": ["kind"], "additionalProperties": False, "properties": {
                "kind": {"const": name}, "value": self.part(depth - 1), self.chance.choice(["x", "y"]): self.part(0)}}
            return {self.chance.choice(["anyOf", "oneOf"]): [branch("one"), branch("two"), {"type": "string"}]}
        return {"nullable": {"type": [self.chance.choice(["string", "integer"]), "null"]}, "decimal": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                "several": {"type": ["integer", "string", "boolean"]}, "any": {}, "again": {"$ref": "#/$defs/again"}}[kind]

    def document(self, root):
        return self.value(root, root, closure(root, [root]), False, 6)

    def value(self, root, schema, schemas, hidden, depth):
        """A value of `schema`; `schemas` are all that apply to it, `hidden` says that it is in a secret one."""
        chance = self.chance
        hidden = hidden or any(one.get(MARK) for one in schemas)
        if "$ref" in schema:
            return self.value(root, root["$defs"]["again"], schemas, hidden, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            picked = chance.choice(schema["enum"])
            return Number("7") if picked == 7 else picked
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return self.value(root, chance.choice(branches), schemas, hidden, depth)
        kinds = schema.get("type", ["string", "number", "boolean", "null", "array", "object"])
        kind = chance.choice(kinds) if isinstance(kinds, list) else kinds
        if kind == "string":
            return f"{chance.choice(PLAIN_TEXTS)}{SECRET_TEXT}{self.hex()}" if hidden else chance.choice(PLAIN_TEXTS)
        if kind in ("number", "integer"):
            return Number(f"{SECRET_NUMBER}{chance.randrange(10**10, 10**11)}") if hidden else Number(chance.choice(NUMBERS if kind == "number" else ["0", "-1", "7", "7.0"]))
        if kind in ("boolean", "null"):
            return chance.random() < 0.5 if kind == "boolean" else None
        if kind == "array":
            first = schema.get("prefixItems", [])
            count = len(first) + (chance.randint(0, 3) if depth > 0 else 0)
            part = lambda place: first[place] if place < len(first) else schema.get("items", {"type": "string"})
            return [self.value(root, part(place), inner(root, schemas, place), hidden, depth - 1) for place in range(count)]
        return self.members(root, schema, schemas, hidden, depth)

    def members(self, root, schema, schemas, hidden, depth):
        chance, required = self.chance, schema.get("required", [])
        found = [(name, part) for name, part in schema.get("properties", {}).items() if name in required or (depth > 0 and chance.random() < 0.75)]
        part = schema.get("additionalProperties", {"type": "string"})
        if depth > 0 and part:
            names = chance.sample(MEMBER_NAMES, chance.randint(0, 3 if "additionalProperties" in schema else 1))
            found += [(name, part) for name in names if name not in schema.get("properties", {})]
        chance.shuffle(found)
        made = {name: self.value(root, part, inner(root, schemas, name), hidden, depth - 1) for name, part in found}
        if "many" in made:
            made["many"] = {f"a name of a secret value, {n}": f"{SECRET_TEXT}{self.hex()}" for n in range(MANY)}
        return made
