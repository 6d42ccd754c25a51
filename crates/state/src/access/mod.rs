//! The access keys of the cluster, and whether the log may decide a proposal in the name of one.
//!
//! The receiving node and the leader authorize a request before they propose it. The proposal names the key and the
//! revision of the key at that time, so the log can check whether the authorization still holds. If the key is gone,
//! has expired or has another secret, the proposal is rejected. If the key changed in another way, the verdict is
//! stale, and the leader authorizes again by the current key. So this module ignores the grants, and yet no entry after
//! a change of grants depends on the grants before.
//!
//! `attest` decides which keys are attested.
//!
//! **Invariants:** the log accepts no proposal in the name of a revoked key, or of the root key while it is disabled.
//! While the root key is disabled, there is a key that may manage keys and never expires. A key that expires does not
//! count: nobody could manage keys after that.

mod attest;

use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

use super::{Edit, State, apply::EntryContext, digest, index::tree::Item};
use attest::Changer;
use concord_model::{
    access_key::{AccessKey, Author, Grants, KeyId, KeySecret, SECRETS_MAX, Verb, day_of},
    command::{AccessCommand, Expect, KeyTerms, Outcome, Proposal, StepOutcome, Verdict, source::Source},
    error::Rejection,
    limits::ACCESS_KEYS_MAX,
    system::person::PersonId,
    time::Timestamp,
};

/// An access key by its id.
#[derive(Debug, Clone)]
pub(super) struct ByKeyId(Arc<AccessKey>);

impl Item for ByKeyId {
    type SearchKey<'a> = &'a KeyId;
    type Bound = KeyId;
    type Weight = ();

    fn search_key(&self) -> &KeyId {
        &self.0.id
    }

    fn bound(&self) -> KeyId {
        self.0.id.clone()
    }

    fn search_key_of(bound: &KeyId) -> &KeyId {
        bound
    }

    fn compare(a: &KeyId, b: &KeyId) -> Ordering {
        a.cmp(b)
    }

    fn weight(&self) {}
}

/// The bytes of a key's texts.
pub(super) fn key_bytes(key: &AccessKey) -> u64 {
    let patterns = key.grants.0.iter().flat_map(|grant| &grant.definitions);
    let texts: usize = patterns.map(|pattern| 32 + pattern.as_str().len()).sum();
    (key.name.len() + texts + 32 * key.grants.0.len()) as u64
}

impl State {
    /// The access key with this id.
    #[must_use]
    pub fn access_key(&self, id: &KeyId) -> Option<&Arc<AccessKey>> {
        self.access_keys.get(id).map(|found| &found.0)
    }

    /// All access keys by id.
    pub fn access_keys(&self) -> impl Iterator<Item = &Arc<AccessKey>> {
        self.access_keys.from(0).map(|found| &found.0)
    }

    /// How many access keys there are.
    #[must_use]
    pub fn access_key_count(&self) -> u64 {
        self.access_keys.len()
    }

    /// Whether the root key is disabled.
    #[must_use]
    pub fn is_root_disabled(&self) -> bool {
        self.root_disabled
    }

    /// The verdict when the one in whose name a proposal is made may make none, or when their permissions must be computed again.
    pub(super) fn refused_author(&self, at: Timestamp, proposal: &Proposal) -> Option<Verdict> {
        if concord_model::sabotage::is("author-not-decided-again") {
            return None;
        }
        let rejected = |rejection| Some(Verdict::Decided(Err(rejection)));
        let author = match &proposal.author {
            Author::Key(author) => author,
            Author::Session(author) => return self.refused_session(at, author),
            Author::Root if self.root_disabled => return rejected(Rejection::RootDisabled),
            // Which rollouts it begins and lets go on is decided with them.
            Author::Cluster if proposal.command.is_rollout_step() => return None,
            // Which change requests the cluster applies and takes back is decided with their source.
            Author::Cluster if matches!(proposal.source(), Source::Change(_) | Source::Revert(_)) => {
                return None;
            }
            Author::Cluster if !proposal.command.is_of_the_cluster() => {
                return rejected(Rejection::Unauthored);
            }
            Author::Root | Author::Cluster => return None,
        };
        let key = self.access_key(&author.id).filter(|key| key.is_valid_at(at));
        let Some(key) = key.filter(|key| key.secret_at(author.secret, at).is_some()) else {
            return rejected(Rejection::KeyEnded);
        };
        (key.revision != author.revision).then_some(Verdict::Stale)
    }

    /// Whether the key that a command changes is another one than the leader read.
    pub(super) fn is_access_stale(&self, command: &AccessCommand) -> bool {
        match command {
            AccessCommand::Change { id, expect: Expect::Read(read), .. }
            | AccessCommand::Revoke { id, expect: Expect::Read(read) }
            | AccessCommand::Rotate { id, expect: Expect::Read(read), .. } => {
                self.access_key(id).map(|key| key.revision) != *read
            }
            AccessCommand::Create { .. }
            | AccessCommand::Change { .. }
            | AccessCommand::Revoke { .. }
            | AccessCommand::Rotate { .. }
            | AccessCommand::MarkUsed { .. }
            | AccessCommand::DisableRoot
            // It names the revision itself.
            | AccessCommand::Attest { .. }
            | AccessCommand::EnableRoot => false,
        }
    }

    pub(super) fn decide_access(
        &mut self,
        context: EntryContext,
        proposal: &Proposal,
        command: &AccessCommand,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let EntryContext { revision, at, .. } = context;
        let author = &proposal.author;
        let done = match command {
            AccessCommand::Create { id, terms, sha256, person } => {
                let by = Changer::of(author, None);
                let secret =
                    KeySecret { sha256: *sha256, made: revision, until: None, is_own: by.makes_own_secret() };
                let mut key = self.new_key(context, &proposal.by, (id, terms, secret))?;
                if let Some(label) = person {
                    key.person = Some(self.find_or_make_person(context, label, edits)?);
                }
                by.settle_new_secret(context, &mut key);
                self.put_key(None, Some(key), edits);
                StepOutcome::Created
            }
            AccessCommand::Change { id, terms, expect } => {
                let before = self.expect_key(id, *expect)?;
                self.expect_key_for_keys(Some((id, &terms.grants, terms.expires_at)), self.root_disabled)?;
                let attestation = Changer::of(author, Some(&before)).settle_change(&before, terms);
                let KeyTerms { name, grants, quota, expires_at } = terms.clone();
                let old = AccessKey { attestation, half_attested: None, ..(*before).clone() };
                let after = AccessKey { name, grants, quota, expires_at, modified_at: at, revision, ..old };
                self.put_key(Some(before), Some(after), edits);
                StepOutcome::Changed
            }
            AccessCommand::Revoke { id, expect } => {
                let before = self.expect_key(id, *expect)?;
                self.expect_key_for_keys(Some((id, &Grants::default(), None)), self.root_disabled)?;
                self.put_key(Some(before), None, edits);
                StepOutcome::Deleted
            }
            AccessCommand::Rotate { id, sha256, grace_us, expect } => {
                let before = self.expect_key(id, *expect)?;
                let by = Changer::of(author, Some(&before));
                let secret =
                    KeySecret { sha256: *sha256, made: revision, until: None, is_own: by.makes_own_secret() };
                let secrets = rotated(&before.secrets, context, secret, *grace_us);
                let mut after = AccessKey { secrets, modified_at: at, revision, ..(*before).clone() };
                by.settle_new_secret(context, &mut after);
                self.put_key(Some(before), Some(after), edits);
                StepOutcome::Changed
            }
            AccessCommand::MarkUsed { ids } => {
                let day = Some(day_of(at));
                for id in ids {
                    let Some(before) = self.access_key(id).filter(|key| key.last_used_day < day) else {
                        continue;
                    };
                    let (before, after) =
                        (Arc::clone(before), AccessKey { last_used_day: day, ..(**before).clone() });
                    self.put_key(Some(before), Some(after), edits);
                }
                StepOutcome::NoRecord
            }
            AccessCommand::Attest { id, revision } => {
                self.attest(context, author, (id, *revision), edits)?;
                StepOutcome::Changed
            }
            AccessCommand::DisableRoot => {
                self.expect_key_for_keys(None, true)?;
                self.root_disabled = true;
                StepOutcome::NoRecord
            }
            AccessCommand::EnableRoot => {
                self.root_disabled = false;
                StepOutcome::NoRecord
            }
        };
        Ok(context.applied(done))
    }

    fn new_key(
        &self,
        context: EntryContext,
        by: &str,
        (id, terms, secret): (&KeyId, &KeyTerms, KeySecret),
    ) -> Result<AccessKey, Rejection> {
        if self.access_key(id).is_some() || self.session_record(id.as_str()).is_some() {
            return Err(Rejection::KeyExists);
        }
        if self.access_keys.len() >= ACCESS_KEYS_MAX {
            return Err(Rejection::TooManyKeys);
        }
        let EntryContext { revision, at, .. } = context;
        let KeyTerms { name, grants, quota, expires_at } = terms.clone();
        Ok(AccessKey {
            id: id.clone(),
            name,
            grants,
            quota,
            expires_at,
            created_at: at,
            created_by: by.into(),
            modified_at: at,
            revision,
            secrets: vec![secret],
            last_used_day: None,
            person: None,
            attestation: None,
            half_attested: None,
        })
    }

    /// The key, when it meets the precondition.
    fn expect_key(&self, id: &KeyId, expect: Expect) -> Result<Arc<AccessKey>, Rejection> {
        let key = self.access_key(id).ok_or(Rejection::KeyNotFound)?;
        match expect {
            Expect::At(tag) if tag != key.tag() => Err(Rejection::Precondition { current: key.tag() }),
            Expect::Absent | Expect::None => Err(Rejection::Precondition { current: key.tag() }),
            Expect::Any | Expect::Present | Expect::At(_) | Expect::Read(_) => Ok(Arc::clone(key)),
        }
    }

    /// While the root key is disabled, somebody must be able to manage keys, now and later: `changed` counts with other
    /// grants and another expiry.
    fn expect_key_for_keys(
        &self,
        changed: Option<(&KeyId, &Grants, Option<Timestamp>)>,
        root_disabled: bool,
    ) -> Result<(), Rejection> {
        if !root_disabled {
            return Ok(());
        }
        let manages = |key: &Arc<AccessKey>| {
            let (grants, expires_at) = match changed {
                Some((id, grants, expires_at)) if *id == key.id => (grants, expires_at),
                Some(_) | None => (&key.grants, key.expires_at),
            };
            expires_at.is_none() && grants.allows(Verb::Keys, None)
        };
        if self.access_keys().any(manages) { Ok(()) } else { Err(Rejection::NoKeyForKeys) }
    }

    /// Replaces a key; one of the two may be absent.
    fn put_key(&mut self, before: Option<Arc<AccessKey>>, after: Option<AccessKey>, edits: &mut Vec<Edit>) {
        if let Some(before) = &before {
            self.access_keys.remove(&before.id);
            self.sum = self.sum.wrapping_sub(digest::of_access_key(before));
            self.bytes = self.bytes.saturating_sub(key_bytes(before));
            self.count_replaced(key_bytes(before));
        }
        let persons = |key: Option<&AccessKey>| -> BTreeSet<PersonId> {
            key.into_iter().flat_map(AccessKey::persons).collect()
        };
        let let_go = &persons(before.as_deref()) - &persons(after.as_ref());
        let after = after.map(Arc::new);
        if let Some(after) = &after {
            self.insert_access_key(Arc::clone(after));
        }
        edits.push(Edit::AccessKey { before, after });
        self.drop_unnamed_persons(let_go, edits);
    }

    /// Adds a key to the index and to the digest.
    pub(super) fn insert_access_key(&mut self, key: Arc<AccessKey>) {
        self.sum = self.sum.wrapping_add(digest::of_access_key(&key));
        self.bytes = self.bytes.saturating_add(key_bytes(&key));
        self.access_keys.insert(ByKeyId(key));
    }
}

/// The secrets of a key with another one: the newest before stays for the grace, older ones go.
fn rotated(secrets: &[KeySecret], context: EntryContext, secret: KeySecret, grace_us: u64) -> Vec<KeySecret> {
    let end = Timestamp(context.at.0.saturating_add(grace_us));
    let last = secrets.last().filter(|_| grace_us > 0);
    let before =
        last.map(|last| KeySecret { until: Some(last.until.map_or(end, |until| until.min(end))), ..*last });
    let kept: Vec<KeySecret> = before.into_iter().chain([secret]).collect();
    debug_assert!(kept.len() <= SECRETS_MAX);
    kept
}

#[cfg(test)]
mod tests;
