//! What the tests and fuzz targets of this crate and of those above share: sample values, and inputs made of parts.

pub mod events;
pub mod rollouts;
pub mod samples;

/// Joins parts to an input: each with its length before it.
pub fn join(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The parts of an input; the last one may be shorter than its length says.
pub fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (part, rest) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        parts.push(part);
        bytes = rest;
    }
    parts
}

/// The depth of JSON that a node accepts by default.
pub const JSON_DEPTH: usize = 64;
