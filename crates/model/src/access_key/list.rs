//! Lists of access keys: page, sort, search, as for every list.
//!
//! There are few keys, so a list looks at all of them and needs no index.
//!
//! **Invariant:** a query that was parsed can be answered, and equal keys of the sort are in the order of their ids.

use std::{cmp::Ordering, sync::Arc};

use super::AccessKey;
use crate::{
    limits::Limits,
    query::{Page, QueryError, at, last, page, quoted},
};

/// How access keys are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySort {
    /// By id.
    Id,
    /// By name.
    Name,
    /// By time of creation.
    Created,
    /// By time of the last change.
    Modified,
}

/// A list of access keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyQuery {
    /// Page and direction; a search looks in names and ids.
    pub page: Page,
    /// The sort field.
    pub sort: KeySort,
}

impl KeyQuery {
    /// Parses the query of a list. `params` are the decoded pairs in order; unknown ones are ignored.
    ///
    /// # Errors
    /// All violations.
    pub fn parse(params: &[(String, String)], limits: &Limits) -> Result<Self, QueryError> {
        let mut violations = Vec::new();
        let page = page(params, limits, &mut violations)?;
        let sort = match last(params, "sort_by") {
            Some("key_id") => KeySort::Id,
            Some("name") => KeySort::Name,
            Some("created_at") => KeySort::Created,
            Some("modified_at") | None => KeySort::Modified,
            Some(other) => {
                let msg = format!(
                    "sort field must be one of `key_id`, `name`, `created_at`, `modified_at`, not `{}`",
                    quoted(other)
                );
                violations.push(at("sort_by", msg));
                KeySort::Modified
            }
        };
        if violations.is_empty() { Ok(Self { page, sort }) } else { Err(QueryError::Violations(violations)) }
    }

    /// The keys of the page, and how many there are on all pages.
    pub fn page_of(&self, keys: impl Iterator<Item = Arc<AccessKey>>) -> (Vec<Arc<AccessKey>>, u64) {
        let search = &self.page.search;
        let is_found = |key: &Arc<AccessKey>| {
            let has = |text: &str| text.to_lowercase().contains(search.as_str());
            search.is_empty() || has(&key.name) || has(key.id.as_str())
        };
        let mut found: Vec<_> = keys.filter(is_found).collect();
        found.sort_unstable_by(|a, b| {
            let order = self.compare(a, b);
            let order = if self.page.descending { order.reverse() } else { order };
            order.then_with(|| a.id.cmp(&b.id))
        });
        let total = found.len() as u64;
        let before = self.page.page.saturating_sub(1).saturating_mul(self.page.limit);
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        let limit = usize::try_from(self.page.limit).unwrap_or(usize::MAX);
        (found.into_iter().skip(before).take(limit).collect(), total)
    }

    fn compare(&self, a: &AccessKey, b: &AccessKey) -> Ordering {
        match self.sort {
            KeySort::Id => a.id.cmp(&b.id),
            KeySort::Name => a.name.cmp(&b.name),
            KeySort::Created => a.created_at.cmp(&b.created_at),
            KeySort::Modified => a.modified_at.cmp(&b.modified_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    fn query(text: &str) -> Result<KeyQuery, QueryError> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        let params: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        KeyQuery::parse(&params, &Limits::default())
    }

    fn ids(text: &str) -> (Vec<u64>, u64) {
        // Modified in the order of their numbers, named in the reverse one, created in pairs.
        let keys = (1..=6).map(|number| Arc::new(key(number)));
        let (found, total) = query(text).unwrap().page_of(keys);
        (found.iter().map(|key| key.revision).collect(), total)
    }

    #[test]
    fn a_page_is_sorted_searched_and_counted() {
        assert_eq!(ids(""), (vec![6, 5, 4, 3, 2, 1], 6));
        assert_eq!(ids("sort_order=asc&limit=2&page=2"), (vec![3, 4], 6));
        assert_eq!(ids("sort_by=name&sort_order=asc&limit=2"), (vec![6, 5], 6));
        assert_eq!(ids("sort_by=created_at&sort_order=asc"), (vec![1, 2, 3, 4, 5, 6], 6), "ties by id");
        assert_eq!(ids("sort_by=key_id&limit=1"), (vec![6], 6));
        assert_eq!(ids("search=KEY-94"), (vec![6], 1));
        assert_eq!(ids("search=0004"), (vec![4], 1));
        assert_eq!(ids("page=18446744073709551615"), (vec![], 6));
    }

    #[test]
    fn a_wrong_query_is_refused() {
        for text in ["page=0", "limit=0", "sort_by=grants", "sort_order=up", "limit=x", "limit=1001"] {
            assert!(query(text).is_err(), "{text}");
        }
    }
}
