//! Data as JSON, YAML, TOML and environment variables.
//!
//! **Invariant:** a value that a format can't represent, or that the access key may not see, is an error; nothing is
//! omitted or rounded silently. No data name a variable that programs obey.

use std::{collections::BTreeSet, fmt::Write as _};

use concord_client::Config;
use concord_formats::yaml;
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use toml_writer::{ToTomlKey as _, ToTomlValue as _};

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
    /// The text of data. Variables have no prefix and any name.
    pub(super) fn write(self, data: &Value) -> Result<String, String> {
        match self {
            Self::Json => Ok(format!("{data:#}\n")),
            Self::Yaml => Ok(yaml::write(data)),
            Self::Toml => toml(data),
            Self::Env => Err("variables need a prefix or a list of names".into()),
        }
    }
}

/// How a file is written.
#[derive(Debug)]
pub(super) enum Layout {
    Data(FileFormat),
    Env(Variables),
}

impl Layout {
    /// The text of data.
    pub(super) fn write(&self, data: &Value) -> Result<String, String> {
        match self {
            Self::Data(format) => format.write(data),
            Self::Env(variables) => variables.write(data),
        }
    }
}

/// The variables that data may set. A client with `write` names the members, so the settings bound the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Variables {
    /// All names begin with this.
    Prefixed(String),
    /// Only these are written.
    Listed(BTreeSet<String>),
}

/// Why a config can't be written whole.
pub(super) fn hidden_text(config: &Config) -> String {
    let (definition, key) = (&config.definition, &config.key);
    format!(
        "config {definition}/{key} has secret fields that the agent's access key may not read ({}): give the key the \
         permission `reveal` on `{definition}`",
        config.redacted.join(", ")
    )
}

/// The data of a config.
///
/// # Errors
/// When some of them are redacted: null is not their value.
pub(super) fn data_of(config: &Config) -> Result<&Value, String> {
    if config.redacted.is_empty() { Ok(&config.data) } else { Err(hidden_text(config)) }
}

/// Names that a loader, a shell or an interpreter obeys, and the beginnings of such names.
const OBEYED: [&str; 34] = [
    "BASHOPTS",
    "BASH_ENV",
    "CDPATH",
    "CLASSPATH",
    "CURL_HOME",
    "DOTNET_STARTUP_HOOKS",
    "EDITOR",
    "ENV",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "GLOBIGNORE",
    "HOME",
    "HOSTALIASES",
    "IFS",
    "JDK_JAVA_OPTIONS",
    "LOCALDOMAIN",
    "LOCPATH",
    "NLSPATH",
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    "PAGER",
    "PATH",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "PROMPT_COMMAND",
    "PS4",
    "RES_OPTIONS",
    "SHELL",
    "SHELLOPTS",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "VISUAL",
    "_JAVA_OPTIONS",
];
const OBEYED_PREFIXES: [&str; 13] = [
    "BASH_FUNC_",
    "COMPLUS_",
    "CORECLR_",
    "COR_",
    "DYLD_",
    "GIT_",
    "JAVA_TOOL_",
    "LD_",
    "LUA_",
    "NODE_",
    "PERL5",
    "PYTHON",
    "RUBY",
];

/// Checks the name of a variable.
pub(in crate::cli) fn check_variable(name: &str) -> Result<(), String> {
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(format!(
            "invalid variable name `{name}`: expected letters, digits and `_`, no digit first"
        ));
    }
    let upper = name.to_ascii_uppercase();
    if OBEYED.contains(&upper.as_str()) || OBEYED_PREFIXES.iter().any(|begin| upper.starts_with(begin)) {
        return Err(format!(
            "the variable {name} is obeyed by loaders or interpreters, so data may not set it"
        ));
    }
    Ok(())
}

impl Variables {
    /// Variables whose names begin with a prefix.
    pub(in crate::cli) fn prefixed(prefix: &str) -> Result<Self, String> {
        if prefix.is_empty() {
            return Err("`prefix` is empty".into());
        }
        check_variable(prefix).map_err(|error| format!("`prefix`: {error}"))?;
        Ok(Self::Prefixed(prefix.to_owned()))
    }

    /// Variables with these names.
    pub(in crate::cli) fn listed(names: &[String]) -> Result<Self, String> {
        names
            .iter()
            .try_for_each(|name| check_variable(name))
            .map_err(|error| format!("`names`: {error}"))?;
        if names.is_empty() {
            return Err("`names` is empty".into());
        }
        Ok(Self::Listed(names.iter().cloned().collect()))
    }

    fn write(&self, data: &Value) -> Result<String, String> {
        let mut text = String::new();
        for (name, value) in self.pairs(data)? {
            if value.contains(['\n', '\r']) {
                return Err(format!("{name}: a variable in a file can't contain a line break"));
            }
            // Writing to a text can't fail.
            let _ = writeln!(text, "{name}='{}'", value.replace('\'', r"'\''"));
        }
        Ok(text)
    }

    /// The names and values of data, each name once.
    pub(in crate::cli) fn pairs(&self, data: &Value) -> Result<Vec<(String, String)>, String> {
        let Value::Object(members) = data else { return Err("environment variables need an object".into()) };
        let (begin, listed) = match self {
            Self::Prefixed(prefix) => (prefix.as_str(), None),
            Self::Listed(names) => ("", Some(names)),
        };
        let mut variables = Vec::new();
        env_of(begin, members, &mut variables);
        let (mut pairs, mut seen) = (Vec::new(), BTreeSet::new());
        for (name, value) in variables {
            if listed.is_some_and(|names| !names.contains(&name)) {
                continue;
            }
            check_variable(&name)?;
            let value = match value {
                Value::Null => String::new(),
                Value::String(text) if text.contains('\0') => {
                    return Err(format!("{name}: a variable can't contain NUL"));
                }
                Value::String(text) => text.clone(),
                value @ (Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                    value.to_string()
                }
            };
            if !seen.insert(name.clone()) {
                return Err(format!("duplicate variable name {name}"));
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }
}

/// The variables of data: the names of nested members are joined with `_`.
fn env_of<'a>(prefix: &str, members: &'a Map<String, Value>, variables: &mut Vec<(String, &'a Value)>) {
    for (name, value) in members {
        let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name = format!("{prefix}{}", name.chars().map(upper).collect::<String>());
        match value {
            Value::Object(members) => env_of(&format!("{name}_"), members, variables),
            Value::Null | Value::String(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_) => {
                variables.push((name, value));
            }
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
            Variables::prefixed("X_").unwrap().write(&value).unwrap(),
            "X_PLAN='it'\\''s \"pro\"'\nX_N='7.0'\nX_ON='true'\nX_TAGS='[\"a\",1]'\nX_QUOTA_RE_QUESTS='10'\n"
        );
        let listed = ["N", "QUOTA_RE_QUESTS"].map(str::to_owned);
        assert_eq!(
            Variables::listed(&listed).unwrap().write(&value).unwrap(),
            "N='7.0'\nQUOTA_RE_QUESTS='10'\n"
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
        ] {
            let error = format.write(&data(text)).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for (text, expected) in [
            ("7", "need an object"),
            (r#"{"a": "x\ny"}"#, "line break"),
            (r#"{"a": "x\ry"}"#, "line break"),
            (r#"{"a": "x\u0000y"}"#, "NUL"),
            (r#"{"a-b": 1, "a_b": 2}"#, "duplicate variable"),
        ] {
            let error = Variables::prefixed("X_").unwrap().write(&data(text)).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn no_data_name_a_variable_that_programs_obey() {
        for name in [
            "LD_PRELOAD",
            "PATH",
            "IFS",
            "BASH_ENV",
            "ENV",
            "PYTHONSTARTUP",
            "NODE_OPTIONS",
            "JAVA_TOOL_OPTIONS",
            "path",
        ] {
            assert!(Variables::listed(&[name.to_owned()]).unwrap_err().contains("obeyed"), "{name}");
            assert!(Variables::prefixed(name).is_err(), "{name}");
        }
        for prefix in ["", "1", "A-", "LD_", "PYTHON"] {
            assert!(Variables::prefixed(prefix).is_err(), "{prefix}");
        }
        // A prefix that a member completes to such a name.
        let error =
            Variables::prefixed("L").unwrap().write(&data(r#"{"D_PRELOAD": "/evil.so"}"#)).unwrap_err();
        assert!(error.contains("LD_PRELOAD"), "{error}");
    }
}
