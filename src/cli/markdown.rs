//! Markdown as GitHub, GitLab and Gitea read it: for comments of pull requests and summaries of pipelines.
//!
//! **Invariant:** what a record says stays in its cell or code block. It makes no link, no HTML and no mention of a person.

use super::output::printable;

/// A comment of GitHub has at most 65,536 characters.
const BYTES_MAX: usize = 60_000;
/// What is kept of that for the changes whose lines are not shown.
const NAMES_BYTES: usize = 10_000;
/// So many changes are shown unfolded.
const OPEN_MAX: usize = 5;

/// A change of a record.
#[derive(Debug)]
pub(super) struct ShownChange {
    pub(super) name: String,
    /// What was or would be done.
    pub(super) verb: &'static str,
    /// A unified diff.
    pub(super) diff: String,
}

/// A text as code in a cell of a table.
pub(super) fn cell(text: &str) -> String {
    if text.is_empty() { String::new() } else { code(&printable(text).replace('|', "\\|")) }
}

/// A text as code within a line.
fn code(text: &str) -> String {
    let ticks = "`".repeat(longest_run(text) + 1);
    let space = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{ticks}{space}{text}{space}{ticks}")
}

/// A code block.
pub(super) fn block(language: &str, text: &str) -> String {
    let ticks = "`".repeat(longest_run(text).max(2) + 1);
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{ticks}{language}\n{text}{end}{ticks}\n")
}

/// How many backticks follow each other at most.
fn longest_run(text: &str) -> usize {
    text.split(|character| character != '`').map(str::len).max().unwrap_or_default()
}

/// Changes with the lines that differ: as many as a comment holds, then the names of the others, then their number.
pub(super) fn changes(head: &str, all: &[ShownChange]) -> String {
    let mut out = format!("**{head}**\n");
    let mut left = all.iter().peekable();
    let open = if all.len() <= OPEN_MAX { " open" } else { "" };
    while let Some(ShownChange { name, verb, diff }) = left.peek() {
        let lines = block("diff", diff);
        // As code: it mentions nobody.
        let summary = printable(name).replace('&', "&amp;").replace('<', "&lt;");
        let one = format!(
            "\n<details{open}><summary><code>{summary}</code> {verb}</summary>\n\n{lines}\n</details>\n"
        );
        if out.len() + one.len() > BYTES_MAX - NAMES_BYTES {
            break;
        }
        out.push_str(&one);
        left.next();
    }
    if left.peek().is_some() {
        out.push_str("\nToo long to be shown here:\n\n");
    }
    while let Some(ShownChange { name, verb, .. }) = left.peek() {
        let one = format!("- {} {verb}\n", code(&printable(name)));
        if out.len() + one.len() > BYTES_MAX - 100 {
            break;
        }
        out.push_str(&one);
        left.next();
    }
    match left.count() {
        0 => {}
        more => out.push_str(&format!("- and {more} more\n")),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_in_its_cell_and_in_its_block() {
        for (text, shown) in [
            ("", ""),
            ("a", "`a`"),
            ("a|b", "`a\\|b`"),
            ("`a``b", "``` `a``b ```"),
            ("@all <b> [x](http://y)\n# z", "`@all <b> [x](http://y)\u{fffd}# z`"),
        ] {
            assert_eq!(cell(text), shown);
        }
        assert_eq!(block("diff", "+a"), "```diff\n+a\n```\n");
        assert_eq!(block("diff", "+````\n"), "`````diff\n+````\n`````\n");
    }

    #[test]
    fn changes_fit_a_comment() {
        let change = |number: usize, bytes: usize| ShownChange {
            name: format!("config limits/{number}"),
            verb: "changed",
            diff: "+".repeat(bytes),
        };
        let few = changes("1 change", &[change(1, 3)]);
        assert_eq!(
            few,
            "**1 change**\n\n<details open><summary><code>config limits/1</code> changed</summary>\n\n```diff\n+++\n```\n\n</details>\n"
        );
        for (number, bytes) in [(1, 1 << 20), (2000, 30), (2000, 1 << 10)] {
            let all: Vec<ShownChange> = (0..number).map(|one| change(one, bytes)).collect();
            let text = changes("many", &all);
            assert!(text.len() <= BYTES_MAX, "{}", text.len());
            let shown = text.matches("<details").count() + text.matches("- `config").count();
            let more = text
                .rsplit_once("- and ")
                .map_or(0, |(_, more)| more.split(' ').next().unwrap().parse().unwrap());
            assert_eq!(shown + more, number);
        }
    }
}
