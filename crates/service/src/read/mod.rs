//! Reads: single definitions and configs, lists with their pages, many configs at once.
//!
//! | question | file |
//! |---|---|
//! | How is one definition or config read? | `view` |
//! | How are many configs read at once? | `bulk` |
//! | How is a list answered, its first page and the later ones? | `list` |
//! | How does a page come from the node that holds its state? | `page` |
//! | What is in a cursor? | `cursor` |
//! | Which parts of a record does an answer have? Is a parameter one of a list, or a filter? | `parts` |
//! | Which states are retained for cursors, and for how long? | `pinned` |
//! | How is a list at an earlier revision answered? | `earlier` |
//! | Which query is a list, and what does it find? | `query` |
//! | What of a page is a caller shown? | `shown` |
//! | What is on a page, and how is it cut for a call? | `records` |

pub mod bulk;
pub mod cursor;
pub(super) mod earlier;
pub mod list;

mod page;
mod parts;
pub(super) mod pinned;
mod query;
pub mod records;
mod shown;
pub mod view;

use std::sync::Arc;

use super::{context::Context, freshness::Freshness, history::HistoryReader, redaction::Redactor};

/// Answers reads: definitions, lists, many configs at once.
#[derive(Debug)]
pub struct Reads {
    pub(crate) cx: Arc<Context>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) history: Arc<HistoryReader>,
    /// One clone for each short list in progress.
    pub(crate) short_lists: Arc<()>,
    pub(crate) pinned_states: Arc<pinned::PinnedStates>,
    /// Earlier states that lists have made again.
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
