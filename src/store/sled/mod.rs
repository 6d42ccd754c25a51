//! The mirror of the state in sled, written behind the answers.
//!
//! | file | what it does |
//! |---|---|
//! | `mirror` | follows the state: what is written when |
//! | `merge` | changes merged into rows |
//! | `trees` | the sled database |
//! | `keys` | the layout of its keys |

pub(in crate::store) mod keys;
pub(in crate::store) mod merge;
pub(in crate::store) mod mirror;
pub(in crate::store) mod trees;
