//! `identity`, `role`, `session`, `login` and `logout`, and commands that log in by themselves.

use concord_identity::testing::TestIssuer;
use serde_json::{Value, json};

use super::User;
use crate::harness::{Cluster, clock::unix_s};

const ISSUER: &str = "https://ci.example.com";

/// A cluster with the provider `ci` and the role `writers`, an administrator, and the token of a job in a file.
async fn with_provider(name: &str) -> (Cluster, User, TestIssuer, String) {
    let cluster = Cluster::start(name).await;
    let user = User::of(&cluster);
    user.ok(&["definition", "create", "prod.limits"]).await;
    let issuer = TestIssuer::new("one");
    let provider = user.write("provider.json", &issuer.document(ISSUER).to_string());
    assert_eq!(user.ok(&["identity", "set", "ci", "-f", &provider]).await, "provider ci stored\n");
    let role = user.write(
        "role.yaml",
        "grants: [{verbs: [read, write], definitions: [prod.*]}]\n\
         members: [{provider: ci, match: {environment: [prod]}}]\nsession_s: 600\n",
    );
    assert_eq!(user.ok(&["role", "set", "writers", "-f", &role]).await, "role writers stored\n");
    let token = user.write("token", &issuer.token(ISSUER, "job", "prod", unix_s()));
    (cluster, user, issuer, token)
}

#[tokio::test]
async fn a_job_logs_in_writes_and_logs_out() {
    let (_cluster, user, _, token) = with_provider("cli-login").await;
    let login = user.run(&["login", "--provider", "ci", "--token-file", &token]).await;
    assert!(login.code == 0 && login.err.starts_with("logged in as ci/job until 20"), "{login:?}");
    let job = user.clone().with("CONCORD_API_KEY", login.out.trim());
    job.ok(&["config", "create", "prod.limits", "acme", "--data", r#"{"n": 1}"#]).await;
    let who: Value = job.json(&["whoami"]).await;
    assert_eq!((&who["key_id"], &who["session"]["roles"]), (&json!("ci/job"), &json!(["writers"])));
    let history = user.json(&["config", "history", "prod.limits", "acme"]).await;
    assert_eq!(history["results"][0]["by"], "ci/job");
    let listed = user.ok(&["session", "list"]).await;
    assert!(listed.starts_with("ID") && listed.contains("ci/job") && listed.contains("writers"), "{listed}");
    assert_eq!(job.run(&["role", "list"]).await.code, 6, "it may not");
    job.ok(&["logout"]).await;
    let ended = job.run(&["whoami"]).await;
    assert!(ended.code != 0 && ended.err.contains("credential is not valid"), "{ended:?}");
    // Into a file that only its owner can read.
    let out = job.home.join("session");
    user.ok(&["login", "--provider", "ci", "--token-file", &token, "--out", out.to_str().unwrap()]).await;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&out).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let by_file = User::new(&user.home).with("CONCORD_API_KEY_FILE", out.to_str().unwrap());
    let url = user.settings.iter().find(|(name, _)| name == "CONCORD_URL").unwrap().1.clone();
    by_file.with("CONCORD_URL", &url).ok(&["config", "get", "prod.limits", "acme"]).await;
}

#[tokio::test]
async fn commands_log_in_by_themselves_with_the_token_of_a_pod() {
    let (cluster, user, issuer, token) = with_provider("cli-pod").await;
    let url = user.settings.iter().find(|(name, _)| name == "CONCORD_URL").unwrap().1.clone();
    let pod = User::new(cluster.root())
        .with("CONCORD_URL", &url)
        .with("CONCORD_PROVIDER", "ci")
        .with("CONCORD_TOKEN_FILE", &token);
    pod.ok(&["config", "create", "prod.limits", "acme", "--data", r#"{"n": 1}"#]).await;
    assert_eq!(pod.json(&["config", "get", "prod.limits", "acme"]).await["data"], json!({ "n": 1 }));
    // A key that is given counts more.
    assert_eq!(user.json(&["whoami"]).await["key_id"], "root");
    let other = user.write("other", &issuer.token(ISSUER, "job", "dev", unix_s()));
    let refused = pod.clone().with("CONCORD_TOKEN_FILE", &other).run(&["config", "get", "prod.limits"]).await;
    assert!(refused.code == 6 && refused.err.contains("no role has `ci/job` as a member"), "{refused:?}");
    let gone = pod.with("CONCORD_TOKEN_FILE", "/nowhere").run(&["config", "get", "prod.limits"]).await;
    assert!(gone.code == 2 && gone.err.contains("/nowhere"), "{gone:?}");
    // Each command of the pod has a session of its own until its end.
    let sessions = user.json(&["session", "list"]).await["results"].clone();
    let id = sessions[0]["session_id"].as_str().unwrap();
    assert_eq!(user.ok(&["session", "end", id]).await, format!("session {id} has ended\n"));
    assert_eq!(user.run(&["session", "end", id]).await.code, 3);
}

#[tokio::test]
async fn a_token_is_tried_and_what_get_shows_can_be_set() {
    let (_cluster, user, issuer, token) = with_provider("cli-identity").await;
    let tried = user.ok(&["identity", "try", "ci", "--token-file", &token]).await;
    assert!(tried.starts_with("CHECK") && tried.contains("role writers: environment"), "{tried}");
    let wrong = user.write("wrong", &issuer.token("https://other.example.com", "job", "prod", unix_s()));
    let tried = user.run(&["identity", "try", "ci", "--token-file", &wrong]).await;
    assert!(tried.code == 1 && tried.err.contains("the token is not accepted: issuer"), "{tried:?}");
    for kind in [["identity", "ci"], ["role", "writers"]] {
        let before = user.ok(&[kind[0], "get", kind[1], "-o", "yaml"]).await;
        let file = user.write("again.yaml", &before);
        user.ok(&[kind[0], "set", kind[1], "-f", &file]).await;
        assert_eq!(user.ok(&[kind[0], "get", kind[1], "-o", "yaml"]).await, before, "it has not changed");
        let listed = user.ok(&[kind[0], "list"]).await;
        assert!(listed.contains(kind[1]), "{listed}");
    }
    assert_eq!(user.run(&["identity", "rm", "ci", "--yes"]).await.code, 4, "a role names it");
    assert_eq!(
        user.ok(&["identity", "end-sessions", "ci", "--yes"]).await,
        "the sessions of ci have ended\n"
    );
    assert_eq!(user.ok(&["role", "rm", "writers", "--yes"]).await, "role writers deleted\n");
    assert_eq!(user.ok(&["identity", "rm", "ci", "--yes"]).await, "provider ci deleted\n");
    assert_eq!(user.run(&["role", "get", "writers"]).await.code, 3);
}
