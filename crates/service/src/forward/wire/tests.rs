//! The bytes of forwarded writes and of their answers: other versions in the same cluster send and read them.

use super::*;
use crate::request::{
    AccessWrite, AuditWrite, ChangeJudgement, ChangeWrite, Check, CheckCondition, EnvironmentRules,
    EnvironmentWrite, IdentityWrite, LazySchema, NewEdition, NewFreeze, NewProtection, NewRole, NewSchema,
    NewUnique, ProposedOperations, Restored, Rollback, RolloutSteer, Transaction, Undelete, UndeleteThen,
};
use concord_model::{
    access_key::{Grants, KeyId, Quota},
    audit::AnchoredLog,
    command::{Done, Expect, KeyTerms, NewSession, StepOutcome},
    document::Document,
    error::{Invalid, LocSegment, NothingToRestore, Rejection, Violation},
    key::Key,
    limits::BATCH_STEPS_MAX,
    patch::{Patch, PatchFormat},
    record::DeletedId,
    system::{
        change::{ApplyMode, Timing, Window},
        identity::{OwnerTag, ProviderId},
        person::PersonLabel,
        rollout::{GateRule, LabelValues, OnFail, Plan, Stage},
    },
    time::Timestamp,
};
use concord_net::codec::{decode, encode};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn request(write: Write) -> WriteRequest {
    let principal = Principal::root();
    let idempotency_key = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    let caller = Caller {
        principal,
        reason: Some("because".into()),
        idempotency_key,
        dry_run: false,
        listed_variants: ListedVariants::default(),
        bypass: None,
    };
    WriteRequest::new(caller, write)
}

/// One write of each kind.
fn writes() -> Vec<Write> {
    let document = |text: &str| Document { text: text.into(), value: serde_json::Value::Null };
    let (key, indexes) = (String::from("app"), vec![String::from("a.b")]);
    vec![
        Write::CreateDefinition {
            key: key.clone(),
            indexes: indexes.clone(),
            schema: Some(document("{}")),
            format_assertion: None,
        },
        Write::CreateDefinition {
            key: key.clone(),
            indexes: Vec::new(),
            schema: None,
            format_assertion: None,
        },
        Write::SetIndexes { key: key.clone(), indexes, expect: Expect::Present },
        Write::DeleteDefinition { key: key.clone(), expect: Expect::At(9), restrict: true, purge: false },
        Write::WriteConfig {
            definition: key.clone(),
            key: "ä/?".into(),
            data: document("[1.0]"),
            expect: Expect::None,
        },
        Write::DeleteConfig { definition: key.clone(), key: "db".into(), expect: Expect::Present },
        Write::Rollback(Rollback {
            definition: key.clone(),
            key: "db".into(),
            restored: Restored::Found { id: 4, data: document("[1.0]") },
            expect: Expect::Any,
        }),
        Write::SetSchema(NewSchema {
            key: key.clone(),
            schema: Some(document("{}")),
            format_assertion: None,
            expect: Expect::At(9),
            force: true,
            compiled: LazySchema::default(),
        }),
        Write::SetUnique(NewUnique { key: key.clone(), paths: vec!["a".into()], expect: Expect::Present }),
        Write::PatchConfig {
            definition: key.clone(),
            key: "db".into(),
            patch: Patch { format: PatchFormat::Json, document: document("[]") },
            expect: Expect::At(3),
        },
        Write::CreateDefinition {
            key: key.clone(),
            indexes: Vec::new(),
            schema: Some(document("{}")),
            format_assertion: Some(true),
        },
        Write::SetSchema(NewSchema {
            key: key.clone(),
            schema: Some(document("{}")),
            format_assertion: Some(false),
            expect: Expect::Present,
            force: false,
            compiled: LazySchema::default(),
        }),
        Write::UndeleteDefinition(Undelete { key: key.clone(), then: None }),
        Write::UndeleteDefinition(Undelete {
            key: key.clone(),
            then: Some(UndeleteThen { of: DeletedId { deleted: 7, id: 5 }, back: Vec::new() }),
        }),
        Write::SetProtection(NewProtection { key, protected: true, expect: Expect::Present }),
        Write::Audit(AuditWrite::Anchor {
            log: AnchoredLog { cluster: [7; 16], node: 3 },
            seq: 300,
            sha256: [8; 32],
        }),
        Write::Audit(AuditWrite::Accept { log: AnchoredLog { cluster: [7; 16], node: 3 } }),
    ]
}

/// Those of environments.
fn environment_writes() -> Vec<Write> {
    vec![
        Write::Environment(EnvironmentWrite::Put {
            name: "prod".into(),
            rules: EnvironmentRules { freezes: vec![freeze(None)], ..EnvironmentRules::default() },
            expect: Expect::Any,
        }),
        Write::Environment(EnvironmentWrite::Put {
            name: "prod".into(),
            rules: EnvironmentRules {
                refuses_direct: Some(false),
                approvals: Some(2),
                freezes: vec![freeze(Some(Timestamp(7)))],
            },
            expect: Expect::At(9),
        }),
        Write::Environment(EnvironmentWrite::Delete { name: "prod".into(), expect: Expect::Present }),
    ]
}

/// Those of access keys.
fn access_writes() -> Vec<Write> {
    let id = || KeyId::parse("0123456789aZ").unwrap();
    let terms = || KeyTerms {
        name: "n".into(),
        grants: Grants::default(),
        quota: Quota::default(),
        expires_at: Some(Timestamp(300)),
    };
    let create = |person: Option<&str>| {
        let person = person.map(|label| PersonLabel::parse(label).unwrap());
        AccessWrite::Create { id: id(), terms: terms(), sha256: [7; 32], person }
    };
    let rotate = AccessWrite::Rotate { id: id(), sha256: [7; 32], grace_us: 300, expect: Expect::At(9) };
    let attest = AccessWrite::Attest { id: id(), revision: 300 };
    [create(None), create(Some("ada@example.com")), rotate, attest].map(Write::Access).to_vec()
}

/// Those of change requests.
fn change_writes() -> Vec<Write> {
    let id = || "Abcdefghijkl".to_owned();
    let delete = Write::DeleteConfig { definition: "d".into(), key: "k".into(), expect: Expect::Present };
    let environment = EnvironmentWrite::Delete { name: "prod".into(), expect: Expect::Present };
    let edition = |operations| {
        let (title, description) = ("t".to_owned(), String::new());
        let window = Some(Window { not_before: Timestamp(7), not_after: Timestamp(8) });
        let timing = Timing { apply: ApplyMode::WhenApproved, window, revert_after_s: Some(9) };
        NewEdition { title, description, operations, timing, seal: [7; 32] }
    };
    let records = edition(ProposedOperations::Records(vec![delete]));
    let undelete = edition(ProposedOperations::Undelete { key: "d".into() });
    let rules = edition(ProposedOperations::Environment(environment));
    let all = [
        ChangeWrite::Create { id: id(), edition: records },
        ChangeWrite::Create { id: id(), edition: undelete },
        ChangeWrite::Edit { id: id(), edition: rules, if_match: Some(9) },
        ChangeWrite::Rebase { id: id(), seal: [7; 32], if_match: None },
        ChangeWrite::Judge {
            id: id(),
            judgement: ChangeJudgement::Review,
            digest: [8; 32],
            comment: "c".into(),
        },
        ChangeWrite::Apply { id: id(), digest: [8; 32] },
        ChangeWrite::Withdraw { id: id(), comment: String::new() },
        ChangeWrite::Revert { id: id(), digest: [8; 32] },
        ChangeWrite::Keep { id: id(), digest: [8; 32], comment: "c".into() },
    ];
    all.into_iter().map(|write| Write::Change(Box::new(write))).collect()
}

fn rollout_writes() -> Vec<Write> {
    let id = || "Abcdefghijkl".to_owned();
    let edition = || {
        let delete = Write::DeleteConfig { definition: "d".into(), key: "k".into(), expect: Expect::Present };
        let operations = ProposedOperations::Records(vec![delete]);
        let (title, description, timing) = ("t".to_owned(), String::new(), Timing::default());
        NewEdition { title, description, operations, timing, seal: [7; 32] }
    };
    let labels = vec![LabelValues { name: "ring".into(), values: vec!["canary".into()] }];
    let stage = Stage { labels, share: 300, for_s: 301, min_healthy: 2 };
    let gates = vec![GateRule { name: "errors".into(), fresh_s: 303 }];
    let plan = Plan { stages: vec![stage], max_failed: 302, gates, on_fail: OnFail::Pause, timeout_s: 304 };
    let all = [
        ChangeWrite::CreateStaged { id: id(), edition: edition(), plan: plan.clone() },
        ChangeWrite::EditStaged { id: id(), edition: edition(), plan, if_match: Some(9) },
        ChangeWrite::Steer { id: id(), steer: RolloutSteer::Abort, stage: Some(1), comment: "c".into() },
    ];
    all.into_iter().map(|write| Write::Change(Box::new(write))).collect()
}

fn all_writes() -> Vec<Write> {
    [writes(), environment_writes(), change_writes(), access_writes(), rollout_writes()].concat()
}

fn freeze(from: Option<Timestamp>) -> NewFreeze {
    NewFreeze { from, until: Timestamp(300), reason: "r".into() }
}

/// Whether the value of a document is that of its text.
fn is_parsed(write: &Write) -> bool {
    write.document().is_none_or(|document| serde_json::to_string(&document.value).unwrap() == *document.text)
}

/// Other operations of a transaction, each with its bytes.
fn operations() -> Vec<(Write, &'static str)> {
    let document = Document { text: "[1.0]".into(), value: serde_json::Value::Null };
    let check = |condition| Write::Check(Check { definition: "d".into(), key: "k".into(), condition });
    let rollback = |restored| {
        let (definition, key, expect) = ("d".into(), "k".into(), Expect::Present);
        Write::Rollback(Rollback { definition, key, restored, expect })
    };
    let none = Rejection::NothingToRestore(NothingToRestore::NotThere("no".into()));
    vec![
        (check(CheckCondition::Exists(true)), "0c0164016b0001"),
        (check(CheckCondition::Revision(300)), "0c0164016b01ac02"),
        (check(CheckCondition::Value { pointer: "/a".into(), equals: None }), "0c0164016b02022f6100"),
        (
            check(CheckCondition::Value { pointer: "/a".into(), equals: Some(document) }),
            "0c0164016b02022f6101055b312e305d",
        ),
        (Write::Read { definition: "d".into(), key: "k".into() }, "0d0164016b"),
        (rollback(Restored::At(300)), "050164016b00ac0202"),
        (rollback(Restored::Refused(none)), "050164016b021201026e6f02"),
    ]
}

/// The bytes of [`writes`], each as recorded when its kind was first sent.
const WRITES: [&str; 36] = [
    "00036170700103612e6201027b7d00",
    "0003617070000000",
    "01036170700103612e6202",
    "020361707003090100",
    "030361707004c3a42f3f055b312e305d04",
    "040361707002646202",
    "05036170700264620104055b312e305d00",
    "060361707001027b7d00030901",
    "070361707001016102",
    "080361707002646201025b5d0303",
    "00036170700001027b7d0101",
    "060361707001027b7d01000200",
    "0e0361707000",
    "0e0361707001070500",
    "0f036170700102",
    "10000707070707070707070707070707070703ac020808080808080808080808080808080808080808080808080808080808080808",
    "10010707070707070707070707070707070703",
    "11000470726f6400000100ac02017200",
    "11000470726f6401000102010107ac0201720309",
    "11010470726f6402",
    "12000c4162636465666768696a6b6c0174000001040164016b020101070801090707070707070707070707070707070707070707070707070707070707070707",
    "12000c4162636465666768696a6b6c0174000101640101070801090707070707070707070707070707070707070707070707070707070707070707",
    "12010c4162636465666768696a6b6c01740002010470726f640201010708010907070707070707070707070707070707070707070707070707070707070707070109",
    "12020c4162636465666768696a6b6c070707070707070707070707070707070707070707070707070707070707070700",
    "12030c4162636465666768696a6b6c0208080808080808080808080808080808080808080808080808080808080808080163",
    "12040c4162636465666768696a6b6c0808080808080808080808080808080808080808080808080808080808080808",
    "12050c4162636465666768696a6b6c00",
    "12060c4162636465666768696a6b6c0808080808080808080808080808080808080808080808080808080808080808",
    "12070c4162636465666768696a6b6c08080808080808080808080808080808080808080808080808080808080808080163",
    "0a000c30313233343536373839615a016e000000000000000001ac02070707070707070707070707070707070707070707070707070707070707070700",
    "0a000c30313233343536373839615a016e000000000000000001ac020707070707070707070707070707070707070707070707070707070707070707010f616461406578616d706c652e636f6d",
    "0a030c30313233343536373839615a0707070707070707070707070707070707070707070707070707070707070707ac020309",
    "0a070c30313233343536373839615aac02",
    "12080c4162636465666768696a6b6c0174000001040164016b02000000070707070707070707070707070707070707070707070707070707070707070701010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0201b002",
    "12090c4162636465666768696a6b6c0174000001040164016b02000000070707070707070707070707070707070707070707070707070707070707070701010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0201b0020109",
    "120a0c4162636465666768696a6b6c0301010163",
];

/// What precedes each of them: the version, the caller and 1500 ms.
const CALLER: &str =
    "0104726f6f74010762656361757365010101010101010101010101010101010102020202020202020202020202020202dc0b";

#[test]
fn every_write_is_encoded_as_recorded_and_decoded_as_it_was() {
    assert_eq!(all_writes().len(), WRITES.len());
    let mut cases: Vec<_> = all_writes().into_iter().zip(WRITES.map(String::from)).collect();
    let is_step = |(write, _): &(Write, &str)| {
        !matches!(
            write,
            Write::UndeleteDefinition(_)
                | Write::Audit(_)
                | Write::Environment(_)
                | Write::Change(_)
                | Write::Identity(_)
                | Write::Access(_)
        )
    };
    let (steps, bytes): (Vec<Write>, Vec<&str>) =
        all_writes().into_iter().zip(WRITES).filter(is_step).unzip();
    cases.push((Write::Batch(steps), format!("090d{}", bytes.concat())));
    let (operations, bytes): (Vec<Write>, Vec<&str>) = operations().into_iter().unzip();
    let transaction = Transaction { operations, conditions: 3, then: 2 };
    cases.push((Write::Transaction(transaction), format!("0b07{}0302", bytes.concat())));
    for (write, recorded) in cases {
        let request = request(write);
        let wire = WireRequest::of(&request, Duration::from_millis(1500));
        let bytes = encode(&wire);
        assert_eq!(hex(&bytes), format!("{CALLER}{recorded}000000"), "{request:?}");
        let (remaining, opened) = decode::<WireRequest<'static>>(&bytes).unwrap().open(10).unwrap();
        assert_eq!(remaining, Duration::from_millis(1500));
        assert_eq!(encode(&WireRequest::of(&opened, remaining)), bytes);
        assert!(opened.write.operations().iter().all(is_parsed), "{opened:?}");
    }
}

/// Writes of identity, which are never in a batch, with their bytes.
fn identity_writes() -> Vec<(IdentityWrite, &'static str)> {
    let document = || Document { text: "{}".into(), value: serde_json::Value::Null };
    let id = KeyId::parse("0123456789aZ").unwrap();
    let name = || String::from("ci");
    let quota = Quota { writes_per_second: Some(300), ..Quota::default() };
    let role = NewRole { grants: Grants::default(), quota, membership: document() };
    let session = NewSession {
        id: id.clone(),
        sha256: [8; 32],
        provider: ProviderId(301),
        policy: 302,
        key_set: None,
        owner: OwnerTag([7; 16]),
        name: "ci/job".into(),
        issued_at: Timestamp(304),
        token_ends_at: Timestamp(305),
        expires_at: Timestamp(306),
        text: "{}".into(),
    };
    let expect = Expect::At(9);
    vec![
        (IdentityWrite::PutProvider { name: name(), document: document(), expect }, "1300026369027b7d0309"),
        (IdentityWrite::DeleteProvider { name: name(), expect }, "13010263690309"),
        (IdentityWrite::PutRole { name: name(), role, expect }, "1302026369000001ac020000000000027b7d0309"),
        (IdentityWrite::DeleteRole { name: name(), expect }, "13030263690309"),
        (IdentityWrite::EndSessions { provider: name(), expect }, "13040263690309"),
        (IdentityWrite::EndSession { id }, "13050c30313233343536373839615a"),
        (
            IdentityWrite::OpenSession(Box::new(session)),
            "13060c30313233343536373839615a0808080808080808080808080808080808080808080808080808080808080808ad02ae0200070707070707070707070707070707070663692f6a6f62b002b102b202027b7d",
        ),
        (IdentityWrite::FetchKeys(ProviderId(301)), "1307ad02"),
    ]
}

#[test]
fn every_write_of_identity_is_encoded_as_recorded_and_in_no_batch() {
    for (write, recorded) in identity_writes() {
        let request = request(Write::Identity(Box::new(write)));
        let bytes = encode(&WireRequest::of(&request, Duration::from_millis(1500)));
        assert_eq!(hex(&bytes), format!("{CALLER}{recorded}000000"), "{request:?}");
        let (remaining, opened) = decode::<WireRequest<'static>>(&bytes).unwrap().open(10).unwrap();
        assert_eq!(encode(&WireRequest::of(&opened, remaining)), bytes);
        let in_batch = unhex(&format!("{CALLER}0901{recorded}000000"));
        assert!(decode::<WireRequest<'static>>(&in_batch).is_err(), "{request:?}");
    }
}

#[test]
fn a_session_is_named_by_its_id_its_owner_and_the_name_of_that() {
    let ids = ["0123456789aZ", "abcdefghijkl"].map(|id| KeyId::parse(id).unwrap());
    let [session, owner] = ids.clone();
    let principal = Principal::named_session(session, owner, "ci/repo:a/b:ref");
    let text = named(&principal).into_owned();
    assert_eq!(text, "session/0123456789aZ/abcdefghijkl/ci/repo:a/b:ref");
    let again = super::principal(&text).unwrap();
    assert_eq!(
        (again.session_id(), again.owner(), again.id.as_str()),
        (Some(&ids[0]), "abcdefghijkl", "ci/repo:a/b:ref")
    );
    assert!(again.key().is_none() && !again.is_unbounded());
    for wrong in ["session/", "session/0123456789aZ", "session/0123456789aZ/abcdefghijkl", "session/x/y/z"] {
        assert!(super::principal(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_nested_in_itself_is_refused_at_any_depth() {
    let flat = format!("{CALLER}0901{}000000", WRITES[0]);
    assert!(decode::<WireRequest<'static>>(&unhex(&flat)).is_ok());
    let once = format!("{CALLER}09010901{}000000", WRITES[0]);
    assert!(decode::<WireRequest<'static>>(&unhex(&once)).is_err(), "a batch in a batch");
    let once = format!("{CALLER}0901{}000000", WRITES[12]);
    assert!(decode::<WireRequest<'static>>(&unhex(&once)).is_err(), "the undoing of a deletion in a batch");
    let once = format!("{CALLER}0901{}000000", WRITES[17]);
    assert!(decode::<WireRequest<'static>>(&unhex(&once)).is_err(), "an environment in a batch");
    let once = format!("{CALLER}0901{}000000", WRITES[20]);
    assert!(decode::<WireRequest<'static>>(&unhex(&once)).is_err(), "a change request in a batch");
    let once = format!("{CALLER}09010b0000000000");
    assert!(decode::<WireRequest<'static>>(&unhex(&once)).is_err(), "a transaction in a batch");
    let deep = [unhex(CALLER), [9, 1].repeat(1_000_000)].concat();
    assert!(decode::<WireRequest<'static>>(&deep).is_err());
    let in_batch = "01000108c801";
    assert!(decode::<WireAnswer>(&unhex(&format!("{in_batch}04"))).is_ok(), "a rejection in a batch");
    assert!(decode::<WireAnswer>(&unhex(&format!("{in_batch}080504"))).is_err(), "one in that");
    let deep = [unhex("010001"), [8, 5].repeat(1_000_000)].concat();
    assert!(decode::<WireAnswer>(&deep).is_err());
}

#[test]
fn a_refusal_of_an_operation_is_decoded_one_deep() {
    let nested = |depth: u32| {
        let inner = Refusal::Conflict("it is there".into());
        let refusal = (0..depth).fold(inner, |inner, place| Refusal::OfOperation(place, Box::new(inner)));
        encode(&WireAnswer::from(Attempt::Err(AttemptError::Refused(refusal))))
    };
    assert!(decode::<WireAnswer>(&nested(1)).is_ok());
    assert!(decode::<WireAnswer>(&nested(2)).is_err());
    // Version, answer; then the variant and the place, as often as the sender likes.
    let (head, tail) = (nested(1)[..2].to_vec(), nested(1)[2..4].to_vec());
    assert!(decode::<WireAnswer>(&[head, tail.repeat(1_000_000)].concat()).is_err());
}

#[test]
fn stored_data_of_a_rollback_may_be_deeper_than_new_data() {
    let deep = Document {
        text: format!("{}{}", "[".repeat(20), "]".repeat(20)).into(),
        value: serde_json::Value::Null,
    };
    let opened = |write: Write| {
        let request = request(write);
        let bytes = encode(&WireRequest::of(&request, Duration::ZERO));
        decode::<WireRequest<'static>>(&bytes).unwrap().open(10).map(|_| ())
    };
    let writes = writes().into_iter();
    let (mut rolled_back, mut written) = (0, 0);
    for mut write in writes {
        if let Write::Rollback(Rollback { restored: Restored::Found { data, .. }, .. }) = &mut write {
            *data = deep.clone();
            opened(write).unwrap();
            rolled_back += 1;
        } else if let Write::WriteConfig { data, .. } = &mut write {
            *data = deep.clone();
            assert!(opened(write).is_err());
            written += 1;
        }
    }
    assert!(rolled_back > 0 && written > 0, "both kinds are among the samples");
}

#[test]
fn no_more_operations_are_decoded_than_a_batch_may_have() {
    let batch = |count: usize| {
        let request = request(Write::Batch(vec![writes()[0].clone(); count]));
        decode::<WireRequest<'static>>(&encode(&WireRequest::of(&request, Duration::ZERO)))
    };
    assert!(batch(BATCH_STEPS_MAX).is_ok());
    assert!(batch(BATCH_STEPS_MAX + 1).is_err());
}

#[test]
fn every_answer_is_encoded_as_recorded_and_decoded_as_it_was() {
    let applied = Applied { revision: 7, at: Timestamp(8), done: Done::Single(StepOutcome::Changed) };
    let violations = vec![Violation::at(vec![LocSegment::from("data"), LocSegment::Index(2)], "bad")];
    let not_unique = Refusal::NotUniqueYet {
        path: "p".into(),
        one: Key::parse("a").unwrap(),
        other: Key::parse("b").unwrap(),
    };
    let violation = Violation::new("bad");
    let breaks = Refusal::Breaks { count: 2, violations: vec![violation] };
    for (attempt, recorded) in [
        (Ok(Decision::new(Ok(applied.clone()), None)), "01000007080001"),
        (Ok(Decision::new(Err(Rejection::Precondition { current: 5 }), None)), "0100010505"),
        (Err(AttemptError::Refused(Refusal::Overloaded)), "010104"),
        (Err(AttemptError::Refused(not_unique)), "01010f017001610162"),
        (Err(AttemptError::Retry("no".into())), "0102026e6f"),
        (Err(AttemptError::Unknown("perhaps".into())), "01030770657268617073"),
        (Ok(Decision::new(Ok(applied), Some("{}".into()))), "010407080001027b7d"),
        (Err(AttemptError::Refused(Refusal::Invalid(Invalid::Violations(violations)))), ""),
        (Err(AttemptError::Refused(breaks)), ""),
        (
            Err(AttemptError::Refused(Refusal::TokenRejected { reason: "issuer".into() })),
            "01011806697373756572",
        ),
        (Err(AttemptError::Refused(Refusal::NoRole("no".into()))), "010119026e6f"),
        (Err(AttemptError::Refused(Refusal::ProviderUnavailable("no".into()))), "01011a026e6f"),
        (Err(AttemptError::Refused(Refusal::ProviderInUse { role: Key::parse("a").unwrap() })), "01011b0161"),
        (Err(AttemptError::Refused(Refusal::LoginStale)), "01011c"),
    ] {
        let bytes = encode(&WireAnswer::from(attempt.clone()));
        assert_eq!(Attempt::from(decode::<WireAnswer>(&bytes).unwrap()), attempt);
        if !recorded.is_empty() {
            assert_eq!(hex(&bytes), recorded, "{attempt:?}");
        }
    }
}

#[test]
fn the_lists_of_a_transaction_are_no_longer_than_its_operations() {
    let (operations, _): (Vec<Write>, Vec<&str>) = operations().into_iter().unzip();
    let sent = request(Write::Transaction(Transaction { operations, conditions: 5, then: usize::MAX }));
    let bytes = encode(&WireRequest::of(&sent, Duration::ZERO));
    let (_, opened) = decode::<WireRequest<'static>>(&bytes).unwrap().open(10).unwrap();
    let Write::Transaction(transaction) = &opened.write else { panic!("{opened:?}") };
    assert_eq!((transaction.conditions, transaction.then), (5, 2));
}
