//! A client that writes and reads on every node while something else happens to the cluster.
//!
//! For each node there is one loop: it writes its config there, and reads it back on every node, linearizably. So
//! every request touches the leader, and each answer can be judged: it succeeds, and a read shows the newest write.
//!
//! **Invariant:** its loops have a thread and connections of their own. On the test's thread they would wait for the
//! attackers' own work, and their times would say how busy the attackers are.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::{
    Client, Cluster,
    load::{config, define, set},
    number,
    time::pace,
};

/// The pause between two rounds of a loop: the good client is no load of its own.
const ROUND_PAUSE: Duration = Duration::from_millis(20);

/// The time that a node leaves for a decision when it proposes a write that took long to prepare.
const DECISION_TIME: Duration = Duration::from_millis(100);

/// How much later than a late request an answer may come that was late for the same reason.
const LATE_TOGETHER: Duration = Duration::from_millis(200);

/// What the loops saw so far.
#[derive(Debug, Default)]
struct Seen {
    writes: Vec<Duration>,
    reads: Vec<Duration>,
    /// When the requests that took longer than a decision may were under way.
    late: Vec<(Instant, Instant)>,
    failed: Vec<String>,
    peak_kb: Vec<u64>,
}

/// The loops, until they are stopped.
#[derive(Debug)]
pub(crate) struct GoodClient {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    loops: thread::JoinHandle<()>,
    term: u64,
    leader: u64,
}

/// What the good client saw from start to stop.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) requests: usize,
    /// Requests that were refused, lost or answered wrongly, with the answer.
    pub(crate) failed: Vec<String>,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
    writes: Vec<Duration>,
    late: Vec<(Instant, Instant)>,
    /// Whether the same node led all the time, in the same term.
    pub(crate) leader_stayed: bool,
    /// The most memory that each node had in use, in kB.
    pub(crate) peak_kb: Vec<u64>,
}

impl GoodClient {
    /// Starts a loop for each node.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let leader = cluster.leader().await;
        let clients = cluster.clients();
        define(&clients[0], "good").await;
        for place in 0..clients.len() {
            set(&clients[0], "good", &format!("k{place}"), &json!({"turn": 0})).await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Seen { peak_kb: vec![0; clients.len()], ..Seen::default() }));
        let pids: Vec<u32> = cluster.nodes.iter().map(crate::harness::Node::pid).collect();
        // Connections belong to the runtime that opens them, and each loop has its own.
        let own: Vec<_> = clients.iter().map(|_| cluster.clients()).collect();
        let (stopped, noted) = (Arc::clone(&stop), Arc::clone(&seen));
        let loops = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut loops = JoinSet::new();
                for (place, own) in own.into_iter().enumerate() {
                    loops.spawn(ask(own, place, Arc::clone(&stopped), Arc::clone(&noted)));
                }
                loops.spawn(watch_memory(pids, stopped, noted));
                while let Some(ended) = loops.join_next().await {
                    ended.expect("a loop does not panic");
                }
            });
        });
        let term = term(&cluster.client(leader)).await;
        Self { stop, seen, loops, term, leader }
    }

    /// Requests that were answered so far.
    pub(crate) fn requests(&self) -> usize {
        let seen = self.seen.lock().expect("no holder panics");
        seen.writes.len() + seen.reads.len()
    }

    /// Stops the loops and tells what they saw.
    pub(crate) async fn stop(self, cluster: &Cluster, what: &str) -> Report {
        self.stop.store(true, Ordering::SeqCst);
        let ended = tokio::task::spawn_blocking(|| self.loops.join()).await;
        ended.expect("the wait is not cancelled").expect("no loop panics");
        let leader = cluster.leader().await;
        let leader_stayed = leader == self.leader && term(&cluster.client(leader)).await == self.term;
        let seen = std::mem::take(&mut *self.seen.lock().expect("no holder panics"));
        let mut all = seen.writes.clone();
        all.extend(seen.reads);
        all.sort_unstable();
        let at = |percent: usize| all.get(all.len() * percent / 100).copied().unwrap_or_default();
        let report = Report {
            requests: all.len(),
            failed: seen.failed,
            p50: at(50),
            p99: at(99),
            longest: all.last().copied().unwrap_or_default(),
            writes: seen.writes,
            late: seen.late,
            leader_stayed,
            peak_kb: seen.peak_kb,
        };
        println!(
            "{what}: the good client: {} requests, {} failed, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms, \
             leader stayed: {}, peak memory {:?} MB",
            report.requests,
            report.failed.len(),
            report.p50.as_secs_f64() * 1e3,
            report.p99.as_secs_f64() * 1e3,
            report.longest.as_secs_f64() * 1e3,
            report.leader_stayed,
            report.peak_kb.iter().map(|kb| kb >> 10).collect::<Vec<_>>(),
        );
        report
    }
}

impl Report {
    /// Asserts that the good client was served all the time by one leader; within the bound in time of
    /// `HOSTILE_P99_MS` where one is set.
    #[track_caller]
    pub(crate) fn is_unhurt(&self) -> &Self {
        assert!(self.requests > 0, "it asked for something: {self:?}");
        assert!(
            self.failed.is_empty(),
            "{} of {} failed: {:?}",
            self.failed.len(),
            self.requests,
            self.failed
        );
        assert!(self.leader_stayed, "the leader lost its place");
        if let Some(most) = number("HOSTILE_P99_MS") {
            assert!(self.p99 <= Duration::from_millis(most), "p99 {:?}, allowed {most} ms", self.p99);
        }
        self
    }

    /// Asserts that attackers were told *unknown* (504) no more often than the machine explains.
    ///
    /// A node proposes a write while [`DECISION_TIME`] is left, in which the decision is known as a rule. How often it is
    /// not on this machine, the writes of the good client say: all that they wait for is their decision. Where all of
    /// these were in time, no attacker may be told *unknown*.
    #[track_caller]
    pub(crate) fn explains_unknown(&self, statuses: impl IntoIterator<Item = u16>) -> &Self {
        let statuses: Vec<u16> = statuses.into_iter().collect();
        let unknown = statuses.iter().filter(|status| **status == 504).count();
        let late = self.writes.iter().filter(|took| **took > DECISION_TIME).count();
        // Twice as often, and once more where it happens at all: there are few of both.
        let most = if late == 0 { 0 } else { 1 + 2 * late * statuses.len() / self.writes.len() };
        assert!(
            unknown <= most,
            "{unknown} of {} answers were 504, at most {most} may be: {late} of {} writes of the good client were late",
            statuses.len(),
            self.writes.len()
        );
        self
    }

    /// The same for attackers that all asked at once, so that one pause of the machine makes many of them late: whoever was
    /// told *unknown* was told so beside a request of the good client that was late, too.
    #[track_caller]
    pub(crate) fn explains_unknown_at(&self, answered: &[Instant]) -> &Self {
        let is_explained =
            |at: &Instant| self.late.iter().any(|(begin, end)| *begin <= *at && *at <= *end + LATE_TOGETHER);
        let unexplained = answered.iter().filter(|at| !is_explained(at)).count();
        let (all, late) = (answered.len(), self.late.len());
        assert_eq!(unexplained, 0, "{unexplained} of {all} answers were 504 beside no late one of {late}");
        self
    }

    /// Asserts that no node used more memory than this.
    #[track_caller]
    pub(crate) fn memory_within(&self, most_mb: u64) -> &Self {
        let most = self.peak_kb.iter().max().copied().unwrap_or_default();
        assert!(most <= most_mb << 10, "{} MB in use, allowed {most_mb} MB", most >> 10);
        self
    }
}

/// Rounds by one node until the stop.
async fn ask(clients: Vec<Client>, place: usize, stop: Arc<AtomicBool>, seen: Arc<Mutex<Seen>>) {
    for turn in 1u64.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        round(&clients, place, turn, &seen).await;
        pace(ROUND_PAUSE).await;
    }
}

/// Notes the most memory of each node until the stop.
async fn watch_memory(pids: Vec<u32>, stop: Arc<AtomicBool>, seen: Arc<Mutex<Seen>>) {
    while !stop.load(Ordering::SeqCst) {
        for (place, pid) in pids.iter().enumerate() {
            let now = resident_kb(*pid);
            let mut seen = seen.lock().expect("no holder panics");
            seen.peak_kb[place] = seen.peak_kb[place].max(now);
        }
        pace(ROUND_PAUSE).await;
    }
}

/// Writes on one node, reads back on all.
async fn round(clients: &[Client], place: usize, turn: u64, seen: &Mutex<Seen>) {
    let path = config("good", &format!("k{place}"));
    let begin = Instant::now();
    let put = clients[place].put(&path, &json!({"data": {"turn": turn}})).attempt().await;
    note(seen, begin, true, judge(put, None));
    for client in clients {
        let begin = Instant::now();
        let got = client.get(&path).attempt().await;
        note(seen, begin, false, judge(got, Some(turn)));
    }
}

/// Why an answer is not what a good client may expect.
fn judge(answer: Result<crate::harness::Answer, String>, turn: Option<u64>) -> Option<String> {
    match answer {
        Err(lost) => Some(lost),
        Ok(answer) if answer.status != 200 => Some(format!("{answer:?}")),
        Ok(answer) => match turn {
            Some(turn) if answer.data()["data"]["turn"].as_u64() != Some(turn) => {
                Some(format!("turn {turn} was written before, but: {answer:?}"))
            }
            _ => None,
        },
    }
}

fn note(seen: &Mutex<Seen>, begin: Instant, is_write: bool, failure: Option<String>) {
    let (end, took) = (Instant::now(), begin.elapsed());
    let mut seen = seen.lock().expect("no holder panics");
    if took > DECISION_TIME {
        seen.late.push((begin, end));
    }
    if is_write {
        seen.writes.push(took);
    } else {
        seen.reads.push(took);
    }
    seen.failed.extend(failure);
}

async fn term(client: &Client) -> u64 {
    let status = client.status().await.expect("a leader tells its status");
    status["term"].as_u64().expect("a term is a number")
}

fn resident_kb(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}
