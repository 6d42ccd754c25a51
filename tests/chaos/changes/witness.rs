//! Keys that may read little, and whatever they are shown of change requests of others.
//!
//! One may read nothing that there is, one a single definition, one all of them; none sees secret values or who people are.
//! All may observe the cluster. Keys of configs, values, titles, comments and labels have markers, which no answer may show.
//! An answer that has the id of a change request is found at the end, once all ids are known.
//!
//! **Invariant (C6 of the design of safe change):** no request of a witness has a marker, so no answer repeats one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use serde_json::{Value, json};

use super::{CHANGES, HIDDEN, LABEL, RULES, TENANTS, deed::Shown, locked, people};
use crate::{
    chaos::workload::Shared,
    harness::{Answer, Client, time::pace},
};

/// Characters of an id.
const ID_CHARS: usize = 12;

/// The definitions that a witness may read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Reads {
    #[default]
    Nothing,
    One(&'static str),
    All,
}

impl Reads {
    fn grant(self) -> &'static str {
        match self {
            Self::Nothing => "nothing.there",
            Self::One(definition) => definition,
            Self::All => "*",
        }
    }

    /// Whether it may see a change request of these definitions.
    fn has(self, definitions: &[String]) -> bool {
        match self {
            Self::Nothing => false,
            Self::One(definition) => definitions.len() == 1 && definitions[0] == definition,
            Self::All => true,
        }
    }
}

/// What a witness was shown.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The secret of its key.
    key: String,
    /// What it may never see.
    markers: Vec<&'static str>,
    /// Whatever looks like an id, with the request whose answer had it.
    ids: BTreeMap<String, String>,
    pub(super) answers: u64,
    /// Where its polls of change requests go on.
    from: u64,
    reads: Reads,
}

/// Makes the keys of the witnesses.
pub(super) async fn prepare(client: &Client, shared: &Shared) {
    let nothing = Seen { markers: vec!["mark", HIDDEN, LABEL, RULES], ..Seen::default() };
    // Its own definition has the marker `mark0`; those of others are longer.
    let others = vec!["mark0-n", "mark1", "mark2", "mark3", "markv", HIDDEN, LABEL, RULES];
    let narrow = Seen { markers: others, reads: Reads::One(TENANTS[0]), ..Seen::default() };
    let wide = Seen { markers: vec![HIDDEN, LABEL], reads: Reads::All, ..Seen::default() };
    for mut seen in [nothing, narrow, wide] {
        let grants = json!([{"verbs": ["read", "observe"], "definitions": [seen.reads.grant()]}]);
        let made = people::create(client, &json!({"name": "witness", "grants": grants})).await;
        made.data()["api_key"].as_str().expect("a text").clone_into(&mut seen.key);
        locked(&shared.changes.seen).push(seen);
    }
}

/// Looks at everything with the keys of the witnesses, until the run stops.
pub(crate) struct Witness<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) nodes: Vec<Client>,
    pub(crate) rng: fastrand::Rng,
}

impl Witness<'_> {
    pub(crate) async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            // The lock must not last as long as the loop.
            let witnesses = locked(&self.shared.changes.seen).len();
            for place in 0..witnesses {
                self.look(place).await;
            }
            pace(Duration::from_millis(self.rng.u64(20..250))).await;
        }
    }

    async fn look(&mut self, place: usize) {
        let (key, reads, from) = {
            let seen = &locked(&self.shared.changes.seen)[place];
            (seen.key.clone(), seen.reads, seen.from.max(1))
        };
        let mut node = self.nodes[self.rng.usize(..self.nodes.len())].clone();
        node.key = key;
        let known =
            locked(&self.shared.changes.open).values().map(|open| open.shown.clone()).collect::<Vec<_>>();
        let known = self.rng.choice(known);
        let about = known.as_ref().map(|shown| format!("{CHANGES}{}", shown.id));
        let act = |action: &str, known: &Shown| {
            node.post(&format!("{CHANGES}{}/{action}", known.id), &json!({"digest": known.digest}))
        };
        let call = match (self.rng.u8(..16), &about, &known) {
            (0..2, Some(path), _) => node.get(path).query(&[("include", "preview")]),
            (2, _, Some(known)) => act("approve", known),
            (3, _, Some(known)) => act("apply", known),
            (4, Some(path), _) => node.post(&format!("{path}/withdraw"), &json!({})),
            (5, ..) => node.get("/api/v1/changes").query(&[("latest", "20"), ("prev", "true")]),
            (6, ..) => node.get("/metrics"),
            (7, ..) => node.get("/api/v1/cluster"),
            (8, ..) => node.get("/api/v1/cluster/usage"),
            (9, ..) => node.get("/api/v1/environment/"),
            (10, ..) => node.get("/api/v1/config_definition/"),
            (11, ..) => {
                let from = from.to_string();
                let query = [("change_requests", "true"), ("wait", "1"), ("from", &from)];
                node.get("/api/v1/changes").query(&query)
            }
            (12, ..) => {
                let from = from.to_string();
                node.get("/api/v1/changes").query(&[("prev", "true"), ("wait", "1"), ("from", &from)])
            }
            (13, ..) => {
                let definition = TENANTS[0];
                let key = definition.rsplit('.').next().unwrap_or_default();
                node.get(&format!("/api/v1/config_definition/{definition}/config/{key}-k0/history"))
            }
            _ => node.get(CHANGES).query(&[("limit", "100")]),
        };
        let Ok(answer) = call.attempt().await else { return };
        // An answer may repeat the id and the digest that it was asked about.
        let asked = known.map(|known| known.id).filter(|id| answer.asked.contains(id.as_str()));
        self.note(place, &answer, asked.as_deref());
        self.judge(&answer, reads, asked.is_some());
    }

    /// Notes what an answer shows, and says at once which marker it has.
    fn note(&self, place: usize, answer: &Answer, asked: Option<&str>) {
        let mut all = locked(&self.shared.changes.seen);
        let seen = &mut all[place];
        seen.answers += 1;
        if let Ok(next) = answer.header("x-concord-next-from").parse() {
            seen.from = next;
        }
        if let Some((marker, place)) =
            seen.markers.iter().find_map(|marker| Some((marker, answer.text.find(marker)?)))
        {
            // A long answer is cut where it is printed.
            let around = answer.text.as_bytes();
            let around = &around[place.saturating_sub(400)..around.len().min(place + 100)];
            let around = String::from_utf8_lossy(around);
            self.shared.history.contradict(format!(
                "a key that may not see it is shown `{marker}` in `{around}`: {answer:?}"
            ));
        }
        // Alarms name change requests by their ids, to whoever may observe the cluster.
        if answer.asked.contains("/api/v1/cluster") {
            return;
        }
        let words = answer.text.split(|c: char| !c.is_ascii_alphanumeric());
        for word in words.filter(|word| word.len() == ID_CHARS && Some(*word) != asked) {
            seen.ids.entry(word.to_owned()).or_insert_with(|| answer.asked.clone());
        }
    }

    /// What only the answer itself can say to be wrong.
    fn judge(&self, answer: &Answer, reads: Reads, is_about_one: bool) {
        let data = &answer.body["data"];
        let of = |record: &Value| {
            let shown = Shown::of(record)?;
            Some(reads.has(&shown.definitions))
        };
        if data["results"].is_array() && answer.asked.contains(CHANGES) {
            let results = data["results"].as_array().map(Vec::as_slice).unwrap_or_default();
            let counted =
                data["meta"]["total"].as_u64() == Some(results.len() as u64) || results.len() == 100;
            if !counted || results.iter().any(|record| of(record) != Some(true)) {
                self.shared.history.contradict(format!("a list has what the key may not read: {answer:?}"));
            }
        }
        if is_about_one && answer.status == 200 && of(data) != Some(true) {
            self.shared.history.contradict(format!("a key is shown what it may not read: {answer:?}"));
        }
    }
}

/// The ids of change requests that a witness was shown and may not see.
pub(super) fn violations(seen: &[Seen], editions: &BTreeMap<String, BTreeSet<Vec<String>>>) -> Vec<String> {
    let mut found = Vec::new();
    for one in seen {
        for (id, scopes) in editions {
            let may_see = scopes.iter().any(|scope| one.reads.has(scope));
            if let Some(asked) = one.ids.get(id).filter(|_| !may_see) {
                found
                    .push(format!("a key that may not see the change request {id} is shown its id: {asked}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_to_those_only_who_may_see_its_change_request() {
        let scope = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let both = BTreeSet::from([scope(&["marks.mark0", "marks.mark1"])]);
        let once = BTreeSet::from([scope(&["marks.mark0"]), scope(&["marks.mark1"])]);
        let scopes = BTreeMap::from([("AAAAAAAAAAAA".to_owned(), both), ("BBBBBBBBBBBB".to_owned(), once)]);
        let ids = |ids: &[&str]| ids.iter().map(|id| ((*id).to_owned(), "GET".to_owned())).collect();
        for (reads, seen, wrong) in [
            (Reads::Nothing, "AAAAAAAAAAAA", 1),
            (Reads::Nothing, "BBBBBBBBBBBB", 1),
            (Reads::Nothing, "CCCCCCCCCCCC", 0),
            (Reads::One("marks.mark0"), "AAAAAAAAAAAA", 1),
            (Reads::One("marks.mark0"), "BBBBBBBBBBBB", 0),
            (Reads::All, "AAAAAAAAAAAA", 0),
        ] {
            let seen = Seen { reads, ids: ids(&[seen]), ..Seen::default() };
            assert_eq!(violations(&[seen], &scopes).len(), wrong);
        }
    }
}
