//! The metrics of the process: memory, CPU time, open files.
//!
//! The names are those of all Prometheus libraries. Without `/proc` the metrics have no samples.

use std::fs;

use super::family::{Labels, MetricFamily, Number};

/// The unit of times in `/proc`: the kernel gives them in hundredths of a second, whatever its own clock does.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the metrics.
pub(super) fn families() -> Vec<MetricFamily> {
    let [status, stat, kernel, limits] =
        ["self/status", "self/stat", "stat", "self/limits"].map(|name| of_kernel(name).unwrap_or_default());
    let open = fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
    // While the directory is read, it is open itself.
    let open = open.filter(|_| !cfg!(feature = "simulation")).map(|files| files.saturating_sub(1));
    let seconds = |ticks: u64| ticks.number() / TICKS_PER_SECOND;
    let began = Option::zip(boot_time(&kernel), field(&stat, START_TIME))
        .map(|(boot, since)| boot.number() + seconds(since));
    let spent = Option::zip(field(&stat, USER_TIME), field(&stat, SYSTEM_TIME))
        .map(|(user, system)| seconds(user + system));
    let parts = [("anonymous", "RssAnon"), ("file", "RssFile"), ("shared", "RssShmem")];
    let parts = parts
        .into_iter()
        .filter_map(|(part, name)| Some((vec![("part", part.to_owned())], kibibytes(&status, name)?)));
    vec![
        maybe(
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM.",
            kibibytes(&status, "VmRSS"),
        ),
        maybe("process_virtual_memory_bytes", "Address space of the process.", kibibytes(&status, "VmSize")),
        MetricFamily::gauges(
            "concord_memory_resident_bytes",
            "Parts of the memory in RAM: what was allocated, with what the allocator retains; pages of files; shared.",
            parts,
        ),
        maybe("process_open_fds", "Open files and sockets.", open),
        maybe("process_max_fds", "The limit of open files and sockets.", open_files_max(&limits)),
        maybe("process_threads", "Threads.", value(&status, "Threads")),
        maybe("process_start_time_seconds", "When the process began, in seconds since 1970.", began),
        MetricFamily::counters(
            "process_cpu_seconds",
            "CPU time that the process has used.",
            spent.map(|spent| (Labels::new(), spent)),
        ),
    ]
}

/// Bytes of this process that are in RAM.
pub(crate) fn resident_bytes() -> Option<u64> {
    kibibytes(&of_kernel("self/status")?, "VmRSS")
}

/// A file below `/proc`.
fn of_kernel(name: &str) -> Option<String> {
    // What this process holds and has spent does not follow from a seed.
    if cfg!(feature = "simulation") {
        return None;
    }
    fs::read_to_string(format!("/proc/{name}")).ok()
}

fn maybe(name: &'static str, help: &'static str, value: Option<impl Number>) -> MetricFamily {
    MetricFamily::gauges(name, help, value.map(|value| (Labels::new(), value)))
}

/// Positions in `/proc/self/stat` after the name of the command, which may contain spaces.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const START_TIME: usize = 19;

fn field(stat: &str, place: usize) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(place)?.parse().ok()
}

/// The first number after a name in a list of `name: number`.
fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    value(status, name)?.checked_mul(1024)
}

fn boot_time(kernel: &str) -> Option<u64> {
    kernel.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The soft limit. `None` if there is none.
fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_system_are_read() {
        let status = "Name:\tconcord\nVmRSS:\t   42 kB\nRssAnon:\t   40 kB\nThreads:\t9\n";
        assert_eq!(kibibytes(status, "VmRSS"), Some(42 << 10));
        assert_eq!(value(status, "Threads"), Some(9));
        assert_eq!(kibibytes(status, "VmSize"), None);
        let stat = "77 (a b) c) S 1 77 77 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 12345 1 2";
        assert_eq!(field(stat, USER_TIME), Some(150));
        assert_eq!(field(stat, SYSTEM_TIME), Some(50));
        assert_eq!(field(stat, START_TIME), Some(12345));
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        assert_eq!(open_files_max(limits), Some(1024));
        assert_eq!(
            open_files_max("Max open files            unlimited            unlimited            files\n"),
            None
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_figures() {
        let page = super::super::family::render(families());
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"] {
            assert!(page.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {page}");
        }
    }
}
