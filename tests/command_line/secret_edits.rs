//! Random edits of one record by a key that may not see its secret values, each beside a model.
//!
//! Each edit goes through one of the ways of the command line: the editor, a file that is applied, a replacement, a merge
//! patch, a JSON patch. A secret belongs to the element with its name, whatever happens to the list.
//!
//! **Invariant:** an edit does what the model says, or is refused and changes nothing. No output has a secret value.
//!
//! `EDITS=1000` sets how many edits there are, `SEED` which.

use serde_json::{Value, json};

use super::{Done, User};
use crate::harness::{Cluster, number};

const EDITS: u64 = 25;
const SCHEMA: &str = r#"{"config_definition_key": "db", "json_schema": {"properties": {
    "password": {"x-concord-secret": true},
    "users": {"items": {"properties": {"token": {"x-concord-secret": true}}}}}}}"#;

#[derive(Debug, Clone, PartialEq)]
struct Account {
    name: String,
    note: Option<String>,
    token: Option<String>,
}

/// The record as it is stored.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    host: String,
    password: Option<String>,
    users: Vec<Account>,
}

/// How a stored secret is written.
#[derive(Debug, Clone, Copy)]
enum Secrets<'a> {
    /// As it is.
    Plain,
    /// By the marker that keeps it, unless this model does not have it.
    Marked(&'a Model),
}

impl Model {
    fn has(&self, secret: &str) -> bool {
        self.secrets().contains(&secret)
    }

    fn secrets(&self) -> Vec<&str> {
        self.users.iter().filter_map(|user| user.token.as_deref()).chain(self.password.as_deref()).collect()
    }

    fn json(&self, secrets: Secrets<'_>) -> Value {
        let secret = |text: &str| match secrets {
            Secrets::Marked(known) if known.has(text) => json!({"$concord-keep": true}),
            Secrets::Marked(_) | Secrets::Plain => text.into(),
        };
        let mut data = json!({ "host": self.host });
        if let Some(password) = &self.password {
            data["password"] = secret(password);
        }
        let users = self.users.iter().map(|user| {
            let mut element = json!({ "name": user.name });
            if let Some(note) = &user.note {
                element["note"] = note.as_str().into();
            }
            if let Some(token) = &user.token {
                element["token"] = secret(token);
            }
            element
        });
        data["users"] = users.collect();
        data
    }
}

/// One change of what the key sees, or of a secret as a whole. Names are never used twice. The second value is the same
/// as a JSON patch.
fn edit(dice: &mut fastrand::Rng, model: &mut Model) -> Vec<Value> {
    let fresh = format!("{:x}", dice.u64(..));
    let secret = format!("secret-{fresh}");
    let len = model.users.len();
    let any = if len > 0 { dice.usize(0..len) } else { 0 };
    match dice.u8(0..9) {
        0 if len > 0 => {
            model.users.remove(any);
            vec![json!({"op": "remove", "path": format!("/users/{any}")})]
        }
        1 | 2 if len < 6 => {
            let place = dice.usize(0..=len);
            let token = dice.bool().then_some(secret);
            let user = Account { name: format!("u{fresh}"), note: None, token };
            let mut value = json!({ "name": user.name });
            if let Some(token) = &user.token {
                value["token"] = token.as_str().into();
            }
            model.users.insert(place, user);
            vec![json!({"op": "add", "path": format!("/users/{place}"), "value": value})]
        }
        3 if len > 1 => {
            let to = dice.usize(0..len);
            let user = model.users.remove(any);
            model.users.insert(to, user);
            vec![json!({"op": "move", "from": format!("/users/{any}"), "path": format!("/users/{to}")})]
        }
        4 if len > 1 => {
            model.users.reverse();
            let step = |place: usize| json!({"op": "move", "from": format!("/users/{}", len - 1), "path": format!("/users/{place}")});
            (0..len - 1).map(step).collect()
        }
        5 if len > 0 => {
            // `note` stands before `token`, and a JSON patch adds a member at the end.
            let had = model.users[any].note.replace(format!("n{fresh}")).is_some()
                || model.users[any].token.is_none();
            let value =
                json!({"op": "add", "path": format!("/users/{any}/note"), "value": format!("n{fresh}")});
            if had { vec![value] } else { Vec::new() }
        }
        6 if model.users.get(any).is_some_and(|user| user.token.is_some()) => {
            model.users[any].token = Some(secret.clone());
            vec![json!({"op": "replace", "path": format!("/users/{any}/token"), "value": secret})]
        }
        7 if model.password.is_some() => {
            model.password = Some(secret.clone());
            vec![json!({"op": "replace", "path": "/password", "value": secret})]
        }
        _ => {
            model.host = format!("h{fresh}");
            vec![json!({"op": "replace", "path": "/host", "value": model.host})]
        }
    }
}

/// The record at the beginning.
fn begin(dice: &mut fastrand::Rng) -> Model {
    let mut secret = || format!("secret-{:x}", dice.u64(..));
    let user = |name: &str, token| Account { name: name.into(), note: None, token: Some(token) };
    Model {
        host: "h".into(),
        password: Some(secret()),
        users: vec![user("a", secret()), user("b", secret())],
    }
}

/// Stores a record in one of the ways. The editor writes what it was shown into `seen`.
async fn store(blind: &User, way: u8, known: &Model, wanted: &Model, patch: &[Value]) -> Done {
    let data = wanted.json(Secrets::Marked(known));
    match way {
        0 => {
            blind.write("next", &data.to_string());
            let script =
                blind.write("editor.sh", "cat \"$1\" > seen\nif [ -e next ]; then mv next \"$1\"; fi\n");
            let editor = blind.clone().with("VISUAL", &format!("sh {script}"));
            editor.run(&["config", "edit", "db", "main", "-o", "json"]).await
        }
        1 => {
            let file = json!({"config_definition_key": "db", "config_key": "main", "data": data}).to_string();
            blind.run_with(&["apply", "-f", "-", "-o", "json"], &file).await
        }
        2 => {
            let put = ["config", "put", "db", "main", "-o", "yaml", "--data", &data.to_string()];
            blind.run(&put).await
        }
        3 => {
            // Lists are replaced as a whole, so their elements have markers.
            let patch = json!({"host": data["host"], "users": data["users"]});
            let mut patch = patch;
            if wanted.password != known.password {
                patch["password"] = data["password"].clone();
            }
            blind.run(&["config", "patch", "db", "main", "-o", "json", "--data", &patch.to_string()]).await
        }
        _ => {
            let patch = Value::from(patch.to_vec()).to_string();
            blind.run(&["config", "patch", "db", "main", "-o", "json", "--data", &patch]).await
        }
    }
}

/// A command that reads or compares: it shows no secret, and names those that the record has.
async fn look(blind: &User, dice: &mut fastrand::Rng, model: &Model) -> Done {
    let secret = model.users.iter().position(|user| user.token.is_some());
    let get = ["config", "get", "db", "main"];
    let done = match (dice.u8(0..8), secret) {
        (0, _) => blind.run(&["config", "diff", "db", "main"]).await,
        (1, _) => blind.run(&["config", "history", "db", "main", "-o", "wide"]).await,
        (2, _) => blind.run(&[&get[..], &["--for-apply"]].concat()).await,
        (3, _) => blind.run(&["export", "--dir", "files"]).await,
        (4, Some(place)) => {
            let path = format!("jsonpath={{.data.users[{place}].token}}");
            let done = blind.run(&[&get[..], &["-o", &path]].concat()).await;
            assert!(done.code == 6 && done.out.is_empty(), "{done:?}");
            done
        }
        (5, _) => {
            let file = json!({"config_definition_key": "db", "config_key": "main", "data": model.json(Secrets::Marked(model))});
            let done = blind.run_with(&["diff", "-f", "-"], &file.to_string()).await;
            assert_eq!((done.code, done.out.as_str()), (0, ""), "{done:?}");
            done
        }
        (way, _) => {
            let format = if way == 6 { "json" } else { "yaml" };
            let done = blind.run(&[&get[..], &["-o", format]].concat()).await;
            let named = done.out.matches("#/").count();
            assert_eq!((done.code, named), (0, model.secrets().len()), "{done:?}");
            done
        }
    };
    assert!([0, 1, 6, 9].contains(&done.code), "{done:?}");
    done
}

#[tokio::test]
async fn random_edits_by_a_key_that_sees_no_secrets_move_lose_and_show_none() {
    let edits = number("EDITS").unwrap_or(EDITS);
    let seed = number("SEED").unwrap_or(7);
    let cluster = Cluster::start("cli-edits").await;
    let root = User::of(&cluster);
    assert_eq!(root.run_with(&["apply", "-f", "-"], SCHEMA).await.code, 0);
    let key = root.json(&["key", "create", "--name", "blind", "--grant", "read,write:*"]).await;
    let blind = root.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let client = cluster.client(1);
    const PATH: &str = "/api/v1/config_definition/db/config/main";

    let mut dice = fastrand::Rng::with_seed(seed);
    let mut model = begin(&mut dice);
    let (mut done, mut refused, mut ways) = (0, 0, [0_u64; 5]);
    for turn in 0..edits {
        if turn % 40 == 0 {
            model = begin(&mut dice);
            let answer = client
                .put(&format!("{PATH}?upsert=true"), &json!({"data": model.json(Secrets::Plain)}))
                .await;
            assert!((200..300).contains(&answer.status), "{answer:?}");
        }
        let mut wanted = model.clone();
        let mut patch = edit(&mut dice, &mut wanted);
        let mut way = dice.u8(0..5);
        if way < 4 && dice.bool() {
            // Several changes at once may be ambiguous.
            for _ in 0..dice.u8(1..4) {
                edit(&mut dice, &mut wanted);
            }
            patch.clear();
        }
        if way == 4 && patch.is_empty() {
            way = 0;
        }
        let stored = store(&blind, way, &model, &wanted, &patch).await;
        let place = format!("edit {turn} of seed {seed}, way {way}: {model:?} → {wanted:?}: {stored:?}");
        match stored.code {
            0 => done += 1,
            // The editor was opened again and changed nothing; the others say that the data are invalid.
            1 | 5 => {
                assert!(stored.err.contains("which secret value to keep"), "{place}");
                refused += 1;
                wanted = model.clone();
            }
            _ => panic!("{place}"),
        }
        if way == 0 {
            let seen = std::fs::read_to_string(blind.home.join("seen")).unwrap();
            assert!(!seen.contains("secret-") || stored.code != 0, "{place}: {seen}");
        }
        assert!(!format!("{stored:?}").contains("secret-"), "{place}");
        let truth = client.get(PATH).await.body["data"]["data"].clone();
        assert_eq!(truth.to_string(), wanted.json(Secrets::Plain).to_string(), "{place}");
        (model, ways[usize::from(way)]) = (wanted, ways[usize::from(way)] + 1);
        let looked = look(&blind, &mut dice, &model).await;
        assert!(!format!("{looked:?}").contains("secret-"), "{place}: {looked:?}");
    }
    let files = std::fs::read_to_string(blind.home.join("files/db/config/main.json")).unwrap_or_default();
    assert!(!files.contains("secret-"), "{files}");
    println!("{edits} edits of seed {seed}: {done} done, {refused} refused, by way {ways:?}");
    assert!(done > refused, "{done} done, {refused} refused");
}
