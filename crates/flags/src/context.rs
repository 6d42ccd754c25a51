//! The context of an evaluation: who reads, and what is known of that reader.

use concord_model::limits::FLAG_CONTEXT_DEPTH_MAX;
use datalogic_rs::datavalue::OwnedDataValue;
use serde_json::Value;

use super::cost;

/// The member with the time and the flag's key, which the context of a client can't set.
pub(crate) const FLAGD: &str = "$flagd";
/// The member that says who reads.
pub(crate) const TARGETING_KEY: &str = "targetingKey";

/// A context that rules can be evaluated with.
#[derive(Debug)]
pub struct Context {
    /// The members, without [`FLAGD`].
    pub(crate) members: Vec<(String, OwnedDataValue)>,
    /// Its steps.
    pub(crate) size: u64,
}

/// Why a value is no context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextError {
    /// Not an object.
    NotAnObject,
    /// `targetingKey` is not a string.
    TargetingKey,
    /// Nested deeper than rules can follow.
    TooDeep,
    /// A number that no 64-bit float can hold.
    Number,
}

impl ContextError {
    /// What to say of it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotAnObject => "`context` must be an object",
            Self::TargetingKey => "`targetingKey` of the context must be a string",
            Self::TooDeep => "the context is nested too deep",
            Self::Number => "a number of the context is out of the range of 64-bit floats",
        }
    }
}

impl Context {
    /// A context without members.
    #[must_use]
    pub const fn empty() -> Self {
        Self { members: Vec::new(), size: 0 }
    }

    /// The context that is this value. `null` is an empty one.
    ///
    /// # Errors
    /// When the value is no object or holds what rules can't use.
    pub fn new(value: &Value) -> Result<Self, ContextError> {
        let object = match value {
            Value::Null => return Ok(Self::empty()),
            Value::Object(object) => object,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(ContextError::NotAnObject);
            }
        };
        if object.get(TARGETING_KEY).is_some_and(|key| !key.is_string() && !key.is_null()) {
            return Err(ContextError::TargetingKey);
        }
        let rest = object.iter().filter(|(name, _)| *name != FLAGD);
        let members = rest.map(|(name, value)| Ok((name.clone(), data(value, 1)?)));
        let members = OwnedDataValue::Object(members.collect::<Result<_, ContextError>>()?);
        let size = cost::size(&members);
        let OwnedDataValue::Object(members) = members else { return Err(ContextError::NotAnObject) };
        Ok(Self { members, size })
    }
}

impl Context {
    /// Who reads, if the context says it.
    #[must_use]
    pub fn targeting_key(&self) -> Option<&str> {
        let (_, value) = self.members.iter().find(|(name, _)| name == TARGETING_KEY)?;
        if let OwnedDataValue::String(text) = value { Some(text.as_str()) } else { None }
    }
}

/// A value as the engine reads it: integers of 64 bits, other numbers as floats.
fn data(value: &Value, depth: usize) -> Result<OwnedDataValue, ContextError> {
    if depth > FLAG_CONTEXT_DEPTH_MAX {
        return Err(ContextError::TooDeep);
    }
    Ok(match value {
        Value::Null => OwnedDataValue::Null,
        Value::Bool(it) => OwnedDataValue::Bool(*it),
        Value::String(text) => OwnedDataValue::String(text.clone()),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => OwnedDataValue::from_i64(integer),
            // With arbitrary precision, `as_f64` has no value for what overflows.
            None => OwnedDataValue::from_f64(
                number.as_f64().filter(|f| f.is_finite()).ok_or(ContextError::Number)?,
            ),
        },
        Value::Array(items) => {
            OwnedDataValue::Array(items.iter().map(|item| data(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Value::Object(object) => OwnedDataValue::Object(
            object
                .iter()
                .map(|(name, item)| Ok((name.clone(), data(item, depth + 1)?)))
                .collect::<Result<_, ContextError>>()?,
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_rules_cannot_use_is_no_context() {
        assert_eq!(Context::new(&json!([])).unwrap_err(), ContextError::NotAnObject);
        assert_eq!(Context::new(&json!({ "targetingKey": 1 })).unwrap_err(), ContextError::TargetingKey);
        let huge: Value = serde_json::from_str(r#"{"a":1e999}"#).unwrap();
        assert_eq!(Context::new(&huge).unwrap_err(), ContextError::Number);
        let mut deep = json!(1);
        for _ in 0..=FLAG_CONTEXT_DEPTH_MAX {
            deep = json!({ "a": deep });
        }
        assert_eq!(Context::new(&deep).unwrap_err(), ContextError::TooDeep);
    }

    #[test]
    fn a_client_cannot_set_the_time() {
        let context = Context::new(&json!({ "$flagd": { "timestamp": 1 }, "a": 2 })).unwrap();
        assert_eq!(context.members.len(), 1);
        assert!(Context::new(&Value::Null).unwrap().members.is_empty());
    }
}
