//! `concord exec`: a program gets a config as variables or as a file, also while no node runs, and never a part of it.

use super::User;
use crate::harness::Cluster;

const FILES: &str = r#"config_definition_key: db
json_schema: {properties: {password: {type: string, x-concord-secret: true}}}
---
config_definition_key: db
config_key: main
data: {host: h1, ports: [1, 2], ratio: 1.50, none: null, note: "two\nlines", nested: {deep: {it: yes}}, password: pw}
"#;

#[tokio::test]
async fn a_program_gets_a_config_and_never_a_part_of_it() {
    let mut cluster = Cluster::start("cli-exec").await;
    let user = User::of(&cluster);
    assert_eq!(user.run_with(&["apply", "-f", "-"], FILES).await.code, 0);

    let script = r#"printf '%s|' "$APP_HOST" "$APP_PORTS" "$APP_RATIO" "${APP_NONE-unset}" "$APP_NOTE" "$APP_NESTED_DEEP_IT" "$APP_PASSWORD"; exit 7"#;
    let done = user.run(&["exec", "db", "main", "--prefix", "APP_", "--", "sh", "-c", script]).await;
    assert_eq!((done.code, done.out.as_str()), (7, "h1|[1,2]|1.50||two\nlines|yes|pw|"), "{done:?}");
    let names =
        ["exec", "db", "main", "--names", "HOST,RATIO", "--", "sh", "-c", "echo $HOST $RATIO ${NOTE-none}"];
    assert_eq!(user.ok(&names).await, "h1 1.50 none\n");
    // It has no access key, and the umask and limits of whoever started it.
    let script = "echo ${CONCORD_API_KEY-none}; umask; ulimit -Sc; ulimit -Hc";
    let own = std::process::Command::new("sh").args(["-c", script]).env_remove("CONCORD_API_KEY").output();
    assert_eq!(
        user.ok(&["exec", "db", "main", "--names", "HOST", "--", "sh", "-c", script]).await,
        String::from_utf8(own.unwrap().stdout).unwrap()
    );
    // A child of the program reads the file, too.
    let file = [
        "exec",
        "db",
        "main",
        "--data-file",
        "CONFIG",
        "--",
        "sh",
        "-c",
        r#"exec 9>lock; sh -c 'cat "$CONFIG"'"#,
    ];
    assert!(user.ok(&file).await.starts_with(r#"{"host":"h1","ports":[1,2],"ratio":1.50,"none":null,"#));

    // Nothing is started with a part of the config, or with what loaders obey.
    let mark = user.home.join("started").display().to_string();
    let touch = |arguments: &[&'static str]| [&["exec", "db"], arguments].concat();
    let key = user.json(&["key", "create", "--name", "blind", "--grant", "read:*"]).await;
    let blind = user.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    user.ok(&["config", "create", "db", "evil", "--data", r#"{"path": "/tmp"}"#]).await;
    for (user, arguments, code, text) in [
        (&user, touch(&["nobody", "--prefix", "APP_"]), 3, "config does not exist"),
        (&blind, touch(&["main", "--prefix", "APP_"]), 6, "may not see #/password"),
        (&user, touch(&["evil", "--names", "PATH"]), 2, "obeyed by loaders"),
        (&user, touch(&["main"]), 2, "--prefix <PREFIX>"),
        (&user, touch(&["main", "--names", "HOST,PORT"]), 1, "no value for the variable PORT"),
        (
            &user,
            touch(&["main", "--prefix", "APP_", "--data-file", "APP_HOST"]),
            1,
            "APP_HOST of --data-file",
        ),
        (&user, touch(&["main", "--prefix", "APP_", "--wait-s", "18446744073709551615"]), 2, "--wait-s"),
    ] {
        let done = user.run(&[&arguments[..], &["--", "touch", &mark]].concat()).await;
        assert!(done.code == code && done.err.contains(text), "{done:?}");
        assert!(!std::path::Path::new(&mark).exists(), "{arguments:?}");
    }
    let missing = user.run(&["exec", "db", "main", "--prefix", "APP_", "--", "/no/such/program"]).await;
    assert!(missing.code == 127 && missing.err.contains("/no/such/program: No such file"), "{missing:?}");

    let echo = [
        "--prefix",
        "APP_",
        "--wait-s",
        "5",
        "--known-good",
        "known.json",
        "--",
        "sh",
        "-c",
        "echo $APP_HOST",
    ];
    let known = [&["exec", "db", "main"], &echo[..]].concat();
    assert_eq!(user.ok(&known).await, "h1\n");
    cluster.kill_all();
    let done = user.run(&known).await;
    assert_eq!((done.code, done.out.as_str()), (0, "h1\n"), "{done:?}");
    assert!(done.err.contains("no node confirms the config"), "{done:?}");
    let done =
        user.run(&["exec", "db", "main", "--prefix", "APP_", "--wait-s", "1", "--", "touch", &mark]).await;
    assert!(done.code == 7 && !std::path::Path::new(&mark).exists(), "{done:?}");
}
