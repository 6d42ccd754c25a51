//! The readers of a config: which programs follow it now, on all nodes, and what they say of it.
//!
//! Each node knows its own watches and polls, and the leader knows the reports. The receiving node puts them together: what a
//! reader says of the candidate of a rollout if it sees one, otherwise of the proven data.
//!
//! **Invariants:** a node that does not respond is named. A list that is not complete says so, and the numbers are those of all.
//! What a reader says is shown to nobody who may not see the data that it may quote.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    Reports,
    evidence::ConfigSaid,
    memory::Said,
    reports::{Answer, Asked, ReaderState, SaidQuestion},
};
use crate::{
    Reservation, Share,
    editions::find,
    history::ConfigName,
    request::{Consistency, Principal, Refusal},
};
use concord_model::{
    access_key::Verb,
    error::Rejection,
    feature::ROLLOUTS,
    key::Key,
    record::Revision,
    system::{change::ChangeId, rollout::Reader},
    time::Timestamp,
};
use concord_net::NodeId;
use concord_state::State;

/// What a reader takes in memory beside its texts: those of its structs.
const READER_BYTES: usize = 256;

/// A watch, or a poll that waits, whose client names its reader. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderWatch {
    /// The name of the reader.
    pub reader: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// When the watch began, by the clock of its node.
    pub since: Timestamp,
    /// The revision up to which the watch has returned everything; `None` before the end of its initial state.
    pub revision: Option<Revision>,
}

/// The watches of a config on one node. Sent between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReaders {
    /// Those that name their reader, or the first of them.
    pub readers: Vec<ReaderWatch>,
    /// How many name their reader.
    pub identified: u64,
    /// How many do not.
    pub unidentified: u64,
}

/// A reader of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigReader {
    /// Its name.
    pub reader: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// The node that it watches; `None` for a reader that has reported a failure and has no watch in the list.
    pub node: Option<NodeId>,
    /// When its watch began.
    pub since: Option<Timestamp>,
    /// The revision up to which its watch has returned everything.
    pub revision: Option<Revision>,
    /// The id of the change request whose candidate it sees; `None` for the proven data.
    pub variant: Option<String>,
    /// What it says of the data; `None` if it has said nothing lately, or no leader answers.
    pub said: Option<ReaderSaid>,
}

/// What a reader says of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderSaid {
    /// How it runs.
    pub state: ReaderState,
    /// What is wrong; `None` where the client may not see it, and where it is not kept.
    pub detail: Option<String>,
    /// The revision that it says it of; `None` for a candidate, which has none.
    pub revision: Option<Revision>,
    /// When it has said so.
    pub at: Timestamp,
}

/// The readers of a config on all nodes.
#[derive(Debug)]
pub struct ConfigReaders {
    /// The readers, failed ones first, then by their names. One that has several watches is there several times.
    pub readers: Vec<ConfigReader>,
    /// Watches that name their reader.
    pub identified: u64,
    /// Watches that do not.
    pub unidentified: u64,
    /// Whether a node has more watches than it lists, or more readers have failed than are listed.
    pub is_truncated: bool,
    /// The nodes that did not answer in time.
    pub missing_nodes: Vec<NodeId>,
    /// How many readers say that they run well with the proven data, and how many that they do not. `None` if no leader answers
    /// in time.
    pub counts: Option<(u32, u32)>,
    /// The revision of the state that says who sees a candidate.
    pub revision: Revision,
    /// The memory that the response may take.
    pub reservation: Reservation,
}

/// What the client may not see of what readers say.
#[derive(Debug, Clone, Copy)]
struct Hides {
    proven: bool,
    candidate: bool,
}

impl ReaderWatch {
    fn bytes(&self) -> usize {
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len());
        READER_BYTES + self.reader.len() + labels.sum::<usize>()
    }
}

impl NodeReaders {
    fn is_truncated(&self) -> bool {
        (self.readers.len() as u64) < self.identified
    }
}

impl Reports {
    /// The readers of a config.
    ///
    /// # Errors
    /// When the principal may not read the definition, the cluster's level is too low, there is no such config, no state is
    /// fresh enough, or this node has no memory or no place for the request.
    pub async fn readers(
        &self,
        principal: &Principal,
        name: ConfigName<'_>,
        consistency: Consistency,
    ) -> Result<ConfigReaders, Refusal> {
        principal.authorize(Verb::Read, Some(name.definition))?;
        self.freshness.expect_level(ROLLOUTS).await?;
        let state = self.freshness.view(consistency).await?;
        let found = state.definition(name.definition).ok_or(Rejection::DefinitionNotFound)?;
        let key = found.config(name.key).ok_or(Rejection::ConfigNotFound)?.key.clone();
        let definition = found.definition.id;
        let may_hide = principal.authorize(Verb::Reveal, Some(name.definition)).is_err();
        let hides_proven = may_hide && found.may_have_secrets();
        // It asks all nodes: as many at once as reports, and a fair part of them for each key.
        let _place = self.admission.admit(principal)?;
        let (answers, missing_nodes) = self.gather(&state, definition, &key).await?;
        let listed = answers.iter().flat_map(|(_, node)| &node.readers);
        // As they come, as rows, and as text.
        let bytes = 3 * listed.map(ReaderWatch::bytes).sum::<usize>() as u64;
        let reservation = self.cx.memory_budget.reserve(Share::Callers, bytes)?;
        let (identified, unidentified) = answers
            .iter()
            .fold((0, 0), |(named, others), (_, node)| (named + node.identified, others + node.unidentified));
        let has_more = answers.iter().any(|(_, node)| node.is_truncated());
        let (of, name) = (Arc::clone(&state), key.clone());
        // Some milliseconds for thousands of readers.
        let readers = self.cx.run_long(move || rows(&of, (definition, &name), answers)).await?;
        let change = readers.iter().find_map(|reader| reader.variant.clone());
        let hides =
            Hides { proven: hides_proven, candidate: hides_candidate(&state, principal, change.as_deref()) };
        let named = readers.iter().map(|reader| (reader.reader.clone(), reader.variant.is_some()));
        let named: BTreeSet<(String, bool)> = named.collect();
        let key = key.as_str().to_owned();
        let question = SaidQuestion { definition, key, change, readers: named.iter().cloned().collect() };
        let said = self.said(question).await;
        let counts = said.as_ref().map(|said| (said.healthy, said.failed));
        let said = said.unwrap_or_default();
        let is_truncated =
            has_more || said.failures.len() < usize::try_from(said.failed).unwrap_or(usize::MAX);
        let readers = self.cx.run_long(move || with_said(readers, named, said, hides)).await?;
        Ok(ConfigReaders {
            readers,
            identified,
            unidentified,
            is_truncated,
            missing_nodes,
            counts,
            revision: state.revision(),
            reservation,
        })
    }

    /// The watches of a config on each node that answers, and the others.
    async fn gather(
        &self,
        state: &State,
        definition: u64,
        key: &Key,
    ) -> Result<(Vec<(NodeId, NodeReaders)>, Vec<NodeId>), Refusal> {
        let consensus = self.cx.consensus_or_refusal()?;
        let own = (self.watches.list)(state, definition, key);
        let (mut answers, mut missing) = (vec![(self.cx.node_id(), own)], Vec::new());
        let asked = Asked::ListWatches(definition, key.as_str().to_owned());
        for (node, answer) in self.ask_others(consensus, asked).await? {
            match answer {
                Some(Answer::Listed(listed)) => answers.push((node, *listed)),
                Some(Answer::Reported(_) | Answer::Shown(_) | Answer::Watches(_) | Answer::Said(_))
                | None => {
                    missing.push(node);
                }
            }
        }
        Ok((answers, missing))
    }
}

/// Whether what readers of a candidate say may quote what the client may not see: they say it of all configs of the change
/// request.
fn hides_candidate(state: &State, principal: &Principal, change: Option<&str>) -> bool {
    let found = change.and_then(ChangeId::parse).and_then(|change| find(state, &change));
    found.is_none_or(|found| {
        !principal.may_see_change(found.scope()) || found.may_hide_data_from(state, principal)
    })
}

/// A row of each watch, with the version that its reader sees.
fn rows(
    state: &State,
    (definition, key): (u64, &Key),
    answers: Vec<(NodeId, NodeReaders)>,
) -> Vec<ConfigReader> {
    let row = |node: NodeId, watch: ReaderWatch| {
        let ReaderWatch { reader: id, labels, since, revision } = watch;
        let reader = Reader { id, labels };
        let seen = state.seen_candidate(definition, key, &reader);
        let variant = seen.map(|seen| seen.change.as_str().to_owned());
        let Reader { id: reader, labels } = reader;
        ConfigReader { reader, labels, node: Some(node), since: Some(since), revision, variant, said: None }
    };
    answers
        .into_iter()
        .flat_map(|(node, listed)| listed.readers.into_iter().map(move |watch| (node, watch)))
        .map(|(node, watch)| row(node, watch))
        .collect()
}

/// Adds what readers say, and the readers that have failed and have no watch among the rows.
fn with_said(
    mut readers: Vec<ConfigReader>,
    named: BTreeSet<(String, bool)>,
    said: ConfigSaid,
    hides: Hides,
) -> Vec<ConfigReader> {
    let shown = |said: Said, is_hidden: bool| {
        let state = if said.is_failed { ReaderState::Failed } else { ReaderState::Healthy };
        let detail = said.detail.filter(|detail| !is_hidden && !detail.is_empty());
        ReaderSaid { state, detail, revision: (said.revision > 0).then_some(said.revision), at: said.at }
    };
    let known: BTreeMap<(String, bool), Option<Said>> = named.into_iter().zip(said.said).collect();
    for reader in &mut readers {
        let sees_candidate = reader.variant.is_some();
        let is_hidden = if sees_candidate { hides.candidate } else { hides.proven };
        let said = known.get(&(reader.reader.clone(), sees_candidate)).cloned().flatten();
        reader.said = said.map(|said| shown(said, is_hidden));
    }
    let mut others = BTreeSet::new();
    for failure in said.failures {
        let is_listed =
            [false, true].into_iter().any(|side| known.contains_key(&(failure.reader.clone(), side)));
        if is_listed || !others.insert(failure.reader.clone()) {
            continue;
        }
        let said = Said {
            is_failed: true,
            detail: Some(failure.detail),
            revision: failure.revision,
            at: failure.at,
        };
        readers.push(ConfigReader {
            reader: failure.reader,
            labels: failure.labels,
            node: None,
            since: None,
            revision: None,
            variant: None,
            said: Some(shown(said, hides.proven)),
        });
    }
    readers.sort_by(|a, b| {
        let runs =
            |reader: &ConfigReader| reader.said.as_ref().is_none_or(|said| said.state != ReaderState::Failed);
        (runs(a), &a.reader, a.node).cmp(&(runs(b), &b.reader, b.node))
    });
    readers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::FailureReport;

    fn row(reader: &str, node: NodeId, variant: Option<&str>) -> ConfigReader {
        ConfigReader {
            reader: reader.into(),
            labels: Vec::new(),
            node: Some(node),
            since: Some(Timestamp(1)),
            revision: Some(7),
            variant: variant.map(str::to_owned),
            said: None,
        }
    }

    fn failed(detail: &str, revision: Revision) -> Said {
        Said { is_failed: true, detail: Some(detail.into()), revision, at: Timestamp(2) }
    }

    fn said(hides: Hides) -> Vec<(String, Option<NodeId>, Option<String>)> {
        let rows = vec![row("b", 1, None), row("b", 2, None), row("a", 1, None), row("c", 1, Some("change"))];
        let named = [("a", false), ("b", false), ("c", true)].map(|(name, side)| (name.to_owned(), side));
        let failure = |reader: &str| FailureReport {
            reader: reader.into(),
            instance: String::new(),
            labels: Vec::new(),
            detail: "of proven data".into(),
            revision: 7,
            at: Timestamp(2),
        };
        let said = ConfigSaid {
            healthy: 0,
            failed: 2,
            failures: vec![failure("b"), failure("gone"), failure("gone")],
            said: vec![None, Some(failed("of proven data", 7)), Some(failed("of a candidate", 0))],
        };
        let detail = |reader: &ConfigReader| reader.said.as_ref().and_then(|said| said.detail.clone());
        let all = with_said(rows, named.into(), said, hides);
        all.into_iter().map(|reader| (reader.reader.clone(), reader.node, detail(&reader))).collect()
    }

    #[test]
    fn failed_readers_come_first_and_one_without_a_watch_is_there_once() {
        let of =
            |reader: &str, node, detail: Option<&str>| (reader.to_owned(), node, detail.map(str::to_owned));
        let open = said(Hides { proven: false, candidate: false });
        let proven = Some("of proven data");
        let expected = [
            of("b", Some(1), proven),
            of("b", Some(2), proven),
            of("c", Some(1), Some("of a candidate")),
            of("gone", None, proven),
            of("a", Some(1), None),
        ];
        assert_eq!(open, expected);
        let hidden = said(Hides { proven: true, candidate: false });
        let details: Vec<Option<&str>> = hidden.iter().map(|(.., detail)| detail.as_deref()).collect();
        assert_eq!(details, [None, None, Some("of a candidate"), None, None]);
        let hidden = said(Hides { proven: false, candidate: true });
        assert!(hidden.iter().all(|(.., detail)| detail.as_deref() != Some("of a candidate")));
    }

    #[test]
    fn what_a_node_answers_decodes_to_what_was_encoded() {
        use concord_net::codec::{decode, encode};
        let labels = vec![("ring".to_owned(), "canary".to_owned())];
        let watch = ReaderWatch { reader: "a".into(), labels, since: Timestamp(1), revision: Some(2) };
        let listed = NodeReaders { readers: vec![watch], identified: 1001, unidentified: 1 };
        assert!(listed.is_truncated());
        assert_eq!(decode::<NodeReaders>(&encode(&listed)).unwrap(), listed);
    }
}
