//! One binary for all targets, because each links for a minute: `FUZZ_TARGET` names the one that runs.
#![no_main]

use std::sync::LazyLock;

use concord::fuzz_targets::{Target, named};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    named(&name).expect("FUZZ_TARGET names a target of src/fuzz_targets")
});

fuzz_target!(|bytes: &[u8]| {
    let _: bool = (TARGET.run)(bytes);
});
