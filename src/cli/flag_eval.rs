//! `concord flag eval`: evaluates flags as a program would, by OFREP.
//!
//! **Invariant:** the node evaluates. So the result is the one that every program with this context gets.

use clap::Args;
use concord_client::{Client, Error, Item, Request, Retry, segment};
use http::Method;
use serde_json::{Map, Value, json};

use super::{
    connection::{Failure, with_cluster},
    flag::FlagDefinition,
    output::{Format, Table, cell, print_value},
};

/// The member of a context that says for whom a flag is evaluated.
const TARGETING_KEY: &str = "targetingKey";
/// What is shown in place of a value where a flag gives none.
const NO_VALUE: &str = "(the program's default)";

const EXAMPLE: &str =
    "Example: concord flag eval new-checkout --env prod --for ada --attribute country=de --attribute age:=42";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    of: FlagDefinition,
    /// The key of the flag
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    key: Option<String>,
    /// Evaluate all flags of the definition
    #[arg(long)]
    all: bool,
    /// For whom the flag is evaluated: a user, a tenant or a device (`targetingKey`)
    #[arg(long = "for", value_name = "TARGETING_KEY")]
    targeting_key: Option<String>,
    /// An attribute that rules read: `country=de` is a string, `age:=42` has a value in JSON; repeatable
    #[arg(long = "attribute", value_name = "NAME=TEXT")]
    attributes: Vec<String>,
}

/// Runs the command.
pub(super) fn run(args: &EvalArgs) -> Result<(), Failure> {
    let FlagDefinition { node, tries, definition } = &args.of;
    let context = context(args.targeting_key.as_deref(), &args.attributes)?;
    let whole = format!("{}{definition}", node.definition_prefix()?);
    let path = format!("/api/v1/flags/{}/ofrep/v1/evaluate/flags", segment(&whole));
    let format = node.format.or_table();
    with_cluster(node, tries, async |client| match &args.key {
        Some(key) => {
            let path = format!("{path}/{}", segment(key));
            let flag = evaluated(&client, path, &context, &format!("flag {definition}/{key}")).await?;
            print_value(&format, &flag, &table_of([&flag]))
        }
        None => {
            let mut body = evaluated(&client, path, &context, &format!("flags of {definition}")).await?;
            // The rest of the response is for providers, such as a ticket for their stream.
            let flags = body["flags"].take();
            let table = table_of(flags.as_array().into_iter().flatten());
            print_all(&format, flags, &table)
        }
    })
}

fn print_all(format: &Format, flags: Value, table: &Table) -> Result<(), Failure> {
    let total = flags.as_array().map_or(0, Vec::len);
    print_value(format, &json!({ "results": flags, "meta": { "total": total } }), table)
}

/// The context that a program would send.
fn context(targeting_key: Option<&str>, attributes: &[String]) -> Result<Value, Failure> {
    let mut context = Map::new();
    if let Some(key) = targeting_key {
        context.insert(TARGETING_KEY.into(), key.into());
    }
    for attribute in attributes {
        let (name, value) = attribute_of(attribute).map_err(Failure::Usage)?;
        context.insert(name.to_owned(), value);
    }
    Ok(json!({ "context": context }))
}

/// An attribute: its name, and its value as text or, after `:=`, as JSON.
fn attribute_of(text: &str) -> Result<(&str, Value), String> {
    let expected = || format!("invalid attribute `{text}`: expected NAME=TEXT or NAME:=JSON");
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    let (name, value) = match name.strip_suffix(':') {
        Some(name) => {
            let value = serde_json::from_str(value);
            (name, value.map_err(|error| format!("attribute `{name}` is no JSON: {error}"))?)
        }
        None => (name, value.into()),
    };
    match name {
        "" => Err(expected()),
        TARGETING_KEY => Err(format!("`{TARGETING_KEY}` is not given as an attribute: pass it with --for")),
        name => Ok((name, value)),
    }
}

/// Sends a request for an evaluation. A rejection has the form of OFREP.
async fn evaluated(client: &Client, path: String, context: &Value, what: &str) -> Result<Value, Failure> {
    // An evaluation changes nothing, so it needs no idempotency key.
    let request = Request::new(Method::POST, path).json(context).retry(Retry::OtherNode);
    match client.send(request).await {
        Ok(answer) => Ok(answer.json()?),
        Err(Error::Refused(mut refusal)) if refusal.body.get("errorCode").is_some() => {
            let details = cell(&refusal.body["errorDetails"]);
            let code = cell(&refusal.body["errorCode"]).to_lowercase();
            refusal.items = vec![Item { code, msg: format!("{what}: {details}"), loc: Vec::new() }];
            Err(Error::Refused(refusal).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn table_of<'a>(flags: impl IntoIterator<Item = &'a Value>) -> Table {
    let mut table = Table::new("key", &["FLAG", "VALUE", "VARIANT", "REASON"], &["DETAILS", "METADATA"]);
    for flag in flags {
        let value = flag.get("value").map_or_else(|| NO_VALUE.to_owned(), Value::to_string);
        // A flag that can't be evaluated has a code in place of a reason.
        let reason = flag.get("reason").unwrap_or(&flag["errorCode"]);
        let cells =
            [&flag["key"], &flag["variant"], reason, &flag["errorDetails"], &flag["metadata"]].map(cell);
        let [key, variant, reason, details, metadata] = cells;
        table.row(&[key, value, variant, reason, details, metadata]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_texts_and_json() {
        let attributes = ["country=de", "age:=42", "version=1.0", "plan:=[\"a\"]", "note=a:=b"];
        let attributes = attributes.map(str::to_owned);
        let expected = json!({ "context": {
            "targetingKey": "ada", "country": "de", "age": 42, "version": "1.0", "plan": ["a"], "note": "a:=b" } });
        assert_eq!(context(Some("ada"), &attributes).unwrap(), expected);
        assert_eq!(context(None, &[]).unwrap(), json!({ "context": {} }));
        for wrong in ["country", "=de", ":=1", "age:=x", "targetingKey=ada"] {
            assert!(context(None, &[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
