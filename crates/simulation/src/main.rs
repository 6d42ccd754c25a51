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
//! | What do clients do and record? | `workload`, `client` |
//! | Which faults are there? | `nemesis`, `disk` |
//! | What does a disk lose, and how does it fail? | `volume` |
//! | What is checked after every step? | `world` |
//! | What is checked at the end? | `check`, of the chaos tests |
//! | What is the hash of a run over? | `trace` |
//!
//! **Invariant:** one seed, one hash.

#[path = "../../../tests/chaos/check.rs"]
mod check;
mod client;
mod disk;
#[path = "../../../tests/chaos/history.rs"]
#[expect(dead_code, reason = "the chaos tests use all of it")]
mod history;
mod machine;
mod nemesis;
mod node;
mod setup;
mod stored_keys;
mod trace;
mod volume;
mod workload;
mod world;

use std::{
    cell::RefCell,
    process::{Command, ExitCode},
    rc::Rc,
    time::{Duration, Instant, UNIX_EPOCH},
};

use nemesis::Nemesis;
use node::{Nodes, name};
use setup::Setup;
use workload::Shared;
use world::{World, client_name};

/// One step of virtual time.
const TICK: Duration = Duration::from_millis(1);
/// The longest virtual time of a run.
const VIRTUAL_MAX: Duration = Duration::from_secs(600);

const USAGE: &str = "concord-simulate seed SEED [--trace FILE] [--log]   one run
concord-simulate seeds FIRST COUNT [--seconds S] [--until-found]    runs with new seeds, each in a process of its own";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let after = |option: &str| {
        let place = texts.iter().position(|text| *text == option)?;
        texts.get(place + 1).copied()
    };
    let number = |text: &str| text.parse::<u64>().ok();
    match texts[..] {
        ["seed", seed, ..] => {
            let Some(seed) = number(seed) else { return usage() };
            let absolute = |path| std::path::absolute(path).expect("a path").display().to_string();
            let (path, is_log) = (after("--trace").map(absolute), texts.contains(&"--log"));
            // In memory: what a disk takes is simulated. The nodes get relative paths, which are the same in every run.
            let memory = std::path::Path::new("/dev/shm");
            let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
            let directory = directory.expect("a temporary directory");
            std::env::set_current_dir(directory.path()).expect("the temporary directory");
            let run = move || one(seed, path.as_deref(), is_log);
            let run = std::thread::Builder::new().stack_size(16 << 20).spawn(run).expect("a thread");
            if run.join().is_ok_and(|is_good| is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        ["seeds", first, count, ..] => {
            let (Some(first), Some(count)) = (number(first), number(count)) else { return usage() };
            let is_until_found = texts.contains(&"--until-found");
            many(first, count, after("--seconds").and_then(number), is_until_found)
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Runs seeds in processes of their own: what is initialized once in a process would depend on the seed before.
fn many(first: u64, count: u64, seconds: Option<u64>, is_until_found: bool) -> ExitCode {
    let begun = Instant::now();
    let program = std::env::current_exe().expect("the path of this program");
    let (mut runs, mut failed) = (0, Vec::new());
    for seed in first..first.saturating_add(count) {
        if seconds.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
        let ended = Command::new(&program).args(["seed", &seed.to_string()]).status();
        runs += 1;
        if !ended.is_ok_and(|status| status.success()) {
            failed.push(seed);
            if is_until_found {
                break;
            }
        }
    }
    println!("{runs} seeds in {:.0} s, {} failed: {failed:?}", begun.elapsed().as_secs_f64(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run, on a thread of its own: what the standard library draws once on a thread is drawn from the seed, too. Returns
/// whether nothing was found.
fn one(seed: u64, path: Option<&str>, is_log: bool) -> bool {
    let real = Instant::now();
    machine::simulate_on_this_thread(seed);
    trace::begin(path, is_log);
    let subscribed = tracing::subscriber::set_default(trace::NodeLogs);
    let setup = Setup::draw(seed);
    if is_log {
        eprintln!("{setup:#?}");
    }
    let (virtual_time, violations) = simulate(setup, is_log);
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
        println!("again: scripts/simulate.sh seed {seed} --log");
    }
    violations.is_empty()
}

/// Simulates a cluster with its clients and faults. Returns how long it was, and what was wrong.
fn simulate(setup: Setup, is_log: bool) -> (Duration, Vec<String>) {
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
    let shared = Rc::new(Shared::new(Rc::clone(&setup)));
    for client in 1..=setup.clients {
        let run = workload::run(client, Rc::clone(&shared));
        machine::as_host(setup.nodes + client, || sim.client(client_name(client), run));
    }
    let last = setup.clients + 1;
    let audit = workload::audit(last, Rc::clone(&shared));
    machine::as_host(setup.nodes + last, || sim.client(client_name(last), audit));
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
        if shared.working.get() == 0 && !shared.is_healed.get() {
            nemesis.heal();
            shared.is_healed.set(nemesis.is_quiet() && world.all_run());
        }
        nemesis.step(&mut sim, &mut world);
    }
    let mut violations = std::mem::take(&mut world.violations);
    violations.extend(check::violations(&shared.history));
    let elapsed = sim.elapsed();
    disk::without_power(0, volume::Loss::Process, || {
        for node in 1..=setup.nodes {
            drop(world.nodes[node].borrow_mut().service.take());
        }
        drop(sim);
    });
    (elapsed, violations)
}
