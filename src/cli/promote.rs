//! `concord promote`: makes the configs of one environment as those of another one are.
//!
//! Both environments are read at one revision. The difference is one batch or one change request, in which each write is
//! conditional on the revision that was read in the target. So a change that somebody makes there meanwhile is not
//! overwritten. Where the configs come from is a note in the description: the cluster does not check it.
//!
//! A config is left as it is, and listed, if a value of it can't go along: because the access key may not see it, or
//! because the target would show it to those who may not see secret values. Where both sides have a secret value and only
//! that of the source is not seen, the rest of the config is promoted, and the target keeps its own.
//!
//! **Invariants:** nothing is deleted without `--prune`, and no definition changes unless it is named or `--definitions` is
//! given. No secret value goes to a place that is not secret, and none is shown without `--show-secrets`.

use std::collections::BTreeSet;

use clap::Args;
use concord_client::Client;
use serde_json::{Value, json};

use super::{
    apply::{
        PruneBounds, changes_json, confirm_deletions, execute, is_one_batch, one_change_request, try_all,
    },
    change::WayArgs,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::Versioned,
    env_diff::{comparable, has_marker},
    interrupt::{self, Doing},
    manifest::{ManifestDefinition, Manifests, name},
    mask::Mask,
    output::{counted, note, print_done, say, text},
    plan::{ApplyPlan, FoundRecords},
    schedule::TimeArgs,
    two_environments::{NamedRecord, NamedRecords, TwoEnvironments, key_in},
};

/// Definitions that a note names.
const NAMED_MAX: usize = 10;
/// Kept secret values that notes name; `-o json` has all.
const KEPT_SHOWN_MAX: usize = 100;

#[derive(Debug, Args)]
#[command(
    after_help = "Example: concord promote --from staging --to prod limits/acme --propose 'acme as in staging'\n\nThe data of \
                  `staging.limits/acme` become those of `prod.limits/acme`. `concord env diff` shows all differences."
)]
pub(super) struct PromoteArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// The environment whose configs are read
    #[arg(long, value_name = "NAME")]
    from: String,
    /// The environment that is changed
    #[arg(long, value_name = "NAME")]
    to: String,
    /// Only these, without the name of an environment: DEF/CONFIG, or DEF for a definition with all its configs
    /// [default: all configs]
    #[arg(value_name = "RECORD")]
    records: Vec<NamedRecord>,
    /// Also make all definitions as they are in the source: schema, indexes and unique fields
    #[arg(long)]
    definitions: bool,
    /// Keep the secret values that the target has, also those that the access key can see in the source
    #[arg(long)]
    keep_secrets: bool,
    /// Delete configs that are missing from the source (only in definitions that it has)
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    bounds: PruneBounds,
    /// Show what would be changed, and validate it unless it is proposed, without storing anything
    #[arg(long)]
    dry_run: bool,
    /// Delete configs without asking for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Show secret values
    #[arg(long)]
    show_secrets: bool,
}

/// A record that is not promoted, and why.
#[derive(Debug, PartialEq)]
struct NotPromoted {
    name: String,
    why: String,
}

/// What is wanted in the target, and what stays as it is.
#[derive(Debug, Default)]
struct Promotion {
    wanted: Manifests,
    found: FoundRecords,
    left: Vec<NotPromoted>,
    /// Secret values that the target keeps, by config and place.
    kept: Vec<(String, String)>,
    /// Definitions that differ and stay as they are.
    other_definitions: Vec<String>,
    /// How many configs only the target has, of definitions that the source has, too.
    only_in_target: u64,
    /// The definitions that only the target has.
    only_definitions: Vec<String>,
    /// What of the target is secret now, and what is afterwards.
    secret_now: Mask,
    secret_then: Mask,
    secret_in_source: Mask,
}

/// Runs the command.
pub(super) fn run(args: &PromoteArgs) -> Result<(), Failure> {
    let tries = args.way.tries_or(&args.tries, format!("promotion from {} to {}", args.from, args.to));
    with_cluster(&args.node, &tries, async |client| {
        // The keys of two environments have their whole names.
        let (client, named) = (client.in_environment(None)?, NamedRecords::of(&args.records));
        let both = TwoEnvironments::read(&client, &args.from, &args.to, &named).await?;
        let source = format!("from environment {} at revision {}", args.from, both.revision);
        let promotion = Promotion::new(args, &named, both);
        let mut plan = ApplyPlan::of(&promotion.wanted, &promotion.found)?;
        plan.emptied.retain(|definition| promotion.reads_all_of(args, &named, definition));
        promotion.add_marks(args, &mut plan.mask);
        if !args.show_secrets {
            plan.hide_secrets();
        }
        if args.node.format.or_table().is_table() {
            plan.changes.iter().try_for_each(|change| text(&change.diff(&args.to, &args.from)))?;
        }
        promotion.tell(args);
        let way =
            args.way.describing(format!("Promoted {source}: a note of the sender, which nobody checks."));
        promotion.execute(&client, args, &way, plan).await
    })
}

impl Promotion {
    fn new(args: &PromoteArgs, named: &NamedRecords, both: TwoEnvironments) -> Self {
        let mut new = Self::default();
        let TwoEnvironments { from, to, .. } = both;
        let mut skipped = BTreeSet::new();
        for (key, source) in &from.definitions {
            let (target_key, target) = (key_in(&args.to, key), to.definitions.get(key));
            let is_included = args.definitions || named.names(key);
            new.secret_in_source.add(key, source.value.schema.as_ref());
            new.secret_now.add(key, target.and_then(|target| target.value.schema.as_ref()));
            if is_included {
                let wanted = ManifestDefinition { protected: None, ..source.value.clone() };
                new.secret_then.add(key, wanted.schema.as_ref());
                new.wanted.definitions.insert(target_key.clone(), wanted);
            } else if let Some(target) = target {
                new.secret_then.add(key, target.value.schema.as_ref());
                if comparable(key, &source.value) != comparable(key, &target.value) {
                    new.other_definitions.push(target_key.clone());
                }
            } else {
                let why = "it does not exist: --definitions creates it, and promotes its configs".to_owned();
                new.left.push(NotPromoted { name: name(&target_key, ""), why });
                skipped.insert(key.clone());
                continue;
            }
            if args.prune {
                new.found.pruned.insert(target_key.clone());
            }
            new.found.definitions.insert(target_key, target.cloned());
        }
        let only = to.definitions.keys().filter(|key| !from.definitions.contains_key(*key));
        new.only_definitions = only.map(|key| key_in(&args.to, key)).collect();
        for ((definition, key), config) in &to.configs {
            let id = (definition.clone(), key.clone());
            let is_common = from.definitions.contains_key(definition);
            new.only_in_target += u64::from(is_common && !from.configs.contains_key(&id));
            new.found.configs.insert((key_in(&args.to, definition), key.clone()), config.clone());
        }
        for ((definition, key), config) in from.configs {
            if !skipped.contains(&definition) {
                let now = to.configs.get(&(definition.clone(), key.clone()));
                new.config(args, (&definition, &key), config.value, now);
            }
        }
        // What is left must not look like something that the source lacks.
        let left: BTreeSet<&String> = new.left.iter().map(|left| &left.name).collect();
        new.found.configs.retain(|(definition, key), _| !left.contains(&name(definition, key)));
        new
    }

    /// Adds a config of the source.
    fn config(
        &mut self,
        args: &PromoteArgs,
        (definition, key): (&str, &str),
        mut data: Value,
        now: Option<&Versioned<Value>>,
    ) {
        let target = key_in(&args.to, definition);
        match self.secrets(args, definition, &mut data, now) {
            Ok(kept) => {
                let name = format!("{target}/{key}");
                self.kept.extend(kept.into_iter().map(|place| (name.clone(), place)));
                self.wanted.configs.insert((target, key.to_owned()), data);
            }
            Err(why) => self.left.push(NotPromoted { name: name(&target, key), why }),
        }
    }

    /// Replaces the secret values that the target keeps by markers, and returns their places. An error says why the
    /// config can't be promoted.
    fn secrets(
        &self,
        args: &PromoteArgs,
        definition: &str,
        data: &mut Value,
        now: Option<&Versioned<Value>>,
    ) -> Result<Vec<String>, String> {
        let keep = json!({ "$concord-keep": true });
        let mut kept = Vec::new();
        for place in self.secret_in_source.places(definition, data) {
            // What an outer place has replaced is gone.
            let Some(value) = data.pointer(&place) else { continue };
            let is_unseen = *value == keep;
            if !is_unseen && has_marker(value) {
                return Err(format!("which values are secret in {} is not known to this program", args.from));
            }
            if !is_marked(&self.secret_then, definition, data, &place) {
                return Err(format!(
                    "{place} is secret in {}, and not in {}: promote its definition first, or with it",
                    args.from, args.to
                ));
            }
            if is_unseen || args.keep_secrets {
                let Some(now) = now else {
                    return Err(format!("it is new, and has a secret value that is not promoted: {place}"));
                };
                if now.value.pointer(&place).is_none()
                    || !is_marked(&self.secret_now, definition, &now.value, &place)
                {
                    return Err(format!(
                        "{} has no secret value at {place} that it could keep, and that of {} is not promoted",
                        args.to, args.from
                    ));
                }
                self.check_list(definition, &place, (data, &now.value))?;
                put(data, &place, &keep);
                kept.push(place);
            }
        }
        let now = now.filter(|_| args.keep_secrets).map(|now| &now.value);
        for (place, now) in now.into_iter().flat_map(|now| {
            self.secret_now.places(definition, now).into_iter().map(move |place| (place, now))
        }) {
            if kept.iter().any(|outer| is_within(&place, outer)) {
                continue;
            }
            self.check_list(definition, &place, (data, now))?;
            put(data, &place, &keep);
            if data.pointer(&place) != Some(&keep) || !is_marked(&self.secret_then, definition, data, &place)
            {
                return Err(format!(
                    "{} has a secret value at {place}, which the data of {} have no place for",
                    args.to, args.from
                ));
            }
            kept.push(place);
        }
        Ok(kept)
    }

    /// Fails if a place is in a list that is not the same on both sides, secret values aside: then the value that the target
    /// has there may be of another element.
    fn check_list(&self, definition: &str, place: &str, (data, now): (&Value, &Value)) -> Result<(), String> {
        let Some(list) = outermost_list(data, place).or_else(|| outermost_list(now, place)) else {
            return Ok(());
        };
        let masks = [&self.secret_in_source, &self.secret_now, &self.secret_then];
        let without_secrets = |side: &Value| {
            let mut shown = side.clone();
            for secret in masks.iter().flat_map(|mask| mask.places(definition, side)) {
                shown.pointer_mut(&secret).into_iter().for_each(|value| *value = Value::Null);
            }
            shown.pointer(list).cloned()
        };
        if without_secrets(data) == without_secrets(now) {
            return Ok(());
        }
        Err(format!(
            "{list} is not the same on both sides, so the secret value at {place} may be of another element"
        ))
    }

    /// Whether all configs of a definition of the target are read.
    fn reads_all_of(&self, args: &PromoteArgs, named: &NamedRecords, definition: &str) -> bool {
        let short = definition.strip_prefix(&key_in(&args.to, "")).unwrap_or(definition);
        named.has_all_of(short)
    }

    /// Adds what is secret in the source to what is hidden.
    fn add_marks(&self, args: &PromoteArgs, mask: &mut Mask) {
        mask.add_renamed(&self.secret_in_source, |definition| key_in(&args.to, definition));
    }

    /// Prints what stays as it is.
    fn tell(&self, args: &PromoteArgs) {
        for NotPromoted { name, why } in &self.left {
            say(format_args!("not promoted: {name}: {why}"));
        }
        for (config, place) in self.kept.iter().take(KEPT_SHOWN_MAX) {
            note(format_args!("{config} keeps its own secret value at {place}"));
        }
        if self.kept.len() > KEPT_SHOWN_MAX {
            note(format_args!("and {} more keep theirs", self.kept.len() - KEPT_SHOWN_MAX));
        }
        if let Some(named) = listed(&self.other_definitions) {
            note(format_args!(
                "other definitions than in {}: {named}; --definitions promotes them, too",
                args.from
            ));
        }
        if let Some(named) = listed(&self.only_definitions) {
            note(format_args!("definitions only in {}: {named}; they stay", args.to));
        }
        if self.only_in_target > 0 && !args.prune {
            let count = counted(self.only_in_target, "config");
            note(format_args!("{count} only in {}: --prune deletes them", args.to));
        }
    }

    /// Proposes the changes, makes them, or tries them.
    async fn execute(
        &self,
        client: &Client,
        args: &PromoteArgs,
        way: &WayArgs,
        plan: ApplyPlan,
    ) -> Result<(), Failure> {
        args.bounds.check(&plan)?;
        if !is_one_batch(&plan) {
            let changes = plan.changes.len();
            let text =
                format!("{changes} changes exceed one batch, which is atomic: name some of the records");
            return Err(Failure::Usage(text));
        }
        let timed = way.at(&args.when);
        let proposed = timed.is_proposal().then(|| one_change_request(&plan)).transpose()?;
        let count = counted(plan.changes.len() as u64, "record");
        match proposed {
            _ if plan.changes.is_empty() => {
                let text = format!("{} is as {}: nothing to promote", args.to, args.from);
                self.report(args, &plan, None, text)?;
            }
            Some(_) if args.dry_run => {
                self.report(args, &plan, None, format!("{count} would be proposed; nothing was stored"))?;
            }
            Some(operations) => {
                timed.propose(client, operations, false, &args.node.format.or_table()).await?;
            }
            None if args.dry_run => {
                try_all(client, &plan, way).await?;
                self.report(args, &plan, None, format!("{count} would be changed; nothing was stored"))?;
            }
            None => {
                confirm_deletions(&plan, args.yes)?;
                interrupt::now(Doing::Writing);
                let (plan, revisions) = execute(client, plan, false, way).await?;
                let at =
                    revisions.iter().map(|revision| format!("  revision {revision}")).collect::<String>();
                self.report(args, &plan, Some(&revisions), format!("{count} promoted{at}"))?;
            }
        }
        if self.left.is_empty() {
            return Ok(());
        }
        let verb = if args.dry_run { "would not be" } else { "not" };
        Err(Failure::Partial(format!("{} {verb} promoted", counted(self.left.len() as u64, "record"))))
    }

    fn report(
        &self,
        args: &PromoteArgs,
        plan: &ApplyPlan,
        revisions: Option<&[u64]>,
        summary: String,
    ) -> Result<(), Failure> {
        let mut data = changes_json(plan, revisions);
        let left = self.left.iter().map(|left| json!({ "name": left.name, "reason": left.why }));
        data["left"] = left.collect::<Vec<_>>().into();
        let kept = self.kept.iter().map(|(config, place)| json!({ "name": config, "path": place }));
        data["kept"] = kept.collect::<Vec<_>>().into();
        data["meta"]["from"] = args.from.as_str().into();
        data["meta"]["to"] = args.to.as_str().into();
        print_done(&args.node.format.or_table(), &data, "name", summary)
    }
}

/// The first of some keys; `None` if there are none.
fn listed(keys: &[String]) -> Option<String> {
    let shown: Vec<&str> = keys.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = match keys.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

/// Whether a mask has a place of data, or one around it.
fn is_marked(mask: &Mask, definition: &str, data: &Value, place: &str) -> bool {
    mask.places(definition, data).iter().any(|marked| is_within(place, marked))
}

/// The outermost list that a place is in.
fn outermost_list<'a>(data: &Value, place: &'a str) -> Option<&'a str> {
    let ends = place.char_indices().filter(|(_, char)| *char == '/').map(|(at, _)| at);
    ends.map(|at| &place[..at]).find(|outer| data.pointer(outer).is_some_and(Value::is_array))
}

/// Puts a value at a place: at one that is there, or as a new member of an object.
fn put(data: &mut Value, place: &str, value: &Value) {
    if let Some(found) = data.pointer_mut(place) {
        found.clone_from(value);
        return;
    }
    let Some((outer, name)) = place.rsplit_once('/') else { return };
    if let Some(Value::Object(members)) = data.pointer_mut(outer) {
        members.insert(name.replace("~1", "/").replace("~0", "~"), value.clone());
    }
}

/// Whether a place is another one, or in it.
fn is_within(place: &str, outer: &str) -> bool {
    place.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::{super::two_environments::EnvironmentRecords, *};

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: PromoteArgs,
    }

    fn args(more: &[&str]) -> PromoteArgs {
        let words = ["promote", "--from", "staging", "--to", "prod"];
        Command::parse_from(words.iter().chain(more)).args
    }

    fn side(schema: &Value, configs: &[(&str, Value)]) -> EnvironmentRecords {
        let value = ManifestDefinition { schema: Some(schema.clone()), ..ManifestDefinition::default() };
        let definitions = BTreeMap::from([("d".to_owned(), Versioned { revision: 1, value })]);
        let config = |(key, value): &(&str, Value)| {
            (("d".to_owned(), (*key).to_owned()), Versioned { revision: 1, value: value.clone() })
        };
        EnvironmentRecords { definitions, configs: configs.iter().map(config).collect() }
    }

    /// The names of the records that change, and of those that are left.
    fn promoted(
        more: &[&str],
        from: EnvironmentRecords,
        to: EnvironmentRecords,
    ) -> (Vec<String>, Vec<String>, Promotion) {
        let args = args(more);
        let named = NamedRecords::of(&args.records);
        let promotion = Promotion::new(&args, &named, TwoEnvironments { revision: 7, from, to });
        let plan = ApplyPlan::of(&promotion.wanted, &promotion.found).unwrap();
        let verbs = plan
            .changes
            .iter()
            .map(|change| format!("{} {}", name(&change.definition, &change.key), change.verb(true)));
        let left = promotion.left.iter().map(|left| left.name.clone()).collect();
        (verbs.collect(), left, promotion)
    }

    fn marked() -> Value {
        json!({"properties": {"p": {"x-concord-secret": true}}})
    }

    #[test]
    fn configs_go_and_definitions_and_deletions_only_if_asked_for() {
        let (old, new) = (json!({"type": "object"}), json!({"type": "object", "title": "t"}));
        let from = || side(&new, &[("a", json!({"n": 2})), ("b", json!({})), ("c", json!({}))]);
        let to = || side(&old, &[("a", json!({"n": 1})), ("c", json!({})), ("x", json!({}))]);
        let (changes, left, promotion) = promoted(&[], from(), to());
        assert_eq!(changes, ["config prod.d/a changed", "config prod.d/b created"]);
        assert!(promotion.only_definitions.is_empty());
        let (changes, _, reversed) = promoted(&["--prune"], EnvironmentRecords::default(), to());
        assert_eq!((changes.len(), reversed.only_definitions), (0, vec!["prod.d".to_owned()]));
        assert_eq!((left.len(), promotion.only_in_target), (0, 1));
        assert_eq!(promotion.other_definitions, ["prod.d"]);
        let (changes, ..) = promoted(&["--definitions", "--prune"], from(), to());
        assert_eq!(
            changes,
            [
                "definition prod.d changed",
                "config prod.d/x deleted",
                "config prod.d/a changed",
                "config prod.d/b created"
            ]
        );
        assert_eq!(promoted(&["d"], from(), to()).0[0], "definition prod.d changed");
        let (changes, left, _) = promoted(&["--prune"], from(), EnvironmentRecords::default());
        assert_eq!((changes.len(), left), (0, vec!["definition prod.d".to_owned()]));
        let (changes, left, _) = promoted(&["--definitions"], from(), EnvironmentRecords::default());
        assert_eq!((changes.len(), left.len()), (4, 0));
    }

    #[test]
    fn a_secret_value_that_is_not_seen_stays_and_a_new_config_with_one_is_left() {
        let keep = json!({"$concord-keep": true});
        let unseen = |n: u64| json!({"n": n, "p": keep});
        let from = || side(&marked(), &[("a", unseen(2)), ("new", unseen(2))]);
        let to = || side(&marked(), &[("a", unseen(1)), ("x", unseen(1))]);
        let (changes, left, promotion) = promoted(&[], from(), to());
        assert_eq!(
            (changes, left),
            (vec!["config prod.d/a changed".to_owned()], vec!["config prod.d/new".to_owned()])
        );
        assert_eq!(promotion.kept, [("prod.d/a".to_owned(), "/p".to_owned())]);
        // The target has nothing to keep there; or would show it.
        let (changes, left, _) =
            promoted(&[], side(&marked(), &[("a", unseen(2))]), side(&marked(), &[("a", json!({"n": 1}))]));
        assert_eq!((changes.len(), left.len()), (0, 1));
        let open = json!({"type": "object"});
        for data in [unseen(2), json!({"n": 2, "p": "pw"})] {
            let (from, to) =
                (side(&marked(), &[("a", data.clone())]), side(&open, &[("a", json!({"n": 1, "p": "x"}))]));
            let (changes, left, _) = promoted(&[], from, to);
            assert_eq!((changes.len(), left.len()), (0, 1), "{data}");
        }
        // What is left is not deleted either.
        let (from, to) =
            (side(&marked(), &[("a", unseen(2))]), side(&open, &[("a", json!({"n": 1, "p": "x"}))]));
        assert_eq!(promoted(&["--prune"], from, to).0.len(), 0);
    }

    #[test]
    fn a_secret_value_in_a_list_stays_only_if_the_list_is_the_same() {
        let schema =
            json!({"properties": {"users": {"items": {"properties": {"p": {"x-concord-secret": true}}}}}});
        let keep = json!({"$concord-keep": true});
        let users = |names: &[&str]| {
            let users: Vec<Value> = names.iter().map(|name| json!({"name": name, "p": keep})).collect();
            json!({ "n": names.len(), "users": users })
        };
        let with = |data: Value| side(&schema, &[("a", data)]);
        let mut changed = users(&["a", "b"]);
        changed["n"] = 7.into();
        let (changes, left, promotion) = promoted(&[], with(changed), with(users(&["a", "b"])));
        assert_eq!((changes.len(), left.len(), promotion.kept.len()), (1, 0, 2));
        for other in [&["b", "a"][..], &["new", "a"], &["new", "a", "b"], &["a", "c"], &["a"]] {
            for more in [&[][..], &["--keep-secrets"]] {
                let (changes, left, _) = promoted(more, with(users(other)), with(users(&["a", "b"])));
                assert_eq!((changes.len(), left), (0, vec!["config prod.d/a".to_owned()]), "{other:?}");
            }
        }
        // Nor does an element get the value of another one because it has none.
        let (from, to) = (json!({"users": [{"name": "x"}]}), json!({"users": [{"name": "a", "p": "pw"}]}));
        assert_eq!(promoted(&["--keep-secrets"], with(from), with(to)).1, ["config prod.d/a"]);
        let list = json!({"a": [{"b": [1]}]});
        assert_eq!((outermost_list(&list, "/a/0/b/0"), outermost_list(&list, "/a")), (Some("/a"), None));
    }

    #[test]
    fn a_secret_value_that_is_seen_goes_along_unless_it_is_to_stay() {
        let with = |p: &str| json!({"n": 1, "p": p});
        let from = || side(&marked(), &[("a", with("pw-2")), ("new", with("pw-2"))]);
        let to = || side(&marked(), &[("a", with("pw-1"))]);
        assert_eq!(promoted(&[], from(), to()).0.len(), 2);
        let (changes, left, _) = promoted(&["--keep-secrets"], from(), to());
        assert_eq!((changes.len(), left), (0, vec!["config prod.d/new".to_owned()]));
        // One that the source does not have stays as well, if its data have a place for it.
        let (from, to) =
            (side(&marked(), &[("a", json!({"n": 2}))]), || side(&marked(), &[("a", with("pw-1"))]));
        let (changes, _, promotion) = promoted(&["--keep-secrets"], from, to());
        assert_eq!((changes.len(), promotion.kept.len()), (1, 1));
        let wanted = &promotion.wanted.configs[&("prod.d".to_owned(), "a".to_owned())];
        assert_eq!(*wanted, json!({"n": 2, "p": {"$concord-keep": true}}));
        let deep = json!({"properties": {"x": {"properties": {"p": {"x-concord-secret": true}}}}});
        let (from, to) = (side(&deep, &[("a", json!({}))]), side(&deep, &[("a", json!({"x": {"p": "pw"}}))]));
        assert_eq!(promoted(&["--keep-secrets"], from, to).1, ["config prod.d/a"]);
        let (without, to) =
            (side(&marked(), &[("a", json!({"n": 2}))]), side(&marked(), &[("a", with("pw-1"))]));
        assert_eq!(promoted(&[], without, to).2.wanted.configs.values().next(), Some(&json!({"n": 2})));
    }
}
