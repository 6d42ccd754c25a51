//! `concord env diff`: compares the definitions and configs of two environments at one revision.
//!
//! **Invariants:** no secret value is shown without `--show-secrets`, and one that the access key may not see is never said
//! to be the same: it is listed as not comparable. The exit code is 1 exactly when there is a difference.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    follow::{FieldChange, differences},
    manifest::{ManifestDefinition, name},
    mask::{HIDDEN, Mask},
    output::{Format, Table, counted, note, print_value},
    two_environments::{NamedRecord, NamedRecords, TwoEnvironments},
    undo::shown,
};

/// Records that are printed if nothing else is said.
const LIMIT: usize = 200;
/// Fields of a record that are printed.
const FIELDS_MAX: usize = 100;
/// What is shown of a secret value that differs from the other one.
const DIFFERS: &str = "(secret, differs)";
/// What is shown of a value that can't be compared.
const NOT_COMPARED: &str = "(secret, not compared)";

#[derive(Debug, Args)]
#[command(
    after_help = "Example: concord env diff staging prod limits\n\nIt compares `staging.limits` with `prod.limits`, and so on. \
                  `concord promote` makes one environment as the other is."
)]
pub(super) struct EnvDiffArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The first environment
    from: String,
    /// The second environment
    to: String,
    /// Only these: DEF or DEF/CONFIG, without the name of an environment [default: everything]
    #[arg(value_name = "RECORD")]
    records: Vec<NamedRecord>,
    /// Maximum number of records to print; the exit code is that of all
    #[arg(long, default_value_t = LIMIT, value_name = "N")]
    limit: usize,
    /// Show secret values
    #[arg(long)]
    show_secrets: bool,
}

/// On which side a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    From,
    To,
    Both,
}

/// A record that is not the same in both environments, or may not be.
#[derive(Debug)]
struct RecordDifference {
    definition: String,
    /// Empty for a definition.
    key: String,
    presence: Presence,
    /// The fields that differ; for a record on one side, all of it.
    fields: Vec<FieldChange>,
    /// Places of values of which the access key sees one side at most.
    not_comparable: Vec<String>,
}

/// Runs the command.
pub(super) fn run(args: &EnvDiffArgs) -> Result<(), Failure> {
    let compare = || {
        with_cluster(&args.node, &args.tries, async |client| {
            let (client, named) = (client.in_environment(None)?, NamedRecords::of(&args.records));
            let both = TwoEnvironments::read(&client, &args.from, &args.to, &named).await?;
            let (found, compared) = compared(&both, args.show_secrets);
            let is_different = found.iter().any(RecordDifference::is_certain);
            let format = args.node.format.or_table();
            print(args, &both, &found, &format).map_err(|failure| failure.of_comparison(is_different))?;
            if is_different {
                return Err(Failure::Difference);
            }
            if !found.is_empty() {
                let text = format!(
                    "no visible difference, and {} with secret values that the access key may not see: they may differ",
                    counted(found.len() as u64, "config")
                );
                return Err(Failure::NoAnswer(text));
            }
            let records = counted(compared, "record");
            note(format_args!(
                "{} and {} are equal: {records} at revision {}",
                args.from, args.to, both.revision
            ));
            Ok(())
        })
    };
    compare().map_err(|failure| failure.of_comparison(false))
}

/// What a definition is compared by: its protection from deletion is no content.
pub(super) fn comparable(key: &str, definition: &ManifestDefinition) -> Value {
    ManifestDefinition { protected: None, ..definition.clone() }.to_json(key)
}

/// The differences, and how many records were compared.
fn compared(both: &TwoEnvironments, show_secrets: bool) -> (Vec<RecordDifference>, u64) {
    let (mut found, mut mask) = (Vec::new(), Mask::default());
    let definitions: BTreeSet<&String> =
        both.from.definitions.keys().chain(both.to.definitions.keys()).collect();
    for key in &definitions {
        let [from, to] = [&both.from, &both.to].map(|side| side.definitions.get(*key));
        for side in [from, to].into_iter().flatten() {
            mask.add(key, side.value.schema.as_ref());
        }
        let [from, to] = [from, to].map(|side| side.map(|side| comparable(key, &side.value)));
        found.extend(difference(key, "", from, to, Vec::new()));
    }
    let configs: BTreeSet<&(String, String)> =
        both.from.configs.keys().chain(both.to.configs.keys()).collect();
    for id in &configs {
        let (definition, key) = id;
        let [mut from, mut to] =
            [&both.from, &both.to].map(|side| side.configs.get(*id).map(|one| one.value.clone()));
        let not_comparable = hide(&mask, definition, &mut from, &mut to, show_secrets);
        found.extend(difference(definition, key, from, to, not_comparable));
    }
    (found, (definitions.len() + configs.len()) as u64)
}

/// The difference of a record on both sides; `None` if there is none.
fn difference(
    definition: &str,
    key: &str,
    from: Option<Value>,
    to: Option<Value>,
    not_comparable: Vec<String>,
) -> Option<RecordDifference> {
    let (presence, fields) = match (&from, &to) {
        (Some(from), Some(to)) => (Presence::Both, differences(from, to)),
        (Some(_), None) | (None, Some(_)) => {
            let presence = if from.is_some() { Presence::From } else { Presence::To };
            let path = if key.is_empty() { "(definition)" } else { "(config)" }.to_owned();
            (presence, vec![FieldChange { path, pointer: String::new(), before: from, after: to }])
        }
        (None, None) => return None,
    };
    if fields.is_empty() && not_comparable.is_empty() {
        return None;
    }
    let (definition, key) = (definition.to_owned(), key.to_owned());
    Some(RecordDifference { definition, key, presence, fields, not_comparable })
}

/// Replaces the secret values of a config on both sides by what is shown of them. Returns the places that can't be
/// compared.
fn hide(
    mask: &Mask,
    definition: &str,
    from: &mut Option<Value>,
    to: &mut Option<Value>,
    show_secrets: bool,
) -> Vec<String> {
    let places: BTreeSet<String> =
        [&*from, &*to].into_iter().flatten().flat_map(|data| mask.places(definition, data)).collect();
    let is_on_both_sides = from.is_some() && to.is_some();
    let mut not_comparable = Vec::new();
    for place in places {
        let at = |data: &Option<Value>| data.as_ref().and_then(|data| data.pointer(&place)).cloned();
        let (one, other) = (at(from), at(to));
        let is_unseen = [&one, &other].into_iter().flatten().any(has_marker);
        let (is_shown, shown) = match (&one, &other) {
            (Some(_), Some(_)) if is_unseen => {
                not_comparable.push(place.clone());
                (false, [HIDDEN, HIDDEN])
            }
            (Some(one), Some(other)) if one != other => (show_secrets, [HIDDEN, DIFFERS]),
            _ => (show_secrets && !is_unseen, [HIDDEN, HIDDEN]),
        };
        if is_shown {
            continue;
        }
        for (data, text) in [(&mut *from, shown[0]), (&mut *to, shown[1])] {
            let found = data.as_mut().and_then(|data| data.pointer_mut(&place));
            found.into_iter().for_each(|value| *value = text.into());
        }
    }
    // A record on one side differs, whatever its values are.
    if is_on_both_sides { not_comparable } else { Vec::new() }
}

/// Whether a value, or a part of it, is the marker of one that the access key may not see.
pub(super) fn has_marker(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.contains_key("$concord-keep") || members.values().any(has_marker),
        Value::Array(items) => items.iter().any(has_marker),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

impl RecordDifference {
    fn is_certain(&self) -> bool {
        !self.fields.is_empty()
    }

    fn name(&self) -> String {
        let Self { definition, key, .. } = self;
        if key.is_empty() { definition.clone() } else { format!("{definition}/{key}") }
    }

    fn kind(&self) -> &'static str {
        match (self.presence, self.is_certain()) {
            (Presence::From, _) => "only_from",
            (Presence::To, _) => "only_to",
            (Presence::Both, true) => "differs",
            (Presence::Both, false) => "not_comparable",
        }
    }

    /// The rows of the table: a field each.
    fn rows(&self) -> Vec<[String; 4]> {
        let omitted = self.fields.len().saturating_sub(FIELDS_MAX);
        let fields = self.fields.iter().take(FIELDS_MAX);
        let fields = fields.map(|field| {
            [self.name(), field.path.clone(), shown(field.before.as_ref()), shown(field.after.as_ref())]
        });
        let unseen = self.not_comparable.iter().take(FIELDS_MAX);
        let unseen =
            unseen.map(|place| [self.name(), path_of(place), NOT_COMPARED.into(), NOT_COMPARED.into()]);
        let mut rows: Vec<_> = fields.chain(unseen).collect();
        if omitted > 0 {
            rows.push([self.name(), format!("(and {omitted} more)"), String::new(), String::new()]);
        }
        rows
    }

    fn to_json(&self) -> Value {
        let field = |field: &FieldChange| {
            let mut shown = json!({ "path": field.path });
            for (side, value) in [("from", &field.before), ("to", &field.after)] {
                if let Some(value) = value {
                    shown[side] = value.clone();
                }
            }
            shown
        };
        let key = Some(&self.key).filter(|key| !key.is_empty());
        json!({
            "name": name(&self.definition, &self.key), "config_definition_key": self.definition, "config_key": key,
            "difference": self.kind(),
            "fields": self.fields.iter().take(FIELDS_MAX).map(field).collect::<Vec<_>>(),
            "fields_omitted": self.fields.len() > FIELDS_MAX,
            "not_comparable": self.not_comparable.iter().take(FIELDS_MAX).collect::<Vec<_>>(),
        })
    }
}

/// A JSON pointer as the path of a field is written.
fn path_of(pointer: &str) -> String {
    let names = pointer.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~"));
    names.collect::<Vec<_>>().join(".")
}

fn print(
    args: &EnvDiffArgs,
    both: &TwoEnvironments,
    found: &[RecordDifference],
    format: &Format,
) -> Result<(), Failure> {
    let omitted = found.len().saturating_sub(args.limit);
    let shown = || found.iter().take(args.limit);
    let mut table =
        Table::new("name", &["RECORD", "FIELD"], &[]).with_columns(2, &[args.from.clone(), args.to.clone()]);
    shown().flat_map(RecordDifference::rows).for_each(|row| table.row(&row));
    let meta = json!({
        "from": args.from, "to": args.to, "revision": both.revision,
        "different": found.iter().filter(|one| one.is_certain()).count(),
        "not_comparable": found.iter().filter(|one| !one.not_comparable.is_empty()).count(),
        "omitted": omitted,
    });
    let data = json!({ "results": shown().map(RecordDifference::to_json).collect::<Vec<_>>(), "meta": meta });
    if !format.is_table() || !found.is_empty() {
        print_value(format, &data, &table)?;
    }
    if omitted > 0 {
        note(format_args!("and {omitted} more: pass --limit {}, or name the records", found.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::{current::Versioned, two_environments::EnvironmentRecords},
        *,
    };

    const KEEP: &str = "$concord-keep";

    fn side(schema: Option<Value>, configs: &[(&str, Value)]) -> EnvironmentRecords {
        let value = ManifestDefinition { schema, protected: Some(true), ..ManifestDefinition::default() };
        let definitions = BTreeMap::from([("d".to_owned(), Versioned { revision: 1, value })]);
        let config = |(key, value): &(&str, Value)| {
            (("d".to_owned(), (*key).to_owned()), Versioned { revision: 1, value: value.clone() })
        };
        EnvironmentRecords { definitions, configs: configs.iter().map(config).collect() }
    }

    fn rows(from: EnvironmentRecords, to: EnvironmentRecords, show_secrets: bool) -> Vec<String> {
        let (found, _) = compared(&TwoEnvironments { revision: 7, from, to }, show_secrets);
        found.iter().flat_map(RecordDifference::rows).map(|row| row.join(" ").trim().to_owned()).collect()
    }

    #[test]
    fn records_on_one_side_and_fields_that_differ_are_named() {
        let open = || Some(json!({"type": "object"}));
        let from = side(open(), &[("a", json!({"n": 1, "x": {"y": 1}})), ("b", json!({}))]);
        let to = side(
            Some(json!({"type": "object", "minProperties": 1})),
            &[("a", json!({"n": 2, "x": {}})), ("c", json!(1))],
        );
        assert_eq!(
            rows(from, to, false),
            [
                "d json_schema.minProperties absent 1",
                "d/a n 1 2",
                "d/a x.y 1 absent",
                "d/b (config) {} absent",
                "d/c (config) absent 1",
            ]
        );
        assert_eq!(rows(side(open(), &[]), side(open(), &[]), false), Vec::<String>::new());
        let missing = rows(side(open(), &[]), EnvironmentRecords::default(), false);
        assert!(missing.len() == 1 && missing[0].starts_with("d (definition) {"), "{missing:?}");
    }

    #[test]
    fn a_secret_value_is_compared_and_not_shown_and_one_that_is_not_seen_is_not_compared() {
        let schema = || {
            Some(json!({"properties": {"p": {"x-concord-secret": true}, "q": {"x-concord-secret": true}}}))
        };
        let with = |p: Value| side(schema(), &[("a", json!({"p": p, "n": 1}))]);
        assert_eq!(rows(with(json!("pw-1")), with(json!("pw-1")), false), Vec::<String>::new());
        assert_eq!(
            rows(with(json!("pw-1")), with(json!("pw-2")), false),
            [r#"d/a p "(secret)" "(secret, differs)""#]
        );
        assert_eq!(rows(with(json!("pw-1")), with(json!("pw-2")), true), [r#"d/a p "pw-1" "pw-2""#]);
        let unseen = || with(json!({ KEEP: true }));
        for (from, to) in
            [(unseen(), unseen()), (unseen(), with(json!("pw-1"))), (with(json!("pw-1")), unseen())]
        {
            for show_secrets in [false, true] {
                let both = TwoEnvironments { revision: 7, from: clone(&from), to: clone(&to) };
                let (found, _) = compared(&both, show_secrets);
                assert_eq!((found.len(), found[0].kind()), (1, "not_comparable"));
                assert_eq!(found[0].not_comparable, ["/p"]);
                assert!(!found[0].to_json().to_string().contains("pw-"));
            }
        }
        assert_eq!(path_of("/a/0/b~1c~0"), "a.0.b/c~");
        // Which side has a value is seen; and a mark of one side holds for both.
        let without = side(Some(json!({})), &[("a", json!({"n": 1}))]);
        let found = rows(unseen(), without, false);
        assert!(found.contains(&r#"d/a p "(secret)" absent"#.to_owned()), "{found:?}");
        let unmarked = side(Some(json!({})), &[("a", json!({"p": "pw-2", "n": 1}))]);
        assert!(!rows(with(json!("pw-1")), unmarked, false).concat().contains("pw-"));
    }

    fn clone(side: &EnvironmentRecords) -> EnvironmentRecords {
        EnvironmentRecords { definitions: side.definitions.clone(), configs: side.configs.clone() }
    }
}
