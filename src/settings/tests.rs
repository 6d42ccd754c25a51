//! The checks of the command line.

use std::io::Write as _;

use clap::{CommandFactory as _, FromArgMatches as _};

use super::*;

#[derive(Debug, clap::Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    serve: ServeArgs,
}

const KEY: &str = "a-root-key-of-length";
const SECRET: &str = "a-cluster-secret-too";

/// The settings of a command line, whatever the environment of the test says.
fn settings(more: &[&str]) -> Result<Settings, String> {
    let line = ["concord", "--node-id", "1", "--data-dir", "d"].iter().chain(more);
    let command = Line::command().mut_args(|arg| arg.env(None::<&'static str>));
    let matches = command.try_get_matches_from(line).map_err(|error| error.to_string())?;
    Settings::check(Line::from_arg_matches(&matches).map_err(|error| error.to_string())?.serve)
}

fn with_secrets(more: &[&str]) -> Result<Settings, String> {
    settings(&[&["--api-key", KEY, "--cluster-secret", SECRET], more].concat())
}

#[test]
fn the_packaged_unit_and_its_environment_name_every_file_of_the_settings() {
    let unit = include_str!("../../cluster/concord.service");
    let environment = include_str!("../../cluster/concord.env");
    let page = include_str!("../../docs/reference/settings.md");
    let in_unit = |name: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
        lines
            .flat_map(str::split_whitespace)
            .any(|word| word.split_once('=').is_some_and(|(of, _)| of == name))
    };
    let command = Line::command();
    let names = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
    let files: Vec<&str> = names.filter(|name| name.ends_with("_FILE")).collect();
    assert!(files.len() > 10, "{files:?}");
    for name in files {
        assert!(page.contains(&format!("| `{name}` |")), "settings.md does not list {name}");
        let is_line = |line: &str| line.strip_prefix(&format!("#{name}=/etc/concord/")).is_some();
        let in_environment = environment.lines().any(is_line);
        assert!(in_unit(name) != in_environment, "{name} is in the unit or in its environment file, once");
    }
    // Nodes learn of a lost key while they run.
    assert!(unit.contains("CONCORD_PEER_REVOKED_FILE=/etc/concord/revoked"));
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let settings = with_secrets(&[]).unwrap();
    assert_eq!(settings.limits, Limits::default());
    assert_eq!(settings.write_timeout, Duration::from_secs(10));
    assert_eq!(settings.header_timeout, Duration::from_secs(10));
    assert_eq!(settings.api_addr, "127.0.0.1:8101");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(settings.worker_threads, (cores - 1).max(1), "Raft has one core");
}

#[test]
fn a_node_without_a_key_or_a_secret_does_not_start() {
    assert!(settings(&["--cluster-secret", SECRET]).unwrap_err().contains("--api-key"));
    assert!(settings(&["--api-key", "", "--cluster-secret", SECRET]).unwrap_err().contains("--api-key"));
    assert!(settings(&["--api-key", KEY]).unwrap_err().contains("--cluster-secret"));
    let short = settings(&["--api-key", "short", "--cluster-secret", SECRET]).unwrap_err();
    assert!(short.contains("needs 16") && !short.contains("short"), "{short}");
    assert!(settings(&["--api-key", KEY, "--cluster-secret", KEY]).unwrap_err().contains("differ"));
}

#[cfg(feature = "encrypted-backups")]
#[test]
fn backups_are_encrypted_and_signed_or_neither() {
    use concord_storage::snapshot::envelope::{new_identity, new_signing_key};
    let (_, recipient) = new_identity().unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(new_signing_key().unwrap().0.as_bytes()).unwrap();
    let (recipients, signing) =
        (["--backup-recipients", &recipient], ["--backup-signing-key-file", file.path().to_str().unwrap()]);
    assert!(with_secrets(&[]).unwrap().at_rest.backups.is_none());
    assert!(with_secrets(&["--backup-recipients", ""]).unwrap().at_rest.backups.is_none());
    assert!(with_secrets(&[recipients, signing].concat()).unwrap().at_rest.backups.is_some());
    assert!(with_secrets(&recipients).unwrap_err().contains("--backup-signing-key-file"));
    assert!(with_secrets(&signing).unwrap_err().contains("--backup-recipients"));
    let none = with_secrets(&[&["--backup-recipients", "somebody"], &signing[..]].concat()).unwrap_err();
    assert!(none.contains("`somebody`"), "{none}");
}

#[test]
fn a_listener_that_others_reach_is_encrypted() {
    let refused = |more: &[&str]| with_secrets(more).unwrap_err();
    assert!(refused(&["--api-addr", "0.0.0.0:1"]).contains("--tls-cert-file"));
    assert!(refused(&["--peer-addr", "node1:1"]).contains("--peer-ca-file"));
    let both = ["--api-addr", "0.0.0.0:1", "--peer-addr", "[::]:1"];
    with_secrets(&[&both[..], &["--insecure"]].concat()).unwrap();
    let callers = ["--tls-cert-file", "c", "--tls-key-file", "k"];
    let nodes = ["--peer-cert-file", "c", "--peer-key-file", "k", "--peer-ca-file", "a"];
    let tls = with_secrets(&[&both[..], &callers, &nodes].concat()).unwrap().tls;
    assert!(tls.callers.is_some() && !tls.has_plain_calls());
    assert!(refused(&[&both[..], &callers].concat()).contains("--peer-addr"));
    for part in [&callers[..2], &nodes[..4], &["--tls-client-ca-file", "a"], &["--peer-tls", "migrate"]] {
        assert!(refused(part).contains("together"), "{part:?}");
    }
}

#[test]
fn a_secret_is_needed_for_plain_calls_only() {
    let nodes = ["--api-key", KEY, "--peer-cert-file", "c", "--peer-key-file", "k", "--peer-ca-file", "a"];
    assert!(settings(&nodes).unwrap().cluster_secrets.is_empty());
    let migrating = [&nodes[..], &["--peer-tls", "migrate"]].concat();
    assert!(settings(&migrating).unwrap_err().contains("--cluster-secret"));
    assert!(
        settings(&[&migrating[..], &["--cluster-secret", SECRET]].concat()).unwrap().tls.has_plain_calls()
    );
}

#[test]
fn secrets_are_read_from_files_and_rotated() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{SECRET},{SECRET}-old").unwrap();
    let path = file.path().to_str().unwrap();
    let settings_of = |more: &[&str]| settings(&[&["--api-key", KEY], more].concat());
    let settings = settings_of(&["--cluster-secret-file", path]).unwrap();
    assert_eq!(settings.cluster_secrets.len(), 2);
    assert_eq!(settings.cluster_secrets[0].expose(), SECRET);
    assert!(with_secrets(&["--cluster-secret-file", path]).unwrap_err().contains("both"));
    assert!(settings_of(&["--cluster-secret-file", "/nowhere"]).unwrap_err().contains("/nowhere"));
}

#[test]
fn the_keys_of_certificates_keep_their_mode_and_are_refused_where_others_may_change_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    for (certificate_flag, key_flag, more) in [
        ("--tls-cert-file", "--tls-key-file", &[][..]),
        ("--peer-cert-file", "--peer-key-file", &["--peer-ca-file", "ca.pem"]),
    ] {
        let path = directory.path().join(key_flag);
        std::fs::write(&path, "a key").unwrap();
        let flags = [&[certificate_flag, "c.pem", key_flag, path.to_str().unwrap()], more].concat();
        for (mode, is_refused) in [(0o644, false), (0o646, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = with_secrets(&flags).err();
            assert_eq!(refused.is_some(), is_refused, "{key_flag}");
            assert!(refused.is_none_or(|why| why.starts_with(key_flag) && why.contains("others may change")));
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{key_flag}");
        }
    }
}

#[test]
fn debug_shows_no_secret() {
    let settings = with_secrets(&[]).unwrap();
    let shown = format!("{settings:?}");
    assert!(!shown.contains(KEY) && !shown.contains(SECRET), "{shown}");
}

#[test]
fn an_error_names_its_flag() {
    for (flags, named) in [
        (&["--node-id", "0"][..], "--node-id"),
        (&["--api-addr", "8101"], "--api-addr"),
        (&["--peer-addr", "x:0"], "--peer-addr"),
        (&["--json-depth", "101"], "--json-depth"),
        (&["--batch-operations", "1025"], "--batch-operations"),
        (&["--body-bytes", "0"], "--body-bytes"),
        (&["--body-bytes", "99999999"], "--body-bytes"),
        (&["--data-bytes", "9000000"], "--data-bytes"),
        (&["--heartbeat-ms", "700"], "ascend"),
        (&["--election-max-ms", "500"], "ascend"),
        (&["--write-timeout-ms", "1"], "--write-timeout-ms"),
        (&["--worker-threads", "0"], "--worker-threads"),
        (&["--peers", "1=a:1@a:2,2=b:1@b:2,1=c:1@c:2"], "--peers names node 1 twice"),
    ] {
        let error = with_secrets(flags).unwrap_err();
        assert!(error.contains(named), "{flags:?}: {error}");
    }
}

#[test]
fn members_are_parsed() {
    let member = parse_member("3=10.0.0.3:8101@node3:8201").unwrap();
    assert_eq!(
        (member.id, member.api_addr.as_str(), member.peer_addr.as_str()),
        (3, "10.0.0.3:8101", "node3:8201")
    );
    for bad in ["", "3", "3=a:1", "0=a:1@b:2", "x=a:1@b:2", "3=a@b:2", "3=a:1@b"] {
        assert!(parse_member(bad).is_err(), "{bad}");
    }
}

#[test]
fn libraries_are_quiet_unless_they_are_named() {
    use tracing_subscriber::EnvFilter;
    let shown = |log: &str| {
        let traces = TraceArgs::default();
        let args = LogArgs { log_format: LogFormat::Text, log: log.into(), metrics_addr: None, traces };
        EnvFilter::try_new(args.filter()).unwrap().to_string()
    };
    for log in ["info", "debug"] {
        assert!(shown(log).contains("raft_log=warn") && shown(log).contains(log), "{}", shown(log));
    }
    // A level below those of the libraries is not raised.
    assert_eq!((shown("error"), shown("off")), ("error".into(), "off".into()));
    assert!(shown("info,raft_log=debug").contains("raft_log=debug"));
    assert!(!shown("info,raft_log=debug").contains("raft_log=warn"));
}
