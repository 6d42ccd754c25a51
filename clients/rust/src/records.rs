//! One config: typed, conditional, read-modify-write.
//!
//! **Invariants:** an update replaces only the data that it was computed from. If another client changed them in the
//! meantime, the update is computed again from the new data, so no update is lost. A write with an unknown outcome ends
//! as [`Error::Unknown`] and is never applied on top of itself.

use http::StatusCode;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Answer, Client, Error, Operation, PutMode, Request, keep::Redacted, segment};

/// How often an update is computed again because another client changed the record.
const UPDATES_MAX: usize = 100;

/// The path of a definition.
pub(crate) fn definition_path(definition: &str) -> String {
    format!("/api/v1/config_definition/{}", segment(definition))
}

/// The path of a config.
pub(crate) fn config_path(definition: &str, key: &str) -> String {
    format!("{}/config/{}", definition_path(definition), segment(key))
}

/// A value with its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// The data of the config.
    pub value: T,
    /// The revision of its last change. 0 for a candidate, which has none: no condition holds with it.
    pub revision: u64,
    /// The id of the change request whose candidate it is; `None` for what is proven.
    pub variant: Option<String>,
}

/// One config of the cluster.
#[derive(Debug, Clone)]
pub struct Record {
    client: Client,
    definition: String,
    key: String,
}

impl Client {
    /// A config, whether it exists or not. Sends nothing yet.
    #[must_use]
    pub fn config(&self, definition: impl Into<String>, key: impl Into<String>) -> Record {
        Record { client: self.clone(), definition: definition.into(), key: key.into() }
    }
}

impl Record {
    /// Reads it, linearizably; `None` if it does not exist. A reader that is in a rollout gets the candidate.
    ///
    /// # Errors
    /// When it can't be read, or its data do not fit the type.
    pub async fn get<T: DeserializeOwned>(&self) -> Result<Option<Found<T>>, Error> {
        match self.client.send(Request::get(self.path())).await {
            Ok(answer) => {
                let value = self.admit(self.data_of(&answer)?)?;
                let variant = answer.variant().map(str::to_owned);
                let revision = if variant.is_some() { 0 } else { revision(&answer)? };
                Ok(Some(Found { value, revision, variant }))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates it, and returns its revision; 409 if it exists.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn create(&self, value: &impl Serialize) -> Result<u64, Error> {
        let (definition, key) = (self.definition.clone(), self.key.clone());
        let operation = Operation::CreateConfig { definition, key, data: to_json(value)? };
        revision(&self.client.send(Request::operation(&operation)).await?)
    }

    /// Replaces it unconditionally, and returns its new revision; 404 if it does not exist.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn replace(&self, value: &impl Serialize) -> Result<u64, Error> {
        revision(&self.client.send(self.put(value, PutMode::Replace)?).await?)
    }

    /// Replaces it if it still has this revision, and returns the new revision; 412 if it has another.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn replace_if(&self, known: u64, value: &impl Serialize) -> Result<u64, Error> {
        revision(&self.client.send(self.put(value, PutMode::ReplaceIf(known))?).await?)
    }

    /// Deletes it if it still has this revision; 412 if it has another.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn delete_if(&self, known: u64) -> Result<(), Error> {
        let (definition, key) = (self.definition.clone(), self.key.clone());
        let operation = Operation::DeleteConfig { definition, key, if_match: Some(known.into()) };
        self.client.send(Request::operation(&operation)).await.map(drop)
    }

    /// Reads it, changes it and writes it back, and returns what was stored. Repeats that if another client changed it in
    /// between.
    ///
    /// Secret values that the access key may not see stay as they are: a [`serde_json::Value`] has an object in place of
    /// each, another type `null`.
    ///
    /// # Errors
    /// As [`Client::send`]; 404 if it does not exist. [`Error::Usage`] if such a value would be moved or lost.
    pub async fn update<T>(&self, mut change: impl FnMut(&mut T)) -> Result<Found<T>, Error>
    where
        T: Serialize + DeserializeOwned,
    {
        let mut refused = None;
        for _ in 0..UPDATES_MAX {
            // What is written back rests on what is proven: a candidate has no revision.
            let answer = self.client.send(Request::get(self.path()).proven()).await?;
            let redacted = Redacted::of(self.data_of(&answer)?, answer.redacted())?;
            let (mut value, has_markers) = match with_markers(&redacted) {
                Some(value) => (value, true),
                None => (self.admit(redacted.data().clone())?, false),
            };
            change(&mut value);
            let mut data = to_json(&value)?;
            if has_markers {
                redacted.resolve_marked(&mut data)?;
            } else if !redacted.is_empty() {
                redacted.resolve_typed(&mut data)?;
            }
            match self.client.send(self.put(&data, PutMode::ReplaceIf(revision(&answer)?))?).await {
                Ok(answer) => {
                    // The service shows what is stored without the markers.
                    let value = if redacted.is_empty() { value } else { self.admit(answer.data()?)? };
                    return Ok(Found { value, revision: revision(&answer)?, variant: None });
                }
                Err(error) if error.status() == Some(StatusCode::PRECONDITION_FAILED) => {
                    refused = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::Unavailable("the record changed during every attempt".into())))
    }

    /// The data of the response to a read of this config.
    fn data_of(&self, answer: &Answer) -> Result<Value, Error> {
        let mut found = answer.data()?;
        if found["config_key"] != self.key.as_str() {
            return Err(Error::Protocol(format!(
                "the response is about the config {}, not about `{}`",
                found["config_key"], self.key
            )));
        }
        Ok(found["data"].take())
    }

    fn path(&self) -> String {
        config_path(&self.definition, &self.key)
    }

    fn put(&self, value: &impl Serialize, mode: PutMode) -> Result<Request, Error> {
        let (definition, key) = (self.definition.clone(), self.key.clone());
        Ok(Request::operation(&Operation::PutConfig { definition, key, data: to_json(value)?, mode }))
    }

    fn admit<T: DeserializeOwned>(&self, data: Value) -> Result<T, Error> {
        let not_admitted = |error| Error::Protocol(format!("{}/{}: {error}", self.definition, self.key));
        serde_json::from_value(data).map_err(not_admitted)
    }
}

/// The data with markers for redacted values, if the type has room for each of them.
fn with_markers<T: Serialize + DeserializeOwned>(redacted: &Redacted) -> Option<T> {
    let marked = redacted.marked();
    if redacted.is_empty() {
        return None;
    }
    let value: T = serde_json::from_value(marked.clone()).ok()?;
    let back = serde_json::to_value(&value).ok()?;
    redacted.places().all(|place| back.pointer(place) == marked.pointer(place)).then_some(value)
}

fn to_json(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value)
        .map_err(|error| Error::Usage(format!("the value can't be converted to JSON: {error}")))
}

fn revision(answer: &Answer) -> Result<u64, Error> {
    let missing = || Error::Protocol("the response has no ETag".into());
    answer.revision().ok_or_else(missing)
}
