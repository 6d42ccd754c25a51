"""What filters find, computed anew from docs/reference/filters.md: by looking at every document.

It shares nothing with the service: numbers are decimals, types are read from the schema by code of its own, and there are no
indexes.
"""

import decimal
import json

KINDS = ("null", "boolean", "number", "string", "array", "object")
ALL = frozenset(KINDS)
MISSING = object()


def kind(value):
    return {type(None): "null", bool: "boolean", decimal.Decimal: "number", str: "string", list: "array", dict: "object"}[type(value)]


def parsed(text):
    """JSON with exact numbers."""
    return json.loads(text, parse_float=decimal.Decimal, parse_int=decimal.Decimal, parse_constant=lambda name: int(f"no {name}"))


class Schema:
    """The kinds that a schema lets the values of a path have."""

    def __init__(self, schema):
        self.schema = schema

    def kinds(self, steps):
        """(the kinds of the value, the kinds of its elements where it may be an array)"""
        return self.visit(self.schema, tuple(steps), frozenset())

    def target(self, reference):
        found = self.schema
        for name in reference.lstrip("#").split("/")[1:]:
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return found

    def visit(self, part, steps, seen):
        if part is False:
            return frozenset(), frozenset()
        if part is True or (id(part), steps) in seen:
            return ALL, ALL
        seen = seen | {(id(part), steps)}
        is_old = "draft-0" in str(self.schema.get("$schema", ""))
        if "$ref" in part and is_old:
            return self.visit(self.target(part["$ref"]), steps, seen)
        found = self.own(part, steps, seen)
        both = lambda one, other: (one[0] & other[0], one[1] & other[1])
        either = lambda all_of: (frozenset().union(*(one[0] for one in all_of)), frozenset().union(*(one[1] for one in all_of)))
        if "$ref" in part:
            found = both(found, self.visit(self.target(part["$ref"]), steps, seen))
        for inner in part.get("allOf", []):
            found = both(found, self.visit(inner, steps, seen))
        for union in ("anyOf", "oneOf"):
            if union in part:
                found = both(found, either([self.visit(inner, steps, seen) for inner in part[union]]))
        return found

    def own(self, part, steps, seen):
        kinds = ALL
        if "type" in part:
            named = part["type"] if isinstance(part["type"], list) else [part["type"]]
            kinds = frozenset("number" if name == "integer" else name for name in named)
        for values in ([part["const"]] if "const" in part else None, part.get("enum")):
            if values is not None:
                kinds &= {kind(parsed(json.dumps(value))) for value in values}
        if not steps:
            return kinds, self.elements(part, (), seen) if "array" in kinds else frozenset()
        step, rest = steps[0], steps[1:]
        if step == "[]":
            return self.below(part, rest, seen) if "array" in kinds else (frozenset(), frozenset())
        if "object" not in kinds:
            return frozenset(), frozenset()
        if step in part.get("properties", {}):
            return self.visit(part["properties"][step], rest, seen)
        if "additionalProperties" in part and "patternProperties" not in part:
            return self.visit(part["additionalProperties"], rest, seen)
        return ALL, ALL

    def below(self, part, rest, seen):
        items = part.get("items", True)
        first = items if isinstance(items, list) else part.get("prefixItems", [])
        others = part.get("additionalItems", True) if isinstance(items, list) else items
        is_closed = part.get("maxItems", len(first) + 1) <= len(first)
        found = [self.visit(one, rest, seen) for one in [*first, *([] if is_closed else [others])]]
        return frozenset().union(*(one[0] for one in found)), frozenset().union(*(one[1] for one in found))

    def elements(self, part, rest, seen):
        return self.below(part, rest, seen)[0]


def select(document, steps):
    """The values where the steps lead."""
    if not steps:
        return [document]
    step, rest = steps[0], steps[1:]
    if step == "[]":
        return [found for one in document for found in select(one, rest)] if isinstance(document, list) else []
    return select(document[step], rest) if isinstance(document, dict) and step in document else []


def indexed(document, steps):
    """(the values by which a document is found, whether there is anything)"""
    places = select(document, steps)
    values = [value for place in places for value in (place if isinstance(place, list) else [place])]
    return values, bool(places)


def equal(one, other):
    if kind(one) != kind(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return one == other


class Refused(Exception):
    """The text has no meaning for the path."""


class Path:
    """An indexed path, with the kinds that may be there."""

    def __init__(self, schema, steps):
        self.steps = steps
        own, elements = Schema(schema).kinds(steps)
        self.kinds = (own - {"array"}) | elements if "array" in own else own

    def meant(self, text, among=ALL):
        """The values that a text stands for."""
        kinds = self.kinds & among
        if self.kinds == {"string"}:
            return [text] if kinds else []
        try:
            value = parsed(text)
        except (ValueError, RecursionError):
            value = MISSING
        found = [value] if value is not MISSING and kind(value) in kinds else []
        if self.kinds == ALL and value is not MISSING and not found:
            raise Refused
        is_that_alone = found and (isinstance(value, str) or self.kinds == ALL)
        if "string" in kinds and not is_that_alone:
            found.append(text)
        if not found:
            raise Refused
        return found

    def matches(self, operator, text, document):
        values, is_there = indexed(document, self.steps)
        if operator == "exists":
            if text not in ("true", "false"):
                raise Refused
            return is_there == (text == "true")
        if operator == "prefix":
            if "string" not in self.kinds:
                raise Refused
            return any(isinstance(value, str) and value.startswith(text) for value in values)
        if operator in ("", "ne"):
            meant = self.meant(text)
            is_any = any(equal(value, one) for value in values for one in meant)
            return is_any if operator == "" else is_there and not is_any
        if operator == "in":
            # A text in quotes is the string in them, also where equality takes the quotes literally.
            unquoted = unquoted_text if self.kinds == {"string"} else lambda part: part
            meant = [one for part in parts(text) for one in self.meant(unquoted(part))]
            return any(equal(value, one) for value in values for one in meant)
        ordered = self.kinds & {"null", "boolean", "number", "string"}
        if self.kinds and not ordered:
            raise Refused
        compare = {"gte": lambda a, b: a >= b, "gt": lambda a, b: a > b, "lte": lambda a, b: a <= b, "lt": lambda a, b: a < b}[operator]
        # Of null there is one value, and false is less than true.
        order = lambda value: 0 if value is None else value
        meant = self.meant(text, ordered)
        return any(kind(value) == kind(one) and compare(order(value), order(one)) for value in values for one in meant)


def unquoted_text(text):
    """The string of a text in JSON's quotes; any other text as it is."""
    try:
        return json.loads(text) if text[:1] == '"' else text
    except ValueError:
        return text


def parts(text):
    """The values of `[in]`: between commas, but a JSON string, array or object is one."""
    found, rest = [], text
    while True:
        end = rest.find(",") if "," in rest else len(rest)
        if rest[:1] in ('"', "[", "{"):
            try:
                _, place = json.JSONDecoder(strict=True).raw_decode(rest)
                end = place if place == len(rest) or rest[place] == "," else end
            except ValueError:
                pass
        found.append(rest[:end])
        if end >= len(rest):
            return found
        rest = rest[end + 1:]


def candidates(schema, depth_max=4):
    """The paths that a user would index, in the order of the schema: (text, steps of a query, or None in place of a map's member)"""
    root, found = Schema(schema), {}

    def walk(part, text, steps, seen, depth):
        if not isinstance(part, dict) or id(part) in seen or depth > depth_max:
            return
        seen = seen | {id(part)}
        if "$ref" in part:
            walk(root.target(part["$ref"]), text, steps, seen, depth)
        for keyword in ("allOf", "anyOf", "oneOf"):
            for inner in part.get(keyword, []):
                walk(inner, text, steps, seen, depth)
        dot = f"{text}." if text else ""
        for name, inner in part.get("properties", {}).items():
            escaped = "".join("\\" + char if char in "\\.*[" else char for char in name)
            found.setdefault(f"{dot}{escaped}", (*steps, name))
            walk(inner, f"{dot}{escaped}", (*steps, name), seen, depth + 1)
        if isinstance(part.get("additionalProperties"), dict) and text:
            found.setdefault(f"{dot}*", (*steps, None))
            walk(part["additionalProperties"], f"{dot}*", (*steps, None), seen, depth + 1)
        items = part.get("items")
        if isinstance(items, dict) and text:
            walk(items, f"{text}[]", (*steps, "[]"), seen, depth + 1)

    walk(schema, "", (), frozenset(), 1)
    return found
