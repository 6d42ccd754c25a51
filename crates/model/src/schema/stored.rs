//! The schema of a definition as it is stored: its text, and what `format` means in it.

use std::{ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What `format` means in a schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Formats {
    /// An assertion in every draft.
    #[default]
    Asserted,
    /// An annotation in every draft.
    Annotated,
}

impl Formats {
    /// As a caller asks for it.
    #[must_use]
    pub fn of(is_asserted: bool) -> Self {
        if is_asserted { Self::Asserted } else { Self::Annotated }
    }

    /// As a client reads it.
    #[must_use]
    pub fn is_asserted(self) -> bool {
        match self {
            Self::Asserted => true,
            Self::Annotated => false,
        }
    }
}

/// A stored schema; it reads as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSchema {
    /// The JSON text.
    pub text: Arc<str>,
    /// What `format` means in it.
    pub formats: Formats,
}

impl Deref for StoredSchema {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl<T: Into<Arc<str>>> From<T> for StoredSchema {
    fn from(text: T) -> Self {
        Self { text: text.into(), formats: Formats::default() }
    }
}

/// The encoding of an optional schema. New variants go to the end.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Option")]
enum Encoded<T> {
    None,
    Asserted(T),
    Annotated(T),
}

/// Encodes an optional schema.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(schema: &Option<StoredSchema>, serializer: S) -> Result<S::Ok, S::Error> {
    let encoded = match schema {
        None => Encoded::None,
        Some(schema) => {
            let text: &str = schema;
            match schema.formats {
                Formats::Asserted => Encoded::Asserted(text),
                Formats::Annotated => Encoded::Annotated(text),
            }
        }
    };
    encoded.serialize(serializer)
}

/// Decodes an optional schema.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StoredSchema>, D::Error> {
    let of = |text, formats| Some(StoredSchema { text, formats });
    Ok(match Encoded::<Arc<str>>::deserialize(deserializer)? {
        Encoded::None => None,
        Encoded::Asserted(text) => of(text, Formats::Asserted),
        Encoded::Annotated(text) => of(text, Formats::Annotated),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct New(#[serde(with = "super")] Option<StoredSchema>);

    #[test]
    fn a_stored_schema_keeps_its_choice_for_format() {
        let of = |formats| New(Some(StoredSchema { text: "{}".into(), formats }));
        for (new, bytes) in [
            (New(None), &b"\x00"[..]),
            (of(Formats::Asserted), b"\x01\x02{}"),
            (of(Formats::Annotated), b"\x02\x02{}"),
        ] {
            assert_eq!(postcard::to_allocvec(&new).unwrap(), bytes);
            assert_eq!(postcard::from_bytes::<New>(bytes).unwrap(), new);
        }
    }
}
