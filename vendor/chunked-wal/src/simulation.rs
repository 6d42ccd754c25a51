//! A WAL without a thread of its own, for a simulation: what is queued is
//! served where the simulation says, on the thread that runs it.

use std::cell::Cell;
use std::sync::OnceLock;

/// Runs work later, as a disk would be done later.
pub type Later = fn(Box<dyn FnOnce() + Send>);

static LATER: OnceLock<Later> = OnceLock::new();

thread_local! {
    static POWER_IS_OFF: Cell<bool> = const { Cell::new(false) };
}

/// Sets what runs work later. Without it, the work runs at once.
pub fn set_later(later: Later) {
    // The first one stays.
    let _ = LATER.set(later);
}

/// While the power is off, a WAL that is dropped loses what is queued.
pub fn set_power_is_off(is_off: bool) {
    POWER_IS_OFF.set(is_off);
}

pub(crate) fn power_is_off() -> bool {
    POWER_IS_OFF.get()
}

pub(crate) fn later(work: impl FnOnce() + Send + 'static) {
    match LATER.get() {
        Some(later) => later(Box::new(work)),
        None => work(),
    }
}
