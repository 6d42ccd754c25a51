//! What was seen, as a table for people, and as JSON for machines.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{load::Ask, run::Seen};

/// A point of the table: the medians of its rounds.
pub(crate) struct Row {
    pub(crate) ask: Ask,
    pub(crate) clients: usize,
    pub(crate) concord: Compared,
    pub(crate) http2: Option<Compared>,
    pub(crate) etcd: Seen,
    pub(crate) gateway: Option<Seen>,
}

/// Concord, and its ratios to etcd in each round.
pub(crate) struct Compared {
    pub(crate) seen: Seen,
    pub(crate) rates: Ratios,
    pub(crate) cpu: Ratios,
}

impl Compared {
    pub(crate) fn of(concord: &[Seen], etcd: &[Seen]) -> Self {
        let ratios = |figure: fn(&Seen) -> f64| {
            let of = |rounds: &[Seen]| rounds.iter().map(figure).collect::<Vec<_>>();
            Ratios::of(&of(concord), &of(etcd))
        };
        let (rates, cpu) = (ratios(|seen| seen.ops_per_s), ratios(Seen::cpu_us_per_op));
        Self { seen: median(concord), rates, cpu }
    }

    /// What the table shows of it.
    fn shown(&self) -> (&Seen, Option<&Ratios>) {
        (&self.seen, Some(&self.rates))
    }
}

/// A figure of Concord by that of etcd, in each round.
#[derive(Debug, Clone)]
pub(crate) struct Ratios(Vec<f64>);

impl Ratios {
    pub(crate) fn of(concord: &[f64], etcd: &[f64]) -> Self {
        let ratio = |(concord, etcd): (&f64, &f64)| concord / etcd.max(f64::MIN_POSITIVE);
        Self(concord.iter().zip(etcd).map(ratio).collect())
    }

    /// The median of the rounds.
    pub(crate) fn middle(&self) -> f64 {
        middle(self.0.clone())
    }

    /// The least and the greatest ratio of a round.
    pub(crate) fn spread(&self) -> (f64, f64) {
        let of = |pick: fn(f64, f64) -> f64| self.0.iter().copied().reduce(pick).unwrap_or(0.0);
        (of(f64::min), of(f64::max))
    }

    /// In the order of [`Self::middle`] and [`Self::spread`].
    pub(crate) fn json(&self) -> [f64; 3] {
        let (least, greatest) = self.spread();
        [self.middle(), least, greatest].map(rounded)
    }
}

impl Row {
    /// The row as the file of `--json` has it.
    fn json(&self) -> Value {
        let seen = |seen: &Seen| {
            json!({
                "ops_per_s": seen.ops_per_s.round(),
                "p50_ms": rounded(seen.p50_ms),
                "p99_ms": rounded(seen.p99_ms),
                "rss_mb": seen.rss_mb.round(),
                "cpu_us_per_op": rounded(seen.cpu_us_per_op()),
                "leader_cpu_us_per_op": rounded(seen.leader_cpu_us_per_op()),
                "generator_us_per_op": rounded(seen.generator_us_per_op()),
            })
        };
        let ratios = |row: &mut Value, compared: &Compared| {
            for (name, ratios) in [("ratio", &compared.rates), ("cpu_ratio", &compared.cpu)] {
                for (end, ratio) in ["", "_least", "_greatest"].iter().zip(ratios.json()) {
                    row[format!("{name}{end}")] = json!(ratio);
                }
            }
        };
        let mut row = json!({
            "load": self.ask.load.name(),
            "clients": self.clients,
            "value_bytes": self.ask.value_bytes,
            "concord": seen(&self.concord.seen),
            "etcd": seen(&self.etcd),
        });
        ratios(&mut row, &self.concord);
        if let Some(http2) = &self.http2 {
            row["concord_http2"] = seen(&http2.seen);
            ratios(&mut row["concord_http2"], http2);
        }
        row
    }
}

pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

pub(crate) fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let half = numbers.len() / 2;
    match (numbers.get(half), numbers.len() % 2) {
        (Some(upper), 0) => (numbers[half - 1] + upper) / 2.0,
        (Some(only), _) => *only,
        (None, _) => 0.0,
    }
}

/// The median of each figure over the rounds.
pub(crate) fn median(rounds: &[Seen]) -> Seen {
    let of = |figure: fn(&Seen) -> f64| middle(rounds.iter().map(figure).collect());
    let nodes = rounds.first().map_or(0, |seen| seen.cpu.len());
    Seen {
        ops_per_s: of(|seen| seen.ops_per_s),
        p50_ms: of(|seen| seen.p50_ms),
        p99_ms: of(|seen| seen.p99_ms),
        p999_ms: of(|seen| seen.p999_ms),
        cpu: (0..nodes).map(|node| middle(rounds.iter().map(|seen| seen.cpu[node]).collect())).collect(),
        generator_cpu: of(|seen| seen.generator_cpu),
        rss_mb: of(|seen| seen.rss_mb),
        flushes_per_s: of(|seen| seen.flushes_per_s),
    }
}

/// The table, in Markdown.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| load | clients | bytes | system | ops/s | ratio (least to greatest) | p50 ms | p99 ms | p99.9 ms | CPU % of a core: leader, others · generator | CPU µs/op: all nodes · leader · generator | biggest node, MB | disk flushes/s |\n|---|---:|---:|---|---:|---:|---:|---:|---:|---|---:|---:|---:|\n",
    );
    for row in rows {
        let systems = [
            ("Concord", Some(row.concord.shown())),
            ("Concord, HTTP/2", row.http2.as_ref().map(Compared::shown)),
            ("etcd", Some((&row.etcd, None))),
            ("etcd, HTTP gateway", row.gateway.as_ref().map(|seen| (seen, None))),
        ];
        for (place, (name, figures)) in systems.iter().enumerate() {
            let Some((seen, rates)) = figures else { continue };
            let cpu: Vec<String> = seen.cpu.iter().map(|cpu| format!("{cpu:.0}")).collect();
            let point = if place == 0 {
                format!("{} | {} | {}", row.ask.load.name(), row.clients, row.ask.value_bytes)
            } else {
                " | | ".to_owned()
            };
            let ratio = rates.map_or_else(String::new, |rates| {
                let (least, greatest) = rates.spread();
                format!("**{:.2}** ({least:.2} to {greatest:.2})", rates.middle())
            });
            let _ = writeln!(
                text,
                "| {point} | {name} | {:.0} | {ratio} | {:.2} | {:.2} | {:.2} | {} · {:.0} | {:.1} · {:.1} · {:.1} | {:.0} | {:.0} |",
                seen.ops_per_s,
                seen.p50_ms,
                seen.p99_ms,
                seen.p999_ms,
                cpu.join(", "),
                seen.generator_cpu,
                seen.cpu_us_per_op(),
                seen.leader_cpu_us_per_op(),
                seen.generator_us_per_op(),
                seen.rss_mb,
                seen.flushes_per_s
            );
        }
    }
    text
}

/// The rows of the file of `--json`.
pub(crate) fn json(rows: &[Row]) -> Value {
    json!({ "rows": rows.iter().map(Row::json).collect::<Vec<_>>() })
}

/// A file of sections with one more: what introduces them, the new section, the older ones.
pub(crate) fn newest_first(text: &str, section: &str) -> String {
    let section = section.trim_end();
    let heading_at =
        if text.starts_with("## ") { Some(0) } else { text.find("\n## ").map(|place| place + 1) };
    let (introduction, older) = text.split_at(heading_at.unwrap_or(text.len()));
    let parts = [introduction.trim_end(), section, older.trim_end()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n") + "\n"
}

fn first_line(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next_back().unwrap_or_default().trim().to_owned()
}

/// The machine, in one line.
pub(crate) fn machine(data: &Path) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split(':').nth(1).unwrap_or_default().trim().to_owned()
    };
    let cpu = value(&read("/proc/cpuinfo"), "model name");
    let memory_kb: f64 = value(&read("/proc/meminfo"), "MemTotal")
        .split(' ')
        .next()
        .unwrap_or_default()
        .parse()
        .unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let disk = first_line("df", &["--output=fstype", &data.to_string_lossy()]);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!(
        "{cores} × {cpu}, {:.0} GB, Linux {}, {disk}; load average before the run {load}",
        memory_kb / 1024.0 / 1024.0,
        kernel.trim()
    )
}

/// The day and the time of the run, in UTC.
pub(crate) fn now() -> String {
    first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"])
}

#[cfg(test)]
mod tests {
    use super::newest_first;

    #[test]
    fn a_section_goes_before_the_older_ones() {
        assert_eq!(newest_first("", "## b\n\nrow\n"), "## b\n\nrow\n");
        assert_eq!(newest_first("# Title\n\nHow to read.\n", "## b\n"), "# Title\n\nHow to read.\n\n## b\n");
        assert_eq!(newest_first("# Title\n\n## a\n\nrow\n", "## b\n"), "# Title\n\n## b\n\n## a\n\nrow\n");
        assert_eq!(newest_first("## a\n\n### of a\n", "## b\n"), "## b\n\n## a\n\n### of a\n");
    }
}
