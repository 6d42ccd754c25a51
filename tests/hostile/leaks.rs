//! Where is a secret found that a node was given? Nowhere but in the file that it came from.
//!
//! Every secret is used in each way that there is, while each library logs all that it can. Then everything that the
//! nodes have written is searched, and what the system shows of the processes. The values of secret fields are data:
//! they are in the data directory unless it is encrypted, and in no log.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use concord_client::Tls;
use http::Method;
use serde_json::json;

use crate::{
    chaos::files::files_below,
    harness::{Client, Cluster, Node, Options, eventually, node::BINARY, tls::Authority, write_secret},
};

const CLUSTER_SECRET: &str = "cluster-secret-that-no-file-may-hold-47110815";
const WRONG_KEY: &str = "wrong-key-that-no-file-may-hold-0123456789";
const FIELD: &str = "value-of-a-secret-field-that-no-log-may-hold";
const CONFIG: &str = "/api/v1/config_definition/leaks/config/k";

/// The files below a directory in which a text is.
fn found(text: &str, directory: &Path) -> Vec<PathBuf> {
    let mut command = Command::new("grep");
    let output = command.args(["-raFl", "-e", text]).arg(directory).output().expect("there is `grep`");
    assert!(output.status.code() < Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

/// Gives a node its secrets in files.
fn with_files(node: &mut Node, secrets: &Path) {
    let root_key = node.settings["CONCORD_API_KEY"].clone();
    write_secret(&secrets.join("root.key"), &root_key);
    write_secret(&secrets.join("cluster.secret"), CLUSTER_SECRET);
    for (name, value) in [
        // An empty one counts as none.
        ("CONCORD_API_KEY", String::new()),
        ("CONCORD_CLUSTER_SECRET", String::new()),
        ("CONCORD_API_KEY_FILE", secrets.join("root.key").display().to_string()),
        ("CONCORD_CLUSTER_SECRET_FILE", secrets.join("cluster.secret").display().to_string()),
    ] {
        node.overrides.push((name.into(), value));
    }
}

/// Uses the root key over HTTP/2, whose library logs headers.
async fn use_http2(node: &Node, key: &str) {
    let tls = Tls::default().config(false).expect("no file is read");
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).http2_prior_knowledge();
    let client = client.build().expect("a client");
    for credential in [key.to_owned(), format!("Bearer {key}"), WRONG_KEY.to_owned()] {
        let url = format!("http://{}{CONFIG}", node.api_addr());
        let answer = client.get(url).header(http::header::AUTHORIZATION, credential).send().await;
        answer.expect("it is answered");
    }
}

/// Makes an access key, rotates it, and uses its texts on all nodes; the texts.
async fn use_access_key(clients: &[Client]) -> [String; 2] {
    let text = |data: &serde_json::Value| data["api_key"].as_str().expect("its text").to_owned();
    let grants = json!([{"verbs": ["read", "write"], "definitions": ["*"]}]);
    let made = clients[0].post("/api/v1/api_key/", &json!({"name": "k", "grants": grants})).await.expect(201);
    let first = text(made.data());
    let path = format!("/api/v1/api_key/{}/rotate", made.data()["key_id"].as_str().expect("an id"));
    let second = text(clients[1].post(&path, &json!({"grace_s": 600})).await.expect(200).data());
    for client in clients {
        for key in [&first, &second] {
            let owner = Client::new(&client.base, key);
            owner.put(CONFIG, &json!({"data": {"pw": FIELD, "n": 5}})).await.expect(200);
            let shown = owner.get(CONFIG).await.expect(200);
            assert!(!shown.text.contains(FIELD), "it may not see the value: {shown:?}");
            // Refused, and in the audit log.
            owner.get("/api/v1/audit").await.expect(403);
        }
        // One that was never made: its last character is another one, whichever it was.
        let last = if second.ends_with('x') { 'y' } else { 'x' };
        let wrong = format!("{}{last}", &second[..second.len() - 1]);
        client.bare(Method::GET, CONFIG).header("authorization", &wrong).await.expect(401);
    }
    [first, second]
}

/// Writes and reads a config with a secret value in all ways, right and wrong ones.
async fn use_field(cluster: &Cluster) {
    let schema = json!({
        "properties": {"pw": {"x-concord-secret": true, "type": "string"}, "n": {"type": "integer"}},
        "additionalProperties": false
    });
    let definition = json!({"config_definition_key": "leaks", "indexes": ["n"], "json_schema": schema});
    cluster.client(1).post("/api/v1/config_definition/", &definition).await.expect(201);
    let body = json!({"config_key": "k", "data": {"pw": FIELD, "n": 1}});
    cluster.client(2).post("/api/v1/config_definition/leaks/config/", &body).await.expect(201);
    for client in cluster.clients() {
        client.put(CONFIG, &json!({"data": {"pw": FIELD, "n": 2}})).await.expect(200);
        client.put(CONFIG, &json!({"data": {"pw": {"$concord-keep": true}, "n": 3}})).await.expect(200);
        let patch = client.call(Method::PATCH, CONFIG).text("application/merge-patch+json", r#"{"n": 4}"#);
        patch.await.expect(200);
        // Refusals quote what is wrong, but not this.
        let refused = client.put(CONFIG, &json!({"data": {"pw": [FIELD], "n": "x", "more": FIELD}})).await;
        let text = refused.text.clone();
        refused.invalid();
        assert!(!text.contains(FIELD), "{text}");
        let answer = client.get(CONFIG).await.expect(200);
        assert!(answer.text.contains(FIELD), "the owner of the root key sees it");
        client.get(&format!("{CONFIG}/history")).await.expect(200);
        client.bare(Method::GET, CONFIG).header("authorization", WRONG_KEY).await.expect(401);
    }
}

/// A line in the middle of a file with a key.
fn line_of(file: &Path) -> String {
    let text = std::fs::read_to_string(file).expect("it was made");
    text.lines().find(|line| !line.starts_with(['-', '#'])).expect("a key has a line").to_owned()
}

/// Keys for encrypted backups: the recipient, the file of the signing key, and that of the identity.
fn backup_keys(directory: &Path) -> (String, PathBuf, PathBuf) {
    let [signing, identity] = ["signing", "identity"].map(|kind| {
        let file = directory.join(kind);
        let output = Command::new(BINARY.as_path()).args(["keygen", kind, "--out"]).arg(&file).output();
        (output.expect("the binary can be started"), file)
    });
    let shown: serde_json::Value = serde_json::from_slice(&identity.0.stdout).expect("JSON");
    (shown["recipient"].as_str().expect("a text").to_owned(), signing.1, identity.1)
}

#[tokio::test]
async fn no_secret_is_in_files_logs_or_what_is_seen_of_a_process() {
    search("leaks", Options::default()).await;
}

#[tokio::test]
async fn with_encryption_no_secret_value_is_in_the_data_directory() {
    search("leaks-encrypted", Options::default().encrypted()).await;
}

async fn search(name: &str, options: Options) {
    let log = "trace,openraft=trace,raft_log=trace,chunked_wal=trace,h2=trace,hyper=trace,reqwest=trace";
    let (options, is_encrypted) = (options.with("CONCORD_LOG", log), name == "leaks-encrypted");
    let secrets = tempfile::tempdir().expect("a directory");
    // With encryption a node hands out no backup in clear either.
    let sealed = is_encrypted.then(|| backup_keys(secrets.path()));
    let options = sealed.iter().fold(options, |options, (recipient, signing, _)| {
        options
            .with("CONCORD_BACKUP_RECIPIENTS", recipient)
            .with("CONCORD_BACKUP_SIGNING_KEY_FILE", signing.to_str().expect("a path of ASCII"))
    });
    let authority = Authority::new(secrets.path(), "authority");
    let (given, own) = (secrets.path().to_owned(), authority.clone());
    let mut cluster = Cluster::start_prepared(name, &options, move |_, nodes| {
        nodes.iter_mut().for_each(|node| {
            with_files(node, &given);
            own.equip(node);
        });
    })
    .await;
    let root_key = cluster.nodes[0].settings["CONCORD_API_KEY"].clone();

    use_field(&cluster).await;
    for node in &cluster.nodes {
        use_http2(node, &root_key).await;
    }
    let access_keys = use_access_key(&cluster.clients()).await;
    let backup = cluster.client(3).get("/api/v1/cluster/backup").open().await.expect("a backup");
    let backup = backup.bytes().await.expect("the whole of it");
    std::fs::write(cluster.root().join("taken.backup"), &backup).expect("the file can be written");

    let files = [authority.directory.join("ca.key"), authority.directory.join("peer-1/node-1.key")];
    let certificate_keys = files.map(|file| line_of(&file));
    let mut used = vec![root_key.as_str(), CLUSTER_SECRET, WRONG_KEY];
    used.extend(access_keys.iter().chain(&certificate_keys).map(String::as_str));
    let backup_secrets = sealed.map(|(_, signing, identity)| [signing, identity].map(|file| line_of(&file)));
    used.extend(backup_secrets.iter().flatten().map(String::as_str));
    cluster.nodes.iter().for_each(|node| look_at_process(node, &used));
    // Snapshots and sled are written at the end.
    for node in &mut cluster.nodes {
        assert!(node.stop().await.success());
    }
    let logs = eventually("the logs are written", async || {
        let said = found("ended", cluster.root());
        if said.len() >= 3 { Ok(said) } else { Err(format!("{said:?}")) }
    })
    .await;
    assert!(logs.len() >= 3 && !found("TRACE", cluster.root()).is_empty(), "everything was logged");
    look_at_files(&cluster, &used, is_encrypted);
}

/// What the system shows of a process.
fn look_at_process(node: &Node, secrets: &[&str]) {
    for name in ["environ", "cmdline"] {
        // Where the system does not let anybody but root look, there is nothing to find.
        let Ok(shown) = std::fs::read(format!("/proc/{}/{name}", node.pid())) else { continue };
        let shown = String::from_utf8_lossy(&shown);
        assert!(shown.contains("concord") || shown.contains("CONCORD"), "it is the node's: {shown}");
        assert!(!secrets.iter().any(|secret| shown.contains(secret)), "{name} of node {}: {shown}", node.id);
    }
}

/// What is on the disk when all nodes have ended.
fn look_at_files(cluster: &Cluster, secrets: &[&str], is_encrypted: bool) {
    for secret in secrets {
        assert_eq!(found(secret, cluster.root()), Vec::<PathBuf>::new(), "{secret}");
    }
    if is_encrypted {
        // The data key is in the file that it came from, and nowhere else; nor are its bytes.
        let file = cluster.root().join("data-keys");
        let text = line_of(&file);
        assert_eq!(found(&text, cluster.root()), [file], "the data key");
        let bytes = STANDARD.decode(&text).expect("base64");
        let holds = |path: &PathBuf| {
            std::fs::read(path).expect("it can be read").windows(bytes.len()).any(|part| part == bytes)
        };
        let holding: Vec<_> = files_below(cluster.root()).into_iter().filter(holds).collect();
        assert!(holding.is_empty(), "the data key as bytes: {holding:?}");
    }
    let with_field = found(FIELD, cluster.root());
    assert!(is_encrypted || !with_field.is_empty(), "data are where data belong");
    // Without encryption the backup was taken in clear.
    let is_allowed = |path: &Path| match path.extension().and_then(|end| end.to_str()) {
        Some("backup") => !is_encrypted,
        Some("txt") => false,
        _ => !is_encrypted && !path.components().any(|part| part.as_os_str() == "audit"),
    };
    let elsewhere: Vec<_> = with_field.iter().filter(|path| !is_allowed(path)).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}
