//! The records, the rollbacks that they show, and what a member may then do.

use super::*;
use crate::{
    Consensus, suite,
    wire::{WireVoteRequest, WireVoteResponse},
};
use concord_net::{Member, call::Call, identity::FORMAT};

fn id(term: u64, index: u64) -> WireLogId {
    WireLogId { index, term, node: 1 }
}

fn vote(term: u64) -> WireVote {
    WireVote { term, node: 1, committed: true }
}

fn at(term: u64, index: u64) -> Bound {
    Bound { vote: Some(vote(term)), last: Some(id(term, index)) }
}

fn open(directory: &Path, at_start: Bound) -> Witness {
    let me = Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 2, format: FORMAT };
    Witness::open(&me, directory, at_start).unwrap()
}

/// The answer of another member that has this record of node 2.
fn told(past: LastKnown) -> Testimony {
    Testimony {
        past: LastKnown::default(),
        now: Bound::default(),
        condition: Condition::default(),
        known: BTreeMap::from([(2, past)]),
        confirmed: None,
        membership: None,
        contradicts: false,
    }
}

/// The record of a member whose start the others have recorded.
fn past_of(witness: &Witness, applied: Option<WireLogId>) -> LastKnown {
    let memory = witness.memory();
    LastKnown { start: memory.start, losses: memory.remembered.losses, applied }
}

#[test]
fn starts_are_counted_durably_and_a_directory_that_was_put_back_lacks_one() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path(), Bound::default());
    assert_eq!(first.memory().start.number, 1);
    first.settle().unwrap();
    let image = fs::read(directory.path().join(FILE)).unwrap();
    let seen = past_of(&first, Some(id(1, 5)));
    let second = open(directory.path(), at(1, 9));
    assert_eq!(second.forgotten_at_start(&told(seen)), None, "the next start of the same disk");
    let seen = past_of(&second, Some(id(1, 9)));
    assert_eq!(second.forgotten_at_start(&told(seen)), None, "the answer to a question that was repeated");
    let again = open(directory.path(), at(1, 9));
    assert_eq!(again.memory().start.number, 2, "the one before was not settled");
    assert_eq!(again.forgotten_at_start(&told(seen)), None, "but somebody may have heard of it");

    fs::write(directory.path().join(FILE), image).unwrap();
    for _ in 0..5 {
        // However often it starts before it reaches a member that has the record.
        drop(open(directory.path(), at(1, 9)));
    }
    let rolled_back = open(directory.path(), at(1, 9));
    let why = rolled_back.forgotten_at_start(&told(seen)).unwrap();
    assert!(why.contains("a start with number 2, which is not on this disk"), "{why}");
    assert!(rolled_back.forgotten_meanwhile(&told(seen), Some(id(1, 9))).is_some());
    rolled_back.lose(&BTreeMap::from([(1, told(seen))])).unwrap();
    let later = open(directory.path(), at(1, 9));
    assert_eq!(later.loss(), Some(Loss::Unknown), "it does not forget that it has forgotten");
    later.lose(&BTreeMap::from([(1, told(seen))])).unwrap();
    later.bind(at(1, 9)).unwrap();
    let seen = past_of(&later, Some(id(1, 9)));
    let bound = open(directory.path(), at(1, 9));
    assert_eq!(bound.forgotten_at_start(&told(seen)), None);
    assert_eq!(bound.loss(), Some(Loss::Forgotten(at(1, 9))));
}

/// A member that is killed while it asks, and starts again, has not lost a start.
#[test]
fn a_start_that_ended_before_it_settled_is_no_loss_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path(), at(1, 9)).settle().unwrap();
    let record = |witness: &Witness, heard: &mut LastKnown| heard.add(&past_of(witness, None));
    // Two members, and each hears of another start that ends soon.
    let (mut one, mut other) = (LastKnown::default(), LastKnown::default());
    record(&open(directory.path(), at(1, 9)), &mut one);
    record(&open(directory.path(), at(1, 9)), &mut other);
    let third = open(directory.path(), at(1, 9));
    assert_eq!((one.start.number, other.start.number, third.memory().start.number), (2, 2, 2));
    assert_eq!(third.forgotten_at_start(&told(one)), None);
    record(&third, &mut one);
    assert!(third.outnumber(&BTreeMap::from([(1, told(one))])), "the member has recorded another start");
    assert_eq!(third.forgotten_at_start(&told(one)), None);
    record(&third, &mut one);
    assert!(!third.outnumber(&BTreeMap::from([(1, told(one))])));
    assert_eq!(one.start, third.memory().start, "the member knows it before it settles");
    third.settle().unwrap();
    // The other member answers later.
    assert_eq!(third.forgotten_meanwhile(&told(other), Some(id(1, 9))), None);
    third.outnumber(&BTreeMap::from([(3, told(other))]));
    record(&third, &mut other);
    assert_eq!(other.start, third.memory().start);
    third.save().unwrap();
    let next = open(directory.path(), at(1, 9));
    for past in [one, other] {
        assert_eq!(next.forgotten_at_start(&told(past)), None);
        assert!(next.memory().start.number > past.start.number);
    }
}

#[test]
fn a_log_that_is_shorter_than_it_was_has_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let seen = |witness: &Witness, applied| told(past_of(witness, applied));
    let witness = open(directory.path(), at(3, 20));
    for (applied, is_forgotten) in [
        (None, false),
        (Some(id(3, 20)), false),
        (Some(id(2, 90)), false), // an earlier term: its end was truncated
        (Some(id(3, 21)), true),
        (Some(id(4, 10)), true),
    ] {
        assert_eq!(
            witness.forgotten_at_start(&seen(&witness, applied)).is_some(),
            is_forgotten,
            "{applied:?}"
        );
        let last = Some(id(3, 20));
        assert_eq!(witness.forgotten_meanwhile(&seen(&witness, applied), last).is_some(), is_forgotten);
    }
    for (confirmed, is_forgotten) in [
        ((vote(3), id(3, 20)), false),
        ((vote(3), id(3, 21)), true),
        ((vote(4), id(3, 2)), true),   // it has forgotten the vote
        ((vote(2), id(2, 90)), false), // no longer a leader
    ] {
        let answer = Testimony { confirmed: Some(confirmed), ..seen(&witness, None) };
        assert_eq!(witness.forgotten_at_start(&answer).is_some(), is_forgotten, "{confirmed:?}");
    }
}

#[test]
fn a_past_is_replaced_by_a_later_one_only() {
    let start = |number, id| StartNumber { number, id };
    let past_at = |start, losses, applied| LastKnown { start, losses, applied };
    let mut past = past_at(start(3, 7), 0, Some(id(2, 10)));
    past.add(&past_at(start(3, 8), 0, Some(id(1, 90))));
    assert_eq!(past, past_at(start(3, 7), 0, Some(id(2, 10))), "the first of two twins, the later entry");
    past.add(&past_at(start(4, 9), 0, None));
    assert_eq!(past, past_at(start(4, 9), 0, Some(id(2, 10))));
    past.add(&past_at(start(5, 1), 1, Some(id(1, 3))));
    assert_eq!(past, past_at(start(5, 1), 1, Some(id(1, 3))), "it has lost the others, and knows it");
    past.add(&past_at(start(4, 9), 0, Some(id(2, 10))));
    assert_eq!(past, past_at(start(5, 1), 1, Some(id(1, 3))), "what somebody remembers from before");
}

#[test]
fn a_damaged_file_holds_nothing_and_a_new_start_of_another_member_is_news() {
    let directory = tempfile::tempdir().unwrap();
    let witness = open(directory.path(), Bound::default());
    let start = StartNumber { number: 5, id: 6 };
    let heard = Testimony {
        past: LastKnown { start, losses: 0, applied: Some(id(1, 4)) },
        ..told(LastKnown::default())
    };
    assert!(witness.hear(3, &heard));
    assert!(!witness.hear(3, &heard));
    witness.save().unwrap();
    assert_eq!(Remembered::read(directory.path()).unwrap().others[&3].start, start);
    let file = directory.path().join(FILE);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(Remembered::read(directory.path()).unwrap(), Remembered::default());
}

#[tokio::test]
async fn a_bounded_member_votes_for_nobody_who_lacks_what_it_may_have_had() {
    let directory = tempfile::tempdir().unwrap();
    let witness = open(directory.path(), at(2, 3));
    let request = |term, last| {
        let encoded = wire::to_bytes(&(vote(term), Some(last), false));
        wire::from_bytes::<WireVoteRequest>(&encoded).unwrap()
    };
    witness.participation.send_replace(Participation::Lost);
    assert!(witness.judge_vote(&request(9, id(9, 9))).await.is_err());
    assert_eq!(witness.judge_leader(vote(9)).await, Err(None));
    assert!(!witness.is_open());

    witness.bind(at(4, 30)).unwrap();
    let is_refused = |answer: Result<Option<WireVoteResponse>, _>| match answer {
        Ok(Some(WireVoteResponse { granted: false, .. })) => true,
        Ok(None) => false,
        other => panic!("{other:?}"),
    };
    for (term, last, refused) in
        [(4, id(4, 30), false), (5, id(4, 29), true), (5, id(3, 90), true), (3, id(4, 30), true)]
    {
        assert_eq!(is_refused(witness.judge_vote(&request(term, last)).await), refused, "{term} {last:?}");
    }
    assert!(witness.judge_own_vote(&request(5, id(4, 29))).await.is_err(), "it lacks what it had");
    assert!(is_refused(witness.judge_own_vote(&request(4, id(4, 30))).await), "it may have led in that term");
    assert!(!is_refused(witness.judge_own_vote(&request(5, id(4, 30))).await));
    assert_eq!(witness.judge_leader(vote(3)).await, Err(Some(vote(4))));
    assert_eq!(witness.judge_leader(vote(4)).await, Ok(()));
    assert!(at(4, 30).is_passed_by(&at(5, 1)) && !at(4, 30).is_passed_by(&at(4, 29)));
    assert_eq!(open(directory.path(), at(2, 3)).loss(), Some(Loss::Forgotten(at(4, 30))));

    witness.settle().unwrap();
    assert!(witness.is_open());
    let own = witness.conditions().remove(&2).unwrap();
    assert_eq!(own.rolled_back, Some(RolledBack::CaughtUp));
}

fn missing(nodes: &[NodeId], has_majority: bool) -> Missing {
    Missing { nodes: nodes.to_vec(), has_majority }
}

/// The directory of node 2 with a member that has lost what it cannot know.
fn lost(directory: &Path) -> Witness {
    Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 2, format: FORMAT }.write(directory).unwrap();
    let witness = open(directory, at(1, 1));
    witness.lose(&BTreeMap::new()).unwrap();
    witness
}

#[test]
fn an_operator_vouches_only_for_a_member_that_waits_with_a_majority() {
    let directory = tempfile::tempdir().unwrap();
    assert!(vouch(directory.path()).unwrap_err().contains("not the data directory"));
    drop(open(directory.path(), at(1, 1)));
    let witness = lost(directory.path());
    let refusal = |directory: &Path| vouch_for_missing(directory).unwrap_err();
    assert!(refusal(directory.path()).contains("has not said"), "it has asked nobody yet");
    let shown = |witness: &Witness| witness.conditions().remove(&2).unwrap().rolled_back;
    assert_eq!(shown(&witness), None, "it has asked nobody yet");
    witness.record_missing(missing(&[1, 3], false)).unwrap();
    assert_eq!(shown(&witness), Some(RolledBack::Waiting(missing(&[1, 3], false))));
    let text = refusal(directory.path());
    assert!(text.contains("waits for node 1, node 3") && text.contains("no majority"), "{text}");
    witness.record_missing(missing(&[3], true)).unwrap();
    assert_eq!(vouch_for_missing(directory.path()).unwrap().nodes, [3]);
    witness.bind(at(1, 1)).unwrap();
    assert!(refusal(directory.path()).contains("has not said"), "it has a bound and waits for nobody");
    witness.settle().unwrap();
    assert!(refusal(directory.path()).contains("waits for no other member"));
}

#[test]
fn a_vouch_counts_once_for_its_start_and_its_voters() {
    let directory = tempfile::tempdir().unwrap();
    let witness = lost(directory.path());
    witness.record_missing(missing(&[3], true)).unwrap();
    let bytes = wire::to_bytes(&vouch_for_missing(directory.path()).unwrap());
    let write = || fs::write(directory.path().join(VOUCHED), &bytes).unwrap();
    write();
    assert!(!witness.take_vouch(&[1, 3]).unwrap(), "node 1 is another voter");
    assert!(witness.take_vouch(&[3]).unwrap());
    assert!(!witness.take_vouch(&[3]).unwrap());

    // A copy of the directory with the file in it, or the same directory at the next start.
    write();
    let again = open(directory.path(), at(1, 1));
    assert!(!directory.path().join(VOUCHED).exists() && !again.take_vouch(&[3]).unwrap());
    assert!(vouch_for_missing(directory.path()).is_err(), "whom the start before waited for");
    write();
    assert!(!again.take_vouch(&[3]).unwrap(), "written too late");
    fs::write(directory.path().join(VOUCHED), b"").unwrap();
    assert!(!again.take_vouch(&[3]).unwrap(), "an empty file");
}

#[test]
fn the_operator_is_told_whether_the_member_took_the_vouch() {
    let directory = tempfile::tempdir().unwrap();
    let witness = lost(directory.path());
    witness.record_missing(missing(&[3], true)).unwrap();
    let told = std::thread::scope(|threads| {
        let operator = threads.spawn(|| vouch(directory.path()));
        while !witness.take_vouch(&[3]).unwrap() {
            std::thread::yield_now();
        }
        operator.join().unwrap()
    });
    assert_eq!(told, Ok(vec![3]));
    let told = std::thread::scope(|threads| {
        let operator = threads.spawn(|| vouch(directory.path()));
        while !directory.path().join(VOUCHED).exists() {
            std::thread::yield_now();
        }
        drop(open(directory.path(), at(1, 1)));
        operator.join().unwrap()
    });
    assert!(told.unwrap_err().contains("has started again"));
}

#[test]
fn another_process_with_this_id_is_shown_and_this_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let witness = open(directory.path(), Bound::default());
    let own = witness.memory().start;
    witness.hear_own_id(own);
    assert!(!witness.conditions()[&2].is_copied);
    witness.hear_own_id(StartNumber { id: own.id ^ 1, ..own });
    assert!(witness.conditions()[&2].is_copied && witness.memory().own_condition().is_copied);
}

#[test]
fn what_the_operator_vouched_for_is_not_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let witness = open(directory.path(), at(1, 9));
    witness.bind(at(1, 20)).unwrap();
    witness.rebind(at(1, 12)).unwrap();
    assert_eq!(*witness.participation.borrow(), Participation::Bounded(at(1, 12)));
    let again = open(directory.path(), at(1, 9));
    assert_eq!(again.loss(), Some(Loss::Forgotten(at(1, 12))));
    assert_eq!(again.memory().remembered.losses, 1, "it is the same loss");
}

#[test]
fn a_directory_that_was_put_back_to_a_time_of_catching_up_has_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let witness = open(directory.path(), at(1, 9));
    witness.bind(at(1, 20)).unwrap();
    let image = fs::read(directory.path().join(FILE)).unwrap();
    witness.settle().unwrap();
    let (old, new) = (past_of(&witness, Some(id(1, 20))), past_of(&witness, Some(id(1, 50))));

    fs::write(directory.path().join(FILE), image).unwrap();
    let back = open(directory.path(), at(1, 9));
    assert_eq!(back.forgotten_at_start(&told(old)), None, "it knows that it lacks these");
    assert!(back.forgotten_at_start(&told(new)).is_some());
    assert!(back.forgotten_meanwhile(&told(new), Some(id(1, 9))).is_some());
    let before = LastKnown { losses: 0, applied: Some(id(1, 90)), ..old };
    assert_eq!(back.forgotten_at_start(&told(before)), None, "what it is known to have lost");
    assert!(back.forgotten_at_start(&told(LastKnown { losses: 2, ..old })).is_some());
}

/// Nothing in a directory that was put back to the time between joining and the first entry says what it has lost.
#[tokio::test]
async fn a_member_with_an_empty_log_that_has_started_before_waits_to_be_told_of_the_members() {
    let directory = tempfile::tempdir().unwrap();
    let opens = async |consensus: &Consensus| {
        let mut participation = consensus.inner.witnesses.witness.participation.subscribe();
        let opens = participation.wait_for(|now| *now == Participation::Open);
        tokio::time::timeout(Duration::from_secs(30), async { opens.await.map(drop) })
            .await
            .unwrap()
            .unwrap();
    };
    let consensus = suite::start(directory.path()).await.unwrap();
    opens(&consensus).await;
    consensus.shutdown().await;

    let consensus = suite::start(directory.path()).await.unwrap();
    // Longer than any answer is waited for.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::time::resume();
    assert_eq!(*consensus.inner.witnesses.witness.participation.borrow(), Participation::Asking);
    let member = Member { id: 1, api_addr: "127.0.0.1:1".into(), peer_addr: "127.0.0.1:2".into() };
    let members = WireMembership { voters: vec![vec![1]], nodes: vec![(1, member)] };
    let told = Testimony { membership: Some((id(1, 1), members)), ..told(LastKnown::default()) };
    consensus.receive(2, Call::Witness, wire::to_bytes(&told).into()).await.unwrap();
    opens(&consensus).await;
    consensus.shutdown().await;
}
