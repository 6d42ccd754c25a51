//! The encoding of proposals.

use super::*;

#[test]
fn a_proposal_round_trips_and_a_longer_or_newer_one_is_rejected() {
    let proposal = Proposal {
        at: Timestamp(7),
        by: "root".into(),
        reason: None,
        request: None,
        definition_read: Some(3),
        command: Command::DeleteConfig {
            definition: Key::parse("d").unwrap(),
            key: Key::parse("k").unwrap(),
            expect: Expect::At(9),
        },
        author: Author::Root,
        tail: None,
    };
    let mut bytes = proposal.to_bytes();
    assert_eq!(Proposal::from_bytes(&bytes), Ok(proposal));
    bytes.push(0);
    assert_eq!(Proposal::from_bytes(&bytes), Err(DecodeError::Damaged));
    bytes[0] = 9;
    assert_eq!(Proposal::from_bytes(&bytes), Err(DecodeError::Unknown(9)));
    bytes.pop();
    bytes[0] = 0;
    assert_eq!(Proposal::from_bytes(&bytes), Err(DecodeError::Damaged), "this command is one of level 1");
}

/// Bytes of a batch in a batch, a million levels deep: decoding a level takes some of the stack.
#[test]
fn a_batch_in_a_batch_is_damaged_at_any_depth() {
    let delete = |definition_read| BatchStep {
        definition_read,
        command: Command::DeleteConfig {
            definition: Key::parse("d").unwrap(),
            key: Key::parse("k").unwrap(),
            expect: Expect::Any,
        },
    };
    let batch = |steps| Proposal {
        at: Timestamp(7),
        by: "root".into(),
        reason: None,
        request: None,
        definition_read: None,
        command: Command::Batch(steps),
        author: Author::Root,
        tail: None,
    };
    let flat = batch(vec![delete(None), delete(Some(3))]);
    assert_eq!(Proposal::from_bytes(&flat.to_bytes()), Ok(flat));
    let mut deep = batch(Vec::new()).to_bytes();
    deep.pop();
    // One step, no definition read, a batch.
    deep.extend([1, 0, 9].repeat(1_000_000));
    deep.push(0);
    assert_eq!(Proposal::from_bytes(&deep), Err(DecodeError::Damaged));
    let inner = BatchStep { definition_read: None, command: Command::Batch(vec![delete(None)]) };
    assert_eq!(Proposal::from_bytes(&batch(vec![inner]).to_bytes()), Err(DecodeError::Damaged));
}
