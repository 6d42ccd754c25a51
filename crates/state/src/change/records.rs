//! The records of change requests, and the orders in which the log looks at them.
//!
//! Every order follows from the records alone, so a state that is built from records has the same ones. A plain write
//! touches none of them; an action on a change request costs a few descents, however many there are.
//!
//! **Invariant:** a change request is in exactly one of [`ChangeRecords::pending_by_age`], [`ChangeRecords::armed`],
//! [`ChangeRecords::held`], [`ChangeRecords::by_hand`], [`ChangeRecords::failed`],
//! [`ChangeRecords::failed_reverts`], [`ChangeRecords::unreviewed`] and [`ChangeRecords::ended`]. So what others close drops nothing that somebody still needs.

use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

use crate::{
    ByKey, KeyedRecord,
    index::{
        filed::{Filed, Totals, place, totals},
        tree::Tree,
    },
};
use concord_model::{
    access_key::KeyId,
    command::source::Guard,
    encoding,
    key::Key,
    limits::KEPT_BEFORE_BYTES_MIN,
    system::{
        SystemBody, SystemRecord,
        change::{
            AppliedWith, ApplyMode, Change, Content, Edition, Opinion, Party, Phase, Revert, RevertedBy,
            Scope,
        },
        environment::{DEFAULT_ENVIRONMENT, environment_name},
        identity::OwnerTag,
        person::PersonId,
        rollout::Rollout,
    },
    time::Timestamp,
};

impl KeyedRecord for Arc<SystemRecord> {
    type Weight = ();

    fn key(&self) -> &Key {
        &self.name
    }

    fn weight(&self) {}
}

/// Who a limit counts as one: a person, a key that nobody has attested, or a machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    Root,
    Person(PersonId),
    Key(KeyId),
    Machine(OwnerTag),
}

impl Counted {
    /// Who somebody counts for. A key that was not attested counts for itself alone: who made it may have named anybody as
    /// its person, and would use up what that person may have.
    fn of(party: &Party, is_attested: bool) -> Self {
        match party {
            Party::Root => Self::Root,
            Party::Key { person: Some(person), .. } if is_attested => Self::Person(*person),
            Party::Key { id, .. } => Self::Key(id.clone()),
            Party::Machine(machine) => Self::Machine(machine.owner),
        }
    }

    fn sender_of(edition: &Edition) -> Self {
        Self::of(&edition.sender, edition.is_attested)
    }
}

/// All change requests and their contents.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeRecords {
    by_id: Tree<ByKey<Arc<SystemRecord>>>,
    contents: Tree<ByKey<Arc<SystemRecord>>>,
    /// Those that are open, scheduled or held, by the time of their edition, with the bytes of that.
    pending_by_age: Tree<Filed<(Timestamp, Key)>>,
    /// The same by the time at which they expire.
    expiring: Tree<Filed<(Timestamp, Key)>>,
    /// The same and those that the cluster is to take back, by the sender of the edition.
    unfinished_by_sender: Tree<Filed<(Counted, Key)>>,
    /// The same by each environment whose name they touch, and by the sender.
    unfinished_by_environment: Tree<Filed<((Key, Counted), Key)>>,
    /// Those that the cluster applies once their time has come, if they have the approvals: they are scheduled, or have
    /// an approval.
    due: Tree<Filed<(Timestamp, Key)>>,
    /// Those that the cluster applies once their time has come, if they need no approval: they have none. By the
    /// environments that decide it, so that one look is enough for all of these.
    unasked: Tree<Filed<(Vec<Key>, Timestamp, Key)>>,
    /// Those that the cluster takes back, by the time when it does, with the bytes of what the configs were before.
    armed: Tree<Filed<(Timestamp, Key)>>,
    /// Those that it would have taken back, if there had not been a restore or a recovery.
    held: Tree<Filed<(Timestamp, Key)>>,
    /// Those that a person may take back, by the time until which they may, with the bytes that count of the record and of what
    /// the configs were before.
    by_hand: Tree<Filed<(Timestamp, Key)>>,
    /// Those that the cluster could not apply, by the time when it found out, with the bytes of their record.
    failed: Tree<Filed<(Timestamp, Key)>>,
    /// Those that it could not take back: many of the others drop none of these.
    failed_reverts: Tree<Filed<(Timestamp, Key)>>,
    /// Bypasses that wait for a review, by their writer.
    unreviewed: Tree<Filed<(Counted, Key)>>,
    /// All others, by the time at which they ended, with the bytes of their record.
    ended: Tree<Filed<(Timestamp, Key)>>,
    /// The contents that have what configs were before, by each definition that they need.
    before_by_definition: Tree<Filed<(u64, Key)>>,
    /// The rollouts by the id of their change request.
    rollouts: Tree<ByKey<Arc<SystemRecord>>>,
    /// The ids of those that run.
    running: Tree<Filed<Key>>,
    /// The configs that are in a rollout, by the id of their definition and their key, each with the id of the change request.
    in_rollout: Tree<Filed<((u64, Key), Key)>>,
    /// All, by each person that they name.
    by_person: Tree<Filed<(PersonId, Key)>>,
}

/// The bytes that a record takes where it is stored.
pub(super) fn stored_bytes(record: &SystemRecord) -> u64 {
    encoding::append(Vec::new(), record).len() as u64
}

/// The names of the environments whose definitions a change request touches. The key of a definition decides it, and not
/// which environments have a record: an environment that comes or goes changes no count.
pub(super) fn environments(scope: &Scope) -> BTreeSet<Key> {
    let name = |text: &str| Key::parse(text).expect("the beginning of a key up to a dot is a key");
    match scope {
        Scope::Environment(environment) => BTreeSet::from([environment.key().clone()]),
        Scope::Definitions(definitions) => definitions
            .iter()
            .map(|definition| name(environment_name(definition.as_str()).unwrap_or(DEFAULT_ENVIRONMENT)))
            .collect(),
    }
}

/// The persons that a change request names.
pub(super) fn persons(change: &Change) -> BTreeSet<PersonId> {
    let Change { edition, authors, votes, phase, revert, .. } = change;
    let ended: (Option<&Party>, Option<&Party>, &[Party]) = match phase {
        Phase::Open | Phase::Held => (None, None, &[]),
        Phase::Scheduled { by, .. } => (Some(by), None, &[]),
        Phase::Rolling { by, scheduled_by, .. } => (by.as_ref(), scheduled_by.as_ref(), &[]),
        Phase::Applied { by, with, scheduled_by, .. } => {
            let approvers: &[Party] = match with {
                AppliedWith::Approvals(approvers) => approvers,
                AppliedWith::Bypass => &[],
            };
            (by.as_ref(), scheduled_by.as_ref(), approvers)
        }
        Phase::Closed { by, .. } => (by.as_ref(), None, &[]),
    };
    let (by, scheduled_by, with) = ended;
    let reverted_by = match revert {
        Some(
            Revert::Done { by: RevertedBy::Approver(by) | RevertedBy::Bypass { by, .. }, .. }
            | Revert::Ended { by, .. },
        ) => Some(by),
        Some(
            Revert::Done { by: RevertedBy::Cluster, .. }
            | Revert::ByHand { .. }
            | Revert::Armed { .. }
            | Revert::Held { .. }
            | Revert::Failed { .. },
        )
        | None => None,
    };
    let voters = votes.iter().map(|vote| &vote.by);
    let some = [by, scheduled_by, reverted_by].into_iter().flatten();
    let all = authors.iter().chain([&edition.sender]).chain(voters).chain(some).chain(with);
    all.filter_map(Party::person).collect()
}

impl ChangeRecords {
    pub(super) fn get(&self, id: &str) -> Option<&Arc<SystemRecord>> {
        self.by_id.get(id).map(|found| &found.record)
    }

    pub(super) fn content(&self, name: &str) -> Option<&Arc<SystemRecord>> {
        self.contents.get(name).map(|found| &found.record)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.by_id.from(0).map(|found| &found.record)
    }

    pub(super) fn contents(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.contents.from(0).map(|found| &found.record)
    }

    /// The ids of those that are open, scheduled or held, the oldest editions first.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Key> {
        self.pending_by_age.from(0).map(|place| &place.key.1)
    }

    /// The pending one that expires first, and when it does.
    pub(super) fn first_expiring(&self) -> Option<&(Timestamp, Key)> {
        self.expiring.at(0).map(|place| &place.key)
    }

    /// The one that a person may take back for the shortest time, and until when.
    pub(super) fn first_by_hand(&self) -> Option<&(Timestamp, Key)> {
        self.by_hand.at(0).map(|place| &place.key)
    }

    /// The bytes that count of all that persons may take back.
    pub(super) fn by_hand_bytes(&self) -> u64 {
        self.by_hand.weight_before(|_| true)
    }

    /// Those that the cluster applies at some time if they have the approvals: they are scheduled, or have an approval.
    pub(super) fn due(&self) -> impl Iterator<Item = &(Timestamp, Key)> {
        self.due.from(0).map(|place| &place.key)
    }

    /// Those that the cluster may apply up to a time without an approval, if `is_free` of the environments that they touch.
    pub(super) fn due_unasked(
        &self,
        now: Timestamp,
        is_free: impl Fn(&[Key]) -> bool,
    ) -> impl Iterator<Item = &(Vec<Key>, Timestamp, Key)> {
        let mut position = 0;
        let groups = std::iter::from_fn(move || {
            loop {
                let group = &self.unasked.at(position)?.key.0;
                let begin = position;
                position = self.unasked.rank(|bound| bound.0 <= *group);
                if is_free(group) {
                    let upto = self
                        .unasked
                        .rank(|bound| bound.0.cmp(group).then(bound.1.cmp(&now)) != Ordering::Greater);
                    return Some((begin, upto.saturating_sub(begin)));
                }
            }
        });
        groups.flat_map(|(begin, count)| {
            self.unasked
                .from(begin)
                .take(usize::try_from(count).unwrap_or(usize::MAX))
                .map(|place| &place.key)
        })
    }

    /// Whether the cluster may have something to do some time.
    pub(super) fn has_timed(&self) -> bool {
        !self.due.is_empty() || !self.unasked.is_empty() || !self.armed.is_empty()
    }

    /// Those that the cluster takes back, and when.
    pub(super) fn armed(&self) -> impl Iterator<Item = &(Timestamp, Key)> {
        self.armed.from(0).map(|place| &place.key)
    }

    /// Those that it would have taken back, and when.
    pub(super) fn held_reverts(&self) -> impl Iterator<Item = &(Timestamp, Key)> {
        self.held.from(0).map(|place| &place.key)
    }

    /// Those that it could not apply, and those that it could not take back: of each the first, since when, and all.
    pub(super) fn first_failed(&self) -> [(Option<&(Timestamp, Key)>, Totals); 2] {
        [&self.failed, &self.failed_reverts].map(|of| {
            let totals = Totals { count: of.len(), bytes: of.weight_before(|_| true) };
            (of.at(0).map(|place| &place.key), totals)
        })
    }

    /// Those that it could not apply or take back, the last first.
    pub(super) fn failed(&self) -> impl Iterator<Item = &(Timestamp, Key)> {
        let [mut applies, mut reverts] = [&self.failed, &self.failed_reverts]
            .map(|of| of.back_from(of.len()).map(|place| &place.key).peekable());
        std::iter::from_fn(move || {
            let is_revert_later = reverts.peek() > applies.peek();
            if is_revert_later { reverts.next() } else { applies.next() }
        })
    }

    /// The one that ended first, of those that may be dropped, and when it did.
    pub(super) fn first_ended(&self) -> Option<&(Timestamp, Key)> {
        self.ended.at(0).map(|place| &place.key)
    }

    /// Those that may be dropped.
    pub(super) fn ended(&self) -> Totals {
        Totals { count: self.ended.len(), bytes: self.ended.weight_before(|_| true) }
    }

    /// Those of the sender of an edition.
    pub(super) fn unfinished_of(&self, edition: &Edition) -> Totals {
        totals(&self.unfinished_by_sender, &Counted::sender_of(edition))
    }

    /// How many touch an environment, and how many of these are of the sender of an edition.
    pub(super) fn unfinished_in(&self, environment: &Key, edition: &Edition) -> (u64, u64) {
        let all = &self.unfinished_by_environment;
        let upto = all.rank(|bound| bound.0.0 <= *environment);
        let own = totals(all, &(environment.clone(), Counted::sender_of(edition)));
        (upto - all.rank(|bound| bound.0.0 < *environment), own.count)
    }

    pub(super) fn unreviewed_of(&self, party: &Party, is_attested: bool) -> u64 {
        totals(&self.unreviewed, &Counted::of(party, is_attested)).count
    }

    pub(super) fn unreviewed_count(&self) -> u64 {
        self.unreviewed.len()
    }

    pub(super) fn pending_count(&self) -> u64 {
        self.pending_by_age.len()
    }

    /// The bytes of all pending editions, and of what the cluster needs to take others back.
    pub(super) fn content_bytes(&self) -> u64 {
        let all = [&self.pending_by_age, &self.armed, &self.held];
        all.into_iter().map(|of| of.weight_before(|_| true)).fold(0, u64::saturating_add)
    }

    pub(super) fn names_person(&self, person: PersonId) -> bool {
        totals(&self.by_person, &person).count > 0
    }

    /// Adds a record to all orders that it belongs to.
    pub(crate) fn insert(&mut self, record: Arc<SystemRecord>) {
        match &record.body {
            SystemBody::Change(change) => {
                self.file(&record, change, true);
                self.by_id.insert(ByKey::new(record));
            }
            SystemBody::Content(content) => {
                self.file_before(&record.name, content, true);
                self.contents.insert(ByKey::new(record));
            }
            SystemBody::Rollout(rollout) => {
                self.file_rollout(&record.name, rollout, true);
                self.rollouts.insert(ByKey::new(record));
            }
            // They are elsewhere.
            SystemBody::Environment(_)
            | SystemBody::Person(_)
            | SystemBody::Provider(_)
            | SystemBody::Role
            | SystemBody::Session(_)
            | SystemBody::KeySet(_)
            | SystemBody::Policy => {}
        }
    }

    /// Removes a record, as it was inserted.
    pub(crate) fn remove(&mut self, record: &SystemRecord) {
        match &record.body {
            SystemBody::Change(change) => {
                self.file(record, change, false);
                self.by_id.remove(record.name.as_str());
            }
            SystemBody::Content(content) => {
                self.file_before(&record.name, content, false);
                self.contents.remove(record.name.as_str());
            }
            SystemBody::Rollout(rollout) => {
                self.file_rollout(&record.name, rollout, false);
                self.rollouts.remove(record.name.as_str());
            }
            // They are elsewhere.
            SystemBody::Environment(_)
            | SystemBody::Person(_)
            | SystemBody::Provider(_)
            | SystemBody::Role
            | SystemBody::Session(_)
            | SystemBody::KeySet(_)
            | SystemBody::Policy => {}
        }
    }

    /// Adds a rollout to the orders that it belongs to, or removes it from them.
    fn file_rollout(&mut self, id: &Key, rollout: &Rollout, is_in: bool) {
        if rollout.is_running() {
            place(&mut self.running, id.clone(), 0, is_in);
        }
        for candidate in &rollout.candidates {
            let config = (candidate.definition, candidate.key.clone());
            place(&mut self.in_rollout, (config, id.clone()), 0, is_in);
        }
    }

    pub(super) fn rollout(&self, id: &str) -> Option<&Arc<SystemRecord>> {
        self.rollouts.get(id).map(|found| &found.record)
    }

    pub(super) fn rollouts(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.rollouts.from(0).map(|found| &found.record)
    }

    /// The ids of the rollouts that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &Key> {
        self.running.from(0).map(|place| &place.key)
    }

    pub(super) fn running_count(&self) -> u64 {
        self.running.len()
    }

    /// How many rollouts run of the sender of an edition.
    pub(super) fn running_of(&self, edition: &Edition) -> u64 {
        let sender = Counted::sender_of(edition);
        let is_own = |id: &&Key| {
            let change = self.get(id.as_str()).and_then(|record| record.change());
            change.is_some_and(|change| Counted::sender_of(&change.edition) == sender)
        };
        self.running().filter(is_own).count() as u64
    }

    /// The change request whose rollout has a config, or with `None` any config of the definition.
    pub(super) fn rollout_with(&self, definition: u64, key: Option<&Key>) -> Option<&Key> {
        if self.in_rollout.is_empty() {
            return None;
        }
        let is_before = |((of, config), _): &((u64, Key), Key)| {
            (*of, Some(config)) < (definition, key) || (*of < definition && key.is_none())
        };
        let ((of, config), change) = &self.in_rollout.at(self.in_rollout.rank(is_before))?.key;
        (*of == definition && key.is_none_or(|key| key == config)).then_some(change)
    }

    /// The same for what configs were before.
    fn file_before(&mut self, name: &Key, content: &Content, is_in: bool) {
        if content.before.is_empty() {
            return;
        }
        let definition = |base: &Guard| match base {
            Guard::Config { definition, .. } => Some(*definition),
            Guard::Definition { .. }
            | Guard::Configs { .. }
            | Guard::AccessKey { .. }
            | Guard::Environment { .. }
            | Guard::Policy { .. } => None,
        };
        for definition in content.bases.iter().filter_map(definition).collect::<BTreeSet<u64>>() {
            place(&mut self.before_by_definition, (definition, name.clone()), 0, is_in);
        }
    }

    /// The first content that needs a definition for what its configs were before.
    pub(super) fn first_before_of(&self, definition: u64) -> Option<&Key> {
        let position = self.before_by_definition.rank(|bound| bound.0 < definition);
        let (of, name) = &self.before_by_definition.at(position)?.key;
        (*of == definition).then_some(name)
    }

    /// The definitions that contents need for what their configs were before, each once.
    pub(super) fn definitions_of_before(&self) -> impl Iterator<Item = u64> {
        let mut position = 0;
        std::iter::from_fn(move || {
            let (definition, _) = self.before_by_definition.at(position)?.key;
            position = self.before_by_definition.rank(|bound| bound.0 <= definition);
            Some(definition)
        })
    }

    /// The same for the orders of those that the cluster may apply.
    fn file_due(&mut self, record: &SystemRecord, change: &Change, is_in: bool) {
        let Edition { timing, scope, sent_at, .. } = &change.edition;
        let at = timing.window.map_or(*sent_at, |window| window.not_before);
        let id = record.name.clone();
        let has = |opinion| change.current_votes().any(|vote| vote.opinion == opinion);
        match (&change.phase, timing.apply) {
            (Phase::Scheduled { .. }, _) => place(&mut self.due, (at, id), 0, is_in),
            // What is rejected is never applied.
            (Phase::Open, ApplyMode::WhenApproved) if has(Opinion::Rejection) => {}
            (Phase::Open, ApplyMode::WhenApproved) if has(Opinion::Approval) => {
                place(&mut self.due, (at, id), 0, is_in);
            }
            (Phase::Open, ApplyMode::WhenApproved) => {
                let environments = environments(scope).into_iter().collect();
                place(&mut self.unasked, (environments, at, id), 0, is_in);
            }
            (
                Phase::Open
                | Phase::Rolling { .. }
                | Phase::Held
                | Phase::Applied { .. }
                | Phase::Closed { .. },
                ApplyMode::Manual | ApplyMode::WhenApproved,
            ) => {}
        }
    }

    /// Adds a change request to the orders that it belongs to, or removes it from them.
    fn file(&mut self, record: &SystemRecord, change: &Change, is_in: bool) {
        let id = || record.name.clone();
        let of_record = || if is_in { stored_bytes(record) } else { 0 };
        let edition = &change.edition;
        let mut unfinished_bytes = None;
        match (change.ended_at(), &change.revert) {
            (None, _) => {
                unfinished_bytes = Some(edition.content_bytes);
                place(&mut self.pending_by_age, (edition.sent_at, id()), edition.content_bytes, is_in);
                if let Some(at) = change.expires_at() {
                    place(&mut self.expiring, (at, id()), 0, is_in);
                }
                self.file_due(record, change, is_in);
            }
            (Some(_), Some(Revert::Armed { due, bytes })) => {
                unfinished_bytes = Some(*bytes);
                place(&mut self.armed, (*due, id()), *bytes, is_in);
            }
            (Some(_), Some(Revert::Held { due, bytes })) => {
                unfinished_bytes = Some(*bytes);
                place(&mut self.held, (*due, id()), *bytes, is_in);
            }
            (Some(_), Some(Revert::ByHand { until, bytes })) => {
                let bytes = of_record().saturating_add(*bytes).max(KEPT_BEFORE_BYTES_MIN);
                place(&mut self.by_hand, (*until, id()), bytes, is_in);
            }
            (Some(at), _) => match (change.failure(), change.bypassed_by()) {
                (Some((at, _)), _) => {
                    let is_revert = change.revert.is_some();
                    let failed = if is_revert { &mut self.failed_reverts } else { &mut self.failed };
                    place(failed, (at, id()), of_record(), is_in);
                }
                (None, Some((by, is_attested))) if change.reviews_missing() > 0 => {
                    place(&mut self.unreviewed, (Counted::of(by, is_attested), id()), 0, is_in);
                }
                (None, _) => {
                    let at = change.last_ended_at().unwrap_or(at);
                    place(&mut self.ended, (at, id()), of_record(), is_in);
                }
            },
        }
        if let Some(bytes) = unfinished_bytes {
            place(&mut self.unfinished_by_sender, (Counted::sender_of(edition), id()), bytes, is_in);
            for environment in environments(&edition.scope) {
                let of = (environment, Counted::sender_of(edition));
                place(&mut self.unfinished_by_environment, (of, id()), 0, is_in);
            }
        }
        for person in persons(change) {
            place(&mut self.by_person, (person, id()), 0, is_in);
        }
    }
}
