//! Templates in the language of Jinja.
//!
//! A template has `configs`, the data of all configs that the agent keeps as `configs["definition"]["key"]`, and the
//! filters `json`, `yaml` and `toml`.
//!
//! **Invariants:** an unknown name is an error, not an empty text, and so is a value that the access key may not see.
//! A config that has not been read is in no text and no error. Numbers keep the digits of the config, and members their order; no conversion makes two different numbers equal. A
//! template that does not terminate is stopped.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use concord_client::Config;
use concord_model::index;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, filters,
    syntax::SyntaxConfig,
    value::{self, DynObject, Enumerator, Kwargs, Object, ObjectRepr, ValueKind},
};
use serde_json::{Map, Number, Value};

use super::{
    super::current::pointer_of,
    format::{FileFormat, hidden_text},
};

/// Steps of a template before it is stopped: seconds of work.
const FUEL: u64 = 50_000_000;

/// Floats have exact neighbours of one less and one more up to here: beyond, two integers have the same float.
const EXACT_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// How the template language writes a value that must not be used, inside a map.
const INVALID: &str = "<invalid value: ";

/// A template that compiles.
#[derive(Debug, Clone)]
pub(super) struct Template(Arc<TemplateSource>);

#[derive(Debug)]
struct TemplateSource {
    name: String,
    text: String,
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
    environment.set_fuel(Some(FUEL));
    for (name, format) in [("json", FileFormat::Json), ("yaml", FileFormat::Yaml), ("toml", FileFormat::Toml)]
    {
        environment.add_filter(name, move |value: &value::Value| {
            let data = to_json(value).and_then(|data| format.write(&data));
            let text = data.map_err(|error| Error::new(ErrorKind::InvalidOperation, error))?;
            Ok::<_, Error>(text.trim_end().to_owned())
        });
    }
    // Those of the language know its own numbers only.
    environment.add_filter(
        "float",
        |state: &State<'_, '_>, value: &value::Value, default: Option<value::Value>, more: Kwargs| {
            filters::float(state, &as_float(value)?, default, more)
        },
    );
    environment.add_filter(
        "int",
        |state: &State<'_, '_>,
         value: &value::Value,
         default: Option<value::Value>,
         base: Option<u32>,
         more: Kwargs| filters::int(state, &as_integer(value)?, default, base, more),
    );
    environment.add_test("number", |value: &value::Value| {
        value.is_number() || value.downcast_object_ref::<ExactNumber>().is_some()
    });
    environment
}

impl Template {
    /// Reads a template.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::new(&path.display().to_string(), &text)
    }

    /// A template of this text.
    pub(super) fn new(name: &str, text: &str) -> Result<Self, String> {
        environment().template_from_named_str(name, text).map_err(|error| told(&error))?;
        Ok(Self(Arc::new(TemplateSource { name: name.to_owned(), text: text.to_owned() })))
    }

    /// Its text for these configs, and which of them it has read; those too if it fails.
    pub(super) fn render(&self, configs: &[Arc<Config>]) -> (Result<String, String>, Vec<bool>) {
        let read: Arc<[AtomicBool]> = configs.iter().map(|_| AtomicBool::new(false)).collect();
        let text = self.render_noting(configs, &read);
        (text, read.iter().map(|one| one.load(Relaxed)).collect())
    }

    fn render_noting(&self, configs: &[Arc<Config>], read: &Arc<[AtomicBool]>) -> Result<String, String> {
        let mut all: BTreeMap<&str, BTreeMap<String, (usize, value::Value)>> = BTreeMap::new();
        for (place, config) in configs.iter().enumerate() {
            let of = all.entry(config.definition.as_str()).or_default();
            of.insert(config.key.clone(), (place, data_of(config)));
        }
        let all = all.into_iter().map(|(definition, configs)| {
            let read = Arc::clone(read);
            (definition, value::Value::from_object(NotingConfigs { configs, read }))
        });
        let context = value::Value::from_pairs([("configs", value::Value::from_pairs(all))]);
        let text = environment()
            .render_named_str(&self.0.name, &self.0.text, context)
            .map_err(|error| told(&error))?;
        // A whole map that is written as a text shows its values without using them.
        match configs.iter().find(|config| !config.redacted.is_empty()) {
            Some(config) if text.contains(INVALID) => Err(format!("template: {}", hidden_text(config))),
            _ => Ok(text),
        }
    }
}

/// The configs of a definition, by key, as a map that notes which of them are read.
#[derive(Debug)]
struct NotingConfigs {
    /// Each with its place among all.
    configs: BTreeMap<String, (usize, value::Value)>,
    read: Arc<[AtomicBool]>,
}

impl NotingConfigs {
    fn note(&self, place: usize) {
        if let Some(read) = self.read.get(place) {
            read.store(true, Relaxed);
        }
    }
}

impl Object for NotingConfigs {
    fn get_value(self: &Arc<Self>, key: &value::Value) -> Option<value::Value> {
        let (place, value) = self.configs.get(key.as_str()?)?;
        self.note(*place);
        Some(value.clone())
    }

    /// The names of all. A name is something of its config, so all are read.
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.configs.values().for_each(|(place, _)| self.note(*place));
        Enumerator::Values(self.configs.keys().map(value::Value::from).collect())
    }
}

/// An error with its place and its causes.
fn told(error: &Error) -> String {
    let mut text = format!("template: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    if text.contains(ValueKind::Plain.to_string().as_str()) {
        text.push_str(
            ": a number such as 1.50 or 1e3 keeps its digits, so it must be converted before it is calculated \
             with: `|float` or `|int`",
        );
    }
    text
}

/// A number whose digits the numbers of the template language do not keep: `1.50`, `1e3`, 40 digits. A template can write
/// it, compare it with others of its kind and convert it; there is no arithmetic with it.
struct ExactNumber(Number);

impl fmt::Debug for ExactNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Object for ExactNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.0.to_string().split(['e', 'E']).next().unwrap_or_default().bytes().all(|b| b"-0.".contains(&b))
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        Some(ordered(&self.0).cmp(&ordered(&other.0)))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Fails the template when it uses a value that must not be used.
fn invalid(text: String) -> value::Value {
    value::Value::from(Error::new(ErrorKind::InvalidOperation, text))
}

/// The data of a config as template values. A redacted value fails the template that uses it: it is not null.
fn data_of(config: &Config) -> value::Value {
    if config.redacted.is_empty() {
        return from_json(&config.data);
    }
    let mut hidden = BTreeSet::new();
    for place in &config.redacted {
        match pointer_of(place).filter(|pointer| config.data.pointer(pointer).is_some()) {
            Some(pointer) => hidden.insert(pointer),
            // The node lists no more places than fit a header.
            None => return invalid(hidden_text(config)),
        };
    }
    without(&config.data, &mut String::new(), &|pointer| {
        hidden.contains(pointer).then(|| invalid(hidden_text(config)))
    })
}

/// Data as template values.
fn from_json(value: &Value) -> value::Value {
    without(value, &mut String::new(), &|_| None)
}

/// Data as template values, with other values at some places. `pointer` is the place of `value`.
fn without(
    value: &Value,
    pointer: &mut String,
    instead: &impl Fn(&str) -> Option<value::Value>,
) -> value::Value {
    if let Some(other) = instead(pointer) {
        return other;
    }
    let mut inside = |name: &str, value: &Value| {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
        let value = without(value, pointer, instead);
        pointer.truncate(length);
        value
    };
    match value {
        Value::Null => value::Value::from(()),
        Value::Bool(value) => (*value).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => from_number(number),
        Value::Array(items) => {
            items.iter().enumerate().map(|(place, item)| inside(&place.to_string(), item)).collect()
        }
        Value::Object(members) => {
            value::Value::from_pairs(members.iter().map(|(name, value)| (name.as_str(), inside(name, value))))
        }
    }
}

fn from_number(number: &Number) -> value::Value {
    let text = number.to_string();
    if let Ok(integer) = text.parse::<i128>()
        && integer.to_string() == text
    {
        return integer.into();
    }
    match text.parse::<f64>().map(value::Value::from) {
        Ok(float) if float.to_string() == text && is_exact(&text) => float,
        Ok(_) | Err(_) => value::Value::from_object(ExactNumber(number.clone())),
    }
}

/// Bytes in the order of numbers, of any digits; equal for equal numbers.
fn ordered(number: &Number) -> Box<[u8]> {
    index::encode(&Value::Number(number.clone()))
}

/// Whether a float as large as this has no integer but its own.
fn is_exact(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(|float| float.abs() < EXACT_FLOAT_MAX)
}

/// The number that a value is, whose digits a conversion must not lose; `None` for a float and what is no number.
fn exact_number(value: &value::Value) -> Option<Number> {
    match value.downcast_object_ref::<ExactNumber>() {
        Some(ExactNumber(number)) => Some(number.clone()),
        None if value.is_integer() => serde_json::from_str(&value.to_string()).ok(),
        None => None,
    }
}

/// A number as the float that is equal to it when it is written; any other value as it is.
fn as_float(value: &value::Value) -> Result<value::Value, Error> {
    let Some(number) = exact_number(value) else { return Ok(value.clone()) };
    let float = number.to_string().parse::<f64>().ok().filter(|float| float.is_finite());
    let Some(float) = float else {
        let text = format!("{number} is too large to calculate with");
        return Err(Error::new(ErrorKind::InvalidOperation, text));
    };
    let written = Number::from_f64(float).map(|written| ordered(&written));
    if written.as_deref() != Some(&*ordered(&number)) {
        let text = format!(
            "{number} has more digits than a float keeps: write it as it is, convert it with `|int`, or round it with \
             `|string|float`"
        );
        return Err(Error::new(ErrorKind::InvalidOperation, text));
    }
    Ok(float.into())
}

/// A number without what is after its decimal point, exactly; any other value as it is.
fn as_integer(value: &value::Value) -> Result<value::Value, Error> {
    let Some(number) = exact_number(value) else { return Ok(value.clone()) };
    let integer = integer_part(&number.to_string()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("{number} is too large to calculate with"))
    });
    integer.map(Into::into)
}

/// The integer part of a number in JSON.
fn integer_part(text: &str) -> Option<i128> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{before}{after}");
    let digits = digits.trim_start_matches('0');
    // An exponent beyond `i64` is that of a number beyond all others, or of one that is nearly 0.
    let exponent =
        exponent.parse::<i64>().unwrap_or(if exponent.starts_with('-') { i64::MIN } else { i64::MAX });
    let length = i64::try_from(digits.len()).ok()?.checked_sub(i64::try_from(after.len()).ok()?)?;
    let length = length.saturating_add(exponent);
    if digits.is_empty() || length <= 0 {
        return Some(0);
    }
    // 2^127 has 39 digits.
    let length = usize::try_from(length).ok().filter(|length| *length <= 39)?;
    let kept = &digits[..length.min(digits.len())];
    format!("{sign}{kept:0<length$}").parse().ok()
}

/// Converts a template value to data.
fn to_json(value: &value::Value) -> Result<Value, String> {
    Ok(match value.kind() {
        ValueKind::None => Value::Null,
        ValueKind::Bool => value.is_true().into(),
        ValueKind::Number => serde_json::from_str(&value.to_string()).map_err(|error| error.to_string())?,
        ValueKind::String => value.to_string().into(),
        ValueKind::Map => {
            let mut members = Map::new();
            for name in value.try_iter().map_err(|error| error.to_string())? {
                let member = value.get_item(&name).map_err(|error| error.to_string())?;
                members.insert(name.to_string(), to_json(&member)?);
            }
            members.into()
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().map_err(|error| error.to_string())?;
            items.map(|item| to_json(&item)).collect::<Result<Vec<_>, _>>()?.into()
        }
        ValueKind::Undefined | ValueKind::Bytes | ValueKind::Plain | ValueKind::Invalid | _ => {
            match value.downcast_object_ref::<ExactNumber>() {
                Some(exact) => exact.0.clone().into(),
                None => return Err(format!("{value} can't be converted to JSON")),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> Result<String, String> {
        let configs = r#"{"limits": {"acme": {"plan": "<pro>", "n": 7.0, "big": 123456789012345678901234567890,
                          "bigger": 1234567890123456789012345678901234567890, "exact": 0.12345678901234567890,
                          "list": [1, {"a": null}]}}}"#;
        render_of(text, configs, &[])
    }

    fn render_of(text: &str, configs: &str, redacted: &[&str]) -> Result<String, String> {
        let configs: Map<String, Value> = serde_json::from_str(configs).unwrap();
        let mut all = Vec::new();
        for (definition, of) in configs {
            for (key, data) in of.as_object().unwrap() {
                let (definition, key, data) = (definition.clone(), key.clone(), data.clone());
                let redacted = redacted.iter().map(|place| (*place).to_owned()).collect();
                let (created_at, modified_at) = (String::new(), String::new());
                all.push(Arc::new(Config {
                    definition,
                    key,
                    data,
                    revision: 1,
                    variant: None,
                    created_at,
                    modified_at,
                    redacted,
                }));
            }
        }
        Template::new("t", text)?.render(&all).0
    }

    #[test]
    fn numbers_keep_their_digits_and_members_their_order_in_every_way_out() {
        let data = r#"{"d": {"k": {"zulu": 1.50, "alpha": 1e3, "mike": [0.10, -0.0, 1E-7, 7.0, 12]}}}"#;
        let all = |text: &str| render_of(text, data, &[]).unwrap();
        assert_eq!(
            all("{{ configs.d.k|json }}"),
            "{\n  \"zulu\": 1.50,\n  \"alpha\": 1e+3,\n  \"mike\": [\n    0.10,\n    -0.0,\n    1e-7,\n    7.0,\n    12\n  ]\n}"
        );
        assert_eq!(
            all("{{ configs.d.k|toml }}"),
            "zulu = 1.50\nalpha = 1e+3\nmike = [0.10, -0.0, 1e-7, 7.0, 12]"
        );
        assert!(all("{{ configs.d.k|yaml }}").starts_with("zulu: 1.50\nalpha: 1.0e+3\nmike:\n"));
        assert_eq!(all("{% for name in configs.d.k %}{{ name }} {% endfor %}"), "zulu alpha mike ");
        assert_eq!(
            all("{{ configs.d.k }}"),
            "{'zulu': 1.50, 'alpha': 1e+3, 'mike': [0.10, -0.0, 1e-7, 7.0, 12]}"
        );
        assert_eq!(
            all(
                "{% set k = configs.d.k %}{{ k.zulu }} {{ k.alpha ~ ';' }} {{ k.mike|join(' ') }} {{ [k.zulu]|json }}"
            ),
            "1.50 1e+3; 0.10 -0.0 1e-7 7.0 12 [\n  1.50\n]"
        );
        // No text is repeated or put together where a number is meant.
        for wrong in
            ["{{ configs.d.k.zulu * 2 }}", "{{ 2 * configs.d.k.alpha }}", "{{ configs.d.k.zulu + 1 }}"]
        {
            let error = render_of(wrong, data, &[]).unwrap_err();
            assert!(error.contains("1.50") || error.contains("1e+3"), "{wrong}: {error}");
            assert!(error.contains("|float"), "{wrong}: {error}");
        }
        assert_eq!(all("{{ configs.d.k.zulu|float * 2 }} {{ configs.d.k.alpha|int + 1 }}"), "3.0 1001");
        assert_eq!(all("{{ configs.d.k.zulu is number }} {{ 1 if configs.d.k.mike[1] else 0 }}"), "True 0");
    }

    #[test]
    fn different_numbers_are_never_equal_after_a_conversion() {
        let data = r#"{"d": {"k": {
            "int": 9007199254740993, "next": 9007199254740992, "point": 9007199254740993.0, "low": 9007199254740992.0,
            "long": 0.12345678901234567890, "near": 0.12345678901234568, "e": 1e30, "e2": 1.0e30, "e3": 1e30000,
            "max": 170141183460469231731687303715884105727, "half": -2.75, "zero": -0.50, "price": 1.50, "same": 15e-1
        }}}"#;
        let render = |text: &str| render_of(&format!("{{% set k = configs.d.k %}}{text}"), data, &[]);
        let shown = |text: &str| render(&format!("{{{{ {text} }}}}")).unwrap();
        // A conversion that would lose digits says so.
        for (text, told) in [
            ("{{ k.int|float == k.next|float }}", "9007199254740993 has more digits"),
            ("{{ k.point|float == k.low|float }}", "9007199254740993.0 has more digits"),
            ("{{ k.long|float == k.near }}", "0.12345678901234567890 has more digits"),
            ("{{ k.e3|int }}", "too large"),
            ("{{ k.e3|float }}", "too large"),
        ] {
            let error = render(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        for (text, expected) in [
            ("k.point|int == k.low|int", "False"),
            ("k.point|int == k.int", "True"),
            ("k.point|int", "9007199254740993"),
            ("k.e|int", "1000000000000000000000000000000"),
            ("k.max|int + 0 == k.max", "True"),
            ("[k.half|int, k.zero|int, k.price|int]", "[-2, 0, 1]"),
            ("k.next|float == k.low|float", "True"),
            ("k.price|float", "1.5"),
            ("k.near|float", "0.12345678901234568"),
            ("k.long|string|float == k.near", "True"),
            // Numbers that keep their digits are compared exactly.
            ("k.price == k.same", "True"),
            ("k.e == k.e2", "True"),
            ("k.point == k.low", "False"),
            ("k.point > k.low", "True"),
            ("k.zero < k.price", "True"),
            ("k.long < k.e3", "True"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn a_redacted_value_is_never_a_value() {
        let data = r#"{"d": {"k": {"password": null, "a b": [{"t~/": null}], "n": 1}}}"#;
        let places = ["#/password", "#/a%20b/0/t~0~1"];
        let all = |text: &str| render_of(text, data, &places);
        assert_eq!(all("{{ configs.d.k.n }}").unwrap(), "1");
        for text in [
            "{{ configs.d.k.password }}",
            "{{ configs.d.k }}",
            "{{ configs.d.k ~ '' }}",
            "{{ configs }}",
            "{{ configs.d.k|json }}",
            "{{ configs.d.k|yaml }}",
            "{{ configs.d.k.password|default('x') }}",
            "{% if configs.d.k.password is defined %}x{% endif %}",
            "{% for name, value in configs.d.k|items %}{{ value }}{% endfor %}",
            "{{ configs.d.k['a b'][0]['t~/'] }}",
        ] {
            let error = all(text).unwrap_err();
            assert!(error.contains("`reveal`") && error.contains("d/k"), "{text}: {error}");
        }
        // A list of places that was cut hides all.
        assert!(render_of("{{ configs.d.k.n }}", data, &["#/password", "..."]).is_err());
    }

    #[test]
    fn a_template_has_the_data_as_they_are() {
        assert_eq!(render("{{ configs.limits.acme.plan }}\n").unwrap(), "<pro>\n");
        let numbers = "{% set a = configs.limits.acme %}{{ a.n }} {{ a.big }} {{ a.bigger }} {{ a.exact }}";
        assert_eq!(
            render(numbers).unwrap(),
            "7.0 123456789012345678901234567890 1234567890123456789012345678901234567890 0.12345678901234567890"
        );
        assert_eq!(
            render(
                "{% for key, data in configs['limits']|items %}{{ key }}={{ data.list|json }}{% endfor %}"
            )
            .unwrap(),
            "acme=[\n  1,\n  {\n    \"a\": null\n  }\n]"
        );
    }

    #[test]
    fn what_does_not_exist_is_an_error_with_its_place() {
        let error = render("a\n{{ configs.limits.absent.plan }}").unwrap_err();
        assert!(error.contains("undefined") && error.contains("t:2"), "{error}");
        let error = render("{{ configs.limits.acme.typo }}").unwrap_err();
        assert!(error.contains("undefined"), "{error}");
        assert!(Template::new("t", "{% if %}").unwrap_err().contains("template"));
    }

    #[test]
    fn a_template_says_which_configs_it_has_read() {
        let config = |definition: &str, key: &str| {
            let record =
                serde_json::json!({"config_definition_key": definition, "config_key": key, "data": {"n": 1}});
            Arc::new(serde_json::from_value::<Config>(record).unwrap())
        };
        let all = [config("a", "k"), config("a", "l"), config("b", "k")];
        for (text, read) in [
            ("", [false, false, false]),
            ("{{ configs.a.k.n }}", [true, false, false]),
            ("{% set all = configs %}{{ all['b']['k'] }}", [false, false, true]),
            ("{% for key, data in configs.a|items %}{{ key }}{% endfor %}", [true, true, false]),
            ("{{ configs.a|length }}", [true, true, false]),
            ("{{ 'k' in configs.a }}", [true, false, false]),
            ("{% for name in configs %}{{ configs[name].k.n }}{% endfor %}", [true, false, true]),
            ("{{ configs.a.k.n }}{% if false %}{{ configs.b.k }}{% endif %}", [true, false, false]),
            ("{{ configs }}", [true, true, true]),
            ("{{ configs|json }}", [true, true, true]),
            // Up to its end by an error.
            ("{{ configs.a.l.absent }}{{ configs.a.k.n }}", [false, true, false]),
        ] {
            assert_eq!(Template::new("t", text).unwrap().render(&all).1, read, "{text}");
        }
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let text = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        let error = render(text).unwrap_err();
        assert!(error.contains("fuel"), "{error}");
    }
}
