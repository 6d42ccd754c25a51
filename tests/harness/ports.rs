//! Ports for child processes.
//!
//! A port that the system chooses lies in the ephemeral range, where an outgoing connection of another test may
//! take it before the child binds it. These lie below that range and are handed out once per process; each test
//! process begins at another place. A child that loses its port all the same says so, and is started again.

use std::{
    net::TcpListener,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| {
    // Neighbouring process ids begin far from each other.
    AtomicU32::new(std::process::id().wrapping_mul(7919) % COUNT)
});

/// A port of this host's that nobody listens on now.
pub(crate) fn free(host: &str) -> u16 {
    (0..COUNT)
        .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((host, *port)).is_ok())
        .expect("a port between 20000 and 32000 is free")
}
