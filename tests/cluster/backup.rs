//! A backup is whole, a damaged one is found, and a restored cluster has the same records and higher revisions.

use std::{
    io,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::change_requests::{CHANGES, act, becomes, create_timed, restricted, text, time};
use crate::harness::{
    Client, Cluster, Node, Options, check, eventually,
    load::{Load, config, define, everything, set},
    time::must_not_happen,
};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_concord"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONCORD_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

fn concord(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the binary can be started")
}

fn shown(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).expect("JSON on the standard output")
}

fn verify(path: &Path) -> Output {
    concord(&["verify", path.to_str().unwrap()])
}

/// Runs the binary on a thread for blocking work: it calls nodes whose clients live on this thread.
async fn command(arguments: Vec<String>) -> Output {
    let called = tokio::task::spawn_blocking(move || {
        concord(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    });
    called.await.unwrap()
}

async fn back_up(node: &Node, to: &Path) -> Value {
    let (url, key) = (format!("http://{}", node.api_addr()), node.settings["CONCORD_API_KEY"].clone());
    let arguments = ["backup", "--url", &url, "--api-key", &key, "--out", to.to_str().unwrap()];
    shown(&command(arguments.map(str::to_owned).to_vec()).await)
}

#[tokio::test]
async fn a_backup_under_load_is_restored_as_a_new_cluster() {
    let mut cluster = Cluster::start("backup").await;
    define(&cluster.client(1), "fixed").await;
    for n in 0..20 {
        set(&cluster.client(1), "fixed", &format!("k{n}"), &json!({"n": n, "exact": 1e3})).await;
    }
    let fixed = everything(&cluster.client(1), "fixed").await;
    let mut load = Load::start(&cluster.clients(), "load").await;
    load.grows_by(50).await;
    let file = cluster.root().join("under-load.backup");
    let follower = cluster.followers().await[0];
    let known = cluster.client(follower).status().await.unwrap()["revision"].as_u64().unwrap();
    let backup = back_up(cluster.node(follower), &file).await;
    load.stop().await;
    assert!(backup["revision"].as_u64().unwrap() >= known, "{backup}");
    assert_eq!(shown(&verify(&file)), backup);

    // Without writes the backups of all nodes hold the same.
    let digest = cluster.equal_digests().await;
    let all = everything(&cluster.client(1), "load").await;
    let still = cluster.root().join("still.backup");
    for node in &cluster.nodes {
        assert_eq!(back_up(node, &still).await["digest"], json!(digest));
    }
    let still_shown = shown(&verify(&still));
    assert_eq!(still_shown["configs"], json!(all.len() + fixed.len()));

    // The old cluster goes on, and a caller remembers the entity tag.
    set(&cluster.client(1), "fixed", "k1", &json!({"n": "after the backup"})).await;
    let old_tag = cluster.client(1).get(&config("fixed", "k1")).insist().await.tag();

    // A new cluster of one node starts from it, at a higher revision.
    let settings = cluster.nodes[0].settings.clone();
    let mut first = Node::new(7, cluster.root(), &settings);
    let named = format!("7={}@{}", first.api_addr(), first.peer_addr());
    let directory = first.directory.to_str().unwrap().to_owned();
    let restore =
        ["restore", "--from", still.to_str().unwrap(), "--data-dir", &directory, "--member", &named];
    let restored = shown(&concord(&restore));
    assert_eq!(restored["digest"], json!(digest));
    assert_eq!(concord(&restore).status.code(), Some(1), "the directory is not empty");
    cluster.kill_all();
    first.start().await;
    let client = first.client();
    eventually("the restored node serves", async || {
        let answer = client.bare(http::Method::GET, "/readyz").attempt().await?;
        check(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    let view = client.status().await.unwrap();
    assert_eq!((&view["cluster_id"], &view["digest"]), (&restored["cluster_id"], &json!(digest)));
    let revision = restored["revision"].as_u64().unwrap();
    assert!(view["revision"].as_u64().unwrap() > revision, "{view}");
    assert_eq!(everything(&client, "load").await, all);
    load.is_kept_by(&client).await;
    // The backup holds the state, not its history.
    // Whatever the old cluster did after the backup, its revisions are none of the new one's.
    assert!(revision > still_shown["revision"].as_u64().unwrap() + 1_000_000, "{restored}");
    let old_revision = old_tag.trim_matches('"').parse::<u64>().unwrap();
    assert!(revision > old_revision, "{restored}, and the old cluster gave out {old_tag}");
    let conditional = client.put(&config("fixed", "k1"), &json!({"data": {}})).header("if-match", &old_tag);
    conditional.insist().await.refused(412, "precondition_failed");
    let old_watch =
        client.get("/api/v1/watch").query(&[("from", &(known + 1_000_000).to_string())]).insist().await;
    old_watch.refused(410, "expired_error");
    let earlier = client.get(&config("fixed", "k0")).query(&[("revision", "1")]).insist().await;
    earlier.refused(410, "expired_error");
    let history = client.get(&format!("{}/history", config("fixed", "k0"))).insist().await.expect(200);
    assert_eq!(
        (&history.data()["results"], &history.data()["meta"]["floor"]),
        (&json!([]), &json!(revision))
    );
    set(&client, "fixed", "k0", &json!({"n": "new"})).await;
    let answer = client.get(&config("fixed", "k0")).insist().await;
    assert!(answer.tag().trim_matches('"').parse::<u64>().unwrap() > revision);

    // It takes members as any other, and comes back after a kill.
    let mut second = Node::new(8, cluster.root(), &settings);
    second.start_anywhere().await;
    let added = client.post("/api/v1/cluster/members", &second.as_member()).insist().await;
    assert!(matches!(added.status, 200 | 201), "{added:?}");
    client.post("/api/v1/cluster/members/8/promote", &json!({})).insist().await.expect(200);
    first.kill();
    first.start().await;
    for node in [&first, &second] {
        let mut expected = fixed.clone();
        expected.insert("k0".into(), json!({"n": "new"}));
        assert_eq!(everything(&node.client(), "fixed").await, expected);
        assert_eq!(everything(&node.client(), "load").await, all);
    }
}

#[tokio::test]
async fn a_damaged_backup_is_found() {
    let cluster = Cluster::start("damaged").await;
    define(&cluster.client(1), "d").await;
    for n in 0..10 {
        set(&cluster.client(1), "d", &format!("k{n}"), &json!({"n": n})).await;
    }
    let file = cluster.root().join("whole.backup");
    back_up(&cluster.nodes[2], &file).await;
    let whole = std::fs::read(&file).unwrap();
    let copy = cluster.root().join("damaged.backup");
    for place in (0..whole.len()).step_by(whole.len() / 8) {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        std::fs::write(&copy, &bytes).unwrap();
        assert_eq!(verify(&copy).status.code(), Some(1), "a flipped bit at {place}");
    }
    std::fs::write(&copy, &whole[..whole.len() - 1]).unwrap();
    let (cut, directory) = (copy.to_str().unwrap(), cluster.root().join("restored"));
    assert_eq!(verify(&copy).status.code(), Some(1), "a cut file");
    let restore =
        ["restore", "--from", cut, "--data-dir", directory.to_str().unwrap(), "--member", "1=a:1@b:2"];
    assert_eq!(concord(&restore).status.code(), Some(1));
    assert!(!directory.join("identity.json").exists());

    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let unread = program(&["verify", file.to_str().unwrap()]).stdout(writer).output().unwrap();
    assert!(unread.status.success() && unread.stderr.is_empty(), "nobody reads the result: {unread:?}");
}

/// Makes an access key, which a backup holds.
async fn make_key(client: &Client) {
    let key = json!({"name": "reader", "grants": [{"verbs": ["read"], "definitions": ["*"]}]});
    client.post("/api/v1/api_key/", &key).await.expect(201);
}

#[tokio::test]
async fn an_encrypted_backup_is_restored_by_whom_it_is_for_and_from_whom_it_must_be() {
    let cluster = Cluster::start("sealed-backup").await;
    define(&cluster.client(1), "secrets").await;
    for n in 0..30 {
        let data = json!({"text": format!("a-telling-value-{n}").repeat(10)});
        set(&cluster.client(1), "secrets", &format!("k{n}"), &data).await;
    }
    make_key(&cluster.client(1)).await;
    let at = |name: &str| cluster.root().join(name).to_str().unwrap().to_owned();
    let made = |kind: &str, name: &str| shown(&concord(&["keygen", kind, "--out", &at(name)]));
    let recipient = made("identity", "identity")["recipient"].as_str().unwrap().to_owned();
    let signer = made("signing", "signing")["signer"].as_str().unwrap().to_owned();
    let stranger = made("signing", "strange")["signer"].as_str().unwrap().to_owned();
    made("identity", "another");
    let node = &cluster.nodes[1];
    let (url, key) = (format!("http://{}", node.api_addr()), node.settings["CONCORD_API_KEY"].clone());
    let back_up = async |more: &[&str]| {
        let file = at("sealed");
        let plain = ["backup", "--url", &url, "--api-key", &key, "--out", &file];
        command(plain.iter().chain(more).map(|argument| (*argument).to_owned()).collect()).await
    };
    // Where somebody expects the file to be written, a link leads elsewhere.
    let elsewhere = cluster.root().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, at("sealed.part")).unwrap();
    assert_eq!(back_up(&["--recipient", &recipient]).await.status.code(), Some(2), "it would not be signed");
    let backup = shown(&back_up(&["--recipient", &recipient, "--signing-key", &at("signing")]).await);
    assert!(!elsewhere.exists() && backup["signer"] == signer, "{backup}");
    assert_eq!((&backup["configs"], &backup["access_keys"]), (&json!(30), &json!(1)), "{backup}");
    let bytes = std::fs::read(at("sealed")).unwrap();
    for text in ["a-telling-value", "secrets"] {
        assert!(!bytes.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
    }

    let signed = shown(&concord(&["verify", &at("sealed")]));
    assert_eq!(signed, json!({"signer": signer}));
    let all = ["verify", &at("sealed"), "--identity", &at("identity"), "--signer", &signer];
    assert_eq!(shown(&concord(&all))["digest"], backup["digest"]);
    let directory = at("restored");
    let restore = |more: &[&str]| {
        let base = ["restore", "--from", &at("sealed"), "--data-dir", &directory, "--member", "1=a:1@b:2"]
            .map(str::to_owned);
        let all: Vec<&str> = base.iter().map(String::as_str).chain(more.iter().copied()).collect();
        concord(&all)
    };
    let (identity, another) = (at("identity"), at("another"));
    for (arguments, why) in [
        (vec!["--signer", signer.as_str()], "can't be decrypted"),
        (vec!["--identity", &another, "--signer", &signer], "can't be decrypted"),
        (vec!["--identity", &identity], "--signer"),
        (vec!["--identity", &identity, "--signer", &stranger], "signed by"),
    ] {
        let refused = restore(&arguments);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && text.contains(why), "{arguments:?}: {text}");
        assert!(!Path::new(&directory).join("identity.json").exists());
    }
    for place in (0..bytes.len()).step_by(bytes.len() / 8) {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        std::fs::write(at("sealed"), &changed).unwrap();
        let refused = restore(&["--identity", &identity, "--signer", &signer]);
        assert_eq!(refused.status.code(), Some(1), "byte {place}");
    }
    std::fs::write(at("sealed"), &bytes).unwrap();
    made("data", "data.keys");
    let keys = at("data.keys");
    let restored = shown(&restore(&["--identity", &identity, "--signer", &signer, "--data-key-file", &keys]));
    assert_eq!(restored["digest"], backup["digest"]);
    // Nothing of it was ever on the disk in clear.
    for file in crate::chaos::files::files_below(Path::new(&directory)) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(15).any(|part| part == b"a-telling-value"), "{}", file.display());
    }
    let mut first = Node::new(1, cluster.root(), &cluster.nodes[0].settings);
    first.directory = directory.into();
    first.settings.insert("CONCORD_DATA_KEY_FILE".into(), keys);
    first.start().await;
    let client = first.client();
    eventually("the restored node serves", async || {
        let status = client.status().await?;
        check(status["digest"] == backup["digest"], || format!("{status}"))
    })
    .await;
    assert_eq!(everything(&client, "secrets").await.len(), 30);
}

#[tokio::test]
async fn what_a_node_hands_out_is_encrypted_and_signed_where_its_settings_say_so() {
    let made = |kind: &str, out: &Path| shown(&concord(&["keygen", kind, "--out", out.to_str().unwrap()]));
    let text = |shown: &Value, name: &str| shown[name].as_str().unwrap().to_owned();
    let mut named = None;
    let cluster = Cluster::start_prepared("sealing-node", &Options::default(), |root, nodes| {
        let recipient = text(&made("identity", &root.join("identity")), "recipient");
        let signer = text(&made("signing", &root.join("signing")), "signer");
        for node in nodes.iter_mut().skip(1) {
            let file = root.join("signing").to_str().unwrap().to_owned();
            node.settings.insert("CONCORD_BACKUP_RECIPIENTS".into(), recipient.clone());
            node.settings.insert("CONCORD_BACKUP_SIGNING_KEY_FILE".into(), file);
        }
        named = Some((recipient, signer));
    })
    .await;
    let (recipient, signer) = named.expect("it was prepared");
    define(&cluster.client(1), "secrets").await;
    // More than one piece of what is encrypted at a time.
    for n in 0..12 {
        let data = json!({"text": format!("a-telling-value-{n}").repeat(4000)});
        set(&cluster.client(1), "secrets", &format!("k{n}"), &data).await;
    }
    let at = |name: &str| cluster.root().join(name).to_str().unwrap().to_owned();
    let key = cluster.nodes[0].settings["CONCORD_API_KEY"].clone();
    let back_up = async |node: usize, more: &[&str]| {
        let (url, file) = (format!("http://{}", cluster.nodes[node].api_addr()), at("taken"));
        let plain = ["backup", "--url", &url, "--api-key", &key, "--out", &file];
        command(plain.iter().chain(more).map(|argument| (*argument).to_owned()).collect()).await
    };
    // A node without the settings hands out a backup in clear, as ever, which is refused where a signer is named.
    let plain = shown(&back_up(0, &[]).await);
    let refused = back_up(0, &["--signer", &signer]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");

    let answer = cluster.client(2).get("/api/v1/cluster/backup").open().await.expect("an answer");
    let bytes = answer.bytes().await.expect("all of it");
    assert!(bytes.starts_with(b"CONCBKUP"), "no caller gets it in clear");
    assert!(!bytes.windows(15).any(|part| part == b"a-telling-value"));

    // It is stored as it comes. Whoever has the identity reads all of it, the others its signature.
    let (identity, signing) = (at("identity"), at("signing"));
    assert_eq!(shown(&back_up(1, &["--signer", &signer]).await), json!({"signer": signer}));
    let read = shown(&back_up(2, &["--identity", &identity, "--signer", &signer]).await);
    assert_eq!((&read["digest"], &read["signer"]), (&plain["digest"], &json!(signer)));
    let stranger = text(&made("signing", &cluster.root().join("strange")), "signer");
    let refused = back_up(1, &["--signer", &stranger]).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("signed by"), "{refused:?}");
    // Two envelopes, one in the other, would be read by nobody who expects one.
    let twice = back_up(1, &["--recipient", &recipient, "--signing-key", &signing]).await;
    assert!(String::from_utf8_lossy(&twice.stderr).contains("encrypts backups itself"), "{twice:?}");

    let (taken, directory) = (at("taken"), at("restored"));
    let restored = shown(&concord(&[
        "restore",
        "--from",
        &taken,
        "--data-dir",
        &directory,
        "--member",
        "1=a:1@b:2",
        "--identity",
        &identity,
        "--signer",
        &signer,
    ]));
    assert_eq!(restored["digest"], plain["digest"]);
}

#[tokio::test]
async fn a_restored_cluster_does_nothing_by_itself_that_was_armed_before() {
    const REVERT_AFTER: Duration = Duration::from_secs(25);
    let (mut cluster, ann, bob) = restricted("backup-held").await;
    let by = |key: &str| cluster.client(1).with_credential(key);
    let times = json!({"apply": "when_approved", "revert_after_s": REVERT_AFTER.as_secs()});
    let armed = create_timed(&by(&ann), "armed", 7, &times).await;
    act(&by(&bob), &armed, "approve", "approve-armed").await.expect(200);
    becomes(&by(&ann), &armed, "it is armed", |change| change["revert"]["state"] == "armed").await;
    let armed_at = Instant::now();
    let left = create_timed(&by(&ann), "left", 9, &json!({"schedule": {"not_before": time(20)}})).await;
    act(&by(&bob), &left, "approve", "approve-left").await.expect(200);
    let scheduled = act(&by(&ann), &left, "apply", "apply-left").await.expect(200);
    assert_eq!(scheduled.data()["phase"], "scheduled");
    let file = cluster.root().join("held.backup");
    back_up(&cluster.nodes[0], &file).await;
    cluster.kill_all();

    let settings = cluster.nodes[0].settings.clone();
    let mut first = Node::new(7, cluster.root(), &settings);
    let named = format!("7={}@{}", first.api_addr(), first.peer_addr());
    let directory = first.directory.to_str().unwrap().to_owned();
    let from = file.to_str().unwrap();
    let restored =
        shown(&concord(&["restore", "--from", from, "--data-dir", &directory, "--member", &named]));
    assert_eq!((&restored["held_changes"], &restored["held_reverts"]), (&json!(1), &json!(1)));
    first.start().await;
    let client = first.client();
    let held = becomes(&client, &left, "the restored node serves", |_| true).await;
    assert_eq!((&held["phase"], &held["approvals"]), (&json!("held"), &json!([])));
    let rest = (REVERT_AFTER + Duration::from_secs(5)).saturating_sub(armed_at.elapsed());
    must_not_happen("what was armed waits for a person", rest, async || {
        let read = client.get(&config("prod.limits", "k")).attempt().await?;
        check(read.status == 200 && read.body["data"]["data"]["n"] == 7, || format!("{read:?}"))
    })
    .await;
    let list = client.get(CHANGES).query(&[("revert", "held")]).insist().await.expect(200);
    assert_eq!(list.data()["results"][0]["change_id"], text(&armed, "change_id"));
    let view = client.status().await.unwrap();
    let kinds: Vec<_> = view["alarms"].as_array().into_iter().flatten().map(|alarm| &alarm["type"]).collect();
    assert!(kinds.contains(&&json!("revert_held")), "{view}");
    // A person takes it back.
    let path = format!("{CHANGES}{}/revert", text(&armed, "change_id"));
    let revert =
        client.post(&path, &json!({ "digest": text(&armed, "digest") })).query(&[("bypass", "true")]);
    let revert = revert.header("x-change-reason", "restored").header("idempotency-key", "revert");
    let done = revert.insist().await.expect(200);
    assert_eq!(
        (&done.data()["revert"]["state"], &done.data()["reviews_missing"]),
        (&json!("done"), &json!(2))
    );
    let read = client.get(&config("prod.limits", "k")).insist().await.expect(200);
    assert_eq!(read.data()["data"]["n"], 0);
}

#[tokio::test]
async fn nobody_is_attested_in_a_restored_cluster() {
    let (mut cluster, ann, bob) = restricted("backup-attested").await;
    let by = |key: &str| cluster.client(1).with_credential(key);
    let open = create_timed(&by(&ann), "open", 7, &json!({})).await;
    act(&by(&bob), &open, "approve", "approve").await.expect(200);
    let keys = cluster.client(1).get("/api/v1/api_key/").insist().await.expect(200);
    let attested = |answer: &crate::harness::Answer| -> Vec<Value> {
        answer.data()["results"].as_array().into_iter().flatten().map(|key| key["attested"].clone()).collect()
    };
    assert_eq!(attested(&keys), [json!(true), json!(true)]);
    let file = cluster.root().join("attested.backup");
    back_up(&cluster.nodes[0], &file).await;
    // Since then somebody else has the secret that the backup knows.
    let of_bob =
        keys.data()["results"].as_array().into_iter().flatten().find(|key| key["person"]["label"] == "bob");
    let id = of_bob.expect("it is listed")["key_id"].as_str().expect("an id").to_owned();
    let rotate = by(&bob).post(&format!("/api/v1/api_key/{id}/rotate"), &json!({"grace_s": 0}));
    rotate.header("idempotency-key", "rotate").insist().await.expect(200);
    cluster.kill_all();

    let settings = cluster.nodes[0].settings.clone();
    let mut first = Node::new(7, cluster.root(), &settings);
    let named = format!("7={}@{}", first.api_addr(), first.peer_addr());
    let directory = first.directory.to_str().unwrap().to_owned();
    shown(&concord(&[
        "restore",
        "--from",
        file.to_str().unwrap(),
        "--data-dir",
        &directory,
        "--member",
        &named,
    ]));
    first.start().await;
    let client = first.client();
    let held = becomes(&client, &open, "the restored node serves", |_| true).await;
    assert_eq!((&held["phase"], &held["approvals"]), (&json!("held"), &json!([])));
    let keys = client.get("/api/v1/api_key/").insist().await.expect(200);
    assert_eq!(attested(&keys), [json!(false), json!(false)]);
    // The old secret is good again, and its holder is nobody whose approval counts.
    let path = format!("{CHANGES}{}", text(&open, "change_id"));
    let as_ann = client.with_credential(&ann);
    let rebased = as_ann.post(&format!("{path}/rebase"), &json!({})).insist().await.expect(200);
    assert_eq!(
        (&rebased.data()["attested"], &rebased.data()["approvals_needed"]),
        (&json!(false), &json!(2))
    );
    let digest = json!({ "digest": text(&rebased, "digest") });
    let thief = client.with_credential(&bob);
    let approve = thief.post(&format!("{path}/approve"), &digest).insist().await.expect(403);
    assert_eq!(approve.body["errors"][0]["code"], "key_not_attested");
    let apply = as_ann.post(&format!("{path}/apply"), &digest).insist().await.expect(409);
    assert_eq!(apply.body["errors"][0]["code"], "not_approved");
    let view = client.status().await.unwrap();
    let kinds: Vec<_> = view["alarms"].as_array().into_iter().flatten().map(|alarm| &alarm["type"]).collect();
    assert!(kinds.contains(&&json!("approvers_missing")), "{view}");
    let read = client.get(&config("prod.limits", "k")).insist().await.expect(200);
    assert_eq!(read.data()["data"]["n"], 0);
}
