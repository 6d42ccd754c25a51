//! Conditions of writes: `If-Match` and `If-None-Match` (RFC 9110, 13.1); headers that may occur once only.
//! `If-Unmodified-Since` is rejected, except beside `If-Match`, which takes precedence (RFC 9110, 13.2.2).
//!
//! The log evaluates a single tag in `If-Match`, and `*` in either header, when it applies the write. This node
//! evaluates several tags, and tags in `If-None-Match`, on a state that has every acknowledged write. That is safe:
//! revisions only grow, so a tag that does not match now never matches later. The log then checks that the record is
//! still the evaluated one.
//!
//! **Invariant:** a condition that is malformed, or that the write cannot satisfy, rejects the write. An ignored
//! condition would be a lost update.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{
    endpoints::{CONFIGS, Endpoint, Matched},
    entity_tags::EntityTags,
    extract::Keys,
    reply::Problem,
};
use concord_model::{
    access_key::Verb,
    command::Expect,
    error::{LocSegment, Violation},
    record::Revision,
};
use concord_service::{Principal, Service};

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

/// The value of a header with entity tags.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tags {
    Any,
    /// The revisions that strong tags name, and those that weak ones name. A tag that this service never issues names
    /// revision 0, which no record has.
    Listed(Vec<Revision>, Vec<Revision>),
}

/// The conditions of a write as its headers state them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stated {
    matching: Option<Tags>,
    none_matching: Option<Tags>,
}

impl Stated {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, Problem> {
        let matching = tags(headers, &header::IF_MATCH)?;
        if matching.is_none() && headers.contains_key(header::IF_UNMODIFIED_SINCE) {
            let msg = "a date has whole seconds, so a change within one would be lost: send `if-match` with the `ETag`";
            return Err(header_problem(&header::IF_UNMODIFIED_SINCE, msg));
        }
        Ok(Self { matching, none_matching: tags(headers, &header::IF_NONE_MATCH)? })
    }

    /// The condition that the decision of the write judges by itself, if it can.
    pub(super) fn simple(&self) -> Option<Condition> {
        match (&self.matching, &self.none_matching) {
            (None, None) => Some(Condition::Unconditional),
            (None, Some(Tags::Any)) => Some(Condition::Absent),
            (Some(Tags::Any), None) => Some(Condition::Match(Expect::Present)),
            (Some(Tags::Listed(strong, weak)), None) if strong.len() + weak.len() == 1 => {
                Some(Condition::Match(Expect::At(strong.first().copied().unwrap_or(0))))
            }
            _ => None,
        }
    }

    /// The condition as the decision of the write judges it, where it is not simple.
    ///
    /// # Errors
    /// When the write changes no record that there is; when the principal may not write.
    pub(super) async fn settled(
        self,
        service: &Service,
        principal: &Principal,
        matched: &Matched,
        keys: &Keys,
    ) -> Result<Condition, Problem> {
        let is_collection = matched.endpoint.is_some_and(|endpoint| endpoint.path == CONFIGS);
        if keys.definition.is_empty() || is_collection {
            let name = if self.none_matching.is_some() { header::IF_NONE_MATCH } else { header::IF_MATCH };
            return Err(header_problem(&name, "this request takes one entity tag of `if-match`, or `*`"));
        }
        let config = Some(keys.config.as_str()).filter(|key| !key.is_empty());
        let verb = matched.endpoint.map_or(Verb::Write, Endpoint::verb);
        let current = service.reads.current_revision(principal, verb, &keys.definition, config).await?;
        Ok(self.judged(current))
    }

    /// What is left of the condition for a record of this revision, or for none.
    fn judged(self, current: Option<Revision>) -> Condition {
        let Some(current) = current else {
            // No tag names a record that there is not, and none is excluded either.
            return match self.matching {
                Some(_) => Condition::Match(Expect::At(0)),
                None if self.none_matching == Some(Tags::Any) => Condition::Absent,
                None => Condition::Unconditional,
            };
        };
        let is_matched = match &self.matching {
            None | Some(Tags::Any) => true,
            Some(Tags::Listed(strong, _)) => strong.contains(&current),
        };
        let is_excluded = match &self.none_matching {
            None => false,
            Some(Tags::Any) => true,
            Some(Tags::Listed(strong, weak)) => strong.contains(&current) || weak.contains(&current),
        };
        match self.matching {
            // Nothing has this revision, so the write is rejected where it is decided, unless it was decided before: a
            // request that is retried with its idempotency key finds the record that it wrote.
            _ if !is_matched || is_excluded => Condition::Match(Expect::At(0)),
            None => Condition::Unconditional,
            Some(Tags::Any) => Condition::Match(Expect::Present),
            Some(Tags::Listed(..)) => Condition::Match(Expect::At(current)),
        }
    }
}

impl Condition {
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

    /// For a write whose body names the revision.
    pub(super) fn for_named_revision(self) -> Result<(), Problem> {
        let refused = |name| Err(header_problem(&name, "the body of this request names the revision"));
        match self {
            Self::Unconditional => Ok(()),
            Self::Absent => refused(header::IF_NONE_MATCH),
            Self::Match(_) => refused(header::IF_MATCH),
        }
    }

    /// For a rollback and a PUT of an environment, which replace the record or create it.
    pub(super) fn for_create_or_replace(self) -> Expect {
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

/// The tags of a header, which may be given several times: then it is one list.
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Problem> {
    let (mut all, mut strong, mut weak) = (Vec::new(), Vec::new(), Vec::new());
    for value in headers.get_all(name) {
        all.push(value.as_bytes().trim_ascii());
    }
    match all.as_slice() {
        [] => return Ok(None),
        [b"*"] => return Ok(Some(Tags::Any)),
        _ => {}
    }
    let malformed = || header_problem(name, "expected quoted entity tags, comma-separated, or `*`");
    for text in all {
        for tag in EntityTags(text) {
            let (tag, is_weak) = tag.ok_or_else(malformed)?;
            if is_weak { &mut weak } else { &mut strong }.push(revision_of(tag));
        }
    }
    if strong.is_empty() && weak.is_empty() {
        return Err(malformed());
    }
    Ok(Some(Tags::Listed(strong, weak)))
}

/// The revision that the inside of a tag names. No record has revision 0, so a tag that this service never issues
/// matches none.
fn revision_of(tag: &[u8]) -> Revision {
    let is_revision = !tag.starts_with(b"0") && tag.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(tag).ok().filter(|_| is_revision).and_then(|tag| tag.parse().ok()).unwrap_or(0)
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

/// The rejection of a header.
pub(super) fn header_problem(name: &HeaderName, msg: &str) -> Problem {
    let loc = vec!["header".into(), LocSegment::Name(name.to_string())];
    Problem::violation(Violation::at(loc, format!("header `{name}`: {msg}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::error::Invalid;
    use concord_service::Refusal;

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

    fn condition(pairs: &[(HeaderName, &str)], current: Option<Revision>) -> Result<Condition, Problem> {
        let stated = Stated::from_headers(&headers(pairs))?;
        match stated.simple() {
            Some(simple) => Ok(simple),
            None => Ok(stated.judged(current)),
        }
    }

    fn is_never(made: &Result<Condition, Problem>) -> bool {
        matches!(made, Ok(Condition::Match(Expect::At(0))))
    }

    #[test]
    fn a_tag_that_is_no_revision_matches_nothing_and_a_malformed_one_is_refused() {
        let expect = |value: &str| condition(&[(header::IF_MATCH, value)], Some(7)).map(Condition::for_put);
        assert_eq!(expect("*").unwrap(), Expect::Present);
        assert_eq!(expect("\"41\"").unwrap(), Expect::At(41));
        let others = [
            "\"abc\"",
            "W/\"41\"",
            "\"041\"",
            "\"+41\"",
            "\"\"",
            "\"99999999999999999999\"",
            "\"ä\"",
            "\"4,1\"",
        ];
        for other in others {
            assert_eq!(expect(other).unwrap(), Expect::At(0), "{other}");
        }
        for malformed in
            ["", "41", "\"41", "\"", "\"4 1\"", "w/\"41\"", "\"1\" \"2\"", "*, \"1\"", ",", "\"1\"x"]
        {
            assert_eq!(violations(expect(malformed)), 1, "{malformed:?}");
        }
    }

    #[test]
    fn of_several_tags_one_must_be_that_of_the_record() {
        let all = |current| condition(&[(header::IF_MATCH, "\"1\", \"2\",W/\"3\"")], current);
        assert_eq!(all(Some(2)).unwrap(), Condition::Match(Expect::At(2)));
        assert!(is_never(&all(Some(3))), "a weak tag matches no write");
        assert!(is_never(&all(Some(4))));
        assert_eq!(all(None).unwrap(), Condition::Match(Expect::At(0)), "there is no record");
        let twice = [(header::IF_MATCH, "\"1\""), (header::IF_MATCH, "\"2\"")];
        assert_eq!(condition(&twice, Some(1)).unwrap(), Condition::Match(Expect::At(1)));
    }

    #[test]
    fn of_excluded_tags_none_may_be_that_of_the_record() {
        let none = |current| condition(&[(header::IF_NONE_MATCH, "\"1\", W/\"2\"")], current);
        assert!(is_never(&none(Some(1))) && is_never(&none(Some(2))), "weak tags are compared, too");
        assert_eq!(none(Some(3)).unwrap(), Condition::Unconditional);
        assert_eq!(none(None).unwrap(), Condition::Unconditional);
        let both = |tag| condition(&[(header::IF_MATCH, tag), (header::IF_NONE_MATCH, "\"1\"")], Some(2));
        assert_eq!(both("\"2\"").unwrap(), Condition::Match(Expect::At(2)));
        assert_eq!(both("*").unwrap(), Condition::Match(Expect::Present));
        assert!(is_never(&both("\"1\"")));
        let never = condition(&[(header::IF_MATCH, "*"), (header::IF_NONE_MATCH, "*")], Some(2));
        assert!(is_never(&never));
    }

    #[test]
    fn a_date_is_no_condition_of_a_write() {
        let date = (header::IF_UNMODIFIED_SINCE, "Thu, 13 Nov 2025 02:13:20 GMT");
        assert_eq!(violations(condition(std::slice::from_ref(&date), Some(7))), 1);
        assert_eq!(violations(condition(&[(header::IF_NONE_MATCH, "*"), date.clone()], Some(7))), 1);
        let beside_tag = condition(&[(header::IF_MATCH, "\"7\""), date], Some(7));
        assert_eq!(beside_tag.unwrap(), Condition::Match(Expect::At(7)));
    }

    #[test]
    fn a_condition_that_a_write_cannot_satisfy_is_refused() {
        let of = |pairs: &[(HeaderName, &str)]| condition(pairs, None);
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
        assert_eq!(violations(matching.for_create()), 1);
    }
}
