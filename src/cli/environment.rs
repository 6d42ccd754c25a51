//! The variables of the environment that look like settings of a node.
//!
//! **Invariant:** a setting that is misspelt is reported: without the setting, a node may run unencrypted. It is no
//! reason to refuse the start, because other programs have variables with the same beginning.

use std::collections::BTreeSet;

use super::{declared, secret_source};

const PREFIX: &str = "CONCORD_";
/// The command whose settings a misspelt name may have been meant for.
const SERVE: &str = "serve";
/// The names that no option has: what the agent tells the commands that it runs, and the settings of scripts and tests.
const OTHERS: [&str; 15] = [
    "CONCORD_AGENT_FILE",
    "CONCORD_BIN",
    "CONCORD_CHAOS",
    "CONCORD_CHAOS_MOUNTS",
    "CONCORD_CHAOS_NETNS",
    "CONCORD_CHAOS_TLS",
    "CONCORD_DATA",
    "CONCORD_OLD_BIN",
    "CONCORD_ORACLE",
    "CONCORD_PROFILE",
    "CONCORD_SABOTAGE",
    "CONCORD_SCHEMAS",
    "CONCORD_SUITE",
    "CONCORD_TEST_FEATURE_LEVEL",
    "CONCORD_WAIT_S",
];

/// Logs each variable that looks like a setting and is unknown.
pub(super) fn report_unknown() {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for (name, meant) in unknown(&declared(), names) {
        tracing::error!(
            "the environment variable `{}` is unknown and has no effect: the setting with the nearest name is `{meant}`",
            name.escape_debug()
        );
    }
}

/// The names that are unknown, each with the setting of a node that has the nearest name.
fn unknown(command: &clap::Command, names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let known = declared_names(command);
    let settings = command.find_subcommand(SERVE).map(declared_names).unwrap_or_default();
    let looks_like_one = |name: &String| {
        name.starts_with(PREFIX)
            && !known.contains(name)
            && !OTHERS.contains(&name.as_str())
            && !is_of_service(name)
            && !name.starts_with(secret_source::PREFIX)
    };
    let unknown: BTreeSet<String> = names.filter(looks_like_one).collect();
    unknown
        .into_iter()
        .map(|name| (nearest(&name, &settings), name))
        .map(|(meant, name)| (name, meant))
        .collect()
}

/// The variables that the options of a command and of its subcommands are read from.
fn declared_names(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str().map(str::to_owned));
    own.chain(command.get_subcommands().flat_map(declared_names)).collect()
}

/// Whether Kubernetes sets the variable in each container, where a service has the name `concord`.
fn is_of_service(name: &str) -> bool {
    name.ends_with("_PORT")
        || ["_PORT_", "_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|part| name.contains(part))
}

/// The name that an unknown one begins, as where `_FILE` is missing, or else the one that is most alike.
fn nearest(name: &str, settings: &BTreeSet<String>) -> String {
    let rest = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let begun = settings.iter().find(|setting| setting.starts_with(name));
    let alike = |setting: &&String| strsim::damerau_levenshtein(&rest(setting), &rest(name));
    begun.or_else(|| settings.iter().min_by_key(alike)).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Vec<(String, String)> {
        unknown(&declared(), names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn a_misspelt_setting_is_named_with_the_one_that_was_meant() {
        for (name, meant) in [
            ("CONCORD_DATA_KEY", "CONCORD_DATA_KEY_FILE"),
            ("CONCORD_PEER_REVOKED", "CONCORD_PEER_REVOKED_FILE"),
            ("CONCORD_TLS_CLIENT_CA", "CONCORD_TLS_CLIENT_CA_FILE"),
            ("CONCORD_LEASE_READ", "CONCORD_LEASE_READS"),
            ("CONCORD_NODEID", "CONCORD_NODE_ID"),
            ("CONCORD_", "CONCORD_API_ADDR"),
        ] {
            assert_eq!(found(&["PATH", name]), [(name.to_owned(), meant.to_owned())]);
        }
    }

    #[test]
    fn names_of_the_product_and_of_its_surroundings_are_known() {
        let others =
            ["CONCORD_URL", "CONCORD_CONTEXT", "CONCORD_BACKUP_IDENTITY_FILE", "CONCORD_PEERS", "XCONCORD_X"];
        assert_eq!(found(&others), []);
        assert_eq!(found(&OTHERS), []);
        let service = [
            "CONCORD_PORT",
            "CONCORD_PORT_8100_TCP_ADDR",
            "CONCORD_SERVICE_HOST",
            "CONCORD_SERVICE_PORT_API",
        ];
        assert_eq!(found(&service), []);
    }

    #[test]
    fn every_name_in_the_scripts_is_known() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = ["scripts", "cluster"]
            .iter()
            .flat_map(|directory| std::fs::read_dir(root.join(directory)).unwrap());
        let files = files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let texts: Vec<String> = files.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        assert!(texts.len() > 10);
        let is_part = |char: char| char.is_ascii_uppercase() || char.is_ascii_digit() || char == '_';
        let words = texts.iter().flat_map(|text| text.split(|char| !is_part(char)));
        // What ends so is the beginning of several names.
        let names: Vec<&str> =
            words.filter(|word| word.starts_with(PREFIX) && !word.ends_with('_')).collect();
        assert!(names.len() > 50);
        assert_eq!(found(&names), []);
    }
}
