//! `concord flag list`, `get`, `on`, `off`, `enable` and `disable`: feature flags, the configs of a definition in flagd's
//! format.
//!
//! `on` and `off` set the default variant of a boolean flag. A rule decides before it, so a flag with a rule is switched
//! only if the user says what becomes of the rule. `disable` is another thing: each program then uses its own default.
//!
//! **Invariant:** a flag is switched only at the revision that was read, and its other members stay as they are.

use clap::{Args, Subcommand};
use concord_client::{Client, IfMatch, Operation, Request};
use http::Method;
use serde_json::{Value, json};

use super::{
    change::WayArgs,
    config::ConfigTarget,
    config_write::ConfigWrite,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{self, config_path, definition_path},
    flag_eval::{self, EvalArgs},
    output::{Table, cell, line, note, print_done, printable},
    redacted::Redactions,
    schedule::TimeArgs,
};

/// The config that holds what the flags of its definition share.
const SHARED: &str = "shared~";
/// Flags of a page.
const PAGE: usize = 1000;
const ENABLED: &str = "ENABLED";
const DISABLED: &str = "DISABLED";

const ON: &str = "Turn a boolean flag on: everybody gets `true`

Sets the default variant to the variant with the value `true`, and `state` to ENABLED. The rule of a flag decides before \
                  its default variant. So a flag with a rule needs --drop-rule or --keep-rule.";
const OFF: &str = "Turn a boolean flag off: everybody gets `false`

Sets the default variant to the variant with the value `false`, and `state` to ENABLED. The rule of a flag decides before \
                   its default variant. So a flag with a rule needs --drop-rule or --keep-rule.

This is not `concord flag disable`: a program that gets no value from a disabled flag uses the default in its code, which \
                   may be `true`.";
const ENABLE: &str = "Enable a flag: its rule and its default variant decide again

Sets `state` to ENABLED. `concord flag on` also makes a boolean flag `true` for everybody.";
const DISABLE: &str = "Disable a flag: each program uses the default in its own code

Sets `state` to DISABLED. The rule and the default variant stay for `concord flag enable`. The feature is off only in \
                       programs whose own default is off: `concord flag off` gives everybody `false`.";

#[derive(Debug, Subcommand)]
pub(super) enum FlagCommand {
    /// List flags, and what each one serves
    List(ListArgs),
    /// Show a flag: what it serves, its variants and its rule
    Get(GetArgs),
    /// Turn a boolean flag on: everybody gets `true`
    #[command(long_about = ON)]
    On(SwitchArgs),
    /// Turn a boolean flag off: everybody gets `false`
    #[command(long_about = OFF)]
    Off(SwitchArgs),
    /// Enable a flag: its rule and its default variant decide again
    #[command(long_about = ENABLE)]
    Enable(FlagWriteArgs),
    /// Disable a flag: each program uses the default in its own code
    #[command(long_about = DISABLE)]
    Disable(FlagWriteArgs),
    /// Evaluate a flag, or all flags, as a program would
    Eval(EvalArgs),
}

/// A cluster and the definition of the flags.
#[derive(Debug, Args)]
pub(super) struct FlagDefinition {
    #[command(flatten)]
    pub(super) node: NodeArgs,
    #[command(flatten)]
    pub(super) tries: TryArgs,
    /// The key of the definition whose configs are the flags
    #[arg(long, default_value = "flags", value_name = "DEF")]
    pub(super) definition: String,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    of: FlagDefinition,
}

#[derive(Debug, Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    of: FlagDefinition,
    /// The key of the flag
    key: String,
}

#[derive(Debug, Args)]
pub(super) struct FlagWriteArgs {
    #[command(flatten)]
    of: FlagDefinition,
    /// The key of the flag
    key: String,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct SwitchArgs {
    #[command(flatten)]
    write: FlagWriteArgs,
    /// Remove the rule of the flag, so that everybody gets the default variant
    #[arg(long, conflicts_with = "keep_rule")]
    drop_rule: bool,
    /// Keep the rule of the flag: the default variant is for those for whom it selects nothing
    #[arg(long)]
    keep_rule: bool,
}

/// What becomes of the rule of a flag that is turned on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleChoice {
    Unsaid,
    Drop,
    Keep,
}

/// A change of a flag.
#[derive(Debug, Clone, Copy)]
enum FlagChange {
    /// Its default variant.
    Value(bool, RuleChoice),
    /// Its state.
    State(&'static str),
}

/// Runs a command.
pub(super) fn run(command: FlagCommand) -> Result<(), Failure> {
    match command {
        FlagCommand::List(args) => list(&args.of),
        FlagCommand::Get(args) => get(&args),
        FlagCommand::On(args) => switch(args, true),
        FlagCommand::Off(args) => switch(args, false),
        FlagCommand::Enable(args) => write(args, FlagChange::State(ENABLED)),
        FlagCommand::Disable(args) => write(args, FlagChange::State(DISABLED)),
        FlagCommand::Eval(args) => flag_eval::run(&args),
    }
}

/// Whether a flag has a rule.
fn has_rule(data: &Value) -> bool {
    !data["targeting"].is_null() && data["targeting"] != json!({})
}

/// What a flag serves, in a few words.
fn serves(data: &Value) -> String {
    if data["state"] == DISABLED {
        return "the program's default".into();
    }
    let default = match cell(&data["defaultVariant"]) {
        none if none.is_empty() => "the program's default".into(),
        variant => variant,
    };
    if has_rule(data) { format!("by its rule, else {default}") } else { default }
}

/// The cells of a flag.
fn row(config: &Value) -> Vec<String> {
    let data = &config["data"];
    let mut cells = vec![cell(&config["config_key"]), serves(data), cell(&config["modified_at"])];
    cells.extend(["state", "defaultVariant", "variants", "targeting"].map(|name| cell(&data[name])));
    cells
}

fn table() -> Table {
    let wide = ["STATE", "DEFAULT", "VARIANTS", "RULE"];
    Table::new("config_key", &["FLAG", "SERVES", "MODIFIED"], &wide)
}

fn list(of: &FlagDefinition) -> Result<(), Failure> {
    let format = of.node.format.or_table();
    with_cluster(&of.node, &of.tries, async |client| {
        let first = Request::get(format!("{}/config/", definition_path(&of.definition)))
            .query("limit", PAGE)
            .query("sort_by", "config_key")
            .query("sort_order", "asc");
        let (mut pages, mut results) = (client.pages(first), Vec::new());
        let mut redactions = Redactions::default();
        while let Some(page) = pages.next().await? {
            for mut record in page.into_iter().filter(|record| record["config_key"] != SHARED) {
                let pointer = format!("/results/{}", results.len());
                redactions.record(&pointer, &mut record, pages.redacted());
                results.push(record);
            }
        }
        let total = results.len();
        let data = json!({ "results": results, "meta": { "total": total } });
        let (shown, mut table) = (redactions.shown(data.clone()), table());
        for config in shown["results"].as_array().into_iter().flatten() {
            table.row(&row(config));
        }
        redactions.print(&format, &data, &table)
    })
}

fn get(args: &GetArgs) -> Result<(), Failure> {
    let FlagDefinition { node, tries, definition } = &args.of;
    let format = node.format.or_table();
    with_cluster(node, tries, async |client| {
        let answer = client.send(Request::get(config_path(definition, &args.key))).await?;
        let mut record = answer.data()?;
        let redactions = Redactions::of(&mut record, &answer);
        let shown = redactions.shown(record.clone());
        if !format.is_table() {
            return redactions.print(&format, &record, &table());
        }
        let data = &shown["data"];
        let revision = answer.revision().map(|revision| revision.to_string()).unwrap_or_default();
        let lines = [
            ("flag", format!("{definition}/{}", args.key)),
            ("serves", serves(data)),
            ("state", cell(&data["state"])),
            ("default variant", cell(&data["defaultVariant"])),
            ("variants", cell(&data["variants"])),
            ("rule", cell(&data["targeting"])),
            ("revision", revision),
            ("modified", cell(&shown["modified_at"])),
        ];
        for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
            let name = format!("{name}:");
            line(format_args!("{name:17}{}", printable(value)))?;
        }
        Ok(())
    })
}

fn switch(args: SwitchArgs, is_on: bool) -> Result<(), Failure> {
    let choice = match (args.drop_rule, args.keep_rule) {
        (true, _) => RuleChoice::Drop,
        (false, true) => RuleChoice::Keep,
        (false, false) => RuleChoice::Unsaid,
    };
    write(args.write, FlagChange::Value(is_on, choice))
}

impl FlagChange {
    /// What is said of the flag when it is done.
    fn done(self) -> &'static str {
        match self {
            Self::Value(true, _) => "turned on",
            Self::Value(false, _) => "turned off",
            Self::State(DISABLED) => "disabled",
            Self::State(_) => "enabled",
        }
    }

    /// The merge patch that makes the change; empty if there is nothing to change.
    fn patch(self, data: &Value) -> Result<Value, Failure> {
        match self {
            Self::State(state) => Ok(different(data, &[("state", state.into())])),
            Self::Value(value, choice) => {
                let variant = variant_of(data, value).ok_or_else(|| {
                    Failure::Invalid(format!("no variant of the flag has the value `{value}`: `concord config patch` changes `defaultVariant` of a flag that is not boolean"))
                })?;
                let mut members = vec![("state", ENABLED.into()), ("defaultVariant", variant.into())];
                match choice {
                    RuleChoice::Unsaid if has_rule(data) => {
                        return Err(Failure::Usage(format!(
                            "the flag has a rule, which decides before the default variant\nhint: --drop-rule removes it, so that everybody gets `{value}`; --keep-rule keeps it; `concord flag disable` keeps it, and each program uses its own default"
                        )));
                    }
                    RuleChoice::Drop if has_rule(data) => members.push(("targeting", Value::Null)),
                    RuleChoice::Unsaid | RuleChoice::Drop | RuleChoice::Keep => {}
                }
                Ok(different(data, &members))
            }
        }
    }
}

/// The members that have another value in the data.
fn different(data: &Value, members: &[(&str, Value)]) -> Value {
    let changed = members.iter().filter(|(name, value)| data[*name] != *value);
    Value::Object(changed.map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

/// The variant with a boolean value: the one with the usual name, or else the first.
fn variant_of(data: &Value, value: bool) -> Option<&str> {
    let usual = if value { "on" } else { "off" };
    let variants = data["variants"].as_object()?;
    let mut found =
        variants.iter().filter(|(_, own)| **own == Value::Bool(value)).map(|(name, _)| name.as_str());
    if variants.get(usual) == Some(&Value::Bool(value)) { Some(usual) } else { found.next() }
}

fn write(args: FlagWriteArgs, change: FlagChange) -> Result<(), Failure> {
    let FlagWriteArgs { of: FlagDefinition { node, tries, definition }, key, way, when, dry_run } = args;
    let target = ConfigTarget { node, tries, definition, key };
    with_cluster(&target.node, &way.tries(&target.tries), async |client| {
        let (revision, data) = read(&client, &target).await?;
        let patch = change.patch(&data)?;
        if matches!(change, FlagChange::Value(_, RuleChoice::Keep)) && has_rule(&data) {
            note("the rule of the flag still decides before its default variant");
        }
        let ConfigTarget { definition, key, node, .. } = &target;
        if patch == json!({}) {
            let record = json!({ "config_definition_key": definition, "config_key": key, "operation": null });
            let text = format!("nothing was changed: config {definition}/{key} is {} already", change.done());
            return print_done(&node.format.or_table(), &record, "config_key", text);
        }
        let request = Request::new(Method::PATCH, config_path(definition, key))
            .body("application/merge-patch+json", patch.to_string())
            .if_match(revision);
        let operation = Operation::PatchConfig {
            definition: definition.clone(),
            key: key.clone(),
            patch,
            if_match: Some(IfMatch::Revision(revision)),
        };
        let (done, is_dry_run) = (change.done(), dry_run);
        let write = ConfigWrite { target: &target, way: &way, when: &when, operation, done, is_dry_run };
        write.send_with(&client, request).await
    })
}

/// A flag with its revision.
async fn read(client: &Client, target: &ConfigTarget) -> Result<(u64, Value), Failure> {
    let ConfigTarget { definition, key, .. } = target;
    if let Some(found) = current::config(client, definition, key).await? {
        return Ok((found.revision, found.value));
    }
    // The error says what does not exist.
    client.send(Request::get(config_path(definition, key))).await?;
    Err(Failure::Failed(format!("config {definition}/{key} was created just now: try again")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag() -> Value {
        json!({ "state": "ENABLED", "variants": { "yes": true, "no": false }, "defaultVariant": "no", "more": 1 })
    }

    #[test]
    fn a_switch_changes_the_default_variant_and_nothing_else() {
        let patch = |data: &Value, value, choice| FlagChange::Value(value, choice).patch(data);
        let mut data = flag();
        assert_eq!(patch(&data, true, RuleChoice::Unsaid).unwrap(), json!({ "defaultVariant": "yes" }));
        assert_eq!(patch(&data, false, RuleChoice::Unsaid).unwrap(), json!({}));
        data["state"] = DISABLED.into();
        assert_eq!(patch(&data, false, RuleChoice::Unsaid).unwrap(), json!({ "state": "ENABLED" }));
        data["targeting"] = json!({ "fractional": [["yes", 10], ["no", 90]] });
        assert!(matches!(patch(&data, false, RuleChoice::Unsaid), Err(Failure::Usage(_))));
        assert_eq!(patch(&data, false, RuleChoice::Keep).unwrap(), json!({ "state": "ENABLED" }));
        assert_eq!(
            patch(&data, true, RuleChoice::Drop).unwrap(),
            json!({ "state": "ENABLED", "defaultVariant": "yes", "targeting": null })
        );
        data["variants"] = json!({ "a": "x" });
        assert!(matches!(patch(&data, true, RuleChoice::Drop), Err(Failure::Invalid(_))));
        assert_eq!(FlagChange::State(DISABLED).patch(&data).unwrap(), json!({}));
    }

    #[test]
    fn the_usual_name_of_a_variant_comes_first() {
        let data = json!({ "variants": { "beta": true, "on": true, "off": "no", "never": false } });
        assert_eq!((variant_of(&data, true), variant_of(&data, false)), (Some("on"), Some("never")));
        assert_eq!(variant_of(&json!({}), true), None);
    }

    #[test]
    fn what_a_flag_serves_is_said_in_words() {
        let mut data = flag();
        assert_eq!(serves(&data), "no");
        data["targeting"] = json!({ "if": [true, "yes", null] });
        assert_eq!(serves(&data), "by its rule, else no");
        data["defaultVariant"] = Value::Null;
        assert_eq!(serves(&data), "by its rule, else the program's default");
        data["state"] = DISABLED.into();
        assert_eq!(serves(&data), "the program's default");
    }
}
