//! Looks for the anchored lines in the files of the log.
//!
//! **Invariant:** a line that the node itself has removed is not missed.

use std::{io, path::Path};

use super::{
    files::list,
    page::{LineAt, line_at},
};
use concord_model::audit::{AuditAnchor, AuditAnchors};

/// A sentence about the anchors that the log does not have, if there are any.
pub(super) fn look_for(directory: &Path, own: &AuditAnchors, most: usize) -> io::Result<Option<String>> {
    let files = list(directory)?;
    let (mut checked, mut missing): (usize, Vec<(AuditAnchor, Option<u64>)>) = (0, Vec::new());
    for anchor in own.anchors.iter().filter(|anchor| !own.is_accepted(anchor)).rev().take(most) {
        match line_at(&files, anchor.seq)? {
            // The node itself removes its oldest files.
            LineAt::Removed => break,
            LineAt::Found(hash) if hash == anchor.sha256 => {}
            LineAt::Found(_) => missing.push((*anchor, None)),
            LineAt::After(last) => missing.push((*anchor, Some(last))),
        }
        checked += 1;
    }
    let Some((oldest, last)) = missing.last() else { return Ok(None) };
    let what = match last {
        None => format!("line {} is another one", oldest.seq),
        Some(last) => format!("the log ends with line {last}, and line {} is missing", oldest.seq),
    };
    let (count, at) = (missing.len(), oldest.at.text());
    let at = &*at;
    let begins_anew =
        if count == checked { "; it was rewritten or replaced, or its directory was emptied" } else { "" };
    Ok(Some(format!("{what}, which was anchored at {at}; {count} of {checked} anchors differ{begins_anew}.")))
}
