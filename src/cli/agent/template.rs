//! Templates in the language of Jinja.
//!
//! A template has `configs`, the data of all configs that the agent keeps as `configs["definition"]["key"]`, and the
//! filters `json`, `yaml` and `toml`.
//!
//! **Invariants:** an unknown name is an error, not an empty text. Numbers keep the digits of the config. A template that
//! does not terminate is stopped.

use std::{path::Path, sync::Arc};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, syntax::SyntaxConfig, value};
use serde_json::{Map, Value};

use super::format::FileFormat;

/// Steps of a template before it is stopped: seconds of work.
const FUEL: u64 = 50_000_000;

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

    /// Its text for these data.
    pub(super) fn render(&self, configs: &Value) -> Result<String, String> {
        let context = value::Value::from_pairs([("configs", from_json(configs))]);
        let rendered = environment().render_named_str(&self.0.name, &self.0.text, context);
        rendered.map_err(|error| told(&error))
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
    text
}

/// Data as template values. A number that no template type represents exactly becomes a string of its digits.
fn from_json(value: &Value) -> value::Value {
    match value {
        Value::Null => value::Value::from(()),
        Value::Bool(value) => (*value).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => {
            let text = number.to_string();
            if let Ok(integer) = text.parse::<i128>() {
                return integer.into();
            }
            match text.parse::<f64>() {
                Ok(float) if serde_json::Number::from_f64(float).is_some_and(|same| same == *number) => {
                    float.into()
                }
                Ok(_) | Err(_) => text.into(),
            }
        }
        Value::Array(items) => items.iter().map(from_json).collect(),
        Value::Object(members) => {
            value::Value::from_pairs(members.iter().map(|(name, value)| (name.as_str(), from_json(value))))
        }
    }
}

/// Converts a template value to data.
fn to_json(value: &value::Value) -> Result<Value, String> {
    use value::ValueKind;
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
            return Err(format!("{} can't be converted to JSON", value.kind()));
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
        Template::new("t", text)?.render(&serde_json::from_str(configs).unwrap())
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
    fn a_template_that_never_ends_is_stopped() {
        let text = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        let error = render(text).unwrap_err();
        assert!(error.contains("fuel"), "{error}");
    }
}
