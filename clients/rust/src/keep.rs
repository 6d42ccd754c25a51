//! Data to change and write back where the access key may not see all of them.
//!
//! In place of each redacted value the data get `{"$concord-keep": true}`, which keeps it. The service knows by the place
//! alone which value that is. So a marker remembers its place until it is written.
//!
//! A type of the program's need not have room for a marker: it sees `null`. Then a place that no list is above is
//! unambiguous. Below a list it is so only while the list is as it was.
//!
//! **Invariant:** a value that nobody saw stays at its place, or the write is an error before it is sent.

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::Error;

/// The member of a marker.
const KEEP: &str = "$concord-keep";
/// What the list of places ends with if there are more.
const MORE: &str = "...";

/// The redacted values of a record.
#[derive(Debug)]
pub(crate) struct Redacted {
    data: Value,
    /// JSON pointers.
    places: Vec<String>,
}

impl Redacted {
    /// The places that a header names, in the data of the same response.
    ///
    /// # Errors
    /// When there are more places than the header names.
    pub(crate) fn of(data: Value, header: Option<&str>) -> Result<Self, Error> {
        let listed = header.into_iter().flat_map(|text| text.split(',')).map(str::trim);
        let mut places = Vec::new();
        for place in listed.filter(|place| !place.is_empty()) {
            if place == MORE {
                let text =
                    "the record has more secret values than a response names: change it by a JSON Patch";
                return Err(Error::Usage(text.into()));
            }
            places.push(percent_decode_str(place.trim_start_matches('#')).decode_utf8_lossy().into_owned());
        }
        Ok(Self { data, places })
    }

    /// The data as the service sent them, with `null` for each redacted value.
    pub(crate) fn data(&self) -> &Value {
        &self.data
    }

    /// The places, as JSON pointers.
    pub(crate) fn places(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(String::as_str)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The data with a marker at each place, which names the place.
    pub(crate) fn marked(&self) -> Value {
        self.with_markers(|place| json!({ KEEP: place }))
    }

    fn with_markers(&self, marker: impl Fn(&str) -> Value) -> Value {
        let mut data = self.data.clone();
        for place in &self.places {
            if let Some(value) = data.pointer_mut(place) {
                *value = marker(place);
            }
        }
        data
    }

    /// Makes what is written of [`Self::marked`] data that were changed.
    ///
    /// # Errors
    /// When a marker is at another place than its own.
    pub(crate) fn resolve_marked(&self, data: &mut Value) -> Result<(), Error> {
        resolve(data, &mut String::new())
    }

    /// Makes what is written of data of a type that had `null` in place of the redacted values.
    ///
    /// # Errors
    /// When a list with redacted values was changed: which of them is meant is not known.
    pub(crate) fn resolve_typed(&self, data: &mut Value) -> Result<(), Error> {
        let kept = self.with_markers(|_| json!({ KEEP: true }));
        for place in &self.places {
            if let Some(list) = self.outermost_list(place) {
                let places = || self.places.iter().filter_map(|one| one.strip_prefix(list.as_str()));
                let same = |value: &Value| without(value.clone(), places());
                match (data.pointer(&list), self.data.pointer(&list), kept.pointer(&list)) {
                    // Removed with all its values, or resolved for another place.
                    (None, ..) => {}
                    (Some(now), _, Some(kept)) if now == kept => {}
                    (Some(now), Some(before), Some(kept)) if same(now) == same(before) => {
                        if let Some(now) = data.pointer_mut(&list) {
                            *now = kept.clone();
                        }
                    }
                    (Some(_), ..) => {
                        return Err(Error::Usage(format!(
                            "the list `{list}` has secret values that the access key may not see, and was changed: update it as a `serde_json::Value`, or change it by a JSON Patch"
                        )));
                    }
                }
                continue;
            }
            let Some((parent, name)) = place.rsplit_once('/') else {
                *data = json!({ KEEP: true });
                continue;
            };
            let name = name.replace("~1", "/").replace("~0", "~");
            if let Some(Value::Object(members)) = data.pointer_mut(parent)
                && members.get(&name).is_none_or(Value::is_null)
            {
                members.insert(name, json!({ KEEP: true }));
            }
        }
        Ok(())
    }

    /// The place of the first list on the way to a place.
    fn outermost_list(&self, place: &str) -> Option<String> {
        let ends = place.match_indices('/').map(|(end, _)| end);
        ends.map(|end| &place[..end])
            .find(|place| self.data.pointer(place).is_some_and(Value::is_array))
            .map(Into::into)
    }
}

/// The value without what is at these places, as a type that leaves out `None` has it.
fn without<'a>(mut value: Value, places: impl Iterator<Item = &'a str>) -> Value {
    for place in places {
        if let Some((parent, name)) = place.rsplit_once('/')
            && let Some(parent) = value.pointer_mut(parent)
        {
            match parent {
                Value::Object(members) => {
                    let name = name.replace("~1", "/").replace("~0", "~");
                    // A value that the program wrote there is a change.
                    if members.get(&name).is_some_and(Value::is_null) {
                        members.shift_remove(&name);
                    }
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
            }
        }
    }
    value
}

fn resolve(value: &mut Value, place: &mut String) -> Result<(), Error> {
    let length = place.len();
    match value {
        Value::Object(members) => {
            if let Some(Value::String(own)) = members.get(KEEP).filter(|_| members.len() == 1) {
                if own != place {
                    return Err(Error::Usage(format!(
                        "the secret value of `{own}` can't be moved to `{place}` by an access key that may not see it: change it by a JSON Patch, or write it anew"
                    )));
                }
                *value = json!({ KEEP: true });
                return Ok(());
            }
            for (name, member) in members {
                *place = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
                resolve(member, place)?;
                place.truncate(length);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter_mut().enumerate() {
                *place = format!("{place}/{index}");
                resolve(element, place)?;
                place.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Settings {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        password: Option<String>,
        databases: Vec<Database>,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Database {
        host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        token: Option<String>,
        users: Vec<User>,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct User {
        login: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pin: Option<String>,
    }

    fn settings() -> Settings {
        let cases: Value = serde_json::from_str(include_str!("../../cases.json")).unwrap();
        serde_json::from_value(cases["secrets"]["data"].clone()).unwrap()
    }

    /// What a caller sees who may not see the secret values, and the header that names their places.
    fn hidden(stored: &Value) -> (Value, String) {
        fn walk(value: &mut Value, place: &str, places: &mut Vec<String>) {
            match value {
                Value::String(text) if text.starts_with("secret-") => {
                    places.push(format!("#{place}"));
                    *value = Value::Null;
                }
                Value::Object(members) => {
                    members.iter_mut().for_each(|(name, one)| walk(one, &format!("{place}/{name}"), places));
                }
                Value::Array(all) => {
                    all.iter_mut()
                        .enumerate()
                        .for_each(|(at, one)| walk(one, &format!("{place}/{at}"), places));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let (mut data, mut places) = (stored.clone(), Vec::new());
        walk(&mut data, "", &mut places);
        (data, places.join(", "))
    }

    /// What the service makes of data with markers: each is what is stored at the same place.
    fn put(stored: &Value, data: &Value) -> Value {
        fn walk(value: &mut Value, place: &str, stored: &Value) {
            if *value == json!({ KEEP: true }) {
                *value = stored.pointer(place).expect("a marker is at the place of a value").clone();
                return;
            }
            match value {
                Value::Object(members) => {
                    members.iter_mut().for_each(|(name, one)| walk(one, &format!("{place}/{name}"), stored));
                }
                Value::Array(all) => {
                    all.iter_mut()
                        .enumerate()
                        .for_each(|(at, one)| walk(one, &format!("{place}/{at}"), stored));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let mut made = data.clone();
        walk(&mut made, "", stored);
        made
    }

    /// Each secret value with whom it belongs to, and who is there.
    fn owners(settings: &Settings) -> (BTreeMap<String, String>, Vec<String>) {
        let (mut secrets, mut there) = (BTreeMap::new(), vec![String::new()]);
        let mut add = |secret: &Option<String>, owner: &str| {
            secrets.extend(secret.clone().map(|secret| (secret, owner.to_owned())));
        };
        add(&settings.password, "");
        for database in &settings.databases {
            there.push(database.host.clone());
            add(&database.token, &database.host);
            for user in &database.users {
                let owner = format!("{}/{}", database.host, user.login);
                add(&user.pin, &owner);
                there.push(owner);
            }
        }
        (secrets, there)
    }

    fn shuffle<T>(dice: &mut fastrand::Rng, all: &mut Vec<T>, fresh: T) {
        match dice.u8(0..5) {
            0 if !all.is_empty() => drop(all.remove(dice.usize(0..all.len()))),
            1 => all.reverse(),
            2 => all.insert(dice.usize(0..=all.len()), fresh),
            3 => all.push(fresh),
            _ => dice.shuffle(all),
        }
    }

    /// One change of what a caller sees. Names are never used twice.
    fn edit(dice: &mut fastrand::Rng, settings: &mut Settings) {
        let fresh = format!("{:x}", dice.u64(..));
        let new_token = dice.bool().then(|| format!("secret-{fresh}"));
        match dice.u8(0..5) {
            0 => settings.name = fresh,
            1 => {
                let host = Database { host: fresh, note: None, token: new_token, users: Vec::new() };
                shuffle(dice, &mut settings.databases, host);
            }
            2 => {
                if let Some(database) = dice.choice(&mut settings.databases) {
                    shuffle(dice, &mut database.users, User { login: fresh, pin: new_token });
                }
            }
            3 => {
                if let Some(database) = dice.choice(&mut settings.databases) {
                    database.note = Some(fresh);
                }
            }
            _ => settings.password = new_token,
        }
    }

    fn value_of(settings: &Settings) -> Value {
        serde_json::to_value(settings).unwrap()
    }

    /// Whether a change by a caller who sees no secret value has moved or lost one.
    fn check(before: &Settings, after: &Settings, has_replaced: bool) {
        let ((old, _), (new, there)) = (owners(before), owners(after));
        for (secret, owner) in &new {
            assert_eq!(old.get(secret).unwrap_or(owner), owner, "{secret} has moved");
        }
        for (secret, owner) in &old {
            let is_replaced = has_replaced && new.values().any(|other| other == owner);
            assert!(new.contains_key(secret) || is_replaced || !there.contains(owner), "{secret} is lost");
        }
    }

    #[test]
    fn a_thousand_edits_of_a_type_move_and_lose_no_secret_value() {
        let mut dice = fastrand::Rng::with_seed(7);
        let (mut stored, mut done, mut refused) = (settings(), 0, 0);
        for turn in 0..1000 {
            if turn % 50 == 0 {
                stored = settings();
            }
            let (data, header) = hidden(&value_of(&stored));
            let redacted = Redacted::of(data, Some(&header)).unwrap();
            let mut seen: Settings = serde_json::from_value(redacted.data().clone()).unwrap();
            edit(&mut dice, &mut seen);
            let mut data = value_of(&seen);
            if redacted.resolve_typed(&mut data).is_err() {
                refused += 1;
                continue;
            }
            let after: Settings = serde_json::from_value(put(&value_of(&stored), &data)).unwrap();
            check(&stored, &after, true);
            stored = after;
            done += 1;
        }
        assert!(done > 200 && refused > 200, "{done} done, {refused} refused");
    }

    #[test]
    fn a_thousand_edits_of_a_value_move_and_lose_no_secret_value() {
        let mut dice = fastrand::Rng::with_seed(7);
        let (mut stored, mut done, mut refused) = (settings(), 0, 0);
        for turn in 0..1000 {
            if turn % 50 == 0 {
                stored = settings();
            }
            let (data, header) = hidden(&value_of(&stored));
            let redacted = Redacted::of(data, Some(&header)).unwrap();
            let mut seen = redacted.marked();
            let fresh = format!("{turn}");
            let lists = seen["databases"].as_array_mut().unwrap();
            match dice.u8(0..3) {
                0 => seen["name"] = json!(fresh),
                1 => shuffle(
                    &mut dice,
                    lists,
                    json!({"host": fresh, "token": format!("secret-new-{fresh}"), "users": []}),
                ),
                _ => {
                    if let Some(database) = dice.choice(lists) {
                        let users = database["users"].as_array_mut().unwrap();
                        shuffle(&mut dice, users, json!({"login": fresh}));
                    }
                }
            }
            if redacted.resolve_marked(&mut seen).is_err() {
                refused += 1;
                continue;
            }
            let after: Settings = serde_json::from_value(put(&value_of(&stored), &seen)).unwrap();
            check(&stored, &after, false);
            stored = after;
            done += 1;
        }
        assert!(done > 200 && refused > 100, "{done} done, {refused} refused");
    }

    #[test]
    fn a_list_of_places_that_was_cut_is_an_error() {
        assert!(Redacted::of(json!({}), Some("#/a, ...")).is_err());
        let whole = Redacted::of(json!({"a b": {"/": null}}), Some("#/a%20b/~1")).unwrap();
        let mut data = whole.data().clone();
        whole.resolve_typed(&mut data).unwrap();
        assert_eq!(data, json!({"a b": {"/": {KEEP: true}}}));
    }
}
