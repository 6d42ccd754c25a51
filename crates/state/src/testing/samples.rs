//! Values of all kinds, as they are in a cluster.

use serde_json::json;

use crate::{Change, State};
use concord_model::{
    access_key::{Author, KeyId},
    command::{
        BatchStep, ChangeAction, Command, Expect, IdempotencyKey, Proposal, SystemCommand, Undeletion,
        source::{Bypass, ChangeUse, DefinitionThen, Guard, RevertUse, Source, Tail},
    },
    entry,
    index::Indexing,
    key::Key,
    record::{Definition, DeletedId, IndexEntry},
    system::{
        change::{
            ApplyMode, ChangeId, Content, Failure, NewEdition, NewVote, Opinion, Scope, Timing, Window,
        },
        environment::{Direct, Environment, EnvironmentName, Freeze},
    },
    time::Timestamp,
};

fn key(text: &str) -> Key {
    Key::parse(text).expect("a sample's key is valid")
}

/// A definition with indexed paths of some types.
pub fn definition() -> Definition {
    let paths = ["group", "n", "tags", "net.port", "limit"];
    let schema = json!({"properties": {
        "group": {"type": "string"},
        "n": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"type": "boolean"}},
    }});
    Definition {
        id: 5 << 10,
        key: key("d"),
        indexes: paths.map(str::to_owned).into(),
        schema: Some(schema.to_string().into()),
        indexing: Indexing::fresh(paths.len()),
        created_at: Timestamp(1),
        modified_at: Timestamp(2),
        revision: 5,
        unique: vec!["n".into()],
        protected: false,
        standing: <_>::default(),
    }
}

fn proposal(command: Command) -> Proposal {
    Proposal {
        at: Timestamp(1_700_000_000_000_000),
        by: "root".into(),
        reason: Some("a reason".into()),
        request: Some(IdempotencyKey { id: [7; 16], fingerprint: [9; 16] }),
        definition_read: Some(1),
        command,
        author: Author::Root,
        tail: None,
    }
}

/// One proposal of each kind.
pub fn all_proposals() -> Vec<Proposal> {
    let write = |name: &str, expect| Command::WriteConfig {
        definition: key("d"),
        key: key(name),
        data: r#"{"group":"g1","n":12}"#.into(),
        entries: Box::new([IndexEntry { slot: 0, value: b"\x40g1".as_slice().into() }]),
        expect,
    };
    let step = |command| BatchStep { definition_read: Some(1), command };
    let create = Command::CreateDefinition {
        key: key("d"),
        indexes: vec!["group".into(), "n".into()],
        schema: Some(r#"{"type":"object"}"#.into()),
    };
    let (d, expect) = (|| key("d"), Expect::Present);
    let prod = || EnvironmentName::parse("prod").expect("a sample's name is valid");
    let freezes = vec![Freeze { from: Timestamp(1_700_000_000_000_000), until: Timestamp(u64::MAX) }];
    let after = Environment { direct: Direct::Refuse, approvals: 1, freezes };
    let text = r#"{"reason":"a reason"}"#.into();
    let put =
        Command::System(SystemCommand::PutEnvironment { name: prod(), after, text, expect: Expect::Any });
    let commands = vec![
        create,
        write("a", Expect::Absent),
        write("a", Expect::At(2)),
        Command::Batch(vec![step(write("b", Expect::Absent)), step(write("c", Expect::None))]),
        put,
        Command::SetIndexes { key: d(), indexes: vec!["n".into()], expect },
        Command::BuildIndex { key: d(), begun: 5, cursor: Some(key("b")) },
        Command::SetSchema { key: d(), schema: None, expect: Expect::Any, configs_read: Some(5) },
        Command::SetUnique { key: d(), paths: vec!["n".into()], expect, configs_read: None },
        Command::DeleteConfig { definition: d(), key: key("c"), expect: Expect::Read(Some(4)) },
        Command::Compact { compaction_revision: 3 },
        Command::DeleteDefinition { key: d(), expect, restrict: true, keep: Some(1 << 20) },
        Command::UndeleteDefinition(Undeletion {
            key: d(),
            of: DeletedId { deleted: 7, id: 5 << 10 },
            back: Vec::new(),
        }),
        Command::System(SystemCommand::DeleteEnvironment { name: prod(), expect }),
    ];
    let create = ChangeAction::Create(Box::new(edition()));
    let withdraw = ChangeAction::Withdraw { comment: "a comment".into() };
    let vote = ChangeAction::Vote(Box::new(NewVote {
        opinion: Opinion::Approval,
        edition: 1,
        digest: [7; 32],
        is_redacted: true,
        comment: "a comment".into(),
    }));
    let edit = ChangeAction::Edit { after: 1, expect: Expect::At(5), edition: Box::new(edition()) };
    let act = |action| Command::System(SystemCommand::Change { id: change_id(), action });
    let schedule = ChangeAction::Schedule { edition: 1, digest: [7; 32] };
    let keep = ChangeAction::Keep { edition: 1, digest: [7; 32], comment: "a comment".into() };
    let actions = [create, edit, vote, withdraw, schedule, keep].map(act);
    let failure = || Failure { code: "change_stale".into(), text: "a text".into() };
    let failed = [
        ChangeAction::Fail { edition: 1, failure: failure() },
        ChangeAction::FailRevert { edition: 1, failure: failure() },
    ];
    let sweep = SystemCommand::SweepChanges { now: Timestamp(1_700_000_000_000_000) };
    let of_cluster = [sweep, SystemCommand::HoldChanges].map(Command::System).into_iter();
    let of_cluster = of_cluster.chain(failed.map(act));
    let of_cluster = of_cluster.map(|command| Proposal { author: Author::Cluster, ..proposal(command) });
    let source = Source::Change(ChangeUse { id: change_id(), edition: 1, digest: [7; 32] });
    let bypass = Source::Bypass(Box::new(Bypass { id: change_id(), digest: [7; 32], text: "{}".into() }));
    let revert = Source::Revert(RevertUse { id: change_id(), edition: 1, is_bypass: true });
    let tails = [(source, Vec::new()), (bypass, guards()), (Source::Direct, guards()), (revert, Vec::new())];
    let with_tails = tails.map(|(source, guards)| Proposal {
        tail: Tail::of(source, guards),
        ..proposal(write("a", Expect::Any))
    });
    let plain = commands.into_iter().chain(actions).map(proposal);
    plain.chain(of_cluster).chain(with_tails).collect()
}

fn change_id() -> ChangeId {
    ChangeId::parse("aaaaaaaaaaaa").expect("a sample's id is valid")
}

/// One guard of each kind.
fn guards() -> Vec<Guard> {
    let was = Some(DefinitionThen { id: 5 << 10, revision: 5 });
    vec![
        Guard::Config { definition: 5 << 10, key: key("a"), revision: Some(6) },
        Guard::Definition { key: key("d"), was },
        Guard::Configs { definition: 5 << 10, newest: 6, count: 1 },
        Guard::AccessKey { id: KeyId::parse("bbbbbbbbbbbb").expect("a sample's id is valid"), revision: 7 },
        Guard::Environment { name: key("prod"), revision: None },
    ]
}

/// An edition of a change request.
fn edition() -> NewEdition {
    let not_before = Timestamp(1_700_000_000_000_000);
    let window = Some(Window { not_before, not_after: Timestamp(not_before.0 + 60_000_000) });
    NewEdition {
        digest: [7; 32],
        scope: Scope::Definitions(vec![key("d"), key("e")]),
        text: r#"{"title":"a title"}"#.into(),
        operations: r#"[{"op":"delete_config"}]"#.into(),
        content: Content::new(guards(), [9; 32]),
        timing: Timing { apply: ApplyMode::WhenApproved, window, revert_after_s: Some(60) },
    }
}

/// The state after the commands that create and change, and the changes.
pub fn state() -> (State, Vec<Change>) {
    let (mut state, mut changes) = (State::default(), Vec::new());
    for (revision, proposal) in (1..).zip(all_proposals().into_iter().take(5)) {
        // Each is another request.
        let request = IdempotencyKey { id: [u8::try_from(revision).unwrap_or(0); 16], fingerprint: [9; 16] };
        let definition_read = (revision > 1).then_some(1);
        let proposal = Proposal { request: Some(request), definition_read, ..proposal };
        changes.extend(state.apply(revision, &proposal).1);
    }
    (state, changes)
}

/// Entries of the log, encoded.
pub fn proposals() -> Vec<Vec<u8>> {
    let all = all_proposals();
    let shares = |proposal: &&Proposal| proposal.may_share_entry();
    let group = entry::encode(all.iter().filter(shares).map(Proposal::to_bytes).collect());
    all.iter().map(Proposal::to_bytes).chain([group]).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<Vec<u8>> {
    pairs.iter().map(|(one, other)| [one.as_bytes(), b"\0", other.as_bytes()].concat()).collect()
}

/// Patches with their targets, a zero byte between them.
pub fn patches() -> Vec<Vec<u8>> {
    let target = r#"{"a":{"b":[1,2.50,{"c":null}]},"d/e~":"x"}"#;
    pairs(&[
        (r#"{"a":{"b":null},"new":{"x":1e3}}"#, target),
        (
            r#"[{"op":"test","path":"/d~1e~0","value":"x"},{"op":"add","path":"/a/b/-","value":6.0},{"op":"remove","path":"/a/b/0"}]"#,
            target,
        ),
        (
            r#"[{"op":"copy","from":"/a","path":"/z"},{"op":"move","from":"/z/b/2/c","path":"/a/c"},{"op":"replace","path":"","value":[]}]"#,
            target,
        ),
    ])
}

/// Schemas with data, a zero byte between them.
pub fn schemas() -> Vec<Vec<u8>> {
    pairs(&[
        (
            r##"{"type":"object","properties":{"n":{"type":"integer","minimum":0,"multipleOf":0.5},"s":{"$ref":"#/$defs/s"}},"required":["n"],"$defs":{"s":{"pattern":"^[a-f]{2,5}\\d*$","maxLength":9}}}"##,
            r#"{"n":3,"s":"ab12"}"#,
        ),
        (
            r##"{"$schema":"http://json-schema.org/draft-07/schema#","items":{"anyOf":[{"const":1},{"enum":["a",null]},{"not":{}}]},"uniqueItems":true}"##,
            r#"[1,"a",null,2,1.0]"#,
        ),
        (
            r#"{"patternProperties":{"^x-\\w+":{"if":{"type":"string"},"then":{"minLength":2},"else":false}},"additionalProperties":{"contains":{"type":"number"},"minContains":2},"unevaluatedProperties":false}"#,
            r#"{"x-ab":"q","y":[1,"2",3]}"#,
        ),
        (
            r##"{"properties":{"child":{"$ref":"#"}},"dependentRequired":{"a":["b"]}}"##,
            r#"{"child":{"child":{"a":1}}}"#,
        ),
    ])
}

/// Pairs of values, a zero byte between them.
pub fn values() -> Vec<Vec<u8>> {
    pairs(&[
        ("-12", "7"),
        ("1.50e2", "150"),
        ("-0.00012E-400", "1e999999999999999999999"),
        (r#""abc""#, r#""abcd\u0000""#),
        (r#"{"b":[null,true],"a":1}"#, r#"{"a":1.0,"b":[null,true]}"#),
    ])
}

/// Query strings of lists.
pub fn queries() -> Vec<Vec<u8>> {
    [
        "page=2&limit=50&sort_by=n&sort_order=desc&search=Ab",
        "group=a&group=b&n[gte]=-3&n[lt]=1e3&net.port[exists]=false",
        "tags=true&n=null&group[in]=x,y,z&group[prefix]=%C3%A4&data.limit=3&created_at[gte]=2024-01-01T00:00:00Z",
        "config_key[prefix]=a&sort_by=created_at&n[ne]=4&group[ne]=%F0%9F%98%80",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}
