//! Reads: definitions, configs, lists and bulk reads.
//!
//! | topic | file |
//! |---|---|
//! | reading one definition or config | `view` |
//! | bulk reads | `bulk` |
//! | lists: the first page and the later ones | `list` |
//! | pages of states that other nodes hold | `page` |
//! | the format of a cursor | `cursor` |
//! | field selection; whether a parameter is a filter; compression | `parts` |
//! | states that are retained for cursors; retaining values with limits | `pinned`, `retained` |
//! | lists at an earlier revision | `earlier` |
//! | the query of a list: making it, its cost, running it | `query` |
//! | redaction of a page | `shown` |
//! | the records of a list: cut into pages and chunks | `records` |
//! | whole definitions, without pages | `whole` |

pub mod bulk;
pub mod cursor;
pub(super) mod earlier;
pub mod list;

mod page;
mod parts;
pub(super) mod pinned;
mod query;
pub mod records;
mod retained;
mod shown;
pub mod view;
pub mod whole;

use std::sync::Arc;

use super::{context::Context, freshness::Freshness, history::HistoryReader, redaction::Redactor};

/// Serves reads of single records, lists and bulk reads.
#[derive(Debug)]
pub struct Reads {
    pub(crate) cx: Arc<Context>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) history: Arc<HistoryReader>,
    /// One clone for each short list in progress.
    pub(crate) short_lists: Arc<()>,
    pub(crate) pinned_states: Arc<pinned::PinnedStates>,
    /// Reconstructed earlier states, retained for further lists.
    pub(crate) earlier_states: Arc<earlier::EarlierStates>,
}

impl Reads {
    pub(crate) fn new(
        cx: &Arc<Context>,
        freshness: &Arc<Freshness>,
        redactor: &Arc<Redactor>,
        history: &Arc<HistoryReader>,
    ) -> Self {
        Self {
            cx: Arc::clone(cx),
            freshness: Arc::clone(freshness),
            redactor: Arc::clone(redactor),
            history: Arc::clone(history),
            short_lists: Arc::default(),
            pinned_states: Arc::new(pinned::PinnedStates::new(cx.memory_budget.pins_max())),
            earlier_states: Arc::new(earlier::EarlierStates::new(cx.memory_budget.past_max())),
        }
    }
}
