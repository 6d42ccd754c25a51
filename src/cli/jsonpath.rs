//! The paths of `-o jsonpath=`: names, numbers of elements and `*`, as in `{.results[*].config_key}`.
//!
//! **Invariant:** an unsupported path is rejected, and never read as another one.

use std::str::FromStr;

use serde_json::Value;

use super::redacted::{Redactions, escaped};

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
        self.find_visible(data, &Redactions::default()).unwrap_or_default()
    }

    /// The same; fails with the place of a redacted value if the path selects it, leads through it, or selects data
    /// that contain it.
    pub(super) fn find_visible<'a>(
        &self,
        data: &'a Value,
        redactions: &Redactions,
    ) -> Result<Vec<&'a Value>, String> {
        let mut found = vec![(String::new(), data)];
        for step in &self.0 {
            found = found.into_iter().flat_map(|(pointer, value)| step.inside(&pointer, value)).collect();
            if let Some(place) = found.iter().find_map(|(pointer, _)| redactions.at(pointer)) {
                return Err(place.to_owned());
            }
        }
        match found.iter().find_map(|(pointer, _)| redactions.inside(pointer)) {
            Some(place) => Err(place.to_owned()),
            None => Ok(found.into_iter().map(|(_, value)| value).collect()),
        }
    }
}

impl PathStep {
    /// What the step leads to from the value at a pointer.
    fn inside<'a>(&self, pointer: &str, value: &'a Value) -> Vec<(String, &'a Value)> {
        let member = |(name, member): (&String, &'a Value)| (format!("{pointer}/{}", escaped(name)), member);
        let element = |(place, item): (usize, &'a Value)| (format!("{pointer}/{place}"), item);
        match (self, value) {
            (Self::Member(name), Value::Object(object)) => {
                object.get_key_value(name).map(member).into_iter().collect()
            }
            (Self::Element(place), Value::Array(array)) => {
                array.get(*place).map(|item| element((*place, item))).into_iter().collect()
            }
            (Self::All, Value::Array(array)) => array.iter().enumerate().map(element).collect(),
            (Self::All, Value::Object(object)) => object.iter().map(member).collect(),
            _ => Vec::new(),
        }
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
