//! Random flags and contexts beside `@openfeature/flagd-core`.
//!
//! `FLAGS_ORACLE` names a file of cases; scripts/flags-oracle.mjs writes it, and scripts/flags-oracle.sh runs
//! both. A difference without a reason below fails the test.

use std::collections::BTreeMap;

use concord_flags::{Context, FlagSet, Outcome};
use serde_json::Value;

/// The result as the cases have it.
fn ours(case: &Value) -> Value {
    let flag = case["flag"].to_string();
    let set = FlagSet::compile([("flag", Some(flag.as_str()))]);
    let context = Context::new(&case["context"]).expect("the cases have contexts");
    let evaluation = set.evaluate("flag", &context, 1_700_000_000);
    match evaluation.outcome {
        Outcome::Value { variant, reason, .. } => {
            serde_json::json!({ "variant": variant, "reason": reason.name() })
        }
        Outcome::CodeDefault { reason } => serde_json::json!({ "reason": reason.name() }),
        Outcome::Failure { code, details } => serde_json::json!({ "error": code.name(), "details": details }),
    }
}

fn is_same(ours: &Value, theirs: &Value) -> bool {
    ["variant", "reason", "error"].iter().all(|name| ours.get(name) == theirs.get(name))
}

#[expect(clippy::disallowed_methods, reason = "the file is the caller's")]
#[test]
#[ignore = "needs the cases of scripts/flags-oracle.mjs"]
fn results_are_those_of_flagd_core() {
    let cases = std::env::var("FLAGS_ORACLE").expect("the file is named");
    let cases = std::fs::read_to_string(cases).expect("the file is read");
    let (mut all, mut reasons, mut unnamed) = (0, BTreeMap::<String, usize>::new(), Vec::new());
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        all += 1;
        let ours = ours(&case);
        if is_same(&ours, &case["result"]) {
            continue;
        }
        match reason(&case, &ours) {
            Some(reason) => *reasons.entry(reason.to_owned()).or_default() += 1,
            None => unnamed.push(format!("{line}\n  ours: {ours}")),
        }
    }
    println!("{all} evaluations; different with a reason: {reasons:#?}");
    assert!(all >= 1000, "the cases were read");
    let shown: Vec<&str> = unnamed.iter().take(15).map(String::as_str).collect();
    assert!(unnamed.is_empty(), "{} differences without a reason:\n{}", unnamed.len(), shown.join("\n"));
}

/// Why a difference is one. Each reason names what the rule must have for it; a difference that fits none is a fault.
fn reason(case: &Value, ours: &Value) -> Option<&'static str> {
    let (rule, context) = (&case["flag"]["targeting"], &case["context"]);
    let details = ours["details"].as_str().unwrap_or_default();
    let has = |name: &str| any(rule, &|operator, _| operator == name);
    let operands = |arguments: &Value| arguments.as_array().map_or(1, Vec::len);
    let is_compared = |operator: &str| COMPARISONS.contains(&operator);
    let reasons = [
        (
            "flagd-core has this result itself when it interprets the rule",
            is_same(ours, &case["interpreted"]),
        ),
        (
            "flagd-core evaluates constant parts of a rule when it loads the flag, and rejects the flag if one fails",
            case["result"]["error"] == "PARSE_ERROR" && any(rule, &|_, arguments| is_constant(arguments)),
        ),
        (
            "`fractional` hashes a text beyond ASCII as UTF-8 here, as flagd specifies, and in another way there",
            has("fractional") && !context.to_string().is_ascii(),
        ),
        ("the rule is bounded before it begins", details.contains("too many steps") && has("reduce")),
        (
            "an array or an object is no variant here; there it is turned into a text",
            details.contains("an array or an object"),
        ),
        (
            "`max` and `min` of what is no number fail here",
            details.contains("Invalid") && (has("max") || has("min")),
        ),
        (
            "`a < b < c` of what is no number fails here and is false there",
            any(rule, &|operator, arguments| is_compared(operator) && operands(arguments) == 3),
        ),
        ("`all` of an empty list is false here, as in JsonLogic, and true there", has("all")),
        ("`cat` leaves out what is missing here, as JsonLogic does, and writes `null` there", has("cat")),
        ("`in` finds only texts in a text here", has("in")),
        ("`!` of a list that has only `null` at its begin is that of `null` there", has("!")),
        (
            "`var` has its default only where there is no value here, and also for `null` there",
            any(rule, &|operator, arguments| operator == "var" && operands(arguments) == 2),
        ),
        (
            "values of different kinds are compared in other ways",
            any(rule, &|operator, arguments| is_compared(operator) && is_mixed(arguments, context)),
        ),
    ];
    reasons.into_iter().find(|(_, fits)| *fits).map(|(reason, _)| reason)
}

const COMPARISONS: [&str; 8] = ["==", "!=", "===", "!==", "<", "<=", ">", ">="];

/// Whether a call within the rule fits.
fn any(rule: &Value, fits: &dyn Fn(&str, &Value) -> bool) -> bool {
    match rule {
        Value::Array(items) => items.iter().any(|item| any(item, fits)),
        Value::Object(object) => {
            object.iter().any(|(name, arguments)| fits(name, arguments) || any(arguments, fits))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether arguments read nothing of the context; the element of a list counts as part of the list.
fn is_constant(arguments: &Value) -> bool {
    !any(arguments, &|operator, path| operator == "var" && path != "")
}

/// Whether the arguments of a comparison are of different kinds, or are not known before it.
fn is_mixed(arguments: &Value, context: &Value) -> bool {
    let kind = |argument: &Value| match argument {
        Value::Object(call) => match call.get("var").map(|path| path.get(0).unwrap_or(path)) {
            Some(Value::String(path)) if !path.is_empty() => {
                let pointer = format!("/{}", path.replace('.', "/"));
                context.pointer(&pointer).map_or("null", kind_name)
            }
            _ => "computed",
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            kind_name(argument)
        }
    };
    let mut kinds = arguments.as_array().into_iter().flatten().map(kind);
    let first = kinds.next();
    first.is_some_and(|first| ["computed", "array", "object"].contains(&first))
        || kinds.any(|other| Some(other) != first)
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
