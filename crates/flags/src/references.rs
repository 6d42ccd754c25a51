//! Shared rules: an object whose only member is `$ref` stands for the rule of that name in `$evaluators`.
//!
//! A rule may refer to others. What comes of it is bounded, values and bytes of text alike: a few rules that each refer
//! to the one before twice would grow without end, and a thousand flags can refer to one long text. A rule that can't be
//! used counts as well, because it took as long.

use concord_model::limits::{FLAG_RULE_VALUES_MAX, FLAG_RULES_VALUES_MAX};
use serde_json::{Map, Value};

/// The member that refers to a shared rule.
const REF: &str = "$ref";
/// Shared rules within shared rules.
const CHAIN_MAX: usize = 16;
/// Bytes of text that count as a value more.
const TEXT_UNIT: usize = 32;
/// Levels of a rule: the engine is recursive. A rule that a person can read has ten.
const DEPTH_MAX: usize = 100;

/// Why the references of a rule can't be replaced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// It refers to shared rules that are hidden from the client.
    Hidden,
    /// In words.
    Broken(String),
}

impl From<String> for Unresolved {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

/// The shared rules of a set of flags, and how many values its rules may still have.
pub(crate) struct SharedRules {
    /// `None`: they are hidden from the client.
    rules: Option<Map<String, Value>>,
    values_left: usize,
}

impl SharedRules {
    pub(crate) const fn new(rules: Map<String, Value>) -> Self {
        Self { rules: Some(rules), values_left: FLAG_RULES_VALUES_MAX }
    }

    /// Rules that are hidden from the client.
    pub(crate) const fn hidden() -> Self {
        Self { rules: None, values_left: FLAG_RULES_VALUES_MAX }
    }

    /// The rule with every reference replaced.
    ///
    /// # Errors
    /// When a reference names no shared rule or a hidden one, leads back to itself, or makes the rules too large.
    pub(crate) fn resolve(&mut self, rule: &Value) -> Result<Value, Unresolved> {
        let left = self.values_left;
        let mut resolver =
            Resolver { shared: self.rules.as_ref(), chain: Vec::new(), values: 0, left, depth: 0 };
        let resolved = resolver.value(rule);
        self.values_left = left.saturating_sub(resolver.values);
        resolved
    }
}

struct Resolver<'a> {
    shared: Option<&'a Map<String, Value>>,
    /// The shared rules that are being replaced.
    chain: Vec<&'a str>,
    values: usize,
    /// The values that there may be at most for this definition.
    left: usize,
    depth: usize,
}

impl<'a> Resolver<'a> {
    fn value(&mut self, rule: &Value) -> Result<Value, Unresolved> {
        self.count(match rule {
            Value::String(text) => text.len(),
            Value::Object(object) => object.keys().map(String::len).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => 0,
        })?;
        if self.depth == DEPTH_MAX {
            return Err(format!("the rule is nested deeper than {DEPTH_MAX} levels").into());
        }
        self.depth += 1;
        let replaced = self.inside(rule);
        self.depth -= 1;
        replaced
    }

    /// Counts a value with this many bytes of text, before it is copied.
    fn count(&mut self, text: usize) -> Result<(), String> {
        self.values += 1 + text / TEXT_UNIT;
        if self.values > FLAG_RULE_VALUES_MAX {
            return Err(format!(
                "the rule has more than {FLAG_RULE_VALUES_MAX} values with its `$ref` replaced, \
                 where {TEXT_UNIT} bytes of text count as one"
            ));
        }
        if self.values > self.left {
            return Err(format!(
                "the rules of the definition have together more than {FLAG_RULES_VALUES_MAX} values"
            ));
        }
        Ok(())
    }

    fn inside(&mut self, rule: &Value) -> Result<Value, Unresolved> {
        match rule {
            Value::Array(items) => {
                Ok(Value::Array(items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?))
            }
            Value::Object(object) => match object.get(REF) {
                Some(Value::String(name)) if object.len() == 1 => self.shared_rule(name),
                _ => {
                    let members = object.iter().map(|(name, item)| Ok((name.clone(), self.value(item)?)));
                    Ok(Value::Object(members.collect::<Result<_, Unresolved>>()?))
                }
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(rule.clone()),
        }
    }

    fn shared_rule(&mut self, name: &str) -> Result<Value, Unresolved> {
        let shared = self.shared.ok_or(Unresolved::Hidden)?;
        let Some((name, rule)) = shared.get_key_value(name) else {
            return Err(format!("`$ref` names `{name}`, which is not in `$evaluators`").into());
        };
        if self.chain.contains(&name.as_str()) {
            return Err(format!("`{name}` of `$evaluators` refers to itself").into());
        }
        if self.chain.len() == CHAIN_MAX {
            return Err(format!("`$evaluators` refer to each other over more than {CHAIN_MAX} steps").into());
        }
        self.chain.push(name);
        let resolved = self.value(rule);
        self.chain.pop();
        resolved
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resolved(rule: &Value, shared: &Value) -> Result<Value, String> {
        SharedRules::new(shared.as_object().unwrap().clone()).resolve(rule).map_err(text)
    }

    fn text(why: Unresolved) -> String {
        match why {
            Unresolved::Hidden => "hidden".to_owned(),
            Unresolved::Broken(why) => why,
        }
    }

    #[test]
    fn only_rules_that_refer_to_hidden_ones_are_hidden() {
        let mut hidden = SharedRules::hidden();
        assert_eq!(hidden.resolve(&json!({ "!": [{ "$ref": "a" }] })), Err(Unresolved::Hidden));
        assert_eq!(hidden.resolve(&json!({ "var": "x" })), Ok(json!({ "var": "x" })));
    }

    #[test]
    fn a_reference_is_replaced_by_the_rule_wherever_it_stands() {
        let shared = json!({ "a": { "==": [1, { "$ref": "b" }] }, "b": { "var": "x" } });
        let rule = json!({ "if": [{ "$ref": "a" }, { "$ref": "b", "and": 1 }] });
        let wanted = json!({ "if": [{ "==": [1, { "var": "x" }] }, { "$ref": "b", "and": 1 }] });
        assert_eq!(resolved(&rule, &shared), Ok(wanted));
    }

    #[test]
    fn the_rules_of_a_set_are_bounded_together() {
        let wide = Value::Array(vec![json!(1); FLAG_RULE_VALUES_MAX - 1]);
        let mut shared = SharedRules::new(Map::new());
        for _ in 0..FLAG_RULES_VALUES_MAX / FLAG_RULE_VALUES_MAX {
            assert!(shared.resolve(&wide).is_ok());
        }
        assert!(text(shared.resolve(&wide).unwrap_err()).contains("together"));
        assert!(shared.resolve(&json!([1])).is_err(), "nothing is left");
    }

    #[test]
    fn rules_that_cannot_be_used_count_too() {
        let wide = Value::Array(vec![json!(1); 2 * FLAG_RULE_VALUES_MAX]);
        let mut shared = SharedRules::new(Map::from_iter([("a".to_owned(), wide)]));
        let rule = json!({ "$ref": "a" });
        // Each counts up to the first value that is too many.
        let times = FLAG_RULES_VALUES_MAX / (FLAG_RULE_VALUES_MAX + 1);
        assert!((0..times).all(|_| shared.resolve(&rule).is_err_and(|why| text(why).contains("replaced"))));
        assert!(text(shared.resolve(&rule).unwrap_err()).contains("together"));
        assert!(shared.resolve(&json!([1])).is_err(), "nothing is left");
    }

    #[test]
    fn text_counts_wherever_it_stands() {
        let long = "x".repeat(TEXT_UNIT * FLAG_RULE_VALUES_MAX);
        for rule in [json!(long), json!({ long.as_str(): 1 }), json!([{ "$ref": "a" }])] {
            let mut shared = SharedRules::new(Map::from_iter([("a".to_owned(), json!(long))]));
            assert!(text(shared.resolve(&rule).unwrap_err()).contains("bytes of text"));
        }
        let half = "x".repeat(TEXT_UNIT * FLAG_RULE_VALUES_MAX / 2);
        let mut shared = SharedRules::new(Map::from_iter([("a".to_owned(), json!(half))]));
        let made = (0..1000).filter(|_| shared.resolve(&json!({ "$ref": "a" })).is_ok()).count();
        assert!((30..=40).contains(&made), "{made}");
    }

    #[test]
    fn references_that_lead_nowhere_or_back_or_grow_are_errors() {
        let error = |shared: Value| resolved(&json!({ "$ref": "a" }), &shared).unwrap_err();
        assert!(error(json!({})).contains("not in `$evaluators`"));
        assert!(
            error(json!({ "a": { "!": [{ "$ref": "b" }] }, "b": { "$ref": "a" } }))
                .contains("refers to itself")
        );
        let mut doubling = Map::new();
        doubling.insert(format!("r{}", CHAIN_MAX - 1), json!(1));
        for step in 0..CHAIN_MAX - 1 {
            let next = json!({ "$ref": format!("r{}", step + 1) });
            doubling.insert(format!("r{step}"), json!([next.clone(), next]));
        }
        let error = resolved(&json!({ "$ref": "r0" }), &doubling.into()).unwrap_err();
        assert!(error.contains("more than"), "{error}");
        let mut deep = json!(1);
        for _ in 0..DEPTH_MAX {
            deep = json!({ "!": deep });
        }
        assert!(resolved(&deep, &json!({})).unwrap_err().contains("nested deeper"));
    }
}
