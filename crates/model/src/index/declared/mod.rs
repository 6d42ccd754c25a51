//! The types that a schema declares for an indexed path: whether the path resolves, and how its filter texts are
//! parsed.
//!
//! The schema is read as a set of values: `anyOf`, `oneOf` and `if` unite, `allOf` and `$ref` intersect, and a keyword
//! that is not looked at excludes nothing. So an optional object (`anyOf` of a reference and null) has the members of
//! the object, and a member that only one variant of a union names may be anything that another variant lets it be.
//!
//! **Invariants:** a value at the path that the schema accepts is of one of the kinds that are found. The search ends
//! after [`PATH_SUBSCHEMAS_MAX`] subschemas and [`DEPTH_MAX`] nested ones; what it did not visit may be anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{BitAnd, BitOr},
};

use serde_json::{Map, Value};

use super::{IndexPath, PathStep};
use crate::{
    limits::PATH_SUBSCHEMAS_MAX,
    schema::{self, References},
};

/// Subschemas that one visit of the search may nest: each takes some hundred bytes of the thread's stack.
const DEPTH_MAX: usize = 300;

/// A JSON type; integers are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` and `false`
    Boolean,
    /// Numbers, integers included.
    Number,
    /// Strings.
    String,
    /// Arrays.
    Array,
    /// Objects.
    Object,
}

impl JsonKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Null, Self::Boolean, Self::Number, Self::String, Self::Array, Self::Object];

    /// The kind of a value.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::String,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

/// A set of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonKinds(u8);

impl JsonKinds {
    /// No kind.
    pub const NONE: Self = Self(0);
    /// Every kind.
    pub const ALL: Self = Self(0x3F);

    /// The set of these.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = JsonKind>) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | 1 << kind as u8))
    }

    /// Whether it has a kind.
    #[must_use]
    pub fn has(self, kind: JsonKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    /// Its kinds, in their order.
    pub fn iter(self) -> impl Iterator<Item = JsonKind> {
        JsonKind::ALL.into_iter().filter(move |kind| self.has(*kind))
    }

    /// The set without a kind.
    #[must_use]
    pub fn without(self, kind: JsonKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }
}

impl BitOr for JsonKinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for JsonKinds {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The kinds that a value at a path may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// The value's own kinds.
    pub kinds: JsonKinds,
    /// The kinds of its elements, when it may be an array.
    pub elements: JsonKinds,
}

impl Declared {
    /// Anything.
    pub const ANY: Self = Self { kinds: JsonKinds::ALL, elements: JsonKinds::ALL };
    const NOTHING: Self = Self { kinds: JsonKinds::NONE, elements: JsonKinds::NONE };

    /// Whether a list may be sorted by the path: arrays and objects have no order.
    #[must_use]
    pub fn is_sortable(&self) -> bool {
        self.kinds == JsonKinds::NONE
            || self.kinds.without(JsonKind::Array).without(JsonKind::Object) != JsonKinds::NONE
    }

    /// The kinds of the values that are indexed: an array is indexed by its elements.
    #[must_use]
    pub fn indexed(&self) -> JsonKinds {
        if self.kinds.has(JsonKind::Array) {
            self.kinds.without(JsonKind::Array) | self.elements
        } else {
            self.kinds
        }
    }

    /// What both allow.
    fn and(self, other: Self) -> Self {
        Self { kinds: self.kinds & other.kinds, elements: self.elements & other.elements }
    }

    /// What either allows.
    fn or(self, other: Self) -> Self {
        Self { kinds: self.kinds | other.kinds, elements: self.elements | other.elements }
    }
}

/// Whether a schema names a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Naming {
    /// It says nothing by itself.
    Silent,
    /// It constrains nothing, so that any path is there.
    Free,
    /// It constrains its values and does not name the path.
    Missing,
    /// It names it.
    Named,
}

/// What a schema says of a path below it.
#[derive(Debug, Clone, Copy)]
struct PathDeclaration {
    declared: Declared,
    naming: Naming,
}

impl PathDeclaration {
    const SILENT: Self = Self { declared: Declared::ANY, naming: Naming::Silent };

    /// What a schema says that demands both.
    fn and(self, other: Self) -> Self {
        Self { declared: self.declared.and(other.declared), naming: self.naming.max(other.naming) }
    }

    /// What a schema says that demands either.
    fn or(self, other: Self) -> Self {
        let naming = match (self.naming, other.naming) {
            (Naming::Named, _) | (_, Naming::Named) => Naming::Named,
            (Naming::Free, _) | (_, Naming::Free) => Naming::Free,
            _ => Naming::Missing,
        };
        Self { declared: self.declared.or(other.declared), naming }
    }
}

/// The types that a schema declares, path by path.
#[derive(Debug)]
pub struct Types<'s> {
    root: Option<&'s Value>,
    references: References<'s>,
}

impl<'s> Types<'s> {
    /// Those of a schema, or of none.
    #[must_use]
    pub fn of(schema: Option<&'s Value>) -> Self {
        Self { root: schema, references: schema.map(References::of).unwrap_or_default() }
    }

    /// The types of a path, for a pattern those of all that it selects; `None` when it does not resolve.
    #[must_use]
    pub fn declared(&self, path: &IndexPath) -> Option<Declared> {
        let Some(root) = self.root else { return Some(Declared::ANY) };
        let ways = path.steps.iter().map(|step| match step {
            PathStep::Member(name) => DeclaredStep::Member(name),
            PathStep::AnyMember => DeclaredStep::AnyMember,
            PathStep::Elements => DeclaredStep::Elements,
        });
        let mut search = Search {
            references: &self.references,
            ways: ways.collect(),
            known: BTreeMap::new(),
            open: BTreeSet::new(),
        };
        let found = search.visit(root, 0);
        matches!(found.naming, Naming::Free | Naming::Named).then_some(found.declared)
    }
}

/// A step of a path.
#[derive(Debug, Clone, Copy)]
enum DeclaredStep<'a> {
    /// The member of a name that the schema must have.
    Member(&'a str),
    /// Every member.
    AnyMember,
    /// The elements of an array.
    Elements,
}

/// The search for one path.
struct Search<'a, 's> {
    references: &'a References<'s>,
    ways: Vec<DeclaredStep<'a>>,
    /// What was found, by the address of a subschema and the number of steps above it.
    known: BTreeMap<(usize, usize), PathDeclaration>,
    /// What is being visited.
    open: BTreeSet<(usize, usize)>,
}

impl<'s> Search<'_, 's> {
    /// What a subschema says of the path below the first `depth` steps.
    fn visit(&mut self, part: &'s Value, depth: usize) -> PathDeclaration {
        let Some(map) = part.as_object() else {
            let is_false = part == &Value::Bool(false);
            let declared = if is_false { Declared::NOTHING } else { Declared::ANY };
            return PathDeclaration { declared, naming: self.naming_without_members(is_false, depth) };
        };
        let place = (schema::address(part), depth);
        if let Some(known) = self.known.get(&place) {
            return *known;
        }
        let is_full = self.known.len() >= PATH_SUBSCHEMAS_MAX || self.open.len() >= DEPTH_MAX;
        // A subschema that applies itself says nothing more about itself.
        if is_full || !self.open.insert(place) {
            return PathDeclaration::SILENT;
        }
        let mut found = self.applied(map, part, depth);
        if found.naming == Naming::Silent {
            found.naming = Naming::Missing;
        }
        self.open.remove(&place);
        self.known.insert(place, found);
        found
    }

    /// The naming of a schema that has no members of its own.
    fn naming_without_members(&self, is_closed: bool, depth: usize) -> Naming {
        if depth == self.ways.len() {
            Naming::Named
        } else if is_closed {
            Naming::Missing
        } else {
            Naming::Free
        }
    }

    /// What a subschema and all that it applies at the same place say together.
    fn applied(&mut self, map: &'s Map<String, Value>, part: &'s Value, depth: usize) -> PathDeclaration {
        let targets = self.references.targets(part);
        let by_scope = targets.into_iter().map(|all| self.all(all, depth)).reduce(PathDeclaration::or);
        let only_reference = self.references.ignores_siblings() && map.contains_key("$ref");
        if only_reference {
            return by_scope.unwrap_or(PathDeclaration::SILENT);
        }
        let mut found = self.own(map, depth).and(by_scope.unwrap_or(PathDeclaration::SILENT));
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        if let Some(parts) = list("allOf") {
            found = found.and(self.all(parts.iter().collect(), depth));
        }
        for parts in ["anyOf", "oneOf"].into_iter().filter_map(list) {
            let united = parts.iter().map(|part| self.visit(part, depth)).reduce(PathDeclaration::or);
            found = found.and(united.unwrap_or(PathDeclaration::SILENT));
        }
        let otherwise = PathDeclaration { declared: Declared::ANY, naming: Naming::Missing };
        if map.contains_key("if") {
            let mut branch = |keyword| map.get(keyword).map_or(otherwise, |part| self.visit(part, depth));
            let united = branch("then").or(branch("else"));
            // Without either it says nothing.
            found = found.and(PathDeclaration { naming: silent_unless_named(united.naming), ..united });
        }
        let dependent = ["dependentSchemas", "dependencies"].into_iter().filter_map(|name| map.get(name));
        for part in
            dependent.filter_map(Value::as_object).flat_map(Map::values).filter(|part| part.is_object())
        {
            let naming = silent_unless_named(self.visit(part, depth).naming);
            found = found.and(PathDeclaration { declared: Declared::ANY, naming });
        }
        found
    }

    fn all(&mut self, parts: Vec<&'s Value>, depth: usize) -> PathDeclaration {
        parts
            .into_iter()
            .map(|part| self.visit(part, depth))
            .fold(PathDeclaration::SILENT, PathDeclaration::and)
    }

    /// What the keywords of a subschema say by themselves.
    fn own(&mut self, map: &'s Map<String, Value>, depth: usize) -> PathDeclaration {
        let kinds = own_kinds(map);
        let Some(way) = self.ways.get(depth) else {
            let elements =
                if kinds.has(JsonKind::Array) { self.elements(map, depth) } else { JsonKinds::NONE };
            return PathDeclaration { declared: Declared { kinds, elements }, naming: Naming::Named };
        };
        let name = match *way {
            DeclaredStep::Member(name) => name,
            DeclaredStep::AnyMember => {
                return self.several(map, kinds, depth, members(map));
            }
            DeclaredStep::Elements => {
                return self.several(map, kinds, depth, elements(map));
            }
        };
        let named = map.get("properties").and_then(|members| members.get(name));
        let naming = if named.is_some() || !map.keys().any(|keyword| constrains(keyword)) {
            Naming::Silent
        } else {
            Naming::Missing
        };
        let is_free =
            naming == Naming::Silent && named.is_none() && !map.keys().any(|keyword| applies(keyword));
        let naming = if is_free { Naming::Free } else { naming };
        if !kinds.has(JsonKind::Object) {
            return PathDeclaration { declared: Declared::NOTHING, naming };
        }
        if let Some(part) = named {
            let found = self.visit(part, depth + 1);
            // The member is named here, whatever is below it.
            let naming = if found.naming == Naming::Free { Naming::Named } else { found.naming };
            return PathDeclaration { naming, ..found };
        }
        let declared = match map.get("additionalProperties") {
            Some(part) if !map.contains_key("patternProperties") => self.visit(part, depth + 1).declared,
            Some(_) | None => Declared::ANY,
        };
        PathDeclaration { declared, naming }
    }

    /// What a subschema says of a path through any of several members or elements.
    fn several(
        &mut self,
        map: &'s Map<String, Value>,
        kinds: JsonKinds,
        depth: usize,
        parts: MemberSchemas<'s>,
    ) -> PathDeclaration {
        let is_free = !map.keys().any(|keyword| constrains(keyword) || applies(keyword));
        let says = parts.is_said || (map.contains_key("type") && kinds.has(parts.container));
        let naming = match (is_free, says) {
            (true, _) => Naming::Free,
            (false, true) => Naming::Named,
            (false, false) if map.keys().any(|keyword| constrains(keyword)) => Naming::Missing,
            (false, false) => Naming::Silent,
        };
        if !kinds.has(parts.container) {
            let naming = if naming == Naming::Silent { Naming::Silent } else { Naming::Missing };
            return PathDeclaration { declared: Declared::NOTHING, naming };
        }
        if naming != Naming::Named {
            return PathDeclaration { declared: Declared::ANY, naming };
        }
        // What no keyword is about may be anything; the path is not named by that where others are.
        let rest = if parts.named.is_empty() { Naming::Free } else { Naming::Missing };
        let rest = parts.is_open.then_some(PathDeclaration { declared: Declared::ANY, naming: rest });
        let found = parts.named.into_iter().map(|part| self.visit(part, depth + 1)).chain(rest);
        let nothing = PathDeclaration { declared: Declared::NOTHING, naming: Naming::Missing };
        let found = found.reduce(PathDeclaration::or).unwrap_or(nothing);
        let naming = if found.naming == Naming::Free { Naming::Named } else { found.naming };
        PathDeclaration { naming, ..found }
    }

    /// The kinds that the elements of an array may have.
    fn elements(&mut self, map: &'s Map<String, Value>, depth: usize) -> JsonKinds {
        let (first, rest) = match map.get("items") {
            Some(Value::Array(first)) => (Some(first), map.get("additionalItems")),
            rest => (map.get("prefixItems").and_then(Value::as_array), rest),
        };
        let most = map.get("maxItems").and_then(Value::as_u64);
        let is_full = most.zip(first).is_some_and(|(most, first)| most <= first.len() as u64);
        let rest = rest.map_or(JsonKinds::ALL, |part| self.visit(part, depth).declared.kinds);
        let rest = if is_full { JsonKinds::NONE } else { rest };
        let first = first.into_iter().flatten().map(|part| self.visit(part, depth).declared.kinds);
        first.fold(rest, JsonKinds::bitor)
    }
}

fn silent_unless_named(naming: Naming) -> Naming {
    if naming == Naming::Named { Naming::Named } else { Naming::Silent }
}

/// Whether a keyword has subschemas for the same place.
fn applies(keyword: &str) -> bool {
    const KEYWORDS: [&str; 9] = [
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "allOf",
        "anyOf",
        "dependencies",
        "dependentSchemas",
        "if",
        "oneOf",
    ];
    KEYWORDS.contains(&keyword)
}

/// Whether a keyword may exclude values by itself.
fn constrains(keyword: &str) -> bool {
    !applies(keyword) && !["then", "else"].contains(&keyword) && !schema::is_annotation(keyword)
}

/// The kinds that `type`, `enum` and `const` allow.
fn own_kinds(map: &Map<String, Value>) -> JsonKinds {
    let typed = match map.get("type") {
        Some(Value::String(name)) => named(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(named).fold(JsonKinds::NONE, JsonKinds::bitor)
        }
        Some(_) | None => JsonKinds::ALL,
    };
    let listed = map.get("enum").and_then(Value::as_array);
    let listed = listed.map_or(JsonKinds::ALL, |values| JsonKinds::of(values.iter().map(JsonKind::of)));
    let fixed = map.get("const").map_or(JsonKinds::ALL, |value| JsonKinds::of([JsonKind::of(value)]));
    typed & listed & fixed
}

fn named(name: &str) -> JsonKinds {
    let kind = JsonKind::ALL.into_iter().find(|kind| kind.name() == name);
    match name {
        "integer" => JsonKinds::of([JsonKind::Number]),
        _ => JsonKinds::of(kind),
    }
}

/// The subschemas of all members of an object, or of all elements of an array. One of them accepts each member or
/// element that the schema accepts, unless it is open.
struct MemberSchemas<'s> {
    /// [`JsonKind::Object`] or [`JsonKind::Array`].
    container: JsonKind,
    named: Vec<&'s Value>,
    /// Whether there may be others, which no keyword describes.
    is_open: bool,
    /// Whether any keyword is about members, or elements.
    is_said: bool,
}

/// The subschemas of the members of an object.
fn members(map: &Map<String, Value>) -> MemberSchemas<'_> {
    const KEYWORDS: [&str; 7] = [
        "additionalProperties",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "unevaluatedProperties",
    ];
    let is_said = KEYWORDS.iter().any(|keyword| map.contains_key(*keyword));
    let object = |keyword: &str| map.get(keyword).and_then(Value::as_object);
    let named = [object("properties"), object("patternProperties")].into_iter().flatten();
    let additional = map.get("additionalProperties");
    let named = named.flat_map(Map::values).chain(additional).filter(|part| is_possible(part)).collect();
    MemberSchemas { container: JsonKind::Object, named, is_open: additional.is_none(), is_said }
}

/// The subschemas of the elements of an array.
fn elements(map: &Map<String, Value>) -> MemberSchemas<'_> {
    const KEYWORDS: [&str; 8] = [
        "additionalItems",
        "contains",
        "items",
        "maxItems",
        "minItems",
        "prefixItems",
        "unevaluatedItems",
        "uniqueItems",
    ];
    let is_said = KEYWORDS.iter().any(|keyword| map.contains_key(*keyword));
    let (first, rest) = match map.get("items") {
        Some(Value::Array(first)) => (Some(first), map.get("additionalItems")),
        rest => (map.get("prefixItems").and_then(Value::as_array), rest),
    };
    let named = first.into_iter().flatten().chain(rest).filter(|part| is_possible(part)).collect();
    MemberSchemas { container: JsonKind::Array, named, is_open: rest.is_none(), is_said }
}

/// Whether a subschema allows anything at all.
fn is_possible(part: &Value) -> bool {
    *part != Value::Bool(false)
}

#[cfg(test)]
mod tests;
