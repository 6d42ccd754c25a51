//! Commands on a terminal: a progress bar, Ctrl-C, and what is left after it.
//!
//! `script` gives a command a real terminal and passes on what is typed, so that Ctrl-C is what a person sends.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use super::User;
use crate::harness::{Cluster, check, eventually};

/// The configs of the long work; `scripts/many-configs.py` has 100,000.
const CONFIGS: usize = 6000;

/// A command on a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<String>>,
    /// Ends with the last byte.
    reader: JoinHandle<()>,
}

impl Terminal {
    fn start(user: &User, arguments: &[&str]) -> Self {
        // A terminal without a size draws no bar.
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let program = crate::harness::node::BINARY.display();
        // A test run in the background of a script inherits an ignored SIGINT, which a terminal's programs don't have.
        let line =
            format!("stty cols 120 rows 40; exec env --default-signal=INT '{program}' {}", words.join(" "));
        let mut command = user.command(&[]);
        let mut script = std::process::Command::new("script");
        script.args(["-q", "-e", "-f", "-c", &line, "/dev/null"]).current_dir(&user.home).env_clear();
        script.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        script.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TERM", "xterm");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(Stdio::null());
        let mut child = script.spawn().expect("`script` of util-linux is there");
        let (mut out, keyboard) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut buffer) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, keyboard, screen, reader }
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until the screen has shown what is looked for.
    async fn until(&self, what: &str, found: impl Fn(&str) -> bool) {
        eventually(what, async || check(found(&self.screen()), || self.screen())).await;
    }

    fn type_in(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).and_then(|()| self.keyboard.flush()).expect("the terminal is open");
    }

    /// The exit code of the command.
    async fn end(mut self) -> (i32, String) {
        let status = eventually("the command ends, and all that it showed is read", async || {
            let status = self.child.try_wait().unwrap().filter(|_| self.reader.is_finished());
            status.ok_or_else(|| self.screen())
        })
        .await;
        (status.code().unwrap_or(-1), self.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The number in front of `of TOTAL UNIT` that the bar has shown last.
fn shown(screen: &str, total: &str) -> Option<usize> {
    let before = screen.rsplit(&format!(" of {total}")).nth(1)?;
    before.rsplit(|other: char| !other.is_ascii_digit() && other != ',').next()?.replace(',', "").parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_shows_how_far_it_is_and_goes_on_after_an_interruption() {
    let mut cluster = Cluster::start("cli-long").await;
    let user = User::of(&cluster);
    let mut text = String::from("[{\"config_definition_key\": \"many\"}");
    for n in 0..CONFIGS {
        write!(text, ",\n{{\"config_definition_key\": \"many\", \"config_key\": \"k{n:05}\", \"data\": {{\"n\": {n}}}}}").unwrap();
    }
    user.write("from/many.json", &format!("{text}]"));
    let total = "6,001 operations";

    // A key that may write little a second makes the work long on any machine.
    let grants = ["--grant", "read,write,define:*", "--quota", "writes_per_second=1"];
    let made = user.json(&[&["key", "create", "--name", "slow"], &grants[..]].concat()).await;
    let slow = user.clone().with("CONCORD_API_KEY", made["api_key"].as_str().unwrap());
    let mut terminal = Terminal::start(&slow, &["import", "--dir", "from"]);
    terminal.until("a part is done", |screen| shown(screen, total).is_some_and(|done| done > 0)).await;
    // Nothing more can be done, so that the interruption comes before the end.
    (1..=3).for_each(|id| cluster.node(id).pause());
    terminal.type_in(b"\x03");
    let (code, screen) = terminal.end().await;
    (1..=3).for_each(|id| cluster.node(id).resume());
    assert_eq!(code, 130, "{screen}");
    assert!(screen.contains("/s, ") && screen.contains(" left"), "rate and time: {screen}");
    assert!(
        screen.contains("interrupted: ") && screen.contains("run the same command again to apply the rest"),
        "{screen}"
    );

    // What was begun may be done, too. The rest is done by the same command; where there is no terminal there is no bar.
    let resumed = user.run(&["import", "--dir", "from"]).await;
    assert_eq!(resumed.code, 0, "{resumed:?}");
    let numbers: Vec<usize> = resumed.err.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(resumed.err.starts_with(&format!("{} changed, ", numbers[0])), "{resumed:?}");
    assert_eq!(numbers[0] + numbers[1], CONFIGS + 1, "{resumed:?}");
    assert!(numbers[0] > 0 && numbers[1] > 0, "{resumed:?}");
    let found = user.ok(&["config", "get", "many", "--limit", "1", "-o", "jsonpath={.meta.total}"]).await;
    assert_eq!(found, format!("{CONFIGS}\n"));

    // An export that is interrupted leaves whole files, and the same command writes the rest.
    let mut terminal = Terminal::start(&user, &["export", "--dir", "to"]);
    let folder = cluster.root().join("to/many/config");
    let files = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    terminal.until("files are written", |_| files() > 0).await;
    terminal.type_in(b"\x03");
    let (code, screen) = terminal.end().await;
    // It may have been at its end.
    assert!(code == 130 || (code == 0 && files() == CONFIGS), "{code}: {screen}");
    for file in std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.ends_with("}\n"), "{}: {text}", file.display());
        }
    }
    let done = user.run(&["export", "--dir", "to"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    let names =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.ends_with(".json")).count(), CONFIGS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_and_a_question_end_at_once() {
    let cluster = Cluster::start("cli-interrupt").await;
    let user = User::of(&cluster);
    user.ok(&["definition", "create", "d"]).await;
    let mut watch = Terminal::start(&user, &["config", "watch", "d"]);
    eventually("the watch is there", async || {
        user.ok(&["config", "put", "d", "k", "--upsert", "--data", r#"{"n": 1}"#]).await;
        check(watch.screen().contains("d/k "), || watch.screen())
    })
    .await;
    watch.type_in(b"\x03");
    assert_eq!(watch.end().await.0, 130);

    let mut question = Terminal::start(&user, &["config", "delete", "d", "k"]);
    question.until("it asks", |screen| screen.contains("Continue? [y/N]")).await;
    question.type_in(b"\x03");
    assert_eq!(question.end().await.0, 130);
    user.ok(&["config", "get", "d", "k"]).await;
    let mut question = Terminal::start(&user, &["config", "delete", "d", "k"]);
    question.until("it asks", |screen| screen.contains("Continue? [y/N]")).await;
    question.type_in(b"y\r");
    assert_eq!(question.end().await.0, 0);
    assert_eq!(user.run(&["config", "get", "d", "k"]).await.code, 3);
}

#[tokio::test]
async fn what_others_store_controls_no_terminal() {
    let cluster = Cluster::start("cli-controls").await;
    let user = User::of(&cluster);
    user.ok(&["definition", "create", "d"]).await;
    let evil = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}x";
    let data = serde_json::json!({ evil: evil }).to_string();
    user.ok(&["config", "put", "d", "k", "--upsert", "--data", &data]).await;
    let is_bad = |c: &char| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c);
    // The name of the member is in the reasons.
    let schema = "config_definition_key: d\njson_schema: {additionalProperties: false}\n";
    let refused = user.run_with(&["apply", "-f", "-"], schema).await;
    assert!(refused.code == 5 && refused.err.contains("owned"), "{refused:?}");
    assert_eq!(refused.err.chars().find(is_bad), None, "{refused:?}");
    for format in ["json", "jsonl", "yaml", "wide"] {
        let shown = user.ok(&["config", "get", "d", "-o", format]).await;
        assert!(shown.contains("owned"), "{format}: {shown:?}");
        assert_eq!(shown.chars().find(is_bad), None, "{format}: {shown:?}");
    }
    let json = user.json(&["config", "get", "d", "k"]).await;
    assert_eq!(json["data"][evil], evil, "the data are the same");
    // A pipe gets a text as it is, a terminal does not.
    let path = ["config", "get", "d", "k", "-o", "jsonpath={.data[*]}"];
    assert_eq!(user.ok(&path).await, format!("{evil}\n"));
    let terminal = Terminal::start(&user, &path);
    terminal.until("the text", |screen| screen.contains('x')).await;
    let screen = terminal.screen();
    assert!(
        screen.contains("owned") && !screen.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']),
        "{screen:?}"
    );
}

#[tokio::test]
async fn an_undo_asks_and_overwrites_no_change_that_is_made_meanwhile() {
    let cluster = Cluster::start("cli-undo-race").await;
    let user = User::of(&cluster);
    let batch = |n: u32| {
        let one = |key: &str| {
            format!(
                "- {{op: put_config, config_definition_key: d, config_key: {key}, upsert: true, data: {{n: {n}}}}}\n"
            )
        };
        user.write("batch.yaml", &[one("a"), one("b")].concat())
    };
    user.ok(&["definition", "create", "d"]).await;
    user.ok(&["transaction", "-f", &batch(1)]).await;
    user.ok(&["transaction", "-f", &batch(2)]).await;
    let run = user.ok(&["changes", "--limit", "1", "-o", "jsonpath={.results[0].revision}"]).await;
    let data = async |key: &str| user.json(&["config", "get", "d", key]).await["data"]["n"].clone();
    let asked = |screen: &str| screen.contains("will be set back") && screen.contains("[y/N]");

    let mut refused = Terminal::start(&user, &["undo", run.trim()]);
    refused.until("the question", asked).await;
    refused.type_in(b"n\n");
    assert_ne!(refused.end().await.0, 0);
    assert_eq!((data("a").await, data("b").await), (2.into(), 2.into()));

    let mut raced = Terminal::start(&user, &["undo", run.trim()]);
    raced.until("the question", asked).await;
    user.ok(&["config", "patch", "d", "b", "--data", r#"{"n": 3}"#]).await;
    raced.type_in(b"y\n");
    let (code, screen) = raced.end().await;
    assert!(code == 4 && screen.contains("config d/b"), "{code}: {screen}");
    assert_eq!((data("a").await, data("b").await), (2.into(), 3.into()), "all of it, or nothing");

    let mut done = Terminal::start(&user, &["undo", run.trim()]);
    done.until("the question", asked).await;
    done.type_in(b"y\n");
    assert_eq!(done.end().await.0, 8);
    assert_eq!((data("a").await, data("b").await), (1.into(), 3.into()));
}
