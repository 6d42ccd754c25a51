//! The schema of a definition as it is stored: its text, and what `format` means in it.
//!
//! **Invariant:** the bytes of a schema with [`Formats::ByDraft`] are those of the text alone, as feature level 1 knows it;
//! the others are variants of the same encoding, at its end.

use std::{ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::feature::LEVEL_MIN;

/// What `format` means in a schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Formats {
    /// An assertion up to draft 7, an annotation after it: definitions of feature level 1.
    #[default]
    ByDraft,
    /// An assertion in every draft.
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

    /// As a caller is told; `None` where it depends on the draft.
    #[must_use]
    pub fn is_asserted(self) -> Option<bool> {
        match self {
            Self::ByDraft => None,
            Self::Asserted => Some(true),
            Self::Annotated => Some(false),
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

impl StoredSchema {
    /// The feature level that a node must know to store it.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        match self.formats {
            Formats::ByDraft => LEVEL_MIN,
            Formats::Asserted | Formats::Annotated => 2,
        }
    }
}

impl Deref for StoredSchema {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl<T: Into<Arc<str>>> From<T> for StoredSchema {
    fn from(text: T) -> Self {
        Self { text: text.into(), formats: Formats::ByDraft }
    }
}

/// The encoding of an optional schema. The first two variants have the bytes of `Option`; new ones go to the end.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Option")]
enum Encoded<T> {
    None,
    ByDraft(T),
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
                Formats::ByDraft => Encoded::ByDraft(text),
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
        Encoded::ByDraft(text) => of(text, Formats::ByDraft),
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
    fn a_schema_of_level_1_has_the_bytes_of_its_text_and_the_others_come_back() {
        let bytes = |new: &New| postcard::to_allocvec(new).unwrap();
        for text in [None, Some("{}")] {
            let new = New(text.map(StoredSchema::from));
            assert_eq!(bytes(&new), postcard::to_allocvec(&text).unwrap());
        }
        for formats in [Formats::ByDraft, Formats::Asserted, Formats::Annotated] {
            let new = New(Some(StoredSchema { text: "{}".into(), formats }));
            assert_eq!(postcard::from_bytes::<New>(&bytes(&new)).unwrap(), new);
        }
        assert_eq!(
            bytes(&New(Some(StoredSchema { text: "{}".into(), formats: Formats::Asserted }))),
            b"\x02\x02{}"
        );
    }
}
