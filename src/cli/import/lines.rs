//! Files of lines: `.env` files, and the properties of Java.
//!
//! Both are read here, because the libraries for them do more or less than that: `dotenvy` puts variables of this process
//! into the values, and `java-properties` brings tables of all encodings, which would be half a megabyte of the program.
//!
//! **Invariant:** a line that is neither read nor a comment is in the report.

use std::{
    iter::Peekable,
    path::{Path, PathBuf},
    str::Chars,
};

use super::{
    super::connection::Failure,
    SourceConfig,
    finding::{Code, Findings},
    input::{Input, SourceFile, files, stem},
    raw::{Raw, Step, Tree},
};

/// A part of a file of properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// The number of the line, the key and the value.
    Property(usize, String, String),
    /// `#---` or `!---`, which begins another document for Spring Boot.
    Separator,
}

/// Reads `.env` files: each is a config, whose members are the variables.
pub(super) fn dotenv(paths: &[PathBuf], findings: &mut Findings) -> Result<Vec<SourceConfig>, Failure> {
    let is_wanted = |name: &str| name == ".env" || name.starts_with(".env.") || name.ends_with(".env");
    let (files, skipped) = files(paths, is_wanted)?;
    note_skipped(skipped, findings);
    let mut input = Input::new();
    let mut configs = Vec::new();
    for SourceFile { path, parts } in files {
        let text = input.text(&path)?;
        let mut tree = Tree::default();
        let file = path.display();
        for (line, read) in variables(&text) {
            let at = format!("{file}:{line}");
            match read {
                Ok(Variable { name, value, has_reference }) => {
                    if has_reference {
                        let text = format!("`{name}` names another variable, which is not put in its place");
                        findings.add(Code::Reference, &at, text);
                    }
                    tree.put(&[Step::Name(name)], Raw::of_text(value), &at, findings);
                }
                Err(error) => findings.add(Code::Unread, at, error),
            }
        }
        let at = file.to_string();
        let data = tree.finish(&at, findings);
        configs.push(SourceConfig { name: dotenv_name(&path, parts), at, data });
    }
    Ok(configs)
}

/// The name of a config: `production` for `.env.production`, `app` for `app.env`, and none for `.env`.
fn dotenv_name(path: &Path, mut parts: Vec<String>) -> Vec<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    parts.pop();
    if let Some(name) = name.strip_prefix(".env.") {
        parts.push(name.to_owned());
    } else if name != ".env" && name != "-" {
        parts.push(stem(&name).to_owned());
    }
    parts
}

/// A line of a `.env` file.
#[derive(Debug, PartialEq, Eq)]
struct Variable {
    name: String,
    value: String,
    /// Whether the value has `$NAME`. That of `${NAME}` is reported of every text.
    has_reference: bool,
}

/// The variables of a `.env` file, with their lines.
fn variables(text: &str) -> Vec<(usize, Result<Variable, &'static str>)> {
    let mut found = Vec::new();
    // Values of several lines, too.
    let text = text.replace("\r\n", "\n");
    let mut rest = text.as_str();
    let mut line = 1;
    while !rest.is_empty() {
        let begin = rest;
        let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
        let (this, after) = rest.split_at(end);
        let bare = this.trim();
        rest = after;
        if !bare.is_empty() && !bare.starts_with('#') {
            let (read, left) = variable(begin, end);
            rest = left;
            found.push((line, read));
        }
        line += begin[..begin.len() - rest.len()].matches('\n').count();
    }
    found
}

/// The variable at the beginning of a text, whose line ends at `end`, and what is left of the text.
fn variable(text: &str, end: usize) -> (Result<Variable, &'static str>, &str) {
    let (this, after) = text.split_at(end);
    let bare = this.trim_start();
    let exported = bare.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t']));
    let bare = exported.unwrap_or(bare).trim_start();
    let Some((name, value)) = bare.split_once('=') else {
        return (Err("it is no `NAME=VALUE`: the environment of a program may have the value"), after);
    };
    let name = name.trim_end();
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    if !is_name {
        return (Err("the name of the variable is not letters, digits, `_`, `.` and `-`"), after);
    }
    let of = |value: String, has_reference| Variable { name: name.to_owned(), value, has_reference };
    let begin = value.trim_start_matches([' ', '\t']);
    let Some(quote) = begin.chars().next().filter(|first| matches!(first, '\'' | '"' | '`')) else {
        let value = begin[..comment(begin).unwrap_or(begin.len())].trim();
        return (Ok(of(value.to_owned(), has_reference(value))), after);
    };
    // A text in quotes may go on in the next lines.
    let inside = &text[text.len() - after.len() - begin.len() + quote.len_utf8()..];
    match quoted(inside, quote) {
        None => (Err("its quote has no end"), after),
        Some((value, left)) => {
            let end = left.find('\n').map_or(left.len(), |at| at + 1);
            let (behind, left) = left.split_at(end);
            let behind = behind.trim();
            if !behind.is_empty() && !behind.starts_with('#') {
                return (Err("there is more than a comment behind the quote"), left);
            }
            let has_reference = quote == '"' && has_reference(&value);
            (Ok(of(value, has_reference)), left)
        }
    }
}

/// Where a comment begins: a `#` at the beginning, or behind a space.
fn comment(text: &str) -> Option<usize> {
    let is_begin = |at: &usize| *at == 0 || text[..*at].ends_with([' ', '\t']);
    text.match_indices('#').map(|(at, _)| at).find(is_begin)
}

/// A text up to its quote, and what is behind. Only double quotes have escapes.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == quote {
            return Some((value, chars.as_str()));
        }
        if c != '\\' || quote != '"' {
            value.push(c);
            continue;
        }
        match chars.next()? {
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            escaped @ ('"' | '\\' | '$' | '`') => value.push(escaped),
            '\n' => {}
            other => value.extend(['\\', other]),
        }
    }
    None
}

fn has_reference(value: &str) -> bool {
    let mut after = value.split('$').skip(1);
    after.any(|name| name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_'))
}

/// Reads files of properties: each is a config.
pub(super) fn properties(paths: &[PathBuf], findings: &mut Findings) -> Result<Vec<SourceConfig>, Failure> {
    let (files, skipped) = files(paths, |name| name.ends_with(".properties"))?;
    note_skipped(skipped, findings);
    let mut input = Input::new();
    let mut configs = Vec::new();
    for SourceFile { path, parts } in files {
        let at = path.display().to_string();
        let lines = properties_of(&latin_or_utf8(input.bytes(&path)?, &at, findings));
        let data = properties_data(lines, &at, findings);
        configs.push(SourceConfig { name: parts, at, data });
    }
    Ok(configs)
}

/// A file of properties as a text. It is UTF-8, as portals and editors write it, or else ISO 8859-1, as Java reads it.
pub(super) fn latin_or_utf8(bytes: Vec<u8>, at: &str, findings: &mut Findings) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        findings.add(Code::Encoding, at, "it is not UTF-8, and is read as ISO 8859-1");
        error.as_bytes().iter().copied().map(char::from).collect()
    })
}

/// Properties as one value.
pub(super) fn properties_data(lines: Vec<Line>, at: &str, findings: &mut Findings) -> Raw {
    let mut tree = Tree::default();
    for line in lines {
        if let Line::Property(number, key, value) = line {
            tree.put(&steps(&key), Raw::of_text(value), &format!("{at}:{number}"), findings);
        }
    }
    tree.finish(at, findings)
}

/// The properties of a text, as `java.util.Properties` reads them.
pub(super) fn properties_of(text: &str) -> Vec<Line> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n").replace('\r', "\n");
    let mut found = Vec::new();
    let mut lines = (1..).zip(text.split('\n'));
    while let Some((number, line)) = lines.next() {
        if matches!(line.trim_end(), "#---" | "!---") {
            found.push(Line::Separator);
        }
        let mut whole = line.trim_start_matches(is_space).to_owned();
        if whole.is_empty() || whole.starts_with(['#', '!']) {
            continue;
        }
        // An odd number of backslashes at the end: the last one continues the line.
        while (whole.len() - whole.trim_end_matches('\\').len()) % 2 == 1 {
            whole.pop();
            let Some((_, next)) = lines.next() else { break };
            whole.push_str(next.trim_start_matches(is_space));
        }
        let mut chars = whole.chars().peekable();
        let key = unescaped(&mut chars, |c| is_space(c) || matches!(c, '=' | ':'));
        while chars.next_if(|c| is_space(*c)).is_some() {}
        if chars.next_if(|c| matches!(c, '=' | ':')).is_some() {
            while chars.next_if(|c| is_space(*c)).is_some() {}
        }
        found.push(Line::Property(number, key, unescaped(&mut chars, |_| false)));
    }
    found
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// A text without its escapes, up to a character that ends it.
fn unescaped(chars: &mut Peekable<Chars<'_>>, is_end: impl Fn(char) -> bool) -> String {
    // Java writes a character beyond 16 bits as two escapes.
    let mut units: Vec<u16> = Vec::new();
    while let Some(c) = chars.next_if(|c| !is_end(*c)) {
        let c = match if c == '\\' { chars.next() } else { None } {
            // A backslash at the end of the file says nothing.
            None if c == '\\' => continue,
            None => c,
            Some('t') => '\t',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('f') => '\u{c}',
            Some('u') => {
                let digits: String = chars.clone().take(4).collect();
                let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4);
                let Some(unit) = unit else {
                    units.extend("\\u".encode_utf16());
                    continue;
                };
                chars.nth(3);
                units.push(unit);
                continue;
            }
            Some(escaped) => escaped,
        };
        units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16_lossy(&units)
}

/// The steps of a key of properties: `hosts[0].name`, or `levels[org.example]` with a name in brackets.
pub(super) fn steps(key: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut name = Some(String::new());
    let mut rest = key;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let bracket = if c == '[' { after.split_once(']') } else { None };
        if let Some((inside, behind)) = bracket {
            // `a[0]`: the name before the bracket is a step of its own, if there is one.
            steps.extend(name.take().filter(|name| !name.is_empty()).map(Step::Name));
            steps.push(inside.parse().map_or_else(|_| Step::Name(inside.to_owned()), Step::Position));
            rest = behind;
        } else if c == '.' {
            steps.extend(name.take().map(Step::Name));
            name = Some(String::new());
            rest = after;
        } else {
            name.get_or_insert_default().push(c);
            rest = after;
        }
    }
    steps.extend(name.map(Step::Name));
    steps
}

/// Reports files of a folder that are not read.
pub(super) fn note_skipped(skipped: usize, findings: &mut Findings) {
    if skipped > 0 {
        findings.add(Code::Skipped, "", format!("{skipped} files have other names, and are not read"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_as_dotenv_libraries_read_them() {
        let text = "\u{feff}# why\nexport A=1 # not 2\nB = x y \nC='$A #'\nD=\"two\\nlines\\t\\\"\\$\" # why\nE=\"two\nlines\"\n\
                    F=a#b\nG=\nH=$A-$1\r\nI\n2=x\nJ=\"a\" b\nK='no end\nL=\"$A\"\nM=`x`\nexport\tN=\"a\r\nb\"\r\nexported=1";
        let found = variables(text.trim_start_matches('\u{feff}'));
        let shown: Vec<String> = found
            .into_iter()
            .map(|(line, read)| match read {
                Ok(Variable { name, value, has_reference }) => {
                    format!("{line} {name}={value:?}{}", if has_reference { " $" } else { "" })
                }
                Err(error) => format!("{line} {error}"),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "2 A=\"1\"",
                "3 B=\"x y\"",
                "4 C=\"$A #\"",
                "5 D=\"two\\nlines\\t\\\"$\"",
                "6 E=\"two\\nlines\"",
                "8 F=\"a#b\"",
                "9 G=\"\"",
                "10 H=\"$A-$1\" $",
                "11 it is no `NAME=VALUE`: the environment of a program may have the value",
                "12 the name of the variable is not letters, digits, `_`, `.` and `-`",
                "13 there is more than a comment behind the quote",
                "14 its quote has no end",
                "15 L=\"$A\" $",
                "16 M=\"x\"",
                "17 N=\"a\\nb\"",
                "19 exported=\"1\"",
            ]
        );
    }

    #[test]
    fn properties_are_read_as_java_reads_them() {
        let text = "# why\n! why\na=1\n b : x y \nc\nd e=f\ng\\ h\\:=i\nj=k\\\n   l\\\\\nm=\\u00e9\\ud83d\\ude00\\u12\\z\r\n#---\nn=\\\n\no=\\";
        let found = properties_of(text).into_iter().map(|line| match line {
            Line::Property(number, key, value) => format!("{number} {key:?}={value:?}"),
            Line::Separator => "---".to_owned(),
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                r#"3 "a"="1""#,
                r#"4 "b"="x y ""#,
                r#"5 "c"="""#,
                r#"6 "d"="e=f""#,
                r#"7 "g h:"="i""#,
                r#"8 "j"="kl\\""#,
                "10 \"m\"=\"\u{e9}\u{1f600}\\\\u12z\"",
                "---",
                r#"12 "n"="""#,
                r#"14 "o"="""#,
            ]
        );
    }

    #[test]
    fn keys_of_properties_are_paths() {
        let shown = |key: &str| -> Vec<String> {
            let shown = steps(key).into_iter().map(|step| match step {
                Step::Name(name) => name,
                Step::Position(at) => format!("#{at}"),
            });
            shown.collect()
        };
        for (key, expected) in [
            ("a.b", &["a", "b"][..]),
            ("a[0].b[1][2]", &["a", "#0", "b", "#1", "#2"]),
            ("levels[org.example].x", &["levels", "org.example", "x"]),
            ("[0]", &["#0"]),
            ("a..b.", &["a", "", "b", ""]),
            ("a[b", &["a[b"]),
            ("", &[""]),
        ] {
            assert_eq!(shown(key), expected, "{key}");
        }
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_reported() {
        let mut findings = Findings::default();
        assert_eq!(latin_or_utf8(b"a=\xe9".to_vec(), "f", &mut findings), "a=\u{e9}");
        assert_eq!(findings.places(), ["encoding f"]);
    }
}
