//! Saved plans: what `diff --save` has shown, so that `apply --plan` does that and nothing else.
//!
//! A plan names the records that change, each with its revision, the revisions of all definitions that the files name, a
//! digest of the files, and the cluster. It has no data. `apply` compares files and cluster again: if the result is another
//! one, it refuses. From there on every write is conditional on its revision, so of two applies that touch one record one
//! fails.
//!
//! ```json
//! {"concord_plan": 1, "created_at": "…", "cluster_id": "…", "files_sha256": "…", "prune": false,
//!  "definitions": {"limits": 41},
//!  "changes": [{"config_definition_key": "limits", "config_key": "acme", "operation": "changed", "revision": 42}]}
//! ```
//!
//! **Invariant:** a plan with an unknown member or of another version is rejected, and never taken for an empty one.

use std::{collections::BTreeMap, fs, path::Path};

use concord_client::{Client, Error, Request};
use serde::{Deserialize, Serialize};

use super::{
    connection::Failure,
    manifest::{Manifests, name},
    plan::ApplyPlan,
};

/// The version of the format.
const VERSION: u64 = 1;
/// Differences that a message names.
const NAMED_MAX: usize = 10;

/// A plan in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedPlan {
    concord_plan: u64,
    /// For people.
    created_at: String,
    /// The cluster that the files were compared with.
    cluster_id: String,
    /// The environment whose definitions the files' keys name, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    environment: Option<String>,
    /// The digest of what the files say.
    files_sha256: String,
    /// Whether configs that are missing from the files are deleted.
    pub(super) prune: bool,
    /// The revision of each definition that the files name; null if it does not exist.
    definitions: BTreeMap<String, Option<u64>>,
    changes: Vec<SavedChange>,
}

/// A change of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedChange {
    config_definition_key: String,
    /// Absent for a definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config_key: Option<String>,
    /// `created`, `changed` or `deleted`.
    operation: String,
    /// The revision that it replaces; null if the record does not exist.
    revision: Option<u64>,
}

impl SavedChange {
    fn name(&self) -> String {
        name(&self.config_definition_key, self.config_key.as_deref().unwrap_or_default())
    }
}

impl SavedPlan {
    /// The plan of files, as the cluster is now.
    pub(super) async fn of(
        client: &Client,
        files: &Manifests,
        plan: &ApplyPlan,
        prune: bool,
    ) -> Result<Self, Failure> {
        let changes = plan.changes.iter().map(|change| SavedChange {
            config_definition_key: change.definition.clone(),
            config_key: Some(change.key.clone()).filter(|key| !key.is_empty()),
            operation: change.verb(true).to_owned(),
            revision: change.revision,
        });
        Ok(Self {
            concord_plan: VERSION,
            created_at: concord_service::now().to_string(),
            cluster_id: cluster_of(client).await?,
            environment: client.environment().map(str::to_owned),
            files_sha256: files.digest(),
            prune,
            definitions: plan.definitions.clone(),
            changes: changes.collect(),
        })
    }

    /// Reads a plan from a file.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        Self::parse(&text).map_err(|why| Failure::Usage(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            concord_plan: u64,
        }
        let no_plan =
            |error: serde_json::Error| format!("not a plan that `diff --save` has written: {error}");
        let Version { concord_plan } = serde_json::from_str(text).map_err(no_plan)?;
        if concord_plan != VERSION {
            return Err(format!("a plan of version {concord_plan}: this program reads version {VERSION}"));
        }
        serde_json::from_str(text).map_err(no_plan)
    }

    /// Writes the plan to a file.
    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::Failed(format!("{}: {why}", path.display()));
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(&error))?;
        fs::write(path, text + "\n").map_err(|error| failed(&error))
    }

    /// Fails unless `now` is the same plan.
    pub(super) fn check(&self, now: &Self) -> Result<(), Failure> {
        let why = self.differences(now);
        if why.is_empty() {
            return Ok(());
        }
        let rest = why.len().saturating_sub(NAMED_MAX);
        let mut lines: Vec<String> = why.into_iter().take(NAMED_MAX).collect();
        if rest > 0 {
            lines.push(format!("and {rest} more"));
        }
        let lines = lines.join("\n  ");
        Err(Failure::Stale(format!(
            "the plan of {} is stale, and nothing was changed:\n  {lines}\nhint: run `concord diff --save` again, and review it",
            self.created_at
        )))
    }

    /// What is different, in words.
    fn differences(&self, now: &Self) -> Vec<String> {
        if self.cluster_id != now.cluster_id {
            return vec![format!(
                "it is of cluster {}, and the nodes belong to {}",
                self.cluster_id, now.cluster_id
            )];
        }
        if self.environment != now.environment {
            let name = |plan: &Self| plan.environment.clone().unwrap_or_else(|| "default".into());
            return vec![format!("it is of environment {}, not of {}", name(self), name(now))];
        }
        if self.files_sha256 != now.files_sha256 {
            return vec!["the files say something else than those that it was made of".into()];
        }
        let revision = |revision: Option<u64>| match revision {
            Some(revision) => format!("revision {revision}"),
            None => "absent".to_owned(),
        };
        let mut found = Vec::new();
        for (key, planned) in &self.definitions {
            let present = now.definitions.get(key).copied().flatten();
            if *planned != present {
                let (was, is) = (revision(*planned), revision(present));
                found.push(format!("{} was {was}, and is {is}", name(key, "")));
            }
        }
        let by_name = |plan: &Self| -> BTreeMap<String, SavedChange> {
            plan.changes.iter().map(|change| (change.name(), change.clone())).collect()
        };
        let (planned, present) = (by_name(self), by_name(now));
        for (name, change) in &planned {
            match present.get(name) {
                Some(other) if other == change => {}
                Some(other) if other.revision != change.revision => {
                    let (was, is) = (revision(change.revision), revision(other.revision));
                    found.push(format!("{name} was {was}, and is {is}"));
                }
                Some(other) => {
                    found.push(format!("{name} would be {}, not {}", other.operation, change.operation));
                }
                None => found.push(format!("{name} would no longer be {}", change.operation)),
            }
        }
        let new = present.iter().filter(|(name, _)| !planned.contains_key(*name));
        found.extend(new.map(|(name, change)| format!("{name} would be {} as well", change.operation)));
        found.dedup();
        found
    }
}

/// The id of the cluster.
async fn cluster_of(client: &Client) -> Result<String, Failure> {
    let answer = client.send(Request::get("/api/v1/changes").query("wait", 0)).await?;
    let id = answer.cluster().map(str::to_owned);
    id.ok_or_else(|| Error::Protocol("the response names no cluster".into()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> SavedPlan {
        let change = |key: Option<&str>, operation: &str, revision| SavedChange {
            config_definition_key: "d".into(),
            config_key: key.map(str::to_owned),
            operation: operation.into(),
            revision,
        };
        SavedPlan {
            concord_plan: VERSION,
            created_at: "2026-01-01T00:00:00Z".into(),
            cluster_id: "c".into(),
            environment: None,
            files_sha256: "f".into(),
            prune: false,
            definitions: BTreeMap::from([("d".into(), Some(3)), ("e".into(), None)]),
            changes: vec![change(Some("a"), "changed", Some(7)), change(Some("b"), "created", None)],
        }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written_and_nothing_else_is() {
        let plan = plan();
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(SavedPlan::parse(&text), Ok(plan));
        for (wrong, why) in [
            ("{}", "missing field"),
            (&text.replace("\"concord_plan\":1", "\"concord_plan\":2"), "version 2"),
            (&text.replace("\"prune\"", "\"x\":1,\"prune\""), "unknown field"),
            (&text.replace("\"changes\"", "\"change\""), "unknown field"),
        ] {
            let error = SavedPlan::parse(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_stale_plan_says_what_has_changed() {
        let planned = plan();
        assert!(planned.check(&SavedPlan { created_at: "later".into(), ..planned.clone() }).is_ok());
        let differing = |change: fn(&mut SavedPlan)| {
            let mut now = plan();
            change(&mut now);
            let Err(Failure::Stale(text)) = planned.check(&now) else { panic!("{now:?} is the same") };
            assert_eq!(Failure::Stale(String::new()).code(), 4);
            text.lines()
                .skip(1)
                .filter(|line| line.starts_with("  "))
                .map(|line| line.trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            differing(|now| now.changes[0].revision = Some(9)),
            ["config d/a was revision 7, and is revision 9"]
        );
        assert_eq!(
            differing(|now| now.changes[1].revision = Some(9)),
            ["config d/b was absent, and is revision 9"]
        );
        assert_eq!(differing(|now| drop(now.changes.pop())), ["config d/b would no longer be created"]);
        assert_eq!(
            differing(|now| now.changes[1].config_key = Some("c".into())),
            ["config d/b would no longer be created", "config d/c would be created as well"]
        );
        assert_eq!(
            differing(|now| now.definitions = BTreeMap::from([("d".into(), Some(8)), ("e".into(), None)])),
            ["definition d was revision 3, and is revision 8"]
        );
        assert_eq!(differing(|now| now.files_sha256 = "g".into()).len(), 1);
        assert_eq!(differing(|now| now.cluster_id = "g".into()).len(), 1);
        assert_eq!(
            differing(|now| now.environment = Some("prod".into())),
            ["it is of environment default, not of prod"]
        );
    }
}
