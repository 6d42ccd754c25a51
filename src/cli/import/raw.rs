//! The data of another store before they have types, and how values at paths are put together.
//!
//! **Invariant:** a value that is put into a tree is in the tree afterwards, or the report says that it is not.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::Value;

use super::{
    super::document,
    finding::{Code, Findings},
};

/// The member with the value of a key that is a folder, too, and with data that are no object.
pub(super) const VALUE: &str = "_value";
/// Levels of nesting of a config's data. A node accepts 64 in a request, and the members around the data take some.
pub(super) const DEPTH_MAX: usize = 50;

/// A value whose type may not be known yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    /// A text of a store without types.
    Text(String),
    /// Bytes that are no text, as base64.
    Binary(String),
    /// A value of a format with types, without members and elements.
    Typed(Value),
    List(Vec<Raw>),
    Members(Members),
    /// The values below a path: unlike `Members`, it is nothing that the source holds as one value.
    Folder(Folder),
}

/// The members of an object in the order of the source.
pub(super) type Members = IndexMap<String, Raw>;

/// The values below a path, by name and by position, as in `hosts[0]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Folder {
    names: IndexMap<String, Option<Raw>>,
    positions: BTreeMap<usize, Option<Raw>>,
}

/// A step of a path to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Name(String),
    Position(usize),
}

impl Raw {
    /// A value of a store without types. A JSON object or list is read; everything else is a text.
    pub(super) fn of_text(text: String) -> Self {
        match json_document(&text) {
            Some(value) => Self::of_value(value),
            None => Self::Text(text),
        }
    }

    /// A JSON value.
    pub(super) fn of_value(value: Value) -> Self {
        match value {
            Value::Array(elements) => Self::List(elements.into_iter().map(Self::of_value).collect()),
            Value::Object(members) => Self::Members(
                members.into_iter().map(|(name, value)| (name, Self::of_value(value))).collect(),
            ),
            scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                Self::Typed(scalar)
            }
        }
    }

    /// The levels of nesting, up to `left` and one more.
    pub(super) fn depth(&self, left: usize) -> usize {
        match self {
            Self::Text(_) | Self::Binary(_) | Self::Typed(_) => 0,
            Self::List(elements) => 1 + deepest(elements, left),
            Self::Members(members) => 1 + deepest(members.values(), left),
            Self::Folder(folder) => {
                1 + deepest(folder.names.values().chain(folder.positions.values()).flatten(), left)
            }
        }
    }
}

/// The levels of nesting of the deepest of some values.
fn deepest<'r>(values: impl IntoIterator<Item = &'r Raw>, left: usize) -> usize {
    let Some(left) = left.checked_sub(1) else { return 0 };
    values.into_iter().map(|value| value.depth(left)).max().unwrap_or_default()
}

/// A text as a JSON object or list, if it is one. It has no comments and no member twice, which would be lost.
fn json_document(text: &str) -> Option<Value> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    if is_json { document::read_json(text).ok() } else { None }
}

/// The values of one config, each at its path.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: Option<Raw>,
}

impl Tree {
    /// Puts a value at a path. Of two values at one path the later one counts, as for the programs that read such files.
    pub(super) fn put(&mut self, path: &[Step], value: Raw, at: &str, findings: &mut Findings) {
        if path.len() + value.depth(DEPTH_MAX) > DEPTH_MAX {
            findings.add(Code::TooDeep, at, format!("it is nested deeper than {DEPTH_MAX} levels"));
            return;
        }
        match put(&mut self.root, path, value) {
            Put::New => {}
            Put::Beside => {
                let text = format!("it has a value and is a folder: the value is the member `{VALUE}`");
                findings.add(Code::ValueAndFolder, at, text);
            }
            Put::Same => findings.add(Code::Skipped, at, "an earlier value with the same key is equal"),
            Put::Instead => {
                findings.add(Code::Duplicate, at, "it replaces an earlier value with the same key");
            }
        }
    }

    /// The values as one.
    pub(super) fn finish(self, at: &str, findings: &mut Findings) -> Raw {
        let mut gaps = Vec::new();
        let raw = finish(self.root.unwrap_or_else(|| Raw::Members(Members::new())), "", &mut gaps);
        for gap in gaps {
            findings.add(
                Code::Gap,
                format!("{at} {gap}"),
                "a list without some of its positions is an object",
            );
        }
        raw
    }
}

/// What became of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Put {
    New,
    /// A value and the values below its path are side by side.
    Beside,
    /// The same value was there.
    Same,
    /// Another value was there.
    Instead,
}

fn put(slot: &mut Option<Raw>, path: &[Step], value: Raw) -> Put {
    let Some((step, rest)) = path.split_first() else {
        let is_folder = matches!(slot, Some(Raw::Folder(_)));
        return match slot {
            Some(_) if is_folder => put(slot, &[Step::Name(VALUE.to_owned())], value).max(Put::Beside),
            Some(known) if *known == value => Put::Same,
            known => match known.replace(value) {
                Some(_) => Put::Instead,
                None => Put::New,
            },
        };
    };
    let (mut folder, before) = match slot.take() {
        None => (Folder::default(), Put::New),
        Some(Raw::Folder(folder)) => (folder, Put::New),
        Some(whole) => {
            let names = IndexMap::from([(VALUE.to_owned(), Some(whole))]);
            (Folder { names, ..Folder::default() }, Put::Beside)
        }
    };
    let done = match step {
        Step::Name(name) => put(folder.names.entry(name.clone()).or_default(), rest, value),
        Step::Position(at) => put(folder.positions.entry(*at).or_default(), rest, value),
    };
    *slot = Some(Raw::Folder(folder));
    done.max(before)
}

/// A value without folders. `gaps` gets the paths of lists that are objects.
fn finish(raw: Raw, path: &str, gaps: &mut Vec<String>) -> Raw {
    let Raw::Folder(Folder { names, positions }) = raw else { return raw };
    let is_list = names.is_empty() && positions.keys().copied().eq(0..positions.len());
    if !positions.is_empty() && !is_list {
        gaps.push(path.to_owned());
    }
    let positions = positions.into_iter().map(|(at, value)| (format!("[{at}]"), value));
    let mut members = Members::new();
    for (name, value) in names.into_iter().chain(positions) {
        if let Some(value) = value {
            let value = finish(value, &format!("{path}/{name}"), gaps);
            members.insert(name, value);
        }
    }
    if is_list && !members.is_empty() {
        Raw::List(members.into_values().collect())
    } else {
        Raw::Members(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(path: &str) -> Vec<Step> {
        let step = |name: &str| name.parse().map_or_else(|_| Step::Name(name.to_owned()), Step::Position);
        path.split('/').filter(|name| !name.is_empty()).map(step).collect()
    }

    /// What values at paths are together, and what the report says.
    fn tree(values: &[(&str, &str)]) -> (String, Vec<String>) {
        let (mut tree, mut findings) = (Tree::default(), Findings::default());
        for (path, value) in values {
            tree.put(&steps(path), Raw::of_text((*value).to_owned()), path, &mut findings);
        }
        let raw = tree.finish("config", &mut findings);
        (shown(&raw), findings.places())
    }

    fn shown(raw: &Raw) -> String {
        match raw {
            Raw::Text(text) | Raw::Binary(text) => text.clone(),
            Raw::Typed(value) => format!("={value}"),
            Raw::List(elements) => format!("[{}]", elements.iter().map(shown).collect::<Vec<_>>().join(" ")),
            Raw::Members(members) => {
                let each = members.iter().map(|(name, value)| format!("{name}:{}", shown(value)));
                format!("{{{}}}", each.collect::<Vec<_>>().join(" "))
            }
            Raw::Folder(_) => "folder".to_owned(),
        }
    }

    #[test]
    fn values_are_put_together_and_nothing_is_lost_silently() {
        for (values, expected, places) in [
            (&[][..], "{}", &[][..]),
            (&[("a/b", "1"), ("c", "2"), ("a/d", "3")], "{a:{b:1 d:3} c:2}", &[]),
            (&[("a", "1"), ("a/b", "2")], "{a:{_value:1 b:2}}", &["value_and_folder a/b"]),
            (&[("a/b", "2"), ("a", "1")], "{a:{b:2 _value:1}}", &["value_and_folder a"]),
            (&[("a", "{\"b\":1}"), ("a/b", "2")], "{a:{_value:{b:=1} b:2}}", &["value_and_folder a/b"]),
            (&[("", "{\"b\":1}"), ("b", "2")], "{_value:{b:=1} b:2}", &["value_and_folder b"]),
            (&[("a", "1"), ("a", "1")], "{a:1}", &["skipped a"]),
            (&[("a", "1"), ("a", "2")], "{a:2}", &["duplicate a"]),
            (&[("a/1", "y"), ("a/0", "x")], "{a:[x y]}", &[]),
            (&[("a/0/b", "x"), ("a/0/c", "y")], "{a:[{b:x c:y}]}", &[]),
            (&[("a/0", "x"), ("a/2", "y")], "{a:{[0]:x [2]:y}}", &["gap config /a"]),
            (&[("a/0", "x"), ("a/b", "y")], "{a:{b:y [0]:x}}", &["gap config /a"]),
        ] {
            let (shown, found) = tree(values);
            assert_eq!(shown, expected);
            assert_eq!(found, places, "{expected}");
        }
    }

    #[test]
    fn only_a_json_object_or_list_is_read() {
        for (text, expected) in [
            ("{\"a\": 1.50}", "{a:=1.50}"),
            (" [1, \"x\"]\n", "[=1 =\"x\"]"),
            ("{\"a\": 1, \"a\": 2}", "{\"a\": 1, \"a\": 2}"),
            ("{\"a\": 1,}", "{\"a\": 1,}"),
            ("{} // why", "{} // why"),
            ("{{ name }}", "{{ name }}"),
            ("\"x\"", "\"x\""),
            ("7", "7"),
        ] {
            assert_eq!(shown(&Raw::of_text(text.to_owned())), expected);
        }
    }

    #[test]
    fn what_is_too_deep_is_reported() {
        let deep = format!("{}1{}", "[".repeat(60), "]".repeat(60));
        assert_eq!(tree(&[("a", &deep)]), ("{}".to_owned(), vec!["too_deep a".to_owned()]));
        let path = vec!["a"; 60].join("/");
        assert_eq!(tree(&[(&path, "1")]).1.len(), 1);
        // Each is shallow enough, and both together are not.
        let half = format!("{}1{}", "[".repeat(30), "]".repeat(30));
        assert_eq!(tree(&[(&vec!["a"; 30].join("/"), &half)]).1.len(), 1);
    }
}
