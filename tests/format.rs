//! The stored and sent forms, byte for byte, as they were first written.
//!
//! A log that was written by an older version must be read by every newer one. When a test here fails, the form
//! has changed: bring the old form back and put the new thing at the end of its enum. The literals are changed
//! never; new ones are added.

use std::{fmt::Debug, sync::Arc};

use concord::{
    model::{
        command::{Applied, Command, Expect, Proposal, RequestStamp, Verdict},
        error::{Fault, Invalid, Rejection, Step},
        key::Key,
        record::{Config, Definition, Entry},
        time::Timestamp,
    },
    raft::{Member, identity::Identity},
    state::Remembered,
    store::{Position, StoredChange, StoredEdit},
};
use serde::{Serialize, de::DeserializeOwned};

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plain(command: Command) -> Proposal {
    let at = Timestamp(1_763_000_000_000_100);
    Proposal { at, by: "root".into(), reason: None, request: None, definition_read: None, command }
}

fn full(command: Command) -> Proposal {
    let request = Some(RequestStamp { id: [1; 16], print: [2; 16] });
    Proposal { reason: Some("why".into()), request, definition_read: Some(300), ..plain(command) }
}

#[track_caller]
fn entry(proposal: &Proposal, expected: &str) {
    let bytes = proposal.to_bytes();
    assert_eq!(hex(&bytes), expected, "{proposal:?}");
    assert_eq!(Proposal::from_bytes(&bytes).as_ref(), Ok(proposal));
}

#[track_caller]
fn form<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, expected: &str) {
    let bytes = postcard::to_stdvec(value).unwrap();
    assert_eq!(hex(&bytes), expected, "{value:?}");
    assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), value);
}

#[test]
fn entries_of_the_log() {
    entry(
        &plain(Command::CreateDefinition { key: key("d"), indexes: vec!["a.b".into()], schema: None }),
        "01e4e0f4e586ee900304726f6f740000000001640103612e6200",
    );
    let schema = Some(Arc::from("{}"));
    entry(
        &full(Command::CreateDefinition { key: key("d"), indexes: vec![], schema }),
        "01e4e0f4e586ee900304726f6f74010377687901010101010101010101010101010101010202020202020202020202020202020201ac020001640001027b7d",
    );
    entry(
        &full(Command::SetIndexes { key: key("d"), indexes: vec!["a".into()], expect: Expect::Any }),
        "01e4e0f4e586ee900304726f6f74010377687901010101010101010101010101010101010202020202020202020202020202020201ac0201016401016100",
    );
    entry(
        &plain(Command::DeleteDefinition { key: key("d"), expect: Expect::Present, restrict: true }),
        "01e4e0f4e586ee900304726f6f740000000201640201",
    );
    let entries = Box::from([Entry { slot: 1, value: Box::from(*b"\x05x\x00") }]);
    entry(
        &full(Command::WriteConfig {
            definition: key("d"),
            key: key("k"),
            data: Arc::from(r#"{"n":1}"#),
            entries,
            expect: Expect::At(300),
        }),
        "01e4e0f4e586ee900304726f6f74010377687901010101010101010101010101010101010202020202020202020202020202020201ac02030164016b077b226e223a317d01010305780003ac02",
    );
    entry(
        &plain(Command::DeleteConfig { definition: key("d"), key: key("k"), expect: Expect::Any }),
        "01e4e0f4e586ee900304726f6f74000000040164016b00",
    );
    entry(&plain(Command::Compact { floor: 300 }), "01e4e0f4e586ee900304726f6f7400000005ac02");
}

#[test]
fn expectations() {
    form(&Expect::Any, "00");
    form(&Expect::Absent, "01");
    form(&Expect::Present, "02");
    form(&Expect::At(128), "038001");
    form(&Expect::None, "04");
    form(&Expect::Read(None), "0500");
    form(&Expect::Read(Some(300)), "0501ac02");
}

#[test]
fn verdicts() {
    let applied = Applied { revision: 7, at: Timestamp(300), created: true };
    form(&Verdict::Decided(Ok(applied)), "000007ac0201");
    let rejected = |rejection: Rejection| Verdict::Decided(Err(rejection));
    form(&rejected(Rejection::DefinitionExists), "000100");
    form(&rejected(Rejection::DefinitionNotFound), "000101");
    form(&rejected(Rejection::DefinitionNotEmpty(3)), "00010203");
    form(&rejected(Rejection::ConfigExists), "000103");
    form(&rejected(Rejection::ConfigNotFound), "000104");
    form(&rejected(Rejection::Precondition { current: 300 }), "000105ac02");
    form(&rejected(Rejection::RequestReused), "000106");
    form(&Verdict::Stale, "01");
}

#[test]
fn refusals_between_nodes() {
    let loc = vec![Step::Name("a".into()), Step::Place(2)];
    form(&Invalid::Faults(vec![Fault::at(loc, "wrong")]), "00010577726f6e67020001610102");
    form(&Invalid::TooLarge("big".into()), "0103626967");
}

#[test]
fn records() {
    let (created_at, modified_at) = (Timestamp(100), Timestamp(200));
    let schema = Some(Arc::from(r#"{"type":"object"}"#));
    let definition = Definition {
        id: 5,
        key: key("d"),
        indexes: vec!["a".into()],
        schema,
        created_at,
        modified_at,
        revision: 9,
    };
    form(&definition, "05016401016101117b2274797065223a226f626a656374227d64c80109");
    form(&Definition { schema: None, ..definition }, "0501640101610064c80109");
    let config = Config {
        key: key("k"),
        data: Arc::from(r#"{"a":1}"#),
        entries: Box::from([Entry { slot: 0, value: Box::from([1, 2]) }]),
        created_at,
        modified_at,
        revision: 9,
    };
    form(&config, "016b077b2261223a317d010002010264c80109");
}

#[test]
fn remembered_requests() {
    let stamp = RequestStamp { id: [3; 16], print: [4; 16] };
    let outcome = Ok(Applied { revision: 9, at: Timestamp(200), created: false });
    form(
        &Remembered { stamp, at: Timestamp(200), revision: 9, outcome },
        "0303030303030303030303030303030304040404040404040404040404040404c801090009c80100",
    );
    let outcome = Err(Rejection::ConfigExists);
    form(
        &Remembered { stamp, at: Timestamp(200), revision: 10, outcome },
        "0303030303030303030303030303030304040404040404040404040404040404c8010a0103",
    );
}

#[test]
fn changes_of_the_history() {
    let (created_at, modified_at) = (Timestamp(100), Timestamp(200));
    let config = Arc::new(Config {
        key: key("k"),
        data: Arc::from(r#"{"a":1}"#),
        entries: Box::from([Entry { slot: 0, value: Box::from([1, 2]) }]),
        created_at,
        modified_at,
        revision: 9,
    });
    let edits = vec![
        StoredEdit::Definition { id: 5, key: key("d"), before: Some(5), after: None },
        StoredEdit::Reindexed { definition: 5 },
        StoredEdit::Config { definition: 5, key: key("k"), before: Some(6), after: None },
        StoredEdit::Forget(6),
        StoredEdit::ConfigOver { definition: 5, before: config, after: None },
    ];
    let (revision, at, by, reason) = (7, Timestamp(300), "root".into(), Some("why".into()));
    form(
        &StoredChange { revision, at, by, reason, edits },
        "07ac0204726f6f740103776879050005016401050001050205016b01060004060505016b077b2261223a317d010002010264c8010900",
    );
}

#[test]
fn places_members_and_identities() {
    form(&Position { index: 300, stamp: vec![1, 2, 3] }, "ac0203010203");
    let member = Member { id: 2, api_addr: "127.0.0.1:8102".into(), peer_addr: "127.0.0.1:8202".into() };
    form(&member, "020e3132372e302e302e313a383130320e3132372e302e302e313a38323032");
    let identity = Identity { cluster_id: uuid::Uuid::from_u128(0x1234), node_id: 2, format: 1 };
    let text = r#"{"cluster_id":"00000000-0000-0000-0000-000000001234","node_id":2,"format":1}"#;
    assert_eq!(serde_json::to_string(&identity).unwrap(), text);
    assert_eq!(serde_json::from_str::<Identity>(text).unwrap(), identity);
}
