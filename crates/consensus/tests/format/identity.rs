//! Identity providers, roles, sessions and key sets: their records, and what is done to them. All of feature level 3.

use super::{entry, key, plain, wire};
use concord_model::{
    access_key::{Author, KeyId, SessionUse},
    command::{
        Command, Expect, IdentityCommand, KeptOfProvider, NewSession, PolicyChange, Proposal, SystemCommand,
        source::Guard,
    },
    error::{IdentityRejection, Rejection},
    system::{
        SystemBody, SystemRecord,
        change::{Machine, Party},
        identity::{KeySet, OwnerTag, Provider, ProviderId, Session, policy_name},
        pace::Actor,
    },
    time::Timestamp,
};

fn id() -> KeyId {
    KeyId::parse("0123456789aZ").unwrap()
}

fn machine() -> Box<Machine> {
    let (provider, owner) = (ProviderId(301), OwnerTag([7; 16]));
    Box::new(Machine { session: id(), opened: 300, provider, owner, name: "ci/job".into() })
}

#[test]
fn records_of_identity() {
    let record = |name, body| SystemRecord {
        name,
        body,
        text: "{}".into(),
        created_at: Timestamp(100),
        modified_at: Timestamp(200),
        revision: 300,
    };
    let provider = Provider { id: ProviderId(301), trusted_since: 302, tokens_since: Timestamp(303) };
    wire(&record(key("ci"), SystemBody::Provider(provider)), "02636905ad02ae02af02027b7d64c801ac02");
    wire(&record(key("writers"), SystemBody::Role), "077772697465727306027b7d64c801ac02");
    let session = Session {
        sha256: [8; 32],
        provider: ProviderId(301),
        owner: OwnerTag([7; 16]),
        name: "ci/job".into(),
        expires_at: Timestamp(304),
    };
    wire(
        &record(key("0123456789aZ"), SystemBody::Session(Box::new(session))),
        "0c30313233343536373839615a070808080808080808080808080808080808080808080808080808080808080808ad02070707070707070707070707070707070663692f6a6f62b002027b7d64c801ac02",
    );
    let keys = KeySet { provider: ProviderId(301), confirmed_at: Timestamp(305) };
    wire(&record(key("ci"), SystemBody::KeySet(keys)), "02636908ad02b102027b7d64c801ac02");
    wire(&record(policy_name(), SystemBody::Policy), "06706f6c69637909027b7d64c801ac02");
}

#[test]
fn commands_of_identity() {
    let act = |command, expected: &str| {
        entry(&plain(Command::System(SystemCommand::Identity(command))), expected);
    };
    let of = || PolicyChange { name: key("ci"), expect: Expect::At(300), policy: 301 };
    let keeps = KeptOfProvider { trust: true, keys: false };
    act(
        IdentityCommand::PutProvider { of: of(), keeps, text: "{}".into() },
        "03e4e0f4e586ee900304726f6f7400000012050002636903ac02ad020100027b7d00",
    );
    act(IdentityCommand::DeleteProvider(of()), "03e4e0f4e586ee900304726f6f7400000012050102636903ac02ad0200");
    act(
        IdentityCommand::PutRole { of: of(), text: "{}".into() },
        "03e4e0f4e586ee900304726f6f7400000012050202636903ac02ad02027b7d00",
    );
    act(IdentityCommand::DeleteRole(of()), "03e4e0f4e586ee900304726f6f7400000012050302636903ac02ad0200");
    act(
        IdentityCommand::EndSessions { name: key("ci"), expect: Expect::Any },
        "03e4e0f4e586ee900304726f6f740000001205040263690000",
    );
    act(
        IdentityCommand::EndSession { id: id() },
        "03e4e0f4e586ee900304726f6f740000001205050c30313233343536373839615a00",
    );
    let session = NewSession {
        id: id(),
        sha256: [8; 32],
        provider: ProviderId(301),
        policy: 302,
        key_set: Some(303),
        owner: OwnerTag([7; 16]),
        name: "ci/job".into(),
        issued_at: Timestamp(304),
        token_ends_at: Timestamp(305),
        expires_at: Timestamp(306),
        text: "{}".into(),
    };
    act(
        IdentityCommand::OpenSession(Box::new(session)),
        "03e4e0f4e586ee900304726f6f740000001205060c30313233343536373839615a0808080808080808080808080808080808080808080808080808080808080808ad02ae0201af02070707070707070707070707070707070663692f6a6f62b002b102b202027b7d00",
    );
    let keys = IdentityCommand::PutKeySet {
        provider: ProviderId(301),
        text: "{}".into(),
        confirmed_at: Timestamp(304),
    };
    act(keys, "03e4e0f4e586ee900304726f6f74000000120507ad02027b7db00200");
    act(
        IdentityCommand::SweepSessions { now: Timestamp(300) },
        "03e4e0f4e586ee900304726f6f74000000120508ac0200",
    );
}

#[test]
fn what_a_session_does() {
    let author = Author::Session(SessionUse { id: id(), policy: 300 });
    let delete = Command::DeleteConfig { definition: key("app"), key: key("db"), expect: Expect::Present };
    let proposal = Proposal::new(Timestamp(1_763_000_000_000_100), "ci/job", author, delete);
    assert_eq!(proposal.to_bytes()[0], 3, "a node of an earlier level does not read it");
    entry(
        &proposal,
        "03e4e0f4e586ee90030663692f6a6f62000000040361707002646202030c30313233343536373839615aac02",
    );
    wire(
        &Party::Machine(machine()),
        "020c30313233343536373839615aac02ad02070707070707070707070707070707070663692f6a6f62",
    );
    wire(
        &Actor::Machine(machine()),
        "030c30313233343536373839615aac02ad02070707070707070707070707070707070663692f6a6f62",
    );
    wire(&Guard::Policy { revision: 300 }, "05ac02");
    for (rejection, expected) in [
        (Rejection::SessionEnded, "32"),
        (IdentityRejection::SessionNotFound.into(), "3300"),
        (IdentityRejection::SessionExists.into(), "3301"),
        (IdentityRejection::TokenEnded.into(), "3302"),
        (IdentityRejection::TooManySessions.into(), "3303"),
        (IdentityRejection::ProviderNotFound.into(), "3304"),
        (IdentityRejection::TooManyProviders.into(), "3305"),
        (IdentityRejection::RoleNotFound.into(), "3306"),
        (IdentityRejection::TooManyRoles.into(), "3307"),
    ] {
        wire(&rejection, expected);
    }
}
