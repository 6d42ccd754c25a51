//! The encoding of proposals.

use super::{
    source::{Bypass, ChangeUse, Guard, Source},
    *,
};
use crate::limits::GUARDS_MAX;

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

fn delete(definition: &str) -> Proposal {
    let (definition, key) = (Key::parse(definition).unwrap(), Key::parse("k").unwrap());
    let command = Command::DeleteConfig { definition, key, expect: Expect::Any };
    Proposal::new(Timestamp(7), "root", Author::Root, command)
}

fn sources() -> Vec<Source> {
    let id = ChangeId::parse("aaaaaaaaaaaa").unwrap();
    let digest = [7; 32];
    let bypass = Bypass { id: id.clone(), digest, text: "{}".into() };
    vec![
        Source::Direct,
        Source::Change(ChangeUse { id, edition: 1, digest }),
        Source::Bypass(Box::new(bypass)),
    ]
}

#[test]
fn a_tail_is_absent_where_it_says_nothing_and_every_other_one_is_read_as_it_was_written() {
    let guard = |number: usize| Guard::Environment {
        name: Key::parse(&format!("e{number}")).unwrap(),
        revision: Some(number as u64),
    };
    let plain = delete("d").to_bytes();
    for source in sources() {
        for count in [0, 1, GUARDS_MAX] {
            let guards: Vec<Guard> = (0..count).map(guard).collect();
            let proposal = Proposal { tail: Tail::of(source.clone(), guards.clone()), ..delete("d") };
            let bytes = proposal.to_bytes();
            let is_plain = source == Source::Direct && count == 0;
            assert_eq!((bytes == plain, proposal.tail.is_none()), (is_plain, is_plain));
            assert_eq!(proposal.may_share_entry(), is_plain);
            assert!(bytes.starts_with(&plain));
            let read = Proposal::from_bytes(&bytes).unwrap();
            assert_eq!((read.source(), read.guards()), (&source, &guards[..]));
            assert_eq!(read, proposal);
        }
    }
}

#[test]
fn a_tail_that_is_cut_or_longer_or_says_nothing_is_damage() {
    let damaged = |bytes: &[u8]| assert_eq!(Proposal::from_bytes(bytes), Err(DecodeError::Damaged));
    let plain = delete("d").to_bytes();
    let guards = vec![Guard::Environment { name: Key::parse("e").unwrap(), revision: None }];
    for source in sources() {
        let tail = Tail::of(source, guards.clone());
        let bytes = Proposal { tail, ..delete("d") }.to_bytes();
        // Without all of its tail, it is another proposal, and a valid one.
        for length in plain.len() + 1..bytes.len() {
            damaged(&bytes[..length]);
        }
        damaged(&[&bytes[..], &[0]].concat());
    }
    // The empty tail, an unknown source, and too many guards.
    damaged(&[&plain[..], &[0, 0]].concat());
    damaged(&[&plain[..], &[3, 0]].concat());
    let many = vec![guards[0].clone(); GUARDS_MAX + 1];
    damaged(&Proposal { tail: Tail::of(Source::Direct, many), ..delete("d") }.to_bytes());
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
