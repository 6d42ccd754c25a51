//! What a reader sees while a rollout runs: in place of a config its candidate, in reads and in events.
//!
//! An event has the record of a rollout before and after it, and the proven configs. So what any reader
//! saw before it and sees after it follows from the event, without the state. While a config is in a rollout nothing else changes it:
//! so every other event is the same for all.
//!
//! **Invariants:** the view of an event depends on the event and on the reader alone. A client that applies the views of all
//! events to what it sees at one revision has what it sees at a later one. Who is no reader sees no candidate.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use crate::{
    Change, Edit, State,
    feed::{Before, Event, RecordChange},
};
use concord_model::{
    key::Key,
    record::{Config, Revision},
    sabotage,
    system::{
        SystemRecord,
        change::ChangeId,
        rollout::{Candidate, Reader, Rollout, Running},
    },
    time::Timestamp,
};

/// An edition of a change request, as that of which a config is a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// The id of the change request.
    pub change: Key,
    /// Its edition.
    pub edition: u32,
}

impl Variant {
    /// The entity tag of its candidates: another edition may have other data. No revision is equal to it.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("{}-{}", self.change, self.edition)
    }
}

/// A config as a reader sees it who is in its rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenConfig {
    /// Of what it is a candidate.
    pub variant: Variant,
    /// The data of the candidate; the key, the times and the revision of the proven config.
    pub config: Arc<Config>,
}

/// A rollout that a reader is in, as far as it is about one definition.
#[derive(Debug, Clone, Copy)]
pub struct SeenRollout<'s> {
    /// The id of the change request.
    pub change: &'s Key,
    /// When it began. It has the same candidates until its end.
    pub begun_at: Timestamp,
    /// The candidates of the definition; at least one.
    pub candidates: &'s [Candidate],
}

/// The edit of a rollout by which what readers see may change: it begins, goes on or ends.
#[derive(Debug, Clone)]
pub struct RolloutEdit {
    change: ChangeId,
    before: Option<Arc<SystemRecord>>,
    after: Option<Arc<SystemRecord>>,
    configs: Vec<RolledConfig>,
}

/// A config of a rollout.
#[derive(Debug, Clone)]
pub struct RolledConfig {
    /// The place of its candidate.
    place: usize,
    /// The key of its definition.
    pub definition: Key,
    /// The proven config after the edit, unless the event has it among its items. `None` where it is not known.
    pub proven: Option<Arc<Config>>,
}

/// The edits of rollouts of an event, with the event as readers see it.
#[derive(Debug)]
pub struct RolloutEdits {
    edits: Vec<RolloutEdit>,
    /// Of one edit there are four views: a reader was in or not, and is in or not. Made once for all readers.
    views: [OnceLock<Option<Arc<Event>>>; 4],
}

/// Whether a reader was in a rollout before an edit, and whether it is after it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sides {
    /// Before the edit.
    pub was_in: bool,
    /// After the edit.
    pub is_in: bool,
}

/// A config with the data of its candidate, and the times and the revision of the proven one.
#[must_use]
pub fn with_data_of(candidate: &Candidate, proven: &Config) -> Arc<Config> {
    Arc::new(Config {
        key: proven.key.clone(),
        data: Arc::clone(&candidate.data),
        // Lists show proven data, so nothing looks for them.
        entries: Box::default(),
        created_at: proven.created_at,
        modified_at: proven.modified_at,
        revision: proven.revision,
    })
}

fn running(record: Option<&Arc<SystemRecord>>) -> Option<&Rollout> {
    record?.rollout().filter(|rollout| rollout.is_running())
}

impl State {
    /// A config as a reader sees it who is in its rollout; `None` where it sees the proven config. Costs one comparison while
    /// no rollout runs.
    #[must_use]
    pub fn seen_config(&self, definition: Revision, proven: &Config, reader: &Reader) -> Option<SeenConfig> {
        let seen = self.seen_candidate(definition, &proven.key, reader)?;
        let variant = Variant { change: seen.change.clone(), edition: seen.edition };
        Some(SeenConfig { variant, config: with_data_of(seen.candidate, proven) })
    }

    /// The rollouts of configs of a definition that a reader is in.
    pub fn seen_rollouts<'s>(
        &'s self,
        definition: Revision,
        reader: &Reader,
    ) -> impl Iterator<Item = SeenRollout<'s>> {
        self.running_rollouts().filter_map(move |(change, Running { rollout, progress, .. })| {
            let all = &rollout.candidates;
            let from = all.partition_point(|candidate| candidate.definition < definition);
            let upto = all.partition_point(|candidate| candidate.definition <= definition);
            let candidates = all.get(from..upto).filter(|of| !of.is_empty())?;
            let is_in = rollout.has(&ChangeId::parse(change.as_str())?, reader);
            is_in.then_some(SeenRollout { change, begun_at: progress.begun_at, candidates })
        })
    }

    /// A config as a client sees it that says by `reader` who it is, if it does.
    #[must_use]
    pub fn seen_by(
        &self,
        definition: Revision,
        proven: &Config,
        reader: Option<&Reader>,
    ) -> Option<SeenConfig> {
        if reader.is_none() && sabotage::is("candidate-for-all") {
            return self.running_rollouts().find_map(|(change, Running { rollout, .. })| {
                let candidate = rollout.candidate(definition, &proven.key)?;
                let variant = Variant { change: change.clone(), edition: rollout.edition };
                Some(SeenConfig { variant, config: with_data_of(candidate, proven) })
            });
        }
        self.seen_config(definition, proven, reader?)
    }
}

impl RolloutEdit {
    /// The edit of a system record, if that is a rollout that runs, before or after it. It has no configs yet.
    #[must_use]
    pub fn of(before: Option<&Arc<SystemRecord>>, after: Option<&Arc<SystemRecord>>) -> Option<Self> {
        running(before).or_else(|| running(after))?;
        let change = ChangeId::parse(after.or(before)?.name.as_str())?;
        Some(Self { change, before: before.cloned(), after: after.cloned(), configs: Vec::new() })
    }

    /// What its configs are when it has ended. A rollout that runs keeps its candidates.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        let rollout = running(self.after.as_ref()).or_else(|| running(self.before.as_ref()));
        rollout.map_or(&[], |rollout| &rollout.candidates)
    }

    /// Adds its configs. `of` returns the key of the definition of a candidate and the proven config; `None` for one that nobody
    /// needs.
    pub fn add_configs<E>(
        &mut self,
        mut of: impl FnMut(&Candidate) -> Result<Option<(Key, Option<Arc<Config>>)>, E>,
    ) -> Result<(), E> {
        let mut configs = Vec::new();
        for (place, candidate) in self.candidates().iter().enumerate() {
            if let Some((definition, proven)) = of(candidate)? {
                configs.push(RolledConfig { place, definition, proven });
            }
        }
        self.configs = configs;
        Ok(())
    }

    /// Whether a reader was in, and is in.
    #[must_use]
    pub fn sides(&self, reader: &Reader) -> Sides {
        let has = |record: &Option<Arc<SystemRecord>>| {
            running(record.as_ref()).is_some_and(|rollout| rollout.has(&self.change, reader))
        };
        Sides { was_in: has(&self.before), is_in: has(&self.after) }
    }

    /// Its configs, with their candidates.
    fn configs(&self) -> impl Iterator<Item = (&RolledConfig, &Candidate)> {
        let candidates = self.candidates();
        self.configs.iter().filter_map(|config| Some((config, candidates.get(config.place)?)))
    }

    /// Changes the items of an event to what a reader sees. `None` if a proven config that it sees is not known.
    fn show(
        &self,
        Sides { was_in, is_in }: Sides,
        items: &mut Vec<RecordChange>,
        variants: &mut BTreeMap<usize, Key>,
    ) -> Option<()> {
        if !was_in && !is_in {
            return Some(());
        }
        for (rolled, candidate) in self.configs() {
            let is_of = |item: &RecordChange| match item {
                RecordChange::Config { definition, key, .. } => {
                    *definition == rolled.definition && *key == candidate.key
                }
                RecordChange::Definition { .. } => false,
            };
            let place = match items.iter().position(is_of) {
                Some(place) => place,
                None if was_in == is_in => continue,
                None => {
                    let proven = rolled.proven.as_ref()?;
                    items.push(RecordChange::Config {
                        definition: rolled.definition.clone(),
                        key: candidate.key.clone(),
                        before: Before::Known(Arc::clone(proven)),
                        after: Some(Arc::clone(proven)),
                    });
                    items.len() - 1
                }
            };
            let Some(RecordChange::Config { before, after, .. }) = items.get_mut(place) else { continue };
            if was_in && let Before::Known(proven) = before {
                *proven = with_data_of(candidate, proven);
            }
            if is_in && let Some(proven) = after {
                *proven = with_data_of(candidate, proven);
                variants.insert(place, self.change.key().clone());
            }
        }
        Some(())
    }

    /// The approximate bytes that it retains, with the views of its event and their rendering.
    fn bytes(&self) -> u64 {
        let records = [&self.before, &self.after].into_iter().flatten().map(|record| record.bytes());
        let shown = self.configs().map(|(rolled, candidate)| {
            let proven = rolled.proven.as_ref().map_or(0, |proven| proven.data.len());
            (candidate.data.len() + proven) as u64
        });
        // The texts before and after are the same ones.
        records.max().unwrap_or(0).saturating_add(2 * shown.sum::<u64>())
    }
}

impl RolloutEdits {
    /// `None` without an edit.
    pub(crate) fn new(edits: Vec<RolloutEdit>) -> Option<Box<Self>> {
        (!edits.is_empty()).then(|| Box::new(Self { edits, views: Default::default() }))
    }

    /// The definitions and keys of the configs that it has.
    pub fn configs(&self) -> impl Iterator<Item = (&Key, &Key)> {
        let all = self.edits.iter().flat_map(RolloutEdit::configs);
        all.map(|(rolled, candidate)| (&rolled.definition, &candidate.key))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.edits.iter().map(RolloutEdit::bytes).fold(0, u64::saturating_add)
    }
}

impl Event {
    /// The event as a reader sees it: with a change of each config that it sees on another side of a rollout than before.
    /// `None` if the event has come from the history and what the reader sees after it is not known.
    #[must_use]
    pub fn seen_by(self: &Arc<Self>, reader: &Reader) -> Option<Arc<Self>> {
        let Some(rollouts) = &self.rollouts else { return Some(Arc::clone(self)) };
        let sides: Vec<Sides> = rollouts.edits.iter().map(|edit| edit.sides(reader)).collect();
        if let [Sides { was_in, is_in }] = sides[..] {
            let view = &rollouts.views[2 * usize::from(was_in) + usize::from(is_in)];
            return view.get_or_init(|| self.view(&rollouts.edits, &sides)).clone();
        }
        // Only a restore ends several at once.
        self.view(&rollouts.edits, &sides)
    }

    fn view(&self, edits: &[RolloutEdit], sides: &[Sides]) -> Option<Arc<Self>> {
        let (mut items, mut variants) = (self.items.clone(), BTreeMap::new());
        for (edit, sides) in edits.iter().zip(sides) {
            edit.show(*sides, &mut items, &mut variants)?;
        }
        let requests = self.change_requests.clone();
        Some(Arc::new(self.of_items(items, requests).with_variants(variants)))
    }
}

/// The edits of rollouts of a change. `later` are the changes after it, up to that which made the state; `name` returns the
/// key of a definition by its id.
pub(crate) fn edits_of(
    change: &Change,
    (later, state): (&[Arc<Change>], &State),
    mut name: impl FnMut(Revision) -> Option<Key>,
) -> Vec<RolloutEdit> {
    if sabotage::is("watch-misses-rollout") {
        return Vec::new();
    }
    let mut edits = Vec::new();
    for edit in &change.edits {
        let Edit::System { before, after } = edit else { continue };
        let Some(mut edit) = RolloutEdit::of(before.as_ref(), after.as_ref()) else { continue };
        let config = |candidate: &Candidate| {
            let proven = proven_after(candidate, later, state);
            Ok::<_, std::convert::Infallible>(name(candidate.definition).map(|name| (name, proven)))
        };
        let Ok(()) = edit.add_configs(config);
        edits.push(edit);
    }
    edits
}

/// The proven config of a candidate before later changes. `None` if its definition was deleted by one of them.
fn proven_after(candidate: &Candidate, later: &[Arc<Change>], state: &State) -> Option<Arc<Config>> {
    let replaced = later.iter().flat_map(|change| &change.edits).find_map(|edit| match edit {
        Edit::Config { definition, before: Some(before), .. }
            if *definition == candidate.definition && before.key == candidate.key =>
        {
            Some(before)
        }
        Edit::Config { .. }
        | Edit::Definition { .. }
        | Edit::Reindexed { .. }
        | Edit::Deleted { .. }
        | Edit::Entries { .. }
        | Edit::Building { .. }
        | Edit::Remember(_)
        | Edit::AccessKey { .. }
        | Edit::AuditAnchors { .. }
        | Edit::System { .. }
        | Edit::Undeleted { .. }
        | Edit::Dropped { .. }
        | Edit::Skipped(_)
        | Edit::Forget(_) => None,
    });
    let current = || state.definition_by_id(candidate.definition)?.config(candidate.key.as_str());
    replaced.or_else(current).cloned()
}
