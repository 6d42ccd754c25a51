//! The encoding of the bodies of the RPCs of the service, and of their responses: a version byte and postcard.
//!
//! **Invariant:** bytes of another version are rejected, and so are bytes after the value.

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::ReceiveError;
use concord_model::encoding;

/// The version of the encoding.
const VERSION: u8 = 1;

/// Encodes a body or a response.
pub fn encode<T: Serialize>(value: &T) -> Bytes {
    encoding::append(vec![VERSION], value).into()
}

/// Decodes what [`encode`] has encoded.
///
/// # Errors
/// When the bytes are anything else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ReceiveError> {
    let malformed = |text: &str| ReceiveError::Malformed(text.into());
    let (version, rest) = bytes.split_first().ok_or_else(|| malformed("empty"))?;
    if *version != VERSION {
        return Err(malformed("unknown encoding version"));
    }
    let (value, rest) = postcard::take_from_bytes(rest).map_err(|error| malformed(&error.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(malformed("trailing bytes after the value")) }
}

/// Decodes the first fields of what [`encode`] has encoded, and ignores what follows.
///
/// # Errors
/// When the bytes begin with anything else.
pub fn decode_head<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ReceiveError> {
    let malformed = |text: &str| ReceiveError::Malformed(text.into());
    let rest = bytes.strip_prefix(&[VERSION]).ok_or_else(|| malformed("unknown encoding version"))?;
    let (value, _) = postcard::take_from_bytes(rest).map_err(|error| malformed(&error.to_string()))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_another_encoding_are_rejected() {
        let mut bytes = encode(&String::from("no")).to_vec();
        assert_eq!(decode::<String>(&bytes).unwrap(), "no");
        assert!(decode::<String>(&[]).is_err());
        assert!(decode::<String>(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(decode_head::<&str>(&encode(&("no", 7u8, vec![1; 9]))).unwrap(), "no");
        assert!(decode_head::<&str>(&[]).is_err());
        bytes.push(0);
        assert!(decode::<String>(&bytes).is_err());
        bytes.pop();
        bytes[0] = 2;
        assert!(decode::<String>(&bytes).is_err());
    }
}
