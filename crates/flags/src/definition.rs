//! One flag, in the format of flagd.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    SHARED_KEY,
    references::{SharedRules, Unresolved},
    rules::Rule,
    set::ErrorCode,
};

/// A flag that can be evaluated.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) is_enabled: bool,
    /// Each as it was written, so that a number keeps its digits.
    pub(crate) variants: BTreeMap<String, Box<RawValue>>,
    /// One of the variants. Without it a reader uses the default of the program.
    pub(crate) default: Option<String>,
    /// What decides, or why it can't: a disabled flag doesn't need it.
    pub(crate) rule: Option<Result<Rule, Unusable>>,
}

/// Why a flag or its rule can't be used.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) code: ErrorCode,
    pub(crate) details: String,
}

impl Unusable {
    /// What nobody can read.
    pub(crate) const fn broken(details: String) -> Self {
        Self { code: ErrorCode::ParseError, details }
    }

    /// A flag with a part that is hidden from the client.
    pub(crate) fn hidden() -> Self {
        let details = "a part of the flag is secret: the access key needs the permission `reveal`";
        Self { code: ErrorCode::General, details: details.to_owned() }
    }

    /// A rule that refers to what is hidden from the client.
    fn hidden_rule() -> Self {
        let details = format!(
            "the rule refers to `$evaluators` of `{SHARED_KEY}`, of which a part is secret: the access key needs the \
             permission `reveal`"
        );
        Self { code: ErrorCode::General, details }
    }
}

/// The members of a flag; others are for people and tools.
#[derive(Deserialize)]
struct Members {
    state: String,
    variants: BTreeMap<String, Box<RawValue>>,
    #[serde(default, rename = "defaultVariant")]
    default: Option<String>,
    #[serde(default)]
    targeting: Option<Value>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

/// A flag and its own metadata; of one that can't be used, why.
pub(crate) struct Parsed {
    pub(crate) flag: Result<Flag, String>,
    pub(crate) metadata: Map<String, Value>,
}

/// Parses the text of a flag.
pub(crate) fn parse(text: &str, shared: &mut SharedRules) -> Parsed {
    let members: Members = match object(text) {
        Ok(members) => members,
        Err(error) => return Parsed { flag: Err(error), metadata: Map::new() },
    };
    let metadata = primitives(members.metadata.as_ref());
    Parsed { flag: flag(members, shared), metadata }
}

fn flag(members: Members, shared: &mut SharedRules) -> Result<Flag, String> {
    let is_enabled = match members.state.as_str() {
        "ENABLED" => true,
        "DISABLED" => false,
        _ => return Err("`state` must be `ENABLED` or `DISABLED`".to_owned()),
    };
    let default = members.default.filter(|name| !name.is_empty());
    if let Some(name) = default.as_ref().filter(|name| !members.variants.contains_key(name.as_str())) {
        return Err(format!("`defaultVariant` names `{name}`, which is not in `variants`"));
    }
    let rule = match members.targeting {
        None | Some(Value::Null) => None,
        Some(Value::Object(object)) if object.is_empty() => None,
        Some(targeting @ Value::Object(_)) => Some(rule(&targeting, shared)),
        Some(_) => return Err("`targeting` must be an object".to_owned()),
    };
    Ok(Flag { is_enabled, variants: members.variants, default, rule })
}

fn rule(targeting: &Value, shared: &mut SharedRules) -> Result<Rule, Unusable> {
    let broken = |why: String| Unusable::broken(format!("`targeting`: {why}"));
    let resolved = shared.resolve(targeting).map_err(|why| match why {
        Unresolved::Hidden => Unusable::hidden_rule(),
        Unresolved::Broken(why) => broken(why),
    })?;
    Rule::compile(resolved).map_err(broken)
}

/// The members that metadata of `OpenFeature` can have: texts, numbers, booleans.
pub(crate) fn primitives(metadata: Option<&Map<String, Value>>) -> Map<String, Value> {
    let is_primitive = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
    let members = metadata.into_iter().flatten().filter(|(_, value)| is_primitive(value));
    members.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Reads the members of an object. What serde reads as members could be an array, too.
pub(crate) fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    if !text.trim_start().starts_with('{') {
        return Err("it must be an object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| without_place(&error.to_string()))
}

/// The message of a JSON error without the line and column, which are those of the stored text.
fn without_place(message: &str) -> String {
    message.split(" at line ").next().unwrap_or(message).to_owned()
}
