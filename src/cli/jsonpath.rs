//! The paths of `-o jsonpath=`: names, numbers of elements and `*`, as in `{.results[*].config_key}`.
//!
//! **Invariant:** an unsupported path is rejected, and never read as another one.

use std::str::FromStr;

use serde_json::Value;

/// A path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Member(String),
    Element(usize),
    All,
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid path `{text}`: expected names, [N], ['name'] and [*], as in {{.data.a[0]}}");
        let braced =
            text.strip_prefix('{').map(|rest| rest.strip_suffix('}').ok_or_else(wrong)).transpose()?;
        let path = braced.unwrap_or(text);
        let mut rest = path.strip_prefix('$').unwrap_or(path);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let quoted = inside.strip_prefix('\'');
                let (step, after) = match quoted {
                    Some(name) => {
                        let (name, after) = name.split_once("']").ok_or_else(wrong)?;
                        (PathStep::Member(name.into()), after)
                    }
                    None => {
                        let (number, after) = inside.split_once(']').ok_or_else(wrong)?;
                        let step = if number == "*" {
                            PathStep::All
                        } else {
                            let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
                            PathStep::Element(number.parse().ok().filter(|_| is_plain).ok_or_else(wrong)?)
                        };
                        (step, after)
                    }
                };
                steps.push(step);
                rest = after;
                continue;
            }
            let name = rest.strip_prefix('.').ok_or_else(wrong)?;
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let (name, after) = name.split_at(end);
            // In other tools `a\.b` is one name. Here that is ['a.b'], and must not be read as two names.
            if name.contains(['{', '}', ']', '\'', '\\'])
                || (name.is_empty() && !(after.is_empty() && steps.is_empty()))
            {
                return Err(wrong());
            }
            match name {
                "" => {}
                "*" => steps.push(PathStep::All),
                name => steps.push(PathStep::Member(name.into())),
            }
            rest = after;
        }
        Ok(Self(steps))
    }
}

impl JsonPath {
    /// The values at the path, in their order; none if the path does not exist.
    pub(super) fn find<'a>(&self, data: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![data];
        for step in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| -> Vec<&Value> {
                    match (step, value) {
                        (PathStep::Member(name), Value::Object(object)) => {
                            object.get(name).into_iter().collect()
                        }
                        (PathStep::Element(place), Value::Array(array)) => {
                            array.get(*place).into_iter().collect()
                        }
                        (PathStep::All, Value::Array(array)) => array.iter().collect(),
                        (PathStep::All, Value::Object(object)) => object.values().collect(),
                        _ => Vec::new(),
                    }
                })
                .collect();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_finds_what_it_names() {
        let data = json!({"results": [{"config_key": "a", "data": {"x.y": 7.5}}, {"config_key": "b"}]});
        let found = |path: &str| {
            let path: JsonPath = path.parse().unwrap();
            path.find(&data).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found("{.results[*].config_key}"), r#""a" "b""#);
        assert_eq!(found("$.results[1].config_key"), r#""b""#);
        assert_eq!(found(".results[0].data['x.y']"), data["results"][0]["data"]["x.y"].to_string());
        assert_eq!(found("{.results[7].config_key}"), "");
        assert_eq!(found("{.}"), data.to_string());
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for wrong in ["a", "{.a", "[x]", "..a", ".a..b", "['a]", ".a]", "[-1]", "[+1]", r".a\.b"] {
            assert!(wrong.parse::<JsonPath>().is_err(), "{wrong}");
        }
    }
}
