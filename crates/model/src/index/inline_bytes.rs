//! Bytes that are stored inline when they are short, as most values of indexed paths are.
//!
//! An index with inline values compares them without following pointers, and copies a node without touching a reference
//! count for each value; a config with inline values is decoded, copied and freed without a call of the allocator for
//! each. Longer bytes are shared between a config and the indexes. Inline bytes are compared by words: an index
//! compares some thirty pairs for each change, and a call for each took a third of the time of changing it.
//!
//! **Invariants:** equal bytes have one representation: bytes that fit inline are never on the heap. What follows them
//! there is zero, so the order of the whole arrays, and of the lengths where those are equal, is the order of the
//! bytes.

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
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        if let (Repr::Inline { len, bytes }, Repr::Inline { len: other_len, bytes: other_bytes }) =
            (&self.0, &other.0)
        {
            let by_word = |from| word(bytes, from).cmp(&word(other_bytes, from));
            let by_last = || by_word(INLINE_BYTES_MAX - WORD_BYTES);
            return by_word(0)
                .then_with(|| by_word(WORD_BYTES))
                .then_with(by_last)
                .then_with(|| len.cmp(other_len));
        }
        (**self).cmp(&**other)
    }
}

const WORD_BYTES: usize = 8;
/// The first two words and the last one have all bytes.
const _: () = assert!(INLINE_BYTES_MAX <= 3 * WORD_BYTES);

/// The word at a place. The order of words is that of their bytes.
#[inline]
fn word(bytes: &[u8; INLINE_BYTES_MAX], from: usize) -> u64 {
    let mut word = [0; WORD_BYTES];
    word.copy_from_slice(&bytes[from..from + WORD_BYTES]);
    u64::from_be_bytes(word)
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn inline_bytes_and_shared_ones_have_the_order_of_their_bytes() {
        let ascending: [&[u8]; 5] = [b"", b"a", b"a\0", &[b'a'; 40], b"b"];
        for pair in ascending.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(InlineBytes::from);
            assert!(a < b && a == a.clone() && a != b, "{a:?} {b:?}");
        }
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_bytes(
            a in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..26),
            b in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..26),
            common in 0..26_usize,
        ) {
            // The first of them begins like the second, so that the last comparison matters as well.
            let a: Vec<u8> = b.iter().take(common).chain(&a).copied().collect();
            let order = InlineBytes::from(&*a).cmp(&InlineBytes::from(&*b));
            prop_assert_eq!(order, a.cmp(&b));
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
