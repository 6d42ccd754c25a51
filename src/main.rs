//! The binary: sets the allocator and runs the command line.

use std::process::ExitCode;

/// Allocation dominates the cost of a write in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    concord::cli::run()
}
