//! Fetches pages from the nodes that hold their states.
//!
//! A node that receives another node's cursor requests the page from that node. The page arrives in chunks, because a
//! page of the largest records is larger than one RPC may be. The same RPC fetches a page at an earlier revision from a
//! member whose history has what this node lacks.
//!
//! **Invariants:** one hop: a node that receives this RPC never calls a third node. If the node of a cursor no longer
//! holds the state, is no longer a member or does not run, the cursor is *expired*.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    cursor::Cursor,
    earlier::NotMade,
    list::{ListRequest, Lister, Listing, PageRecords, expired},
    records::ListRecords,
};
use crate::{
    Refusal,
    freshness::wait_until_applied,
    memory_budget::{Reservation, Share},
    read::Reads,
};
use concord_consensus::Consensus;
use concord_model::{
    key_set::KeySet,
    record::{Definition, Revision},
};
use concord_net::{
    Member, ReceiveError,
    call::Call,
    client::{CallError, Lane},
    codec::{decode, encode},
};

/// A request for a page to the node that holds its state.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct PageRequest {
    cursor: Cursor,
    list: ListRequest,
    limit: u64,
    /// The number of records of the page that the requesting node has already.
    skip: u64,
}

/// The response to a [`PageRequest`]. New variants go to the end.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum PageResponse {
    /// Records of the page, the number of its records after them, and the number of records on all pages.
    Chunk {
        records: ListRecords,
        left: u64,
        total: u64,
    },
    Refused(Refusal),
    /// The same for a state at an earlier revision, with the definition at that revision.
    Earlier {
        records: ListRecords,
        left: u64,
        total: u64,
        definition: Option<Arc<Definition>>,
    },
    /// The node's history lacks changes that it needs to reconstruct the earlier state.
    NotThere(String),
}

/// Records of a page that another node has sent.
#[derive(Debug, PartialEq)]
struct Chunk {
    found: PageRecords,
    /// The number of records of the page after them.
    left: u64,
}

impl Lister<'_> {
    /// Fetches the page of a cursor from the node that holds its state. Returns it with the memory that it holds.
    pub(super) async fn fetch_page(
        &self,
        consensus: &Consensus,
        cursor: Cursor,
        limit: u64,
    ) -> Result<(PageRecords, Reservation), Refusal> {
        let mut members = consensus.status().members.into_iter().map(|status| status.member);
        let Some(holder) = members.find(|member| member.id == cursor.node) else {
            return Err(expired(&format!("node {} is no longer a member", cursor.node)));
        };
        self.fetch_from(&holder, cursor, limit).await
    }

    /// Fetches a page at an earlier revision from another member, the leader first. `why` says what this node lacks.
    pub(super) async fn fetch_earlier_page(
        &self,
        consensus: &Consensus,
        cursor: Cursor,
        limit: u64,
        why: &str,
    ) -> Result<(PageRecords, Reservation), Refusal> {
        let mut last = Refusal::Unavailable(format!("no member has this part of the history: {why}"));
        for member in self.reads.history.members_to_ask(consensus) {
            if Instant::now() >= self.deadline {
                break;
            }
            tracing::debug!(
                why,
                member = member.id,
                "requesting a page at an earlier revision from another member"
            );
            let cursor = Cursor { node: member.id, ..cursor };
            match self.fetch_from(&member, cursor, limit).await {
                Ok(found) => return Ok(found),
                // Another member may have the history, or be less busy.
                Err(refusal @ (Refusal::Unavailable(_) | Refusal::LimitReached(_) | Refusal::Overloaded)) => {
                    last = refusal;
                }
                // The member does not run.
                Err(Refusal::CursorExpired(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(last)
    }

    /// Fetches a page from one node, chunk by chunk.
    async fn fetch_from(
        &self,
        holder: &Member,
        cursor: Cursor,
        limit: u64,
    ) -> Result<(PageRecords, Reservation), Refusal> {
        let Listing { list, keys } = &*self.listing;
        let (mut page, mut bytes) = (ListRecords::default(), 0);
        let mut reservation = self.reads.reserve_page(&page)?;
        loop {
            let request = PageRequest { cursor, list: list.clone(), limit, skip: page.len() as u64 };
            let timeout = self.deadline.saturating_duration_since(Instant::now());
            let (peers, body) = (self.reads.cx.peers(), encode(&(&request, keys)));
            let response =
                peers.call(Lane::Forward, holder.id, &holder.peer_addr, Call::Page, body, timeout).await;
            let Chunk { found, left } = chunk_of(response)?;
            let is_last = left == 0 || found.records.len() == 0;
            bytes += found.records.bytes();
            page.append(found.records);
            self.reads.check_page(bytes)?;
            // These records are copies that no state shares, so the page occupies memory as a whole.
            reservation.grow(bytes.saturating_sub(reservation.bytes()))?;
            if is_last {
                return Ok((PageRecords { records: page, ..found }, reservation));
            }
        }
    }
}

impl Reads {
    /// Responds to another node's request for a page of a state that this node holds or can reconstruct.
    ///
    /// # Errors
    /// If the body is not a request of this version. Every other failure is a response.
    pub async fn answer_page(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let (PageRequest { cursor, list, limit, skip }, keys): (_, KeySet) = decode(&body)?;
        let lister = Lister::new(self, list, keys);
        let chunk = |records: ListRecords| records.chunk(usize::try_from(skip).unwrap_or(usize::MAX));
        let response = if let Some(at) = lister.listing.list.earlier_revision() {
            match lister.earlier_chunk(at, cursor, limit).await {
                Ok(PageRecords { records, total, definition }) => {
                    let (records, left) = chunk(records);
                    PageResponse::Earlier { records, left, total, definition }
                }
                Err(NotMade::Elsewhere(why)) => PageResponse::NotThere(why),
                Err(NotMade::Refused(error)) => PageResponse::Refused(error.refusal),
            }
        } else {
            match lister.pinned_page(cursor, limit).await {
                Ok(PageRecords { records, total, .. }) => {
                    let (records, left) = chunk(records);
                    PageResponse::Chunk { records, left, total }
                }
                Err(refusal) => PageResponse::Refused(refusal),
            }
        };
        Ok(encode(&response))
    }
}

impl Lister<'_> {
    /// The records of a page at an earlier revision, for another node. Never calls a third node.
    async fn earlier_chunk(&self, at: Revision, cursor: Cursor, limit: u64) -> Result<PageRecords, NotMade> {
        wait_until_applied(self.reads.cx.consensus_or_refusal()?, at, self.deadline).await?;
        self.earlier_page(at, cursor.page, limit, Share::Peers).await
    }
}

/// The chunk in another node's response, or the reason why it has none.
fn chunk_of(response: Result<Bytes, CallError>) -> Result<Chunk, Refusal> {
    let body = match response {
        Ok(body) => body,
        // A node that was stopped has lost its pinned states.
        Err(CallError::NotSent(text)) => {
            return Err(expired(&format!("the node that held its state is gone: {text}")));
        }
        Err(error @ (CallError::Unknown(_) | CallError::Refused { .. })) => {
            return Err(Refusal::Unavailable(format!(
                "the node that holds the page did not send it: {error}"
            )));
        }
    };
    match decode(&body) {
        Ok(PageResponse::Chunk { records, left, total }) => {
            Ok(Chunk { found: PageRecords { records, total, definition: None }, left })
        }
        Ok(PageResponse::Earlier { records, left, total, definition }) => {
            Ok(Chunk { found: PageRecords { records, total, definition }, left })
        }
        Ok(PageResponse::NotThere(why)) => {
            Err(Refusal::Unavailable(format!("no member has this part of the history: {why}")))
        }
        Ok(PageResponse::Refused(refusal)) => Err(refusal),
        Err(error) => Err(Refusal::Internal(format!("the page from another node is {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::list::ListScope, *};
    use crate::read::records::tests::configs;
    use concord_model::{index::Indexing, key::Key, key_set::KeyRange, time::Timestamp};

    #[test]
    fn page_requests_and_responses_decode_to_what_was_encoded() {
        let cursor = Cursor { node: 2, revision: 7, page: 3, fingerprint: [1; 16] };
        let list =
            ListRequest { scope: ListScope::Configs("d".into()), params: vec![("n".into(), "1".into())] };
        let request = PageRequest { cursor, list, limit: 10, skip: 4 };
        for keys in [KeySet::ALL, KeySet::of([KeyRange::Prefix("billing.".into())])] {
            let body = encode(&(&request, &keys));
            let (found, own) = decode::<(PageRequest, KeySet)>(&body).unwrap();
            assert_eq!((&found, &own), (&request, &keys));
            assert!(decode::<(PageRequest, KeySet)>(&body[..body.len() - 1]).is_err());
        }
        let chunk = PageResponse::Chunk { records: configs(2, 3), left: 1, total: 9 };
        let expected =
            Chunk { found: PageRecords { records: configs(2, 3), total: 9, definition: None }, left: 1 };
        assert_eq!(chunk_of(Ok(encode(&chunk))).unwrap(), expected);
        let definition = Definition {
            id: 7,
            key: Key::parse("d").unwrap(),
            indexes: Vec::new(),
            schema: None,
            indexing: Indexing::fresh(0),
            created_at: Timestamp(7),
            modified_at: Timestamp(7),
            revision: 7,
            unique: Vec::new(),
            protected: false,
            standing: <_>::default(),
        };
        let definition = Some(Arc::new(definition));
        let earlier = PageResponse::Earlier {
            records: configs(2, 3),
            left: 1,
            total: 9,
            definition: definition.clone(),
        };
        let found = PageRecords { definition, ..expected.found };
        assert_eq!(chunk_of(Ok(encode(&earlier))).unwrap(), Chunk { found, left: 1 });
        let lacks = chunk_of(Ok(encode(&PageResponse::NotThere("a gap".into()))));
        assert!(matches!(lacks, Err(Refusal::Unavailable(_))), "{lacks:?}");
        let refused = Refusal::Overloaded;
        assert_eq!(chunk_of(Ok(encode(&PageResponse::Refused(refused.clone())))), Err(refused));
    }

    #[test]
    fn a_cursor_of_a_node_that_does_not_run_has_expired() {
        let gone = chunk_of(Err(CallError::NotSent("connection refused".into())));
        assert!(matches!(gone, Err(Refusal::CursorExpired(_))));
        let slow = chunk_of(Err(CallError::Unknown("time-out".into())));
        assert!(matches!(slow, Err(Refusal::Unavailable(_))));
    }
}
