//! The findings of a scan, in its first pass and in later ones.

use std::{fmt::Write as _, time::Duration};

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use concord_model::schema::Formats;
use concord_model::{
    access_key::Author,
    command::{Command, Expect, Proposal, Verdict},
    document::Document,
    index,
    time::Timestamp,
};

/// A state with one definition `d` that has the index `n`.
struct World(State);

impl World {
    fn new() -> Self {
        let mut world = Self(State::new());
        let key = Key::parse("d").unwrap();
        world.run(Command::CreateDefinition { key, indexes: vec!["n".into()], schema: None });
        world
    }

    fn run(&mut self, command: Command) {
        let is_write = matches!(command, Command::WriteConfig { .. });
        let definition_read = is_write.then(|| self.found().definition.revision);
        let (by, reason, request) = ("root".into(), None, None);
        let proposal = Proposal {
            at: Timestamp(1),
            by,
            reason,
            request,
            definition_read,
            command,
            author: Author::Root,
            tail: None,
        };
        let verdict = self.0.apply(self.0.revision() + 1, &proposal).0;
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    }

    fn found(&self) -> &Collection {
        self.0.definition("d").unwrap()
    }

    fn put(&mut self, name: &str, data: &Value) {
        let definition = Key::parse("d").unwrap();
        let entries = index::all_entries(&index::stored_paths(&self.found().definition), data);
        let (key, data, expect) = (Key::parse(name).unwrap(), data.to_string().into(), Expect::Any);
        self.run(Command::WriteConfig { definition, key, data, entries, expect });
    }

    fn delete(&mut self, name: &str) {
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse(name).unwrap());
        self.run(Command::DeleteConfig { definition, key, expect: Expect::Any });
    }

    /// Continues with the current state; how many configs were new.
    fn advance(&self, scan: &mut ConfigScan) -> u64 {
        scan.advance(&self.0, self.found(), &mut pace(&cancel())).unwrap()
    }

    fn refusal(&self, scan: &ConfigScan) -> String {
        match scan.refusal(self.found(), &pace(&cancel())).unwrap() {
            None => String::new(),
            Some(Refusal::NotUniqueYet { path, one, other }) => {
                format!("{path}: {one} and {other}")
            }
            Some(Refusal::Breaks { count, violations }) => {
                violations.iter().fold(count.to_string(), |mut text, violation| {
                    write!(text, " | {}", violation.msg).unwrap();
                    text
                })
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Without pauses.
fn pace(cancel: &Cancel) -> ScanPace<'_> {
    ScanPace { cancel, way: None }
}

fn cancel() -> Cancel {
    Cancel::new(CancellationToken::new(), Instant::now() + Duration::from_secs(600))
}

fn schema(schema: Option<Value>) -> ConfigScan {
    let schema = schema.map(Document::new);
    ConfigScan::of(
        &Write::SetSchema(NewSchema {
            key: "d".into(),
            schema,
            expect: Expect::Present,
            force: false,
            format_assertion: None,
            compiled: LazySchema::default(),
        }),
        Formats::Asserted,
    )
    .unwrap()
}

fn unique(paths: &[&str]) -> ConfigScan {
    let paths = paths.iter().copied().map(String::from).collect();
    let write = Write::SetUnique(NewUnique { key: "d".into(), paths, expect: Expect::Present });
    ConfigScan::of(&write, Formats::Asserted).unwrap()
}

fn keys(report: &SchemaReport) -> Vec<&str> {
    report.breaking.iter().map(|breaking| breaking.key.as_str()).collect()
}

#[test]
fn a_later_pass_checks_only_new_configs_and_drops_corrected_ones() {
    let mut world = World::new();
    for (key, n) in [("a", json!(1)), ("b", json!("two")), ("c", json!(3)), ("e", json!(null))] {
        world.put(key, &json!({ "n": n }));
    }
    let mut scan = schema(Some(json!({"properties": {"n": {"type": "integer"}}})));
    assert_eq!(world.advance(&mut scan), 4);
    let report = scan.report(world.found(), &pace(&cancel())).unwrap();
    assert_eq!((report.checked, report.count, report.scanned), (4, 2, true));
    assert_eq!(keys(&report), ["b", "e"]);
    assert_eq!(report.breaking[0].violations[0].loc, ["data".into(), "n".into()]);
    assert!(world.refusal(&scan).starts_with("2 | 2 of 4 configs would break"), "{}", world.refusal(&scan));

    world.put("b", &json!({"n": 2}));
    world.delete("e");
    world.put("c", &json!({"n": 0.5}));
    assert_eq!(world.advance(&mut scan), 2);
    assert_eq!(keys(&scan.report(world.found(), &pace(&cancel())).unwrap()), ["c"]);
    world.put("c", &json!({"n": 1}));
    assert_eq!(world.advance(&mut scan), 1);
    assert_eq!(world.refusal(&scan), "");
    assert_eq!(world.advance(&mut scan), 0);
    assert_eq!(scan.revision, world.0.revision());
}

#[test]
fn a_report_lists_the_first_hundred_and_counts_all() {
    let mut world = World::new();
    for number in 0..300 {
        world.put(&format!("k{number:03}"), &json!({"n": number, "many": vec!["x"; 20]}));
    }
    let mut scan = schema(Some(json!({"properties": {"many": {"items": {"type": "integer"}}}})));
    world.advance(&mut scan);
    let report = scan.report(world.found(), &pace(&cancel())).unwrap();
    assert_eq!((report.count, report.breaking.len()), (300, 100));
    assert_eq!((report.breaking[0].key.as_str(), report.breaking[99].key.as_str()), ("k000", "k099"));
    assert_eq!(report.breaking[0].violations.len(), REPORTED_VIOLATIONS_MAX + 1);
    let Some(Refusal::Breaks { count: 300, violations }) =
        scan.refusal(world.found(), &pace(&cancel())).unwrap()
    else {
        panic!()
    };
    assert_eq!(violations.len(), 101);
    assert_eq!(violations[1].loc, ["config".into(), "k000".into()]);
}

#[test]
fn no_schema_demands_objects_and_one_without_constraints_demands_nothing() {
    let mut world = World::new();
    world.put("a", &json!({"n": 1}));
    world.put("b", &json!([1]));
    let mut none = schema(None);
    world.advance(&mut none);
    assert_eq!(keys(&none.report(world.found(), &pace(&cancel())).unwrap()), ["b"]);
    let mut unconstrained = schema(Some(json!({"title": "any", "$defs": {"x": {"type": "string"}}})));
    world.advance(&mut unconstrained);
    let report = unconstrained.report(world.found(), &pace(&cancel())).unwrap();
    assert_eq!((report.count, report.checked, report.scanned), (0, 0, false));
    assert!(!schema(Some(json!({"$ref": "#/$defs/x", "$defs": {"x": false}}))).is_idle());
}

#[test]
fn two_configs_that_share_a_value_are_found_in_the_first_pass_and_in_later_ones() {
    let mut world = World::new();
    world.put("a", &json!({"n": [1, "x", 1]}));
    world.put("b", &json!({"n": null}));
    world.put("c", &json!({"m": 1}));
    world.put("e", &json!({}));
    let mut scan = unique(&["n"]);
    assert_eq!(world.advance(&mut scan), 4);
    assert_eq!(world.refusal(&scan), "");

    world.put("f", &json!({"n": [2, 1.0]}));
    assert_eq!(world.advance(&mut scan), 1);
    assert_eq!(world.refusal(&scan), "n: a and f");
    world.put("a", &json!({"n": "other"}));
    world.advance(&mut scan);
    assert_eq!(world.refusal(&scan), "");
    world.put("g", &json!({"n": null}));
    let mut late = unique(&["n"]);
    world.advance(&mut late);
    assert_eq!(world.refusal(&late), "n: b and g");
}

#[test]
fn a_scan_ends_when_its_request_has_ended() {
    let mut world = World::new();
    for number in 0..CANCEL_CHECK_ENTRIES {
        world.put(&format!("k{number}"), &json!({"n": number}));
    }
    let gone = CancellationToken::new();
    gone.cancel();
    let cancel = Cancel::new(gone, Instant::now() + Duration::from_secs(600));
    let mut scan = schema(Some(json!({"type": "object"})));
    for scan in [&mut scan, &mut unique(&["n"])] {
        assert_eq!(scan.advance(&world.0, world.found(), &mut pace(&cancel)), Err(out_of_time()));
    }
}
