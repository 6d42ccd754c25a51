//! Field selection of responses: `include=revision` adds to records, `fields` selects parts of their data.
//!
//! In a list of configs, an index of the same name turns the parameter into a filter; with `$` before its name it
//! always keeps this meaning. A list across definitions has many sets of indexes, so there the parameter always has
//! this meaning.
//!
//! The revision of a record, and so its entity tag, is that of the whole record, whatever the response shows of it.
//!
//! **Invariant:** a response without these parameters has the closed bodies of the contract.

use std::sync::Arc;

use super::{
    extract::{QueryParams, query_violation},
    pretty, raw,
};
use concord_model::{index::IndexPath, projection::Projection, query::QueryError};

const INCLUDE: &str = "include";
const FIELDS: &str = "fields";
/// The parameters, with the forms that no index takes from them.
const NAMES: [(&str, &str); 4] =
    [(INCLUDE, "$include"), (FIELDS, "$fields"), (pretty::PRETTY, pretty::ESCAPED), (raw::RAW, raw::ESCAPED)];
/// The names of parameters that an index may take from a list.
pub(super) const TAKEN: [&str; 6] = [INCLUDE, FIELDS, "revision", pretty::PRETTY, raw::RAW, "upsert"];

/// The parts of records that a response has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Whether each record has its revision.
    pub(super) has_revision: bool,
    /// The parts of data; all of them without.
    pub(super) fields: Option<Arc<Projection>>,
}

impl Shape {
    /// What the parameters say of it. `is_filter` says whether a parameter of this name is a filter.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn of(params: &QueryParams, is_filter: impl Fn(&str) -> bool) -> Result<Self, QueryError> {
        if params.0.is_empty() {
            return Ok(Self::default());
        }
        let (mut shape, mut violations) = (Self::default(), Vec::new());
        if let Some((name, text)) = given(params, INCLUDE, &is_filter) {
            // An empty list is a list.
            for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                if part == "revision" {
                    shape.has_revision = true;
                } else {
                    violations.push(query_violation(name, format!("`{name}` must be `revision` or absent")));
                    break;
                }
            }
        }
        if let Some((name, text)) = given(params, FIELDS, &is_filter) {
            match Projection::parse(text) {
                Ok(fields) => shape.fields = Some(Arc::new(fields)),
                Err(msg) => violations.push(query_violation(name, msg)),
            }
        }
        if violations.is_empty() { Ok(shape) } else { Err(QueryError::Violations(violations)) }
    }
}

/// The value of a parameter, and the form in which it is given.
fn given<'a>(
    params: &'a QueryParams,
    name: &'static str,
    is_filter: impl Fn(&str) -> bool,
) -> Option<(&'static str, &'a str)> {
    let escaped = NAMES.into_iter().find(|(plain, _)| *plain == name).map(|(_, escaped)| escaped)?;
    if let Some(text) = params.get(escaped) {
        return Some((escaped, text));
    }
    params.get(name).filter(|_| !is_filter(name)).map(|text| (name, text))
}

/// The parameters of a list without those that decide how its records are shown: they don't decide which there are.
pub(super) fn without_shape(params: &QueryParams, is_filter: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let is_shape = |name: &str| {
        NAMES.iter().any(|(plain, escaped)| name == *escaped || (name == *plain && !is_filter(plain)))
    };
    params.0.iter().filter(|(name, _)| !is_shape(name)).cloned().collect()
}

/// Whether an index takes a parameter of lists for its filter.
pub(super) fn takes_parameter<'a>(indexes: impl IntoIterator<Item = &'a String>) -> bool {
    let members = |path: &String| IndexPath::parse(path).ok().and_then(IndexPath::into_members);
    let is_taken = |names: Vec<String>| matches!(&names[..], [name] if TAKEN.contains(&name.as_str()));
    indexes.into_iter().filter_map(members).any(is_taken)
}

/// The warning when there is such an index.
pub(super) const TAKES_PARAMETER: &str = "an index has the name of a parameter of lists, which is a filter there now; \
                                          with $ before it, as in $fields, it is the parameter";

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> QueryParams {
        QueryParams(pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn a_parameter_yields_to_an_index_of_its_name_and_its_other_form_does_not() {
        let query = params(&[("include", "revision"), ("fields", "a.b"), ("x", "1")]);
        let shape = Shape::of(&query, |_| false).unwrap();
        assert!(shape.has_revision && shape.fields.is_some());
        assert_eq!(without_shape(&query, |_| false), params(&[("x", "1")]).0);

        let shape = Shape::of(&query, |name| name == "fields").unwrap();
        assert!(shape.has_revision && shape.fields.is_none());
        assert_eq!(
            without_shape(&query, |name| name == "fields"),
            params(&[("fields", "a.b"), ("x", "1")]).0
        );

        let both = params(&[("fields", "a"), ("$fields", "b")]);
        let shape = Shape::of(&both, |_| true).unwrap();
        assert_eq!(shape.fields, Some(Arc::new(Projection::parse("b").unwrap())));
        assert_eq!(without_shape(&both, |_| true), params(&[("fields", "a")]).0);
    }

    #[test]
    fn what_is_malformed_is_refused_in_the_form_in_which_it_was_given() {
        for (name, text) in
            [("include", "etag"), ("fields", ""), ("$fields", "a..b"), ("$include", "revision,x")]
        {
            let Err(QueryError::Violations(violations)) = Shape::of(&params(&[(name, text)]), |_| false)
            else {
                panic!("{name}={text}")
            };
            assert_eq!(violations[0].loc[1], name.into());
        }
        assert_eq!(Shape::of(&params(&[("include", "")]), |_| false).unwrap(), Shape::default());
    }

    #[test]
    fn an_index_takes_a_parameter_of_its_name_only() {
        assert!(takes_parameter(&["a".to_owned(), "fields".to_owned()]));
        assert!(!takes_parameter(&["a.fields".to_owned(), r"x\.revision".to_owned(), "page".to_owned()]));
    }
}
