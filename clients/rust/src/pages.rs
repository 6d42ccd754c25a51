//! Snapshot-consistent pagination of lists.
//!
//! **Invariant:** each page is the one that `Link` of the previous page names, so concurrent writes neither skip nor
//! duplicate a record. If the node that holds this state is gone, the list goes on at the revision of the state, which
//! each node can make again.

use http::StatusCode;
use serde_json::Value;

use crate::{Client, Error, Request};

/// The pages of a list.
#[derive(Debug)]
pub struct Pages {
    client: Client,
    first: Request,
    next: Option<Request>,
    /// How many pages were read.
    made: u64,
    /// Whether `next` rests on what one node holds.
    is_cursor: bool,
    total: Option<u64>,
    revision: Option<u64>,
    redacted: Vec<String>,
}

impl Pages {
    pub(crate) fn new(client: Client, first: Request) -> Self {
        let next = Some(first.clone());
        Self {
            client,
            first,
            next,
            made: 0,
            is_cursor: false,
            total: None,
            revision: None,
            redacted: Vec::new(),
        }
    }

    /// The records of the next page; `None` after the last one.
    ///
    /// # Errors
    /// When a page can't be read; 410 when the state of the pages is no longer retained.
    pub async fn next(&mut self) -> Result<Option<Vec<Value>>, Error> {
        let Some(request) = self.next.take() else { return Ok(None) };
        let answer = match (self.client.send(request).await, self.resumed()) {
            (Err(error), Some(request)) if error.status() == Some(StatusCode::GONE) => {
                self.client.send(request).await?
            }
            (result, _) => result?,
        };
        self.made += 1;
        self.is_cursor = true;
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

    /// The request for the next page at the revision of the pages that were read, if the list takes one.
    fn resumed(&self) -> Option<Request> {
        const SETTLED: [&str; 5] = ["consistency", "max_staleness_ms", "page", "revision", "$revision"];
        let revision = self.revision.filter(|_| self.is_cursor)?;
        let mut request = self.first.clone();
        let name = match request.path.strip_prefix("/api/v1/config_definition/")? {
            "" => "revision",
            of_one if of_one.ends_with("/config/") => "$revision",
            _ => return None,
        };
        let page = request.query.iter().find(|(name, _)| name == "page");
        let page = page.map_or(Some(1), |(_, page)| page.parse().ok()).map(|page: u64| page + self.made)?;
        request.query.retain(|(name, _)| !SETTLED.contains(&name.as_str()));
        Some(request.query(name, revision).query("page", page))
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
