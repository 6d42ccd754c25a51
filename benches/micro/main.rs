//! What the pieces of a request cost, without a cluster around them: `cargo bench`, or `cargo bench -- apply`.
//!
//! As a test (`cargo test --benches`) each runs once. **Invariant:** a bench measures what the service calls, through
//! the same public items; where that is another crate's (`log`), set up in the same way.

mod answer;
mod client;
mod data;
mod log;
mod mirror;
mod request;
mod state;

/// The allocator of the service: much of what is measured is allocation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}
