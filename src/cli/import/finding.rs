//! What an import reports: where its files say less than the source, or something else.
//!
//! **Invariant:** no text of a finding has a value of the source, because any value may be a secret.

use serde_json::{Value, json};

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Code {
    /// A text that some programs read as a number, a boolean or null, and others do not.
    Ambiguous,
    /// An empty text, or null.
    Empty,
    /// Values of a field whose types differ from config to config.
    Mixed,
    /// Bytes that are no text: they are base64.
    Binary,
    /// A text that names another value, such as `${HOST}`.
    Reference,
    /// A document in a format that is not read: it is one text.
    Document,
    /// A value that looks like a secret.
    Secret,
    /// A schema that is larger than a node accepts.
    Schema,
    /// A file whose encoding is not UTF-8.
    Encoding,
    /// A key that Concord does not accept, or that another config has.
    Renamed,
    /// A key that has a value and is a folder, too.
    ValueAndFolder,
    /// A list without some of its positions: it is an object.
    Gap,
    /// What the source says of a value beside it.
    Metadata,
    /// A value that another one replaces.
    Duplicate,
    /// A tag of YAML.
    Tag,
    /// A config that is larger than a node accepts.
    TooLarge,
    /// A value that is nested deeper than a node accepts.
    TooDeep,
    /// A part of the source that has no value, or is not asked for.
    Skipped,
    /// A part of the source that can't be read.
    Unread,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::Ambiguous => "ambiguous",
            Self::Empty => "empty",
            Self::Mixed => "mixed",
            Self::Binary => "binary",
            Self::Reference => "reference",
            Self::Document => "document",
            Self::Secret => "secret",
            Self::Schema => "schema",
            Self::Encoding => "encoding",
            Self::Renamed => "renamed",
            Self::ValueAndFolder => "value_and_folder",
            Self::Gap => "gap",
            Self::Metadata => "metadata",
            Self::Duplicate => "duplicate",
            Self::Tag => "tag",
            Self::TooLarge => "too_large",
            Self::TooDeep => "too_deep",
            Self::Skipped => "skipped",
            Self::Unread => "unread",
        }
    }

    /// Whether something of the source is in no file.
    fn is_left_out(self) -> bool {
        match self {
            Self::Metadata | Self::Duplicate | Self::Tag | Self::TooLarge | Self::TooDeep | Self::Unread => {
                true
            }
            Self::Ambiguous
            | Self::Empty
            | Self::Mixed
            | Self::Binary
            | Self::Reference
            | Self::Document
            | Self::Secret
            | Self::Schema
            | Self::Encoding
            | Self::Renamed
            | Self::ValueAndFolder
            | Self::Gap
            | Self::Skipped => false,
        }
    }
}

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    code: Code,
    at: String,
    text: String,
}

/// The report.
#[derive(Debug, Default)]
pub(super) struct Findings {
    all: Vec<Finding>,
}

impl Findings {
    /// Adds a line: the place in the source, or a field of the draft, and what is the matter.
    pub(super) fn add(&mut self, code: Code, at: impl Into<String>, text: impl Into<String>) {
        self.all.push(Finding { code, at: at.into(), text: text.into() });
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// How many say that something is in no file.
    pub(super) fn left_out(&self) -> usize {
        self.all.iter().filter(|finding| finding.code.is_left_out()).count()
    }

    /// The lines, those first that say that something is in no file.
    pub(super) fn to_json(&self) -> Value {
        let of = |is_left_out: bool| {
            let some = self.all.iter().filter(move |finding| finding.code.is_left_out() == is_left_out);
            some.map(move |finding| {
                json!({
                    "code": finding.code.name(),
                    "left_out": is_left_out,
                    "at": finding.at,
                    "msg": finding.text,
                })
            })
        };
        of(true).chain(of(false)).collect()
    }

    /// The codes and places, for tests.
    #[cfg(test)]
    pub(super) fn places(&self) -> Vec<String> {
        self.all.iter().map(|finding| format!("{} {}", finding.code.name(), finding.at)).collect()
    }
}
