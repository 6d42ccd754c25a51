//! Data as JSON, YAML, TOML and environment variables.
//!
//! **Invariant:** a value that a format can't represent is an error; nothing is omitted or rounded silently.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Number, Value};
use toml_writer::{ToTomlKey as _, ToTomlValue as _};

use super::super::yaml_writer;

/// How data are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FileFormat {
    Json,
    Yaml,
    Toml,
    /// `NAME='value'`, one a line: for shells, systemd and containers.
    Env,
}

impl FileFormat {
    /// The text of data.
    pub(super) fn write(self, data: &Value) -> Result<String, String> {
        match self {
            Self::Json => Ok(format!("{data:#}\n")),
            Self::Yaml => Ok(yaml_writer::write(data)),
            Self::Toml => toml(data),
            Self::Env => env(data),
        }
    }
}

fn toml(data: &Value) -> Result<String, String> {
    let Value::Object(members) = data else { return Err("TOML output needs an object".into()) };
    let mut text = String::new();
    toml_table(&mut text, &mut Vec::new(), members)?;
    Ok(text)
}

/// A table: its values first, then its tables.
fn toml_table(text: &mut String, path: &mut Vec<String>, members: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in members.iter().filter(|(_, value)| !value.is_object()) {
        let place = || place(path, name);
        let value = toml_value(value).map_err(|error| format!("{}: {error}", place()))?;
        text.push_str(&format!("{} = {value}\n", name.as_str().to_toml_key()));
    }
    for (name, value) in members {
        let Value::Object(members) = value else { continue };
        path.push(name.clone());
        let keys: Vec<String> = path.iter().map(|name| name.as_str().to_toml_key()).collect();
        let space = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{space}[{}]\n", keys.join(".")));
        toml_table(text, path, members)?;
        path.pop();
    }
    Ok(())
}

fn toml_value(value: &Value) -> Result<String, String> {
    Ok(match value {
        Value::Null => return Err("TOML has no null".into()),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => toml_number(number)?,
        Value::String(text) => text.as_str().to_toml_value(),
        Value::Array(items) => {
            let items = items.iter().map(toml_value).collect::<Result<Vec<_>, _>>()?;
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                Ok::<_, String>(format!("{} = {}", name.as_str().to_toml_key(), toml_value(value)?))
            };
            let members = members.iter().map(member).collect::<Result<Vec<_>, _>>()?;
            format!("{{ {} }}", members.join(", "))
        }
    })
}

/// A number with its digits.
fn toml_number(number: &Number) -> Result<String, String> {
    let text = number.to_string();
    let is_integer = !text.contains(['.', 'e', 'E']);
    let fits =
        if is_integer { text.parse::<i64>().is_ok() } else { text.parse::<f64>().is_ok_and(f64::is_finite) };
    if fits { Ok(text) } else { Err(format!("TOML can't represent the number {text}")) }
}

fn env(data: &Value) -> Result<String, String> {
    let Value::Object(members) = data else { return Err("environment variables need an object".into()) };
    let mut lines = Vec::new();
    env_of("", members, &mut lines)?;
    let mut text = String::new();
    let mut seen = std::collections::BTreeSet::new();
    for (name, value) in lines {
        if !seen.insert(name.clone()) {
            return Err(format!("duplicate variable name {name}"));
        }
        let value = value.replace('\'', r"'\''");
        // Writing to a text can't fail.
        let _ = writeln!(text, "{name}='{value}'");
    }
    Ok(text)
}

fn env_of(
    prefix: &str,
    members: &Map<String, Value>,
    lines: &mut Vec<(String, String)>,
) -> Result<(), String> {
    for (name, value) in members {
        let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = format!("{prefix}{name}").chars().map(upper).collect();
        if name.is_empty() {
            return Err("a variable name is empty".into());
        }
        if name.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(format!("invalid variable name `{name}`: it begins with a digit"));
        }
        match value {
            Value::Object(members) => env_of(&format!("{name}_"), members, lines)?,
            Value::Null => lines.push((name, String::new())),
            Value::String(text) if text.contains(['\n', '\0']) => {
                return Err(format!("{name}: a variable can't contain a newline or NUL"));
            }
            Value::String(text) => lines.push((name, text.clone())),
            Value::Array(_) | Value::Bool(_) | Value::Number(_) => lines.push((name, value.to_string())),
        }
    }
    Ok(())
}

fn place(path: &[String], name: &str) -> String {
    path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn data_are_written_in_each_format() {
        let value = data(
            r#"{"plan": "it's \"pro\"", "n": 7.0, "on": true, "tags": ["a", 1], "quota": {"re quests": 10}}"#,
        );
        assert_eq!(data(&FileFormat::Json.write(&value).unwrap()), value);
        assert_eq!(
            FileFormat::Toml.write(&value).unwrap(),
            "plan = 'it''s \"pro\"'\n".replace("'it''s \"pro\"'", &"it's \"pro\"".to_toml_value())
                + "n = 7.0\non = true\ntags = [\"a\", 1]\n\n[quota]\n\"re quests\" = 10\n"
        );
        assert_eq!(
            FileFormat::Env.write(&value).unwrap(),
            "PLAN='it'\\''s \"pro\"'\nN='7.0'\nON='true'\nTAGS='[\"a\",1]'\nQUOTA_RE_QUESTS='10'\n"
        );
        assert!(FileFormat::Yaml.write(&value).unwrap().contains(": 7.0\n"));
    }

    #[test]
    fn what_a_format_can_not_hold_is_refused() {
        for (format, text, expected) in [
            (FileFormat::Toml, r#"{"a": {"b": null}}"#, "a.b: TOML has no null"),
            (FileFormat::Toml, r#"{"a": 12345678901234567890}"#, "the number"),
            (FileFormat::Toml, r#"{"a": 1e400}"#, "the number"),
            (FileFormat::Toml, "[1]", "needs an object"),
            (FileFormat::Env, "7", "need an object"),
            (FileFormat::Env, r#"{"a": "x\ny"}"#, "newline"),
            (FileFormat::Env, r#"{"a-b": 1, "a_b": 2}"#, "duplicate variable"),
            (FileFormat::Env, r#"{"1a": 1}"#, "begins with a digit"),
            (FileFormat::Env, r#"{"": 1}"#, "is empty"),
        ] {
            let error = format.write(&data(text)).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
