//! Bytes that are stored inline when they are short, as most values of indexed paths are.
//!
//! An index with inline values compares them without following pointers, and copies a node without touching a reference
//! count for each value. **Invariant:** equal bytes have one representation: bytes that fit inline are never on the heap.

use std::{fmt, ops::Deref, sync::Arc};

/// Bytes that fit inline: with tag and length 24 bytes, as large as the heap variant with its tag.
const INLINE_BYTES_MAX: usize = 22;

/// Bytes; a clone copies three words.
#[derive(Clone)]
pub(in crate::state) struct InlineBytes(Repr);

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

impl Deref for InlineBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
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
    fn bytes_of_every_length_round_trip_and_short_ones_are_inline() {
        assert_eq!(size_of::<InlineBytes>(), 24);
        let bytes: Vec<u8> = (0..=255).cycle().take(600).collect();
        for len in 0..bytes.len() {
            let inline = InlineBytes::from(&bytes[..len]);
            assert_eq!(&*inline.clone(), &bytes[..len]);
            assert_eq!(matches!(inline.0, Repr::Inline { .. }), len <= INLINE_BYTES_MAX);
        }
    }
}
