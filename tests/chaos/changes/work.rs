//! The workers: each does one thing after another, as another person each time, on a random node.
//!
//! **Invariant:** a request that is sent again has the idempotency key of the first attempt; without one nothing is sent again.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use super::{
    CHANGES, ENVIRONMENTS, FREE, Open, RULES, TENANTS,
    deed::{Deed, Does, Rules, Shown, Step, Timing, What},
    locked, marker,
    people::{Holder, People, Role},
};
use crate::{
    chaos::workload::Shared,
    harness::{Answer, Call, Client, load::config, time::pace},
};

/// Open change requests; with more of them nobody makes another one.
const OPEN_MAX: usize = 14;
/// Definitions that change requests have created; with more of them some are deleted.
const DEFINED_MAX: usize = 6;
/// Attempts after the first one.
const RETRIES: u8 = 3;

/// A worker.
pub(crate) struct Proposer<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) nodes: Vec<Client>,
    pub(crate) rng: fastrand::Rng,
}

impl Proposer<'_> {
    pub(crate) async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.step().await;
            if !self.shared.hurry.load(Ordering::Relaxed) {
                pace(Duration::from_millis(self.rng.u64(5..60))).await;
            }
        }
    }

    #[expect(clippy::cognitive_complexity, reason = "a table of what it does how often")]
    async fn step(&mut self) {
        let is_full = locked(&self.shared.changes.open).len() >= OPEN_MAX;
        match self.rng.u8(..100) {
            0..30 if is_full => self.withdraw().await,
            0..30 => self.propose().await,
            30..44 => self.vote().await,
            44..58 => self.apply_one().await,
            58..63 => self.edit().await,
            63..72 => self.rebase().await,
            72..76 => self.preview().await,
            76..78 => self.withdraw().await,
            78..84 => self.bypass().await,
            84..87 => self.review().await,
            87..90 => self.list().await,
            90..93 => self.revert().await,
            _ => self.direct().await,
        }
    }

    fn draw(&mut self, from: impl Fn(&People, &mut fastrand::Rng) -> Holder) -> Holder {
        from(&self.shared.changes.people(), &mut self.rng)
    }

    fn node(&mut self) -> Client {
        let place = self.rng.usize(..self.nodes.len());
        self.nodes[place].clone()
    }

    /// A change request that is open.
    fn open(&mut self) -> Option<Open> {
        let all: Vec<Open> = locked(&self.shared.changes.open).values().cloned().collect();
        self.rng.choice(all)
    }

    fn deed(&self, what: What, by: &Holder) -> Deed {
        self.shared.history.deed(what, &by.by)
    }

    /// Sends it, and with an idempotency key again while its outcome is unknown. Records what became of it.
    async fn send(&mut self, by: &Holder, mut deed: Deed, make: impl Fn(&Client) -> Call) -> Option<Answer> {
        self.shared.history.begin_deed(&mut deed);
        let key = self.rng.bool().then(|| format!("{:032x}", self.rng.u128(..)));
        let make = |node: &Client| {
            let call = make(&by.on(node));
            key.iter().fold(call, |call, key| call.header("idempotency-key", key))
        };
        let (mut is_unknown, mut last) = (false, None);
        for _ in 0..=RETRIES {
            let answer = make(&self.node()).attempt().await.ok();
            let is_lost = answer.as_ref().is_none_or(|answer| answer.status == 504);
            // It was certainly not applied, but an earlier attempt may have been.
            let is_busy = answer.as_ref().is_some_and(|answer| matches!(answer.status, 429 | 503));
            is_unknown |= is_lost;
            last = answer.filter(|_| !is_lost);
            if key.is_none() || !(is_lost || (is_busy && is_unknown)) {
                break;
            }
            pace(Duration::from_millis(self.rng.u64(50..400))).await;
        }
        self.record(deed, last.as_ref(), is_unknown);
        let answer = last?;
        if key.is_some() && answer.status < 300 && self.rng.u8(..4) == 0 {
            self.compare(&make, &answer).await;
        }
        Some(answer)
    }

    /// Notes what became of a deed. A rejection says nothing of an earlier attempt whose outcome is unknown.
    fn record(&self, mut deed: Deed, answer: Option<&Answer>, is_unknown: bool) {
        if let Some(answer) = answer {
            deed.complete(answer, self.shared.history.now());
            if answer.status >= 500 && !matches!(answer.status, 503 | 504 | 507) {
                self.shared.history.contradict(format!("a request about a change request: {answer:?}"));
            }
        }
        if let Some(shown) = &deed.shown {
            self.shared.changes.note(shown);
            let defines = |does: Does| {
                let of = deed.steps.iter().filter(move |step| step.does == does);
                of.map(|step| step.record.clone()).collect::<BTreeSet<_>>()
            };
            locked(&self.shared.changes.defined).extend(defines(Does::Define));
        }
        for (record, base) in &deed.bases {
            base.map(|base| locked(&self.shared.changes.bases).insert(record.clone(), base));
        }
        if let (What::Edit, Some(id)) = (deed.what, &deed.of) {
            let definitions =
                deed.steps.iter().map(|step| step.record.split('/').next().unwrap_or_default().to_owned());
            self.shared.changes.note_scope(id, definitions.collect::<BTreeSet<_>>().into_iter().collect());
        }
        if is_unknown && !deed.is_done() {
            deed.ret = 0;
        }
        if deed.is_done() && matches!(deed.what, What::Apply | What::Approve | What::Create) {
            self.shared.acknowledged.lock().expect("no client panics").push(deed.ret);
        }
        self.shared.history.record_deed(deed);
    }

    /// A decided request that is repeated with its idempotency key gets the same answer.
    async fn compare(&mut self, make: &impl Fn(&Client) -> Call, first: &Answer) {
        let Ok(second) = make(&self.node()).attempt().await else { return };
        // It may have been edited so that the key may not read it any more, or the key has ended.
        if matches!(second.status, 401 | 403 | 404 | 429 | 503 | 504 | 507) {
            return;
        }
        let compared = |answer: &Answer| {
            let shown = Shown::of(&answer.body["data"]);
            let id = shown.as_ref().map(|shown| shown.id.clone());
            (answer.status, id, answer.body["data"]["config_key"].clone())
        };
        if compared(first) != compared(&second) {
            self.shared
                .history
                .contradict(format!("a repeated request got another answer: {first:?} {second:?}"));
        }
    }

    fn value(&mut self, record: &str) -> String {
        format!("{}-{}", marker(record), self.shared.number())
    }

    /// A config of a tenant.
    fn config_of(&mut self, tenant: usize) -> String {
        let tenant = TENANTS[tenant];
        format!("{tenant}/{}-k{}", marker(tenant), self.rng.u8(..2))
    }

    /// A step on one record of a tenant.
    fn step_of(&mut self, tenant: usize) -> Step {
        let record = self.config_of(tenant);
        let value = self.value(&record);
        match self.rng.u8(..20) {
            0..9 => Step::with(&record, Does::Put, value),
            9..14 => Step::with(&record, Does::Patch, value),
            14..17 => Step::with(&record, Does::Create, value),
            _ => Step::new(&record, Does::Delete),
        }
    }

    /// What an edition does: something of one to four tenants; or a definition is created or deleted, or rules are set.
    fn steps(&mut self) -> Vec<Step> {
        match self.rng.u8(..20) {
            0 => return vec![self.rules()],
            1..3 => return self.definition(),
            _ => {}
        }
        let mut tenants: Vec<usize> = (0..TENANTS.len()).collect();
        self.rng.shuffle(&mut tenants);
        // More often few of them, because one that is stale holds all.
        tenants.truncate([1, 1, 1, 2, 2, 3, 4][self.rng.usize(..7)]);
        let mut steps: Vec<Step> = tenants.into_iter().map(|tenant| self.step_of(tenant)).collect();
        if self.rng.u8(..8) == 0 {
            steps[0].expected = locked(&self.shared.changes.bases).get(&steps[0].record).copied();
        }
        steps
    }

    fn definition(&mut self) -> Vec<Step> {
        let defined: Vec<String> = locked(&self.shared.changes.defined).iter().cloned().collect();
        if defined.len() > DEFINED_MAX
            && let Some(one) = self.rng.choice(defined)
        {
            locked(&self.shared.changes.defined).remove(&one);
            return vec![Step::new(&one, Does::Undefine)];
        }
        let tenant = TENANTS[self.rng.usize(..TENANTS.len())];
        let name = format!("{tenant}-n{}", self.shared.number());
        let config = format!("{name}/{}-a", marker(&name));
        let value = self.value(&config);
        vec![Step::new(&name, Does::Define), Step::with(&config, Does::Create, value)]
    }

    fn rules(&mut self) -> Step {
        let (name, approvals) = ENVIRONMENTS[self.rng.usize(..ENVIRONMENTS.len())];
        let approvals = [approvals, approvals, 1, 2, 0][self.rng.usize(..5)];
        let now = self.shared.changes.time.load(Ordering::Relaxed);
        let from = now + self.rng.u64(..1_000_000);
        let freezes = if self.rng.u8(..4) == 0 {
            vec![(from, from + self.rng.u64(300_000..1_500_000))]
        } else {
            vec![]
        };
        let rules = Rules { refuses: self.rng.u8(..5) > 0, approvals, freezes };
        Step { rules: Some(rules), ..Step::new(name, Does::Rules) }
    }

    /// The title of an edition with the markers of all that it touches.
    fn title(&self, steps: &[Step]) -> String {
        let name = |step: &Step| match step.does {
            Does::Rules => format!("{RULES}{}", step.record),
            Does::Put | Does::Create | Does::Patch | Does::Delete | Does::Define | Does::Undefine => {
                marker(&step.record).to_owned()
            }
        };
        let names: Vec<String> = steps.iter().map(name).collect();
        format!("{} t{}", names.join(" "), self.shared.number())
    }

    /// A body with an edition, and the deed that sends it.
    fn edition(&mut self, what: What, by: &Holder) -> (Deed, Value) {
        let steps = self.steps();
        let title = self.title(&steps);
        let operations: Vec<Value> = steps.iter().map(Step::operation).collect();
        let mut body =
            json!({"title": title, "description": format!("why {title}"), "operations": operations});
        let timing = self.timing();
        timing.add_to(&mut body);
        (Deed { title: Some(title), steps, timing, ..self.deed(what, by) }, body)
    }

    /// When it is applied and taken back: mostly by hand, and not at all.
    fn timing(&mut self) -> Timing {
        let mut timing = Timing { is_when_approved: self.rng.u8(..8) == 0, ..Timing::default() };
        if self.rng.u8(..10) == 0 {
            let from = self.shared.changes.time.load(Ordering::Relaxed) + self.rng.u64(..1_500_000);
            timing.window = Some((from, from + self.rng.u64(1_000_000..5_000_000)));
        }
        if self.rng.u8(..8) == 0 {
            timing.revert_after = Some(self.rng.u64(1..=3) * 1_000_000);
        }
        timing
    }

    async fn propose(&mut self) {
        let by = self.draw(People::sender);
        let (deed, body) = self.edition(What::Create, &by);
        let Some(answer) = self.send(&by, deed, |node| node.post(CHANGES, &body)).await else { return };
        let Some(shown) = Shown::of(&answer.body["data"]) else { return };
        // Most are brought to their end, because random deeds alone would seldom approve one twice.
        if self.rng.u8(..5) > 0 {
            self.drive(shown).await;
        }
    }

    /// Approves a change request as different people, and applies it as two of them at once.
    async fn drive(&mut self, mut shown: Shown) {
        for _ in 0..self.rng.u8(1..5) {
            if self.shared.stop.load(Ordering::Relaxed) {
                return;
            }
            if shown.is_approved && self.rng.u8(..4) > 0 {
                break;
            }
            let by = self.draw(People::voter);
            if let Some(answer) = self.act(What::Approve, &by, &shown.id, &shown.digest).await
                && let Some(now) = Shown::of(&answer.body["data"])
            {
                shown = now;
            }
        }
        self.apply(&shown.id, &shown.digest).await;
    }

    /// Does something to a change request that names a digest.
    async fn act(&mut self, what: What, by: &Holder, id: &str, digest: &str) -> Option<Answer> {
        let comment = if self.rng.bool() { "a comment" } else { "" };
        let (path, body) = (what.path(id), json!({"digest": digest, "comment": comment}));
        let deed = Deed { of: Some(id.to_owned()), digest: Some(digest.to_owned()), ..self.deed(what, by) };
        self.send(by, deed, |node| node.post(&path, &body)).await
    }

    /// The digest of the newest edition that is known, or sometimes an earlier one.
    fn digest(&mut self, open: &Open) -> String {
        if self.rng.u8(..6) == 0
            && let Some(earlier) = self.rng.choice(&open.earlier)
        {
            return earlier.clone();
        }
        open.shown.digest.clone()
    }

    async fn vote(&mut self) {
        let Some(open) = self.open() else { return };
        let (by, digest) = (self.draw(People::voter), self.digest(&open));
        let what = if self.rng.u8(..6) == 0 { What::Reject } else { What::Approve };
        self.act(what, &by, &open.shown.id, &digest).await;
    }

    async fn apply_one(&mut self) {
        let Some(open) = self.open() else { return };
        let digest = self.digest(&open);
        self.apply(&open.shown.id, &digest).await;
    }

    /// Applies it, and often twice at the same time.
    async fn apply(&mut self, id: &str, digest: &str) {
        let [one, other] = [self.draw(People::applier), self.draw(People::applier)];
        let path = What::Apply.path(id);
        let body = json!({"digest": digest});
        let deed = |worker: &Self, by: &Holder| Deed {
            of: Some(id.to_owned()),
            digest: Some(digest.to_owned()),
            ..worker.deed(What::Apply, by)
        };
        if self.rng.bool() {
            let deed = deed(self, &one);
            let answer = self.send(&one, deed, |node| node.post(&path, &body)).await;
            return self.after_apply(id, answer).await;
        }
        let mut deeds = [deed(self, &one), deed(self, &other)];
        deeds.iter_mut().for_each(|deed| self.shared.history.begin_deed(deed));
        let calls = [one, other].map(|by| by.on(&self.node()).post(&path, &body));
        let (first, second) = tokio::join!(calls[0].attempt(), calls[1].attempt());
        let mut last = None;
        for (deed, answer) in deeds.into_iter().zip([first, second]) {
            let answer = answer.ok().filter(|answer| answer.status != 504);
            self.record(deed, answer.as_ref(), answer.is_none());
            last = answer.or(last);
        }
        self.after_apply(id, last).await;
    }

    /// One whose base has changed is rebased at once, at most times.
    async fn after_apply(&mut self, id: &str, answer: Option<Answer>) {
        let is_stale = answer.is_some_and(|answer| answer.body["errors"][0]["code"] == "change_stale");
        if is_stale && self.rng.u8(..3) > 0 {
            self.rebase_one(id).await;
        }
    }

    /// Takes back what was applied, or keeps what the cluster is to take back: as somebody who has approved it, somebody
    /// else, or past the rules.
    async fn revert(&mut self) {
        let all: Vec<Shown> = locked(&self.shared.changes.revertible).values().cloned().collect();
        let Some(shown) = self.rng.choice(all) else { return };
        let is_bypass = self.rng.u8(..5) == 0;
        let by = if is_bypass {
            self.draw(|people, rng| people.with(Role::Bypasser, rng))
        } else {
            let approvers =
                shown.applied.as_ref().map(|applied| applied.approved_by.clone()).unwrap_or_default();
            let known = approvers.iter().find_map(|key| self.shared.changes.people().of_key(key));
            match known {
                Some(known) if self.rng.u8(..4) > 0 => known,
                Some(_) | None => self.draw(People::voter),
            }
        };
        let is_armed = shown.revert.as_ref().is_some_and(|revert| revert.state == "armed");
        let what = match self.rng.bool() {
            _ if is_bypass => What::RevertByBypass,
            true if is_armed => What::Keep,
            _ => What::Revert,
        };
        let deed =
            Deed { of: Some(shown.id.clone()), digest: Some(shown.digest.clone()), ..self.deed(what, &by) };
        let (path, body) = (what.path(&shown.id), json!({"digest": shown.digest}));
        let make = |node: &Client| {
            let post = node.post(&path, &body);
            if is_bypass {
                post.query(&[("bypass", "true")]).header("x-change-reason", "chaos")
            } else {
                post
            }
        };
        self.send(&by, deed, make).await;
    }

    async fn edit(&mut self) {
        let Some(open) = self.open() else { return };
        let by = self.draw(People::sender);
        let (mut deed, body) = self.edition(What::Edit, &by);
        deed.of = Some(open.shown.id.clone());
        let path = What::Edit.path(&open.shown.id);
        self.send(&by, deed, |node| node.put(&path, &body)).await;
    }

    async fn rebase(&mut self) {
        if let Some(open) = self.open() {
            self.rebase_one(&open.shown.id).await;
        }
    }

    async fn rebase_one(&mut self, id: &str) {
        let by = self.draw(People::sender);
        let deed = Deed { of: Some(id.to_owned()), ..self.deed(What::Rebase, &by) };
        let path = What::Rebase.path(id);
        self.send(&by, deed, |node| node.post(&path, &json!({}))).await;
    }

    /// Reads what it would change, and on what it rests.
    async fn preview(&mut self) {
        let Some(open) = self.open() else { return };
        let by = self.draw(|people, rng| people.with(Role::Author, rng));
        let deed = Deed { of: Some(open.shown.id.clone()), ..self.deed(What::Preview, &by) };
        let path = What::Preview.path(&open.shown.id);
        self.send(&by, deed, |node| node.get(&path).query(&[("include", "preview")])).await;
    }

    async fn withdraw(&mut self) {
        let Some(open) = self.open() else { return };
        let by = self.draw(|people, rng| if rng.bool() { people.sender(rng) } else { people.voter(rng) });
        let deed = Deed { of: Some(open.shown.id.clone()), ..self.deed(What::Withdraw, &by) };
        let path = What::Withdraw.path(&open.shown.id);
        self.send(&by, deed, |node| node.post(&path, &json!({"comment": "no"}))).await;
    }

    /// Finds what is open although the answer to its creation was lost, and bypasses.
    async fn list(&mut self) {
        let by = self.draw(|people, rng| people.with(Role::Author, rng));
        let filter = if self.rng.bool() { ("phase", "open") } else { ("unreviewed", "true") };
        let call = by.on(&self.node()).get(CHANGES).query(&[filter, ("limit", "50")]);
        let Ok(answer) = call.attempt().await else { return };
        if answer.status == 200 {
            let results = answer.data()["results"].as_array().cloned().unwrap_or_default();
            results.iter().filter_map(Shown::of).for_each(|shown| self.shared.changes.note(&shown));
        }
    }

    /// Writes past the rules, sometimes as somebody who may not.
    async fn bypass(&mut self) {
        let role = if self.rng.u8(..5) > 0 { Role::Bypasser } else { Role::Author };
        let by =
            self.draw(|people, rng| if rng.u8(..6) == 0 { Holder::root() } else { people.with(role, rng) });
        let tenant = self.rng.usize(..TENANTS.len());
        let record = self.config_of(tenant);
        let value = self.value(&record);
        let step = Step::with(&record, Does::Put, value);
        let title = format!("{} bypass {}", marker(&record), self.shared.number());
        let mut deed = self.deed(What::Bypass, &by);
        (deed.title, deed.steps) = (Some(title.clone()), vec![step.clone()]);
        let make = |node: &Client| {
            let put = put(node, &step).query(&[("bypass", "true")]);
            put.header("x-change-reason", &title)
        };
        self.send(&by, deed, make).await;
    }

    async fn review(&mut self) {
        let all: Vec<Shown> = locked(&self.shared.changes.unreviewed).values().cloned().collect();
        let Some(shown) = self.rng.choice(all) else { return self.list().await };
        let by = self.draw(People::voter);
        self.act(What::Review, &by, &shown.id, &shown.digest).await;
    }

    /// A direct write, alone or after one that is allowed. Where the environment takes change requests only, it is refused.
    async fn direct(&mut self) {
        let by =
            self.draw(|people, rng| if rng.bool() { Holder::root() } else { people.with(Role::Author, rng) });
        let tenant = self.rng.usize(..TENANTS.len());
        let step = match self.rng.u8(..4) {
            0 => Step::new(&self.config_of(tenant), Does::Delete),
            _ => {
                let record = self.config_of(tenant);
                let value = self.value(&record);
                Step::with(&record, Does::Put, value)
            }
        };
        let mut deed = self.deed(What::Direct, &by);
        deed.steps = vec![step.clone()];
        if self.rng.bool() || step.does == Does::Delete {
            let free = format!("{FREE}/mark9-k0");
            let value = self.value(&free);
            // Authors may not write there.
            let (by, free) = (Holder::root(), Step::with(&free, Does::Put, value));
            deed.by = by.by.clone();
            let body = json!({"operations": [free.operation(), step.operation()]});
            deed.steps.insert(0, free);
            self.send(&by, deed, |node| node.post("/api/v1/batch", &body)).await;
        } else {
            self.send(&by, deed, |node| put(node, &step)).await;
        }
    }
}

/// A put of a config as a request of its own.
fn put(node: &Client, step: &Step) -> Call {
    let (of, key) = step.record.split_once('/').expect("a config");
    node.put(&config(of, key), &json!({"data": step.data()})).query(&[("upsert", "true")])
}
