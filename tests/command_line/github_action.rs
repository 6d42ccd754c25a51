//! The action for GitHub, run as a runner does: its script with the inputs in variables, and a `gh` that notes what it is
//! asked.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Done, LIMITS, User};
use crate::harness::{Cluster, node::BINARY};

const ACTION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/github-action");

/// A runner of GitHub.
struct Runner {
    folder: PathBuf,
}

impl Runner {
    fn new(folder: &Path) -> Self {
        let runner = Self { folder: folder.to_owned() };
        // It answers with the ids in `comments`, and keeps each call with its body.
        let gh = "#!/bin/sh\ncase \"$*\" in *--paginate*) cat comments ;; *) echo \"$*\" >> calls; cat > body ;; esac\n";
        runner.write("bin/gh", gh);
        fs::set_permissions(folder.join("bin/gh"), fs::Permissions::from_mode(0o755)).unwrap();
        for file in ["comments", "output", "summary"] {
            runner.write(file, "");
        }
        runner
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs the step, with all other inputs at their defaults.
    async fn step(&self, user: &User, inputs: &[(&str, &str)]) -> Done {
        let action = fs::read_to_string(Path::new(ACTION).join("action.yml")).unwrap();
        let mut run = Command::new(Path::new(ACTION).join("run.sh"));
        for name in ["HOME", "CONCORD_URL", "CONCORD_API_KEY"] {
            let command = user.command(&[]);
            let value = command.get_envs().find_map(|(known, value)| (known == name).then_some(value)?);
            value.map(|value| run.env(name, value));
        }
        let variables = action.lines().filter_map(|line| line.trim().split_once(": ${{ inputs."));
        let mut given = inputs.to_vec();
        for (variable, input) in variables {
            let input = input.trim_end_matches(" }}");
            let declared =
                action.split_once(&format!("\n  {input}:\n")).unwrap_or_else(|| panic!("{input}")).1;
            let declared = declared.split("\n  ").take_while(|line| line.starts_with("  "));
            let default = declared.filter_map(|line| line.trim().strip_prefix("default: ")).next();
            let place = given.iter().position(|(name, _)| *name == input);
            let value = place.map(|place| given.remove(place).1);
            let is_of_user = matches!(variable, "CONCORD_URL" | "CONCORD_API_KEY");
            if value.is_some() || !is_of_user {
                run.env(variable, value.or(default).unwrap_or_default().trim_matches('"'));
            }
        }
        assert_eq!(given, [], "inputs that are not declared");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = BINARY.parent().unwrap().display();
        run.env("PATH", format!("{}/bin:{program}:{}", self.folder.display(), path.to_string_lossy()))
            .env("GITHUB_OUTPUT", "output")
            .env("GITHUB_STEP_SUMMARY", "summary")
            .env("GITHUB_REF", "refs/pull/7/merge")
            .env("GITHUB_REPOSITORY", "acme/configs")
            .env("RUNNER_TEMP", &self.folder)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        let done = tokio::task::spawn_blocking(move || run.output().expect("it can be started"));
        Done::new(&done.await.expect("it does not panic"))
    }

    async fn ok(&self, user: &User, inputs: &[(&str, &str)]) -> String {
        let done = self.step(user, inputs).await;
        assert_eq!(done.code, 0, "{done:?}");
        done.out
    }
}

#[tokio::test]
async fn an_action_checks_compares_and_applies() {
    let cluster = Cluster::start("cli-github-action").await;
    let user = User::of(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let runner = Runner::new(folder.path());
    runner.write("configs/sub dir/limits.yaml", LIMITS);

    let checked = [("command", "check"), ("files", "configs\n")];
    assert!(runner.ok(&user, &checked).await.is_empty());
    runner.write("configs/wrong.yaml", "config_definition_key: limits\nconfig_key: w\ndata: {plan: gold}\n");
    let wrong = runner.step(&user, &checked).await;
    assert!(
        wrong.code == 1 && wrong.out.starts_with("::error file=configs/wrong.yaml,line=3::"),
        "{wrong:?}"
    );
    fs::remove_file(folder.path().join("configs/wrong.yaml")).unwrap();

    let compared = [("command", "diff"), ("files", "configs"), ("plan", "plan.json"), ("comment", "true")];
    runner.ok(&user, &compared).await;
    let summary = runner.read("summary");
    assert!(summary.starts_with("### Concord\n\n**3 changes, 0 unchanged**\n"), "{summary}");
    assert!(
        summary.contains("<summary><code>config limits/acme</code> would be created</summary>\n\n```diff\n"),
        "{summary}"
    );
    let body = runner.read("body");
    let (mark, text) = body.split_once('\n').unwrap();
    assert!(mark.starts_with("<!-- concord diff ") && mark.ends_with(" -->") && text == summary, "{body}");
    assert!(runner.read("calls").starts_with("api --method POST repos/acme/configs/issues/7/comments "));
    assert_eq!(runner.read("output"), "changed=true\n");

    let applied =
        [("command", "apply"), ("files", "configs"), ("plan", "plan.json"), ("reason", "as $(touch x)")];
    let done = runner.ok(&user, &applied).await;
    assert!(done.contains("config limits/acme created\n"), "{done}");
    let last = user.json(&["config", "history", "limits", "acme"]).await["results"][0].clone();
    assert_eq!(last["reason"], "as $(touch x)");
    assert!(!folder.path().join("x").exists());
    // The plan is done, and the cluster is another one.
    let again = runner.step(&user, &applied).await;
    assert_eq!(again.code, 4, "{again:?}");

    // Equal: the comment of before says so.
    runner.write("comments", "42\n43\n");
    runner
        .ok(&user, &[("command", "diff"), ("files", "configs"), ("comment", "true"), ("prune", "true")])
        .await;
    assert!(runner.read("body").ends_with("**0 changes, 3 unchanged**\n"));
    assert!(
        runner
            .read("calls")
            .ends_with("api --method PATCH repos/acme/configs/issues/comments/42 --silent --field body=@-\n")
    );
    assert!(runner.read("output").ends_with("changed=false\n"));
    assert!(runner.read("body").starts_with(&format!("{mark}\n")));
    // Other files have a comment of their own.
    let others = [("command", "diff"), ("files", "configs/sub dir"), ("comment", "true")];
    runner.ok(&user, &others).await;
    assert!(!runner.read("body").starts_with(mark));
    // What is no longer known is not said.
    let unknown = ("api-key", "unknown-unknown-unknown");
    let failed =
        runner.step(&user, &[("command", "diff"), ("files", "configs"), ("comment", "true"), unknown]).await;
    assert_eq!(failed.code, 6, "{failed:?}");
    let body = runner.read("body");
    assert!(
        body.starts_with(mark) && body.ends_with("**The comparison failed**: see the log of the pipeline.\n"),
        "{body}"
    );
    runner.write("comments", "");
    let calls = runner.read("calls");
    runner.step(&user, &[("command", "diff"), ("files", "configs"), ("comment", "true"), unknown]).await;
    assert_eq!(runner.read("calls"), calls);

    for (inputs, code) in [
        (&[("command", "delete"), ("files", "configs")][..], 2),
        (&[("command", "diff"), ("files", " \n")], 2),
        (&[("command", "diff"), ("files", "configs"), ("prune", "yes")], 2),
        (&[("command", "diff"), ("files", "configs"), ("api-key", "unknown-unknown-unknown")], 6),
        (&[("command", "check"), ("files", "configs"), ("package-url", "https://127.0.0.1:1/x")], 2),
    ] {
        let done = runner.step(&user, inputs).await;
        assert_eq!(done.code, code, "{inputs:?}: {done:?}");
    }
}
