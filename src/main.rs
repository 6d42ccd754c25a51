//! The binary: the allocator, and the command line.

use std::process::ExitCode;

/// The write path is mostly allocation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    concord::cli::run()
}
