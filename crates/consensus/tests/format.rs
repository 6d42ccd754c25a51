//! The stored and sent formats, byte for byte, as they were first written. Every newer version must read them.
//!
//! When a test here fails, restore the format, and put a new variant at the end of its enum. Literals are only added.

mod changes;
mod identity;
mod rollouts;

use std::{fmt::Debug, sync::Arc};

use concord_model::{
    access_key::{
        AccessKey, Attestation, AttestedBy, Attester, Author, Grant, Grants, HalfAttestation, KeyId,
        KeySecret, KeyUse, Pattern, Quota, Verb,
    },
    audit::{AnchorAcceptance, AnchoredLog, AuditAnchor, AuditAnchors},
    command::{
        AccessCommand, Applied, AuditCommand, BatchStep, Command, DecodeError, Done, Expect, IdempotencyKey,
        KeyTerms, Proposal, StepOutcome, SystemCommand, THIS_ENTRY, Undeletion, Verdict,
    },
    entry,
    error::{Invalid, LocSegment, NotAttestable, NothingToRestore, Rejection, StoredQuota, Violation},
    feature::level_max,
    index::{Build, Indexing},
    key::Key,
    record::{Config, Definition, DeletedId, IndexEntry, VoidRevisions},
    schema::{Formats, StoredSchema},
    system::{
        SystemBody, SystemRecord,
        change::ChangeId,
        environment::{Direct, Environment, EnvironmentName, Freeze},
        person::{Person, PersonId, PersonLabel},
    },
    time::Timestamp,
};
use concord_net::{Member, identity::Identity};
use concord_state::RememberedOutcome;
use concord_storage::{Position, StoredChange, StoredEdit};
use serde::{Serialize, de::DeserializeOwned};

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plain(command: Command) -> Proposal {
    Proposal::new(Timestamp(1_763_000_000_000_100), "root", Author::Root, command)
}

fn full(command: Command) -> Proposal {
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    Proposal { reason: Some("why".into()), request, definition_read: Some(300), ..plain(command) }
}

#[track_caller]
fn entry(proposal: &Proposal, expected: &str) {
    let bytes = proposal.to_bytes();
    assert_eq!(hex(&bytes), expected, "{proposal:?}");
    assert_eq!(Proposal::from_bytes(&bytes).as_ref(), Ok(proposal));
}

fn change_id() -> ChangeId {
    ChangeId::parse("aaaaaaaaaaaa").unwrap()
}

#[track_caller]
fn wire<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, expected: &str) {
    let bytes = postcard::to_stdvec(value).unwrap();
    assert_eq!(hex(&bytes), expected, "{value:?}");
    assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), value);
}

#[test]
fn entries_of_the_log() {
    entry(
        &plain(Command::CreateDefinition { key: key("d"), indexes: vec!["a.b".into()], schema: None }),
        "01e4e0f4e586ee900304726f6f740000000001640103612e620000",
    );
    let schema = Some(StoredSchema::from("{}"));
    entry(
        &full(Command::CreateDefinition { key: key("d"), indexes: vec![], schema }),
        "01e4e0f4e586ee900304726f6f74010377687901010101010101010101010101010101010202020202020202020202020202020201ac020001640001027b7d00",
    );
    entry(
        &full(Command::SetIndexes { key: key("d"), indexes: vec!["a".into()], expect: Expect::Any }),
        "01e4e0f4e586ee900304726f6f74010377687901010101010101010101010101010101010202020202020202020202020202020201ac020101640101610000",
    );
    entry(
        &plain(Command::DeleteDefinition {
            key: key("d"),
            expect: Expect::Present,
            restrict: true,
            keep: None,
        }),
        "01e4e0f4e586ee900304726f6f7400000002016402010000",
    );
    entry(
        &plain(Command::UndeleteDefinition(Undeletion {
            key: key("d"),
            of: DeletedId { deleted: 7, id: 5 },
            back: Vec::new(),
        })),
        "01e4e0f4e586ee900304726f6f740000000e016407050000",
    );
    entry(
        &plain(Command::SetProtection { key: key("d"), protected: true, expect: Expect::Present }),
        "01e4e0f4e586ee900304726f6f740000000f0164010200",
    );
    let entries = Box::from([IndexEntry { slot: 1, value: b"\x05x\x00".as_slice().into() }]);
    entry(
        &full(Command::WriteConfig {
            definition: key("d"),
            key: key("k"),
            data: Arc::from(r#"{"n":1}"#),
            entries,
            expect: Expect::At(300),
        }),
        "01e4e0f4e586ee900304726f6f74010377687901010101010101010101010101010101010202020202020202020202020202020201ac02030164016b077b226e223a317d01010305780003ac0200",
    );
    entry(
        &plain(Command::DeleteConfig { definition: key("d"), key: key("k"), expect: Expect::Any }),
        "01e4e0f4e586ee900304726f6f74000000040164016b0000",
    );
    entry(
        &plain(Command::Compact { compaction_revision: 300 }),
        "01e4e0f4e586ee900304726f6f7400000005ac0200",
    );
}

#[test]
fn entries_that_change_the_rules_of_a_definition() {
    let (schema, expect) = (Some(StoredSchema::from("{}")), Expect::At(9));
    entry(
        &plain(Command::SetSchema { key: key("d"), schema, expect, configs_read: Some(300) }),
        "01e4e0f4e586ee900304726f6f7400000006016401027b7d030901ac0200",
    );
    let expect = Expect::Present;
    entry(
        &plain(Command::SetSchema { key: key("d"), schema: None, expect, configs_read: None }),
        "01e4e0f4e586ee900304726f6f7400000006016400020000",
    );
    entry(
        &plain(Command::SetUnique { key: key("d"), paths: vec!["a".into()], expect, configs_read: Some(3) }),
        "01e4e0f4e586ee900304726f6f7400000007016401016102010300",
    );
}

#[test]
fn entries_of_index_builds() {
    entry(
        &plain(Command::BuildIndex { key: key("d"), begun: 300, cursor: None }),
        "01e4e0f4e586ee900304726f6f74000000080164ac020000",
    );
    entry(
        &plain(Command::BuildIndex { key: key("d"), begun: 300, cursor: Some(key("k")) }),
        "01e4e0f4e586ee900304726f6f74000000080164ac0201016b00",
    );
}

#[test]
fn batches() {
    let delete = |expect| Command::DeleteConfig { definition: key("d"), key: key("k"), expect };
    let steps = vec![
        BatchStep { definition_read: Some(300), command: delete(Expect::Any) },
        BatchStep { definition_read: Some(THIS_ENTRY), command: delete(Expect::Read(Some(THIS_ENTRY))) },
        BatchStep { definition_read: None, command: delete(Expect::At(9)) },
    ];
    entry(
        &plain(Command::Batch(steps)),
        "01e4e0f4e586ee900304726f6f7400000009030\
         1ac02040164016b00\
         01ffffffffffffffffff01040164016b0501ffffffffffffffffff01\
         00040164016b030900",
    );
}

#[test]
fn entries_of_the_cluster_itself_and_what_format_means() {
    let raise = |to| plain(Command::RaiseFeatureLevel { to });
    entry(&raise(1), "01e4e0f4e586ee900304726f6f740000000a0100");
    entry(&plain(Command::Forget { upto: 300 }), "01e4e0f4e586ee900304726f6f740000000bac0200");
    entry(&plain(Command::SkipRevisions { to: 300 }), "01e4e0f4e586ee900304726f6f7400000010ac0200");
    let log = AnchoredLog { cluster: [7; 16], node: 300 };
    let anchor = AuditCommand::Anchor { log, seq: 300, sha256: [8; 32] };
    entry(
        &plain(Command::Audit(anchor)),
        "01e4e0f4e586ee900304726f6f74000000110007070707070707070707070707070707ac02ac02080808080808080808080808080808080808080808080808080808080808080800",
    );
    entry(
        &plain(Command::Audit(AuditCommand::Accept { log })),
        "01e4e0f4e586ee900304726f6f74000000110107070707070707070707070707070707ac0200",
    );
    let (by, reason) = ("root".into(), Some("why".into()));
    wire(
        &AuditAnchors {
            log,
            revision: 9,
            anchors: vec![AuditAnchor { at: Timestamp(100), seq: 300, sha256: [8; 32] }],
            accepted: Some(AnchorAcceptance { at: Timestamp(100), by, reason }),
        },
        "07070707070707070707070707070707ac02090164ac020808080808080808080808080808080808080808080808080808080808080808016404726f6f740103776879",
    );
    // What `format` means is the variant of the schema: 1 is asserted, 2 is not.
    let stored = |formats| Some(StoredSchema { text: "{}".into(), formats });
    let create = |schema| plain(Command::CreateDefinition { key: key("d"), indexes: vec![], schema });
    entry(&create(stored(Formats::Asserted)), "01e4e0f4e586ee900304726f6f740000000001640001027b7d00");
    let (schema, expect) = (stored(Formats::Annotated), Expect::At(9));
    entry(
        &plain(Command::SetSchema { key: key("d"), schema, expect, configs_read: None }),
        "01e4e0f4e586ee900304726f6f7400000006016402027b7d03090000",
    );
    // An older version reads the first byte and refuses the entry.
    let later = raise(level_max() + 1).to_bytes();
    assert_eq!(Proposal::from_bytes(&later), Err(DecodeError::Unknown(level_max() + 1)));
}

#[test]
fn several_proposals_as_one_entry() {
    let delete = |expect| plain(Command::DeleteConfig { definition: key("d"), key: key("k"), expect });
    let proposals = [delete(Expect::Any), delete(Expect::At(300))];
    let bytes = entry::encode(proposals.iter().map(Proposal::to_bytes).collect());
    assert_eq!(
        hex(&bytes),
        "81\
         0000001801e4e0f4e586ee900304726f6f74000000040164016b0000\
         0000001a01e4e0f4e586ee900304726f6f74000000040164016b03ac0200"
    );
    assert_eq!(entry::decode(&bytes).as_deref(), Ok(&proposals[..]));
    assert_eq!(entry::feature_level_of(&bytes), 1);
}

#[test]
fn expectations() {
    wire(&Expect::Any, "00");
    wire(&Expect::Absent, "01");
    wire(&Expect::Present, "02");
    wire(&Expect::At(128), "038001");
    wire(&Expect::None, "04");
    wire(&Expect::Read(None), "0500");
    wire(&Expect::Read(Some(300)), "0501ac02");
}

#[test]
fn verdicts() {
    let applied = |done: Done| Verdict::Decided(Ok(Applied { revision: 7, at: Timestamp(300), done }));
    wire(&applied(Done::Single(StepOutcome::Created)), "000007ac020000");
    wire(&applied(Done::Single(StepOutcome::NoRecord)), "000007ac020003");
    wire(&applied(Done::Single(StepOutcome::Retained)), "000007ac020004");
    let steps = Box::from([StepOutcome::Deleted, StepOutcome::Created, StepOutcome::Changed]);
    wire(&applied(Done::Batch(steps)), "000007ac020103020001");
    let steps = Box::from([StepOutcome::Changed]);
    wire(&applied(Done::Transaction { conditions_held: false, steps }), "000007ac0202000101");
    let rejected = |rejection: Rejection| Verdict::Decided(Err(rejection));
    wire(&rejected(Rejection::DefinitionExists), "000100");
    wire(&rejected(Rejection::DefinitionNotFound), "000101");
    wire(&rejected(Rejection::DefinitionNotEmpty(3)), "00010203");
    wire(&rejected(Rejection::ConfigExists), "000103");
    wire(&rejected(Rejection::ConfigNotFound), "000104");
    wire(&rejected(Rejection::Precondition { current: 300 }), "000105ac02");
    wire(&rejected(Rejection::RequestReused), "000106");
    wire(&rejected(Rejection::NotUnique { path: "a".into(), by: key("k") }), "0001070161016b");
    let rejection = Box::new(Rejection::Precondition { current: 300 });
    wire(&rejected(Rejection::InBatch { index: 200, rejection }), "000108c80105ac02");
    wire(&rejected(Rejection::DefinitionProtected(key("d"))), "0001130164");
    wire(&Verdict::Stale, "01");
}

#[test]
fn refusals_between_nodes() {
    let loc = vec![LocSegment::Name("a".into()), LocSegment::Index(2)];
    wire(&Invalid::Violations(vec![Violation::at(loc, "wrong")]), "00010577726f6e67020001610102");
    wire(&Invalid::TooLarge("big".into()), "0103626967");
    wire(&Invalid::TooLargeAt(Violation::at(vec![LocSegment::Index(2)], "big")), "0203626967010102");
}

#[test]
fn records() {
    let (created_at, modified_at) = (Timestamp(100), Timestamp(200));
    let schema = Some(StoredSchema::from(r#"{"type":"object"}"#));
    let definition = Definition {
        id: 5,
        key: key("d"),
        indexes: vec!["a".into()],
        schema,
        indexing: Indexing::fresh(1),
        created_at,
        modified_at,
        revision: 9,
        unique: vec!["a".into()],
        protected: false,
        standing: <_>::default(),
    };
    wire(&definition, "05016401016101117b2274797065223a226f626a656374227d0100010064c80109010161000000");
    let definition = Definition { schema: None, unique: vec![], ..definition };
    wire(&definition, "050164010161000100010064c8010900000000");
    let build = Some(Build { begun: 8, slots: vec![300], cursor: Some(key("k")) });
    let indexing = Indexing { slots: vec![300], next: 301, build };
    wire(&Definition { indexing, ..definition }, "0501640101610001ac02ad02010801ac0201016b64c8010900000000");
    let config = Config {
        key: key("k"),
        data: Arc::from(r#"{"a":1}"#),
        entries: Box::from([IndexEntry { slot: 0, value: [1, 2].as_slice().into() }]),
        created_at,
        modified_at,
        revision: 9,
    };
    wire(&config, "016b077b2261223a317d010002010264c80109");
}

#[test]
fn remembered_requests() {
    let stamp = IdempotencyKey { id: [3; 16], fingerprint: [4; 16] };
    let outcome = Ok(Applied { revision: 9, at: Timestamp(200), done: Done::Single(StepOutcome::Changed) });
    wire(
        &RememberedOutcome { request: stamp, at: Timestamp(200), revision: 9, outcome },
        "0303030303030303030303030303030304040404040404040404040404040404c801090009c8010001",
    );
    let outcome = Err(Rejection::ConfigExists);
    wire(
        &RememberedOutcome { request: stamp, at: Timestamp(200), revision: 10, outcome },
        "0303030303030303030303030303030304040404040404040404040404040404c8010a0103",
    );
}

#[test]
fn changes_of_the_history() {
    let (created_at, modified_at) = (Timestamp(100), Timestamp(200));
    let config = Arc::new(Config {
        key: key("k"),
        data: Arc::from(r#"{"a":1}"#),
        entries: Box::from([IndexEntry { slot: 0, value: [1, 2].as_slice().into() }]),
        created_at,
        modified_at,
        revision: 9,
    });
    let edits = vec![
        StoredEdit::Definition { id: 5, key: key("d"), before: Some(5), after: None },
        StoredEdit::Reindexed { definition: 5 },
        StoredEdit::Config { definition: 5, key: key("k"), before: Some(6), after: None },
        StoredEdit::Forget(6),
        StoredEdit::ConfigWithBefore { definition: 5, before: config, after: None },
    ];
    let (revision, at, by, reason) = (7, Timestamp(300), "root".into(), Some("why".into()));
    wire(
        &StoredChange { revision, at, by, reason, edits },
        "07ac0204726f6f740103776879050005016401050001050205016b01060004060505016b077b2261223a317d010002010264c8010900",
    );
}

#[test]
fn changes_of_whole_definitions_in_the_history() {
    wire(&StoredEdit::Deleted { definition: 5, configs: 300, kept: true }, "0605ac0201");
    wire(&StoredEdit::Undeleted { definition: 5, configs: 300 }, "0805ac02");
    wire(&StoredEdit::Dropped { definition: 5 }, "0905");
    wire(&StoredEdit::Skipped(VoidRevisions { first: 5, last: 300 }), "0a05ac02");
    let definition = Definition {
        id: 5,
        key: key("d"),
        indexes: vec!["a".into()],
        schema: None,
        indexing: Indexing { slots: vec![0], next: 1, build: None },
        created_at: Timestamp(100),
        modified_at: Timestamp(200),
        revision: 6,
        unique: vec![],
        protected: false,
        standing: <_>::default(),
    };
    let edits = vec![StoredEdit::DefinitionWithBefore { before: Arc::new(definition), after: None }];
    let (revision, at, by, reason) = (7, Timestamp(300), "root".into(), None);
    wire(
        &StoredChange { revision, at, by, reason, edits },
        "07ac0204726f6f74000107050164010161000100010064c801060000000000",
    );
}

#[test]
fn places_members_and_identities() {
    wire(&Position { index: 300, raft_meta: vec![1, 2, 3] }, "ac0203010203");
    let member = Member { id: 2, api_addr: "127.0.0.1:8102".into(), peer_addr: "127.0.0.1:8202".into() };
    wire(&member, "020e3132372e302e302e313a383130320e3132372e302e302e313a38323032");
    let identity = Identity { cluster_id: uuid::Uuid::from_u128(0x1234), node_id: 2, format: 1 };
    let text = r#"{"cluster_id":"00000000-0000-0000-0000-000000001234","node_id":2,"format":1}"#;
    assert_eq!(serde_json::to_string(&identity).unwrap(), text);
    assert_eq!(serde_json::from_str::<Identity>(text).unwrap(), identity);
}

#[test]
fn quotas_of_what_is_stored() {
    for (quota, expected) in [(StoredQuota::Bytes, "0f0064ac02"), (StoredQuota::Records, "0f0164ac02")] {
        wire(&Rejection::QuotaExceeded { quota, limit: 100, needed: 300 }, expected);
    }
    wire(&Rejection::TestFailed { operation: 300 }, "11ac02");
    let nothing = |reason| Rejection::NothingToRestore(reason);
    wire(&nothing(NothingToRestore::Expired("old".into())), "1200036f6c64");
    wire(&nothing(NothingToRestore::NotThere("no".into())), "1201026e6f");
    wire(&nothing(NothingToRestore::Invalid(vec![Violation::new("no")])), "120201026e6f00");
    wire(&nothing(NothingToRestore::DefinitionNotThere("no".into())), "1203026e6f");
}

#[test]
fn access_keys() {
    let id = KeyId::parse("0123456789aZ").unwrap();
    let grant = Grant {
        verbs: [Verb::Read, Verb::Audit].into_iter().collect(),
        definitions: vec![Pattern::parse("a.*").unwrap(), Pattern::all()],
    };
    let quota = Quota { watches: Some(3), ..Quota::default() };
    let terms =
        KeyTerms { name: "n".into(), grants: Grants(vec![grant]), quota, expires_at: Some(Timestamp(300)) };
    let (sha256, expect) = ([7; 32], Expect::At(9));
    let entry_of = |command, expected: &str| entry(&plain(Command::Access(command)), expected);
    entry_of(
        AccessCommand::Create { id: id.clone(), terms: terms.clone(), sha256, person: None },
        "01e4e0f4e586ee900304726f6f740000000c000c30313233343536373839615a016e0181010203612e2a012a000000000103000001ac0207070707070707070707070707070707070707070707070707070707070707070000",
    );
    let person = Some(PersonLabel::parse("ada").unwrap());
    entry_of(
        AccessCommand::Create { id: id.clone(), terms: terms.clone(), sha256, person },
        "01e4e0f4e586ee900304726f6f740000000c000c30313233343536373839615a016e0181010203612e2a012a000000000103000001ac020707070707070707070707070707070707070707070707070707070707070707010361646100",
    );
    entry_of(
        AccessCommand::Change { id: id.clone(), terms: terms.clone(), expect },
        "01e4e0f4e586ee900304726f6f740000000c010c30313233343536373839615a016e0181010203612e2a012a000000000103000001ac02030900",
    );
    entry_of(
        AccessCommand::Revoke { id: id.clone(), expect },
        "01e4e0f4e586ee900304726f6f740000000c020c30313233343536373839615a030900",
    );
    entry_of(
        AccessCommand::Rotate { id: id.clone(), sha256, grace_us: 300, expect },
        "01e4e0f4e586ee900304726f6f740000000c030c30313233343536373839615a0707070707070707070707070707070707070707070707070707070707070707ac02030900",
    );
    entry_of(
        AccessCommand::MarkUsed { ids: vec![id.clone()] },
        "01e4e0f4e586ee900304726f6f740000000c04010c30313233343536373839615a00",
    );
    entry_of(AccessCommand::DisableRoot, "01e4e0f4e586ee900304726f6f740000000c0500");
    entry_of(AccessCommand::EnableRoot, "01e4e0f4e586ee900304726f6f740000000c0600");
    entry_of(
        AccessCommand::Attest { id: id.clone(), revision: 300 },
        "01e4e0f4e586ee900304726f6f740000000c070c30313233343536373839615aac0200",
    );
    let command = Command::DeleteConfig { definition: key("d"), key: key("k"), expect: Expect::Any };
    let author = Author::Key(KeyUse { id: id.clone(), revision: 300, secret: 299 });
    entry(
        &Proposal { by: id.to_string(), author, ..plain(command) },
        "01e4e0f4e586ee90030c30313233343536373839615a000000040164016b00010c30313233343536373839615aac02ab02",
    );
    entry(
        &Proposal { author: Author::Cluster, ..plain(Command::Access(AccessCommand::EnableRoot)) },
        "01e4e0f4e586ee900304726f6f740000000c0602",
    );
    let KeyTerms { name, grants, quota, expires_at } = terms;
    let secrets = vec![
        KeySecret { sha256, made: 5, until: Some(Timestamp(300)), is_own: false },
        KeySecret { sha256: [8; 32], made: 9, until: None, is_own: true },
    ];
    let (created_at, modified_at, created_by) = (Timestamp(100), Timestamp(200), "root".into());
    let stored = AccessKey {
        id,
        name,
        grants,
        quota,
        expires_at,
        created_at,
        created_by,
        modified_at,
        revision: 9,
        secrets,
        last_used_day: Some(300),
        person: Some(PersonId(300)),
        attestation: Some(Attestation { at: 301, by: AttestedBy::Root }),
        half_attested: None,
    };
    wire(
        &stored,
        "0c30313233343536373839615a016e0181010203612e2a012a000000000103000001ac026404726f6f74c801090207070707070707070707070707070707070707070707070707070707070707070501ac02000808080808080808080808080808080808080808080808080808080808080808090001\
         01ac0201ac0201ad020000",
    );
}

#[test]
fn attesters_of_a_key() {
    let by = |id: &str, person| Attester { key: KeyId::parse(id).unwrap(), person: PersonId(person) };
    let both = [by("000000000001", 300), by("000000000002", 301)];
    let half = HalfAttestation { at: 300, by: by("000000000001", 300) };
    wire(&half, "ac020c303030303030303030303031ac02");
    wire(&AttestedBy::Persons(both), "010c303030303030303030303031ac020c303030303030303030303032ad02");
}

#[test]
fn rejections_by_keys_and_environments() {
    for (rejection, expected) in [
        (Rejection::KeyEnded, "09"),
        (Rejection::RootDisabled, "0a"),
        (Rejection::KeyNotFound, "0b"),
        (Rejection::KeyExists, "0c"),
        (Rejection::TooManyKeys, "0d"),
        (Rejection::NoKeyForKeys, "0e"),
        (Rejection::Unauthored, "14"),
        (Rejection::ChangeRequired { environment: key("prod") }, "150470726f64"),
        (
            Rejection::EnvironmentFrozen { environment: key("prod"), until: Timestamp(300) },
            "160470726f64ac02",
        ),
        (Rejection::EnvironmentNotFound, "17"),
        (Rejection::TooManyEnvironments, "18"),
        (Rejection::NotAttestable(NotAttestable::NoPerson), "1900"),
        (Rejection::NotAttestable(NotAttestable::SecretOfOthers), "1901"),
        (Rejection::KeyNotAttested, "1a"),
        (Rejection::OwnKey, "1b"),
        (Rejection::TooManyPersons, "1c"),
    ] {
        wire(&rejection, expected);
    }
}

#[test]
fn system_records_and_their_commands() {
    let name = EnvironmentName::parse("prod").unwrap();
    let freezes = vec![Freeze { from: Timestamp(300), until: Timestamp(301) }];
    let after = Environment { direct: Direct::Refuse, approvals: 1, freezes };
    let put = SystemCommand::PutEnvironment {
        name: name.clone(),
        after: after.clone(),
        text: "{}".into(),
        expect: Expect::At(300),
    };
    entry(
        &plain(Command::System(put)),
        "01e4e0f4e586ee900304726f6f7400000012000470726f64010101ac02ad02027b7d03ac0200",
    );
    entry(
        &plain(Command::System(SystemCommand::DeleteEnvironment { name, expect: Expect::Any })),
        "01e4e0f4e586ee900304726f6f7400000012010470726f640000",
    );
    let record = |environment: Environment| SystemRecord {
        name: key("prod"),
        body: SystemBody::Environment(environment),
        text: r#"{"a":1}"#.into(),
        created_at: Timestamp(100),
        modified_at: Timestamp(200),
        revision: 300,
    };
    let refusing = "0470726f6400010101ac02ad02077b2261223a317d64c801ac02";
    wire(&record(after.clone()), refusing);
    let person = Person { id: PersonId(300), label: PersonLabel::parse("ada").unwrap() };
    let body = SystemBody::Person(person);
    let named = SystemRecord { name: key("300"), body, text: "{}".into(), ..record(Environment::default()) };
    wire(&named, "0333303003ac0203616461027b7d64c801ac02");
    let allowing = "0470726f6400000000077b2261223a317d64c801ac02";
    wire(&record(Environment::default()), allowing);
    let (before, after) = (Arc::new(record(Environment::default())), Arc::new(record(after)));
    wire(&StoredEdit::System { before: None, after: Some(Arc::clone(&after)) }, &format!("0b0001{refusing}"));
    wire(&StoredEdit::System { before: Some(before), after: None }, &format!("0b01{allowing}00"));
}
