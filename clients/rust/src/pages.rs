//! Snapshot-consistent pagination of lists.
//!
//! **Invariant:** each page is the one that `Link` of the previous page names, so concurrent writes neither skip nor
//! duplicate a record.

use serde_json::Value;

use crate::{Client, Error, Request};

/// The pages of a list.
#[derive(Debug)]
pub struct Pages {
    client: Client,
    next: Option<Request>,
    total: Option<u64>,
    revision: Option<u64>,
    redacted: Vec<String>,
}

impl Pages {
    pub(crate) fn new(client: Client, first: Request) -> Self {
        Self { client, next: Some(first), total: None, revision: None, redacted: Vec::new() }
    }

    /// The records of the next page; `None` after the last one.
    ///
    /// # Errors
    /// When a page can't be read; 410 when the state of the pages is no longer retained.
    pub async fn next(&mut self) -> Result<Option<Vec<Value>>, Error> {
        let Some(request) = self.next.take() else { return Ok(None) };
        let answer = self.client.send(request).await?;
        self.next = answer.next_page().map(Request::get);
        self.revision = self.revision.or(answer.state_revision());
        self.redacted = answer.redacted_places();
        let mut data = answer.data()?;
        self.total = data["meta"]["total"].as_u64().or(self.total);
        let Value::Array(results) = data["results"].take() else {
            return Err(Error::Protocol("the response is not a list".into()));
        };
        Ok(Some(results))
    }

    /// The number of records on all pages, once a page was read.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// The revision of the state that the first page shows.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        self.revision
    }

    /// The secret fields that were redacted in the page that was read last, because the access key does not have
    /// `reveal`: a record has those of these places that exist in it.
    #[must_use]
    pub fn redacted(&self) -> &[String] {
        &self.redacted
    }

    /// All records of the remaining pages.
    ///
    /// # Errors
    /// When a page can't be read.
    pub async fn all(mut self) -> Result<Vec<Value>, Error> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await? {
            all.extend(page);
        }
        Ok(all)
    }
}
