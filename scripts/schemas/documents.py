"""Random documents for a schema, mutations of them, and the verdict of Python's `jsonschema` on both.

The documents are made from the schema with a seed: at each place one of the variants, mostly what the keywords ask for and
sometimes beside it. Texts come from a stock of good and nearly good ones for every format and pattern. What is valid is
decided by `jsonschema`, never by what made the document.
"""

import base64
import datetime
import functools
import json
import random
import string
import uuid

import jsonschema
import regex

STOCK = {
    "email": ["a@example.com", "first.last+tag@mail.example.org", "x@y.co", "nobody", "a@b@c", "@example.com", "a@", "a b@example.com", "a@-x.com"],
    "uuid": ["0190163d-8694-739b-aea5-966c26f8ad91", "00000000-0000-0000-0000-000000000000", "0190163D-8694-439B-8EA5-966C26F8AD91",
             "0190163d8694739baea5966c26f8ad91", "0190163d-8694-739b-aea5-966c26f8ad9", "g190163d-8694-739b-aea5-966c26f8ad91"],
    "date": ["2024-02-29", "1999-12-31", "2023-02-29", "2024-1-01", "2024-13-01", "20240229", "today"],
    "date-time": ["2024-02-29T12:00:00Z", "2024-02-29T12:00:00.123+02:00", "1999-12-31T23:59:59-08:00", "2024-02-29T12:00:00", "2024-02-29",
                  "2024-02-29 12:00:00Z", "2024-02-30T12:00:00Z", "2024-02-29T25:00:00Z"],
    "time": ["12:00:00Z", "23:59:59.5+01:00", "12:00:00", "12:00", "24:00:00Z", "noon"],
    "duration": ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P2W", "PT0S", "P", "1D", "PT", "P1H", "-P1D"],
    "uri": ["https://example.com/a?b=c#d", "http://localhost:8101", "urn:isbn:0451450523", "mailto:a@example.com", "/a/b", "example.com", "http://a b", ""],
    "ipv4": ["127.0.0.1", "10.1.2.3", "255.255.255.255", "256.0.0.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["::1", "2001:db8::1", "fe80:0:0:0:0:0:0:1", "1::2::3", "::g", "127.0.0.1"],
    "ipv4network": ["10.0.0.0/8", "192.168.1.0/24", "10.0.0.1/8", "10.0.0.0", "x"],
    "base64": ["aGVsbG8=", "", "YQ==", "a", "a===", "aGVsbG8"],
    "password": ["secret", "", "p4ss"],
}
OTHER_TEXTS = [
    "", "a", "ab", "abc", "EUR", "USD", "x", "a-b", "-a", "a-1.json", "1px", "2.5em", "px", "eu", "us", "red", "blue", "A", "é", "日本", "😀", "😀👍", "a\u0000b",
    "null", "true", "7", "7.0", "-1", "1e3", "0", "12.50", "-12.50", "1234567.89", "123456789.123", "+49123456789", "123456789", "10.0.0.0/24", "10.0.0.0/33",
    "V1StGXR8_Z5jdHi6B-myT", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "cjld2cjxh0000qzrmn831i7rn", "a" * 255, "a" * 256, "img:1", "reg/img:v1.0", "UPPER", "with space",
    '"quoted"', "[1]", "{}", "a,b", "lower", "abcdefgh", "abcdefghi", "tiny",
]
ANY = [None, True, False, 0, 1, -1, 7, 1.5, 1e3, 10**20, "", "a", "7", "null", [], [1], ["a", None], {}, {"a": 1}, {"b": [True]}]


@functools.lru_cache(maxsize=None)
def pattern(text):
    """A pattern as ECMA-262 reads it, for Python."""
    out, place, in_class = [], 0, False
    while place < len(text):
        char = text[place]
        if char == "\\":
            out.append({"d": "[0-9]" if not in_class else "0-9", "w": "[A-Za-z0-9_]" if not in_class else "A-Za-z0-9_"}.get(text[place + 1], text[place:place + 2]))
            place += 2
            continue
        in_class = (in_class or char == "[") and char != "]"
        out.append(r"(?!\n)\Z" if char == "$" and not in_class else char)
        place += 1
    return regex.compile("".join(out))


def _pattern(_validator, expected, instance, _schema):
    if isinstance(instance, str) and not pattern(expected).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {expected!r}")


def validator(schema):
    """Python's validator of a schema, with formats asserted and patterns as ECMA-262 reads them."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return jsonschema.validators.extend(kind, {"pattern": _pattern})(schema, format_checker=FORMATS)


def _formats():
    """The formats of the newest draft for all of them, as the node has them, without two mistakes of Python's checks."""
    checker = jsonschema.FormatChecker(formats=())
    for name, (check, raises) in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.items():
        # `$` lets a line feed follow, and a duration of RFC 3339 has no sign.
        sound = lambda text, check=check, name=name: check(text) and not (
            isinstance(text, str) and (text.endswith("\n") or name == "duration" and text.startswith("-")))
        checker.checks(name, raises)(sound)
    return checker


FORMATS = _formats()


def leaves(error):
    """What an error comes from: of a union the variant that fits best."""
    if not error.context:
        return {f"{error.validator}:{error.validator_value}" if error.validator in ("format", "type") else error.validator}
    variants = {}
    for inner in error.context:
        variants.setdefault(inner.schema_path[0], []).append(inner)
    best = min(variants.values(), key=lambda found: (any(one.validator in ("type", "const", "enum") and len(one.path) <= 1 for one in found), len(found)))
    return set().union(*map(leaves, best))


class Documents:
    """Documents for a schema."""

    def __init__(self, schema, seed):
        self.schema, self.random = schema, random.Random(seed)

    def resolve(self, schema):
        for _ in range(20):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            target = self.schema
            for name in schema["$ref"].lstrip("#").split("/")[1:]:
                target = target[name.replace("~1", "/").replace("~0", "~")]
            others = {name: value for name, value in schema.items() if name != "$ref"}
            schema = {**target, **others} if isinstance(target, dict) else target
        return schema

    def document(self):
        return self.value(self.schema, 0)

    def chance(self, share):
        return self.random.random() < share

    def value(self, schema, depth):
        schema = self.resolve(schema)
        if schema in (True, {}) or not isinstance(schema, dict) or self.chance(0.004):
            return json.loads(json.dumps(self.random.choice(ANY)))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        made = self.own(schema, depth) if {"type", "properties", "pattern", "format", "items"} & schema.keys() else None
        for union in ("anyOf", "oneOf"):
            if union in schema:
                variants = schema[union]
                # Deep down those that end.
                if depth > 5:
                    variants = sorted(variants, key=lambda one: len(json.dumps(self.resolve(one))))[:2]
                made = self.merged(made, self.value(self.random.choice(variants), depth + 1))
        for part in schema.get("allOf", []):
            made = self.merged(made, self.value(part, depth + 1))
        return made

    @staticmethod
    def merged(one, other):
        return {**one, **other} if isinstance(one, dict) and isinstance(other, dict) else other

    def own(self, schema, depth):
        kinds = schema.get("type") or ("object" if "properties" in schema else "array" if "items" in schema else "string")
        kind = self.random.choice(kinds) if isinstance(kinds, list) else kinds
        return {"object": self.object, "array": self.array, "string": self.text, "integer": self.number, "number": self.number,
                "boolean": lambda *_: self.chance(0.5), "null": lambda *_: None}[kind](schema, depth)

    def object(self, schema, depth):
        made, required = {}, schema.get("required", [])
        for name, part in schema.get("properties", {}).items():
            if self.chance(0.995) if name in required else self.chance(0.6 if depth < 4 else 0.15):
                made[name] = self.value(part, depth + 1)
        others = [*schema.get("patternProperties", {}).items()]
        if schema.get("additionalProperties") not in (None, False):
            others.append((schema.get("propertyNames", {}).get("pattern", ""), schema["additionalProperties"]))
        names = schema.get("propertyNames", {}).get("enum")
        for names_pattern, part in others:
            for _ in range(self.random.choice([0, 1, 2, 2, 3] if depth < 4 else [0, 0, 1])):
                made[self.random.choice(names) if names else self.text({"pattern": names_pattern} if names_pattern else {"maxLength": 12}, 0)] = self.value(part, depth + 1)
        for name in (names or []) if names and "required" in schema else []:
            made.setdefault(name, self.value(schema.get("additionalProperties", True), depth + 1))
        return made

    def array(self, schema, depth):
        first = schema.get("prefixItems") or (schema["items"] if isinstance(schema.get("items"), list) else [])
        rest = schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items", True)
        low, high = schema.get("minItems", 0), schema.get("maxItems", schema.get("minItems", 0) + 3 if depth < 5 else schema.get("minItems", 0))
        size = self.random.randint(low, min(high, low + 3))
        return [self.value(first[place] if place < len(first) else rest, depth + 1) for place in range(size) if place < len(first) or rest is not False]

    def number(self, schema, _depth):
        is_integer = schema.get("type") == "integer" or self.chance(0.4)
        low = schema.get("minimum", schema.get("exclusiveMinimum", None))
        high = schema.get("maximum", schema.get("exclusiveMaximum", None))
        if self.chance(0.15):
            edges = [edge for edge in (low, high) if edge is not None]
            if edges:
                return self.random.choice(edges)
        low = max(-1000 if low is None else low, -10**9)
        high = min(low + 2000 if high is None else high, 10**9)
        made = self.random.randint(round(low), round(high)) if is_integer else round(self.random.uniform(low, high), self.random.randint(1, 4))
        if step := schema.get("multipleOf"):
            made = round(made / step) * step
        return made

    def text(self, schema, _depth):
        if found := schema.get("pattern"):
            fitting = fitting_texts(found)
            if fitting and self.chance(0.97):
                return self.random.choice(fitting)
        if schema.get("format") in STOCK:
            good = STOCK[schema["format"]]
            made = self.fresh(schema["format"]) if self.chance(0.3) else None
            return made or (self.random.choice(good[:2]) if self.chance(0.8) else self.random.choice(good))
        low, high = schema.get("minLength", 0), schema.get("maxLength", 12)
        if self.chance(0.5):
            fitting = [text for text in OTHER_TEXTS if low <= len(text) <= high]
            if fitting:
                return self.random.choice(fitting)
        return "".join(self.random.choices(string.ascii_lowercase + "0123456789 -_", k=self.random.randint(low, min(high, low + 10))))

    def fresh(self, name):
        """A text of a format that is not in the stock."""
        day = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=self.random.randrange(4 * 10**9))
        return {
            "uuid": lambda: str(uuid.UUID(int=self.random.getrandbits(128), version=4)), "date": lambda: day.date().isoformat(),
            "date-time": lambda: day.isoformat() + self.random.choice(["Z", "+00:00", "-05:30"]), "email": lambda: f"u{self.random.randrange(10**6)}@example.com",
            "ipv4": lambda: ".".join(str(self.random.randrange(256)) for _ in range(4)), "uri": lambda: f"https://h{self.random.randrange(1000)}.example/{self.random.randrange(1000)}",
            "base64": lambda: base64.b64encode(self.random.randbytes(6)).decode(),
        }.get(name, lambda: None)()

    def mutated(self, document):
        """A document with one or two places changed."""
        copy = [json.loads(json.dumps(document))]
        for _ in range(self.random.choice([1, 1, 2])):
            places = [(copy, 0)]
            for parent, name in places:
                value = parent[name]
                if isinstance(value, (dict, list)):
                    places.extend((value, inner) for inner in (value if isinstance(value, dict) else range(len(value))))
            # Never the root itself: the data of a config are an object.
            parent, name = self.random.choice(places[1:] or [([{}], 0)])
            self.change(parent, name)
        return copy[0]

    def change(self, parent, name):
        value, turn = parent[name], self.random.randrange(6)
        if turn == 0:
            del parent[name]
        elif turn == 1 and isinstance(parent, dict):
            parent[self.random.choice(OTHER_TEXTS)] = value
        elif turn == 1:
            parent.append(value)
        elif turn == 2 and isinstance(value, str):
            parent[name] = self.random.choice([value + "x", value[:-1], value.upper(), " " + value, value + "\n", *self.random.choice(list(STOCK.values()))])
        elif turn == 2 and isinstance(value, (int, float)) and not isinstance(value, bool):
            parent[name] = self.random.choice([value + 0.5, -value, value * 10**6, float(value), str(value), value + 1])
        elif turn == 3 and isinstance(value, dict):
            value[self.random.choice(["extra", "kind", "type", "op", *OTHER_TEXTS])] = self.random.choice(ANY)
        else:
            parent[name] = json.loads(json.dumps(self.random.choice([*ANY, *OTHER_TEXTS, value])))


@functools.lru_cache(maxsize=None)
def fitting_texts(text):
    found, everything = pattern(text), [*OTHER_TEXTS, *(one for texts in STOCK.values() for one in texts)]
    return [one for one in everything if found.search(one)]


def valid_and_invalid(schema, count, seed):
    """So many different valid documents and as many invalid ones, as texts; fewer where no more are found."""
    judge, documents = validator(schema), Documents(schema, seed)
    valid, invalid = {}, {}
    for _ in range(400 * count):
        if len(valid) >= count and len(invalid) >= count:
            break
        made = documents.document()
        candidates = [made, documents.mutated(made)] if isinstance(made, dict) else []
        for document in candidates:
            if len(text := json.dumps(document, ensure_ascii=False)) > 100_000:
                continue
            to = valid if judge.is_valid(document) else invalid
            if len(to) < count:
                to.setdefault(text, document)
    return valid, invalid
