//! The repository in `examples/three-environments`, used as its README says: a copy of it, its scripts, its pipeline.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::json;

use super::{Done, User};
use crate::harness::{Cluster, node::BINARY};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/three-environments");
const ENVIRONMENTS: [&str; 3] = ["dev", "staging", "prod"];

/// A checkout of the repository, in which a pipeline runs.
struct Checkout {
    folder: PathBuf,
    /// The keys of the pipeline: for plans, and to apply them.
    plan: User,
    apply: User,
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("it can be made");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("it can be listed");
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).expect("it can be copied");
        }
    }
}

/// Runs a script of the repository, with `concord` in the path.
async fn script(user: &User, folder: &Path, name: &str, arguments: &[&str]) -> Done {
    let program = BINARY.parent().expect("it is in a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The settings of a user are those of `concord`: here they are those of the script that calls it.
    let command = user.command(&[]);
    let mut run = Command::new(folder.join("scripts").join(name));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => run.env(name, value),
            None => run.env_remove(name),
        };
    }
    run.args(arguments)
        .env("PATH", format!("{}:{}", program.display(), path.to_string_lossy()))
        .current_dir(folder);
    run.stdin(Stdio::null());
    let done = tokio::task::spawn_blocking(move || run.output().expect("the script can be started"));
    Done::new(&done.await.expect("it does not panic"))
}

impl Checkout {
    /// The same pipeline with other files.
    fn of_commit(&self, name: &str, edits: &[(&str, &str, &str)]) -> Self {
        let folder = self.folder.parent().expect("it has a parent").join(name);
        copy(&self.folder, &folder);
        for (file, old, new) in edits {
            let path = folder.join(file);
            let text = fs::read_to_string(&path).expect("it can be read");
            assert!(text.contains(old), "{file} has {old}");
            fs::write(&path, text.replace(old, new)).expect("it can be written");
        }
        Self { folder, plan: self.plan.clone(), apply: self.apply.clone() }
    }

    /// What the pull request shows.
    async fn plan(&self, environment: &str) -> String {
        let file = format!("plan-{environment}.json");
        let done = script(&self.plan, &self.folder, "plan.sh", &[environment, &file]).await;
        assert_eq!(done.code, 0, "{environment}: {done:?}");
        done.out
    }

    /// What the merge does.
    async fn apply(&self, environment: &str) -> Done {
        let file = format!("plan-{environment}.json");
        let title = "--bypass\u{1b} raise limits\n\nas agreed";
        script(&self.apply, &self.folder, "apply.sh", &[environment, &file, title]).await
    }
}

/// A cluster that was set up with the root key, the first checkout, and two people who approve changes of prod.
async fn set_up(name: &str) -> (Cluster, User, Checkout, [User; 2]) {
    let cluster = Cluster::start(name).await;
    let root = User::of(&cluster);
    let folder = cluster.root().join("first");
    copy(Path::new(SOURCE), &folder);
    let done = script(&root, &folder, "setup.sh", &["ann", "bob"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    let with = |name: &str| {
        let line = done.out.lines().find(|line| line.starts_with(&format!("for {name}")));
        let key = line.and_then(|line| line.rsplit(": ").next());
        root.clone().with("CONCORD_API_KEY", key.unwrap_or_else(|| panic!("{name}: {done:?}")))
    };
    let checkout = Checkout { folder, plan: with("CONCORD_PLAN_KEY"), apply: with("CONCORD_APPLY_KEY") };
    let people = ["ann", "bob"].map(with);
    (cluster, root, checkout, people)
}

/// Approves the one open change request, and returns its id.
async fn approved(people: &[User; 2]) -> String {
    let open = people[0].json(&["change", "list", "--phase", "open"]).await;
    assert_eq!(open["meta"]["total"], 1, "{open}");
    let (id, digest) = (open["results"][0]["change_id"].clone(), open["results"][0]["digest"].clone());
    let (id, digest) = (id.as_str().expect("an id"), digest.as_str().expect("a digest"));
    for person in people {
        person.ok(&["change", "approve", id, "--digest", digest]).await;
    }
    id.to_owned()
}

async fn requests(user: &User, environment: &str, key: &str) -> serde_json::Value {
    user.json(&["config", "get", &format!("{environment}.limits"), key]).await["data"]["requests"].clone()
}

#[tokio::test]
async fn a_clone_reaches_all_environments_and_prod_with_approval() {
    let (_cluster, root, first, people) = set_up("cli-example").await;
    for environment in ENVIRONMENTS {
        let shown = first.plan(environment).await;
        assert!(
            shown.contains("+++ file/config limits/acme") && shown.contains("+++ file/definition flags"),
            "{shown}"
        );
        let done = first.apply(environment).await;
        assert_eq!(done.code, 0, "{environment}: {done:?}");
    }
    assert_eq!(
        (requests(&root, "dev", "acme").await, requests(&root, "staging", "acme").await),
        (json!(100_000), json!(2000))
    );
    assert_eq!(root.run(&["definition", "get", "prod.limits"]).await.code, 3, "nobody has approved it yet");
    let id = approved(&people).await;
    let shown = people[0].json(&["change", "show", &id]).await;
    assert_eq!(
        (&shown["title"], &shown["approvals_needed"]),
        (&json!("--bypass raise limits"), &json!(2)),
        "{shown}"
    );
    people[0].ok(&["change", "apply", &id, "--yes"]).await;
    assert_eq!(requests(&root, "prod", "acme").await, json!(1000));
    // The pipeline has no other way into prod.
    let direct =
        first.apply.run(&["config", "patch", "prod.limits", "acme", "--data", r#"{"requests": 1}"#]).await;
    assert!(matches!(direct.code, 4 | 6), "{direct:?}");
    for environment in ENVIRONMENTS {
        assert_eq!(first.plan(environment).await, "", "{environment} is as the files are");
        assert_eq!(first.apply(environment).await.code, 0, "and nothing is to do");
    }
    let diff = root.run(&["env", "diff", "staging", "prod"]).await;
    assert!(
        diff.code == 1 && diff.out.contains("limits/acme") && !diff.out.contains("limits/globex"),
        "{diff:?}"
    );
}

#[tokio::test]
async fn an_older_pipeline_does_not_win() {
    let (_cluster, root, first, people) = set_up("cli-example-older").await;
    for environment in ["staging", "prod"] {
        first.plan(environment).await;
        assert_eq!(first.apply(environment).await.code, 0);
    }
    let id = approved(&people).await;
    people[0].ok(&["change", "apply", &id, "--yes"]).await;
    let older = first
        .of_commit("older", &[("staging/limits.yaml", "2000", "3000"), ("prod/limits.yaml", "1000", "3000")]);
    let newer = older.of_commit(
        "newer",
        &[
            ("staging/limits.yaml", "requests: 100}", "requests: 400}"),
            ("prod/limits.yaml", "requests: 100}", "requests: 400}"),
        ],
    );
    for checkout in [&older, &newer] {
        for environment in ["staging", "prod"] {
            checkout.plan(environment).await;
        }
    }
    // The older pipeline is slow: the newer one, which has its change too, comes first.
    assert_eq!(newer.apply("staging").await.code, 0);
    let late = older.apply("staging").await;
    assert!(late.code == 4 && late.err.contains("the plan of"), "{late:?}");
    let staging = [requests(&root, "staging", "acme").await, requests(&root, "staging", "globex").await];
    assert_eq!(staging, [json!(3000), json!(400)], "those of the newer one");
    // With change requests: the newer one is applied, and the older one can't be any more.
    assert_eq!(older.apply("prod").await.code, 0);
    let slow = approved(&people).await;
    assert_eq!(newer.apply("prod").await.code, 0);
    let open = people[0].json(&["change", "list", "--phase", "open"]).await;
    let quick =
        open["results"].as_array().expect("a list").iter().find(|one| one["change_id"] != slow.as_str());
    let quick = quick.expect("two are open");
    let (id, digest) =
        (quick["change_id"].as_str().expect("an id"), quick["digest"].as_str().expect("a digest"));
    for person in &people {
        person.ok(&["change", "approve", id, "--digest", digest]).await;
    }
    people[0].ok(&["change", "apply", id, "--yes"]).await;
    let stale = people[0].run(&["change", "apply", &slow, "--yes"]).await;
    assert!(stale.code == 4 && stale.err.contains("concord change rebase"), "{stale:?}");
    assert_eq!(requests(&root, "prod", "globex").await, json!(400));
    let late = older.apply("prod").await;
    assert!(late.code == 4 && late.err.contains("the plan of"), "{late:?}");
}

#[tokio::test]
async fn of_two_pipelines_at_once_one_applies() {
    let (_cluster, root, first, _people) = set_up("cli-example-race").await;
    first.plan("staging").await;
    assert_eq!(first.apply("staging").await.code, 0);
    for round in 1..=5 {
        // A round changes what the one before has left, whichever that was.
        let base =
            first.of_commit(&format!("base-{round}"), &[("staging/limits.yaml", "2000", &round.to_string())]);
        base.plan("staging").await;
        assert_eq!(base.apply("staging").await.code, 0);
        let old = format!("requests: {round}}}");
        let with = |name: &str, new: u64| {
            let new = format!("requests: {new}}}");
            base.of_commit(&format!("{name}-{round}"), &[("staging/limits.yaml", &old, &new)])
        };
        let (one, other) = (with("one", 7000), with("other", 8000));
        one.plan("staging").await;
        other.plan("staging").await;
        let (first_done, second_done) = tokio::join!(one.apply("staging"), other.apply("staging"));
        let mut codes = [first_done.code, second_done.code];
        codes.sort_unstable();
        assert_eq!(codes, [0, 4], "{first_done:?} {second_done:?}");
        let expected = if first_done.code == 0 { 7000 } else { 8000 };
        assert_eq!(
            requests(&root, "staging", "acme").await,
            json!(expected),
            "the other one changed nothing"
        );
    }
}
