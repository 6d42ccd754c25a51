//! Persons: who holds the access keys that approve changes.
//!
//! A client with the permission `keys` can create a key for an invented person. So a person is no more than a label that
//! keys share, and counts for something only through a key that others have
//! [attested](crate::access_key::AccessKey::attestation).
//!
//! **Invariant:** the cluster has no two persons of one label, and gives the id of a person to no other one.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

use crate::{key::Key, limits::PERSON_LABEL_BYTES_MAX};

/// The id of a person: the revision, and the step of the entry, that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PersonId(pub u64);

impl PersonId {
    /// The name of the person's record.
    #[must_use]
    pub fn name(self) -> Key {
        Key::parse(&self.to_string()).expect("digits are a key")
    }
}

impl fmt::Display for PersonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a person is called: an address, a name. It has at most [`PERSON_LABEL_BYTES_MAX`] printable ASCII characters, none
/// of them in upper case, and neither begins nor ends with a space. So no two labels look the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersonLabel(SmolStr);

/// Why a text is no label of a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the label of a person has 1 to {PERSON_LABEL_BYTES_MAX} printable ASCII characters, such as `ada@example.com`, and \
     neither begins nor ends with a space"
)]
pub struct PersonLabelError;

impl PersonLabel {
    /// Parses a label; upper case becomes lower case.
    ///
    /// # Errors
    /// When the text is empty, too long, begins or ends with a space, or has other characters.
    pub fn parse(text: &str) -> Result<Self, PersonLabelError> {
        let is_printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let has_length = (1..=PERSON_LABEL_BYTES_MAX).contains(&text.len());
        let is_label = has_length && is_printable && text.trim_matches(' ').len() == text.len();
        if is_label { Ok(Self(text.to_ascii_lowercase().into())) } else { Err(PersonLabelError) }
    }

    /// The label's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PersonLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PersonLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

impl Serialize for PersonLabel {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PersonLabel {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        let label = Self::parse(&text).map_err(de::Error::custom)?;
        // Bytes that would not be written again are damage.
        if label.as_str() == text { Ok(label) } else { Err(de::Error::custom(PersonLabelError)) }
    }
}

/// A person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// Its id.
    pub id: PersonId,
    /// What it is called.
    pub label: PersonLabel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_printable_and_has_no_upper_case() {
        for (text, label) in [("Ada@Example.com", "ada@example.com"), ("a", "a"), ("Ada L. ~!", "ada l. ~!")]
        {
            assert_eq!(PersonLabel::parse(text).unwrap().as_str(), label);
        }
        assert!(PersonLabel::parse(&"x".repeat(PERSON_LABEL_BYTES_MAX)).is_ok());
        let long = "x".repeat(PERSON_LABEL_BYTES_MAX + 1);
        for wrong in ["", " ", " a", "a ", "ä", "a\tb", "a\u{200b}", "a\u{7f}", &long] {
            assert_eq!(PersonLabel::parse(wrong), Err(PersonLabelError), "{wrong:?}");
        }
    }

    #[test]
    fn a_stored_label_is_checked_again() {
        let decode = |text: &str| {
            let bytes = postcard::to_stdvec(text).unwrap();
            postcard::from_bytes::<PersonLabel>(&bytes).map(|label| label.to_string())
        };
        assert_eq!(decode("ada").unwrap(), "ada");
        assert!(decode("Ada").is_err() && decode("").is_err());
    }

    #[test]
    fn an_id_names_its_record() {
        assert_eq!(PersonId(u64::MAX).name().as_str(), "18446744073709551615");
    }
}
