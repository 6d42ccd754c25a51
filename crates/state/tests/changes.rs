//! Change requests against a record of what happened to them that this file keeps itself: what is applied has the
//! approvals that it needs, rests on its bases, and stands in one change with its record.
//!
//! | | what is compared with the record, or with the state right before |
//! |---|---|
//! | C1 | an applied edition has the approvals that its strictest environment asks for |
//! | C2 | they name its edition and digest, and are older than no restore, recovery or other attestation of their key |
//! | C3 | a change request is applied once |
//! | C4 | the records that it replaces had its bases |
//! | C5 | content of a restricted environment changes only in a change that has the record of it |

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use concord_model::{
    access_key::{Author, Grants, KeyId, KeyUse, Quota},
    command::{
        AccessCommand, BatchStep, ChangeAction, Command, Expect, KeyTerms, Proposal, SystemCommand, Verdict,
        source::{Bypass, ChangeUse, DefinitionThen, Guard, Source, Tail},
    },
    error::Rejection,
    key::Key,
    record::Revision,
    system::{
        change::{AppliedWith, ChangeId, Content, NewEdition, NewVote, Opinion, Party, Phase, Scope, Timing},
        environment::{Direct, Environment, EnvironmentName},
        person::{PersonId, PersonLabel},
    },
    time::Timestamp,
};
use concord_state::{Change, Edit, State};
use fastrand::Rng;

use crate::replay::{content, rebuilt};

const DEFINITIONS: [&str; 4] = ["a.d0", "a.d1", "b.d2", "d3"];
const ENVIRONMENTS: [&str; 3] = ["a", "b", "default"];
const KEYS: u8 = 9;
const CHANGES: u64 = 12;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn key_id(number: u8) -> KeyId {
    KeyId::parse(&format!("{number:012}")).unwrap()
}

fn change_id(number: u64) -> ChangeId {
    ChangeId::parse(&format!("{number:012}")).unwrap()
}

fn some<T>(list: &[T], random: &mut Rng) -> T
where
    T: Clone,
{
    list[random.usize(0..list.len())].clone()
}

/// Who somebody is: a key, and its person.
type Who = (Option<KeyId>, Option<PersonId>);

/// An approval as it was given.
#[derive(Debug, Clone)]
struct Given {
    key: KeyId,
    /// The revision at which the key was attested then.
    attested: Revision,
    edition: u32,
    digest: [u8; 32],
}

/// What has happened to a change request.
#[derive(Debug, Clone)]
struct Happened {
    edition: u32,
    digest: [u8; 32],
    scope: Vec<Key>,
    bases: Vec<Guard>,
    authors: Vec<Who>,
    is_attested: bool,
    approvals: BTreeMap<PersonId, Given>,
    rejections: BTreeSet<PersonId>,
}

/// Everything that has happened.
#[derive(Default)]
struct Record {
    changes: BTreeMap<u64, Happened>,
    /// Those that need a new edition.
    held: BTreeSet<u64>,
    ended: BTreeSet<u64>,
    applied: BTreeSet<u64>,
}

/// A proposal, and which change request it is about.
struct Made {
    proposal: Proposal,
    number: u64,
    action: Option<ChangeAction>,
}

struct Generator {
    random: Rng,
    at: u64,
    next_change: u64,
}

impl Generator {
    fn author(&mut self, state: &State) -> Author {
        let count = usize::try_from(state.access_key_count()).unwrap();
        if count == 0 || self.random.u8(0..8) == 0 {
            return Author::Root;
        }
        let key = state.access_keys().nth(self.random.usize(0..count)).unwrap();
        let secret = key.secrets.last().unwrap().made;
        Author::Key(KeyUse { id: key.id.clone(), revision: key.revision, secret })
    }

    fn propose(&mut self, author: Author, command: Command, tail: Option<Box<Tail>>) -> Proposal {
        self.at += self.random.u64(0..3);
        Proposal { tail, ..Proposal::new(Timestamp(self.at), "somebody", author, command) }
    }

    /// A change of the access keys, mostly by the root key.
    fn access(&mut self, state: &State) -> Proposal {
        let id = key_id(self.random.u8(0..KEYS));
        let labels = [None, Some("ann"), Some("bob"), Some("cid"), Some("dan")];
        let person = some(&labels, &mut self.random).map(|label| PersonLabel::parse(label).unwrap());
        let expires_at = (self.random.u8(0..10) == 0).then(|| Timestamp(self.at + 40));
        let terms =
            KeyTerms { name: "n".into(), grants: Grants::default(), quota: Quota::default(), expires_at };
        let (expect, sha256) = (Expect::Any, [1; 32]);
        let command = match self.random.u8(0..10) {
            0..=5 => AccessCommand::Create { id, terms, sha256, person },
            6 => AccessCommand::Revoke { id, expect },
            7 => AccessCommand::Rotate { id, sha256, grace_us: 0, expect },
            8 => AccessCommand::Change { id, terms, expect },
            _ => {
                let revision = state.access_key(&id).map_or(1, |key| key.revision);
                AccessCommand::Attest { id, revision }
            }
        };
        let author = if self.random.u8(0..3) > 0 { Author::Root } else { self.author(state) };
        self.propose(author, Command::Access(command), None)
    }

    /// A change of content, mostly of one of these definitions.
    fn content(&mut self, of: &[Key]) -> Command {
        let random = &mut self.random;
        let definition = if of.is_empty() || random.u8(0..20) == 0 {
            key(some(&DEFINITIONS, random))
        } else {
            some(of, random)
        };
        let name = key(&format!("k{}", random.u8(0..3)));
        let (expect, keep) = (Expect::Any, Some(1 << 20));
        match random.u8(0..12) {
            0..=1 => Command::CreateDefinition { key: definition, indexes: vec![], schema: None },
            2 if random.bool() => {
                Command::DeleteDefinition { key: definition, expect, restrict: false, keep }
            }
            3 => Command::DeleteConfig { definition, key: name, expect },
            4 => Command::SetProtection { key: definition, protected: false, expect },
            _ => {
                let data = format!(r#"{{"n":{}}}"#, random.u16(..)).into();
                Command::WriteConfig { definition, key: name, data, entries: Box::default(), expect }
            }
        }
    }

    fn batch(&mut self, of: &[Key]) -> Command {
        if self.random.u8(0..3) > 0 {
            return self.content(of);
        }
        let steps = (0..self.random.u8(1..4))
            .map(|_| BatchStep { definition_read: None, command: self.content(of) })
            .collect();
        Command::Batch(steps)
    }

    /// What some records are, mostly as they are.
    fn bases(&mut self, state: &State, definitions: &[Key]) -> Vec<Guard> {
        let mut bases = Vec::new();
        for name in definitions {
            let found = state.definition(name.as_str());
            let was = found
                .map(|found| DefinitionThen { id: found.definition.id, revision: found.definition.revision });
            if self.random.bool() {
                bases.push(Guard::Definition { key: name.clone(), was });
            }
            let Some(found) = found else { continue };
            let name = key(&format!("k{}", self.random.u8(0..3)));
            let revision = found.config(name.as_str()).map(|config| config.revision);
            let revision = if self.random.u8(0..20) == 0 { Some(1) } else { revision };
            bases.push(Guard::Config { definition: found.definition.id, key: name, revision });
        }
        bases
    }

    fn edition(&mut self, state: &State) -> NewEdition {
        let mut definitions: Vec<Key> =
            DEFINITIONS.iter().filter(|_| self.random.u8(0..3) == 0).map(|name| key(name)).collect();
        if definitions.is_empty() {
            definitions.push(key(some(&DEFINITIONS, &mut self.random)));
        }
        let bases = if self.random.bool() { self.bases(state, &definitions) } else { Vec::new() };
        NewEdition {
            digest: [self.random.u8(0..4); 32],
            scope: Scope::Definitions(definitions),
            text: "{}".into(),
            operations: "[]".into(),
            content: Content::new(bases, [1; 32]),
            timing: Timing::default(),
        }
    }

    fn rules(&mut self) -> Command {
        let name = EnvironmentName::parse(some(&ENVIRONMENTS, &mut self.random)).unwrap();
        let direct = if self.random.u8(0..4) > 0 { Direct::Refuse } else { Direct::Allow };
        let after = Environment { direct, approvals: self.random.u8(0..3), freezes: Vec::new() };
        Command::System(SystemCommand::PutEnvironment { name, after, text: "{}".into(), expect: Expect::Any })
    }

    /// A change request that is not new; mostly one that is pending.
    fn number(&mut self, record: &Record) -> u64 {
        let pending: Vec<u64> =
            record.changes.keys().copied().filter(|number| !record.ended.contains(number)).collect();
        if pending.is_empty() || self.random.u8(0..12) == 0 {
            return self.random.u64(0..self.next_change + 1);
        }
        some(&pending, &mut self.random)
    }

    fn act(&mut self, state: &State, record: &Record) -> Made {
        let pending = record.changes.len() - record.ended.len();
        let is_new = pending < 3 || (pending < 12 && self.random.u8(0..6) == 0);
        let number = if is_new { self.next_change } else { self.number(record) };
        let known = record.changes.get(&number);
        let (edition, digest) = known.map_or((1, [1; 32]), |known| (known.edition, known.digest));
        let is_wrong = self.random.u8(0..15) == 0;
        let edition = if is_wrong { edition + 1 } else { edition };
        let action = match self.random.u8(0..20) {
            _ if is_new => {
                self.next_change += 1;
                ChangeAction::Create(self.edition(state).into())
            }
            0 => ChangeAction::Withdraw { comment: String::new() },
            1..=2 => {
                let edition_sent = self.edition(state).into();
                ChangeAction::Edit { after: edition, expect: Expect::Any, edition: edition_sent }
            }
            3 => ChangeAction::Create(self.edition(state).into()),
            other => {
                let opinion = if other == 4 { Opinion::Rejection } else { Opinion::Approval };
                let (is_redacted, comment) = (false, String::new());
                ChangeAction::Vote(NewVote { opinion, edition, digest, is_redacted, comment }.into())
            }
        };
        let author = self.author(state);
        let command =
            Command::System(SystemCommand::Change { id: change_id(number), action: action.clone() });
        Made { proposal: self.propose(author, command, None), number, action: Some(action) }
    }

    fn apply(&mut self, state: &State, record: &Record) -> Made {
        let is_approved = |(number, known): &(&u64, &Happened)| {
            let (needed, counted) = known.approved(state);
            let is_open = !record.ended.contains(number) && !record.held.contains(number);
            is_open && needed > 0 && counted >= usize::from(needed) && known.rejections.is_empty()
        };
        let approved: Vec<u64> =
            record.changes.iter().filter(is_approved).map(|(number, _)| *number).collect();
        let number = if approved.is_empty() || self.random.bool() {
            self.number(record)
        } else {
            some(&approved, &mut self.random)
        };
        let known = record.changes.get(&number);
        let (edition, digest) = known.map_or((1, [1; 32]), |known| (known.edition, known.digest));
        let is_wrong = self.random.u8(0..15) == 0;
        let digest = if is_wrong { [9; 32] } else { digest };
        let scope = known.map(|known| known.scope.clone()).unwrap_or_default();
        let source = Source::Change(ChangeUse { id: change_id(number), edition, digest });
        let author = self.author(state);
        let command = self.batch(&scope);
        Made { proposal: self.propose(author, command, Tail::of(source, Vec::new())), number, action: None }
    }

    fn next(&mut self, state: &State, record: &Record) -> Made {
        let other = |proposal| Made { proposal, number: u64::MAX, action: None };
        let bypass = |generator: &mut Self, author, command| {
            let id = change_id(500_000 + generator.random.u64(0..100_000));
            let source = Source::Bypass(Bypass { id, digest: [0; 32], text: "{}".into() }.into());
            generator.propose(author, command, Tail::of(source, Vec::new()))
        };
        match self.random.u8(0..100) {
            0..=7 => other(self.access(state)),
            8..=10 => {
                let rules = self.rules();
                other(bypass(self, Author::Root, rules))
            }
            11..=14 => {
                let (author, command) = (self.author(state), self.batch(&[]));
                other(bypass(self, author, command))
            }
            15 if self.random.u8(0..4) == 0 => {
                let hold = Command::System(SystemCommand::HoldChanges);
                other(self.propose(Author::Cluster, hold, None))
            }
            15..=35 => {
                let (author, command) = (self.author(state), self.batch(&[]));
                let guards = if self.random.u8(0..5) == 0 {
                    let name = key(some(&DEFINITIONS, &mut self.random));
                    self.bases(state, &[name])
                } else {
                    Vec::new()
                };
                other(self.propose(author, command, Tail::of(Source::Direct, guards)))
            }
            36..=60 => self.apply(state, record),
            _ => self.act(state, record),
        }
    }
}

fn who(state: &State, author: &Author) -> Who {
    match author {
        // Nobody logs in here.
        Author::Root | Author::Cluster | Author::Session(_) => (None, None),
        Author::Key(used) => (Some(used.id.clone()), state.access_key(&used.id).and_then(|key| key.person)),
    }
}

fn is_one_of(authors: &[Who], (key, person): &Who) -> bool {
    authors.iter().any(|(other, others)| other == key || (person.is_some() && others == person))
}

fn attestation(state: &State, id: &KeyId) -> Option<Revision> {
    state.access_key(id)?.attestation.as_ref().map(|attestation| attestation.at)
}

/// The rules of a definition.
fn rules(state: &State, definition: &str) -> Environment {
    let name = definition.split_once('.').map_or("default", |(name, _)| name);
    let record = state.environment(name).or_else(|| state.environment("default"));
    record.and_then(|record| record.environment()).cloned().unwrap_or_default()
}

/// The record of a change request that a change makes as applied.
fn applied_in(change: &Change) -> Vec<(ChangeId, AppliedWith)> {
    let applied = |edit: &Edit| {
        let Edit::System { after: Some(after), .. } = edit else { return None };
        let Phase::Applied { revision, with, .. } = &after.change()?.phase else { return None };
        let id = ChangeId::parse(after.name.as_str())?;
        (*revision == change.revision).then(|| (id, with.clone()))
    };
    change.edits.iter().filter_map(applied).collect()
}

impl Happened {
    /// How many persons must approve it, and which ones have.
    fn approved(&self, before: &State) -> (u8, usize) {
        let asked = self.scope.iter().map(|name| rules(before, name.as_str()).approvals).max().unwrap_or(0);
        let needed = if asked > 0 && !self.is_attested { asked + 1 } else { asked };
        let counts = |(person, given): &(&PersonId, &Given)| {
            let is_same = (given.edition, given.digest) == (self.edition, self.digest);
            let is_author = is_one_of(&self.authors, &(Some(given.key.clone()), Some(**person)));
            is_same && !is_author && attestation(before, &given.key) == Some(given.attested)
        };
        (needed, self.approvals.iter().filter(counts).count())
    }
}

impl Record {
    /// What an accepted action has done.
    fn note(&mut self, made: &Made, before: &State) {
        let Made { proposal, number, action } = made;
        if matches!(proposal.command, Command::System(SystemCommand::HoldChanges)) {
            self.hold();
        }
        let by = who(before, &proposal.author);
        // Of this edition and all before it.
        let was_attested = self.changes.get(number).is_none_or(|before| before.is_attested);
        let is_attested = was_attested && by.0.as_ref().is_some_and(|id| attestation(before, id).is_some());
        let of = |edition: &NewEdition, number, authors| {
            let Scope::Definitions(scope) = edition.scope.clone() else { panic!("{edition:?}") };
            let (digest, bases) = (edition.digest, edition.content.bases.clone());
            let (approvals, rejections) = (BTreeMap::new(), BTreeSet::new());
            Happened { edition: number, digest, scope, bases, authors, is_attested, approvals, rejections }
        };
        match action {
            None => {}
            Some(ChangeAction::Create(edition)) => {
                assert!(self.changes.insert(*number, of(edition, 1, vec![by])).is_none(), "created twice");
            }
            Some(ChangeAction::Edit { edition, .. }) => {
                let known = &self.changes[number];
                let mut authors = known.authors.clone();
                authors.push(by);
                let next = of(edition, known.edition + 1, authors);
                self.held.remove(number);
                self.changes.insert(*number, next);
            }
            Some(ChangeAction::Vote(vote)) => {
                let known = self.changes.get_mut(number).unwrap();
                let (Some(key), Some(person)) = by.clone() else { panic!("{proposal} by nobody") };
                assert!(!is_one_of(&known.authors, &by), "{proposal} by an author");
                assert_eq!((vote.edition, vote.digest), (known.edition, known.digest), "{proposal}");
                known.approvals.remove(&person);
                known.rejections.remove(&person);
                if vote.opinion == Opinion::Rejection {
                    known.rejections.insert(person);
                } else {
                    let attested = attestation(before, &key).unwrap();
                    let given = Given { key, attested, edition: vote.edition, digest: vote.digest };
                    known.approvals.insert(person, given);
                }
            }
            Some(ChangeAction::Withdraw { .. }) => drop(self.ended.insert(*number)),
            Some(
                ChangeAction::Schedule { .. }
                | ChangeAction::Fail { .. }
                | ChangeAction::FailRevert { .. }
                | ChangeAction::Keep { .. }
                | ChangeAction::CreateStaged(_)
                | ChangeAction::EditStaged { .. }
                | ChangeAction::BeginRollout { .. }
                | ChangeAction::AdvanceRollout { .. }
                | ChangeAction::PauseRollout { .. }
                | ChangeAction::ResumeRollout { .. },
            ) => {}
        }
    }

    /// Everything that is pending is held.
    fn hold(&mut self) {
        for (number, known) in &mut self.changes {
            if !self.ended.contains(number) {
                known.approvals.clear();
                self.held.insert(*number);
            }
        }
    }

    /// C1 to C4, of an apply that was accepted. Returns how many persons had to approve it.
    fn expect_applied(&mut self, number: u64, before: &State, change: &Change, place: &str) -> u8 {
        let known = &self.changes[&number];
        let (needed, counted) = known.approved(before);
        assert!(counted >= usize::from(needed) && known.rejections.is_empty(), "{place}: {known:?}");
        assert!(!self.held.contains(&number) && !self.ended.contains(&number), "{place}");
        assert!(self.applied.insert(number), "{place}: applied twice");
        self.ended.insert(number);
        for base in &known.bases {
            let is_same = match base {
                Guard::Config { definition, key, revision } => {
                    let found = before.definition_by_id(*definition);
                    let now = found.map(|found| found.config(key.as_str()).map(|config| config.revision));
                    now == Some(*revision)
                }
                Guard::Definition { key, was } => {
                    let found = before.definition(key.as_str()).map(|found| &found.definition);
                    found.map(|found| (found.id, found.revision)) == was.map(|was| (was.id, was.revision))
                }
                Guard::Configs { .. }
                | Guard::AccessKey { .. }
                | Guard::Environment { .. }
                | Guard::Policy { .. } => panic!("{base:?}"),
            };
            assert!(is_same, "{place}: {base:?}");
        }
        let records = applied_in(change);
        assert_eq!(records.len(), 1, "{place}");
        assert_eq!(records[0].0, change_id(number), "{place}");
        assert!(matches!(records[0].1, AppliedWith::Approvals(_)), "{place}");
        needed
    }
}

/// C5: what has changed of restricted environments has its record in the same change.
fn expect_recorded(before: &State, after: &State, change: Option<&Change>, place: &str) {
    for definition in DEFINITIONS {
        if content(before, definition) == content(after, definition) {
            continue;
        }
        if rules(before, definition).direct == Direct::Refuse {
            let change = change.unwrap();
            assert_eq!(applied_in(change).len(), 1, "{place}: `{definition}`");
        }
    }
}

/// How often each has happened.
#[derive(Debug, Default)]
struct Seen {
    applied: u32,
    applied_with_approvals: u32,
    not_approved: u32,
    stale: u32,
    bypassed: u32,
    required: u32,
}

/// A cluster, and what has happened in it.
struct Run {
    generator: Generator,
    state: State,
    record: Record,
}

impl Run {
    fn turn(&mut self, text: &str, seen: &mut Seen) {
        let made = self.generator.next(&self.state, &self.record);
        let place = format!("{text}: {}", made.proposal);
        let stored = Proposal::from_bytes(&made.proposal.to_bytes()).unwrap();
        let before = self.state.clone();
        let (verdict, change) = self.state.apply(before.revision() + 1, &stored);
        expect_recorded(&before, &self.state, change.as_ref(), &place);
        let is_apply = matches!(stored.source(), Source::Change(_));
        if !matches!(verdict, Verdict::Decided(Ok(_))) {
            assert_eq!((change.as_ref(), self.state.digest()), (None, before.digest()), "{place}");
        }
        match verdict {
            Verdict::Decided(Ok(_)) if is_apply => {
                let needed =
                    self.record.expect_applied(made.number, &before, change.as_ref().unwrap(), &place);
                seen.applied += 1;
                seen.applied_with_approvals += u32::from(needed > 0);
            }
            Verdict::Decided(Ok(_)) => {
                self.record.note(&made, &before);
                seen.bypassed += u32::from(matches!(stored.source(), Source::Bypass(_)));
            }
            Verdict::Decided(Err(Rejection::NotApproved { needed, counted })) => {
                let known = self.record.changes[&made.number].approved(&before);
                assert_eq!((needed, usize::from(counted)), known, "{place}");
                seen.not_approved += 1;
            }
            Verdict::Decided(Err(rejection)) => {
                seen.required += u32::from(matches!(rejection, Rejection::ChangeRequired { .. }));
            }
            Verdict::Stale => seen.stale += u32::from(is_apply),
        }
    }

    fn restart(&mut self, place: &str) {
        let again = rebuilt(&self.state);
        assert_eq!(again.digest(), self.state.digest(), "{place}");
        let ids =
            |state: &State| state.pending_changes().map(|record| record.name.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&again), ids(&self.state), "{place}");
        assert_eq!(again.change_content_bytes(), self.state.change_content_bytes(), "{place}");
        self.state = again;
    }

    fn restore(&mut self) {
        let revision = self.state.revision() + 10;
        self.state = self.state.clone().restored_at(revision);
        self.record.hold();
    }
}

#[test]
fn what_is_applied_was_approved_and_what_is_restricted_changes_only_so() {
    let mut seen = Seen::default();
    for seed in 1..=14 {
        let generator = Generator { random: Rng::with_seed(seed), at: 1 << 40, next_change: 0 };
        let mut run = Run { generator, state: State::new(), record: Record::default() };
        for turn in 0..3000 {
            let place = format!("seed {seed}, {turn}");
            run.turn(&place, &mut seen);
            if turn % 50 == 0 {
                run.restart(&place);
            }
            if turn % 1000 == 999 {
                run.restore();
            }
        }
    }
    let Seen { applied, applied_with_approvals, not_approved, stale, bypassed, required } = seen;
    let all = [applied, applied_with_approvals, not_approved, stale, bypassed, required];
    assert!(all.iter().all(|count| *count > 50), "{all:?}");
}

#[test]
fn two_appliers_of_one_edition_apply_it_once_in_either_order() {
    let mut generator = Generator { random: Rng::with_seed(1), at: 1 << 40, next_change: 0 };
    let mut state = State::new();
    let mut apply = |proposal: &Proposal| {
        let (verdict, change) = state.apply(state.revision() + 1, proposal);
        (verdict, change.is_some(), state.clone())
    };
    let create = Command::CreateDefinition { key: key("a.d0"), indexes: vec![], schema: None };
    apply(&generator.propose(Author::Root, create, None));
    let edition = NewEdition {
        digest: [1; 32],
        scope: Scope::Definitions(vec![key("a.d0")]),
        text: "{}".into(),
        operations: "[]".into(),
        content: Content::new(Vec::new(), [1; 32]),
        timing: Timing::default(),
    };
    let action = ChangeAction::Create(edition.into());
    let create = Command::System(SystemCommand::Change { id: change_id(CHANGES), action });
    let (_, _, state) = apply(&generator.propose(Author::Root, create, None));
    let source = Source::Change(ChangeUse { id: change_id(CHANGES), edition: 1, digest: [1; 32] });
    let mut appliers: Vec<Proposal> = ["k1", "k2"]
        .map(|name| {
            let data: Arc<str> = "{}".into();
            let (definition, expect) = (key("a.d0"), Expect::Any);
            let command =
                Command::WriteConfig { definition, key: key(name), data, entries: Box::default(), expect };
            generator.propose(Author::Root, command, Tail::of(source.clone(), Vec::new()))
        })
        .into();
    for _ in 0..2 {
        let mut state = state.clone();
        let (first, change) = state.apply(state.revision() + 1, &appliers[0]);
        assert!(matches!(first, Verdict::Decided(Ok(_))) && change.is_some());
        let digest = state.digest();
        let (second, change) = state.apply(state.revision() + 1, &appliers[1]);
        assert_eq!((second, change), (Verdict::Decided(Err(Rejection::ChangeClosed)), None));
        assert_eq!(state.digest(), digest);
        let Phase::Applied { by, .. } = &state.change(&change_id(CHANGES)).unwrap().phase else { panic!() };
        assert_eq!(*by, Some(Party::Root));
        appliers.reverse();
    }
}
