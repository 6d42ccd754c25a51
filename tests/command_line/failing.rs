//! Nodes that are gone, contexts, and what is made from the declaration of the commands.

use std::os::unix::fs::PermissionsExt as _;

use super::{LIMITS, User};
use crate::harness::{Cluster, check, eventually, fresh_directory};

#[tokio::test]
async fn another_node_answers_while_one_is_gone() {
    let mut cluster = Cluster::start("cli-failover").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    cluster.node(1).kill();
    assert_eq!(user.ok(&["config", "get", "limits", "-o", "name"]).await, "acme\ninitech\n");
    user.ok(&["config", "patch", "limits", "acme", "--data", r#"{"n": 1}"#]).await;
    // The two that are left may be late on a busy machine, which it says then.
    let status = eventually("the two that are left are well", async || {
        let status = user.run(&["cluster", "status"]).await;
        let is_well = status.out.contains("one more failure stops the cluster");
        check(is_well, || format!("{status:?}")).map(|()| status)
    })
    .await;
    assert_eq!(status.code, 1, "{status:?}");
    let line = status.out.lines().find(|line| line.starts_with("1 ")).unwrap();
    assert_eq!(line.split_whitespace().nth(2), Some("no"), "{status:?}");

    // Without a majority nothing is written, and that is said to be certain.
    cluster.node(2).kill();
    let write = ["config", "patch", "limits", "acme", "--data", "{}", "--timeout-s", "2"];
    let refused = user.run(&write).await;
    assert_eq!(refused.code, 7, "{refused:?}");
    // What the node that is left has applied can be read, where that is asked for.
    let local = ["--consistency", "local", "--timeout-s", "20"];
    for read in [
        &["config", "get", "limits", "acme"][..],
        &["config", "get", "limits", "-o", "name"],
        &["config", "history", "limits", "acme"],
        &["definition", "get"],
        &["definition", "get", "limits"],
        &["definition", "history", "limits"],
        &["explain", "limits.plan"],
    ] {
        user.ok(&[read, &local].concat()).await;
        let refused = user.run(&[read, &["--timeout-s", "1"]].concat()).await;
        assert_eq!(refused.code, 7, "{read:?}: {refused:?}");
    }
    user.ok(&["config", "get", "limits", "--local", "-o", "name"]).await;
    let saved = user.ok(&["backup", "--out", "rest.backup", "--consistency", "local"]).await;
    assert!(saved.contains("\"configs\": 2"), "{saved}");
    let status = user.run(&["cluster", "status"]).await;
    assert!(status.code == 1 && status.out.contains("the cluster can't write"), "{status:?}");
    assert!(status.out.contains("node 3 is not ready: "), "{status:?}");
    let code =
        async |more: &[&str]| user.run(&[&["config", "get", "limits", "acme"], more].concat()).await.code;
    assert_eq!(code(&["--consistency", "lease"]).await, 5, "no node has the setting");
    assert_eq!(code(&["--max-staleness-ms", "5"]).await, 5, "it is for local reads");
    assert_eq!(code(&["--consistency", "weak"]).await, 2);
    assert_eq!(code(&["--consistency", "local", "--local"]).await, 2);
    let later = ["--consistency", "local", "--min-revision", "1000000", "--timeout-s", "1"];
    assert_eq!(code(&later).await, 7, "it does not have that revision");

    cluster.node(3).kill();
    let refused = user.run(&write).await;
    assert_eq!(refused.code, 7, "{refused:?}");
    assert!(refused.err.contains("hint: nothing was changed"), "{refused:?}");
}

#[tokio::test]
async fn a_context_holds_a_cluster_and_its_key_for_its_owner_alone() {
    let mut cluster = Cluster::start("cli-context").await;
    let user = User::new(&cluster.root().join("home"));
    std::fs::create_dir_all(&user.home).unwrap();
    let url = format!("http://{}", cluster.node(2).api_addr());
    let key = cluster.client(1).key;
    let set = user.run_with(&["context", "set", "here", "--url", &url], &format!("{key}\n")).await;
    assert_eq!((set.code, set.out.as_str()), (0, ""), "{set:?}");
    let file = user.home.join("settings/concord/contexts.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(user.ok(&["definition", "get", "-o", "name"]).await, "");
    let list = user.run(&["context", "list"]).await;
    assert!(list.out.contains(&url) && !list.out.contains(&key), "{list:?}");
    assert_eq!(user.ok(&["context", "list", "-o", "name"]).await, "here\n");
    // The key of a context goes to no other node.
    let elsewhere = user.clone().with("CONCORD_URL", "http://127.0.0.1:9");
    let refused = elsewhere.run(&["definition", "get"]).await;
    assert!(refused.code == 2 && refused.err.contains("CONCORD_API_KEY"), "{refused:?}");
    let named = elsewhere.run(&["definition", "get", "--context", "here"]).await;
    assert!(named.code == 2 && named.err.contains("the context's key is not sent"), "{named:?}");
    assert_eq!(user.run(&["context", "list", "there"]).await.code, 3);
    assert_eq!(user.run(&["context", "use", "there"]).await.code, 3);
    assert_eq!(user.run(&["context", "delete", "there", "--yes"]).await.code, 3);
    let unasked = user.run(&["context", "delete", "here"]).await;
    assert!(unasked.code == 2 && unasked.err.contains("the access key stored in it"), "{unasked:?}");
    assert_eq!(user.ok(&["context", "list", "-o", "name"]).await, "here\n");
    user.ok(&["context", "delete", "here", "--yes"]).await;
    assert_eq!(user.run(&["--version"]).await.code, 0);
    assert_eq!(user.run(&["definition", "get"]).await.code, 2, "there is no key any more");
}

#[tokio::test]
async fn a_mistake_is_answered_with_what_to_do() {
    let mut cluster = Cluster::start("cli-mistakes").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    let says = async |arguments: &[&str], code: i32, expected: &[&str]| {
        let done = user.run(arguments).await;
        let holds = done.code == code && expected.iter().all(|part| done.err.contains(part));
        assert!(holds, "{arguments:?}, {code}, {expected:?}: {done:?}");
    };
    // A plural, as the names of lists are elsewhere.
    assert_eq!(user.ok(&["get", "definitions", "-o", "name"]).await, "limits\n");
    assert_eq!(user.ok(&["get", "configs", "limits", "-o", "name"]).await, "acme\ninitech\n");
    let put = ["config", "put", "limits", "absent", "--data", r#"{"plan": "pro"}"#];
    says(&put, 3, &["limits/absent", "`concord config create limits KEY` creates one"]).await;
    // What the past does not have may be there now.
    let past = ["config", "get", "limits", "--revision", "1"];
    says(&past, 3, &["created at revision ", "after revision 1", "`concord definition history limits`"])
        .await;
    let past = ["config", "get", "limits", "acme", "--revision", "1"];
    says(&past, 3, &["after revision 1", "`concord definition history limits`"]).await;
    says(&["definition", "delete", "limits"], 2, &["limits and its 2 configs will be deleted:"]).await;
    user.ok(&["config", "delete", "limits", "acme", "--yes"]).await;
    says(&["definition", "delete", "limits"], 2, &["limits and its 1 config will be deleted:"]).await;
    user.ok(&["config", "delete", "limits", "initech", "--yes"]).await;
    says(&["definition", "delete", "limits"], 2, &["limits, which has no configs, will be deleted:"]).await;
    let two = ["config", "validate", "limits", "--data", r#"{"plan": "gold", "quota": 7}"#];
    says(&two, 5, &["concord: 2 reasons:\n  /data/"]).await;
    let all = [&two[..], &["--all-violations"]].concat();
    says(&all, 5, &["concord: 2 reasons:\n  /data/", "(schema: `/properties/"]).await;

    // Files that hold nothing, and those of folders that are not read.
    user.write("folder/inner/one.yaml", LIMITS);
    says(&["apply", "-f", "folder"], 2, &["no definitions or configs found in folder", "hint: ", "-R"]).await;
    let bare = user.run_with(&["apply", "-f", "-"], "").await;
    assert!(
        bare.code == 2 && bare.err.contains("configs found in -") && !bare.err.contains("hint"),
        "{bare:?}"
    );
    let other = user.write("other.yaml", "config_definition_key: other\njson_schema: {}");
    says(&["def", "check", "limits", "-f", &other], 2, &["definition other, not limits"]).await;

    // The address for the other nodes, and a path behind that for callers.
    let peer = format!("http://{}", cluster.node(1).peer_addr());
    says(&["def", "get", "--url", &peer], 3, &["client listener"]).await;
    let page = format!("http://{}/ui", cluster.node(1).api_addr());
    says(&["def", "get", "--url", &page], 3, &["as in http://127.0.0.1:8101"]).await;

    // What a key may do is in the table of keys, and its text only where there is one.
    let created =
        user.ok(&["key", "create", "--name", "r", "--grant", "read:limits,a.*", "-o", "table"]).await;
    assert!(created.contains("read:limits,a.*") && created.contains("API KEY"), "{created}");
    let listed = user.ok(&["key", "list", "-o", "table"]).await;
    assert!(listed.contains("read:limits,a.*") && !listed.contains("API KEY"), "{listed}");
    assert!(
        user.ok(&["whoami", "-o", "wide"]).await.contains("bypass,report:*"),
        "the verbs of the root key"
    );

    // The key of a context is not sent to nodes that are named beside it, and that is said.
    let home = User::new(&cluster.root().join("home"));
    std::fs::create_dir_all(&home.home).unwrap();
    let url = format!("http://{}", cluster.node(2).api_addr());
    let key = cluster.client(1).key;
    home.run_with(&["context", "set", "here", "--url", &url], &format!("{key}\n")).await;
    let unnamed = home.run(&["def", "get", "--url", &url]).await;
    assert!(unnamed.code == 2 && unnamed.err.contains("`--context here`"), "{unnamed:?}");
    home.ok(&["def", "get", "--url", &url, "--context", "here"]).await;
    // So is the way to the audit log of one node of several.
    let other = format!("http://{}", cluster.node(1).api_addr());
    let both = ["context", "set", "all", "--url", &url, "--url", &other];
    home.run_with(&both, &format!("{key}\n")).await;
    home.ok(&["context", "use", "all"]).await;
    let several = home.run(&["audit", "tail"]).await;
    let hint = format!("choose one with --context all --url, of {url}, {other}");
    assert!(several.code == 2 && several.err.contains(&hint), "{several:?}");
    home.ok(&["audit", "tail", "--context", "all", "--url", &url]).await;
}

#[tokio::test]
async fn the_reference_of_the_commands_is_made() {
    let home = fresh_directory("cli-reference");
    let user = User::new(home.path());
    for shell in ["bash", "zsh", "fish"] {
        let script = user.ok(&["completions", shell]).await;
        assert!(script.contains("rollback"), "{shell}");
    }
    assert!(user.ok(&["man"]).await.contains(".TH concord 1"));
    user.ok(&["man", "--dir", "pages"]).await;
    let pages: Vec<_> = std::fs::read_dir(home.path().join("pages")).unwrap().collect();
    assert!(pages.len() > 40, "{}", pages.len());
    assert!(home.path().join("pages/concord-config-rollback.1").exists());
}
