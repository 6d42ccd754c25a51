//! `concord explain KEY[.FIELD]`: describes a field from its schema.

use clap::Args;
use concord_client::{Client, Request};
use concord_model::schema::secret::MARK;
use serde_json::{Value, json};

use super::{
    connection::{Failure, FreshnessArgs, NodeArgs, TryArgs, with_cluster},
    current::definition_path,
    output::{Format, Table, cell, line, print_value, printable},
};

/// Maximum number of references to follow: a schema may refer to itself.
const REFERENCES_MAX: usize = 32;
/// Maximum number of variants of a schema that are looked at: each may refer to a schema with as many again.
const VARIANTS_MAX: usize = 1000;
/// Keywords of schemas, and their labels in the output.
const LIMITS: [(&str, &str); 14] = [
    ("const", "is"),
    ("enum", "one of"),
    ("default", "default"),
    ("format", "format"),
    ("pattern", "pattern"),
    ("minimum", "at least"),
    ("exclusiveMinimum", "more than"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "less than"),
    ("minLength", "shortest"),
    ("maxLength", "longest"),
    ("minItems", "fewest elements"),
    ("maxItems", "most elements"),
    (MARK, "secret"),
];

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// A definition, or a field of its configs, as in `limits.quota.requests`
    #[arg(value_name = "KEY[.FIELD]")]
    field: String,
    #[command(flatten)]
    freshness: FreshnessArgs,
}

/// Runs the command.
pub(super) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let (key, path, schema) = find(&client, args).await?;
        let missing = || {
            let fields = fields(&schema);
            let hint = if fields.is_empty() {
                String::new()
            } else {
                format!("\nhint: the fields are {}", fields.join(", "))
            };
            Failure::Invalid(format!("the schema of {key} has no field `{}`{hint}", path.join(".")))
        };
        let place = field(&schema, &path).ok_or_else(missing)?;
        let format = args.node.format.or_table();
        if !format.is_table() {
            return print_value(&format, place, &Table::new("title", &[], &[]));
        }
        show(&args.field, &schema, place)
    })
}

/// Splits a name into the key of a definition and a path, and reads the schema. Keys may contain dots: the longest key
/// that exists wins.
async fn find(client: &Client, args: &ExplainArgs) -> Result<(String, Vec<String>, Value), Failure> {
    let parts: Vec<&str> = args.field.split('.').collect();
    let mut not_found = None;
    for count in (1..=parts.len()).rev() {
        let key = parts[..count].join(".");
        let request = Request::get(format!("{}/schema", definition_path(&key)));
        match client.send(args.freshness.on(request)).await {
            Ok(answer) => {
                let schema = answer.data()?["json_schema"].take();
                let path = parts[count..].iter().map(|part| (*part).to_owned()).collect();
                return Ok((key, path, schema));
            }
            Err(error) if error.is_not_found() => not_found = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(not_found.map_or_else(|| Failure::Usage("no definition key".into()), Failure::from))
}

/// A schema, or the one that it refers to.
fn resolved<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..REFERENCES_MAX {
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
        match target.and_then(|pointer| root.pointer(pointer)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// A schema with those of its `allOf`, `anyOf` and `oneOf`.
fn variants<'a>(root: &'a Value, schema: &'a Value, left: usize) -> Vec<&'a Value> {
    let mut all = Vec::new();
    add_variants(root, schema, left, &mut all);
    all
}

fn add_variants<'a>(root: &'a Value, schema: &'a Value, left: usize, all: &mut Vec<&'a Value>) {
    if all.len() >= VARIANTS_MAX {
        return;
    }
    let schema = resolved(root, schema);
    all.push(schema);
    if left == 0 {
        return;
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for variant in schema.get(name).and_then(Value::as_array).into_iter().flatten() {
            add_variants(root, variant, left - 1, all);
        }
    }
}

/// The schema of a path. A path skips the elements of lists.
fn field<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    const UNIONS: usize = 4;
    let mut place = root;
    for name in path {
        let found = variants(root, place, UNIONS).into_iter().find_map(|schema| {
            let elements = schema.get("items").map(|items| variants(root, items, UNIONS)).unwrap_or_default();
            [vec![schema], elements]
                .concat()
                .into_iter()
                .find_map(|schema| schema.get("properties").and_then(|properties| properties.get(name)))
        });
        place = found?;
    }
    Some(place)
}

/// The type that a schema names, or the types of its variants.
fn type_of(root: &Value, schema: &Value) -> String {
    let mut names: Vec<String> = Vec::new();
    for variant in variants(root, schema, 2) {
        match variant.get("type") {
            Some(Value::String(name)) => names.push(name.clone()),
            Some(Value::Array(types)) => names.extend(types.iter().map(cell)),
            _ => {}
        }
    }
    let mut unique: Vec<String> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    if unique.is_empty() { "any".into() } else { unique.join(" or ") }
}

fn show(name: &str, root: &Value, place: &Value) -> Result<(), Failure> {
    let schema = resolved(root, place);
    let either = |name: &str| place.get(name).or_else(|| schema.get(name));
    line(format_args!("{name}  <{}>", type_of(root, place)))?;
    for text in ["title", "description"] {
        if let Some(Value::String(text)) = either(text) {
            line(format_args!("  {}", printable(text)))?;
        }
    }
    for (member, label) in LIMITS {
        if let Some(value) = either(member) {
            line(format_args!("  {label}: {}", printable(&cell(value))))?;
        }
    }
    let mut table = Table::new("field", &["FIELD", "TYPE", "REQUIRED", "DESCRIPTION"], &[]);
    let members = members(root, place);
    for member in &members {
        let is_required = if member.is_required { "yes" } else { "" };
        let description = member.description.map(cell).unwrap_or_default();
        table.row(&[member.name, &member.types, is_required, &description]);
    }
    if !members.is_empty() {
        line("")?;
        print_value(&Format::Table, &Value::Null, &table)?;
    }
    Ok(())
}

/// A member of the objects that a schema describes.
struct SchemaMember<'a> {
    name: &'a str,
    types: String,
    is_required: bool,
    description: Option<&'a Value>,
}

fn members<'a>(root: &'a Value, place: &'a Value) -> Vec<SchemaMember<'a>> {
    let mut members = Vec::new();
    for variant in variants(root, place, 4) {
        let required: Vec<&str> = variant
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for (name, schema) in variant.get("properties").and_then(Value::as_object).into_iter().flatten() {
            members.push(SchemaMember {
                name,
                types: type_of(root, schema),
                is_required: required.contains(&name.as_str()),
                description: schema.get("description").or_else(|| resolved(root, schema).get("description")),
            });
        }
    }
    members
}

/// What the schema says of a path, as data: `type`, the texts and limits that it has, the `fields` below it, and the
/// `schema` of the path itself. `None` if the schema has no such path.
pub(super) fn described(root: &Value, path: &[String]) -> Option<Value> {
    let place = field(root, path)?;
    let schema = resolved(root, place);
    let mut found = json!({ "type": type_of(root, place) });
    for name in ["title", "description"].into_iter().chain(LIMITS.map(|(name, _)| name)) {
        if let Some(value) = place.get(name).or_else(|| schema.get(name)) {
            found[name] = value.clone();
        }
    }
    let fields = members(root, place).into_iter().map(|member| {
        json!({
            "name": member.name, "type": member.types, "required": member.is_required,
            "description": member.description,
        })
    });
    found["fields"] = fields.collect();
    found["schema"] = place.clone();
    Some(found)
}

/// The names of the fields of a schema's values.
pub(super) fn fields(root: &Value) -> Vec<&str> {
    let properties = variants(root, root, 4).into_iter().filter_map(|one| one.get("properties")?.as_object());
    properties.flat_map(|properties| properties.keys().map(String::as_str)).collect()
}

/// One line for each field of a schema.
pub(super) fn hints(root: &Value) -> Vec<String> {
    let mut hints = Vec::new();
    for variant in variants(root, root, 4) {
        let required: Vec<&Value> =
            variant.get("required").and_then(Value::as_array).into_iter().flatten().collect();
        for (name, place) in variant.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let schema = resolved(root, place);
            let either = |member: &str| place.get(member).or_else(|| schema.get(member));
            let mut hint = format!("{name}: {}", type_of(root, place));
            if required.iter().any(|required| *required == name) {
                hint.push_str(", required");
            }
            for (member, label) in LIMITS {
                if let Some(value) = either(member) {
                    hint.push_str(&format!(", {label} {}", cell(value)));
                }
            }
            if let Some(Value::String(text)) = either("description") {
                hint.push_str(&format!(": {}", text.split_whitespace().collect::<Vec<_>>().join(" ")));
            }
            hints.push(printable(&hint));
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_through_references_unions_and_lists() {
        let schema = json!({
            "$defs": {"Quota": {"type": "object", "properties": {"n": {"type": "integer"}}}, "Me": {"$ref": "#/$defs/Me"}},
            "properties": {
                "quota": {"anyOf": [{"$ref": "#/$defs/Quota"}, {"type": "null"}]},
                "list": {"type": "array", "items": {"$ref": "#/$defs/Quota"}},
                "me": {"$ref": "#/$defs/Me"},
            },
        });
        let at = |path: &str| field(&schema, &path.split('.').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(at("quota.n"), Some(&json!({"type": "integer"})));
        assert_eq!(at("list.n"), Some(&json!({"type": "integer"})));
        assert_eq!(at("quota.x"), None);
        assert_eq!(at("me.x"), None);
        assert_eq!(type_of(&schema, at("quota").unwrap()), "object or null");
    }
}
