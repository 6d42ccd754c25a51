//! What somebody did to a change request, to a restricted record or to a key, with what became of it.
//!
//! **Invariant:** a deed whose answer was lost, or said that the outcome is unknown, is unknown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CHANGES, HIDDEN};
use crate::{chaos::freezes::time, harness::Answer};

/// A kind of deed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    #[default]
    Create,
    Edit,
    Rebase,
    Preview,
    Approve,
    Reject,
    Review,
    Apply,
    Withdraw,
    /// Takes back what was applied.
    Revert,
    /// The same, past the rules.
    RevertByBypass,
    /// Ends a revert that the cluster was to do.
    Keep,
    /// A direct write that passes the rules.
    Bypass,
    /// A direct write.
    Direct,
    /// A freeze that is added directly.
    Freeze,
    /// A key gets another secret from the root key, which attests it anew.
    Rotate,
    Attest,
}

impl What {
    /// What is done by a `POST` to a change request, and the end of its path.
    pub(crate) const ACTIONS: [(Self, &'static str); 9] = [
        (Self::Rebase, "rebase"),
        (Self::Approve, "approve"),
        (Self::Reject, "reject"),
        (Self::Review, "review"),
        (Self::Apply, "apply"),
        (Self::Withdraw, "withdraw"),
        (Self::Revert, "revert"),
        (Self::RevertByBypass, "revert"),
        (Self::Keep, "keep"),
    ];

    /// The path of the request that does this to a change request.
    pub(crate) fn path(self, id: &str) -> String {
        let action = Self::ACTIONS.iter().find(|(what, _)| *what == self).map(|(_, action)| *action);
        action.map_or(format!("{CHANGES}{id}"), |action| format!("{CHANGES}{id}/{action}"))
    }
}

/// What a step of an edition or of a write does to its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Does {
    Put,
    Create,
    Patch,
    Delete,
    /// Creates a definition.
    Define,
    /// Deletes a definition.
    Undefine,
    /// Sets the rules of an environment.
    Rules,
}

/// The rules of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// Whether direct writes are refused.
    pub(crate) refuses: bool,
    pub(crate) approvals: u64,
    /// From the first to the last time, which is not in it, in microseconds.
    pub(crate) freezes: Vec<(u64, u64)>,
}

impl Rules {
    /// The rules that a record of an environment shows.
    pub(crate) fn of(record: &Value) -> Self {
        let freezes = record["freeze"].as_array().cloned().unwrap_or_default();
        Self {
            refuses: record["direct"] == "refuse",
            approvals: record["approvals"].as_u64().unwrap_or_default(),
            freezes: freezes.iter().map(|one| (time(&one["from"]).0, time(&one["until"]).0)).collect(),
        }
    }

    /// The freezes as a body has them.
    pub(crate) fn freezes_json(&self) -> Value {
        let text = |us: u64| concord_model::time::Timestamp(us).to_string();
        let one = |(from, until): &(u64, u64)| json!({"from": text(*from), "until": text(*until), "reason": "chaos"});
        self.freezes.iter().map(one).collect()
    }
}

/// The schema of each definition: only who may reveal secret values sees those of its configs.
pub(crate) fn secret_schema() -> Value {
    json!({"properties": {"secret": {"type": "string", "x-concord-secret": true}}})
}

/// A step of an edition, or of a direct write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// `definition/config`, a definition or an environment.
    pub(crate) record: String,
    pub(crate) does: Does,
    pub(crate) value: Option<String>,
    /// The revision that the record must have.
    pub(crate) expected: Option<u64>,
    pub(crate) rules: Option<Rules>,
}

impl Step {
    pub(crate) fn new(record: &str, does: Does) -> Self {
        Self { record: record.to_owned(), does, value: None, expected: None, rules: None }
    }

    pub(crate) fn with(record: &str, does: Does, value: String) -> Self {
        Self { value: Some(value), ..Self::new(record, does) }
    }

    /// The data that a put writes.
    pub(crate) fn data(&self) -> Value {
        let value = self.value.as_deref().unwrap_or_default();
        // A patch leaves `put` as it is.
        json!({"value": value, "put": value, "secret": format!("{HIDDEN}{value}")})
    }

    /// It as an operation of a batch or of a change request.
    pub(crate) fn operation(&self) -> Value {
        let (of, key) = self.record.split_once('/').unwrap_or((&self.record, ""));
        let config = |op: &str| json!({"op": op, "config_definition_key": of, "config_key": key});
        let mut made = match self.does {
            Does::Put => {
                let mut put = config("put_config");
                (put["data"], put["upsert"]) = (self.data(), true.into());
                put
            }
            Does::Create => {
                let mut create = config("create_config");
                create["data"] = self.data();
                create
            }
            Does::Patch => {
                let mut patch = config("patch_config");
                patch["patch"] = json!({"value": self.value});
                patch
            }
            Does::Delete => config("delete_config"),
            Does::Define => {
                json!({"op": "create_definition", "config_definition_key": of, "indexes": [], "json_schema": secret_schema()})
            }
            Does::Undefine => json!({"op": "delete_definition", "config_definition_key": of}),
            Does::Rules => {
                let rules = self.rules.clone().unwrap_or_default();
                let direct = if rules.refuses { "refuse" } else { "allow" };
                json!({
                    "op": "put_environment", "environment": of, "direct": direct,
                    "approvals": rules.approvals, "freeze": rules.freezes_json(),
                })
            }
        };
        if let Some(expected) = self.expected {
            made["if_match"] = format!("\"{expected}\"").into();
        }
        made
    }
}

/// When an edition is to be applied and taken back, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) is_when_approved: bool,
    /// Its first and its last time.
    pub(crate) window: Option<(u64, u64)>,
    /// So long after the apply.
    pub(crate) revert_after: Option<u64>,
}

impl Timing {
    /// Its members of a body.
    pub(crate) fn add_to(&self, body: &mut Value) {
        let text = |us: u64| concord_model::time::Timestamp(us).to_string();
        if self.is_when_approved {
            body["apply"] = "when_approved".into();
        }
        if let Some((from, until)) = self.window {
            body["schedule"] = json!({"not_before": text(from), "not_after": text(until)});
        }
        if let Some(after) = self.revert_after {
            body["revert_after_s"] = (after / 1_000_000).into();
        }
    }
}

/// Who did something: the id of the key, or `root`, and the person as the workers know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct By {
    pub(crate) key: String,
    pub(crate) person: Option<String>,
}

impl By {
    /// Whether both may be one human.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        self.key == other.key || (self.person.is_some() && self.person == other.person)
    }
}

/// Something that was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Deed {
    /// Joins the end to the begin.
    pub(crate) number: u64,
    pub(crate) what: What,
    pub(crate) by: By,
    /// The change request or the access key that it is about.
    pub(crate) of: Option<String>,
    /// Of the edition that it sends, or of a bypass.
    pub(crate) title: Option<String>,
    pub(crate) steps: Vec<Step>,
    pub(crate) timing: Timing,
    pub(crate) digest: Option<String>,
    pub(crate) call: u64,
    /// 0: unknown.
    pub(crate) ret: u64,
    pub(crate) status: u16,
    pub(crate) code: String,
    /// The change request as a successful answer shows it.
    pub(crate) shown: Option<Shown>,
    /// The base of each record, as a preview shows them.
    pub(crate) bases: BTreeMap<String, Option<u64>>,
    /// The time of the log at which it was done, if the answer says that.
    pub(crate) at: Option<u64>,
    /// Whether an attestation that it gives was the last one that the key needed.
    pub(crate) is_attested: bool,
}

impl Deed {
    /// Whether it was acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.ret != 0 && (200..300).contains(&self.status)
    }

    /// Whether it may have been done.
    pub(crate) fn may_be_done(&self) -> bool {
        self.ret == 0 || self.is_done()
    }

    /// Takes what the answer says.
    pub(crate) fn complete(&mut self, answer: &Answer, now: u64) {
        (self.ret, self.status) = (now, answer.status);
        self.code = answer.body["errors"][0]["code"].as_str().unwrap_or_default().to_owned();
        if !self.is_done() {
            return;
        }
        let data = &answer.body["data"];
        self.shown = Shown::of(data);
        for record in data["preview"]["records"].as_array().into_iter().flatten() {
            let of = record["config_definition_key"].as_str().unwrap_or_default();
            let name = match record["config_key"].as_str() {
                Some(key) => format!("{of}/{key}"),
                None => of.to_owned(),
            };
            self.bases.insert(name, record["base_revision"].as_u64());
        }
    }
}

/// A vote on the current edition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vote {
    pub(crate) key: String,
    pub(crate) at: u64,
}

/// How a change request was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub(crate) revision: u64,
    pub(crate) at: u64,
    /// Empty for the cluster.
    pub(crate) by: String,
    /// Who left it to the cluster; empty for nobody.
    pub(crate) scheduled_by: String,
    /// The keys whose approvals counted.
    pub(crate) approved_by: Vec<String>,
}

/// Whether and how a change request was taken back, or will be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reverted {
    pub(crate) state: String,
    pub(crate) revision: Option<u64>,
    pub(crate) at: u64,
    /// Empty for the cluster.
    pub(crate) by: String,
    pub(crate) is_bypass: bool,
}

/// A change request as an answer shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) phase: String,
    pub(crate) is_bypass: bool,
    pub(crate) edition: u64,
    pub(crate) digest: String,
    pub(crate) definitions: Vec<String>,
    pub(crate) environment: Option<String>,
    /// The keys of the senders of all editions.
    pub(crate) authors: Vec<String>,
    pub(crate) sent_at: u64,
    pub(crate) approvals: Vec<Vote>,
    pub(crate) rejections: Vec<Vote>,
    pub(crate) reviews: Vec<Vote>,
    pub(crate) reviews_missing: u64,
    pub(crate) is_stale: bool,
    pub(crate) is_approved: bool,
    pub(crate) applied: Option<Applied>,
    pub(crate) revert: Option<Reverted>,
}

impl Shown {
    /// Whether it can still be applied.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.phase.as_str(), "open" | "scheduled" | "held")
    }

    /// Whether it was taken back at this revision.
    pub(crate) fn is_taken_back_at(&self, revision: u64) -> bool {
        self.revert.as_ref().is_some_and(|revert| revert.revision == Some(revision))
    }
}

/// The key of a party.
fn key(party: &Value) -> String {
    party["key_id"].as_str().unwrap_or_default().to_owned()
}

impl Shown {
    /// What a record shows; `None` if it is none of a change request.
    pub(crate) fn of(record: &Value) -> Option<Self> {
        let text = |name: &str| record[name].as_str().map(str::to_owned);
        let list = |name: &str| record[name].as_array().into_iter().flatten();
        let votes =
            |name: &str| list(name).map(|vote| Vote { key: key(vote), at: time(&vote["at"]).0 }).collect();
        let applied = &record["applied"];
        let applied = applied["revision"].as_u64().map(|revision| Applied {
            revision,
            at: time(&applied["at"]).0,
            by: key(&applied["by"]),
            scheduled_by: key(&applied["scheduled_by"]),
            approved_by: applied["approved_by"].as_array().into_iter().flatten().map(key).collect(),
        });
        let revert = &record["revert"];
        let revert = revert["state"].as_str().map(|state| Reverted {
            state: state.to_owned(),
            revision: revert["revision"].as_u64(),
            at: revert["at"].as_str().map_or(0, |at| time(&at.into()).0),
            by: key(&revert["by"]),
            is_bypass: revert["bypass"] == true,
        });
        Some(Self {
            id: text("change_id")?,
            title: text("title")?,
            phase: text("phase")?,
            is_bypass: record["bypass"] == true,
            edition: record["edition"].as_u64()?,
            digest: text("digest")?,
            definitions: list("config_definition_keys")
                .filter_map(|name| name.as_str())
                .map(str::to_owned)
                .collect(),
            environment: text("environment"),
            authors: list("authors").map(key).collect(),
            sent_at: time(&record["sent_at"]).0,
            approvals: votes("approvals"),
            rejections: votes("rejections"),
            reviews: votes("reviews"),
            reviews_missing: record["reviews_missing"].as_u64()?,
            is_stale: !record["stale"].is_null(),
            is_approved: record["approved"] == true,
            applied,
            revert,
        })
    }
}
