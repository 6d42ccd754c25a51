//! The listener for callers over TLS.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use concord_client::Tls;
use serde_json::json;

use super::{encrypted, raw};
use crate::{
    harness::{
        Cluster, Node, Options, check, eventually,
        load::{config, define, set},
        tls::{Authority, replace},
    },
    hostile::raw::{NARROW, connections_from},
};

/// What `openssl s_client` says of a connection.
fn s_client(node: &Node, authority: &Path, more: &[&str]) -> (bool, String) {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &node.api_addr(), "-verify_return_error", "-CAfile"])
        .arg(authority)
        .args(more)
        .stdin(Stdio::null())
        .output()
        .expect("`openssl` is installed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success(), text)
}

#[tokio::test]
async fn only_good_versions_and_suites_are_spoken() {
    let (mut cluster, authority) = encrypted("tls-versions", &Options::default()).await;
    let (node, ca) = (cluster.node(1), authority.certificate());
    for (arguments, words) in [
        (&["-tls1_3"][..], &["TLSv1.3", "Verification: OK"][..]),
        (&["-tls1_2"], &["TLSv1.2", "Verification: OK"]),
        (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], &["ECDHE-ECDSA-AES128-GCM-SHA256"]),
        (&["-alpn", "h2,http/1.1"], &["ALPN protocol: h2"]),
        (&["-alpn", "http/1.1"], &["ALPN protocol: http/1.1"]),
    ] {
        let (is_good, text) = s_client(node, &ca, arguments);
        assert!(is_good && words.iter().all(|word| text.contains(word)), "{arguments:?}: {text}");
    }
    // The level 0 lets openssl offer what is refused here.
    for arguments in [
        &["-tls1", "-cipher", "ALL:@SECLEVEL=0"][..],
        &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-SHA384:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "AES128-SHA:AES256-GCM-SHA384:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "DHE-RSA-AES256-GCM-SHA384:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "eNULL:aNULL:RC4:3DES:@SECLEVEL=0"],
        &["-verify_hostname", "another.example"],
    ] {
        let (is_good, text) = s_client(node, &ca, arguments);
        assert!(!is_good, "{arguments:?}: {text}");
    }
}

/// What `sslscan` finds on an address; none where it is not installed.
async fn scanned(address: String) -> Option<String> {
    let scan = move || Command::new("sslscan").args(["--no-colour", &address]).output();
    let output = tokio::task::spawn_blocking(scan).await.expect("it does not panic").ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn a_scanner_finds_good_versions_and_suites_alone() {
    let (mut cluster, authority) = encrypted("tls-scan", &Options::default()).await;
    let node = cluster.node(1);
    let Some(callers) = scanned(node.api_addr()).await else {
        eprintln!("SKIPPED: `sslscan` is not installed");
        return;
    };
    let nodes = scanned(node.peer_addr()).await.expect("it has run");
    for (text, version) in [(&callers, "TLSv1.2"), (&callers, "TLSv1.3"), (&nodes, "TLSv1.3")] {
        let is_spoken = |line: &str| line.starts_with(version) && line.ends_with("enabled");
        assert!(text.lines().any(is_spoken), "{version}: {text}");
    }
    for text in [&callers, &nodes] {
        for version in ["SSLv2", "SSLv3", "TLSv1.0", "TLSv1.1"] {
            let is_refused = |line: &str| line.starts_with(version) && line.ends_with("disabled");
            assert!(text.lines().any(is_refused), "{version}: {text}");
        }
        let suites =
            text.lines().filter(|line| ["Preferred", "Accepted"].iter().any(|word| line.starts_with(word)));
        for suite in suites {
            let is_good = ["_GCM_", "-GCM-", "CHACHA20"].iter().any(|word| suite.contains(word));
            assert!(is_good && !suite.contains(" RSA"), "{suite}");
        }
        assert!(!text.contains("renegotiation supported") && !text.contains("Compression enabled"), "{text}");
    }
    let count = callers.lines().filter(|line| line.contains(" bits ") && line.contains("GCM")).count();
    assert!(count >= 4, "the suites of both versions are found: {callers}");
    // Whom it has scanned goes on.
    let (is_good, text) = s_client(cluster.node(1), &authority.certificate(), &[]);
    assert!(is_good, "{text}");
    cluster.ready().await;
}

#[tokio::test]
async fn both_versions_of_http_work_with_large_bodies_and_watches() {
    let (mut cluster, authority) = encrypted("tls-http", &Options::default()).await;
    let client = cluster.client(2);
    define(&client, "d").await;
    let large = "x".repeat(900 << 10);
    set(&client, "d", "large", &json!({ "text": large })).await;
    let read = cluster.client(3).get(&config("d", "large")).insist().await.expect(200);
    assert_eq!(read.data()["data"]["text"], large);
    // curl, as callers have it.
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://{}{}", cluster.node(1).api_addr(), config("d", "large"));
        let key = format!("authorization: {}", client.key);
        let output = Command::new("curl")
            .args(["-sS", version, "-H", &key, "-w", "%{http_version}", "--cacert"])
            .arg(authority.certificate())
            .arg(&url)
            .output()
            .expect("`curl` is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&large) && output.status.success(), "{version}: {output:?}");
        assert!(text.ends_with(if version == "--http2" { "}2" } else { "}1.1" }), "{version}");
    }
    let mut watch = client.watch(&[("definition", "d")], None).await;
    set(&cluster.client(1), "d", "watched", &json!({"n": 1})).await;
    assert_eq!(watch.changes(1).await.len(), 1);
    // A node that ends tells its watches so, over TLS as over plain connections.
    cluster.node(2).terminate();
    let ended = async {
        while let Some(event) = watch.next().await? {
            drop(event);
        }
        Ok::<_, String>(())
    };
    ended.await.expect("the stream ends in order");
    assert!(cluster.node(2).ended().await.success());
    cluster.node(2).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    let plain = raw::ask_plainly(api(cluster.node(1)), "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(!plain.as_ref().is_ok_and(|line| line.starts_with("HTTP/")), "{plain:?}");
}

fn api(node: &Node) -> std::net::SocketAddr {
    node.api_addr().parse().expect("an address")
}

#[tokio::test]
async fn silent_handshakes_hurt_nobody() {
    let (mut cluster, _authority) = encrypted("tls-silent", &Options::default()).await;
    let _alone = crate::hostile::raw::many_connections().await;
    let to = api(cluster.node(1));
    let mut strangers = Vec::new();
    for count in 0..500 {
        // Nothing, a record's head, and a record that never ends.
        let beginning: &[u8] =
            [&b""[..], b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"][count % 3];
        strangers.push(raw::silent(to, beginning).await);
    }
    let client = cluster.client(1);
    define(&client, "d").await;
    for n in 0..50 {
        // A connection of its own each time.
        let fresh = cluster.client(1);
        set(&fresh, "d", "k", &json!({ "n": n })).await;
        assert_eq!(fresh.get(&config("d", "k")).await.expect(200).data()["data"]["n"], n);
    }
    let closed = futures::future::join_all(strangers.into_iter().map(raw::is_closed)).await;
    assert!(closed.into_iter().all(|is_closed| is_closed), "a silent handshake stays open");
    cluster.ready().await;
}

#[tokio::test]
async fn a_caller_that_does_not_read_is_cut_off_over_tls_too() {
    let options = Options::default().with("CONCORD_SEND_TIMEOUT_MS", "1000");
    let (mut cluster, _authority) = encrypted("tls-unread", &options).await;
    let client = cluster.client(1);
    define(&client, "large").await;
    for n in 0..20 {
        set(&client, "large", &format!("k{n}"), &json!({"text": "y".repeat(800_000)})).await;
    }
    // 16 MB: more than the kernel takes for a reader that takes nothing.
    let list = "GET /api/v1/config_definition/large/config?limit=100";
    let request = format!("{list} HTTP/1.1\r\nhost: a\r\nauthorization: {}\r\n\r\n", client.key);
    let to = api(cluster.node(1));
    let unread = raw::ask_only(to, &request).await;
    eventually("the node has closed its side", async || {
        let open = connections_from(NARROW, to.port());
        check(open == 0, || format!("{open} connections"))
    })
    .await;
    let came = raw::rest(unread).await;
    assert!(came > 0 && came < 16_000_000, "{came} bytes");
    client.get(&config("large", "k0")).insist().await.expect(200);
    cluster.ready().await;
}

#[tokio::test]
async fn certificates_are_swapped_under_load_without_a_failed_request() {
    let (mut cluster, authority) = encrypted("tls-swap", &Options::default()).await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(1), "d", "k", &json!({"n": 0})).await;
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut workers = Vec::new();
    for worker in 0..4 {
        let (stop, asked, id) = (Arc::clone(&stop), Arc::clone(&asked), worker % 3 + 1);
        let (kept, node) = (cluster.client(id), cluster.node(id).client());
        workers.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                // On a connection that stays, and on a new one.
                let fresh = node.anew();
                for client in [&kept, &fresh] {
                    let answer = client.get(&config("d", "k")).attempt().await.expect("no request fails");
                    assert_eq!(answer.status, 200, "{answer:?}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    let mut serials = Vec::new();
    for turn in 0..4 {
        let new = authority.certify(1, &format!("swap-{turn}"), &[]);
        let node = cluster.node(1);
        let (certificate, key) =
            (node.settings["CONCORD_TLS_CERT_FILE"].clone(), node.settings["CONCORD_TLS_KEY_FILE"].clone());
        replace(Path::new(&key), &std::fs::read(&new.1).unwrap());
        replace(Path::new(&certificate), &std::fs::read(&new.0).unwrap());
        let expected = serial(&new.0);
        let ca = authority.certificate();
        eventually("the new certificate is shown", async || {
            let (_, text) = s_client(cluster.node(1), &ca, &[]);
            check(shown_serial(&text).as_deref() == Some(&expected), || text)
        })
        .await;
        serials.push(expected);
        let before = asked.load(Ordering::Relaxed);
        eventually("requests go on", async || {
            check(asked.load(Ordering::Relaxed) > before + 20, || "too few".into())
        })
        .await;
    }
    serials.dedup();
    assert_eq!(serials.len(), 4);
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no request has failed");
    }
    // A broken file changes nothing, and the log says so.
    let certificate = cluster.node(1).settings["CONCORD_TLS_CERT_FILE"].clone();
    replace(Path::new(&certificate), b"no certificate");
    eventually("the log says so", async || {
        let text = cluster.node(1).tail(30);
        check(text.contains("the previous ones stay in use"), || text)
    })
    .await;
    let (is_good, text) = s_client(cluster.node(1), &authority.certificate(), &[]);
    assert!(is_good && shown_serial(&text).as_ref() == serials.last(), "{text}");
}

fn serial(certificate: &Path) -> String {
    let shown = crate::harness::tls::cert(&["show", certificate.to_str().unwrap()]).unwrap();
    shown[0]["serial"].as_str().unwrap().to_owned()
}

/// The serial of the certificate that a connection has shown.
fn shown_serial(s_client: &str) -> Option<String> {
    let begin = s_client.find("-----BEGIN CERTIFICATE-----")?;
    let end = s_client.find("-----END CERTIFICATE-----")? + "-----END CERTIFICATE-----".len();
    let file = tempfile::NamedTempFile::new().ok()?;
    std::fs::write(file.path(), s_client.get(begin..end)?).ok()?;
    Some(serial(file.path()))
}

#[tokio::test]
async fn callers_show_a_certificate_where_it_is_asked_for() {
    let options = Options::default();
    let mut made = None;
    let mut cluster = Cluster::start_prepared("tls-mutual", &options, |root, _| {
        made = Some((
            Authority::new(root, "nodes"),
            Authority::new(root, "callers"),
            Authority::new(root, "foreign"),
        ));
    })
    .await;
    let (nodes, callers, foreign) = made.expect("it was prepared");
    let node = cluster.node(3);
    assert!(node.stop().await.success());
    nodes.equip_for_callers(node);
    let ca = callers.certificate().to_str().unwrap().to_owned();
    node.settings.insert("CONCORD_TLS_CLIENT_CA_FILE".into(), ca);
    node.launch();
    let url = format!("https://{}/livez", node.api_addr());
    let ask = async |own: Option<(&Authority, &str)>| {
        let own = own.map(|(authority, to)| authority.certify(7, to, &[]));
        let tls = Tls { authority: Some(nodes.certificate()), own }.config(true).unwrap();
        let http = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
        http.get(&url).send().await.map(|answer| answer.status().as_u16())
    };
    let good = callers.certify(7, "good", &[]);
    let tls = Tls { authority: Some(nodes.certificate()), own: Some(good) }.config(true).unwrap();
    let http = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
    eventually("a caller with a certificate is answered", async || {
        let answer = http.get(&url).send().await.map_err(|error| format!("{error:?}"))?;
        check(answer.status() == 200, || format!("{answer:?}"))
    })
    .await;
    assert!(ask(None).await.is_err(), "without a certificate");
    // Both authorities have the same name. The log has at most one line a second.
    let own = foreign.certify(7, "foreign", &[]);
    let tls = Tls { authority: Some(nodes.certificate()), own: Some(own) }.config(true).unwrap();
    let http = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
    eventually("the node says whose certificate it rejects, and why", async || {
        assert!(http.get(&url).send().await.is_err(), "of another authority");
        let log = node.tail(20);
        let is_named = |line: &str| {
            line.contains("rejected the certificate of the client 127.0.0.1")
                && line.contains("no CA that this node trusts")
        };
        check(log.lines().any(is_named), || log.clone())
    })
    .await;
    assert!(ask(Some((&callers, "again"))).await.is_ok_and(|status| status == 200));
}

#[tokio::test]
async fn the_command_line_speaks_tls() {
    let (mut cluster, authority) = encrypted("tls-cli", &Options::default()).await;
    let (url, key) = (format!("https://{}", cluster.node(1).api_addr()), cluster.client(1).key);
    let run = async |more: &[&str]| {
        let mut command = Command::new(crate::harness::node::BINARY.as_path());
        command.args(["status", "--url", &url, "--api-key", &key]).args(more);
        let run = tokio::task::spawn_blocking(move || command.output().expect("it can be started"));
        run.await.expect("it does not panic")
    };
    let ca = authority.certificate();
    let good = run(&["--cacert", ca.to_str().unwrap()]).await;
    assert!(good.status.success() && good.stdout.starts_with(b"{"), "{good:?}");
    let untrusted = run(&[]).await;
    assert!(!untrusted.status.success(), "this machine does not trust it: {untrusted:?}");
    let half = run(&["--cert", ca.to_str().unwrap()]).await;
    assert_eq!(half.status.code(), Some(2), "{half:?}");
}
