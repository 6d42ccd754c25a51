//! The checker: what readers, watches and files have shown, compared with what was proposed and with the events of the change
//! requests.
//!
//! The events say at which revision a rollout began, reached a stage and ended. With the plans, which the test made, that is
//! what each reader has to see at each revision.
//!
//! | | what is compared |
//! |---|---|
//! | O1 | a reader that has to see a candidate sees the proven data; a read of an earlier revision than one that was seen |
//! | O2 | two versions for one reader at one revision; a candidate for a reader that is not in |
//! | O3 | the stages that the cluster has ended, with their time and with the reports that were sent |
//! | O4 | a candidate after an abort |
//! | O5 | the two configs of a change request on two sides |
//! | O6 | a candidate for a client without a name |
//! | O7 | what a watch shows at a revision, with a read at the same revision |
//!
//! **Invariant:** which readers a stage has is computed from the design alone, with no code of a node.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// The configs of a change request.
pub(super) const CONFIGS: usize = 2;
/// Hundredths of a percent that are everybody.
const ALL: u64 = 10_000;
/// Contradictions of one kind that are told.
const TOLD_MAX: usize = 5;

/// Who reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    /// `None`: it does not say who it is.
    pub(super) name: Option<String>,
    /// The value of its label `ring`.
    pub(super) ring: Option<&'static str>,
}

/// A config as somebody sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Item {
    pub(super) n: u64,
    /// The change request whose candidate it is.
    pub(super) change: Option<String>,
}

pub(super) type Items = [Item; CONFIGS];

/// A stage of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    /// `None`: readers of all rings.
    pub(super) ring: Option<&'static str>,
    /// In hundredths of a percent.
    pub(super) share: u64,
    pub(super) for_s: u64,
    pub(super) min_healthy: u64,
}

impl Stage {
    fn has(&self, change: &str, who: &Who) -> bool {
        let Some(name) = &who.name else { return false };
        let place = xxh3_64(format!("{change}\0{name}").as_bytes()) % ALL;
        place < self.share && self.ring.is_none_or(|ring| who.ring == Some(ring))
    }
}

/// A change request that was released in stages.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    pub(super) change: String,
    /// The value of its candidates.
    pub(super) n: u64,
    pub(super) stages: Vec<Stage>,
    /// The revisions at which it began, reached its next stages, and ended.
    pub(super) begun: u64,
    pub(super) advanced: Vec<Advance>,
    pub(super) end: Option<u64>,
    pub(super) is_applied: bool,
    /// When it began, in microseconds.
    pub(super) begun_at: u64,
    /// Agents in each stage, which report by themselves.
    pub(super) agents: Vec<u64>,
    /// When each reader has first sent that it runs well.
    pub(super) healthy: BTreeMap<String, u64>,
    /// Whether a person has advanced it.
    pub(super) is_advanced: bool,
}

/// The end of a stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Advance {
    pub(super) revision: u64,
    /// In microseconds.
    pub(super) at: u64,
    pub(super) is_by_cluster: bool,
}

impl Line {
    /// Whether its candidates are there at a revision.
    fn runs(&self, revision: u64) -> bool {
        self.begun != 0 && self.begun <= revision && self.end.is_none_or(|end| revision < end)
    }

    /// Whether a reader is in once so many stages have ended.
    pub(super) fn has(&self, passed: usize, who: &Who) -> bool {
        self.stages.iter().take(passed + 1).any(|stage| stage.has(&self.change, who))
    }

    fn passed(&self, revision: u64) -> usize {
        self.advanced.iter().filter(|advance| advance.revision <= revision).count()
    }

    /// When a reader came in; `None`: it did not.
    pub(super) fn in_since(&self, who: &Who) -> Option<u64> {
        let passed = (0..=self.advanced.len()).find(|passed| self.has(*passed, who))?;
        let since = passed.checked_sub(1).map_or(self.begun_at, |last| self.advanced[last].at);
        Some(since)
    }
}

/// What a read showed.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) reader: usize,
    pub(super) node: u64,
    pub(super) revision: u64,
    /// The newest revision that it had to show at least.
    pub(super) least: u64,
    pub(super) items: Items,
}

/// What a watch showed, from its initial state on.
#[derive(Debug, Clone)]
pub(super) struct Followed {
    pub(super) reader: usize,
    /// From which revision on it was this.
    pub(super) states: BTreeMap<u64, Items>,
    pub(super) upto: u64,
}

/// What the file of an agent had at some time.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) who: Who,
    /// In microseconds.
    pub(super) at: u64,
    pub(super) values: [u64; CONFIGS],
}

/// All that was seen.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) readers: Vec<Who>,
    /// In the order of their revisions: one rolls at a time.
    pub(super) lines: Vec<Line>,
    pub(super) seen: Vec<Seen>,
    pub(super) followed: Vec<Followed>,
    pub(super) written: Vec<Written>,
}

/// What was compared and what is wrong.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Reads, and states of watches, that were compared with what has to be seen.
    pub(super) judged: u64,
    /// Reads at a revision of which another node, or a watch, had shown the same reader something.
    pub(super) compared: u64,
    pub(super) found: Vec<String>,
}

impl Verdict {
    fn wrong(&mut self, which: &str, text: &str) {
        let told = self.found.iter().filter(|found| found.starts_with(which)).count();
        if told < TOLD_MAX {
            self.found.push(format!("{which}: {text}"));
        }
    }
}

impl Record {
    /// What a reader has to see at a revision.
    fn expected(&self, who: &Who, revision: u64) -> Items {
        let rolls = self.lines.iter().find(|line| line.runs(revision));
        if let Some(line) = rolls.filter(|line| line.has(line.passed(revision), who)) {
            let item = Item { n: line.n, change: Some(line.change.clone()) };
            return [item.clone(), item];
        }
        let ended = |line: &&Line| line.is_applied && line.end.is_some_and(|end| end <= revision);
        let n = self.lines.iter().rev().find(ended).map_or(0, |line| line.n);
        [Item { n, change: None }, Item { n, change: None }]
    }

    pub(super) fn check(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for seen in &self.seen {
            let what = format!("read at node {}", seen.node);
            self.judge(&mut verdict, (seen.reader, seen.revision), (&seen.items, &what));
            if seen.revision < seen.least {
                let text = format!("reader {} has seen revision {} before {seen:?}", seen.reader, seen.least);
                verdict.wrong("O1", &text);
            }
        }
        for followed in &self.followed {
            self.judge_watch(&mut verdict, followed);
        }
        self.same(&mut verdict);
        self.watches(&mut verdict);
        self.lines.iter().for_each(|line| stages(&mut verdict, line));
        self.written.iter().for_each(|written| self.file(&mut verdict, written));
        verdict
    }

    /// What one sees is what it has to see.
    fn judge(&self, verdict: &mut Verdict, (reader, revision): (usize, u64), (items, what): (&Items, &str)) {
        verdict.judged += 1;
        let who = &self.readers[reader];
        let expected = self.expected(who, revision);
        if *items == expected {
            return;
        }
        let candidate = items.iter().find_map(|item| item.change.as_ref());
        let line = candidate.and_then(|change| self.lines.iter().find(|line| line.change == *change));
        let is_over = line.is_some_and(|line| line.end.is_some_and(|end| end <= revision));
        let which = match (candidate, &who.name) {
            (Some(_), None) => "O6",
            (Some(_), Some(_)) if items[0] != items[1] => "O5",
            (Some(_), Some(_)) if is_over => "O4",
            (None, Some(_)) if expected[0].change.is_some() => "O1",
            (Some(_), Some(_)) | (None, None | Some(_)) => "O2",
        };
        verdict.wrong(which, &format!("{what} at {revision}: {who:?} sees {items:?}, not {expected:?}"));
    }

    /// A watch shows it from one of its events to the next, so also at each revision at which a rollout has changed.
    fn judge_watch(&self, verdict: &mut Verdict, followed: &Followed) {
        let Some((first, _)) = followed.states.first_key_value() else { return };
        let edits = self.lines.iter().flat_map(|line| {
            line.advanced.iter().map(|advance| advance.revision).chain([line.begun]).chain(line.end)
        });
        let edits = edits.filter(|revision| (*first..=followed.upto).contains(revision));
        for revision in edits.chain(followed.states.keys().copied()) {
            if let Some((_, items)) = followed.states.range(..=revision).next_back() {
                self.judge(verdict, (followed.reader, revision), (items, "watch"));
            }
        }
    }

    /// One reader sees the same everywhere at one revision (O2).
    fn same(&self, verdict: &mut Verdict) {
        let mut known: BTreeMap<(usize, u64), &Seen> = BTreeMap::new();
        for seen in &self.seen {
            let other = *known.entry((seen.reader, seen.revision)).or_insert(seen);
            verdict.compared += u64::from(other.node != seen.node);
            if other.items != seen.items {
                verdict.wrong("O2", &format!("{other:?} and {seen:?}"));
            }
        }
    }

    /// A watch shows what reads at the same revision return (O7).
    fn watches(&self, verdict: &mut Verdict) {
        let mut reads: BTreeMap<usize, Vec<&Seen>> = BTreeMap::new();
        for seen in &self.seen {
            reads.entry(seen.reader).or_default().push(seen);
        }
        for followed in &self.followed {
            let own = reads.get(&followed.reader).into_iter().flatten();
            for seen in own.filter(|seen| seen.revision <= followed.upto) {
                let Some((from, items)) = followed.states.range(..=seen.revision).next_back() else {
                    continue;
                };
                verdict.compared += 1;
                if *items != seen.items {
                    let text =
                        format!("the watch shows {items:?} from {from} to {}: {seen:?}", followed.upto);
                    verdict.wrong("O7", &text);
                }
            }
        }
    }

    /// A file has both configs of one side (O5), and a candidate only of an agent that was in by then and before the end.
    fn file(&self, verdict: &mut Verdict, written: &Written) {
        verdict.judged += 1;
        let [n, other] = written.values;
        if n != other {
            verdict.wrong("O5", &format!("a file of an agent: {written:?}"));
        }
        let Some(line) = self.lines.iter().find(|line| line.n == n && !line.is_applied) else { return };
        if line.in_since(&written.who).is_none_or(|since| written.at < since) {
            verdict.wrong("O2", &format!("a candidate in the file of an agent that is not in: {written:?}"));
        }
    }
}

/// No stage ended without its time or its evidence, unless a person has advanced the rollout (O3).
fn stages(verdict: &mut Verdict, line: &Line) {
    let mut since = line.begun_at;
    for (number, advance) in line.advanced.iter().enumerate() {
        let Some(stage) = line.stages.get(number) else {
            verdict.wrong("O3", &format!("{} has ended a stage that is not in its plan", line.change));
            return;
        };
        let sent = line.healthy.values().filter(|at| **at <= advance.at).count() as u64;
        let most = sent + line.agents.get(number).copied().unwrap_or(0);
        if !advance.is_by_cluster {
            if !line.is_advanced {
                verdict.wrong("O3", &format!("stage {number} of {} was ended by nobody", line.change));
            }
        } else if advance.at < since + stage.for_s * 1_000_000 {
            verdict
                .wrong("O3", &format!("stage {number} of {} ended before its time: {line:?}", line.change));
        } else if most < stage.min_healthy {
            let text = format!("stage {number} of {} ended by {most} readers at most: {line:?}", line.change);
            verdict.wrong("O3", &text);
        }
        since = advance.at;
    }
    if line.is_applied && line.advanced.len() < line.stages.len() {
        verdict.wrong("O3", &format!("{} was applied before the end of its last stage", line.change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &str = "c1";

    fn items(n: u64, change: Option<&str>) -> Items {
        let item = Item { n, change: change.map(str::to_owned) };
        [item.clone(), item]
    }

    /// A rollout of value 1 that begins at revision 10, reaches its second stage at 20, and is aborted at 30.
    fn record() -> Record {
        let who = |name: Option<&str>, ring| Who { name: name.map(str::to_owned), ring };
        let stage = |ring| Stage { ring, share: ALL, for_s: 5, min_healthy: 2 };
        let advance = Advance { revision: 20, at: 6_000_000, is_by_cluster: true };
        let line = Line {
            change: CHANGE.to_owned(),
            n: 1,
            stages: vec![stage(Some("canary")), stage(None)],
            begun: 10,
            advanced: vec![advance],
            end: Some(30),
            begun_at: 1_000_000,
            agents: vec![1, 1],
            healthy: [("a".to_owned(), 5_000_000)].into(),
            ..Line::default()
        };
        let readers = vec![who(Some("a"), Some("canary")), who(Some("b"), None), who(None, None)];
        Record { readers, lines: vec![line], ..Record::default() }
    }

    fn seen(reader: usize, revision: u64, items: Items) -> Seen {
        Seen { reader, node: 1, revision, least: 0, items }
    }

    fn kinds(record: &Record) -> Vec<String> {
        record.check().found.iter().map(|found| found[..2].to_owned()).collect()
    }

    #[test]
    fn what_has_to_be_seen_is_right() {
        let mut record = record();
        let (old, new) = (items(0, None), items(1, Some(CHANGE)));
        for (reader, revision, items) in [
            (0, 9, &old),
            (0, 10, &new),
            (1, 19, &old),
            (1, 20, &new),
            (2, 25, &old),
            (0, 30, &old),
            (1, 31, &old),
        ] {
            record.seen.push(seen(reader, revision, items.clone()));
        }
        let states = [(5, old.clone()), (20, new), (30, old)].into();
        record.followed.push(Followed { reader: 1, states, upto: 40 });
        assert_eq!(record.check().found, Vec::<String>::new());
    }

    #[test]
    fn each_invariant_is_checked() {
        let (old, new) = (items(0, None), items(1, Some(CHANGE)));
        let torn = [new[0].clone(), old[1].clone()];
        for (reader, revision, items, kind) in [
            (0, 12, &old, "O1"),
            (1, 12, &new, "O2"),
            (0, 30, &new, "O4"),
            (0, 12, &torn, "O5"),
            (2, 12, &new, "O6"),
        ] {
            let mut record = record();
            record.seen.push(seen(reader, revision, items.clone()));
            assert_eq!(kinds(&record), [kind], "{items:?}");
        }
        let mut back = record();
        back.seen.push(Seen { least: 6, ..seen(0, 5, old.clone()) });
        assert_eq!(kinds(&back), ["O1"]);
        let mut missed = record();
        missed.seen.push(seen(1, 22, new));
        missed.followed.push(Followed { reader: 1, states: [(5, old)].into(), upto: 29 });
        assert_eq!(kinds(&missed), ["O1", "O7"], "the watch has missed a stage");
    }

    #[test]
    fn a_stage_needs_its_time_and_its_evidence() {
        let with = |change: fn(&mut Line)| {
            let mut record = record();
            change(&mut record.lines[0]);
            kinds(&record)
        };
        assert_eq!(with(|line| line.advanced[0].at = 5_999_999), ["O3"]);
        assert_eq!(with(|line| line.healthy.clear()), ["O3"]);
        assert_eq!(with(|line| line.advanced[0].is_by_cluster = false), ["O3"]);
        assert_eq!(with(|line| (line.advanced.clear(), line.is_applied = true).1), ["O3"]);
    }

    #[test]
    fn a_file_has_one_side_and_no_candidate_too_early() {
        let with = |name: &str, at, values| {
            let mut record = record();
            let who = Who { name: Some(name.to_owned()), ring: None };
            record.written.push(Written { who, at, values });
            kinds(&record)
        };
        assert_eq!(with("b", 6_000_000, [1, 1]), Vec::<String>::new());
        assert_eq!(with("b", 5_999_999, [1, 1]), ["O2"]);
        assert_eq!(with("b", 7_000_000, [1, 0]), ["O5"]);
    }
}
