//! `config edit` with editors that are scripts.

use super::{LIMITS, User};
use crate::harness::Cluster;

/// An editor: a script that gets the file as `$1`, and counts how often it was opened in a file `turns`.
fn editor(user: &User, script: &str) -> User {
    let turns = user.home.join("turns");
    let text = format!("#!/bin/sh\necho x >> {0}\nturn=$(wc -l < {0})\n{script}\n", turns.display());
    drop(std::fs::remove_file(&turns));
    let path = user.write("editor.sh", &text);
    user.clone().with("VISUAL", &format!("sh {path}"))
}

#[tokio::test]
async fn an_edit_is_stored_or_nothing_is_lost() {
    let cluster = Cluster::start("cli-edit").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    let requests =
        async || user.json(&["config", "get", "limits", "acme"]).await["data"]["quota"]["requests"].clone();

    // The hints of the schema stand at the head.
    let reader = editor(&user, r#"cp "$1" seen"#);
    assert_eq!(reader.ok(&["config", "edit", "limits", "acme"]).await, "nothing was changed\n");
    let seen = std::fs::read_to_string(user.home.join("seen")).unwrap();
    assert!(
        seen.contains("#   plan: any, required, one of [\"free\",\"pro\"]: What the customer pays for\n"),
        "{seen}"
    );
    assert!(seen.contains("\nplan: pro\nquota:\n  requests: 1000\nexact: 7.0\n"), "{seen}");

    // Errors come back as comments, and the second turn is stored.
    let script = r#"cp "$1" "seen$turn"
if [ "$turn" = 1 ]; then sed -i 's/1000/-5/' "$1"
elif [ "$turn" = 2 ]; then sed -i 's/-5/: [/' "$1"
else sed -i 's/: : \[/: 50/' "$1"; fi"#;
    let stubborn = editor(&user, script);
    let done = stubborn.run(&["config", "edit", "limits", "acme"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.starts_with("config limits/acme changed  revision "), "{done:?}");
    let seen = std::fs::read_to_string(user.home.join("seen2")).unwrap();
    assert!(seen.contains("# error: /quota/requests: -5 is less than the minimum of 0\n"), "{seen}");
    assert!(seen.contains("requests: -5"), "what was typed is there: {seen}");
    assert_eq!(requests().await, 50);

    // Whoever gives up finds what they typed.
    let tired = editor(&user, r#"if [ "$turn" = 1 ]; then sed -i 's/50/-7/' "$1"; fi"#);
    let given_up = tired.run(&["config", "edit", "limits", "acme"]).await;
    assert_eq!(given_up.code, 1, "{given_up:?}");
    let kept = given_up.err.trim().rsplit(' ').next().unwrap();
    assert!(std::fs::read_to_string(kept).unwrap().contains("-7"), "{given_up:?}");

    // What somebody else changed meanwhile is not overwritten, and what was typed is kept.
    let program = crate::harness::node::BINARY.display().to_string();
    let script =
        format!(r#"{program} config patch limits acme --data '{{"plan":"free"}}'; sed -i 's/50/60/' "$1""#);
    let late = editor(&user, &script).run(&["config", "edit", "limits", "acme"]).await;
    assert_eq!(late.code, 4, "{late:?}");
    let kept = late.err.lines().find_map(|line| line.strip_prefix("your text is kept in ")).unwrap();
    assert!(std::fs::read_to_string(kept).unwrap().contains("requests: 60"));
    assert_eq!(requests().await, 50);

    let broken = user.clone().with("VISUAL", "false").run(&["config", "edit", "limits", "acme"]).await;
    assert!(broken.code == 1 && broken.err.contains("the editor failed:"), "{broken:?}");
    assert_eq!(user.run(&["config", "edit", "limits", "absent"]).await.code, 3);
}
