//! What the checker of the chaos tests asks about credentials that end; none does in a simulation yet.

use std::collections::BTreeMap;

use crate::history::{End, Operation};

pub(crate) fn accepted_after_the_end(_: &[Operation], _: &BTreeMap<String, End>) -> Vec<String> {
    Vec::new()
}
