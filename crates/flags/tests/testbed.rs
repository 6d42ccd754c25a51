//! flagd's published test tables: open-feature/flagd-testbed, `evaluator/gherkin`, of November 2026.
//!
//! The keys of flags and the contexts are those of the tables, because `fractional` hashes them.

use concord_flags::{Context, FlagSet, Outcome, SHARED_KEY};
use serde_json::{Value, json};

/// A flag whose variants have their names as values.
fn flag(names: &[&str], default: &str, targeting: Value) -> Value {
    let variants: Value = names.iter().map(|name| ((*name).to_owned(), json!(name))).collect();
    json!({ "state": "ENABLED", "variants": variants, "defaultVariant": default, "targeting": targeting })
}

fn set(flags: &Value) -> FlagSet {
    let shared =
        json!({ "$evaluators": { "is_ballmer": { "==": ["ballmer@macrosoft.com", { "var": ["email"] }] } } });
    let mut configs: Vec<(String, String)> =
        flags.as_object().unwrap().iter().map(|(key, flag)| (key.clone(), flag.to_string())).collect();
    configs.push((SHARED_KEY.to_owned(), shared.to_string()));
    FlagSet::compile(configs.iter().map(|(key, data)| (key.as_str(), Some(data.as_str()))))
}

/// The value, or `default`; with it the reason or the error code.
fn result(set: &FlagSet, key: &str, context: &Value) -> (String, &'static str) {
    let context = Context::new(context).unwrap();
    match set.evaluate(key, &context, 1_700_000_000).outcome {
        Outcome::Value { value, reason, .. } => (value.get().trim_matches('"').to_owned(), reason.name()),
        Outcome::CodeDefault { reason } => ("default".to_owned(), reason.name()),
        Outcome::Failure { code, .. } => ("default".to_owned(), code.name()),
    }
}

#[track_caller]
fn assert_table(set: &FlagSet, key: &str, rows: &[(Value, &str)]) {
    for (context, value) in rows {
        assert_eq!(result(set, key, context).0, *value, "{key} with {context}");
    }
}

const SUITS: [&str; 5] = ["clubs", "diamonds", "hearts", "spades", "wild"];

fn suits(seed: &Value) -> Value {
    let rule =
        json!({ "fractional": [seed, ["clubs", 25], ["diamonds", 25], ["hearts", 25], ["spades", 25]] });
    flag(&SUITS, "wild", rule)
}

#[test]
fn fractional_draws_what_flagd_draws() {
    let user = |name: Value| json!({ "user": { "name": name } });
    let reader = |key: &str| json!({ "targetingKey": key });
    let set = set(&json!({
        "fractional-flag": suits(&json!({ "cat": [{ "var": "$flagd.flagKey" }, { "var": "user.name" }] })),
        "fractional-flag-A-shared-seed": suits(&json!({ "cat": ["shared-seed", { "var": "user.name" }] })),
        "fractional-flag-shorthand": flag(&["heads", "tails", "draw"], "draw", json!({ "fractional": [["heads"], ["tails", 1]] })),
        "fractional-hash-edge-flag": flag(&["lower", "upper"], "lower",
            json!({ "fractional": [{ "var": "targetingKey" }, ["lower", 50], ["upper", 50]] })),
    }));
    let names = [("jack", "hearts"), ("queen", "spades"), ("ten", "clubs"), ("nine", "diamonds")];
    for (name, value) in names {
        assert_table(&set, "fractional-flag", &[(user(json!(name)), value)]);
    }
    assert_table(&set, "fractional-flag", &[(user(json!(3)), "clubs"), (user(json!("3")), "clubs")]);
    for (name, value) in [("seven", "hearts"), ("eight", "diamonds"), ("nine", "clubs"), ("two", "spades")] {
        assert_table(&set, "fractional-flag-A-shared-seed", &[(user(json!(name)), value)]);
    }
    let shorthand = [(reader("jon@company.com"), "heads"), (reader("jane@company.com"), "tails")];
    assert_table(&set, "fractional-flag-shorthand", &shorthand);
    let edges = [
        ("ejOoVL", "lower"),
        ("bY9fO-", "lower"),
        ("SI7p-", "lower"),
        ("6LvT0", "upper"),
        ("ceQdGm", "upper"),
    ];
    for (key, value) in edges {
        assert_table(&set, "fractional-hash-edge-flag", &[(reader(key), value)]);
    }
}

#[test]
fn fractional_takes_rules_for_names_and_weights() {
    let premium = json!({ "==": [{ "var": "tier" }, "premium"] });
    let key = json!({ "var": "targetingKey" });
    let condition = |rule: Value| {
        json!({ "state": "ENABLED", "defaultVariant": "fallback", "targeting": { "if": [rule, "big", "small"] },
            "variants": { "big": "hundreds", "small": "ones", "fallback": "zero" } })
    };
    let set = set(&json!({
        "fractional-nested-if-flag": flag(&["premium", "standard", "fallback"], "fallback", json!({ "fractional":
            [key, [{ "if": [premium, "premium", "standard"] }, 50], ["standard", 50]] })),
        "fractional-nested-var-flag": flag(&["red", "green", "blue", "fallback"], "fallback",
            json!({ "fractional": [key, [{ "var": "color" }, 50], ["blue", 50]] })),
        "fractional-nested-weight-flag": flag(&["red", "blue", "fallback"], "fallback",
            json!({ "fractional": [key, ["red", { "if": [premium, 100, 0] }], ["blue", 10]] })),
        "fractional-as-condition-flag": condition(json!({ "fractional": [[false, 0], [true, 100]] })),
        "fractional-as-condition-false-flag": condition(json!({ "fractional": [[false, 100], [true, 0]] })),
        "fractional-single-entry-flag": flag(&["single", "fallback"], "fallback", json!({ "fractional": [["single", 1]] })),
        "fractional-null-bucket-key-flag": flag(&["one", "two", "fallback"], "fallback",
            json!({ "fractional": [{ "var": "missing_key" }, ["one", 50], ["two", 50]] })),
        "fractional-negative-weight-flag": flag(&["one", "two", "fallback"], "fallback",
            json!({ "fractional": [key, ["one", -50], ["two", 100]] })),
    }));
    let of = |key: &str, name: &str, value: &str| json!({ "targetingKey": key, name: value });
    let (jon, one) = ("jon@company.com", "user1");
    assert_table(
        &set,
        "fractional-nested-if-flag",
        &[
            (of(jon, "tier", "premium"), "premium"),
            (of(jon, "tier", "basic"), "standard"),
            (of(one, "tier", "premium"), "standard"),
            (of(one, "tier", "basic"), "standard"),
        ],
    );
    assert_table(
        &set,
        "fractional-nested-var-flag",
        &[
            (of(jon, "color", "red"), "red"),
            (of(jon, "color", "green"), "green"),
            (of(one, "color", "red"), "blue"),
            (json!({ "targetingKey": jon }), "fallback"),
        ],
    );
    // A name that is no variant: an error, for which the reader uses its own default.
    assert_eq!(
        result(&set, "fractional-nested-var-flag", &of(jon, "color", "yellow")),
        ("default".into(), "GENERAL")
    );
    assert_table(
        &set,
        "fractional-nested-weight-flag",
        &[
            (of(jon, "tier", "premium"), "red"),
            (of(jon, "tier", "basic"), "blue"),
            (of(one, "tier", "premium"), "red"),
            (of(one, "tier", "basic"), "blue"),
        ],
    );
    let some = json!({ "targetingKey": "some-targeting-key" });
    assert_table(&set, "fractional-as-condition-flag", &[(some.clone(), "hundreds")]);
    assert_table(&set, "fractional-as-condition-false-flag", &[(some.clone(), "ones")]);
    assert_table(&set, "fractional-single-entry-flag", &[(some.clone(), "single"), (json!({}), "fallback")]);
    assert_eq!(result(&set, "fractional-null-bucket-key-flag", &some), ("fallback".into(), "DEFAULT"));
    assert_table(&set, "fractional-negative-weight-flag", &[(some, "two")]);
}

#[test]
fn versions_are_compared_as_flagd_compares_them() {
    let version = |operator: &str, other: &str| json!({ "sem_ver": [{ "var": "version" }, operator, other] });
    let matching =
        |rule: Value| flag(&["match", "no-match"], "no-match", json!({ "if": [rule, "match", "no-match"] }));
    let set = set(&json!({
        "three": flag(&["equal", "greater", "lesser", "none"], "none", json!({ "if": [
            version("=", "2.0.0"), "equal", version(">", "2.0.0"), "greater", version("<", "2.0.0"), "lesser", "none"] })),
        "ranges": flag(&["minor", "major", "none"], "none",
            json!({ "if": [version("~", "3.0.0"), "minor", version("^", "3.0.0"), "major", "none"] })),
        "prefixed": matching(version("=", "v1.0.0")),
        "partial": matching(version("^", "1")),
        "build": matching(version("=", "1.0.0+build")),
        "unknown-operator": flag(&["a", "fallback"], "fallback", version("===", "1.0.0")),
        "known-operator": flag(&["a", "fallback"], "fallback", version("=", "1.0.0")),
    }));
    let of = |version: &str| json!({ "version": version });
    let three = [
        ("2.0.0", "equal"),
        ("2.1.0", "greater"),
        ("1.9.0", "lesser"),
        ("2.0.0-alpha", "lesser"),
        ("2.0.0.0", "none"),
    ];
    for (version, value) in three {
        assert_table(&set, "three", &[(of(version), value)]);
    }
    assert_table(&set, "ranges", &[(of("3.0.1"), "minor"), (of("3.1.0"), "major"), (of("4.0.0"), "none")]);
    assert_table(
        &set,
        "prefixed",
        &[(of("1.0.0"), "match"), (of("v1.0.0"), "match"), (of("2.0.0"), "no-match")],
    );
    assert_table(
        &set,
        "partial",
        &[(of("1.5.0"), "match"), (of("1.0.0"), "match"), (of("2.0.0"), "no-match")],
    );
    assert_table(
        &set,
        "build",
        &[(of("1.0.0"), "match"), (of("1.0.0+other"), "match"), (of("2.0.0"), "no-match")],
    );
    assert_eq!(result(&set, "unknown-operator", &of("1.0.0")), ("fallback".into(), "DEFAULT"));
    assert_eq!(result(&set, "known-operator", &of("not-a-version")), ("fallback".into(), "DEFAULT"));
}

#[test]
fn texts_are_compared_at_their_ends() {
    let with = |operator: &str, rest: Value| {
        flag(&["true", "false", "fallback"], "fallback", json!({ operator: rest }))
    };
    let set = set(&json!({
        "starts-ends-flag": flag(&["prefix", "postfix", "none"], "none", json!({ "if": [
            { "starts_with": [{ "var": "id" }, "abc"] }, "prefix", { "ends_with": [{ "var": "id" }, "xyz"] }, "postfix", "none"] })),
        "number-start": with("starts_with", json!([{ "var": "num" }, "abc"])),
        "number-end": with("ends_with", json!([{ "var": "num" }, "xyz"])),
        "one-start": with("starts_with", json!(["abc"])),
        "one-end": with("ends_with", json!(["xyz"])),
    }));
    for (id, value) in [("abcdef", "prefix"), ("uvwxyz", "postfix"), ("abcxyz", "prefix"), ("lmnopq", "none")]
    {
        assert_table(&set, "starts-ends-flag", &[(json!({ "id": id }), value)]);
    }
    for key in ["number-start", "number-end", "one-start", "one-end"] {
        assert_eq!(result(&set, key, &json!({ "num": 123 })), ("fallback".into(), "DEFAULT"), "{key}");
    }
}

#[test]
fn shared_rules_and_the_reader_decide() {
    let shared = |yes: &str, no: &str| {
        flag(&[yes, no, "none"], "none", json!({ "if": [{ "$ref": "is_ballmer" }, yes, no] }))
    };
    let set = set(&json!({
        "some-email-targeted-flag": shared("hi", "bye"),
        "some-other-email-targeted-flag": shared("yes", "no"),
        "ref-to-nonexistent": flag(&["hit", "miss"], "hit", json!({ "if": [{ "$ref": "nonexistent_evaluator" }, "hit", "miss"] })),
        "targeting-key-flag": flag(&["miss", "hit"], "miss",
            json!({ "if": [{ "==": [{ "var": "targetingKey" }, "5c3d8535-f81a-4478-a6d3-afaa4d51199e"] }, "hit", null] })),
    }));
    let of = |email: &str| json!({ "email": email });
    assert_eq!(
        result(&set, "some-email-targeted-flag", &of("ballmer@macrosoft.com")),
        ("hi".into(), "TARGETING_MATCH")
    );
    assert_eq!(result(&set, "some-other-email-targeted-flag", &of("ballmer@macrosoft.com")).0, "yes");
    assert_eq!(
        result(&set, "some-email-targeted-flag", &of("user@example.com")),
        ("bye".into(), "TARGETING_MATCH")
    );
    assert_eq!(result(&set, "ref-to-nonexistent", &json!({})), ("default".into(), "PARSE_ERROR"));
    let reader = |key: &str| json!({ "targetingKey": key });
    let hit = reader("5c3d8535-f81a-4478-a6d3-afaa4d51199e");
    assert_eq!(result(&set, "targeting-key-flag", &hit), ("hit".into(), "TARGETING_MATCH"));
    let miss = reader("f20bd32d-703b-48b6-bc8e-79d53c85134a");
    assert_eq!(result(&set, "targeting-key-flag", &miss), ("miss".into(), "DEFAULT"));
}

#[test]
fn values_defaults_and_disabled_flags() {
    let plain =
        |value: Value| json!({ "state": "ENABLED", "variants": { "it": value }, "defaultVariant": "it" });
    let jobs = json!({ "==": ["jobs@orange.com", { "var": ["email"] }] });
    let special = json!({ "normal": "CFO", "special": "CEO" });
    let set = set(&json!({
        "boolean-flag": plain(json!(true)), "string-flag": plain(json!("hi")), "integer-flag": plain(json!(10)),
        "float-flag": plain(json!(0.5)), "object-flag": plain(json!({ "showImages": true, "title": "Check out these pics!" })),
        "huge-integer-flag": plain(json!(9_007_199_254_740_991_i64)),
        "null-default-flag": { "state": "ENABLED", "variants": { "on": true }, "defaultVariant": null },
        "undefined-default-flag": { "state": "ENABLED", "variants": { "small": 10 } },
        "null-targeting": { "state": "ENABLED", "variants": special, "targeting": { "if": [jobs, "special", null] } },
        "undefined-targeting": { "state": "ENABLED", "variants": special, "targeting": { "if": [jobs, "special"] } },
        "disabled-flag": { "state": "DISABLED", "variants": { "on": true }, "defaultVariant": "on" },
    }));
    let values = [
        ("boolean-flag", "true"),
        ("string-flag", "hi"),
        ("integer-flag", "10"),
        ("float-flag", "0.5"),
        ("object-flag", r#"{"showImages":true,"title":"Check out these pics!"}"#),
        ("huge-integer-flag", "9007199254740991"),
    ];
    for (key, value) in values {
        assert_eq!(result(&set, key, &json!({})), (value.to_owned(), "STATIC"), "{key}");
    }
    for key in ["null-default-flag", "undefined-default-flag"] {
        assert_eq!(result(&set, key, &json!({})), ("default".into(), "DEFAULT"), "{key}");
    }
    for key in ["null-targeting", "undefined-targeting"] {
        assert_eq!(
            result(&set, key, &json!({ "email": "wozniak@orange.com" })),
            ("default".into(), "DEFAULT"),
            "{key}"
        );
        assert_eq!(
            result(&set, key, &json!({ "email": "jobs@orange.com" })),
            ("CEO".into(), "TARGETING_MATCH"),
            "{key}"
        );
    }
    assert_eq!(result(&set, "disabled-flag", &json!({})), ("default".into(), "DISABLED"));
    assert_eq!(result(&set, "missing-flag", &json!({})), ("default".into(), "FLAG_NOT_FOUND"));
}

#[test]
fn a_float_of_a_whole_number_stays_one() {
    let text = r#"{"state":"ENABLED","variants":{"it":10.0},"defaultVariant":"it"}"#;
    let set = FlagSet::compile([("integral-float-flag", Some(text))]);
    assert_eq!(result(&set, "integral-float-flag", &json!({})).0, "10.0");
}

#[test]
fn numbers_and_texts_at_the_edges_make_no_rule_panic() {
    let edges = [
        json!(i64::MAX),
        json!(i64::MIN),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(-1e308),
        json!(0.1),
        json!(u64::MAX),
        json!("é€😀"),
        json!(""),
        json!(null),
        json!([]),
        json!({}),
        json!([[1], "x"]),
        json!(true),
    ];
    let operators = "+ - * / % < <= > >= == === != in cat substr max min merge missing_some missing var val and or if map \
                     filter all some none reduce sem_ver starts_with ends_with fractional exists ?? ! !!";
    for operator in operators.split_whitespace() {
        let mut flags = serde_json::Map::new();
        for arguments in [
            json!([{ "var": "a" }]),
            json!([{ "var": "a" }, { "var": "b" }]),
            json!([{ "var": "a" }, { "var": "b" }, { "var": "a" }]),
            json!([{ "var": "a" }, { "var": "b" }, { "var": "b" }, { "var": "a" }]),
            json!([[{ "var": "a" }, { "var": "b" }], [{ "var": "b" }, { "var": "a" }]]),
            json!({ "var": "a" }),
            json!([]),
        ] {
            let key = format!("f{}", flags.len());
            flags.insert(key, flag(&["x"], "x", json!({ operator: arguments })));
        }
        let set = set(&Value::Object(flags));
        for a in &edges {
            for b in &edges {
                let context = Context::new(&json!({ "a": a, "b": b, "targetingKey": "x" })).unwrap();
                let mut count = 0;
                set.evaluate_all(&context, 0, |_| {
                    count += 1;
                    true
                });
                assert_eq!(count, 7, "{operator} of {a} and {b}");
            }
        }
    }
}

#[test]
fn within_a_list_var_reaches_the_element_alone() {
    // The bound of costs rests on it.
    let targeting =
        json!({ "if": [{ "some": [{ "var": "list" }, { "==": [{ "var": "name" }, "x"] }] }, "on", "off"] });
    let set = set(&json!({ "f": flag(&["on", "off"], "off", targeting) }));
    assert_table(
        &set,
        "f",
        &[
            (json!({ "list": [{ "name": "x" }] }), "on"),
            (json!({ "list": [{ "other": "x" }], "name": "x" }), "off"),
            (json!({ "list": [1, "y"], "name": "x" }), "off"),
        ],
    );
}
