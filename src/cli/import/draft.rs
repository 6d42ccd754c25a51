//! Drafts a schema from configs, and gives their values the types of it.
//!
//! A text has the type that all texts of its field have, in all configs: a version `2.1` in one config stays a text where
//! another config has `1.10`. A field that looks like a secret keeps its texts: a password of digits is no number.
//!
//! **Invariant:** the schema accepts the data of all configs that it was drafted from.

use std::collections::BTreeMap;

use concord_model::schema::secret::MARK;
use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::{
    super::document,
    finding::{Code, Findings},
    meaning::{Meaning, is_secret_name, is_secret_text, meaning},
    raw::Raw,
};

/// Configs that a line of the report names.
const CONFIGS_NAMED: usize = 3;

/// What is known of a field in all configs.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// How often the field is there.
    count: usize,
    has: Kinds,
    /// The same of texts that have no type as yet.
    texts: Kinds,
    binaries: usize,
    objects: usize,
    members: IndexMap<String, Shape>,
    /// The elements of lists, if there are any.
    elements: Option<Box<Shape>>,
    has_list: bool,
    /// Whether its name or a text of it looks like a secret.
    is_secret: bool,
    /// What is to be said of it, with the configs in which that is so.
    notes: BTreeMap<(Code, &'static str), Configs>,
}

/// The kinds of values without members and elements.
#[derive(Debug, Clone, Copy, Default)]
struct Kinds {
    null: bool,
    boolean: bool,
    integer: bool,
    number: bool,
    string: bool,
}

/// Some of the configs, as positions, and how many there are.
#[derive(Debug, Default)]
struct Configs {
    first: Vec<usize>,
    count: usize,
}

/// What the texts of a field are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextType {
    Boolean,
    Number,
    String,
}

impl Shape {
    /// Learns from a value of the field in a config, which is known by its position.
    pub(super) fn learn(&mut self, raw: &Raw, config: usize) {
        self.count += 1;
        match raw {
            Raw::Text(text) => self.learn_untyped(text, config),
            Raw::Binary(_) => {
                self.binaries += 1;
                self.note(Code::Binary, "it is no text: the value is base64", config);
            }
            Raw::Typed(value) => self.learn_typed(value, config),
            Raw::List(elements) => {
                self.has_list = true;
                for element in elements {
                    let shape = self.elements.get_or_insert_default();
                    shape.is_secret |= self.is_secret;
                    shape.learn(element, config);
                }
            }
            Raw::Members(members) => {
                self.objects += 1;
                for (name, value) in members {
                    let member = self.members.entry(name.clone()).or_default();
                    member.is_secret |= self.is_secret || is_secret_name(name);
                    member.learn(value, config);
                }
            }
            // None is left in what is drafted.
            Raw::Folder(_) => {}
        }
    }

    fn learn_untyped(&mut self, text: &str, config: usize) {
        match meaning(text) {
            Meaning::Boolean => self.texts.boolean = true,
            Meaning::Integer => self.texts.integer = true,
            Meaning::Number => self.texts.number = true,
            Meaning::Plain => self.texts.string = true,
            Meaning::Doubtful(reason) => {
                self.texts.string = true;
                self.note(Code::Ambiguous, reason, config);
            }
        }
        self.learn_text(text, config);
    }

    fn learn_typed(&mut self, value: &Value, config: usize) {
        match value {
            Value::Null => {
                self.has.null = true;
                self.note(Code::Empty, "it is null", config);
            }
            Value::Bool(_) => self.has.boolean = true,
            Value::Number(number) if is_integer(&number.to_string()) => self.has.integer = true,
            Value::Number(_) => self.has.number = true,
            Value::String(text) => {
                self.has.string = true;
                self.learn_text(text, config);
            }
            // They are lists and members before they have types.
            Value::Array(_) | Value::Object(_) => {}
        }
    }

    fn learn_text(&mut self, text: &str, config: usize) {
        self.is_secret |= is_secret_text(text);
        if text.is_empty() {
            self.note(Code::Empty, "it is empty", config);
        }
        if text.contains("${") {
            self.note(
                Code::Reference,
                "it names another value (`${…}`), which is not put in its place",
                config,
            );
        }
    }

    fn note(&mut self, code: Code, reason: &'static str, config: usize) {
        let configs = self.notes.entry((code, reason)).or_default();
        // An element of a list says the same as the one before.
        if configs.first.last() == Some(&config) {
            return;
        }
        configs.count += 1;
        if configs.first.len() < CONFIGS_NAMED {
            configs.first.push(config);
        }
    }

    fn text_type(&self) -> TextType {
        let Kinds { boolean, integer, number, string, .. } = self.texts;
        let has = self.has;
        let is_number = integer || number;
        if string || has.string || (is_number && (boolean || self.is_secret)) {
            TextType::String
        } else if boolean && !has.integer && !has.number {
            TextType::Boolean
        } else if is_number && !has.boolean {
            TextType::Number
        } else {
            TextType::String
        }
    }

    /// The JSON value, with the type that the field has.
    pub(super) fn value(&self, raw: Raw) -> Value {
        match raw {
            Raw::Text(text) => match self.text_type() {
                TextType::Boolean => (text == "true").into(),
                TextType::Number => document::number(&text).map_or_else(|| text.into(), Value::Number),
                TextType::String => text.into(),
            },
            Raw::Binary(text) => text.into(),
            Raw::Typed(value) => value,
            Raw::List(elements) => {
                let of = |element| self.elements.as_ref().map(|shape| shape.value(element));
                elements.into_iter().filter_map(of).collect()
            }
            Raw::Members(members) => {
                let of = |(name, value)| {
                    let value = self.members.get(&name).map(|shape| shape.value(value))?;
                    Some((name, value))
                };
                Value::Object(members.into_iter().filter_map(of).collect())
            }
            Raw::Folder(_) => Value::Null,
        }
    }

    /// The types of all values, in the order of the specification of JSON Schema.
    fn types(&self) -> Vec<&'static str> {
        let text_type = self.text_type();
        let texts = self.texts;
        let has_text = texts.boolean || texts.integer || texts.number || texts.string;
        let is_number = text_type == TextType::Number;
        let number = self.has.number || (is_number && texts.number);
        let integer = self.has.integer || (is_number && texts.integer);
        [
            ("null", self.has.null),
            ("boolean", self.has.boolean || (has_text && text_type == TextType::Boolean)),
            ("object", self.objects > 0),
            ("array", self.has_list),
            ("number", number),
            ("integer", integer && !number),
            ("string", self.has.string || self.binaries > 0 || (has_text && text_type == TextType::String)),
        ]
        .into_iter()
        .filter_map(|(name, is_there)| is_there.then_some(name))
        .collect()
    }

    /// Whether it is reported as a secret. Neither null nor a boolean is one, whatever its name is.
    fn is_candidate(&self) -> bool {
        self.is_secret && self.types().iter().any(|name| !matches!(*name, "null" | "boolean"))
    }

    /// The schema; `marks_secrets` marks what looks like a secret.
    pub(super) fn schema(&self, marks_secrets: bool) -> Value {
        let types = self.types();
        let mut schema = Map::new();
        match types.as_slice() {
            [] => {}
            [one] => drop(schema.insert("type".into(), (*one).into())),
            several => drop(schema.insert("type".into(), json!(several))),
        }
        // Everything below a mark is secret, too.
        let is_marked = marks_secrets && self.is_candidate();
        if is_marked {
            schema.insert(MARK.into(), true.into());
        }
        if self.binaries == self.count && self.count > 0 {
            schema.insert("contentEncoding".into(), "base64".into());
        }
        if !self.members.is_empty() {
            let required = self.members.iter().filter(|(_, member)| member.count == self.objects);
            let required: Vec<&str> = required.map(|(name, _)| name.as_str()).collect();
            if !required.is_empty() {
                schema.insert("required".into(), json!(required));
            }
            let of =
                |(name, member): (&String, &Self)| (name.clone(), member.schema(marks_secrets && !is_marked));
            schema.insert("properties".into(), Value::Object(self.members.iter().map(of).collect()));
        }
        if let Some(elements) = &self.elements {
            schema.insert("items".into(), elements.schema(marks_secrets && !is_marked));
        }
        schema.into()
    }

    /// Reports what could not be typed, and what looks like a secret. `keys` are those of the configs.
    pub(super) fn report(&self, keys: &[String], marks_secrets: bool, findings: &mut Findings) {
        let mut report = Report { keys, marks_secrets, findings };
        report.field(self, "", false);
    }

    /// Why the types of the field are not what they seem to be.
    fn mixed(&self) -> Option<String> {
        let types = self.types();
        if types.iter().filter(|name| **name != "null").count() > 1 {
            return Some(format!("its values have several types: {}", types.join(", ")));
        }
        let is_typed_text = self.texts.boolean || self.texts.integer || self.texts.number;
        let is_text = is_typed_text && self.text_type() == TextType::String && !self.is_secret;
        is_text.then(|| {
            "it stays a text: some of its values are numbers or booleans, and others are not".to_owned()
        })
    }
}

/// Writes the lines of fields.
struct Report<'a> {
    keys: &'a [String],
    marks_secrets: bool,
    findings: &'a mut Findings,
}

impl Report<'_> {
    fn field(&mut self, shape: &Shape, path: &str, is_below_secret: bool) {
        // The report names the data by their root.
        let at = if path.is_empty() { "/" } else { path };
        for ((code, reason), configs) in &shape.notes {
            self.findings.add(*code, at, format!("{reason} ({})", configs.named(self.keys)));
        }
        if let Some(text) = shape.mixed() {
            self.findings.add(Code::Mixed, at, text);
        }
        let is_secret = shape.is_candidate();
        if is_secret && !is_below_secret {
            let text = if self.marks_secrets {
                "it looks like a secret, and is marked as one"
            } else {
                "it looks like a secret: if so, add `x-concord-secret: true` to its schema before you apply the files"
            };
            self.findings.add(Code::Secret, at, text);
        }
        for (name, member) in &shape.members {
            let name = name.replace('~', "~0").replace('/', "~1");
            self.field(member, &format!("{path}/{name}"), is_below_secret || is_secret);
        }
        if let Some(elements) = &shape.elements {
            self.field(elements, &format!("{path}/*"), is_below_secret || is_secret);
        }
    }
}

impl Configs {
    fn named(&self, keys: &[String]) -> String {
        let named: Vec<&str> = self.first.iter().filter_map(|at| keys.get(*at)).map(String::as_str).collect();
        match self.count - self.first.len() {
            0 => format!("config {}", named.join(", ")),
            more => format!("config {} and {more} more", named.join(", ")),
        }
    }
}

/// Whether a number is written as an integer.
fn is_integer(text: &str) -> bool {
    !text.contains(['.', 'e', 'E'])
}

#[cfg(test)]
mod tests {
    use concord_model::schema::{Formats, Schema};
    use proptest::prelude::*;

    use super::*;

    struct Drafted {
        schema: Value,
        data: Vec<Value>,
        places: Vec<String>,
    }

    fn drafted(configs: &[Raw], marks_secrets: bool) -> Drafted {
        let (mut shape, mut findings) = (Shape::default(), Findings::default());
        configs.iter().enumerate().for_each(|(at, raw)| shape.learn(raw, at));
        let keys: Vec<String> = (0..configs.len()).map(|at| format!("c{at}")).collect();
        shape.report(&keys, marks_secrets, &mut findings);
        let data = configs.iter().cloned().map(|raw| shape.value(raw)).collect();
        Drafted { schema: shape.schema(marks_secrets), data, places: findings.places() }
    }

    /// A config of texts without types.
    fn texts(members: &[(&str, &str)]) -> Raw {
        let of = |(name, text): &(&str, &str)| ((*name).to_owned(), Raw::of_text((*text).to_owned()));
        Raw::Members(members.iter().map(of).collect())
    }

    #[test]
    fn a_field_has_the_type_that_all_of_its_texts_have() {
        let one = texts(&[
            ("port", "80"),
            ("rate", "1"),
            ("on", "true"),
            ("version", "2.1"),
            ("mode", "1"),
            ("name", "a"),
        ]);
        let two =
            texts(&[("port", "81"), ("rate", "0.5"), ("on", "false"), ("version", "1.10"), ("mode", "true")]);
        let Drafted { schema, data, places } = drafted(&[one, two], false);
        assert_eq!(
            schema,
            json!({
                "type": "object",
                "required": ["port", "rate", "on", "version", "mode"],
                "properties": {
                    "port": {"type": "integer"}, "rate": {"type": "number"}, "on": {"type": "boolean"},
                    "version": {"type": "string"}, "mode": {"type": "string"}, "name": {"type": "string"},
                },
            })
        );
        assert_eq!(
            data[0],
            json!({"port": 80, "rate": 1, "on": true, "version": "2.1", "mode": "1", "name": "a"})
        );
        assert_eq!(data[1]["version"], "1.10");
        assert_eq!(places, ["ambiguous /version", "mixed /version", "mixed /mode"]);
    }

    #[test]
    fn a_secret_is_reported_once_marked_if_asked_and_never_typed() {
        let config = texts(&[
            ("password", "123456"),
            ("tokens", "x"),
            ("secrets", "{\"api\": {\"token\": \"t\"}}"),
            ("url", "amqp://u:p@h"),
            ("has_password", "true"),
        ]);
        let Drafted { schema, data, places } = drafted(std::slice::from_ref(&config), true);
        assert_eq!(places, ["secret /password", "secret /secrets", "secret /url"]);
        assert_eq!(data[0]["password"], "123456");
        let mark = |name: &str| schema["properties"][name]["x-concord-secret"] == true;
        assert!(
            mark("password") && mark("secrets") && mark("url") && !mark("tokens") && !mark("has_password"),
            "{schema}"
        );
        assert!(!schema["properties"]["secrets"]["properties"].to_string().contains("secret"), "{schema}");
        assert!(!drafted(&[config], false).schema.to_string().contains("x-concord-secret"));
    }

    #[test]
    fn lists_and_bytes_have_their_schemas() {
        let list = texts(&[("hosts", "[{\"name\": \"a\", \"port\": 1}, {\"name\": \"b\"}]"), ("none", "[]")]);
        let Raw::Members(mut members) = list else { panic!("it has members") };
        members.insert("icon".into(), Raw::Binary("/w==".into()));
        let Drafted { schema, .. } = drafted(&[Raw::Members(members)], false);
        let element = json!({"type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}});
        assert_eq!(schema["properties"]["hosts"], json!({"type": "array", "items": element}));
        assert_eq!(schema["properties"]["none"], json!({"type": "array"}));
        assert_eq!(schema["properties"]["icon"], json!({"type": "string", "contentEncoding": "base64"}));
    }

    fn any_raw() -> impl Strategy<Value = Raw> {
        let texts = prop_oneof![
            "[a-z]{0,3}",
            prop::sample::select(vec!["1", "0.5", "true", "007", "yes", "1e5", "", "-0", "{}"])
                .prop_map(str::to_owned)
        ];
        let names = prop::sample::select(vec!["a", "b", "password", "c/d"]).prop_map(str::to_owned);
        let typed = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z]{0,3}".prop_map(Value::from)
        ];
        let leaf = prop_oneof![
            texts.prop_map(Raw::Text),
            typed.prop_map(Raw::Typed),
            "[a-z]{4}".prop_map(Raw::Binary)
        ];
        leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Raw::List),
                prop::collection::vec((names.clone(), inner), 0..4)
                    .prop_map(|members| Raw::Members(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_schema_accepts_what_it_was_drafted_from(configs in prop::collection::vec(any_raw(), 1..4)) {
            for marks_secrets in [false, true] {
                let Drafted { schema, data, .. } = drafted(&configs, marks_secrets);
                let compiled = Schema::compile(&schema, Formats::of(true)).unwrap();
                for value in &data {
                    prop_assert!(compiled.check(value).is_ok(), "{schema} {value}");
                }
            }
        }
    }
}
