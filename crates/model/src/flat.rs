//! Decoding of a type that contains itself, to a depth of one.
//!
//! Some enums have a variant that holds values of the same enum: a batch is a command that holds commands. A decoder
//! that follows such bytes to any depth exhausts the stack of its thread, which ends the process. Bytes in the log
//! would end it at every start. So the inner value is decoded by [`decode_without`], which rejects that variant before
//! it decodes anything of it.
//!
//! **Invariant:** every stored or sent type that contains itself decodes the inner value this way. This program writes
//! nothing that is nested deeper, so the bytes that it writes do not change.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, EnumAccess, Error, IntoDeserializer, Visitor},
    forward_to_deserialize_any,
};

/// Decodes an enum, but not its variants of these names. Works for encodings that name a variant by its index.
///
/// # Errors
/// When the value is of such a variant, or is no such enum.
pub fn decode_without<'de, T, D>(deserializer: D, names: &'static [&'static str]) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(Without { inner: deserializer, names })
}

/// A deserializer that knows only enums.
struct Without<D> {
    inner: D,
    names: &'static [&'static str],
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Without<D> {
    type Error = D::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        if let Some(unknown) = self.names.iter().find(|name| !variants.contains(name)) {
            return Err(Error::unknown_variant(unknown, variants));
        }
        let is_refused = |(variant, _): &(&&str, u32)| self.names.contains(*variant);
        let refused = variants.iter().zip(0..).filter(is_refused).map(|(_, index)| index).collect();
        self.inner.deserialize_enum(name, variants, Refusing { inner: visitor, refused })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, D::Error> {
        Err(Error::custom("not an enum"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A visitor, and its access to the enum, that rejects the variants of these indexes.
struct Refusing<T> {
    inner: T,
    refused: Vec<u32>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Refusing<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Refusing { inner: data, refused: self.refused })
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Refusing<A> {
    type Error = A::Error;
    type Variant = A::Variant;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, A::Variant), A::Error> {
        let (index, content) = self.inner.variant_seed(PhantomData::<u32>)?;
        if self.refused.contains(&index) {
            return Err(Error::custom("nested in itself"));
        }
        Ok((seed.deserialize(index.into_deserializer())?, content))
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Nested {
        Leaf(u8),
        Many(Vec<Branch>),
        Empty,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Branch(#[serde(deserialize_with = "leaf")] Nested);

    fn leaf<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Nested, D::Error> {
        decode_without(deserializer, &["Many"])
    }

    #[test]
    fn the_inner_value_is_any_other_variant() {
        let bytes = |tree: &Nested| postcard::to_allocvec(tree).unwrap();
        let flat = Nested::Many(vec![Branch(Nested::Leaf(7)), Branch(Nested::Empty)]);
        assert_eq!(bytes(&flat), [1, 2, 0, 7, 2]);
        assert_eq!(postcard::from_bytes(&bytes(&flat)), Ok(flat));
        let nested = Nested::Many(vec![Branch(Nested::Many(Vec::new()))]);
        assert!(postcard::from_bytes::<Nested>(&bytes(&nested)).is_err());
        assert!(postcard::from_bytes::<Nested>(&[1, 1, 3]).is_err(), "no such variant");
    }

    #[test]
    fn a_name_that_the_enum_does_not_have_decodes_nothing() {
        #[derive(Debug, Deserialize)]
        struct Wrong(#[serde(deserialize_with = "wrong")] Nested);

        fn wrong<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Nested, D::Error> {
            decode_without(deserializer, &["Many", "Several"])
        }

        assert!(postcard::from_bytes::<Wrong>(&[2]).map(|wrong| wrong.0).is_err());
    }
}
