//! Files of TLS that a node refuses to start with, and certificates that end.

use std::path::Path;

use serde_json::json;

use super::encrypted;
use crate::harness::{
    Node, Options, check, eventually, fresh_directory,
    tls::{Authority, cert, replace},
};

/// Asserts that the node ends by itself, as with a wrong setting, and says why with these words.
async fn refuses(node: &mut Node, words: &[&str]) {
    node.launch();
    let status = node.ended().await;
    // By this code a supervisor knows that it need not start the node again.
    assert_eq!(status.code(), Some(2), "node {}", node.id);
    let text = node.tail(30);
    for word in words {
        assert!(text.contains(word), "no `{word}` in:\n{text}");
    }
}

#[tokio::test]
async fn a_node_says_which_file_is_wrong() {
    let root = fresh_directory("tls-files");
    let (one, other) = (Authority::new(root.path(), "one"), Authority::new(root.path(), "other"));
    let mine = |id: u64| {
        let mut node = Node::new(id, root.path(), &Options::default().settings);
        super::equip(&one, &mut node);
        node
    };
    let good = mine(1);
    let wrong = |name: &str, value: &Path| {
        let mut node = Node::new(1, root.path(), &good.settings);
        node.settings.insert(name.into(), value.to_str().unwrap().into());
        node
    };
    let missing = root.path().join("nowhere.pem");
    let foreign = other.certify(1, "foreign", &[]);
    for name in
        ["CONCORD_TLS_CERT_FILE", "CONCORD_TLS_KEY_FILE", "CONCORD_PEER_CERT_FILE", "CONCORD_PEER_CA_FILE"]
    {
        refuses(&mut wrong(name, &missing), &["nowhere.pem", "No such file"]).await;
    }
    for name in ["CONCORD_TLS_KEY_FILE", "CONCORD_PEER_KEY_FILE"] {
        refuses(&mut wrong(name, &foreign.1), &["is not the key of the certificate", "node-1.key"]).await;
        refuses(&mut wrong(name, &foreign.0), &["no private key"]).await;
    }
    refuses(&mut wrong("CONCORD_PEER_CA_FILE", &foreign.0), &["not a CA certificate"]).await;
    let garbage = root.path().join("garbage");
    std::fs::write(&garbage, "node-3").unwrap();
    refuses(&mut wrong("CONCORD_PEER_REVOKED_FILE", &garbage), &["line 1", "matches no certificate"]).await;
    let mut as_another = mine(2);
    as_another.id = 3;
    refuses(&mut as_another, &["is the certificate of node-2.test", "this is node 3"]).await;
    let mut of_another = mine(4);
    std::fs::create_dir_all(&of_another.directory).unwrap();
    let identity = json!({"cluster_id": uuid::Uuid::from_u128(7), "node_id": 9, "format": 1});
    std::fs::write(of_another.directory.join("identity.json"), identity.to_string()).unwrap();
    refuses(&mut of_another, &["identity.json names node 9, but this is node 4"]).await;
    for (name, without) in
        [("CONCORD_TLS_CERT_FILE", "--tls-key-file"), ("CONCORD_PEER_CA_FILE", "--peer-cert-file")]
    {
        let mut node = wrong(name, &missing);
        node.settings.remove(name);
        refuses(&mut node, &[without, "together"]).await;
    }
}

#[tokio::test]
async fn a_listener_that_others_reach_is_encrypted_or_said_not_to_be() {
    let root = fresh_directory("tls-loopback");
    let mut node = Node::new(1, root.path(), &Options::default().settings);
    let (api, peer) = (format!("0.0.0.0:{}", node.api_port), format!("0.0.0.0:{}", node.peer_port));
    for (name, address) in [("CONCORD_API_ADDR", &api), ("CONCORD_PEER_ADDR", &peer)] {
        node.overrides = vec![(name.into(), address.clone())];
        refuses(&mut node, &[address, "not encrypted", "CONCORD_INSECURE"]).await;
    }
    node.overrides =
        [("CONCORD_API_ADDR", api.as_str()), ("CONCORD_PEER_ADDR", &peer), ("CONCORD_INSECURE", "true")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    node.start().await;
}

#[tokio::test]
async fn a_certificate_that_ends_is_an_alarm_until_another_takes_its_place() {
    let (mut cluster, authority) = encrypted("tls-ending", &Options::default()).await;
    let client = cluster.client(1);
    let alarms = async || -> Result<Vec<String>, String> {
        let status = client.status().await?;
        let all = status["alarms"].as_array().ok_or("no alarms")?;
        let ours = all.iter().filter(|alarm| alarm["type"] == "certificate" && alarm["node_id"] == 1);
        Ok(ours.map(|alarm| alarm["message"].to_string()).collect())
    };
    assert_eq!(alarms().await, Ok(Vec::new()));
    let settings = cluster.node(1).settings.clone();
    let put = |to: &str, days: &str| {
        let new = authority.certify(1, to, &["--days", days]);
        for (name, path) in [("CONCORD_PEER_KEY_FILE", new.1), ("CONCORD_PEER_CERT_FILE", new.0)] {
            replace(Path::new(&settings[name]), &std::fs::read(path).unwrap());
        }
    };
    put("short", "20");
    eventually("it is an alarm", async || {
        let alarms = alarms().await?;
        check(alarms.len() == 1 && alarms[0].contains("calls between nodes"), || format!("{alarms:?}"))
    })
    .await;
    // The line follows the alarm.
    eventually("it is logged", async || {
        let text = cluster.nodes[0].tail(200);
        let line = "the certificate of CN=node-1.test for calls between nodes";
        check(text.contains(line), || text.clone())
    })
    .await;
    put("long", "40");
    eventually("it is none any more", async || {
        let alarms = alarms().await?;
        check(alarms.is_empty(), || format!("{alarms:?}"))
    })
    .await;
    cluster.ready().await;
}

#[test]
fn certificates_are_shown_and_never_overwritten() {
    let root = fresh_directory("tls-cert");
    let authority = Authority::new(root.path(), "ca");
    let ca = authority.certificate();
    let shown = cert(&["show", ca.to_str().unwrap()]).unwrap();
    assert_eq!((&shown[0]["subject"], &shown[0]["is_authority"]), (&"CN=test".into(), &true.into()));
    assert_eq!(shown[0]["fingerprint"].as_str().map(str::len), Some(64));
    let again = cert(&["ca", "--cluster", "test", "--out", authority.directory.to_str().unwrap()]);
    assert!(again.unwrap_err().contains("already exists"));
    let (certificate, key) = authority.certify(5, "five", &[]);
    let text = std::process::Command::new("openssl")
        .args(["verify", "-CAfile"])
        .args([&ca, &certificate])
        .output()
        .expect("`openssl` is installed");
    assert!(text.status.success(), "{text:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}
