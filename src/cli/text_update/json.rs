//! JSON with comments: the syntax tree of its parser is changed.
//!
//! **Invariant:** the new text has all comments of the old one, except those of what was removed or replaced: in it, right
//! above it, and behind it in its line.

use std::collections::BTreeMap;

use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstObjectProp, CstRootNode};
use serde_json::{Map, Value};

use super::{Pair, pairs};
use crate::cli::document::{self, JSON_OPTIONS};

/// A text with another value.
pub(super) fn update(text: &str, wanted: &[Value]) -> Result<String, String> {
    let root = CstRootNode::parse(text, &JSON_OPTIONS).map_err(|error| error.to_string())?;
    let (Some(node), [wanted]) = (root.value(), wanted) else { return Err("it has no value".into()) };
    let mut gone = Vec::new();
    change_json(&node, wanted, &mut gone);
    let new = root.to_string();
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, comment) in comments(&new).into_iter().chain(gone.iter().flat_map(|part| comments(part))) {
        *kept.entry(comment).or_default() += 1;
    }
    for (at, comment) in comments(text) {
        match kept.get_mut(comment) {
            Some(count @ 1..) => *count -= 1,
            Some(0) | None => {
                let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
                return Err(format!("the comment in line {line} would be lost"));
            }
        }
    }
    Ok(new)
}

/// The comments of a text, and where they begin.
fn comments(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with('"') {
            let mut is_escaped = true;
            let end = rest.find(|character| {
                let is_end = character == '"' && !is_escaped;
                is_escaped = character == '\\' && !is_escaped;
                is_end
            });
            at += end.map_or(rest.len(), |end| end + 1);
            continue;
        } else {
            at += rest.find(['"', '/']).map_or(rest.len(), |next| next.max(1));
            continue;
        };
        found.extend(rest.get(..length).map(|comment| (at, comment.trim_end())));
        at += length;
    }
    found
}

/// Removes a member or an element with its comments. `gone` gets what was removed.
fn remove(node: CstNode, gone: &mut Vec<String>) {
    // The lines above with comments alone, up to an empty one.
    let (mut above, mut line, mut is_own_line) = (Vec::new(), Vec::new(), true);
    for before in node.previous_siblings() {
        if before.is_newline() {
            if !is_own_line && line.is_empty() {
                break;
            }
            if !is_own_line {
                above.append(&mut line);
            }
            (is_own_line, line) = (false, Vec::new());
        } else if before.is_comment() {
            line.push(before);
        } else if !before.is_whitespace() {
            break;
        }
        // What is before the node in its own line goes with it.
        if is_own_line {
            gone.extend(line.drain(..).map(|comment| comment.to_string()));
        }
    }
    for comment in above {
        gone.push(comment.to_string());
        let mut before: Vec<CstNode> =
            comment.previous_siblings().take_while(CstNode::is_whitespace).collect();
        let newline = comment.previous_siblings().nth(before.len()).filter(CstNode::is_newline);
        before.extend(newline);
        before.into_iter().chain([comment.clone()]).for_each(|node| {
            if node.parent().is_some() {
                node.remove();
            }
        });
    }
    let behind =
        node.next_siblings().take_while(|next| next.is_whitespace() || next.is_comment() || next.is_comma());
    gone.extend(behind.filter(CstNode::is_comment).map(|comment| comment.to_string()));
    gone.push(node.to_string());
    node.remove();
}

fn change_object(object: &CstObject, members: &Map<String, Value>, gone: &mut Vec<String>) {
    for property in object.properties() {
        let name = property.decoded_name().unwrap_or_default();
        match (members.get(&name), property.value()) {
            (Some(wanted), Some(node)) => change_json(&node, wanted, gone),
            _ => remove(property.into(), gone),
        }
    }
    // Members that stay come into the order that is wanted, with their comments.
    let places: BTreeMap<&str, usize> =
        members.keys().zip(0..).map(|(name, place)| (name.as_str(), place)).collect();
    let place =
        |property: &CstObjectProp| property.decoded_name().and_then(|name| places.get(&*name).copied());
    if !object.properties().iter().map(place).is_sorted() {
        object.sort_properties().by_key(place);
    }
    let mut stay = object.properties().into_iter().peekable();
    for (place, (name, value)) in members.iter().enumerate() {
        if stay.next_if(|property| property.decoded_name().as_ref() == Some(name)).is_none() {
            object.insert(place, name, input(value));
        }
    }
    stay.for_each(CstObjectProp::remove);
}

fn change_json(node: &CstNode, wanted: &Value, gone: &mut Vec<String>) {
    if value_of(node).is_some_and(|now| document::is_same(&now, wanted)) {
        return;
    }
    match (node.as_object(), node.as_array(), wanted) {
        (Some(object), _, Value::Object(members)) => change_object(&object, members, gone),
        (_, Some(array), Value::Array(wanted)) => {
            let elements = array.elements();
            let now: Vec<String> =
                elements.iter().map(|node| value_of(node).unwrap_or_default().to_string()).collect();
            let (mut at, mut offset) = (Vec::new(), 0_isize);
            for pair in pairs(&now, wanted) {
                match pair {
                    Pair::Both(old, new) => change_json(&elements[old], &wanted[new], gone),
                    Pair::Old(old) => at.push((old, None)),
                    Pair::New(before, new) => at.push((before, Some(new))),
                }
            }
            for (place, new) in at {
                let index = place.saturating_add_signed(offset);
                match new {
                    Some(new) => {
                        array.insert(index, input(&wanted[new]));
                        offset += 1;
                    }
                    None => {
                        remove(elements[place].clone(), gone);
                        offset -= 1;
                    }
                }
            }
        }
        _ => {
            gone.push(node.to_string());
            replace_json(node, wanted);
        }
    }
}

fn value_of(node: &CstNode) -> Option<Value> {
    document::read_json(&node.to_string()).ok()
}

fn replace_json(node: &CstNode, wanted: &Value) {
    let wanted = input(wanted);
    if let Some(object) = node.as_object() {
        object.replace_with(wanted);
    } else if let Some(array) = node.as_array() {
        array.replace_with(wanted);
    } else if let Some(literal) = node.as_string_lit() {
        literal.replace_with(wanted);
    } else if let Some(literal) = node.as_number_lit() {
        literal.replace_with(wanted);
    } else if let Some(literal) = node.as_boolean_lit() {
        literal.replace_with(wanted);
    } else if let Some(keyword) = node.as_null_keyword() {
        keyword.replace_with(wanted);
    }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(list) => CstInputValue::Array(list.iter().map(input).collect()),
        Value::Object(members) => {
            CstInputValue::Object(members.iter().map(|(name, value)| (name.clone(), input(value))).collect())
        }
    }
}
