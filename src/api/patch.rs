//! Partial updates of configs: `PATCH` with a JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902).
//!
//! An operation that is not possible on the data as it is (a path that leads nowhere) is 422: the patch is wrong. A
//! `test` that finds another value is 409: the patch is right and the record has moved on, which RFC 5789, 2.2 calls
//! a conflicting state; its caller reads again and makes another patch, as after a 412.
//!
//! **Invariant:** a patch has one of the two media types; nothing else is taken for a patch.

use axum::extract::State;
use http::{HeaderMap, header};
use serde_json::Value;

use super::{
    extract::Ask,
    reply::{Detail, Problem, Reply},
};
use crate::{
    model::{
        document::Document,
        error::{Invalid, LocSegment, Violation},
        patch::{Patch, PatchFormat, ShapeErrorKind},
    },
    service::{Refusal, Service, Write},
};

/// The media types of patches.
const FORMS: [(&str, PatchFormat); 2] = [
    ("application/merge-patch+json", PatchFormat::Merge),
    ("application/json-patch+json", PatchFormat::Json),
];

/// Changes a part of a config's data.
pub(super) async fn patch(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let expect = ask.condition.change()?;
    let form = ask.patch_form.ok_or(Problem::NoPatch)?;
    let patch = read(form, ask.json(&service)?, &["body".into()], &["patch".into()])?;
    let (definition, key) = (ask.keys.definition, ask.keys.config);
    let write = Write::PatchConfig { definition, key, patch, expect };
    let written = service.write(ask.caller, write).await?;
    let reply = match &written.content {
        Some(content) => Reply::done("config updated", content),
        None => Reply::without_data("config updated"),
    };
    Ok(reply.of_write(&written))
}

/// The form of the patch that a body says it is.
pub(super) fn form(headers: &HeaderMap) -> Option<PatchFormat> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next().unwrap_or_default().trim();
    FORMS.iter().find(|(name, _)| name.eq_ignore_ascii_case(essence)).map(|(_, form)| *form)
}

/// Reads a patch. `body` is the way to it in the body, `within` how its violations are named.
pub(super) fn read(
    form: PatchFormat,
    value: Value,
    body: &[LocSegment],
    within: &[LocSegment],
) -> Result<Patch, Problem> {
    let (details, violations) = violations(form, &value, body, within);
    if !details.is_empty() {
        return Err(Problem::Shape(details));
    }
    if !violations.is_empty() {
        return Err(Refusal::Invalid(Invalid::Violations(violations)).into());
    }
    Ok(Patch { format: form, document: Document::new(value) })
}

/// What is wrong with the shape of a patch, and which of its rules it breaks.
pub(super) fn violations(
    form: PatchFormat,
    value: &Value,
    body: &[LocSegment],
    within: &[LocSegment],
) -> (Vec<Detail>, Vec<Violation>) {
    let (mut details, mut violations) = (Vec::new(), Vec::new());
    for misshape in Patch::check_shape(form, value) {
        let below = |way: &[LocSegment]| way.iter().cloned().chain(misshape.loc.iter().cloned()).collect();
        let (msg, kind) = match &misshape.kind {
            ShapeErrorKind::Missing => ("field required", "missing"),
            ShapeErrorKind::NotText => ("input should be a valid string", "string_type"),
            ShapeErrorKind::NotList => ("input should be a valid list", "list_type"),
            ShapeErrorKind::NotObject => ("input should be a valid object", "model_attributes_type"),
            ShapeErrorKind::Wrong(msg) => {
                violations.push(Violation::at(below(within), msg.clone()));
                continue;
            }
        };
        details.push(Detail { loc: below(body), msg: msg.into(), kind });
    }
    (details, violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_media_types_are_patches() {
        let form_of =
            |value: &str| form(&HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]));
        assert_eq!(form_of("application/merge-patch+json"), Some(PatchFormat::Merge));
        assert_eq!(form_of("Application/JSON-Patch+json; charset=utf-8"), Some(PatchFormat::Json));
        for other in ["", "application/json", "application/patch+json", "text/plain"] {
            assert_eq!(form_of(other), None, "{other}");
        }
        assert_eq!(form(&HeaderMap::new()), None);
    }
}
