//! Reads files that people write: JSON with comments, and YAML with one or several documents.
//!
//! The result is JSON data. The readers are strict, because a typo must not become a setting: they reject duplicate
//! members, numbers that JSON does not have (`007`, `0x1F`, `.5`, `.inf`), tags and aliases, and name the place. A plain
//! word is a string, except `null`, `true`, `false` and `~`.
//!
//! **Invariant:** numbers keep the digits of the file.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use jsonc_parser::{CollectOptions, ParseOptions, ast, common::Ranged as _};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};

use super::connection::Failure;

/// Maximum nesting: the API accepts 64 levels of data, and a manifest adds a few.
const DEPTH_MAX: usize = 128;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct SourceDocument {
    pub(super) value: Value,
    /// The line at which it begins, from 1.
    pub(super) line: usize,
    /// The same of the elements of a list.
    pub(super) items: Vec<usize>,
}

/// The line of a value in a text of documents: of its member, or of the nearest value above it that the text has. `steps`
/// are the names and positions that lead to it in the document.
pub(super) fn line_of(text: &str, path: &Path, document: usize, steps: &[String]) -> Option<usize> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if is_taken_for_json(text, path) {
        line_in_json(text, steps)
    } else {
        line_in_yaml(text, document, steps)
    }
}

/// Whether two values have the same JSON text: the same digits, and the members in the same order.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    let (one, other) = (one.to_string(), other.to_string());
    one == other
}

/// A value without the member `$schema`, by which editors know how to check a file. It says nothing to Concord.
pub(super) fn without_schema_reference(mut value: Value) -> Value {
    if let Value::Object(members) = &mut value {
        members.shift_remove("$schema");
    }
    value
}

/// The documents of a file; `-` is stdin.
///
/// # Errors
/// With the file and the place in it.
pub(super) fn read_file(path: &Path) -> Result<Vec<SourceDocument>, Failure> {
    let failed = |error: io::Error| {
        if error.kind() == io::ErrorKind::InvalidData {
            Failure::Invalid(format!("{}: the file is not UTF-8 text", path.display()))
        } else {
            Failure::Usage(format!("{}: {error}", path.display()))
        }
    };
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text).map_err(failed)?;
    } else {
        text = fs::read_to_string(path).map_err(failed)?;
    }
    read(&text, path).map_err(|error| Failure::Invalid(format!("{}{error}", path.display())))
}

/// Whether [`read`] takes a text for JSON.
pub(super) fn is_taken_for_json(text: &str, path: &Path) -> bool {
    is_json(text, path) || (text.contains("\\u") && read_json(text).is_ok())
}

/// The documents of a text: JSON if the file extension or the first character says so, otherwise YAML.
///
/// # Errors
/// With the place, as `:LINE:COLUMN: text`.
pub(super) fn read(text: &str, path: &Path) -> Result<Vec<SourceDocument>, String> {
    // Some editors and shells write a byte order mark, which is not part of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if is_json(text, path) {
        return read_json_document(text).map(|document| vec![document]);
    }
    // JSON in a YAML file: YAML does not know the pairs of escapes that JSON writes for some characters.
    if text.contains("\\u")
        && let Ok(document) = read_json_document(text)
    {
        return Ok(vec![document]);
    }
    read_yaml(text)
}

fn is_json(text: &str, path: &Path) -> bool {
    match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
        "json" | "jsonc" => true,
        "yaml" | "yml" => false,
        _ => text.trim_start().starts_with(['{', '[', '/']),
    }
}

fn line_in_json(text: &str, steps: &[String]) -> Option<usize> {
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &JSON_OPTIONS).ok()?;
    let mut value = parsed.value?;
    let mut at = value.range().start;
    for step in steps {
        value = match value {
            ast::Value::Object(object) => {
                let mut properties = object.properties.into_iter();
                match properties.rfind(|property| property.name.as_str() == step) {
                    Some(property) => {
                        at = property.range.start;
                        property.value
                    }
                    None => break,
                }
            }
            ast::Value::Array(array) => {
                let element = step.parse().ok().and_then(|place| array.elements.into_iter().nth(place));
                let Some(element) = element else { break };
                at = element.range().start;
                element
            }
            ast::Value::StringLit(_)
            | ast::Value::NumberLit(_)
            | ast::Value::BooleanLit(_)
            | ast::Value::NullKeyword(_) => break,
        };
    }
    Some(text.get(..at)?.matches('\n').count() + 1)
}

fn line_in_yaml(text: &str, document: usize, steps: &[String]) -> Option<usize> {
    /// An open list with the position of its next element, or an open mapping with the name and the line of its member.
    enum Open {
        List(usize),
        Members(Option<(String, usize)>),
    }
    let (mut begun, mut found) = (0, None);
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        let line = span.start.line();
        match event {
            Event::DocumentStart(_) => {
                begun += 1;
                if begun > document + 1 {
                    break;
                }
                continue;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Alias(_) => {
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => drop(open.pop()),
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                if let (Some(Open::Members(member @ None)), Event::Scalar(name, ..)) =
                    (open.last_mut(), &event)
                {
                    *member = Some((name.to_string(), line));
                    continue;
                }
                let is_step = |(open, step): (&Open, &String)| match open {
                    Open::List(place) => place.to_string() == *step,
                    Open::Members(member) => member.as_ref().is_some_and(|(name, _)| name == step),
                };
                let is_above = open.len() <= steps.len() && open.iter().zip(steps).all(is_step);
                if begun == document + 1 && is_above {
                    found = match open.last() {
                        Some(Open::Members(Some((_, line)))) => Some(*line),
                        Some(Open::Members(None) | Open::List(_)) | None => Some(line),
                    };
                }
                if matches!(event, Event::SequenceStart(..)) {
                    open.push(Open::List(0));
                    continue;
                }
                if matches!(event, Event::MappingStart(..)) {
                    open.push(Open::Members(None));
                    continue;
                }
            }
        }
        // A value has ended.
        match open.last_mut() {
            Some(Open::List(place)) => *place += 1,
            Some(Open::Members(member)) => *member = None,
            None => {}
        }
    }
    found
}

/// JSON with comments and trailing commas, and nothing else.
pub(super) const JSON_OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// One value of JSON, with comments and trailing commas.
///
/// # Errors
/// With the place, as `:LINE:COLUMN: text`.
pub(super) fn read_json(text: &str) -> Result<Value, String> {
    read_json_document(text).map(|document| document.value)
}

fn read_json_document(text: &str) -> Result<SourceDocument, String> {
    let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    let place = |at: usize| {
        let before = text.get(..at).unwrap_or(text);
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!(":{}:{column}", line(at))
    };
    if nesting(text) > DEPTH_MAX {
        return Err(format!(": nested deeper than {DEPTH_MAX} levels"));
    }
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &JSON_OPTIONS)
        .map_err(|error| format!("{}: {}", place(error.range().start), error.kind()))?;
    let value = parsed.value.ok_or(":1:1: no value found")?;
    // One pass: a list may have as many elements as the file has lines.
    let (mut items, mut counted, mut lines) = (Vec::new(), 0, 1);
    if let ast::Value::Array(array) = &value {
        for at in array.elements.iter().map(|element| element.range().start) {
            lines += text.get(counted..at).unwrap_or_default().matches('\n').count();
            counted = at;
            items.push(lines);
        }
    }
    let value = of_json(value).map_err(|(at, error)| format!("{}: {error}", place(at)))?;
    Ok(SourceDocument { value, line: 1, items })
}

/// The nesting of brackets outside strings.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn of_json(value: ast::Value<'_>) -> Result<Value, (usize, String)> {
    Ok(match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(literal) => literal.value.into(),
        ast::Value::StringLit(literal) => literal.value.into_owned().into(),
        ast::Value::NumberLit(literal) => {
            let number = number(literal.value);
            number.ok_or_else(|| (literal.range.start, "the number is not a JSON number".to_owned()))?.into()
        }
        ast::Value::Array(array) => {
            array.elements.into_iter().map(of_json).collect::<Result<Vec<_>, _>>()?.into()
        }
        ast::Value::Object(object) => {
            let mut members = Map::new();
            for property in object.properties {
                let at = property.range.start;
                let name = property.name.into_string();
                if members.contains_key(&name) {
                    return Err((at, format!("duplicate member `{name}`")));
                }
                members.insert(name, of_json(property.value)?);
            }
            members.into()
        }
    })
}

/// A number as JSON writes it.
pub(super) fn number(text: &str) -> Option<Number> {
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if is_number { serde_json::from_str(text).ok() } else { None }
}

/// The documents of a YAML text.
///
/// # Errors
/// With the place, as `:LINE:COLUMN: text`.
pub(super) fn read_yaml(text: &str) -> Result<Vec<SourceDocument>, String> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            format!(":{}:{}: {}", error.marker().line(), error.marker().col() + 1, error.info())
        })?;
        builder
            .take(event, span)
            .map_err(|error| format!(":{}:{}: {error}", span.start.line(), span.start.col() + 1))?;
    }
    Ok(builder.documents)
}

/// An open list or object.
enum OpenCollection {
    List(Vec<Value>),
    Members(Map<String, Value>, Option<String>),
}

/// Puts the events of the parser together.
#[derive(Default)]
struct Builder {
    documents: Vec<SourceDocument>,
    open: Vec<OpenCollection>,
    line: usize,
    items: Vec<usize>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), String> {
        if self.open.len() > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX} levels"));
        }
        let is_value =
            matches!(event, Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..));
        match self.open.as_slice() {
            [] => self.line = span.start.line(),
            [OpenCollection::List(_)] if is_value => self.items.push(span.start.line()),
            _ => {}
        }
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Alias(_) => Err("YAML aliases are not supported: repeat the value".into()),
            Event::SequenceStart(_, None) => self.begin(OpenCollection::List(Vec::new())),
            Event::MappingStart(_, None) => self.begin(OpenCollection::Members(Map::new(), None)),
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => Err("YAML tags are not supported".into()),
            Event::Scalar(text, style, _, None) => {
                if let Some(OpenCollection::Members(members, name @ None)) = self.open.last_mut() {
                    if members.contains_key(text.as_ref()) {
                        return Err(format!("duplicate member `{text}`"));
                    }
                    *name = Some(text.into_owned());
                    return Ok(());
                }
                let value =
                    if style == ScalarStyle::Plain { plain(&text)? } else { text.into_owned().into() };
                self.add(value)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenCollection::List(list)) => self.add(list.into()),
                Some(OpenCollection::Members(members, _)) => self.add(members.into()),
                None => Err("unexpected end of a list or an object".into()),
            },
        }
    }

    fn begin(&mut self, open: OpenCollection) -> Result<(), String> {
        if matches!(self.open.last(), Some(OpenCollection::Members(_, None))) {
            return Err("member names must be strings".into());
        }
        self.open.push(open);
        Ok(())
    }

    fn add(&mut self, value: Value) -> Result<(), String> {
        match self.open.last_mut() {
            None => {
                let (line, items) = (self.line, std::mem::take(&mut self.items));
                self.documents.push(SourceDocument { value, line, items });
            }
            Some(OpenCollection::List(list)) => list.push(value),
            Some(OpenCollection::Members(members, name)) => {
                let name = name.take().ok_or("member names must be strings")?;
                members.insert(name, value);
            }
        }
        Ok(())
    }
}

/// A plain scalar.
fn plain(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(true.into()),
        "false" | "False" | "FALSE" => return Ok(false.into()),
        _ => {}
    }
    if let Some(number) = number(text) {
        return Ok(number.into());
    }
    if is_other_number(text) {
        // Not the text: it may be a secret value, and the place is known.
        return Err("the value is not a JSON number: put it in quotes if it is a string".into());
    }
    Ok(text.into())
}

/// Whether YAML would read a text as a number that JSON does not have.
fn is_other_number(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = bare.to_ascii_lowercase();
    if matches!(lower.as_str(), ".inf" | ".nan") {
        return true;
    }
    let radix = |prefix: &str, radix: u32| {
        let digits = bare.strip_prefix(prefix);
        digits.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)))
    };
    let has_digits = bare.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    radix("0x", 16) || radix("0o", 8) || (has_digits && bare.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_may_have_comments_and_keeps_its_numbers() {
        let value =
            read_json("// why\n{\"a\": 7.0, /* x */ \"b\": [123456789012345678901234567890,],}").unwrap();
        assert_eq!(value.to_string(), r#"{"a":7.0,"b":[123456789012345678901234567890]}"#);
        let list = read("[1, {\n\"a\": 2\n},\n\n[3]]", Path::new("f.json")).unwrap();
        assert_eq!(list[0].items, [1, 1, 5]);
    }

    #[test]
    fn a_value_has_the_line_of_its_member_or_of_what_is_above_it() {
        let steps =
            |pointer: &str| -> Vec<String> { pointer.split('/').skip(1).map(str::to_owned).collect() };
        let json = "// why\n[\n  {\"a\": {\n    \"b\": [\n      1,\n      2\n    ]\n  }}\n]";
        let yaml = "first: 1\n---\n# why\n- a:\n    b:\n      - 1\n      - c: 2\n        d: 3\n    e: {f: 4}\n- {g: 5}\n";
        for (text, name, document, pointer, line) in [
            (json, "f.json", 0, "", 2),
            (json, "f.json", 0, "/0/a", 3),
            (json, "f.json", 0, "/0/a/b/1", 6),
            (json, "f.json", 0, "/0/a/c/d", 3),
            (json, "f.json", 0, "/7", 2),
            (yaml, "f.yaml", 0, "/first", 1),
            (yaml, "f.yaml", 1, "", 4),
            (yaml, "f.yaml", 1, "/0/a/b", 5),
            (yaml, "f.yaml", 1, "/0/a/b/1/d", 8),
            (yaml, "f.yaml", 1, "/0/a/b/1/x", 7),
            (yaml, "f.yaml", 1, "/0/a/e/f", 9),
            (yaml, "f.yaml", 1, "/1/g", 10),
        ] {
            assert_eq!(line_of(text, Path::new(name), document, &steps(pointer)), Some(line), "{pointer}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        for (text, name) in
            [("{\"a\": 1} // why", "f.json"), ("{\"a\": 1} // why", "-"), ("a: 1\n", "f.yaml")]
        {
            let read = read(&format!("\u{feff}{text}"), Path::new(name)).unwrap();
            assert_eq!((read.len(), &read[0].value), (1, &json!({"a": 1})), "{name}");
        }
    }

    #[test]
    fn json_in_a_yaml_file_may_have_pairs_of_escapes() {
        for name in ["f.yaml", "f.yml", "f.json", "-"] {
            let read = read(r#"{"a": "\ud83d\ude00"}"#, Path::new(name)).unwrap();
            assert_eq!((read.len(), &read[0].value), (1, &json!({"a": "\u{1f600}"})), "{name}");
        }
        let both = read("a: \"\\u00e9\"\n---\nb: 1\n", Path::new("f.yaml")).unwrap();
        assert_eq!((both.len(), &both[0].value), (2, &json!({"a": "\u{e9}"})));
    }

    #[test]
    fn json_is_read_strictly_with_the_place() {
        assert_eq!(read_json("{\n \"a\": 1,\n \"a\": 2}").unwrap_err(), ":3:2: duplicate member `a`");
        for wrong in [
            "{a: 1}",
            "{'a': 1}",
            "{\"a\": 0x1}",
            "{\"a\": +1}",
            "{\"a\": .5}",
            "{\"a\" 1}",
            "",
            "1 2",
            "[NaN]",
            "[01]",
        ] {
            assert!(read_json(wrong).is_err(), "{wrong}");
        }
        assert!(read_json(&"[".repeat(100_000)).unwrap_err().contains("deeper"));
    }

    #[test]
    fn yaml_is_read_as_data_of_json() {
        let text = "# c\na: 1\nb: [yes, 'x', ~, true]\nc:\n  d: 7.0\n---\n- |\n  two\n  lines\n- 1.0.0\n- 2026-11-22\n";
        let read = read_yaml(text).unwrap();
        assert_eq!(
            read[0].value,
            json!({"a": 1, "b": ["yes", "x", null, true], "c": {"d": read[0].value["c"]["d"]}})
        );
        assert_eq!(read[0].value["c"]["d"].to_string(), "7.0");
        assert_eq!(
            (read[0].line, read[1].line, &read[0].items, &read[1].items),
            (2, 7, &vec![], &vec![8, 10, 11])
        );
        assert_eq!(read[1].value, json!(["two\nlines\n", "1.0.0", "2026-11-22"]));
    }

    #[test]
    fn yaml_is_read_strictly_with_the_place() {
        assert_eq!(read_yaml("a: 1\nb: 2\na: 3\n").unwrap_err(), ":3:1: duplicate member `a`");
        for wrong in [
            "a: 007",
            "a: 0x1F",
            "a: .5",
            "a: .inf",
            "a: +1",
            "a: &x 1\nb: *x",
            "a: !!str 1",
            "[1]: 2",
            "a: [1",
            "a: 5.",
        ] {
            assert!(read_yaml(wrong).is_err(), "{wrong}");
        }
        assert!(read_yaml(&"[".repeat(1000)).is_err());
    }
}

/// What `concord_formats::yaml` writes is read as the same.
#[cfg(test)]
mod written {
    use proptest::prelude::*;

    use super::*;
    use concord_formats::yaml::write_exact;
    use concord_model::unseen::is_unseen;

    fn back(value: &Value) -> Value {
        let text = write_exact(value);
        let mut read = read_yaml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read.len(), 1, "{text}");
        assert!(!text.chars().any(|c| c != '\n' && c != '\t' && is_unseen(c)), "{text:?}");
        read.remove(0).value
    }

    #[test]
    fn numbers_keep_their_digits() {
        let value: Value =
            serde_json::from_str(r#"[7.0, -0.0, 123456789012345678901234567890, 1e400, 0.10, -5, 1E-7]"#)
                .unwrap();
        assert_eq!(back(&value).to_string(), value.to_string());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let texts = prop_oneof![
            any::<String>(),
            "[a-z :#,\\-\\[\\]{}'\"&*!|>%@`?\n\t\\\\]{0,12}",
            "([ab:# -]{0,4}\n){1,4}[ab:#]{0,3}",
            "[ab](\n\t{0,2} ?[ab:#\t-]{0,3}){1,4}\n?",
            prop::sample::select(vec![
                "null", "~", "1", "007", "0x1", "1e3", ".inf", "yes", "<<", "---", "...", "\u{85}",
                "\u{2028}", "\u{feff}", "1:30"
            ])
            .prop_map(str::to_owned),
            "x{1000,1100}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            texts.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((texts.clone(), inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(value in any_value()) {
            prop_assert_eq!(back(&value).to_string(), value.to_string());
        }
    }
}
