//! Bounds of numbers beside Python's `fractions`, and the places of violations in unions beside `best_match` of its
//! jsonschema.
//!
//! `CONCORD_ORACLE` names a file of cases; scripts/schema-oracle.py writes it, and scripts/schema-oracle.sh runs both.

use std::collections::BTreeMap;

use concord_model::{
    error::LocSegment,
    schema::{Formats, Schema},
};
use serde_json::Value;

/// How often Concord and Python named the place that was broken, how often only Concord did, and the cases in which
/// Concord did not. Concord has to name it in all of them: it knows from the schema which variant the data is meant for.
#[derive(Debug, Default)]
struct Named {
    both: usize,
    concord: usize,
    missed: Vec<String>,
}

fn place(loc: &[LocSegment]) -> Value {
    let segment = |segment: &LocSegment| match segment {
        LocSegment::Name(name) => Value::from(name.as_str()),
        LocSegment::Index(index) => Value::from(*index),
    };
    loc.iter().map(segment).collect()
}

#[expect(clippy::disallowed_methods, reason = "the file is the caller's")]
#[test]
#[ignore = "needs the cases of scripts/schema-oracle.py"]
fn verdicts_and_places_are_those_of_python() {
    let cases = std::env::var("CONCORD_ORACLE").expect("the file is named");
    let cases = std::fs::read_to_string(cases).expect("the file is read");
    let mut schemas: BTreeMap<String, Schema> = BTreeMap::new();
    let (mut verdicts, mut wrong, mut named) = (0, Vec::new(), Named::default());
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        // The cases of a schema follow each other.
        if schemas.len() > 100 {
            schemas.clear();
        }
        let schema = schemas.entry(case["schema"].to_string()).or_insert_with(|| {
            Schema::compile(&case["schema"], Formats::Asserted)
                .unwrap_or_else(|why| panic!("{line}: {why:?}"))
        });
        let data = &case["data"];
        if let Some(valid) = case.get("valid") {
            verdicts += 1;
            if schema.accepts(data) != *valid || schema.check(data).is_ok() != *valid {
                wrong.push(line);
            }
            continue;
        }
        let violations = schema.check(data).expect_err("Python found a violation");
        let places: Vec<Value> = violations.iter().map(|violation| place(&violation.loc)).collect();
        // One place is broken, so a second one is of a branch that nobody meant.
        match (places.iter().all(|place| *place == case["broken"]), case["best"] == case["broken"]) {
            (true, true) => named.both += 1,
            (true, false) => named.concord += 1,
            (false, _) => named.missed.push(format!("{line}: {violations:?}")),
        }
    }
    let Named { both, concord, missed } = &named;
    println!("{verdicts} verdicts about numbers, {} wrong", wrong.len());
    println!(
        "unions: {both} places named by both, {concord} by Concord only, {} not named by Concord",
        missed.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(verdicts > 0 && both + concord > 0, "there are cases");
}
