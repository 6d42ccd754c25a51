//! The older service's client library from `PyPI` works unchanged against each of our nodes.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

use serde_json::json;

use crate::{
    harness::{Cluster, Node},
    hostile::grants::{create_key, known},
};

/// A Python environment with the library, made once below `target/`.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tartarus-lib-0.1.1");
    let python = directory.join("bin/python");
    let done = directory.join("installed");
    if !done.is_file() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "5"];
        run(Command::new(&python).args(pip).arg("tartarus-lib==0.1.1"));
        std::fs::write(&done, "").expect("the directory was just made");
    }
    python
});

fn run(command: &mut Command) {
    let Output { status, stdout, stderr } = command.output().expect("the program can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{}{}", text(&stdout), text(&stderr));
}

#[tokio::test]
async fn the_older_services_client_works_against_every_node() {
    let cluster = Cluster::start("older-client").await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tartarus_client.py");
    for Node { id, settings, api_port, .. } in &cluster.nodes {
        let mut command = Command::new(PYTHON.as_path());
        command.arg(&script).arg(format!("http://127.0.0.1:{api_port}"));
        command.arg(&settings["CONCORD_API_KEY"]).arg(format!("older{id}")).env("NO_PROXY", "*");
        tokio::task::spawn_blocking(move || run(&mut command)).await.expect("the script runs through");
    }
    // The same with an access key that has just the rights that it needs.
    let grants = json!([{"verbs": ["read", "write", "define", "delete"], "definitions": ["stored*"]}]);
    let (_, key) = create_key(&cluster.client(1), &grants, &json!({})).await;
    known(&cluster.clients(), &key, true).await;
    for Node { id, api_port, .. } in &cluster.nodes {
        let mut command = Command::new(PYTHON.as_path());
        command.arg(&script).arg(format!("http://127.0.0.1:{api_port}")).arg(&key);
        command.arg(format!("stored{id}")).env("NO_PROXY", "*");
        tokio::task::spawn_blocking(move || run(&mut command)).await.expect("the script runs through");
    }
}
