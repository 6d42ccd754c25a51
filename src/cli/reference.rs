//! Output derived from the declaration of the commands: the sections of their help, completions and manual pages.

use std::{fmt::Write as _, fs, io, path::Path};

use clap::{Arg, Command};
use clap_complete::Shell;

use super::{connection::Failure, output};

/// The commands of `concord --help` by topic: clap lists subcommands without headings.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Configs",
        &[
            "get",
            "apply",
            "diff",
            "check",
            "schema",
            "changes",
            "undo",
            "explain",
            "definition",
            "config",
            "flag",
            "transaction",
            "export",
            "import",
        ],
    ),
    ("Environments", &["env", "change", "gate", "notify", "promote", "freeze", "unfreeze"]),
    ("Cluster", &["serve", "cluster", "top", "probe", "backup", "verify", "restore", "recover", "plan"]),
    (
        "Security",
        &[
            "key",
            "identity",
            "role",
            "session",
            "login",
            "logout",
            "whoami",
            "recover-root",
            "cert",
            "keygen",
            "audit",
        ],
    ),
    (
        "Tools",
        &["demo", "context", "exec", "agent", "mcp", "bench", "openapi", "completions", "man", "version"],
    ),
];

/// Options that many commands share, by section. The sections follow the options of the command itself.
const SECTIONS: [(&str, &[&str]); 2] = [
    ("Common options", &["output", "quiet", "verbose", "timeout_s", "reason", "request_id", "env"]),
    (
        "Connection",
        &[
            "url",
            "context",
            "api_key",
            "api_key_file",
            "provider",
            "token_file",
            "cacert",
            "cert",
            "key_of_cert",
        ],
    ),
];

/// Options that mean something else for a node, whose settings declare them.
const OF_CLIENTS: [(&str, &str); 2] = [
    ("api_key", "Access key; other users of this machine can see it: prefer --api-key-file or the variable"),
    ("api_key_file", "File that holds the access key"),
];

/// A command with its common options in sections of their own, and the same for the commands below it.
fn in_sections(command: Command) -> Command {
    // The options of these are not those of a client: a node has settings, and a context stores a connection.
    if matches!(command.get_name(), "serve" | "demo-node" | "context") {
        return command;
    }
    let of = |id: &str| SECTIONS.iter().find(|(_, ids)| ids.contains(&id)).map(|(heading, _)| *heading);
    let help = |id: &str| OF_CLIENTS.iter().find(|(name, _)| *name == id).map(|(_, help)| *help);
    let moved = |arg: Arg| {
        let (heading, help) = (of(arg.get_id().as_str()), help(arg.get_id().as_str()));
        let arg = if let Some(heading) = heading { arg.help_heading(heading) } else { arg };
        if let Some(help) = help { arg.help(help) } else { arg }
    };
    command.mut_args(moved).mut_subcommands(in_sections)
}

/// The program with a help that lists its commands in groups, and the common options of each in sections.
pub(super) fn in_groups(command: Command) -> Command {
    let command = in_sections(command);
    let (styles, mut groups) = (command.get_styles().clone(), String::new());
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or_default();
    for (heading, names) in GROUPS {
        // Writing to a text can't fail.
        let _ = writeln!(groups, "{header}{heading}:{header:#}");
        for found in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let _ =
                writeln!(groups, "  {literal}{:width$}{literal:#}  {}", found.get_name(), description(found));
        }
        groups.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

/// A command as the list of all commands describes it.
fn description(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if aliases.is_empty() { about } else { format!("{about} [aliases: {}]", aliases.join(", ")) }
}

/// Prints the completion script for a shell.
pub(super) fn completions(mut command: Command, shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "concord", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

/// Prints the manual page of the program, or writes the manual pages of all commands to a folder.
pub(super) fn man(mut command: Command, folder: Option<&Path>) -> Result<(), Failure> {
    command.build();
    let failed = |error: io::Error| Failure::Failed(format!("the manual pages can't be written: {error}"));
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(failed)?;
        return output::text(&String::from_utf8_lossy(&page));
    };
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = Cli::command();
        let mut shown: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn the_options_of_a_command_come_before_the_common_ones() {
        let mut command = in_groups(Cli::command());
        let mut help = |name: &str| command.find_subcommand_mut(name).unwrap().render_help().to_string();
        let apply = help("apply");
        let at = |text: &str| apply.find(text).unwrap_or_else(|| panic!("{text}: {apply}"));
        assert!(at("\nOptions:") < at("--prune") && at("--prune") < at("\nCommon options:"), "{apply}");
        assert!(at("\nCommon options:") < at("--output") && at("--output") < at("\nConnection:"), "{apply}");
        assert!(at("\nConnection:") < at("--url") && !apply.contains("root key"), "{apply}");
        let serve = help("serve");
        assert!(serve.contains("root key") && !serve.contains("Connection:"), "{serve}");
        // Each of them is an option of a command.
        let mut ids = Vec::new();
        let mut left = vec![Cli::command()];
        while let Some(one) = left.pop() {
            ids.extend(one.get_arguments().map(|arg| arg.get_id().to_string()));
            left.extend(one.get_subcommands().cloned());
        }
        let unknown: Vec<_> = SECTIONS
            .iter()
            .flat_map(|(_, names)| *names)
            .filter(|name| !ids.iter().any(|id| id == *name))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn the_help_has_a_line_for_each_command() {
        let help = in_groups(Cli::command()).render_help().to_string();
        assert!(help.contains("Usage: concord <COMMAND>\n\nConfigs:\n  get "), "{help}");
        assert!(help.contains("\nOptions:\n  -h, --help "), "{help}");
        assert!(help.contains("definition    Create") && help.contains("[aliases: def]\n"), "{help}");
        let longest = help.lines().map(str::len).max();
        assert!(longest <= Some(110), "{longest:?}: {help}");
        assert!(!help.contains("\u{1b}") && !help.contains("transfer"), "{help}");
    }
}
