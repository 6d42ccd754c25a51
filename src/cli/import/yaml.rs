//! YAML as other programs write it: with anchors, aliases, merge keys and tags.
//!
//! The readers of YAML 1.1 and of 1.2 differ: `yes`, `007`, `12:30`. Only what all of them read alike gets a type here.
//! What they read differently stays a text, and the report says so. [`document`] reads the files of Concord itself, and
//! is strict.
//!
//! **Invariant:** aliases put no more into memory than [`EXPANDED_BYTES_MAX`].

use std::{collections::BTreeMap, path::PathBuf};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::Value;

use super::{
    super::{connection::Failure, document},
    SourceConfig,
    finding::{Code, Findings},
    input::{Input, SourceFile, files},
    lines::note_skipped,
    meaning::is_date_or_sexagesimal,
    raw::{Members, Raw},
};

/// Bytes that the aliases of a file stand for, by [`weight`]. A few lines can name what fills any memory.
const EXPANDED_BYTES_MAX: usize = 64 << 20;
/// Nesting up to which a text is read; the data of a config have less.
const DEPTH_MAX: usize = 128;
/// What a value takes beside its text.
const VALUE_BYTES: usize = 64;

/// Reads YAML files: each document is a config.
pub(super) fn yaml(paths: &[PathBuf], findings: &mut Findings) -> Result<Vec<SourceConfig>, Failure> {
    let (files, skipped) = files(paths, |name| name.ends_with(".yaml") || name.ends_with(".yml"))?;
    note_skipped(skipped, findings);
    let mut input = Input::new();
    let mut configs = Vec::new();
    for SourceFile { path, parts } in files {
        let text = input.text(&path)?;
        let at = path.display().to_string();
        let documents = documents(&text, &at, findings)?;
        configs.extend(numbered(parts, documents, &at));
    }
    Ok(configs)
}

/// The documents of a file as configs: `name`, `name-2` and so on.
pub(super) fn numbered(name: Vec<String>, documents: Vec<Raw>, at: &str) -> Vec<SourceConfig> {
    let of = |(number, data): (usize, Raw)| {
        let mut name = name.clone();
        if let Some(last) = name.last_mut().filter(|_| number > 1) {
            last.push_str(&format!("-{number}"));
        }
        SourceConfig { name, at: at.to_owned(), data }
    };
    (1..).zip(documents).map(of).collect()
}

/// The documents of a text that have a value.
///
/// # Errors
/// When it is no YAML, or too large with its aliases.
pub(super) fn documents(text: &str, at: &str, findings: &mut Findings) -> Result<Vec<Raw>, Failure> {
    let mut builder = Builder {
        at,
        findings,
        documents: Vec::new(),
        open: Vec::new(),
        anchors: BTreeMap::new(),
        expanded: 0,
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let marker = error.marker();
            Failure::Invalid(format!("{at}:{}:{}: {}", marker.line(), marker.col() + 1, error.info()))
        })?;
        let place = format!("{at}:{}", span.start.line());
        builder.take(event, span).map_err(|error| Failure::Invalid(format!("{place}: {error}")))?;
    }
    let mut documents = builder.documents;
    // Such as a file of comments.
    documents.retain(|document| *document != Raw::Typed(Value::Null));
    Ok(documents)
}

/// An open list or mapping, with the number of its anchor, or 0.
enum Open {
    List(Vec<Raw>, usize),
    Members(Mapping),
}

#[derive(Default)]
struct Mapping {
    members: Members,
    /// The name of the member whose value comes next.
    name: Option<Name>,
    /// What `<<` names, in its order.
    merged: Vec<Members>,
    anchor: usize,
}

enum Name {
    Of(String),
    /// `<<`, by which the members of another mapping are taken.
    Merge,
}

/// Puts the events of the parser together.
struct Builder<'a> {
    at: &'a str,
    findings: &'a mut Findings,
    documents: Vec<Raw>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Raw>,
    expanded: usize,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), String> {
        if self.open.len() > DEPTH_MAX {
            return Err(too_deep());
        }
        let line = span.start.line();
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Alias(anchor) => {
                // An anchor inside its own value is not complete.
                let value =
                    self.anchors.get(&anchor).ok_or("the alias names a value that contains it")?.clone();
                self.charge(&value)?;
                // Anchors within each other would be deeper than any text is.
                if self.open.len() + value.depth(DEPTH_MAX) > DEPTH_MAX {
                    return Err(too_deep());
                }
                self.add(value, 0, line)
            }
            Event::SequenceStart(anchor, tag) => {
                self.begin(Open::List(Vec::new(), anchor))?;
                self.note_tag(tag.as_deref(), "seq", line);
                Ok(())
            }
            Event::MappingStart(anchor, tag) => {
                self.begin(Open::Members(Mapping { anchor, ..Mapping::default() }))?;
                self.note_tag(tag.as_deref(), "map", line);
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                if let Some(Open::Members(mapping)) = self.open.last_mut()
                    && mapping.name.is_none()
                {
                    let is_merge = text == "<<" && style == ScalarStyle::Plain && tag.is_none();
                    mapping.name = Some(if is_merge { Name::Merge } else { Name::Of(text.into_owned()) });
                    return Ok(());
                }
                let value = self.scalar(text.into_owned(), style == ScalarStyle::Plain, tag.as_deref(), line);
                self.add(value, anchor, line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List(elements, anchor)) => self.add(Raw::List(elements), anchor, line),
                Some(Open::Members(Mapping { mut members, merged, anchor, .. })) => {
                    // The own members come first, then those of the first mapping.
                    for (name, value) in merged.into_iter().flatten() {
                        members.entry(name).or_insert(value);
                    }
                    self.add(Raw::Members(members), anchor, line)
                }
                None => Err("unexpected end of a list or an object".into()),
            },
        }
    }

    fn begin(&mut self, open: Open) -> Result<(), String> {
        if matches!(self.open.last(), Some(Open::Members(Mapping { name: None, .. }))) {
            return Err("the name of a member is a list or an object, which JSON does not have".into());
        }
        self.open.push(open);
        Ok(())
    }

    fn add(&mut self, value: Raw, anchor: usize, line: usize) -> Result<(), String> {
        if anchor > 0 {
            self.charge(&value)?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None => self.documents.push(value),
            Some(Open::List(elements, _)) => elements.push(value),
            Some(Open::Members(mapping)) => match mapping.name.take() {
                Some(Name::Of(name)) => {
                    let is_same = mapping.members.get(&name).is_none_or(|known| *known == value);
                    if mapping.members.insert(name.clone(), value).is_some() {
                        let (code, text) = if is_same {
                            (Code::Skipped, format!("`{name}` is there twice with the same value"))
                        } else {
                            (Code::Duplicate, format!("`{name}` is there twice: the later value counts"))
                        };
                        self.findings.add(code, format!("{}:{line}", self.at), text);
                    }
                }
                Some(Name::Merge) => match value {
                    Raw::Members(members) => mapping.merged.push(members),
                    Raw::List(elements) => {
                        for element in elements {
                            let Raw::Members(members) = element else { return Err(NO_MERGE.into()) };
                            mapping.merged.push(members);
                        }
                    }
                    Raw::Text(_) | Raw::Binary(_) | Raw::Typed(_) | Raw::Folder(_) => {
                        return Err(NO_MERGE.into());
                    }
                },
                None => return Err("the name of a member is an alias: write the name in its place".into()),
            },
        }
        Ok(())
    }

    /// Counts what is kept of an anchor, or put in the place of an alias.
    fn charge(&mut self, value: &Raw) -> Result<(), String> {
        self.expanded += weight(value);
        if self.expanded > EXPANDED_BYTES_MAX {
            return Err(format!(
                "the anchors and aliases stand for more than {} MiB, the limit of a file",
                EXPANDED_BYTES_MAX >> 20
            ));
        }
        Ok(())
    }

    fn scalar(&mut self, text: String, is_plain: bool, tag: Option<&Tag>, line: usize) -> Raw {
        let core = tag.filter(|tag| tag.is_yaml_core_schema()).map(|tag| tag.suffix.as_str());
        match (core, tag) {
            (Some("str"), _) => return Raw::Typed(text.into()),
            (Some("binary"), _) => {
                // The lines of a block are no part of base64.
                return Raw::Binary(text.split_whitespace().collect());
            }
            (Some("int" | "float" | "bool" | "null"), _) => return self.plain(text, line),
            // A single `!` says that it is a text.
            (_, Some(Tag { handle, suffix })) if matches!((&**handle, &**suffix), ("", "!") | ("!", "")) => {
                return Raw::Typed(text.into());
            }
            (_, tag) => self.note_tag(tag, "", line),
        }
        if is_plain { self.plain(text, line) } else { Raw::Typed(text.into()) }
    }

    /// A plain text: of a type if all readers of YAML agree on it.
    fn plain(&mut self, text: String, line: usize) -> Raw {
        let typed = match text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Value::Null,
            "true" | "True" | "TRUE" => true.into(),
            "false" | "False" | "FALSE" => false.into(),
            number if number.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.')) => {
                match document::number(number) {
                    Some(number) => number.into(),
                    None => return self.doubtful(text, line),
                }
            }
            _ => return self.doubtful(text, line),
        };
        Raw::Typed(typed)
    }

    fn doubtful(&mut self, text: String, line: usize) -> Raw {
        if is_date_or_sexagesimal(&text) {
            let reason = "YAML 1.1 reads a date or a number to the base of 60: it stays a text";
            self.findings.add(Code::Ambiguous, format!("{}:{line}", self.at), reason);
        }
        Raw::Text(text)
    }

    /// Reports a tag that says more than the value does.
    fn note_tag(&mut self, tag: Option<&Tag>, own: &str, line: usize) {
        let Some(tag) = tag else { return };
        if !(tag.is_yaml_core_schema() && tag.suffix == own) {
            self.findings.add(
                Code::Tag,
                format!("{}:{line}", self.at),
                format!("the tag `{tag}` is left out"),
            );
        }
    }
}

fn too_deep() -> String {
    format!("nested deeper than {DEPTH_MAX} levels")
}

const NO_MERGE: &str = "`<<` needs an object, or a list of objects";

/// About the memory that a value takes.
fn weight(value: &Raw) -> usize {
    let below = match value {
        Raw::Text(text) | Raw::Binary(text) | Raw::Typed(Value::String(text)) => text.len(),
        Raw::List(elements) => elements.iter().map(weight).sum(),
        Raw::Members(members) => members.iter().map(|(name, value)| name.len() + weight(value)).sum(),
        Raw::Typed(_) | Raw::Folder(_) => 0,
    };
    below + VALUE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::import::draft::Shape;

    /// The documents of a text with their types, and the report.
    fn read(text: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let mut findings = Findings::default();
        let found = documents(text, "f", &mut findings).map_err(Failure::into_text)?;
        let typed = found.into_iter().map(|raw| {
            let mut shape = Shape::default();
            shape.learn(&raw, 0);
            shape.value(raw).to_string()
        });
        Ok((typed.collect(), findings.places()))
    }

    #[test]
    fn only_what_all_readers_agree_on_has_a_type() {
        let text = "a: 1\nb: 1.50\nc: yes\nd: 007\ne: '8'\nf: True\ng: ~\nh: 1e5\ni: 0x1F\nj: -0.5\nk: |\n  two\n  lines\nl: 12345678901234567890\n";
        let expected = r#"{"a":1,"b":1.50,"c":"yes","d":"007","e":"8","f":true,"g":null,"h":"1e5","i":"0x1F","j":-0.5,"k":"two\nlines\n","l":12345678901234567890}"#;
        assert_eq!(read(text).unwrap(), (vec![expected.to_owned()], vec![]));
        let (_, places) = read("day: 2026-11-22\nports:\n  - 22:22\n").unwrap();
        assert_eq!(places, ["ambiguous f:1", "ambiguous f:3"]);
    }

    #[test]
    fn anchors_aliases_and_merge_keys_are_read() {
        let text = "base: &base {a: 1, b: [x]}\none:\n  <<: *base\n  a: 2\ntwo: {<<: [{c: 3, a: 9}, *base]}\nthree: *base\n---\n# nothing\n---\nx: '<<'\n";
        let (documents, places) = read(text).unwrap();
        assert_eq!(
            documents,
            [
                r#"{"base":{"a":1,"b":["x"]},"one":{"a":2,"b":["x"]},"two":{"c":3,"a":9,"b":["x"]},"three":{"a":1,"b":["x"]}}"#,
                r#"{"x":"<<"}"#,
            ]
        );
        assert!(places.is_empty(), "{places:?}");
    }

    #[test]
    fn tags_and_duplicates_are_reported() {
        let text = "a: !!str 007\nb: !vault |\n  x\nc: !!binary |\n  /w\n  ==\nd: !!set {x, y}\ne: !!int 7\nf: 1\nf: 2\ng: 1\ng: 1\nh: ! 7\n";
        let (documents, places) = read(text).unwrap();
        assert_eq!(
            documents,
            [r#"{"a":"007","b":"x\n","c":"/w==","d":{"x":null,"y":null},"e":7,"f":2,"g":1,"h":"7"}"#]
        );
        assert_eq!(places, ["tag f:2", "tag f:7", "duplicate f:10", "skipped f:12"]);
    }

    #[test]
    fn what_can_not_be_read_has_its_place() {
        let bomb: String = (1..40)
            .map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", ")))
            .collect();
        let nested: String = (1..100_000).map(|n| format!("a{n}: &a{n} [*a{}]\n", n - 1)).collect();
        let nested = format!("a0: &a0 [x]\n{nested}");
        for (text, place, reason) in [
            (format!("a0: &a0 [x]\n{bomb}").as_str(), "f:", "stand for more than 64 MiB"),
            ("a: &a [*a]", "f:1: ", "contains it"),
            ("a: 1\n[b]: 2", "f:2: ", "name of a member is a list"),
            ("a: &x k\n*x : 2", "f:2: ", "name of a member is an alias"),
            ("a: 1\n<<: 2", "f:2: ", "needs an object"),
            ("a: [1", "f:", ""),
            (&"[".repeat(200), "f:", "deeper"),
            (&nested, "f:", "deeper"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(place) && error.contains(reason), "{error}");
        }
    }
}
