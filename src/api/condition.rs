//! Conditions of writes: `If-Match` and `If-None-Match`; and headers that may be given once only.
//!
//! **Invariant:** a condition that is malformed, or that the write cannot satisfy, refuses the write. It is never
//! ignored, because an ignored condition is a lost update.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::reply::Problem;
use crate::model::{
    command::Expect,
    error::{LocSegment, Violation},
};

/// What the headers of a write expect of the record that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Neither header.
    Unconditional,
    /// `If-Match`.
    Match(Expect),
    /// `If-None-Match: *`.
    Absent,
}

impl Condition {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, Problem> {
        let expected =
            single(headers, &header::IF_MATCH)?.map(|value| expected(value.as_bytes())).transpose()?;
        let absent = match single(headers, &header::IF_NONE_MATCH)? {
            None => false,
            Some(value) if value == "*" => true,
            Some(_) => {
                return Err(header_problem(&header::IF_NONE_MATCH, "a write takes no other value than `*`"));
            }
        };
        match (expected, absent) {
            (None, false) => Ok(Self::Unconditional),
            (None, true) => Ok(Self::Absent),
            (Some(expect), false) => Ok(Self::Match(expect)),
            (Some(_), true) => {
                Err(header_problem(&header::IF_MATCH, "cannot be combined with `if-none-match`"))
            }
        }
    }

    /// For a write that only creates.
    pub(super) fn for_create(self) -> Result<(), Problem> {
        match self {
            Self::Unconditional | Self::Absent => Ok(()),
            Self::Match(_) => Err(header_problem(&header::IF_MATCH, "a create has no revision to match")),
        }
    }

    /// For a write that changes or deletes an existing record.
    pub(super) fn for_change(self) -> Result<Expect, Problem> {
        match self {
            Self::Absent => Err(header_problem(&header::IF_NONE_MATCH, "this request creates nothing")),
            Self::Unconditional => Ok(Expect::Present),
            Self::Match(expect) => Ok(expect),
        }
    }

    /// For a rollback, which replaces the record or creates it again.
    pub(super) fn for_rollback(self) -> Expect {
        match self {
            Self::Unconditional => Expect::Any,
            Self::Match(expect) => expect,
            Self::Absent => Expect::None,
        }
    }

    /// For a PUT, which replaces an existing record, or creates one with `If-None-Match: *`.
    pub(super) fn for_put(self) -> Expect {
        match self {
            Self::Unconditional => Expect::Present,
            Self::Match(expect) => expect,
            Self::Absent => Expect::None,
        }
    }
}

/// What `If-Match` expects: one entity tag, or `*` for any existing record.
fn expected(value: &[u8]) -> Result<Expect, Problem> {
    if value == b"*" {
        return Ok(Expect::Present);
    }
    let strong = value.strip_prefix(b"W/").unwrap_or(value);
    let tag = strong.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let Some(tag) = tag.filter(|tag| tag.iter().all(|b| matches!(b, 0x21 | 0x23..=0x7e | 0x80..))) else {
        return Err(header_problem(&header::IF_MATCH, "expected one entity tag in quotes, or `*`"));
    };
    let is_revision =
        strong.len() == value.len() && !tag.starts_with(b"0") && tag.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(tag).ok().filter(|_| is_revision).and_then(|tag| tag.parse().ok());
    // No record has revision 0, so a tag that this service never issues (weak tags included) matches none.
    Ok(Expect::At(number.unwrap_or(0)))
}

/// The value of a header that may be given once only.
pub(super) fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Problem> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(header_problem(name, "given twice")) } else { Ok(first) }
}

/// The refusal of a header.
pub(super) fn header_problem(name: &HeaderName, msg: &str) -> Problem {
    let loc = vec!["header".into(), LocSegment::Name(name.to_string())];
    Problem::violation(Violation::at(loc, format!("header `{name}`: {msg}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::error::Invalid, service::Refusal};

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn violations<T: std::fmt::Debug>(made: Result<T, Problem>) -> usize {
        match made {
            Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) => {
                violations.len()
            }
            other => panic!("{other:?} is not a refusal with violations"),
        }
    }

    #[test]
    fn if_match_is_one_tag_and_a_tag_that_is_no_revision_matches_nothing() {
        let expect = |value: &str| {
            Condition::from_headers(&headers(&[(header::IF_MATCH, value)])).map(Condition::for_put)
        };
        assert_eq!(expect("*").unwrap(), Expect::Present);
        assert_eq!(expect("\"41\"").unwrap(), Expect::At(41));
        let others =
            ["\"abc\"", "W/\"41\"", "\"041\"", "\"+41\"", "\"\"", "\"99999999999999999999\"", "\"ä\""];
        for other in others {
            assert_eq!(expect(other).unwrap(), Expect::At(0), "{other}");
        }
        for malformed in ["", "41", "\"41", "\"", "\"1\", \"2\"", "\"4 1\"", "w/\"41\"", "* "] {
            assert_eq!(violations(expect(malformed)), 1, "{malformed:?}");
        }
        let twice = headers(&[(header::IF_MATCH, "\"1\""), (header::IF_MATCH, "\"2\"")]);
        assert_eq!(violations(Condition::from_headers(&twice)), 1);
    }

    #[test]
    fn a_condition_that_a_write_cannot_satisfy_is_refused() {
        let of = |pairs: &[(HeaderName, &str)]| Condition::from_headers(&headers(pairs));
        let absent = of(&[(header::IF_NONE_MATCH, "*")]).unwrap();
        assert_eq!(absent.for_put(), Expect::None);
        assert!(absent.for_create().is_ok());
        assert_eq!(violations(absent.for_change()), 1);
        let unconditional = of(&[]).unwrap();
        assert_eq!(
            (unconditional.for_put(), unconditional.for_change().unwrap()),
            (Expect::Present, Expect::Present)
        );
        let matching = of(&[(header::IF_MATCH, "\"1\"")]).unwrap();
        assert_eq!(matching.for_change().unwrap(), Expect::At(1));
        assert_eq!(violations(matching.for_create()), 1);
        assert_eq!(violations(of(&[(header::IF_NONE_MATCH, "\"1\"")])), 1);
        assert_eq!(violations(of(&[(header::IF_MATCH, "*"), (header::IF_NONE_MATCH, "*")])), 1);
    }
}
