//! What the tests share: node processes, clusters of them, a client, and waiting for a condition.

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod cluster;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod document;
pub(crate) mod event;
pub(crate) mod load;
pub(crate) mod node;
pub(crate) mod pace;
pub(crate) mod ports;
pub(crate) mod time;
pub(crate) mod tls;
pub(crate) mod watch;
pub(crate) mod webhook;

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{Duration, Instant},
};

pub(crate) use answer::Answer;
pub(crate) use client::{Call, Client};
pub(crate) use cluster::{Cluster, Options};
pub(crate) use node::Node;
use time::pace;

/// How long a condition may take to become true. Far longer than it takes: a busy machine must not fail a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);
/// The pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(25);

/// Waits until `probe` returns a value; its error says what is still missing.
pub(crate) async fn eventually<T>(what: &str, probe: impl AsyncFnMut() -> Result<T, String>) -> T {
    match within(DEADLINE, probe).await {
        Ok(value) => value,
        Err(why) => panic!("{what}: not after {DEADLINE:?}: {why}"),
    }
}

/// The value that `probe` gives before the deadline, or its last error.
pub(crate) async fn within<T>(
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let end = Instant::now() + deadline;
    loop {
        let why = match probe().await {
            Ok(value) => return Ok(value),
            Err(why) => why,
        };
        if Instant::now() >= end {
            return Err(why);
        }
        pace(PAUSE).await;
    }
}

/// Says what happens in a run with faults, so many nanoseconds after its start.
pub(crate) fn tell(at: u64, text: &str) {
    eprintln!("{:>8.1} s  {text}", at as f64 / 1e9);
}

/// A number from the environment, a setting of the run.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var_os(name).and_then(|text| text.to_str()?.parse().ok())
}

/// A condition as the result that [`eventually`] waits for.
pub(crate) fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// A file of data keys under a directory, made at the first call.
pub(crate) fn data_keys(root: &Path) -> PathBuf {
    let file = root.join("data-keys");
    if !file.exists() {
        write_secret(&file, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n");
    }
    file
}

/// Writes a file that only this user may read.
pub(crate) fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the file can be written");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("it is ours");
}

/// What stands in the settings of nodes that get a file of data keys. It is no setting of theirs.
pub(crate) const ENCRYPTED: &str = "ENCRYPTED";

/// Whether the nodes of all tests get a file of data keys: `ENCRYPTED=1`.
pub(crate) fn is_encrypted() -> bool {
    number(ENCRYPTED).is_some_and(|number| number > 0)
}

/// A fresh directory for one cluster. It lies under `target/`, so it is on a real disk and `cargo clean` ends it.
pub(crate) fn fresh_directory(name: &str) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(ROOT.as_path())
        .expect("a directory under target/tmp can be made")
}

/// This process's directory. What killed test processes left is removed.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix("run-"));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another test process may remove it at the same time; a directory that stays does no harm.
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
    let mine = all.join(format!("run-{}", std::process::id()));
    std::fs::create_dir_all(&mine).expect("target/tmp is writable");
    mine
});
