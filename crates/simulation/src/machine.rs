//! The clock and the randomness of the thread that simulates, in place of the machine's.
//!
//! The standard library and all crates ask the C library for the time and for random bytes. This program has functions of
//! the same names, and the linker prefers them. So no place in the code of a node that reads a clock or draws a number
//! needs to know of a simulation. On every other thread they answer as the machine does.
//!
//! `mad-turmoil` does the same, for one seed in a process, with one wall clock for all nodes, and with clocks that stand
//! still on other threads.
//!
//! **Invariant:** on the thread that simulates, what is answered depends on the seed and on the questions before.

#![expect(unsafe_code, reason = "functions with the names of the C library")]

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use libc::{c_int, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};

/// The monotonic clock at the beginning: above what any code subtracts from it.
const BEGIN: Duration = Duration::from_secs(1_000_000);
/// The wall clock at the beginning, since 1970.
const WALL_BEGIN: Duration = Duration::from_secs(1_800_000_000);
/// Most nodes and clients.
pub(crate) const HOSTS_MAX: usize = 32;

thread_local! {
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
    /// Time since the beginning, where no runtime knows it.
    static ELAPSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// The host whose runtime is made now.
    static HOST: Cell<usize> = const { Cell::new(0) };
    static ZERO: Cell<Option<Instant>> = const { Cell::new(None) };
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
    /// Seconds by which the wall clock of each host is wrong.
    static WALL_ERROR: RefCell<[i64; HOSTS_MAX]> = const { RefCell::new([0; HOSTS_MAX]) };
    static RANDOM: RefCell<fastrand::Rng> = const { RefCell::new(fastrand::Rng::with_seed(0)) };
}

/// Makes the clock and the randomness of this thread follow from a seed. Called once on a thread, before it does anything
/// that draws a random number.
pub(crate) fn simulate_on_this_thread(seed: u64) {
    RANDOM.with_borrow_mut(|random| random.seed(seed));
    IS_SIMULATED.set(true);
    ELAPSED.set(Duration::ZERO);
    HOST.set(0);
    let now = Instant::now();
    ZERO.set(now.checked_sub(BEGIN));
    fastrand::seed(seed);
}

/// Sets the time since the beginning, for what runs outside of all hosts.
pub(crate) fn set_elapsed(elapsed: Duration) {
    ELAPSED.set(elapsed);
}

/// Runs `make`, which makes a runtime of this host. The clock of a runtime remembers in its microseconds whose it is: its
/// timers have whole milliseconds.
pub(crate) fn as_host<T>(host: usize, make: impl FnOnce() -> T) -> T {
    HOST.set(host);
    let made = make();
    HOST.set(0);
    made
}

/// Lets the wall clock of a host be wrong by so many seconds.
pub(crate) fn set_wall_error(host: usize, seconds: i64) {
    WALL_ERROR.with_borrow_mut(|errors| errors[host] = seconds);
}

/// The monotonic clock of the host that runs.
fn monotonic() -> Duration {
    let outside = BEGIN + ELAPSED.get() + Duration::from_micros(HOST.get() as u64);
    let Some(zero) = ZERO.get() else { return outside };
    // The clock of a runtime asks this one while it is made.
    if IS_ASKING.replace(true) {
        return outside;
    }
    let is_inside = tokio::runtime::Handle::try_current().is_ok();
    let now = if is_inside { tokio::time::Instant::now().into_std().duration_since(zero) } else { outside };
    IS_ASKING.set(false);
    now
}

/// The host that runs; 0 outside of all.
pub(crate) fn host() -> usize {
    (monotonic().subsec_micros() % 1000) as usize % HOSTS_MAX
}

fn wall() -> Duration {
    let since = monotonic() - BEGIN;
    let host = (since.subsec_micros() % 1000) as usize % HOSTS_MAX;
    let error = WALL_ERROR.with_borrow(|errors| errors[host]);
    let seconds = (WALL_BEGIN + since).as_secs().saturating_add_signed(error);
    Duration::new(seconds, since.subsec_nanos())
}

/// Whether this is the thread that simulates.
pub(crate) fn is_simulated() -> bool {
    // A thread that ends has no such values any more.
    IS_SIMULATED.try_with(Cell::get).unwrap_or(false)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    if !is_simulated() || to.is_null() {
        // SAFETY: the arguments are those of the caller, who answers for them.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, to) } as c_int;
    }
    let time = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => wall(),
        _ => monotonic(),
    };
    // SAFETY: the caller has given a place for the result, which is not null.
    unsafe {
        to.write(timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() })
    };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(to: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !is_simulated() || to.is_null() {
        // SAFETY: as above.
        return unsafe { libc::syscall(libc::SYS_getrandom, to, length, flags) } as ssize_t;
    }
    // SAFETY: the caller has given a place of this length, which is not null.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    RANDOM.with_borrow_mut(|random| random.fill(bytes));
    length.cast_signed()
}

/// Gives this thread the clock and the randomness of the machine again.
pub(crate) fn end() {
    IS_SIMULATED.set(false);
}
