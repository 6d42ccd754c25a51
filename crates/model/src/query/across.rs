//! A list of the configs of several definitions.
//!
//! It is sorted by a property that every config has. Its filters are parsed for each definition by the types that the
//! definition declares. A definition for which they can't be parsed has no match. If that is so for all definitions,
//! the list is rejected.
//!
//! **Invariant:** the query of one definition finds what a list of this definition alone finds with the same filters.

use super::{ConfigQuery, ConfigSort, Page, QueryError, QueryParams, at, configs, last, page, quoted};
use crate::{limits::Limits, record::Definition};

/// The parameter that names definitions, by key or by pattern.
pub const DEFINITION: &str = "definition";

/// How the configs of several definitions are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcrossSort {
    /// By the key of the definition, those of one definition ascending by their own.
    Definition,
    /// By key.
    Key,
    /// By time of creation.
    Created,
    /// By time of the last change.
    Modified,
}

/// A list of the configs of several definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcrossQuery {
    /// Page and direction.
    pub page: Page,
    /// The sort field.
    pub sort: AcrossSort,
    /// The filters, as each definition reads them.
    filters: Vec<(String, String)>,
}

/// Parses the query of such a list without its filters.
///
/// # Errors
/// All violations.
pub fn across(params: &QueryParams, limits: &Limits) -> Result<AcrossQuery, QueryError> {
    let mut violations = Vec::new();
    let page = page(params, limits, &mut violations)?;
    let sort = match last(params, "sort_by") {
        Some("config_definition_key") => AcrossSort::Definition,
        Some("config_key") => AcrossSort::Key,
        Some("created_at") => AcrossSort::Created,
        Some("modified_at") | None => AcrossSort::Modified,
        Some(other) => {
            let msg = format!(
                "across definitions the sort field must be one of `config_definition_key`, `config_key`, `created_at`, `modified_at`, not `{}`",
                quoted(other)
            );
            violations.push(at("sort_by", msg));
            AcrossSort::Modified
        }
    };
    if !violations.is_empty() {
        return Err(QueryError::Violations(violations));
    }
    let is_filter = |name: &str| name != DEFINITION && !super::RESERVED.contains(&name);
    let filters = params.iter().filter(|(name, _)| is_filter(name)).cloned().collect();
    Ok(AcrossQuery { page, sort, filters })
}

impl AcrossQuery {
    /// Whether every config of the definitions is in the list.
    #[must_use]
    pub fn is_of_all(&self) -> bool {
        self.filters.is_empty() && self.page.search.is_empty()
    }

    /// Its filters, as they were given.
    #[must_use]
    pub fn filters(&self) -> &QueryParams {
        &self.filters
    }

    /// The query of one definition's part, sorted as its part of the list is.
    ///
    /// # Errors
    /// As for a list of this definition alone.
    pub fn within(&self, definition: &Definition, limits: &Limits) -> Result<ConfigQuery, QueryError> {
        let ConfigQuery { filters, .. } = configs(&self.filters, definition, limits)?;
        let (sort, descending) = match self.sort {
            AcrossSort::Definition => (ConfigSort::Key, false),
            AcrossSort::Key => (ConfigSort::Key, self.page.descending),
            AcrossSort::Created => (ConfigSort::Created, self.page.descending),
            AcrossSort::Modified => (ConfigSort::Modified, self.page.descending),
        };
        Ok(ConfigQuery { page: Page { descending, ..self.page.clone() }, sort, filters })
    }
}
