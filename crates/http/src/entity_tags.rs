//! Entity tags of responses, and those that a client has (RFC 9110, 8.8.3 and 13.1.2).
//!
//! The tag of a record is its revision. A response that depends on more than revisions has a tag of its bytes.

use data_encoding::HEXLOWER;
use http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};

/// The entity tags of a list: what is in the quotes of each, and whether it is weak. `None` where the text is no tag; it
/// is the last.
pub(super) struct EntityTags<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for EntityTags<'a> {
    type Item = Option<(&'a [u8], bool)>;

    fn next(&mut self) -> Option<Self::Item> {
        // A list may have empty elements.
        while let [b' ' | b'\t' | b',', rest @ ..] = self.0 {
            self.0 = rest;
        }
        if self.0.is_empty() {
            return None;
        }
        let mut element = || {
            let opaque = self.0.strip_prefix(b"W/").unwrap_or(self.0);
            let is_weak = opaque.len() < self.0.len();
            let inner = opaque.strip_prefix(b"\"")?;
            let end = inner.iter().position(|byte| *byte == b'"')?;
            let (tag, rest) = (inner.get(..end)?, inner.get(end + 1..)?.trim_ascii_start());
            let is_tag = tag.iter().all(|byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..));
            if !is_tag || !(rest.is_empty() || rest.starts_with(b",")) {
                return None;
            }
            self.0 = rest;
            Some((tag, is_weak))
        };
        let made = element();
        if made.is_none() {
            self.0 = b"";
        }
        Some(made)
    }
}

/// Whether the value of `If-None-Match` names a version. A malformed tag cannot be the current one: the read is
/// answered in full.
pub(super) fn names(value: &[u8], tag: &str) -> bool {
    value.trim_ascii() == b"*" || EntityTags(value).flatten().any(|(named, _)| named == tag.as_bytes())
}

/// Whether the client already has the version with this tag (`If-None-Match`).
pub(super) fn client_has(headers: &HeaderMap, tag: &str) -> bool {
    headers.get_all(header::IF_NONE_MATCH).iter().any(|value| names(value.as_bytes(), tag))
}

/// The tag of a body.
pub(super) fn of_body(body: &[u8]) -> String {
    let hash: [u8; 32] = Sha256::digest(body).into();
    let mut tag = HEXLOWER.encode(&hash);
    // Half of it is enough to tell versions apart.
    tag.truncate(32);
    tag
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn has(values: &[&str], tag: &str) -> bool {
        let value = |value: &&str| (header::IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
        client_has(&values.iter().map(value).collect(), tag)
    }

    #[test]
    fn a_tag_is_found_among_others_weak_or_strong() {
        let tag = of_body(b"{}");
        assert_eq!(tag, "44136fa355b3678a1146ad16f7e8649e");
        for value in [format!("\"{tag}\""), format!("\"a\", W/\"{tag}\""), "*".to_owned()] {
            assert!(has(&[&value], &tag), "{value}");
        }
        assert!(has(&["\"a\"", &format!("\"{tag}\"")], &tag), "in a second header");
        assert!(!has(&["\"44136fa3\""], &tag) && !has(&[&tag], &tag) && !has(&[], &tag));
    }

    #[test]
    fn a_revision_is_named_by_its_digits() {
        assert!(names(b"\"1\",W/\"7\"", "7") && names(b" * ", "7"));
        for other in ["", "7", "\"77\"", "\"07\"", "\"7", "\"1\" \"7\"", "\"a\"x, \"7\""] {
            assert!(!names(other.as_bytes(), "7"), "{other}");
        }
    }
}
