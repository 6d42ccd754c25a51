//! Bytes that lie in their owner when they are few, as the values of indexed fields mostly are.
//!
//! An order that holds its values this way compares them without leaving its node, and copies a node without touching
//! the counter of each value. **Invariant:** equal bytes have one form: what fits inside is never outside.

use std::{fmt, ops::Deref, sync::Arc};

/// Bytes that fit inside: with tag and length as large as a pointer, its length and one word.
const INSIDE: usize = 22;

/// Bytes; cloning them copies a few words.
#[derive(Clone)]
pub(in crate::state) struct Short(Form);

#[derive(Clone)]
enum Form {
    Inside { len: u8, bytes: [u8; INSIDE] },
    Outside(Arc<[u8]>),
}

impl From<&[u8]> for Short {
    fn from(from: &[u8]) -> Self {
        let mut bytes = [0; INSIDE];
        Self(match (bytes.get_mut(..from.len()), u8::try_from(from.len())) {
            (Some(inside), Ok(len)) => {
                inside.copy_from_slice(from);
                Form::Inside { len, bytes }
            }
            (None, _) | (_, Err(_)) => Form::Outside(from.into()),
        })
    }
}

impl Deref for Short {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Inside { len, bytes } => &bytes[..usize::from(*len)],
            Form::Outside(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back_and_few_lie_inside() {
        assert_eq!(size_of::<Short>(), 24);
        let bytes: Vec<u8> = (0..=255).cycle().take(600).collect();
        for len in 0..bytes.len() {
            let short = Short::from(&bytes[..len]);
            assert_eq!(&*short.clone(), &bytes[..len]);
            assert_eq!(matches!(short.0, Form::Inside { .. }), len <= INSIDE);
        }
    }
}
