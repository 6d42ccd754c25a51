//! What an evaluation of a rule can take, computed before it begins.
//!
//! The engine has no limit of its own: a few nested `map` over a list of the context, or a `reduce` whose text doubles
//! with each element, would take minutes and gigabytes. So the most that a rule can do with a context of a given size is
//! computed from the rule alone, as the costs of schemas are. Sizes and costs are in *steps*: a value is one, 32 bytes
//! of text are one more.
//!
//! **Invariant:** the bound is never below what the engine does, up to a constant. It may be far above: `var` counts as
//! the whole context. The computation itself takes no longer than the limit, because each of its steps adds to the
//! cost.

use concord_model::limits::FLAG_STEPS_MAX;
use datalogic_rs::datavalue::OwnedDataValue;
use serde_json::Value;

/// Bytes of text that count as a step.
const TEXT_UNIT: usize = 32;
/// Members that a search for one looks at in a step.
const SEARCHED_PER_STEP: u64 = 8;

/// The most that a value, and computing it, can take.
#[derive(Debug, Clone, Copy)]
struct Bound {
    cost: u64,
    size: u64,
}

/// What `var` can reach.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// Everything together, which `val` can reach.
    all: u64,
    /// What `var` can reach: within a list, the element alone.
    here: u64,
    /// Within `reduce`: the element and the value so far.
    fold: Option<(u64, u64)>,
    /// Lists around.
    lists: u32,
}

/// Levels of lists within lists that are bounded element by element.
const PRECISE_LISTS_MAX: u32 = 4;

/// The steps of a text.
const fn text_size(text: &str) -> u64 {
    1 + (text.len() / TEXT_UNIT) as u64
}

/// The steps of a value of a context.
pub(crate) fn size(value: &OwnedDataValue) -> u64 {
    match value {
        OwnedDataValue::Null | OwnedDataValue::Bool(_) | OwnedDataValue::Number(_) => 1,
        OwnedDataValue::String(text) => text_size(text),
        OwnedDataValue::Array(items) => 1 + items.iter().map(size).sum::<u64>(),
        OwnedDataValue::Object(members) => {
            1 + members.iter().map(|(name, item)| text_size(name) + size(item)).sum::<u64>()
        }
    }
}

/// The most steps that a rule takes with a context of this size; more than [`FLAG_STEPS_MAX`] means too many.
pub(crate) fn of(rule: &Value, context: u64) -> u64 {
    bound(rule, Scope { all: context, here: context, fold: None, lists: 0 }).cost
}

fn bound(rule: &Value, scope: Scope) -> Bound {
    match rule {
        Value::Null | Value::Bool(_) | Value::Number(_) => Bound { cost: 1, size: 1 },
        Value::String(text) => Bound { cost: text_size(text), size: text_size(text) },
        Value::Array(items) => sum(items, scope),
        Value::Object(object) => match object.iter().next() {
            Some((name, arguments)) => {
                call(name, arguments.as_array().map_or(std::slice::from_ref(arguments), Vec::as_slice), scope)
            }
            None => Bound { cost: 1, size: 1 },
        },
    }
}

/// All of them, one after another.
fn sum(rules: &[Value], scope: Scope) -> Bound {
    sum_and_product(rules, scope).0
}

/// The same, and the product of their sizes. Each rule is looked at once: twice would double with each level.
fn sum_and_product(rules: &[Value], scope: Scope) -> (Bound, u64) {
    let (mut total, mut product) = (Bound { cost: 1, size: 1 }, 1_u64);
    for rule in rules {
        let each = bound(rule, scope);
        total.cost = total.cost.saturating_add(each.cost);
        total.size = total.size.saturating_add(each.size);
        product = product.saturating_mul(each.size);
        if total.cost > FLAG_STEPS_MAX {
            break;
        }
    }
    (total, product)
}

fn call(name: &str, arguments: &[Value], scope: Scope) -> Bound {
    match name {
        "map" | "filter" | "all" | "none" | "some" => each(name, arguments, scope),
        "reduce" => fold(arguments, scope),
        "var" | "val" => {
            let inside = sum(arguments, scope);
            let found = if name == "val" { scope.all } else { reached(arguments, scope) };
            let size = inside.size.saturating_add(found);
            Bound { cost: inside.cost.saturating_add(1 + found / SEARCHED_PER_STEP), size }
        }
        "exists" => {
            let inside = sum(arguments, scope);
            Bound { cost: inside.cost.saturating_add(inside.size).saturating_add(search(scope)), size: 1 }
        }
        // Each text that they are given is searched for.
        "missing" | "missing_some" => {
            let inside = sum(arguments, scope);
            let searches = inside.size.saturating_mul(search(scope));
            Bound { cost: inside.cost.saturating_add(searches), size: inside.size }
        }
        "==" | "===" | "!=" | "!==" | "in" => {
            // The members of two objects are compared each with each.
            let (inside, pairs) = sum_and_product(arguments, scope);
            Bound { cost: inside.cost.saturating_add(pairs), size: 1 }
        }
        // Their result is a number or a boolean, but they look at all that they are given.
        "+" | "-" | "*" | "/" | "%" | "<" | "<=" | ">" | ">=" | "!" | "!!" | "sem_ver" | "starts_with"
        | "ends_with" => {
            let inside = sum(arguments, scope);
            Bound { cost: inside.cost.saturating_add(inside.size), size: 1 }
        }
        _ => {
            let inside = sum(arguments, scope);
            Bound { cost: inside.cost.saturating_add(inside.size), size: inside.size }
        }
    }
}

/// The members of an object are searched one after another, some of them in each step.
const fn search(scope: Scope) -> u64 {
    1 + scope.all / SEARCHED_PER_STEP
}

/// What a `var` finds at most.
fn reached(arguments: &[Value], scope: Scope) -> u64 {
    let path = arguments.first().and_then(Value::as_str);
    match (scope.fold, path) {
        (Some((current, _)), Some(path)) if path.split('.').next() == Some("current") => current,
        (Some((_, accumulator)), Some(path)) if path.split('.').next() == Some("accumulator") => accumulator,
        _ => scope.here,
    }
}

/// A rule for each element of a list.
///
/// A cost grows at least in proportion to the size of the element, so the elements together cost no more than if one of
/// them were the whole list and the others had a size of 1.
fn each(name: &str, arguments: &[Value], scope: Scope) -> Bound {
    let [list, body, ..] = arguments else { return sum(arguments, scope) };
    let list = bound(list, scope);
    let of_element = |size: u64| {
        let all = scope.all.max(list.size);
        bound(body, Scope { all, here: size, fold: None, lists: scope.lists + 1 })
    };
    let largest = of_element(list.size);
    // Beyond some levels, all elements count as the largest: to look at a body twice doubles with each level.
    let smallest = if scope.lists < PRECISE_LISTS_MAX { of_element(1) } else { largest };
    let together = |smallest: u64, largest: u64| list.size.saturating_mul(smallest).saturating_add(largest);
    let size = match name {
        "map" => together(smallest.size, largest.size),
        "filter" => list.size,
        _ => 1,
    };
    let cost = together(smallest.cost.saturating_add(1), largest.cost);
    Bound { cost: cost.saturating_add(list.cost).saturating_add(size), size }
}

/// A value that grows with each element of a list.
fn fold(arguments: &[Value], scope: Scope) -> Bound {
    let [list, body, rest @ ..] = arguments else { return sum(arguments, scope) };
    let list = bound(list, scope);
    let first = sum(rest, scope);
    let mut accumulator = first.size;
    let mut cost = list.cost.saturating_add(first.cost);
    let mut left = list.size;
    while left > 0 && cost <= FLAG_STEPS_MAX {
        let all = scope.all.saturating_add(list.size).saturating_add(accumulator);
        let step = bound(
            body,
            Scope { all, here: all, fold: Some((list.size, accumulator)), lists: scope.lists + 1 },
        );
        let is_steady = step.size <= accumulator;
        let times = if is_steady { left } else { 1 };
        cost = cost.saturating_add(step.cost.saturating_add(1).saturating_mul(times));
        accumulator = accumulator.max(step.size);
        left -= times;
    }
    Bound { cost: cost.saturating_add(accumulator), size: accumulator }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_rules_are_far_below_the_limit() {
        let rule = json!({ "if": [
            { "in": [{ "var": "country" }, ["de", "fr", "it"]] }, "on",
            { "fractional": [{ "cat": [{ "var": "$flagd.flagKey" }, { "var": "targetingKey" }] }, ["on", 10], ["off", 90]] },
        ] });
        assert!(of(&rule, 50) < 2_000, "{}", of(&rule, 50));
        let any = json!({ "some": [{ "var": "groups" }, { "==": [{ "var": "" }, "beta"] }] });
        assert!(of(&any, 100) < 100_000, "{}", of(&any, 100));
        let joined = json!({ "reduce": [{ "var": "x" }, { "+": [{ "var": "current" }, { "var": "accumulator" }] }, 0] });
        assert!(of(&joined, 100) < 100_000, "{}", of(&joined, 100));
    }

    #[test]
    fn a_deep_rule_is_bounded_as_quickly_as_a_wide_one() {
        let mut deep = json!({ "var": "x" });
        for _ in 0..100 {
            deep = json!({ "==": [deep, 1] });
        }
        assert!(of(&deep, 100) < 10_000);
        // Folds within folds: the computation ends when the cost is beyond the limit.
        let mut folds = json!({ "cat": [{ "var": "accumulator" }, "a"] });
        for _ in 0..20 {
            folds = json!({ "reduce": [{ "var": "x" }, { "cat": [folds, { "var": "accumulator" }] }, "a"] });
        }
        let begun = std::time::Instant::now();
        assert!(of(&folds, 1000) > FLAG_STEPS_MAX);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_list_costs_what_its_elements_cost_together() {
        let beta = json!({ "some": [{ "var": "groups" }, { "in": [{ "var": "" }, ["a", "b", "c"]] }] });
        assert!(of(&beta, 1024) < 50_000, "{}", of(&beta, 1024));
        let pairs = json!({ "map": [{ "var": "x" }, { "==": [{ "var": "" }, { "var": "" }] }] });
        assert!(of(&pairs, 100) >= 100 * 100, "one element may be the whole list");
        let outside =
            json!({ "map": [{ "var": "x" }, { "==": [{ "val": [[1], "y"] }, { "val": [[1], "y"] }] }] });
        assert!(of(&outside, 100) >= 100 * 100 * 100, "`val` reaches what is around the list");
    }

    #[test]
    fn what_grows_without_end_is_above_it() {
        let doubling = json!({ "reduce": [
            { "var": "x" }, { "cat": [{ "var": "accumulator" }, { "var": "accumulator" }] }, "a",
        ] });
        assert!(of(&doubling, 100) > FLAG_STEPS_MAX);
        for searches in [json!({ "missing": { "var": "x" } }), json!({ "missing_some": [1, { "var": "x" }] })]
        {
            assert!(of(&searches, 100) < 2_000, "{}", of(&searches, 100));
            assert!(of(&searches, 10_000) > FLAG_STEPS_MAX, "each of a list is searched for");
        }
        let mut nested = json!(1);
        for _ in 0..6 {
            nested = json!({ "map": [{ "var": "x" }, nested] });
        }
        assert!(of(&nested, 100) > FLAG_STEPS_MAX);
        // A rule that needs no context is as large as its lists.
        let mut lists = json!(1);
        for _ in 0..8 {
            lists = json!({ "map": [[1, 2, 3, 4, 5, 6, 7, 8, 9], lists] });
        }
        assert!(of(&lists, 0) > FLAG_STEPS_MAX);
    }
}
