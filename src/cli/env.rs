//! The commands `env list|get|set|rm`, `freeze` and `unfreeze`.
//!
//! A freeze is a part of its environment. So `freeze` and `unfreeze` read the environment, and replace it if nobody
//! has changed it since.
//!
//! **Invariant:** no command ends a freeze that it was not asked to end.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use concord_client::{Client, Error, Request, segment};
use concord_model::{system::environment::DEFAULT_ENVIRONMENT, time::Timestamp};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    change::WayArgs,
    connection::{Failure, NodeArgs, TryArgs, run_with_client, with_cluster},
    definition::one_value,
    env_diff::{self, EnvDiffArgs},
    interrupt::{self, Doing},
    output::{Columns, Format, cell, confirm, print_columns, print_done},
};

const COLUMNS: Columns = Columns {
    name: "environment",
    narrow: &[
        ("ENVIRONMENT", "/environment"),
        ("DIRECT WRITES", "/direct_shown"),
        ("APPROVALS", "/approvals"),
        ("FROZEN UNTIL", "/frozen_until"),
        ("FREEZES", "/freeze"),
    ],
    wide: &[("MODIFIED", "/modified_at")],
};

const ENVIRONMENTS: &str = "/api/v1/environment/";
/// How often an environment is read again because another client has replaced it.
const READS_MAX: usize = 8;

#[derive(Debug, Subcommand)]
pub(super) enum EnvCommand {
    /// List environments
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Show an environment with its freezes
    Get {
        #[command(flatten)]
        node: NodeArgs,
        /// The name of the environment
        name: String,
    },
    /// Create an environment, or replace its freezes by those of a file
    Set(EnvSetArgs),
    /// Compare the definitions and configs of two environments; exits 1 if there is a difference
    Diff(EnvDiffArgs),
    /// Delete an environment: its freezes end, and its definitions belong to `default` then
    #[command(visible_alias = "delete")]
    Rm {
        #[command(flatten)]
        node: NodeArgs,
        #[command(flatten)]
        tries: TryArgs,
        #[command(flatten)]
        way: WayArgs,
        /// The name of the environment
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "The environment `prod` has the definitions whose keys begin with `prod.`; `default` has those of no other \
                  environment.\n\nThe name is that of the environment, whatever `--env` is."
)]
pub(super) struct EnvSetArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    /// The name of the environment: what stands before the first `.` in the keys of its definitions
    name: String,
    /// Whether definitions and configs may be changed directly: `refuse` restricts the environment to change requests
    #[arg(long, value_parser = ["allow", "refuse"], value_name = "RULE")]
    direct: Option<String>,
    /// How many persons must approve a change request
    #[arg(long, value_name = "N")]
    approvals: Option<u64>,
    /// A JSON or YAML file with `freeze`, the list of all its freezes, as `env get -o yaml` shows them; `-` for stdin
    #[arg(short, long, value_name = "PATH")]
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: concord freeze prod --for 1h --reason 'incident 4711'\n\nWhile an environment is frozen, every \
                  change of its definitions and configs is rejected, whatever the access key may do.\n\nIn a restricted \
                  environment, a freeze that begins within 24 hours and lasts at most 24 is added at once; others are \
                  proposed."
)]
pub(super) struct FreezeArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    /// The environment [default: that of `--env`, or else `default`, the definitions without an environment of their own]
    environment: Option<String>,
    /// For how long, as in `90m`, `1h` or `2d`
    #[arg(long = "for", value_parser = parse_duration, value_name = "DURATION", required_unless_present = "until")]
    duration: Option<Duration>,
    /// Until when (RFC 3339)
    #[arg(long, value_parser = parse_time, value_name = "TIME", conflicts_with = "duration")]
    until: Option<Timestamp>,
    /// From when on (RFC 3339) [default: now]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    from: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub(super) struct UnfreezeArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    /// The environment [default: that of `--env`]
    environment: Option<String>,
    /// End the freezes that have not begun, too
    #[arg(long)]
    all: bool,
}

pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).ok_or_else(|| "expected a time such as 2026-12-24T18:00:00Z".into())
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let seconds = text.char_indices().last().and_then(|(at, unit)| {
        let seconds: u64 = match unit {
            's' => 1,
            'm' => 60,
            'h' => 60 * 60,
            'd' => 24 * 60 * 60,
            _ => return None,
        };
        text[..at].parse::<u64>().ok()?.checked_mul(seconds).filter(|seconds| *seconds > 0)
    });
    seconds.map(Duration::from_secs).ok_or_else(|| "expected a duration such as 90m, 1h or 2d".into())
}

/// Runs `env`.
pub(super) fn run(command: EnvCommand) -> Result<(), Failure> {
    match command {
        EnvCommand::List { node } => run_with_client(&node, async |client| {
            let data = client.send(Request::get(ENVIRONMENTS)).await?.data()?;
            show(&node.format.or_table(), data)
        }),
        EnvCommand::Get { node, name } => run_with_client(&node, async |client| {
            let data = client.send(Request::get(path_of(&name))).await?.data()?;
            show(&node.format.or_json(), data)
        }),
        EnvCommand::Set(args) => set(&args),
        EnvCommand::Diff(args) => env_diff::run(&args),
        EnvCommand::Rm { node, tries, way, name, yes } => {
            with_cluster(&node, &way.tries(&tries), async |client| {
                let operation = json!({ "op": "delete_environment", "environment": name });
                if way.propose(&client, vec![operation], false, &node.format.or_table()).await? {
                    return Ok(());
                }
                if !yes {
                    let found = client.send(Request::get(path_of(&name))).await?.data()?;
                    let freezes = match found["freeze"].as_array().map_or(0, Vec::len) {
                        0 => "no freezes".to_owned(),
                        1 => "1 freeze, which ends".to_owned(),
                        count => format!("{count} freezes, which end"),
                    };
                    confirm(&format!("environment `{name}` will be deleted: it has {freezes}"), false)?;
                }
                interrupt::now(Doing::Writing);
                let data = client.send(way.on(Request::new(Method::DELETE, path_of(&name)))).await?.data()?;
                print_done(
                    &node.format.or_table(),
                    &data,
                    COLUMNS.name,
                    format!("environment {name} deleted"),
                )
            })
        }
    }
}

fn set(args: &EnvSetArgs) -> Result<(), Failure> {
    let rules = args.file.as_deref().map(one_value).transpose()?.map(sendable);
    let with_rules = |freezes: &[Value]| {
        let mut wanted = rules.clone().unwrap_or_else(|| json!({ "freeze": freezes }));
        if let Some(direct) = &args.direct {
            wanted["direct"] = direct.as_str().into();
        }
        if let Some(approvals) = args.approvals {
            wanted["approvals"] = approvals.into();
        }
        wanted
    };
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        match change(&client, &args.name, &args.way, &format, |freezes, _| Some(with_rules(freezes))).await? {
            Changed::Stored(data) => {
                print_done(&format, &data, COLUMNS.name, format!("environment {} stored", args.name))
            }
            Changed::Proposed | Changed::Nothing => Ok(()),
        }
    })
}

/// What a request can have of an environment that a response has shown.
fn sendable(mut shown: Value) -> Value {
    if let Some(rules) = shown.as_object_mut() {
        rules.retain(|name, _| matches!(name.as_str(), "direct" | "approvals" | "freeze"));
    }
    for freeze in shown["freeze"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        freeze.remove("by");
        freeze.remove("active");
    }
    shown
}

/// What became of a change of an environment.
#[derive(Debug)]
enum Changed {
    /// It stays as it is.
    Nothing,
    /// A change request was created, and printed.
    Proposed,
    /// The environment as it is now.
    Stored(Value),
}

/// The rules that a new environment begins with: its definitions leave `default`, and the log compares the rules of both.
/// None where the key may not see them.
async fn rules_of_default(client: &Client, name: &str) -> Result<Value, Failure> {
    if name == DEFAULT_ENVIRONMENT {
        return Ok(Value::Null);
    }
    match client.send(Request::get(path_of(DEFAULT_ENVIRONMENT))).await {
        Ok(found) => Ok(found.data()?),
        Err(error) if error.is_not_found() => Ok(Value::Null),
        Err(error) => Err(error.into()),
    }
}

/// Replaces an environment by what `rules` makes of the freezes that it has, and of whether it exists, or proposes that;
/// `None` leaves it as it is. One that does not exist has the rules of `default`.
/// Another client's change in between is read again.
async fn change(
    client: &Client,
    name: &str,
    way: &WayArgs,
    format: &Format,
    rules: impl Fn(&[Value], bool) -> Option<Value>,
) -> Result<Changed, Failure> {
    let mut reads = 0;
    loop {
        reads += 1;
        let found = match client.send(Request::get(path_of(name))).await {
            Ok(found) => Some(found),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let shown = match &found {
            Some(found) => found.data()?,
            None => rules_of_default(client, name).await?,
        };
        let freezes = shown["freeze"].as_array().map_or(&[][..], Vec::as_slice);
        let Some(mut rules) = rules(freezes, found.is_some()) else {
            return Ok(Changed::Nothing);
        };
        if found.is_none() {
            for name in ["direct", "approvals"] {
                if rules[name].is_null() && !shown[name].is_null() {
                    rules[name] = shown[name].clone();
                }
            }
        }
        let (rules, revision) = (sendable(rules), found.and_then(|found| found.revision()));
        let done = if way.title().is_some() {
            let operation = operation(name, rules, revision);
            way.propose(client, vec![operation], false, format).await.map(|_| Changed::Proposed)
        } else {
            interrupt::now(Doing::Writing);
            put(client, way.on(Request::new(Method::PUT, path_of(name)).json(&rules)), revision).await
        };
        match done {
            // It was replaced, created or deleted since.
            Err(Failure::Client(Error::Refused(refusal)))
                if reads < READS_MAX
                    && matches!(refusal.status, StatusCode::PRECONDITION_FAILED | StatusCode::NOT_FOUND) => {}
            done => return done,
        }
    }
}

/// Stores an environment if it still has this revision, or does not exist.
async fn put(client: &Client, request: Request, revision: Option<u64>) -> Result<Changed, Failure> {
    let request = match revision {
        Some(revision) => request.if_match(revision),
        None => request.if_absent(),
    };
    Ok(Changed::Stored(client.send(request).await?.data()?))
}

/// The same as an operation of a change request.
fn operation(name: &str, mut rules: Value, revision: Option<u64>) -> Value {
    rules["op"] = "put_environment".into();
    rules["environment"] = name.into();
    match revision {
        Some(revision) => rules["if_match"] = revision.to_string().into(),
        None => rules["if_none_match"] = "*".into(),
    }
    rules
}

/// The time of the node that responds: a freeze is decided by the clocks of the nodes, and not by that of this machine.
async fn time_of_node(client: &Client) -> Result<Timestamp, Failure> {
    let answer = client.send(Request::get(ENVIRONMENTS)).await?;
    Ok(answer.header("date").and_then(parse_date).unwrap_or_else(concord_service::now))
}

/// The time of a header, such as `Date`.
pub(super) fn parse_date(text: &str) -> Option<Timestamp> {
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(date.timestamp().as_microsecond()).ok().map(Timestamp)
}

/// Runs `freeze`.
pub(super) fn freeze(args: &FreezeArgs) -> Result<(), Failure> {
    let name = args.environment.as_deref().or(args.node.environment()).unwrap_or(DEFAULT_ENVIRONMENT);
    let Some(reason) = args.tries.reason() else {
        return Err(Failure::Usage("pass --reason TEXT: people whose changes it rejects read it".into()));
    };
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let until = match (args.until, args.duration) {
            (Some(until), _) => until,
            (None, duration) => {
                let begin = match args.from {
                    Some(from) => from,
                    None => time_of_node(&client).await?,
                };
                let us = duration.unwrap_or_default().as_micros();
                Timestamp(begin.0.saturating_add(u64::try_from(us).unwrap_or(u64::MAX)))
            }
        };
        let mut new = json!({ "until": until.to_string(), "reason": reason });
        if let Some(from) = args.from {
            new["from"] = from.to_string().into();
        }
        let added = |freezes: &[Value], _: bool| {
            let all: Vec<Value> = freezes.iter().cloned().chain([new.clone()]).collect();
            Some(json!({ "freeze": all }))
        };
        let Changed::Stored(stored) = change(&client, name, &args.way, &format, added).await? else {
            return Ok(());
        };
        let text = match (args.from, stored["frozen_until"].as_str()) {
            (None, Some(until)) => format!("environment {name} is frozen until {until}"),
            (from, _) => {
                let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
                format!("environment {name} will be frozen{from} until {until}")
            }
        };
        print_done(&format, &stored, COLUMNS.name, text)
    })
}

/// Runs `unfreeze`.
pub(super) fn unfreeze(args: &UnfreezeArgs) -> Result<(), Failure> {
    let Some(name) = args.environment.as_deref().or(args.node.environment()) else {
        return Err(Failure::Usage("name the environment: `concord unfreeze ENVIRONMENT`".into()));
    };
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let ends = |freeze: &Value| args.all || freeze["active"] == true;
        let without = |freezes: &[Value], exists: bool| {
            let left: Vec<&Value> = freezes.iter().filter(|freeze| !ends(freeze)).collect();
            (exists && left.len() < freezes.len()).then(|| json!({ "freeze": left }))
        };
        match change(&client, name, &args.way, &format, without).await? {
            Changed::Stored(stored) => {
                let left = stored["freeze"].as_array().map_or(0, Vec::len);
                let planned = if left == 0 { String::new() } else { format!("; planned freezes: {left}") };
                let text = format!("environment {name} is not frozen any more{planned}");
                print_done(&format, &stored, COLUMNS.name, text)
            }
            Changed::Nothing => {
                let data = json!({ "environment": name, "frozen_until": null });
                print_done(&format, &data, COLUMNS.name, format!("environment {name} was not frozen"))
            }
            Changed::Proposed => Ok(()),
        }
    })
}

fn show(format: &Format, mut data: Value) -> Result<(), Failure> {
    if format.is_table() {
        match data.get_mut("results").and_then(Value::as_array_mut) {
            Some(all) => all.iter_mut().for_each(write_rules),
            None => write_rules(&mut data),
        }
    }
    print_columns(format, &data, &COLUMNS)
}

/// Formats the rules of an environment for a table.
fn write_rules(environment: &mut Value) {
    let is_frozen = !environment["frozen_until"].is_null();
    let direct = match (environment["direct"] == "refuse", is_frozen) {
        (true, _) => "refused: change requests, or --bypass",
        (false, true) => "refused by the freeze",
        (false, false) => "allowed",
    };
    environment["direct_shown"] = direct.into();
    let freezes = environment["freeze"].as_array().into_iter().flatten().map(|freeze| {
        format!("{} to {}: {}", cell(&freeze["from"]), cell(&freeze["until"]), cell(&freeze["reason"]))
    });
    environment["freeze"] = freezes.collect::<Vec<_>>().join("; ").into();
}

fn path_of(name: &str) -> String {
    format!("{ENVIRONMENTS}{}", segment(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        let seconds = |text| parse_duration(text).map(|duration| duration.as_secs());
        assert_eq!(seconds("30s"), Ok(30));
        assert_eq!((seconds("90m"), seconds("1h"), seconds("2d")), (Ok(5400), Ok(3600), Ok(172_800)));
        for wrong in ["", "h", "1", "1.5h", "-1h", "0h", "1w", "1 h", "1hä", "99999999999999999999d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_date_of_a_response_is_a_time() {
        let expected = Timestamp::parse("2026-11-28T07:42:00Z");
        assert_eq!(parse_date("Sat, 28 Nov 2026 07:42:00 GMT"), expected);
        assert_eq!((expected.is_some(), parse_date("soon")), (true, None));
    }

    #[test]
    fn a_proposal_rests_on_what_was_read() {
        let rules = json!({"freeze": []});
        let read = operation("prod", rules.clone(), Some(7));
        assert_eq!(
            read,
            json!({"freeze": [], "op": "put_environment", "environment": "prod", "if_match": "7"})
        );
        assert_eq!(operation("prod", rules, None)["if_none_match"], "*");
    }

    #[test]
    fn what_was_shown_can_be_sent() {
        let freeze = json!({"from": "a", "until": "b", "reason": "r", "by": "root", "active": true});
        let shown = json!({
            "environment": "prod", "direct": "allow", "approvals": 0, "approvers": null, "freeze": [freeze], "frozen_until": "b",
            "created_at": "c", "modified_at": "m",
        });
        let rest = json!({"from": "a", "until": "b", "reason": "r"});
        assert_eq!(sendable(shown), json!({"direct": "allow", "approvals": 0, "freeze": [rest]}));
    }
}
