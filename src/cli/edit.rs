//! `concord config edit`: a config in an editor.
//!
//! **Invariants:** it is stored only if nobody has changed it since it was read. What a user typed is never lost: where
//! it can't be stored, its file stays and is named.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use concord_client::{Client, Error, Item, PutMode, Request};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    config::Target,
    connection::{Failure, with_cluster},
    current::{self, config_path, definition_path},
    document, explain,
    interrupt::{self, Doing},
    output::{print_done, say},
    yaml_writer,
};

#[derive(Debug, Args)]
pub(super) struct EditArgs {
    #[command(flatten)]
    target: Target,
}

/// Runs the command.
pub(super) fn run(args: &EditArgs) -> Result<(), Failure> {
    let Target { node, tries, definition, key } = &args.target;
    with_cluster(node, tries, async |client| {
        let Some(found) = current::config(&client, definition, key).await? else {
            // The refusal itself says what is missing.
            client.send(Request::get(config_path(definition, key))).await?;
            return Err(Failure::Failed(format!("config {definition}/{key} appeared just now: try again")));
        };
        let schema = client.send(Request::get(format!("{}/schema", definition_path(definition)))).await?;
        let head = head(definition, key, found.revision, &schema.data()?["json_schema"]);
        let body = yaml_writer::write(&found.value);
        let file = Draft::create(&format!("{head}{body}"))?;
        let before = found.value;
        let edited = Edited { target: &args.target, head, body, before, revision: found.revision };
        edit(&client, &file, &edited).await
    })
}

/// What is edited.
struct Edited<'a> {
    target: &'a Target,
    head: String,
    body: String,
    before: Value,
    revision: u64,
}

impl Edited<'_> {
    fn unchanged(&self) -> Result<(), Failure> {
        let Target { definition, key, node, .. } = self.target;
        let data = json!({ "config_definition_key": definition, "config_key": key, "operation": null });
        print_done(&node.format.or_table(), &data, "config_key", "nothing was changed")
    }

    fn stored(&self, revision: Option<u64>, data: Value) -> Result<(), Failure> {
        let Target { definition, key, node, .. } = self.target;
        let now = revision.map(|now| now.to_string()).unwrap_or_default();
        let text = format!("configured {definition}/{key}  revision {} → {now}", self.revision);
        let record = json!({
            "config_definition_key": definition, "config_key": key, "operation": "changed", "dry_run": false,
            "revision": revision, "data": data,
        });
        print_done(&node.format.or_table(), &record, "config_key", text)
    }
}

/// A reason with its place in the file, which has the data alone.
fn in_draft(mut item: Item) -> String {
    if item.loc.first().is_some_and(|first| first == "data") {
        item.loc.remove(0);
    }
    item.to_string()
}

/// Opens the editor until what is in the file can be stored, or the user gives up.
async fn edit(client: &Client, draft: &Draft, edited: &Edited<'_>) -> Result<(), Failure> {
    let mut last = edited.body.clone();
    loop {
        draft.open_editor()?;
        let text = draft.read()?;
        let body = without_head(&text);
        let is_same = body.trim_end() == last.trim_end();
        if is_same && last == edited.body {
            draft.remove()?;
            return edited.unchanged();
        }
        if is_same || body.trim().is_empty() {
            return Err(draft.kept("given up"));
        }
        let errors = match parse(body) {
            Err(error) => vec![error],
            Ok(data) if document::is_same(&data, &edited.before) => {
                draft.remove()?;
                return edited.unchanged();
            }
            Ok(data) => {
                interrupt::now(Doing::Storing(draft.0.clone()));
                let operation = edited.target.put(data, PutMode::ReplaceIf(edited.revision));
                match client.send(Request::operation(&operation)).await {
                    Ok(answer) => {
                        draft.remove()?;
                        return edited.stored(answer.revision(), answer.data()?);
                    }
                    Err(Error::Refused(refusal)) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
                        refusal.items.into_iter().map(in_draft).collect()
                    }
                    Err(error) => {
                        say(format_args!("what you typed is kept in {}", draft.0.display()));
                        return Err(error.into());
                    }
                }
            }
        };
        interrupt::now(Doing::Reading);
        errors.iter().for_each(|error| say(format_args!("error: {error}")));
        let notes: Vec<String> =
            errors.iter().flat_map(|error| error.lines()).map(|text| format!("# error: {text}\n")).collect();
        draft.write(&format!("{}#\n{}{body}", edited.head, notes.concat()))?;
        body.clone_into(&mut last);
    }
}

/// The lines at the head: what is edited, and what the schema says of its fields.
fn head(definition: &str, key: &str, revision: u64, schema: &Value) -> String {
    let mut head = format!(
        "# config {definition}/{key}, revision {revision}. Save and close to store it; lines at the head with # are left\n\
         # out. Close without a change to leave everything as it is.\n"
    );
    for hint in explain::hints(schema) {
        head.push_str(&format!("#   {hint}\n"));
    }
    head
}

/// The text behind the comments at its head.
fn without_head(text: &str) -> &str {
    let mut rest = text;
    while rest.starts_with('#') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest
}

fn parse(text: &str) -> Result<Value, String> {
    let mut read = document::read_yaml(text).map_err(|error| format!("line{error}"))?;
    match (read.pop(), read.is_empty()) {
        (Some(document), true) => Ok(document.value),
        _ => Err("expected one document".into()),
    }
}

/// The file that the editor has.
struct Draft(PathBuf);

impl Draft {
    fn create(text: &str) -> Result<Self, Failure> {
        let name = format!("concord-edit-{}.yaml", uuid::Uuid::now_v7());
        let draft = Self(std::env::temp_dir().join(name));
        // It may hold secrets, and nobody may have put a link there.
        let file = File::options().write(true).create_new(true).mode(0o600).open(&draft.0);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| draft.failed(&error))?;
        Ok(draft)
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::Failed(format!("{}: {error}", self.0.display()))
    }

    fn kept(&self, what: &str) -> Failure {
        Failure::Failed(format!("{what}; what you typed is kept in {}", self.0.display()))
    }

    fn read(&self) -> Result<String, Failure> {
        fs::read_to_string(&self.0).map_err(|error| self.failed(&error))
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        // What is there stays until all of the new text is.
        let new = self.0.with_extension("new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.0));
        written.map_err(|error| self.failed(&error))
    }

    fn remove(&self) -> Result<(), Failure> {
        fs::remove_file(&self.0).map_err(|error| self.failed(&error))
    }

    fn open_editor(&self) -> Result<(), Failure> {
        let editor = editor();
        let before = self.read()?;
        interrupt::now(Doing::Editing);
        let status = command(&editor, &self.0).status();
        interrupt::now(Doing::Reading);
        let failed = |what: &str| {
            if self.read().is_ok_and(|after| after == before) && self.remove().is_ok() {
                return Failure::Failed(format!("{what}; nothing was changed"));
            }
            self.kept(what)
        };
        match status {
            Ok(status) if status.success() => Ok(()),
            // A shell answers so when there is no such program.
            Ok(status) if status.code() == Some(127) => {
                let editor = editor.to_string_lossy();
                Err(failed(&format!("there is no editor `{editor}`: set VISUAL or EDITOR")))
            }
            Ok(status) => Err(failed(&format!("the editor ended with {status}"))),
            Err(error) => Err(failed(&format!("the editor can't be started: {error}"))),
        }
    }
}

/// The editor of the user.
fn editor() -> OsString {
    let set = |name| std::env::var_os(name).filter(|text| !text.is_empty());
    set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into())
}

/// An editor may have arguments, so a shell reads it.
fn command(editor: &OsString, file: &Path) -> Command {
    let mut script = editor.clone();
    script.push(" \"$1\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg("sh").arg(file);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_at_the_head_are_left_out_and_others_are_not() {
        assert_eq!(without_head("# a\n#\nb: 1\n# c\n"), "b: 1\n# c\n");
        assert_eq!(without_head("# a"), "");
    }

    #[test]
    fn the_head_has_the_hints_of_the_schema() {
        let schema = json!({"required": ["limit"], "properties": {"limit": {"type": "integer", "minimum": 1, "description": "a\nb"}}});
        let head = head("d", "k", 7, &schema);
        assert!(head.contains("revision 7"));
        assert!(head.contains("#   limit: integer, required, at least 1: a b\n"), "{head}");
        assert!(head.lines().all(|line| line.starts_with('#')));
    }
}
