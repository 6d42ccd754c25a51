//! `concord config edit`: edits a config in an editor.
//!
//! **Invariants:** the config is stored only if nobody has changed it since it was read. The user's text is never lost: if
//! it can't be stored, its file is kept and a message names it.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use concord_client::{Answer, Client, Error, Item, PutMode, Request};
use concord_formats::yaml;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    config::ConfigTarget,
    connection::{Failure, with_cluster},
    current::{self, config_path, definition_path},
    document, explain,
    interrupt::{self, Doing},
    output::{print_done, say},
    redacted::Redactions,
};

#[derive(Debug, Args)]
pub(super) struct EditArgs {
    #[command(flatten)]
    target: ConfigTarget,
}

/// Runs the command.
pub(super) fn run(args: &EditArgs) -> Result<(), Failure> {
    let ConfigTarget { node, tries, definition, key } = &args.target;
    with_cluster(node, tries, async |client| {
        let Some(found) = current::config(&client, definition, key).await? else {
            // The error says what does not exist.
            client.send(Request::get(config_path(definition, key))).await?;
            return Err(Failure::Failed(format!(
                "config {definition}/{key} was created just now: try again"
            )));
        };
        let schema = client.send(Request::get(format!("{}/schema", definition_path(definition)))).await?;
        let head = head(definition, key, found.revision, &schema.data()?["json_schema"]);
        let body = yaml::write_exact(&found.value);
        let file = Draft::create(&format!("{head}{body}"))?;
        let before = found.value;
        let edited = Edited { target: &args.target, head, body, before, revision: found.revision };
        edit(&client, &file, &edited).await
    })
}

/// The edited config.
struct Edited<'a> {
    target: &'a ConfigTarget,
    head: String,
    body: String,
    before: Value,
    revision: u64,
}

impl Edited<'_> {
    fn unchanged(&self) -> Result<(), Failure> {
        let ConfigTarget { definition, key, node, .. } = self.target;
        let data = json!({ "config_definition_key": definition, "config_key": key, "operation": null });
        print_done(&node.format.or_table(), &data, "config_key", "nothing was changed")
    }

    fn stored(&self, answer: &Answer) -> Result<(), Failure> {
        let ConfigTarget { definition, key, node, .. } = self.target;
        let revision = answer.revision();
        let now = revision.map(|now| now.to_string()).unwrap_or_default();
        let text = format!("config {definition}/{key} changed  revision {} → {now}", self.revision);
        let mut record = json!({
            "config_definition_key": definition, "config_key": key, "operation": "changed", "dry_run": false,
            "revision": revision, "data": answer.data()?,
        });
        let redactions = Redactions::of(&mut record, answer);
        redactions.print_done(&node.format.or_table(), &record, "config_key", text)
    }
}

/// An error with its place in the file, which contains only the data.
fn in_draft(mut item: Item) -> String {
    if item.loc.first().is_some_and(|first| first == "data") {
        item.loc.remove(0);
    }
    item.to_string()
}

/// Opens the editor until the data can be stored, or the user gives up.
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
            return Err(draft.kept("no valid change was made"));
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
                        return edited.stored(&answer);
                    }
                    Err(Error::Refused(refusal)) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
                        refusal.items.into_iter().map(in_draft).collect()
                    }
                    Err(error) => {
                        say(format_args!("your text is kept in {}", draft.0.display()));
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

/// The comment at the head of the file: the name of the config, and the fields of the schema.
fn head(definition: &str, key: &str, revision: u64, schema: &Value) -> String {
    let mut head = format!(
        "# config {definition}/{key}, revision {revision}. Save and close the editor to store your changes. These comment\n\
         # lines are not stored. If you change nothing, nothing is stored.\n"
    );
    for hint in explain::hints(schema) {
        head.push_str(&format!("#   {hint}\n"));
    }
    head
}

/// The text after the comments at its head.
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
        _ => Err("expected one YAML document".into()),
    }
}

/// The file that is open in the editor.
struct Draft(PathBuf);

impl Draft {
    fn create(text: &str) -> Result<Self, Failure> {
        let name = format!("concord-edit-{}.yaml", uuid::Uuid::now_v7());
        let draft = Self(std::env::temp_dir().join(name));
        write_private(&draft.0, text).map_err(|error| draft.failed(&error))?;
        Ok(draft)
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::Failed(format!("{}: {error}", self.0.display()))
    }

    fn kept(&self, what: &str) -> Failure {
        Failure::Failed(format!("{what}; your text is kept in {}", self.0.display()))
    }

    fn read(&self) -> Result<String, Failure> {
        fs::read_to_string(&self.0).map_err(|error| self.failed(&error))
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        // The old text stays until the new one is complete.
        let new = self.0.with_extension(format!("{}.new", uuid::Uuid::now_v7()));
        let written = write_private(&new, text).and_then(|()| fs::rename(&new, &self.0));
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
            // The shell did not find the program.
            Ok(status) if status.code() == Some(127) => {
                let editor = editor.to_string_lossy();
                Err(failed(&format!("editor `{editor}` was not found: set VISUAL or EDITOR")))
            }
            Ok(status) => Err(failed(&format!("the editor failed: {status}"))),
            Err(error) => Err(failed(&format!("the editor can't be started: {error}"))),
        }
    }
}

/// Creates a file. The data may be secret, and the file must not be a link that another user has created.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// The editor of the user.
fn editor() -> OsString {
    let set = |name| std::env::var_os(name).filter(|text| !text.is_empty());
    set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into())
}

/// VISUAL and EDITOR may contain arguments, so a shell runs them.
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
