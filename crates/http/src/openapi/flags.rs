//! The operations on feature flags. Their bodies are those of OFREP and flagd, without the envelope.

use serde_json::{Value, json};
use utoipa::openapi::{
    ArrayBuilder, Type,
    content::ContentBuilder,
    schema::{OneOfBuilder, SchemaType},
};

use super::{
    builder::{CODED, OperationEntry, READ_PARAMETERS, READ_REFUSALS, REDACTED, describe},
    schemas::{NamedSchema, any_value, json_object, open, reference, text},
};

const TAG: &str = "flags";

/// The headers of responses with an entity tag of their bytes.
const TAGGED: &str = "ETag = BodyTag";

const ABOUT: &str = "A provider of OpenFeature for OFREP asks this, with the path before `/ofrep` as its base address. The \
flags are the configs of the definition, in the format of flagd. `targetingKey` of the context says who reads. A disabled \
flag, and one without a default variant whose rule gives nothing, have no `value`: the program uses its own default. \
Members and query parameters that are unknown have no effect. Rejections have the form of OFREP, and 400 in place of 422.";

fn example_value() -> Value {
    json!({ "key": "new-checkout", "value": true, "reason": "TARGETING_MATCH", "variant": "on" })
}

/// One evaluation, of all or of a definition that the path names.
fn evaluation(id: &'static str, summary: &str) -> OperationEntry {
    let content =
        ContentBuilder::new().schema(Some(reference("Evaluation"))).example(Some(example_value())).build();
    let headers = [&[REDACTED], CODED].concat();
    request(id, summary).response(200, "the value of the flag", Some(("application/json", content)), &headers)
}

fn evaluations(id: &'static str, summary: &str) -> OperationEntry {
    let example = json!({ "flags": [example_value()] });
    let content = ContentBuilder::new().schema(Some(reference("Evaluations"))).example(Some(example)).build();
    let headers = [&[TAGGED, REDACTED], CODED].concat();
    request(id, summary)
        .parameters(&["If-None-Match"])
        .response(200, "the values of all flags", Some(("application/json", content)), &headers)
        .response(304, "the client has these values", None, &[TAGGED, REDACTED])
}

/// What the requests for evaluations have in common.
fn request(id: &'static str, summary: &str) -> OperationEntry {
    let example = json!({ "context": { "targetingKey": "user-7", "country": "de" } });
    describe(TAG, id, summary)
        .description(ABOUT)
        .parameters(READ_PARAMETERS)
        .bodies("Unknown members are ignored.", vec![("application/json", "EvaluationRequest", example)])
        .refusals(READ_REFUSALS)
        .refusals(&[404, 413, 415])
        .response(400, "the flag or the request can't be evaluated", None, &[])
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let flag =
        json!({ "state": "ENABLED", "variants": { "on": true, "off": false }, "defaultVariant": "off" });
    let document = json!({ "flags": { "new-checkout": flag } });
    let example = "id: 42\ndata: {\"type\":\"refetchEvaluation\",\"etag\":\"42\"}\n\n";
    let events = ContentBuilder::new().schema(Some(text())).example(Some(json!(example))).build();
    let document =
        ContentBuilder::new().schema(Some(reference("FlagDocument"))).example(Some(document)).build();
    vec![
        evaluation("evaluate_flag", "Evaluate a flag"),
        evaluations("evaluate_flags", "Evaluate all flags of a definition"),
        evaluation("evaluate_default_flag", "Evaluate a flag of the definition `flags`"),
        evaluations("evaluate_default_flags", "Evaluate all flags of the definition `flags`"),
        describe(TAG, "get_flagd_document", "Read all flags as one document, as flagd fetches it")
            .description(
                "The flags, and `$evaluators` and `metadata` of the config `shared~`. A flag with a secret part that the \
                 key may not see is left out.",
            )
            .parameters(READ_PARAMETERS)
            .parameters(&["If-None-Match"])
            .response(200, "the flags", Some(("application/json", document)), &[&[TAGGED, REDACTED], CODED].concat())
            .response(304, "the client has these flags", None, &[TAGGED, REDACTED])
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe(TAG, "watch_flags", "Learn when flags change")
            .description(
                "Server-sent events for providers: `{\"type\":\"refetchEvaluation\",\"etag\":\"<revision>\"}` at the begin and \
                 after each change of the definition. `eventStreams` of the response with all flags has this path with a \
                 `ticket`, which lets a browser in without a header: for one definition, on two days, and only while the key \
                 is valid.",
            )
            .parameters(&["ticket"])
            .parameters(READ_PARAMETERS)
            .response(200, "a stream of events", Some(("text/event-stream", events)), &["Cache-Control"])
            .refusals(READ_REFUSALS),
    ]
}

/// The bodies of its requests and of its responses.
pub(super) fn requests() -> Vec<NamedSchema> {
    let context = json_object().description(Some("who reads, and what is known of that reader"));
    let metadata = || json_object().description(Some("texts, numbers and booleans"));
    let reasons = text().enum_values(Some(["STATIC", "TARGETING_MATCH", "DEFAULT", "DISABLED"]));
    let value = any_value().description(Some("absent where the program uses its own default"));
    let success = open(
        vec![
            ("key", text().into()),
            ("reason", reasons.into()),
            ("variant", text().description(Some("empty where there is no `value`")).into()),
        ],
        vec![("value", value.into()), ("metadata", metadata().into())],
    );
    let endpoint = open(vec![("requestUri", text().into())], Vec::new());
    let stream = open(
        vec![("type", text().enum_values(Some(["sse"])).into()), ("endpoint", endpoint.into())],
        Vec::new(),
    );
    let each = OneOfBuilder::new().item(reference("Evaluation")).item(reference("FlagFailure"));
    let codes = text().enum_values(Some(["FLAG_NOT_FOUND", "PARSE_ERROR", "INVALID_CONTEXT", "GENERAL"]));
    let failure = open(
        vec![("errorCode", codes.into()), ("errorDetails", text().into())],
        vec![
            ("key", text().description(Some("of the flag that was requested")).into()),
            ("metadata", metadata().into()),
        ],
    );
    let all = open(
        vec![("flags", ArrayBuilder::new().items(each).into())],
        vec![("metadata", metadata().into()), ("eventStreams", ArrayBuilder::new().items(stream).into())],
    );
    let document = open(
        vec![("flags", json_object().into())],
        vec![("$evaluators", json_object().into()), ("metadata", json_object().into())],
    );
    vec![
        (
            "EvaluationRequest",
            open(
                Vec::new(),
                vec![(
                    "context",
                    context.schema_type(SchemaType::from_iter([Type::Object, Type::Null])).into(),
                )],
            )
            .into(),
        ),
        ("Evaluation", success.into()),
        ("FlagFailure", failure.into()),
        ("Evaluations", all.into()),
        ("FlagDocument", document.into()),
    ]
}
