//! The audit logs of all nodes, compared with the deeds.
//!
//! **Invariant:** with `CONCORD_AUDIT=strict` each acknowledged request has a line, whatever happens to its node.

use std::collections::BTreeMap;

use serde_json::Value;

use super::deed::{Deed, What};
use crate::harness::Client;

/// What a line says: the key, what it did and, if that was an apply, at which revision.
type Entry = (String, What, Option<u64>);

/// What is done by a request of this route, if it is about change requests.
fn what(line: &Value) -> Option<What> {
    let (method, route) = (line["method"].as_str()?, line["route"].as_str()?);
    let action = route.strip_prefix("/api/v1/change_request")?.split('/').nth(2).unwrap_or_default();
    match (method, action) {
        ("POST", "") => Some(What::Create),
        ("PUT", "") => Some(What::Edit),
        ("POST", action) => What::ACTIONS.iter().find(|(_, name)| *name == action).map(|(what, _)| *what),
        _ => None,
    }
}

/// How many accepted requests about change requests the logs of all nodes have.
async fn entries(client: &Client, nodes: usize) -> Result<BTreeMap<Entry, usize>, String> {
    let mut entries = BTreeMap::new();
    for node in 1..=nodes {
        let mut after = 0;
        loop {
            let (node, from) = (node.to_string(), after.to_string());
            let query = [("node", node.as_str()), ("after", &from), ("limit", "1000")];
            let answer = client.get("/api/v1/audit").query(&query).insist().await;
            let lines = answer.body["data"]["results"].as_array().ok_or_else(|| format!("{answer:?}"))?;
            for line in lines.iter().filter(|line| line["outcome"] == "ok") {
                let (Some(what), Some(key)) = (what(line), line["key"].as_str()) else { continue };
                let revision = line["revision_after"].as_u64().filter(|_| what == What::Apply);
                *entries.entry((key.to_owned(), what, revision)).or_default() += 1;
            }
            match answer.body["data"]["meta"]["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
    }
    Ok(entries)
}

/// What the logs lack, and what they have that nobody did.
pub(super) async fn violations(client: &Client, nodes: usize, deeds: &[Deed]) -> Vec<String> {
    match entries(client, nodes).await {
        Err(why) => vec![format!("the audit logs: {why}")],
        Ok(entries) => compared(entries, deeds),
    }
}

/// As what a deed is logged: a line does not say whether it is a bypass.
fn logged(what: What) -> What {
    if what == What::RevertByBypass { What::Revert } else { what }
}

fn compared(mut entries: BTreeMap<Entry, usize>, deeds: &[Deed]) -> Vec<String> {
    let mut found = Vec::new();
    for (key, what, revision) in entries.keys() {
        let did = |deed: &&Deed| logged(deed.what) == *what && deed.by.key == *key && deed.may_be_done();
        if !deeds.iter().any(|deed| did(&deed)) {
            found.push(format!("the audit log has {what:?} of {key} at {revision:?}, which nobody did"));
        }
    }
    let is_logged = |what: What| {
        matches!(what, What::Create | What::Edit) || What::ACTIONS.iter().any(|(one, _)| *one == what)
    };
    let revision = |deed: &Deed| {
        let applied = deed.shown.as_ref().and_then(|shown| shown.applied.as_ref());
        applied.map(|applied| applied.revision).filter(|_| deed.what == What::Apply)
    };
    let mut done: Vec<&Deed> = deeds.iter().filter(|deed| deed.is_done() && is_logged(deed.what)).collect();
    // An apply that is left to the cluster has the revision of that, which no answer names: so those that are known go first.
    done.sort_by_key(|deed| revision(deed).is_none());
    for deed in done {
        let (key, what, at) = (&deed.by.key, logged(deed.what), revision(deed));
        let left = entries.iter_mut().find(|((by, did, revision), left)| {
            (by, *did) == (key, what) && (at.is_none() || at == *revision) && **left > 0
        });
        match left {
            Some((_, left)) => *left -= 1,
            None => found.push(format!("acknowledged, and in no audit log: {deed:?}")),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::changes::deed::By;

    #[test]
    fn a_missing_line_and_one_too_many_are_found() {
        let entry = |key: &str| (key.to_owned(), What::Approve, None);
        let by = By { key: "a".into(), person: None };
        let deed = Deed { what: What::Approve, by, ret: 1, status: 200, ..Deed::default() };
        let unknown = Deed { ret: 0, ..deed.clone() };
        for (lines, deeds, wrong) in [
            (vec![entry("a")], vec![deed.clone()], 0),
            (vec![], vec![deed.clone()], 1),
            (vec![entry("a")], vec![deed.clone(), deed.clone()], 1),
            (vec![entry("b")], vec![], 1),
            (vec![entry("a")], vec![unknown.clone()], 0),
            (vec![], vec![unknown], 0),
        ] {
            let entries = lines.into_iter().map(|line| (line, 1)).collect();
            assert_eq!(compared(entries, &deeds).len(), wrong, "{deeds:?}");
        }
    }
}
