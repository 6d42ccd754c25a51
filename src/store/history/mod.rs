//! The history: every change by revision, in append-only segments.
//!
//! | file | what it does |
//! |---|---|
//! | `format` | the stored form of a change and of a segment |
//! | `writer` | appends changes to the open segment |
//! | `segments` | which segments there are |
//! | `segment_index` | what is where in one segment |
//! | `reader` | reads one segment frame by frame |
//! | `query`, `reads` | what the history answers, and the store's methods for it |
//! | `transfer` | pieces of the history on their way to another member |

pub(in crate::store) mod format;
pub(in crate::store) mod query;
pub(in crate::store) mod reader;
mod reads;
pub(in crate::store) mod segment_index;
pub(in crate::store) mod segments;
mod transfer;
pub(in crate::store) mod writer;
