//! What the configs were before a change request was applied, and whether it may be taken back.
//!
//! | it may be taken back | by | until |
//! |---|---|---|
//! | by hand | a person whose approval counted, or by a bypass | a day has passed, or there is no room |
//! | armed | the cluster, once it is due; before, also by hand | it is done, or fails, or somebody keeps it |
//! | held, by a restore or a recovery | by hand | it is done, or fails, or somebody keeps it |
//!
//! **Invariants:** a change request is taken back at most once, and writes exactly what the configs were. Each of them is as
//! the change request has left it. What an armed revert needs was reserved when the edition was sent.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    KnownParty,
    decide::{ActionContext, succeeding},
};
use crate::{Edit, State, apply::EntryContext, environment::ChangeTime};
use concord_model::{
    access_key::Author,
    command::{
        Command, StepOutcome,
        source::{Guard, RevertUse},
    },
    error::{NotDue, NotRevertible, Rejection},
    key::Key,
    limits::{
        CHANGES_SWEPT_PER_ENTRY_MAX, GUARDS_MAX, KEPT_BEFORE_BYTES_MAX, REVERT_BY_HAND_US, REVERT_BYTES_MAX,
    },
    record::{Config, Revision},
    sabotage,
    system::{
        SystemBody, SystemRecord,
        change::{
            AppliedWith, Change, ChangeDigest, ChangeId, Content, DataBefore, Failure, NewEdition, Party,
            Phase, Revert, RevertedBy,
        },
    },
    time::Timestamp,
};

/// Bytes of a config before a change, in addition to its key and its data.
const BYTES_PER_CONFIG: u64 = 64;
/// The data of a config counts in multiples of so many bytes at least.
const DATA_STEP_MIN: usize = 256;

/// The bytes that a config takes among those that take a change request back. The length of its data is rounded up: nobody
/// measures that of a secret value by what their limit has left.
fn config_bytes(key: &Key, before: Option<&str>) -> u64 {
    let data = before.map_or(0, str::len);
    let step = (data.next_power_of_two() / 8).max(DATA_STEP_MIN);
    BYTES_PER_CONFIG + (key.as_str().len() + data.next_multiple_of(step)) as u64
}

/// The commands that a command consists of. A transaction is none of those that are applied or taken back with a promise.
fn parts(command: &Command) -> Vec<&Command> {
    if let Command::Batch(steps) = command {
        return steps.iter().map(|step| &step.command).collect();
    }
    vec![command]
}

/// The definition and the key of the config that a command changes, and its data after that; `None` for any other command.
fn config_of(command: &Command) -> Option<(&Key, &Key, Option<&Arc<str>>)> {
    if let Command::WriteConfig { definition, key, data, .. } = command {
        return Some((definition, key, Some(data)));
    }
    let Command::DeleteConfig { definition, key, .. } = command else { return None };
    Some((definition, key, None))
}

/// A config that edits have changed.
struct ChangedConfig<'a> {
    definition: u64,
    key: &'a Key,
    /// As the first of them has found it.
    before: Option<&'a Arc<Config>>,
    /// Its revision, as the last has left it.
    after: Option<Revision>,
}

/// The configs that edits have changed. `None` when something else has changed.
fn changed_by(edits: &[Edit]) -> Option<Vec<ChangedConfig<'_>>> {
    let mut configs: BTreeMap<(u64, &Key), ChangedConfig<'_>> = BTreeMap::new();
    for edit in edits {
        let Edit::Config { definition, before, after } = edit else { return None };
        let (definition, before) = (*definition, before.as_ref());
        let key = &after.as_ref().or(before)?.key;
        let changed = || ChangedConfig { definition, key, before, after: None };
        configs.entry((definition, key)).or_insert_with(changed).after =
            after.as_ref().map(|after| after.revision);
    }
    let is_other = |config: &ChangedConfig<'_>| config.before.is_some() || config.after.is_some();
    Some(configs.into_values().filter(is_other).collect())
}

/// Of each config that a command changes, the place of its last change.
fn last_places(command: &Command) -> BTreeMap<(&Key, &Key), usize> {
    let steps = if let Command::Transaction(transaction) = command {
        transaction.steps.iter().map(|(_, step)| &step.command).collect()
    } else {
        parts(command)
    };
    let of = |(place, step)| config_of(step).map(|(definition, key, _)| ((definition, key), place));
    steps.into_iter().enumerate().filter_map(of).collect()
}

/// Rejects who is none of those whose approvals counted, as far as others have confirmed who it is.
fn expect_approver(by: &KnownParty, approvers: &[Party]) -> Result<(), Rejection> {
    if by.attestation.is_none() {
        return Err(Rejection::KeyNotAttested);
    }
    let is_one = approvers.iter().any(|approver| approver.may_be(&by.party));
    if is_one { Ok(()) } else { Err(Rejection::NotApprover) }
}

/// The definition that an edit has removed for good.
fn removed_for_good(edit: &Edit) -> Option<u64> {
    if let Edit::Deleted { definition, kept: None, .. } = edit {
        return Some(*definition);
    }
    if let Edit::Dropped { kept } = edit { Some(kept.id) } else { None }
}

/// The bytes of what takes a change request back.
fn bytes_of(bases: &[Guard], before: &[Option<DataBefore>]) -> u64 {
    let each = bases.iter().zip(before).filter_map(|(base, before)| {
        let Guard::Config { key, .. } = base else { return None };
        Some(config_bytes(key, before.as_ref().map(|before| &*before.data)))
    });
    each.sum()
}

impl State {
    /// What the configs were before a change request was applied, while it may be taken back: by its bases, which the
    /// command of a revert follows in their order.
    #[must_use]
    pub fn change_before(&self, id: &ChangeId) -> Option<&Content> {
        let edition = self.change(id)?.edition.number;
        self.change_content_record(id.before_name(edition).as_str())?.content()
    }

    /// Whether all configs are as a change request has left them, so that it can be taken back.
    #[must_use]
    pub fn is_revert_possible(&self, record: &SystemRecord) -> bool {
        let content = self.content_of(record).and_then(|content| content.content());
        content
            .is_some_and(|content| !content.before.is_empty() && self.failed_guard(&content.bases).is_none())
    }

    /// The change requests that the cluster takes back, and when.
    pub fn armed_reverts(&self) -> impl Iterator<Item = (Timestamp, &Arc<SystemRecord>)> {
        self.changes.armed().filter_map(|(due, id)| Some((*due, self.change_record(id.as_str())?)))
    }

    /// Those that it would have taken back, if there had not been a restore or a recovery, and when.
    pub fn held_reverts(&self) -> impl Iterator<Item = (Timestamp, &Arc<SystemRecord>)> {
        self.changes.held_reverts().filter_map(|(due, id)| Some((*due, self.change_record(id.as_str())?)))
    }

    /// Rejects an edition that the cluster is to take back, and can't. Returns the bytes that it will need for that.
    pub(super) fn expect_revertible_edition(&self, edition: &NewEdition) -> Result<u64, Rejection> {
        if edition.timing.revert_after_s.is_none() {
            return Ok(0);
        }
        let mut bytes: u64 = 0;
        for base in &edition.content.bases {
            let Guard::Config { definition, key, .. } = base else {
                return Err(Rejection::NotRevertible(NotRevertible::NotOfConfigs));
            };
            let found = self.definition_by_id(*definition).and_then(|found| found.config(key.as_str()));
            bytes = bytes.saturating_add(config_bytes(key, found.map(|config| &*config.data)));
        }
        if edition.content.bases.is_empty() {
            return Err(Rejection::NotRevertible(NotRevertible::NotOfConfigs));
        }
        if bytes > REVERT_BYTES_MAX {
            return Err(Rejection::NotRevertible(NotRevertible::TooLarge));
        }
        Ok(bytes)
    }

    /// Whether a command changes configs that are among the bases, and nothing else: what takes it back was reserved.
    pub(super) fn is_within_bases(&self, command: &Command, bases: &[Guard]) -> bool {
        let mut reserved: BTreeSet<(&Key, &Key)> = BTreeSet::new();
        for base in bases {
            let Guard::Config { definition, key, .. } = base else { return false };
            // A base whose definition is gone makes the proposal stale, which says more.
            let Some(found) = self.definition_by_id(*definition) else { return true };
            reserved.insert((&found.definition.key, key));
        }
        let is_reserved = |part: &Command| {
            config_of(part).is_some_and(|(definition, key, _)| reserved.contains(&(definition, key)))
        };
        parts(command).into_iter().all(is_reserved)
    }

    /// What configs were before edits, and what they are after them. The last one that the command has changed comes first: a
    /// value of a unique field that has moved from one to another moves back. `None` when something else has changed.
    fn before_of(&self, command: &Command, edits: &[Edit]) -> Option<(Vec<Guard>, Vec<Option<DataBefore>>)> {
        let mut changed = changed_by(edits)?;
        let places = last_places(command);
        changed.sort_by_key(|config| {
            let found = self.definition_by_id(config.definition);
            let place = found.and_then(|found| places.get(&(&found.definition.key, config.key)));
            Reverse(place.copied())
        });
        let each = |ChangedConfig { definition, key, before, after }: ChangedConfig<'_>| {
            let guard = Guard::Config { definition, key: key.clone(), revision: after };
            (guard, before.map(|before| DataBefore { data: Arc::clone(&before.data) }))
        };
        Some(changed.into_iter().map(each).unzip())
    }

    /// What becomes of a change request after a command has applied it by these edits, and the record of what the configs
    /// were.
    pub(super) fn keep_before(
        &mut self,
        context: EntryContext,
        (id, change, command): (&ChangeId, &Change, &Command),
        edits: &mut Vec<Edit>,
    ) -> Option<Revert> {
        let fits = |(bases, _): &(Vec<Guard>, _)| (1..=GUARDS_MAX).contains(&bases.len());
        let (bases, before) = self.before_of(command, edits).filter(fits)?;
        let bytes = bytes_of(&bases, &before);
        let after = |us: u64| Timestamp(context.at.0.saturating_add(us));
        let revert = match change.edition.timing.revert_after_s {
            Some(seconds) => Revert::Armed { due: after(u64::from(seconds) * 1_000_000), bytes },
            None if bytes > REVERT_BYTES_MAX => return None,
            None => Revert::ByHand { until: after(REVERT_BY_HAND_US), bytes },
        };
        let content = SystemRecord {
            name: id.before_name(change.edition.number),
            body: SystemBody::Content(Content { bases, digest_key: [0; 32], before }),
            text: "{}".into(),
            created_at: context.at,
            modified_at: context.at,
            revision: context.revision,
        };
        self.put_system_record(None, Some(content), edits);
        Some(revert)
    }

    /// Drops what the configs were before the oldest change requests that a person may take back, while it is too much.
    pub(super) fn make_room_for_before(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        while self.changes.by_hand_bytes() > KEPT_BEFORE_BYTES_MAX && self.drop_first_before(context, edits) {
        }
    }

    /// Drops what the configs were before the change request that a person may take back for the shortest time. Returns
    /// whether there was one.
    pub(super) fn drop_first_before(&mut self, context: EntryContext, edits: &mut Vec<Edit>) -> bool {
        let first = self.changes.first_by_hand().and_then(|(_, id)| self.change_record(id.as_str())).cloned();
        let Some(before) = first else { return false };
        let Some(change) = before.change() else { return false };
        self.drop_content(&before, edits);
        let after = succeeding(&before, Change { revert: None, ..change.clone() }, context);
        self.put_change(Some(before), Some(after), edits);
        true
    }

    /// Ends the reverts that need a definition which the edits have removed for good: what its configs were before goes
    /// with it. An entry ends so many at most, and the next sweeps end the others.
    pub(crate) fn drop_before_of_gone(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        let gone: BTreeSet<u64> = edits.iter().filter_map(removed_for_good).collect();
        let mut left = CHANGES_SWEPT_PER_ENTRY_MAX;
        for definition in gone {
            while left > 0 && self.drop_before_of(context, definition, edits) {
                left -= 1;
            }
        }
    }

    /// Ends one of the reverts that need a definition. Returns whether there was one.
    pub(super) fn drop_before_of(
        &mut self,
        context: EntryContext,
        definition: u64,
        edits: &mut Vec<Edit>,
    ) -> bool {
        let Some(name) = self.changes.first_before_of(definition).cloned() else { return false };
        let id = name.as_str().split_once('-').map_or("", |(id, _)| id);
        let found = self.change_record(id).cloned();
        if let Some(content) = self.change_content_record(name.as_str()).cloned() {
            self.put_system_record(Some(content), None, edits);
        }
        let Some((before, change)) = found.as_ref().and_then(|found| Some((found, found.change()?))) else {
            return true;
        };
        // Somebody counts on one that the cluster was to take back.
        let revert = change.revert.as_ref().and_then(Revert::due).map(|_| Revert::Failed {
            at: context.at,
            failure: Failure {
                code: "definition_deleted".into(),
                text: "a definition was deleted for good, and what its configs were before with it".into(),
            },
        });
        let after = succeeding(before, Change { revert, ..change.clone() }, context);
        self.put_change(Some(Arc::clone(before)), Some(after), edits);
        true
    }

    /// The definitions that are gone for good, and that something needs to take a change request back.
    pub(super) fn gone_definitions(&self) -> impl Iterator<Item = u64> {
        let kept: BTreeSet<u64> = self.deleted().map(|kept| kept.definition.id).collect();
        let is_gone = move |id: &u64| self.definition_by_id(*id).is_none() && !kept.contains(id);
        self.changes.definitions_of_before().filter(is_gone)
    }

    /// The change request that a command takes back, if it may in an entry of this time.
    ///
    /// # Errors
    /// Why it may not.
    pub fn expect_revertible(
        &self,
        at: Timestamp,
        command: &Command,
        (author, of): (&Author, &RevertUse),
    ) -> Result<Arc<SystemRecord>, Rejection> {
        let record = self.change_record(of.id.as_str()).ok_or(Rejection::ChangeNotFound)?;
        let change = record.change().ok_or(Rejection::ChangeNotFound)?;
        let over = || Rejection::NotRevertible(NotRevertible::Over);
        let approvers = match &change.phase {
            Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } | Phase::Held => {
                return Err(Rejection::NotRevertible(NotRevertible::NotApplied));
            }
            Phase::Closed { .. } => return Err(Rejection::ChangeClosed),
            Phase::Applied { with: AppliedWith::Approvals(approvers), .. } => &approvers[..],
            Phase::Applied { with: AppliedWith::Bypass, .. } => return Err(over()),
        };
        let revert = match &change.revert {
            Some(Revert::Done { .. }) => return Err(Rejection::ChangeClosed),
            Some(Revert::Failed { .. } | Revert::Ended { .. }) | None => return Err(over()),
            Some(revert) => revert,
        };
        if of.edition != change.edition.number {
            return Err(Rejection::ChangeDigest);
        }
        let time = ChangeTime::of(at, command);
        match (author, revert) {
            (Author::Cluster, Revert::Armed { due, .. }) if !of.is_bypass => {
                if time.first < *due && !sabotage::is("revert-early") {
                    return Err(Rejection::ChangeNotDue(NotDue::Before(*due)));
                }
            }
            (Author::Cluster, _) => return Err(Rejection::Unauthored),
            (Author::Root | Author::Key(_) | Author::Session(_), Revert::ByHand { until, .. })
                if time.last >= *until =>
            {
                return Err(over());
            }
            (Author::Root | Author::Key(_) | Author::Session(_), _) => {
                let by = self.party(author).ok_or(Rejection::Unauthored)?;
                if of.is_bypass {
                    self.expect_review_room(&by.party, by.attestation.is_some())?;
                } else {
                    expect_approver(&by, approvers)?;
                }
            }
        }
        let content = self.content_of(record).and_then(|content| content.content());
        let content = content.ok_or_else(over)?;
        if !self.takes_back(command, content) {
            return Err(Rejection::ChangeDigest);
        }
        Ok(Arc::clone(record))
    }

    /// Whether a command writes what the configs were, each once and in their order, and nothing else.
    fn takes_back(&self, command: &Command, content: &Content) -> bool {
        let is_back = |(base, before, part): (&Guard, &Option<DataBefore>, &Command)| {
            let Guard::Config { definition, key, .. } = base else { return false };
            let Some((of, config, data)) = config_of(part) else { return false };
            // One whose definition is gone makes the proposal stale, which says more.
            let found = self.definition_by_id(*definition);
            let is_there = key == config && found.is_none_or(|found| found.definition.key == *of);
            is_there && data == before.as_ref().map(|before| &before.data)
        };
        let parts = parts(command);
        let all = content.bases.iter().zip(&content.before).zip(&parts);
        parts.len() == content.bases.len()
            && all.into_iter().all(|((base, before), part)| is_back((base, before, part)))
    }

    /// The change request after a command has taken it back.
    pub(super) fn make_reverted(
        &mut self,
        context: EntryContext,
        before: &Arc<SystemRecord>,
        (author, is_bypass): (&Author, bool),
        edits: &mut Vec<Edit>,
    ) {
        let Some(change) = before.change() else { return };
        let by = match self.party(author) {
            None => RevertedBy::Cluster,
            Some(by) if is_bypass => {
                RevertedBy::Bypass { is_attested: by.attestation.is_some(), by: by.party }
            }
            Some(by) => RevertedBy::Approver(by.party),
        };
        let revert = Some(Revert::Done { revision: context.revision, at: context.at, by });
        let after = succeeding(before, Change { revert, ..change.clone() }, context);
        self.end_change(before, after, edits);
    }

    /// Ends the revert of a change request that was to be taken back: what it changed stays. A person decides that whose
    /// approval counted, as they may take it back alone.
    pub(super) fn keep_change(
        &mut self,
        context: ActionContext<'_>,
        by: KnownParty,
        (edition, digest, comment): (u32, &ChangeDigest, &str),
        edits: &mut Vec<Edit>,
    ) -> Result<StepOutcome, Rejection> {
        let before = self.expect_change(context.id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        let approvers = match &change.phase {
            Phase::Applied { with: AppliedWith::Approvals(approvers), .. } => &approvers[..],
            Phase::Applied { with: AppliedWith::Bypass, .. } => &[],
            Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } | Phase::Held => {
                return Err(Rejection::NotRevertible(NotRevertible::NotApplied));
            }
            Phase::Closed { .. } => return Err(Rejection::ChangeClosed),
        };
        if (edition, digest) != (change.edition.number, &change.edition.digest) {
            return Err(Rejection::ChangeDigest);
        }
        match &change.revert {
            Some(Revert::Armed { .. } | Revert::Held { .. }) => {}
            Some(Revert::Done { .. } | Revert::Failed { .. } | Revert::Ended { .. }) => {
                return Err(Rejection::ChangeClosed);
            }
            Some(Revert::ByHand { .. }) | None => {
                return Err(Rejection::NotRevertible(NotRevertible::NotArmed));
            }
        }
        // Where nobody has to approve it, then and now, the leader asks for the permission to write it.
        if !approvers.is_empty() || self.approvals_asked(&change.edition.scope) > 0 {
            expect_approver(&by, approvers)?;
        }
        let revert = Some(Revert::Ended { at: context.entry.at, by: by.party, comment: comment.to_owned() });
        let after = succeeding(&before, Change { revert, ..change.clone() }, context.entry);
        self.end_change(&before, after, edits);
        Ok(StepOutcome::Changed)
    }

    /// Holds every revert that is armed: only a person takes these back.
    pub(super) fn hold_reverts(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        if sabotage::is("armed-after-restore") {
            return;
        }
        let armed: Vec<Arc<SystemRecord>> =
            self.armed_reverts().map(|(_, record)| Arc::clone(record)).collect();
        for before in armed {
            let Some(change) = before.change() else { continue };
            let Some(Revert::Armed { due, bytes }) = change.revert else { continue };
            let revert = Some(Revert::Held { due, bytes });
            let after = succeeding(&before, Change { revert, ..change.clone() }, context);
            self.put_change(Some(before), Some(after), edits);
        }
    }

    /// Ends every revert that lacks what the configs were: the history does not have it.
    pub(super) fn end_reverts_without_content(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        let bare = |record: &&Arc<SystemRecord>| {
            let revert = record.change().and_then(|change| change.revert.as_ref());
            revert.is_some_and(Revert::is_possible) && self.content_of(record).is_none()
        };
        for before in self.changes().filter(bare).cloned().collect::<Vec<_>>() {
            let Some(change) = before.change() else { continue };
            let failed = || {
                let text = "a restored cluster does not have what the configs were before";
                Revert::Failed {
                    at: context.at,
                    failure: Failure { code: "restored".into(), text: text.into() },
                }
            };
            let was_due = change.revert.as_ref().and_then(Revert::due);
            let after =
                succeeding(&before, Change { revert: was_due.map(|_| failed()), ..change.clone() }, context);
            self.put_change(Some(before), Some(after), edits);
        }
    }
}
