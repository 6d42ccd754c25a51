//! The bytes of an entry of the log: one proposal, or several that the leader has gathered into a group.
//!
//! Much of what a small write costs is the entry and not the change: its way through openraft, its record in the log,
//! its frame to each member, the wake-ups. So small writes that arrive while an entry is under way leave together in
//! the next one (`crates/consensus/src/group/mod.rs`).
//!
//! ```text
//! one proposal      level `u8` · the proposal (postcard)            `Proposal::to_bytes`
//! a group           level `u8` + 80 · for each: length `u32be` · the bytes of one proposal, as above
//! ```
//!
//! The level of a group is the highest of its proposals.
//!
//! **Invariants**
//! 1. A group only shares the entry: each of its proposals is decided by itself, in order, at a revision of its own,
//!    and has its own time, author, reason, idempotency key and verdict.
//! 2. Applying a group costs no more than applying its proposals one by one: only commands that cost little share an
//!    entry ([`Proposal::may_share_entry`]), and number and bytes are bounded. A group never contains a group.

use super::{
    command::{Command, DecodeError, Proposal},
    feature::{LEVEL_MIN, level_max},
};

/// Most proposals of a group. With so many, an entry's own cost is a small part of each; applying them takes two
/// milliseconds at most, so the next entry does not wait long. With half as many, 256 callers fell into two parts that
/// took turns, and each write cost a tenth more.
pub const GROUP_PROPOSALS_MAX: usize = 256;
/// Most bytes of a group: one frame to each member, which a link of 10 MB/s carries in 25 ms. A longer proposal is an
/// entry of its own.
pub const GROUP_BYTES_MAX: usize = 256 << 10;

/// Marks a group, in the byte of the level.
const GROUP: u8 = 0x80;
/// Bytes of a length.
const LENGTH_BYTES: usize = 4;

impl Command {
    /// Whether it may share an entry with others: its effect on the state is that of one config.
    pub(crate) fn may_share_entry(&self) -> bool {
        match self {
            Self::WriteConfig { .. } | Self::DeleteConfig { .. } => true,
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::Compact { .. }
            | Self::SetSchema { .. }
            | Self::SetUnique { .. }
            | Self::BuildIndex { .. }
            | Self::Batch(_)
            | Self::Transaction(_)
            | Self::RaiseFeatureLevel { .. }
            | Self::Forget { .. }
            | Self::UndeleteDefinition { .. }
            | Self::SetProtection { .. }
            | Self::SkipRevisions { .. }
            | Self::Audit(_)
            | Self::System(_)
            | Self::Access(_) => false,
        }
    }
}

/// The feature level that a node must know to apply an entry of these bytes.
#[must_use]
pub fn feature_level_of(entry: &[u8]) -> u32 {
    entry.first().map_or(LEVEL_MIN, |first| u32::from(first & !GROUP))
}

/// The length that a proposal of so many bytes adds to a group.
#[must_use]
pub fn length_in_group(proposal_bytes: usize) -> usize {
    LENGTH_BYTES.saturating_add(proposal_bytes)
}

/// An entry of these encoded proposals: their group, or the one as it is.
#[must_use]
pub fn encode(mut proposals: Vec<Vec<u8>>) -> Vec<u8> {
    if proposals.len() == 1 {
        return proposals.swap_remove(0);
    }
    let length: usize = proposals.iter().map(|proposal| length_in_group(proposal.len())).sum();
    let mut bytes = Vec::with_capacity(1 + length);
    let level = proposals.iter().filter_map(|proposal| proposal.first()).max();
    bytes.push(GROUP | level.copied().unwrap_or_default());
    for proposal in proposals {
        bytes.extend_from_slice(&u32::try_from(proposal.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&proposal);
    }
    bytes
}

/// The proposals of an entry, in the order in which they are decided.
///
/// # Errors
/// When the bytes have a newer format or are damaged.
pub fn decode(entry: &[u8]) -> Result<Vec<Proposal>, DecodeError> {
    let (first, mut rest) = entry.split_first().ok_or(DecodeError::Damaged)?;
    if first & GROUP == 0 {
        return Proposal::from_bytes(entry).map(|proposal| vec![proposal]);
    }
    let level = feature_level_of(entry);
    if level > level_max() {
        return Err(DecodeError::Unknown(level));
    }
    if rest.len() > GROUP_BYTES_MAX {
        return Err(DecodeError::Damaged);
    }
    let mut proposals: Vec<Proposal> = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| DecodeError::Damaged)?;
        let (bytes, after) = after.split_at_checked(length).ok_or(DecodeError::Damaged)?;
        // A group in the group has a level that no proposal has.
        let proposal = Proposal::from_bytes(bytes).map_err(|_| DecodeError::Damaged)?;
        if !proposal.may_share_entry() || proposals.len() == GROUP_PROPOSALS_MAX {
            return Err(DecodeError::Damaged);
        }
        proposals.push(proposal);
        rest = after;
    }
    let highest = proposals.iter().map(Proposal::feature_level).max();
    let is_whole = rest.is_empty() && proposals.len() > 1 && highest == Some(level);
    if is_whole { Ok(proposals) } else { Err(DecodeError::Damaged) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        access_key::Author,
        command::{
            Expect,
            source::{Guard, Source, Tail},
        },
        feature::TEST_LEVEL,
        key::Key,
        time::Timestamp,
    };

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    fn delete(number: usize) -> Proposal {
        let (definition, key) = (key("d"), key(&format!("k{number}")));
        let command = Command::DeleteConfig { definition, key, expect: Expect::At(number as u64) };
        let (at, by) = (Timestamp(7), "root".into());
        Proposal {
            at,
            by,
            reason: None,
            request: None,
            definition_read: Some(3),
            command,
            author: Author::Root,
            tail: None,
        }
    }

    fn encoded(count: usize) -> Vec<u8> {
        encode((0..count).map(|number| delete(number).to_bytes()).collect())
    }

    #[test]
    fn a_group_is_decoded_as_it_was_encoded() {
        for count in [1, 2, 7, GROUP_PROPOSALS_MAX] {
            let expected: Vec<Proposal> = (0..count).map(delete).collect();
            assert_eq!(decode(&encoded(count)), Ok(expected));
        }
        assert_eq!(encoded(1), delete(0).to_bytes(), "one alone is no group");
    }

    #[test]
    fn what_is_no_group_is_damaged() {
        let damaged = |bytes: &[u8]| assert_eq!(decode(bytes), Err(DecodeError::Damaged), "{bytes:?}");
        let two = encoded(2);
        for length in 0..two.len() {
            damaged(&two[..length]);
        }
        damaged(&[&two[..], &[0]].concat());
        damaged(&encoded(GROUP_PROPOSALS_MAX + 1));
        damaged(&encode(Vec::new()));
        let group = |parts: &[&[u8]]| encode(parts.iter().map(|part| part.to_vec()).collect());
        let one = delete(1).to_bytes();
        damaged(&group(&[&two, &one]));
        let raise = Proposal { command: Command::RaiseFeatureLevel { to: 1 }, ..delete(1) }.to_bytes();
        damaged(&group(&[&one, &raise]));
        let tail = Tail::of(Source::Direct, vec![Guard::Environment { name: key("e"), revision: None }]);
        let guarded = Proposal { tail, ..delete(1) };
        assert!(decode(&guarded.to_bytes()).is_ok() && !guarded.may_share_entry());
        damaged(&group(&[&one, &guarded.to_bytes()]));
        damaged(&group(&[&guarded.to_bytes(), &one]));
        // One proposal in the form of a group.
        damaged(&two[..1 + length_in_group(one.len())]);
        let mut lower = two.clone();
        lower[0] = GROUP;
        damaged(&lower);
        let long = Proposal { reason: Some("x".repeat(GROUP_BYTES_MAX)), ..delete(1) }.to_bytes();
        damaged(&group(&[&one, &long]));
    }

    #[test]
    fn the_first_byte_says_who_can_read_it() {
        let mut two = encoded(2);
        assert_eq!(feature_level_of(&two), 1);
        let next = u8::try_from(TEST_LEVEL).unwrap();
        two[0] = GROUP | next;
        assert_eq!(
            (feature_level_of(&two), decode(&two)),
            (TEST_LEVEL, Err(DecodeError::Unknown(TEST_LEVEL)))
        );
        assert_eq!(feature_level_of(&delete(1).to_bytes()), 1);
    }
}
