//! Bytes that are stored inline when they are short, as most values of indexed paths are.
//!
//! An index with inline values compares them without following pointers, and copies a node without touching a reference
//! count for each value; a config with inline values is decoded, copied and freed without a call of the allocator for
//! each. Longer bytes are shared between a config and the indexes.
//!
//! **Invariant:** equal bytes have one representation: bytes that fit inline are never on the heap.

use std::{cmp::Ordering, fmt, ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes that fit inline: with tag and length 24 bytes, as large as the heap variant with its tag.
const INLINE_BYTES_MAX: usize = 22;

/// Bytes; a clone copies three words.
#[derive(Clone)]
pub struct InlineBytes(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Heap(Arc<[u8]>),
}

impl From<&[u8]> for InlineBytes {
    fn from(from: &[u8]) -> Self {
        let mut bytes = [0; INLINE_BYTES_MAX];
        Self(match (bytes.get_mut(..from.len()), u8::try_from(from.len())) {
            (Some(inline), Ok(len)) => {
                inline.copy_from_slice(from);
                Repr::Inline { len, bytes }
            }
            (None, _) | (_, Err(_)) => Repr::Heap(from.into()),
        })
    }
}

impl From<Vec<u8>> for InlineBytes {
    fn from(from: Vec<u8>) -> Self {
        Self::from(&*from)
    }
}

impl From<Box<[u8]>> for InlineBytes {
    fn from(from: Box<[u8]>) -> Self {
        Self::from(&*from)
    }
}

impl Deref for InlineBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }
}

impl PartialEq for InlineBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for InlineBytes {}

impl PartialOrd for InlineBytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InlineBytes {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Serialize for InlineBytes {
    /// One byte string; the encoding of a sequence would write an element at a time.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for InlineBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = InlineBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<InlineBytes, E> {
                Ok(bytes.into())
            }
        }
        from.deserialize_bytes(Visitor)
    }
}

impl fmt::Debug for InlineBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_bytes_and_shared_ones_have_the_order_of_their_bytes() {
        let ascending: [&[u8]; 5] = [b"", b"a", b"a\0", &[b'a'; 40], b"b"];
        for pair in ascending.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(InlineBytes::from);
            assert!(a < b && a == a.clone() && a != b, "{a:?} {b:?}");
        }
    }

    #[test]
    fn bytes_of_every_length_round_trip_and_short_ones_are_inline() {
        assert_eq!(size_of::<InlineBytes>(), 24);
        let bytes: Vec<u8> = (0..=255).cycle().take(600).collect();
        for len in 0..bytes.len() {
            let inline = InlineBytes::from(&bytes[..len]);
            assert_eq!(&*inline.clone(), &bytes[..len]);
            assert_eq!(matches!(inline.0, Repr::Inline { .. }), len <= INLINE_BYTES_MAX);
            let stored = postcard::to_stdvec(&inline).unwrap();
            assert_eq!(postcard::from_bytes::<InlineBytes>(&stored).unwrap(), inline);
        }
    }
}
