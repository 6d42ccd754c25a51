//! Models as users of serde and schemars write them, their schemas, and serde's verdict on documents.
//!
//! ```text
//! schemars-models schemas                   {name: schema} on standard output: scripts/schemas/schemars.json
//! schemars-models verdicts < documents      a line [accepted, [message]] for each line [name, text]
//! ```
//!
//! The messages are without the place in the text and the value, so that equal ones are counted together.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, Write},
};

use schemars::{JsonSchema, schema_for};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Server {
    /// Where it listens.
    host: String,
    port: u16,
    workers: Option<u8>,
    #[serde(default)]
    tls: bool,
    ratio: f64,
    offset: i32,
    tags: Vec<String>,
    labels: BTreeMap<String, String>,
    letter: char,
    pair: (i64, String),
    fixed: [bool; 2],
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code)]
struct Strict {
    max_size: u32,
    #[schemars(length(min = 1, max = 8), regex(pattern = r"^[a-z]+$"))]
    short_name: String,
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default)]
    share: Option<f32>,
    #[serde(default)]
    names: BTreeSet<String>,
}

/// Tagged from outside, as serde does by default.
#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
enum External {
    Nothing,
    Number(i64),
    Pair(String, bool),
    Named { path: String, size: Option<u64> },
}

#[derive(Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code)]
enum Internal {
    Disk { path: String },
    Bucket { bucket: String, region: Option<Region> },
    Memory,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Region {
    /// The first one.
    Eu,
    Us,
}

#[derive(Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "value")]
#[allow(dead_code)]
enum Adjacent {
    Text(String),
    Number(f64),
    Empty,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)]
enum Untagged {
    Id(u64),
    Name(String),
    Both { id: u64, name: String },
    None,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Enums {
    external: External,
    internal: Internal,
    adjacent: Adjacent,
    untagged: Untagged,
    all: Vec<External>,
    region: Option<Region>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Flattened {
    name: String,
    #[serde(flatten)]
    base: Base,
    #[serde(flatten)]
    store: Internal,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Base {
    version: u32,
    note: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Node {
    value: i64,
    left: Option<Box<Node>>,
    right: Option<Box<Node>>,
    children: Vec<Node>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case")]
#[allow(dead_code)]
enum Rule {
    Is { field: String, value: Value },
    And { args: Vec<Rule> },
    Or { args: Vec<Rule> },
    Not { arg: Box<Rule> },
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Rules {
    name: String,
    rule: Rule,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Texts {
    id: uuid::Uuid,
    home: Option<url::Url>,
    at: chrono::DateTime<chrono::Utc>,
    day: Option<chrono::NaiveDate>,
    any: Value,
    maps: BTreeMap<String, Vec<Option<u8>>>,
}

type Verdict = fn(&str) -> Result<(), serde_json::Error>;

fn of<T: for<'a> Deserialize<'a>>(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<T>(text).map(drop)
}

fn models() -> BTreeMap<&'static str, (schemars::Schema, Verdict)> {
    BTreeMap::from([
        ("server", (schema_for!(Server), of::<Server> as Verdict)),
        ("strict", (schema_for!(Strict), of::<Strict>)),
        ("enums", (schema_for!(Enums), of::<Enums>)),
        ("internal", (schema_for!(Internal), of::<Internal>)),
        ("flattened", (schema_for!(Flattened), of::<Flattened>)),
        ("node", (schema_for!(Node), of::<Node>)),
        ("rules", (schema_for!(Rules), of::<Rules>)),
        ("texts", (schema_for!(Texts), of::<Texts>)),
    ])
}

/// A message without its place in the text and without the value.
fn named(message: &str) -> String {
    let what = message.split(" at line").next().unwrap_or(message);
    what.split('`')
        .enumerate()
        .filter(|(place, _)| place % 2 == 0)
        .map(|(_, part)| part.trim())
        .collect::<Vec<_>>()
        .join(" … ")
}

fn main() {
    let models = models();
    if std::env::args().nth(1).as_deref() == Some("schemas") {
        let schemas: BTreeMap<_, _> = models.iter().map(|(name, (schema, _))| (name, schema)).collect();
        println!("{}", serde_json::to_string_pretty(&schemas).expect("schemas are JSON"));
        return;
    }
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let (name, text): (String, String) =
            serde_json::from_str(&line.expect("a line")).expect("a name and a text");
        let verdict = match models[name.as_str()].1(&text) {
            Ok(()) => json!([true, []]),
            Err(error) => json!([false, [named(&error.to_string())]]),
        };
        writeln!(out, "{verdict}").expect("somebody reads");
    }
}
