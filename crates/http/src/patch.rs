//! Partial updates of configs: `PATCH` with a JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902).
//!
//! An operation that cannot be applied to the current data (its path does not exist) is 422: the patch is wrong. A
//! `test` that finds another value is 409: the patch is valid and the record has changed, which RFC 5789, 2.2 calls
//! a conflicting state. The caller reads the record again and makes another patch, as after a 412.
//!
//! **Invariant:** a patch has one of the two media types (`body::patch_format`); no other body is taken for a patch.

use serde_json::Value;

use super::{
    configs::computed_reply,
    extract::WriteRequest,
    reply::{Detail, Problem, Reply},
};
use concord_model::{
    document::Document,
    error::{Invalid, LocSegment, Violation},
    patch::{Patch, PatchFormat, ShapeErrorKind},
};
use concord_service::{Refusal, Service, Write};

/// Patches the data of a config.
pub(super) async fn patch(service: Service, request: WriteRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let format = request.patch_format.ok_or(Problem::UnsupportedPatch)?;
    let patch =
        request.read(&service, move |body| parse(format, body, &["body".into()], &["patch".into()])).await?;
    let (definition, key) = (request.keys.definition, request.keys.config);
    let write = Write::PatchConfig { definition, key, patch, expect };
    Ok(computed_reply(&service.writes.write(request.caller, write).await?))
}

/// Checks a patch. `shape_loc` is its place in errors of shape, `loc` its place in violations.
fn parse(
    format: PatchFormat,
    value: Value,
    shape_loc: &[LocSegment],
    loc: &[LocSegment],
) -> Result<Patch, Problem> {
    let (details, violations) = errors(format, &value, shape_loc, loc);
    if !details.is_empty() {
        return Err(Problem::Shape(details));
    }
    if !violations.is_empty() {
        return Err(Refusal::Invalid(Invalid::Violations(violations)).into());
    }
    Ok(Patch { format, document: Document::new(value) })
}

/// The errors in the shape of a patch, and its violations of the rules of its format.
pub(super) fn errors(
    format: PatchFormat,
    value: &Value,
    shape_loc: &[LocSegment],
    loc: &[LocSegment],
) -> (Vec<Detail>, Vec<Violation>) {
    let (mut details, mut violations) = (Vec::new(), Vec::new());
    for misshape in Patch::check_shape(format, value) {
        let below = |base: &[LocSegment]| base.iter().cloned().chain(misshape.loc.iter().cloned()).collect();
        let (msg, kind) = match &misshape.kind {
            ShapeErrorKind::Missing => ("field required", "missing"),
            ShapeErrorKind::NotText => ("input should be a valid string", "string_type"),
            ShapeErrorKind::NotList => ("input should be a valid list", "list_type"),
            ShapeErrorKind::NotObject => ("input should be a valid object", "model_attributes_type"),
            ShapeErrorKind::Wrong(msg) => {
                violations.push(Violation::at(below(loc), msg.clone()));
                continue;
            }
        };
        details.push(Detail { loc: below(shape_loc), msg: msg.into(), kind });
    }
    (details, violations)
}
