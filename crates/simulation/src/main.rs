//! A cluster of Concord in deterministic simulation: every failure is a seed (`docs/internals/simulation.md`).
//!
//! The real nodes run in one thread of one process, in virtual time, over a simulated network. One seed gives the size of
//! the cluster, its settings, the faults and what the clients do. Everything random and every time follows from it, so a
//! seed that fails does so again.
//!
//! | question | file |
//! |---|---|
//! | How do the clock and the randomness of a node become those of the simulation? | `machine` |
//! | What does a seed draw? | `setup` |
//! | How is a node started; what of it is real? | `node` |
//! | What do clients do and record? | `chaos`, of the chaos tests; `work`, `workload`, `harness`, `watch` |
//! | Who releases change requests in stages, and what do readers see? | `rollouts` |
//! | Who joins and leaves? | `members` |
//! | Which faults are there? | `nemesis`, `disk` |
//! | What does a disk lose, and how does it fail? | `volume` |
//! | What is checked after every step? | `world` |
//! | What is checked at the end? | `chaos`, `rollouts` |
//! | What is the hash of a run over? | `trace` |
//! | How is a run drawn; how does a failure become small? | `timeline`; `cut`, `overrides` |
//!
//! **Invariant:** one seed, one hash.

mod chaos;
mod cut;
mod disk;
mod harness;
mod machine;
mod members;
mod nemesis;
mod node;
mod overrides;
mod rollouts;
mod setup;
mod timeline;
mod trace;
mod volume;
mod watch;
mod work;
mod workload;
mod world;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    process::{Command, ExitCode},
    rc::Rc,
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant, UNIX_EPOCH},
};

use nemesis::Nemesis;
use node::{Nodes, name};
use overrides::Overrides;
use setup::Setup;
use timeline::Recorder;
use workload::Run;
use world::{World, client_name, follower_name};

/// One step of virtual time.
const TICK: Duration = Duration::from_millis(1);
/// The longest real time of a run: one that takes longer waits for something that never happens.
const REAL_MAX: Duration = Duration::from_secs(600);
/// The longest virtual time of a run.
const VIRTUAL_MAX: Duration = Duration::from_secs(600);
/// How long faults may keep the first members from a cluster with the definitions of the run. It goes on without faults then.
const FORMING_MAX: Duration = Duration::from_secs(30);

const USAGE: &str = "concord-simulate seed SEED [--trace FILE] [--html FILE] [--log] [OVERRIDE…]   one run
concord-simulate cut SEED [--seconds S] [OVERRIDE…]                             cuts a failure down
concord-simulate seeds FIRST COUNT [--seconds S] [--cut S] [--until-found]   runs with new seeds, each in a process of its own;
                                                             the first failure is cut down for so many seconds";
/// How long a failure is cut down when nobody says so.
const CUT_S: u64 = 300;

/// How one run is looked at, and what is different from what its seed draws.
#[derive(Default)]
struct Look {
    trace: Option<String>,
    html: Option<String>,
    is_log: bool,
    seconds: Option<u64>,
    overrides: Overrides,
}

impl Look {
    fn read(words: &[&str]) -> Result<Self, String> {
        let (mut look, mut words) = (Self::default(), words.iter().map(|word| (*word).to_owned()));
        let absolute = |path: Option<String>| {
            let path = path.ok_or("a file must be named")?;
            std::path::absolute(path)
                .map(|path| path.display().to_string())
                .map_err(|error| error.to_string())
        };
        while let Some(option) = words.next() {
            match option.as_str() {
                "--log" => look.is_log = true,
                "--trace" => look.trace = Some(absolute(words.next())?),
                "--html" => look.html = Some(absolute(words.next())?),
                "--seconds" => look.seconds = words.next().and_then(|text| text.parse().ok()),
                _ if look.overrides.take(&option, || words.next())? => {}
                _ => return Err(format!("there is no option `{option}`")),
            }
        }
        Ok(look)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let after = |option: &str| {
        let place = texts.iter().position(|text| *text == option)?;
        texts.get(place + 1).copied()
    };
    let number = |text: &str| text.parse::<u64>().ok();
    match texts[..] {
        ["cut", seed, ref options @ ..] => {
            let Some(seed) = number(seed) else { return usage() };
            match Look::read(options) {
                Ok(look) => cut::cut(seed, &look.overrides, look.seconds.unwrap_or(CUT_S)),
                Err(why) => refused(&why),
            }
        }
        ["seed", seed, ref options @ ..] => {
            let Some(seed) = number(seed) else { return usage() };
            let look = match Look::read(options) {
                Ok(look) => look,
                Err(why) => return refused(&why),
            };
            // In memory: what a disk takes is simulated. The nodes get relative paths, which are the same in every run.
            let memory = std::path::Path::new("/dev/shm");
            let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
            let directory = directory.expect("a temporary directory");
            std::env::set_current_dir(directory.path()).expect("the temporary directory");
            let (ended, end) = std::sync::mpsc::channel();
            let run = move || ended.send(one(seed, &look)).expect("its end is awaited");
            drop(std::thread::Builder::new().stack_size(16 << 20).spawn(run).expect("a thread"));
            let is_good = end.recv_timeout(REAL_MAX);
            if is_good == Err(RecvTimeoutError::Timeout) {
                println!(
                    "seed {seed}\nVIOLATION the simulation stands still: it did not end within {REAL_MAX:?}"
                );
            }
            if is_good == Ok(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        ["seeds", first, count, ..] => {
            let (Some(first), Some(count)) = (number(first), number(count)) else { return usage() };
            let seconds = |option| after(option).and_then(number);
            let until = Until { seconds: seconds("--seconds"), is_found: texts.contains(&"--until-found") };
            many(first, count, until, seconds("--cut"))
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn refused(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

/// When no more seeds are run.
struct Until {
    seconds: Option<u64>,
    /// As soon as one has found something.
    is_found: bool,
}

/// Runs seeds in processes of their own: what is initialized once in a process would depend on the seed before.
fn many(first: u64, count: u64, until: Until, cut_seconds: Option<u64>) -> ExitCode {
    let begun = Instant::now();
    let program = std::env::current_exe().expect("the path of this program");
    let (mut runs, mut failed) = (0, Vec::new());
    for seed in first..first.saturating_add(count) {
        if until.seconds.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
        let ended = Command::new(&program).args(["seed", &seed.to_string()]).status();
        runs += 1;
        if !ended.is_ok_and(|status| status.success()) {
            if let Some(seconds) = cut_seconds.filter(|_| failed.is_empty()) {
                cut::cut(seed, &Overrides::default(), seconds);
            }
            failed.push(seed);
            if until.is_found {
                break;
            }
        }
    }
    println!("{runs} seeds in {:.0} s, {} failed: {failed:?}", begun.elapsed().as_secs_f64(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run, on a thread of its own: what the standard library draws once on a thread is drawn from the seed, too. Returns
/// whether nothing was found.
fn one(seed: u64, look: &Look) -> bool {
    let is_log = look.is_log;
    let mut setup = Setup::draw(seed);
    if let Err(why) = look.overrides.apply(&mut setup) {
        eprintln!("{why}");
        return false;
    }
    let again = format!("scripts/simulate.sh seed {seed}{}", look.overrides);
    let real = Instant::now();
    machine::simulate_on_this_thread(setup.seed);
    trace::begin(look.trace.as_deref(), is_log);
    let subscribed = tracing::subscriber::set_default(trace::NodeLogs);
    if is_log {
        eprintln!("{setup:#?}");
    }
    // A client that panics, or the simulation itself, has found something.
    let simulated = catch_unwind(AssertUnwindSafe(|| simulate(setup, look, &again)));
    let (virtual_time, violations) = simulated.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (Duration::ZERO, vec![text.unwrap_or_else(|| "a panic".to_owned())])
    });
    drop(subscribed);
    let (hash, counts) = trace::end();
    machine::end();
    let real = real.elapsed().as_secs_f64();
    let speed = virtual_time.as_secs_f64() / real;
    println!(
        "seed {seed}: hash {hash:016x}, {} events ({} messages, {} log lines, {} applied, {} leaders, {} faults, {} operations), \
         {:.1} s virtual in {real:.1} s ({speed:.1} times)",
        counts.events,
        counts.messages,
        counts.log_lines,
        counts.applied,
        counts.leaders,
        counts.faults,
        counts.operations,
        virtual_time.as_secs_f64(),
    );
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    if !violations.is_empty() {
        println!("again: {again} --log");
    }
    violations.is_empty()
}

/// Simulates a cluster with its clients and faults. Returns how long it was, and what was wrong.
fn simulate(setup: Setup, look: &Look, again: &str) -> (Duration, Vec<String>) {
    let is_log = look.is_log;
    let setup = Rc::new(setup);
    disk::begin(setup.seed, setup.flush_max_ms);
    volume::begin(setup.seed);
    let mut builder = turmoil::Builder::new();
    builder
        .epoch(UNIX_EPOCH)
        .rng_seed(setup.seed)
        .tick_duration(TICK)
        .simulation_duration(VIRTUAL_MAX)
        .min_message_latency(TICK)
        .max_message_latency(setup.latency_max)
        .retransmission(setup.retransmission)
        .tcp_capacity(1 << 16);
    if setup.is_order_random {
        builder.enable_random_order();
    }
    let mut sim = builder.build();
    let nodes: Nodes = Rc::new((0..=setup.nodes).map(|_| RefCell::default()).collect());
    for node in 1..=setup.nodes {
        let (setup, nodes) = (Rc::clone(&setup), Rc::clone(&nodes));
        let run = move || node::run(Rc::clone(&setup), node, Rc::clone(&nodes));
        machine::as_host(node, || sim.host(name(node), run));
    }
    harness::begin(is_log, &setup);
    concord_model::limits::set_remembered_max(setup.work.remembered_max);
    let shared = Rc::new(Run::new(Rc::clone(&setup)));
    make_clients(&mut sim, &setup, &shared);
    let mut recorder = look.html.as_ref().map(|_| Recorder::new(setup.nodes));
    let mut world = World::new(Rc::clone(&setup), nodes, is_log);
    let mut nemesis = Nemesis::new(&setup);
    loop {
        let stepped = sim.step();
        let now = sim.elapsed();
        machine::set_elapsed(now);
        trace::set_now(now);
        match stepped {
            Ok(false) => {}
            Ok(true) => break,
            Err(error) => {
                world.violation(format!("the simulation ended: {error}"));
                break;
            }
        }
        world.check(now);
        if !world.violations.is_empty() {
            break;
        }
        if now > FORMING_MAX && shared.from.get() == 0 {
            nemesis.heal();
        }
        if shared.working.get() == 0 && !shared.is_healed.get() {
            nemesis.heal();
            shared.is_healed.set(nemesis.is_quiet() && world.all_run());
        }
        nemesis.step(&mut sim, &mut world);
        if let Some(recorder) = &mut recorder {
            recorder.step(now, &world, &nemesis.present());
        }
    }
    let mut violations = std::mem::take(&mut world.violations);
    violations.extend(shared.violations());
    let elapsed = sim.elapsed();
    if let (Some(recorder), Some(path)) = (recorder, &look.html) {
        let page = recorder.page(&setup, &shared.shared.history, &violations, again);
        std::fs::write(path, page).expect("the file of the timeline");
    }
    disk::without_power(0, volume::Loss::Process, || {
        for node in 1..=setup.nodes {
            drop(world.nodes[node].borrow_mut().service.take());
        }
        drop(sim);
    });
    (elapsed, violations)
}

/// The hosts that are no nodes.
fn make_clients(sim: &mut turmoil::Sim<'_>, setup: &Rc<Setup>, run: &Rc<Run>) {
    let mut host = setup.nodes;
    let mut client = |name: String, what: Pin<Box<dyn Future<Output = turmoil::Result>>>| {
        host += 1;
        machine::as_host(host, || sim.client(name, what));
    };
    for id in 1..=setup.clients {
        client(client_name(id), Box::pin(workload::client(id, Rc::clone(run))));
    }
    for id in 1..=setup.work.followers {
        client(follower_name(id), Box::pin(watch::follow(id, Rc::clone(run))));
    }
    client("keys".to_owned(), Box::pin(workload::keys(Rc::clone(run))));
    client("freezes".to_owned(), Box::pin(workload::freezes(Rc::clone(run))));
    for id in 1..=setup.work.proposers {
        client(format!("p{id}"), Box::pin(workload::proposer(id, Rc::clone(run))));
    }
    client("onlookers".to_owned(), Box::pin(workload::onlookers(Rc::clone(run))));
    for host in 0..rollouts::hosts(setup.work.rollers) {
        client(format!("r{host}"), Box::pin(rollouts::take_part(host, Rc::clone(run))));
    }
    client("members".to_owned(), Box::pin(members::change(Rc::clone(run))));
    client("director".to_owned(), Box::pin(workload::direct(Rc::clone(run))));
}
