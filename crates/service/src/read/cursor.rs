//! A cursor: the name of a page in a list of one state, as opaque text for clients.
//!
//! ```text
//! base64url( version byte │ node, revision, page, list fingerprint (postcard) │ CRC-32C of all before, big-endian )
//! ```
//!
//! **Invariant:** text that was damaged, shortened or extended never parses: the checksum covers every byte, and no
//! byte may follow it.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use concord_model::{encoding, record::Revision};
use concord_net::NodeId;

/// The version of the format: the first byte of every cursor.
const FORMAT_VERSION: u8 = 1;

/// A hash of everything that decides which records a list contains, and their order.
pub(crate) type Fingerprint = [u8; 16];

/// The name of a page in a list of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The node that holds the state.
    pub node: NodeId,
    /// The revision of the state.
    pub revision: Revision,
    /// The number of the page.
    pub page: u64,
    /// The fingerprint of the list.
    pub fingerprint: Fingerprint,
}

impl Cursor {
    /// The text with which a client requests the page.
    #[must_use]
    pub fn text(&self) -> String {
        let mut bytes = encoding::append(vec![FORMAT_VERSION], self);
        let sum = crc32c::crc32c(&bytes).to_be_bytes();
        bytes.extend(sum);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Parses the text of a cursor; `None` if it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (head, sum) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(head).to_be_bytes() != *sum {
            return None;
        }
        let (version, rest) = head.split_first()?;
        let (cursor, rest): (Self, _) = postcard::take_from_bytes(rest).ok()?;
        // The first page has no cursor.
        Some(cursor).filter(|cursor| *version == FORMAT_VERSION && rest.is_empty() && cursor.page > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor() -> Cursor {
        Cursor { node: 3, revision: u64::MAX, page: 7, fingerprint: [9; 16] }
    }

    #[test]
    fn only_the_exact_text_of_a_cursor_parses() {
        let text = cursor().text();
        assert_eq!(Cursor::parse(&text), Some(cursor()));
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            assert_eq!(Cursor::parse(&String::from_utf8(bytes).unwrap()), None, "{place}");
        }
        assert_eq!(Cursor::parse(&Cursor { page: 0, ..cursor() }.text()), None);
        for bad in [
            "",
            "A",
            "AAAA",
            "ä",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}A"),
            &format!("{text}="),
        ] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }
}
