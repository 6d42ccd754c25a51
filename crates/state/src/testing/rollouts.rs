//! The proposals of a rollout: of the root key, in an environment without rules, for configs of one definition.

use crate::State;
use concord_model::{
    access_key::Author,
    command::{
        BatchStep, ChangeAction, Command, Expect, Proposal, SystemCommand,
        source::{ChangeUse, Guard, Source, Tail},
    },
    key::Key,
    system::{
        change::{ChangeId, Content, NewEdition, Scope, Timing},
        rollout::{Candidate, Evidence, LabelValues, OnFail, Plan, Reader, SHARE_ALL, Stage, StagedEdition},
    },
    time::Timestamp,
};

use super::events::key;

/// The digest of the edition: nobody computes it here.
const DIGEST: [u8; 32] = [1; 32];

/// A rollout of candidates.
#[derive(Debug)]
pub struct Rolling<'a> {
    /// The id of its change request.
    pub id: ChangeId,
    /// The key of the definition.
    pub definition: &'a str,
    /// The keys of the configs, ascending, with the data of their candidates.
    pub configs: &'a [(&'a str, &'a str)],
}

/// First the readers with `ring=canary`, then all; no evidence.
pub fn plan() -> Plan {
    let canary = LabelValues { name: "ring".into(), values: vec!["canary".into()] };
    let first = Stage { labels: vec![canary], share: SHARE_ALL, for_s: 1, min_healthy: 0 };
    let all = Stage { labels: Vec::new(), ..first.clone() };
    Plan {
        stages: vec![first, all],
        max_failed: 0,
        gates: Vec::new(),
        on_fail: OnFail::Pause,
        timeout_s: 600,
    }
}

/// A reader in the first stage of [`plan`].
pub fn canary() -> Reader {
    Reader { id: "host-1".into(), labels: vec![("ring".into(), "canary".into())] }
}

/// A reader in the last stage of [`plan`].
pub fn other() -> Reader {
    Reader { id: "host-2".into(), labels: Vec::new() }
}

impl Rolling<'_> {
    fn proposal(at: Timestamp, author: Author, command: Command) -> Proposal {
        Proposal::new(at, "root", author, command)
    }

    fn action(&self, at: Timestamp, action: ChangeAction) -> Proposal {
        let command = Command::System(SystemCommand::Change { id: self.id.clone(), action });
        Self::proposal(at, Author::Root, command)
    }

    fn definition_id(&self, state: &State) -> u64 {
        state.definition(self.definition).expect("the definition exists").definition.id
    }

    /// The change request, with [`plan`].
    pub fn create(&self, state: &State, at: Timestamp) -> Proposal {
        let definition = self.definition_id(state);
        let base = |(name, _): &(&str, &str)| {
            let found = state.definition(self.definition).and_then(|found| found.config(name));
            Guard::Config { definition, key: key(name), revision: found.map(|config| config.revision) }
        };
        let edition = NewEdition {
            digest: DIGEST,
            scope: Scope::Definitions([key(self.definition)].into()),
            text: r#"{"title":"a title"}"#.into(),
            operations: "[]".into(),
            content: Content::new(self.configs.iter().map(base).collect(), [9; 32]),
            timing: Timing::default(),
        };
        let staged = StagedEdition { edition, plan: plan() };
        self.action(at, ChangeAction::CreateStaged(Box::new(staged)))
    }

    /// Begins it.
    pub fn begin(&self, state: &State, at: Timestamp) -> Proposal {
        let definition = self.definition_id(state);
        let candidate =
            |(name, data): &(&str, &str)| Candidate { definition, key: key(name), data: (*data).into() };
        let candidates = self.configs.iter().map(candidate).collect();
        self.action(at, ChangeAction::BeginRollout { edition: 1, digest: DIGEST, candidates })
    }

    /// Ends its present stage, as a person.
    pub fn advance(&self, state: &State, at: Timestamp) -> Proposal {
        let stage = state.running_rollout(&self.id).expect("it runs").at();
        self.action(at, ChangeAction::AdvanceRollout { at: stage, evidence: Evidence::default() })
    }

    /// Takes it back.
    pub fn abort(&self, at: Timestamp) -> Proposal {
        self.action(at, ChangeAction::Withdraw { comment: "no".into() })
    }

    /// Makes its candidates the proven data.
    pub fn end(&self, at: Timestamp) -> Proposal {
        let step = |(name, data): &(&str, &str)| BatchStep {
            definition_read: None,
            command: self.write(name, data),
        };
        let batch = Command::Batch(self.configs.iter().map(step).collect());
        let source = Source::Change(ChangeUse { id: self.id.clone(), edition: 1, digest: DIGEST });
        let tail = Tail::of(source, Vec::new());
        Proposal { tail, ..Self::proposal(at, Author::Cluster, batch) }
    }

    fn write(&self, name: &str, data: &str) -> Command {
        let (definition, key): (Key, Key) = (key(self.definition), key(name));
        Command::WriteConfig {
            definition,
            key,
            data: data.into(),
            entries: Box::default(),
            expect: Expect::Any,
        }
    }
}
