//! Secret values that the access key may not see, in what a command prints.
//!
//! A node sends `null` in their place and names the places beside the data. `null` is a value of its own, so a command
//! that prints data names the places, too: as the member `redacted` of a record, as the API has it in watches and
//! batches, and in a note.
//!
//! **Invariant:** no output gives such a value as `null` or as nothing without naming its place. A `jsonpath` that selects
//! one fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use concord_client::Answer;
use serde_json::{Value, json};

use super::{
    connection::Failure,
    current::pointer_of,
    jsonpath::JsonPath,
    output::{Columns, Format, Table, line, note, print_value},
};

/// What is shown in place of such a value where people read.
const HIDDEN: &str = "(secret)";
/// The last place of a list that is longer than a header.
const MORE: &str = "...";
/// Places that a note names at most.
const NAMED_MAX: usize = 10;

/// The redacted values of what a command prints.
#[derive(Debug, Default)]
pub(super) struct Redactions {
    /// By the pointer of a value: its place in the data, as the node names it.
    places: BTreeMap<String, String>,
    /// The pointers of the data that contain them.
    data: BTreeSet<String>,
    /// A node has named fewer places than there are.
    is_partial: bool,
}

impl Redactions {
    /// Those of a response with one record.
    pub(super) fn of(record: &mut Value, answer: &Answer) -> Self {
        let mut redactions = Self::default();
        redactions.record("", record, &answer.redacted_places());
        redactions
    }

    /// Adds those of the record at a pointer: the places that exist in its `data`. The record gets their list.
    pub(super) fn record(&mut self, pointer: &str, record: &mut Value, places: &[String]) {
        let found = self.data(&format!("{pointer}/data"), &record["data"], places);
        if let (false, Value::Object(members)) = (found.is_empty(), record) {
            members.insert("redacted".into(), json!(found));
        }
    }

    /// Adds those of data at a pointer, and returns their places.
    pub(super) fn data(&mut self, pointer: &str, data: &Value, places: &[String]) -> Vec<String> {
        let mut found = Vec::new();
        for place in places {
            let inside = pointer_of(place).filter(|inside| data.pointer(inside).is_some_and(Value::is_null));
            if let Some(inside) = inside {
                self.places.insert(format!("{pointer}{inside}"), place.clone());
                found.push(place.clone());
            }
        }
        // Each `null` may be one of those that are not named.
        if places.iter().any(|place| place == MORE) {
            self.is_partial = true;
            let before = self.places.len();
            self.every_null(pointer.to_owned(), data);
            if self.places.len() > before {
                found.push(MORE.into());
            }
        }
        if !found.is_empty() {
            self.data.insert(pointer.to_owned());
        }
        found
    }

    fn every_null(&mut self, pointer: String, value: &Value) {
        match value {
            Value::Null => {
                self.places.entry(pointer).or_insert_with(|| MORE.into());
            }
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(place, item)| self.every_null(format!("{pointer}/{place}"), item)),
            Value::Object(members) => members
                .iter()
                .for_each(|(name, member)| self.every_null(format!("{pointer}/{}", escaped(name)), member)),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The place of the value at a pointer, if it is redacted.
    pub(super) fn at(&self, pointer: &str) -> Option<&str> {
        self.places.get(pointer).map(String::as_str)
    }

    /// A redacted place in the value at a pointer, if that is data or a part of them. A whole record names them itself.
    pub(super) fn inside(&self, pointer: &str) -> Option<&str> {
        let is_below = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if !self.data.iter().any(|data| is_below(data, pointer)) {
            return None;
        }
        self.places.iter().find(|(place, _)| is_below(pointer, place)).map(|(_, place)| place.as_str())
    }

    /// The text that names the places; `None` if there is none.
    pub(super) fn told(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let named: BTreeSet<&str> =
            self.places.values().map(String::as_str).filter(|place| *place != MORE).collect();
        let mut shown: Vec<&str> = named.iter().copied().take(NAMED_MAX).collect();
        if self.is_partial || named.len() > NAMED_MAX {
            shown.push(MORE);
        }
        Some(format!(
            "secret values that the access key may not see (it lacks `reveal`): {}",
            shown.join(", ")
        ))
    }

    /// Names the places to the user.
    pub(super) fn note(&self) {
        if let Some(text) = self.told() {
            note(format_args!("not shown: {text}"));
        }
    }

    /// The data with a word in place of each, for columns.
    pub(super) fn shown(&self, mut data: Value) -> Value {
        for pointer in self.places.keys() {
            data.pointer_mut(pointer).into_iter().for_each(|value| *value = HIDDEN.into());
        }
        data
    }

    /// Prints data as [`print_value`] does, and names what is missing in them.
    pub(super) fn print(&self, format: &Format, data: &Value, table: &Table) -> Result<(), Failure> {
        if let Format::Path(path) = format {
            self.check(path, data)?;
        }
        print_value(format, data, table)?;
        match format {
            Format::Wide | Format::Json | Format::Jsonl | Format::Yaml => self.note(),
            // Without data, or with values that were asked for.
            Format::Table | Format::Markdown | Format::Name | Format::Path(_) => {}
        }
        Ok(())
    }

    /// The same with columns that are known beforehand.
    pub(super) fn print_columns(
        &self,
        format: &Format,
        data: &Value,
        columns: &Columns,
    ) -> Result<(), Failure> {
        let is_hidden = format.is_table() && !self.is_empty();
        let table = if is_hidden { columns.of(&self.shown(data.clone())) } else { columns.of(data) };
        self.print(format, data, &table)
    }

    /// Prints what was done: as a sentence, or as data in the requested format.
    pub(super) fn print_done(
        &self,
        format: &Format,
        data: &Value,
        name: &'static str,
        text: impl Display,
    ) -> Result<(), Failure> {
        if format.is_table() {
            return line(text);
        }
        // What was done is said, although the output fails.
        self.print(format, data, &Table::new(name, &[], &[])).map_err(|failure| {
            if let Failure::Hidden(why) = failure {
                Failure::Hidden(format!("{text}, but {why}"))
            } else {
                failure
            }
        })
    }

    /// Whether a path selects visible values only.
    ///
    /// # Errors
    /// When it selects a redacted value, or one inside it, or data that contain one.
    pub(super) fn check(&self, path: &JsonPath, data: &Value) -> Result<(), Failure> {
        if self.is_empty() {
            return Ok(());
        }
        path.find_visible(data, self).map(drop).map_err(|place| {
            Failure::Hidden(format!(
                "the path selects the secret value {place}, which the access key may not see: use a key with the \
                 permission `reveal`, or select other values"
            ))
        })
    }
}

/// A name as a segment of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &[&str]) -> (Redactions, Value) {
        let mut record = json!({"config_key": "k", "data": {
            "host": "h", "password": null, "none": null, "tls": null,
            "replicas": [{"n": 1, "a/b": null}]}});
        let places: Vec<String> = places.iter().map(|place| (*place).to_owned()).collect();
        let mut redactions = Redactions::default();
        redactions.record("", &mut record, &places);
        (redactions, record)
    }

    #[test]
    fn a_path_that_selects_a_hidden_value_fails_and_every_other_one_is_as_it_was() {
        let (redactions, record) = of(&["#/password", "#/tls", "#/replicas/0/a~1b", "#/absent"]);
        assert_eq!(record["redacted"], json!(["#/password", "#/tls", "#/replicas/0/a~1b"]));
        let check = |path: &str| redactions.check(&path.parse().unwrap(), &record).is_ok();
        for visible in [
            "{.data.host}",
            "{.data.none}",
            "{.data.replicas[0].n}",
            "{.config_key}",
            "{.absent}",
            "{.redacted[*]}",
            "{.}",
            "{.data.replicas[7]}",
        ] {
            assert!(check(visible), "{visible}");
        }
        for hidden in [
            "{.data.password}",
            "{.data.password.x}",
            "{.data.tls.key[0]}",
            "{.data}",
            "{.data.*}",
            "{.*}",
            "{.data.replicas}",
            "{.data.replicas[0]}",
            "{.data.replicas[*]['a/b']}",
            "{.*.password}",
        ] {
            assert!(!check(hidden), "{hidden}");
        }
        assert_eq!(redactions.shown(record)["data"]["replicas"][0]["a/b"], HIDDEN);
    }

    #[test]
    fn a_list_of_places_that_is_cut_makes_every_null_doubtful() {
        let (redactions, record) = of(&["#/password", "..."]);
        assert_eq!(record["redacted"], json!(["#/password", "..."]));
        let check = |path: &str| redactions.check(&path.parse().unwrap(), &record).is_ok();
        assert!(check("{.data.host}") && !check("{.data.none}") && !check("{.data.tls}"));
        assert!(redactions.told().unwrap().ends_with(": #/password, ..."));
    }

    #[test]
    fn nothing_is_said_where_all_is_seen() {
        let (redactions, record) = of(&[]);
        assert!(redactions.told().is_none() && record.get("redacted").is_none());
        assert!(redactions.check(&"{.data.password}".parse().unwrap(), &record).is_ok());
    }
}
