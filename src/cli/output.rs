//! Prints results in the requested format.
//!
//! **Invariants:** data go to stdout and messages to stderr. JSON is the response of the API, with the same order and
//! digits. Nothing is written to a terminal but here, and nothing that could control it or that nobody sees there:
//! such characters are replaced, and in JSON and YAML escaped. A pipe gets the texts of `jsonpath` as they are.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::Args;
use concord_formats::yaml;
use concord_model::unseen::is_unseen;
use serde_json::Value;

use super::{connection::Failure, jsonpath::JsonPath, markdown};

/// The message for a format that does not exist.
const FORMATS: &str = "expected table, wide, markdown, json, jsonl, yaml, name or jsonpath=PATH";

/// A format of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Wide,
    Markdown,
    Json,
    Jsonl,
    Yaml,
    Name,
    Path(JsonPath),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "table" => Self::Table,
            "wide" => Self::Wide,
            "markdown" => Self::Markdown,
            "json" => Self::Json,
            "jsonl" => Self::Jsonl,
            "yaml" => Self::Yaml,
            "name" => Self::Name,
            _ => match text.strip_prefix("jsonpath=") {
                Some(path) => Self::Path(path.parse()?),
                None => return Err(FORMATS.into()),
            },
        })
    }
}

/// How to print.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct OutputArgs {
    /// Output format: table, wide, markdown, json, jsonl, yaml, name or jsonpath=PATH (as in jsonpath={.data.limit})
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

impl OutputArgs {
    /// The requested format, by default a table.
    pub(super) fn or_table(&self) -> Format {
        self.or(Format::Table)
    }

    /// The requested format, by default JSON.
    pub(super) fn or_json(&self) -> Format {
        self.or(Format::Json)
    }

    /// The requested format, by default this one.
    pub(super) fn or(&self, other: Format) -> Format {
        self.output.clone().unwrap_or(other)
    }
}

impl Format {
    /// Whether it is for people: some commands then print a sentence instead of data.
    pub(super) fn is_table(&self) -> bool {
        matches!(self, Self::Table | Self::Wide | Self::Markdown)
    }

    /// Whether it has one line for each record.
    pub(super) fn is_for_records(&self) -> bool {
        matches!(self, Self::Table | Self::Wide | Self::Markdown | Self::Jsonl | Self::Name)
    }
}

/// The columns of records: the heading of each, and the pointer to its value.
#[derive(Debug)]
pub(super) struct Columns {
    /// The member that `-o name` prints.
    pub(super) name: &'static str,
    pub(super) narrow: &'static [(&'static str, &'static str)],
    /// Additional columns of `wide`.
    pub(super) wide: &'static [(&'static str, &'static str)],
}

impl Columns {
    /// A table without rows, where data are printed in a format that has none.
    pub(super) fn empty(&self) -> Table {
        self.table(&[])
    }

    /// The table of data.
    pub(super) fn of(&self, data: &Value) -> Table {
        self.table(&records(data))
    }

    fn table(&self, records: &[&Value]) -> Table {
        let heads = |columns: &[(&'static str, &'static str)]| -> Vec<&'static str> {
            columns.iter().map(|(head, _)| *head).collect()
        };
        let mut table = Table::new(self.name, &heads(self.narrow), &heads(self.wide));
        for record in records {
            let columns = self.narrow.iter().chain(self.wide);
            let shown = |value: &Value| match value.as_bool() {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => cell(value),
            };
            let cells: Vec<String> =
                columns.map(|(_, pointer)| record.pointer(pointer).map(shown).unwrap_or_default()).collect();
            table.row(&cells);
        }
        table
    }
}

/// Bytes for a table.
pub(super) fn shown_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let (mut amount, mut unit) = (bytes / 1000, 0);
    while amount >= 10_000 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1000, unit + 1);
    }
    format!("{amount} {}", UNITS[unit])
}

/// The records of data: the elements of a list, otherwise the data themselves.
fn records(data: &Value) -> Vec<&Value> {
    match (data, data.get("results").and_then(Value::as_array)) {
        (_, Some(results)) => results.iter().collect(),
        (Value::Array(records), None) => records.iter().collect(),
        (one, None) => vec![one],
    }
}

/// Prints data whose columns are known beforehand.
pub(super) fn print_columns(format: &Format, data: &Value, columns: &Columns) -> Result<(), Failure> {
    print_value(format, data, &columns.of(data))
}

/// Prints what was done: as a sentence, or as data in the requested format.
pub(super) fn print_done(
    format: &Format,
    data: &Value,
    name: &'static str,
    text: impl Display,
) -> Result<(), Failure> {
    if format.is_table() { line(text) } else { print_value(format, data, &Table::new(name, &[], &[])) }
}

/// The rows of a table, and the name of the member that `-o name` prints.
#[derive(Debug)]
pub(super) struct Table {
    name: &'static str,
    head: Vec<String>,
    /// The number of columns without `wide`.
    narrow: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with columns, and with more of them when it is wide.
    pub(super) fn new(name: &'static str, head: &[&str], wide: &[&str]) -> Self {
        let all = head.iter().chain(wide).map(|text| (*text).to_owned()).collect();
        Self { name, head: all, narrow: head.len(), rows: Vec::new() }
    }

    /// Inserts columns at a place.
    pub(super) fn with_columns(mut self, place: usize, names: &[String]) -> Self {
        for (number, name) in names.iter().enumerate() {
            self.head.insert(place + number, name.to_uppercase());
        }
        self.narrow += names.len();
        self
    }

    /// Adds a row, with a cell for every column.
    pub(super) fn row(&mut self, cells: &[impl Display]) {
        self.rows.push(cells.iter().map(|cell| printable(&cell.to_string())).collect());
    }

    fn render(&self, is_wide: bool) -> String {
        let columns = if is_wide { self.head.len() } else { self.narrow };
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(self.head.iter().take(columns));
        for row in &self.rows {
            table.add_row(row.iter().take(columns));
        }
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if place == 0 { 0 } else { 2 }, 0));
        }
        let lines = table.to_string();
        let lines: Vec<&str> = lines.lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    /// A table of Markdown with the columns of `narrow`.
    fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let head = self.head.iter().take(self.narrow).map(|name| name.to_lowercase()).collect();
        let line = vec!["---".to_owned(); self.narrow];
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().take(self.narrow).map(|text| markdown::cell(text)).collect());
        [head, line].into_iter().chain(rows).map(row).collect::<Vec<_>>().join("\n")
    }
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool) -> String {
    text.chars().map(|character| if is_replaced(character) { '\u{fffd}' } else { character }).collect()
}

/// A text of one line, all of which is seen.
pub(super) fn printable(text: &str) -> String {
    replaced(text, is_unseen)
}

/// A text of several lines, all of which is seen.
fn clean(text: &str) -> String {
    replaced(text, |character| is_unseen(character) && !matches!(character, '\n' | '\t'))
}

/// JSON whose strings have those characters escaped. JSON has them nowhere else.
pub(super) fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if is_unseen(character) && character != '\n' {
            // JSON writes what is beyond 16 bits as two.
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(character);
        }
    }
    out
}

/// A value in a cell: text as it is, anything else as JSON.
pub(super) fn cell(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_null() => String::new(),
        None => value.to_string(),
    }
}

/// Prints data: the records of a list one by one where the format has a line for each.
pub(super) fn print_value(format: &Format, data: &Value, table: &Table) -> Result<(), Failure> {
    let records = records(data);
    // Many lines are one write.
    let lines = |lines: Vec<String>| text(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    match format {
        Format::Table => line(table.render(false)),
        Format::Wide => line(table.render(true)),
        Format::Markdown => line(table.markdown()),
        Format::Json => line(escaped(&format!("{data:#}"))),
        Format::Jsonl => lines(records.iter().map(|record| escaped(&record.to_string())).collect()),
        Format::Yaml => text(&yaml::write(data)),
        Format::Name => lines(records.iter().map(|record| cell(&record[table.name])).collect()),
        Format::Path(path) => lines(path.find(data).into_iter().map(cell).collect()),
    }
}

/// Prints a line.
pub(super) fn line(text_of_line: impl Display) -> Result<(), Failure> {
    text(&format!("{text_of_line}\n"))
}

/// Prints a text. If the reader closes the pipe early, as `head` does, the command ends without an error.
pub(super) fn text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { Cow::Owned(clean(text)) } else { Cow::Borrowed(text) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::Closed
        } else {
            Failure::Failed(format!("stdout: {error}"))
        }
    })
}

/// Prints a message to stderr.
pub(super) fn say(text: impl Display) {
    // There is nowhere to report a failure to print.
    let _ = io::stderr().write_all(clean(&format!("{text}\n")).as_bytes());
}

/// Whether notes and progress are suppressed.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses notes and progress.
pub(super) fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Whether notes and progress are suppressed.
pub(super) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints a note to stderr, unless the command is quiet.
pub(super) fn note(text: impl Display) {
    if !is_quiet() {
        say(text);
    }
}

/// A number with its noun, in the singular or plural.
pub(super) fn counted(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Asks for confirmation, unless `--yes` is given.
///
/// # Errors
/// When the answer is no, or there is no terminal.
pub(super) fn confirm(what: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("{what}: confirm with --yes")));
    }
    let mut answer = String::new();
    let asked = write!(io::stderr(), "{}. Continue? [y/N] ", printable(what));
    asked.and_then(|()| io::stdin().read_line(&mut answer)).map_err(|error| error.to_string())?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(Failure::Failed("cancelled; nothing was changed".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_keeps_them_short() {
        let shown = [0, 9_999, 2_500_000, 40_000_000_000, u64::MAX].map(shown_bytes);
        assert_eq!(shown, ["0 kB", "9 kB", "2500 kB", "40 GB", "18446744 TB"]);
    }

    #[test]
    fn a_table_has_its_columns_and_no_control_characters() {
        let mut table = Table::new("key", &["KEY", "AT"], &["DATA"]).with_columns(1, &["plan".into()]);
        table.row(&["a", "free", "now", "{}"]);
        table.row(&["longer", "p\u{1b}[2J\u{202e}", "", ""]);
        assert_eq!(
            table.render(false),
            "KEY     PLAN    AT\na       free    now\nlonger  p\u{fffd}[2J\u{fffd}"
        );
        assert!(table.render(true).starts_with("KEY     PLAN    AT   DATA\n"));
    }

    #[test]
    fn nothing_that_is_printed_controls_a_terminal() {
        let text = "a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\u{2066}\r\n\tb\u{200b}\u{e0041}";
        let shown = clean(text);
        assert_eq!(shown, "a\u{fffd}]0;x\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}\n\tb\u{fffd}\u{fffd}");
        let value = serde_json::json!({ text: [text] });
        for json in [escaped(&value.to_string()), escaped(&format!("{value:#}"))] {
            assert!(!json.chars().any(|c| is_unseen(c) && c != '\n'), "{json:?}");
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
    }

    #[test]
    fn columns_take_their_cells_from_records() {
        let columns =
            Columns { name: "id", narrow: &[("ID", "/id"), ("AT", "/on/at")], wide: &[("REST", "/rest")] };
        let data = serde_json::json!({"results": [{"id": 7, "on": {"at": "now"}, "rest": [1]}, {"id": 8}]});
        let table = columns.table(&records(&data));
        assert_eq!(table.render(true), "ID  AT   REST\n7   now  [1]\n8");
        assert_eq!(records(&data["results"][0]).len(), 1);
    }

    #[test]
    fn formats_are_read() {
        assert_eq!("yaml".parse(), Ok(Format::Yaml));
        assert!(matches!("jsonpath={.a}".parse(), Ok(Format::Path(_))));
        assert!("xml".parse::<Format>().is_err() && "jsonpath=}".parse::<Format>().is_err());
    }
}
