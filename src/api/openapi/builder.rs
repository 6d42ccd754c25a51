//! How an operation is described: a few words over the builders of `utoipa`, so that an entry reads as a sentence.
//!
//! **Invariant:** what every operation has is added here and not by its entry: the parameters of its path, the
//! headers of every answer, 401 and 500 where a key is asked for.

use serde_json::{Value, json};
use utoipa::openapi::{
    Content, HttpMethod, Ref, RefOr, Required, Schema, SecurityRequirement,
    content::ContentBuilder,
    path::{Operation, OperationBuilder},
    request_body::RequestBodyBuilder,
    response::ResponseBuilder,
};

use super::shared;

/// The headers of every answer.
pub(super) const ALWAYS: [&str; 3] = ["X-Request-ID", "X-Concord-Node", "X-Concord-Revision"];
/// The headers of an answer about one record.
pub(super) const RECORD: &[&str] = &["ETag", "Last-Modified"];
/// The parameters of every read.
pub(super) const FRESHNESS: &[&str] = &["consistency", "max_staleness_ms", "min_revision"];
/// The refusals of every read.
pub(super) const READ: &[u16] = &[422, 503, 504];
/// The refusals of every write.
pub(super) const WRITE: &[u16] = &[413, 422, 429, 503, 504];
/// The headers of every write.
pub(super) const ASKED: &[&str] = &["Idempotency-Key", "X-Change-Reason"];
/// The same of those that can be tried.
pub(super) const TRIED: &[&str] = &["Idempotency-Key", "X-Change-Reason", "dry_run"];

/// One method of one path in the making.
pub(super) struct Described {
    method: HttpMethod,
    path: &'static str,
    operation: OperationBuilder,
}

/// Begins the description of a method of a path. `id` names the operation in generated clients.
pub(super) fn describe(
    method: HttpMethod,
    path: &'static str,
    tag: &str,
    id: &str,
    summary: &str,
) -> Described {
    let mut operation = OperationBuilder::new().tag(tag).operation_id(Some(id)).summary(Some(summary));
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    for name in names {
        operation = operation.parameter_ref(parameter(name));
    }
    operation = operation.parameter_ref(parameter("X-Request-ID"));
    Described { method, path, operation }
}

fn parameter(name: &str) -> Ref {
    Ref::new(format!("#/components/parameters/{name}"))
}

impl Described {
    /// What the summary leaves open.
    pub(super) fn about(mut self, text: &str) -> Self {
        self.operation = self.operation.description(Some(text));
        self
    }

    /// Takes these parameters of `shared`.
    pub(super) fn takes(mut self, names: &[&str]) -> Self {
        for name in names {
            self.operation = self.operation.parameter_ref(parameter(name));
        }
        self
    }

    /// Takes a JSON body.
    pub(super) fn body(self, schema: &str, example: Value) -> Self {
        self.bodies("Unknown members are ignored.", vec![("application/json", schema, example)])
    }

    /// Takes a body of one of these types: each with its schema and an example.
    pub(super) fn bodies(mut self, about: &str, kinds: Vec<(&str, &str, Value)>) -> Self {
        let mut body = RequestBodyBuilder::new().description(Some(about)).required(Some(Required::True));
        for (kind, schema, example) in kinds {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema)));
            body = body.content(kind, content.example(Some(example)).build());
        }
        self.operation = self.operation.request_body(Some(body.build()));
        self
    }

    /// Answers with a payload in the envelope of success.
    pub(super) fn answers(
        self,
        status: u16,
        text: &str,
        (data, example): (&str, Value),
        headers: &[&str],
    ) -> Self {
        let envelope = json!({ "status": "SUCCESS", "message": text, "data": example });
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(format!("{data}Answer"))))
            .example(Some(envelope))
            .build();
        self.responds(status, text, Some(("application/json", content)), headers)
    }

    /// Answers with anything.
    pub(super) fn responds(
        mut self,
        status: u16,
        text: &str,
        content: Option<(&str, Content)>,
        headers: &[&str],
    ) -> Self {
        let mut response = with_headers(ResponseBuilder::new().description(text), headers);
        if let Some((kind, content)) = content {
            response = response.content(kind, content);
        }
        self.operation = self.operation.response(status.to_string(), response.build());
        self
    }

    /// Refuses with these statuses of `shared`.
    pub(super) fn refuses(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            self.operation = self.operation.response(status.to_string(), shared::refusal(*status));
        }
        self
    }

    /// Refuses with a status of `shared`, whose answer may have these headers too.
    pub(super) fn refuses_with(mut self, status: u16, headers: &[&str]) -> Self {
        self.operation = self.operation.response(status.to_string(), shared::refusal_with(status, headers));
        self
    }

    /// Needs no key.
    pub(super) fn without_key(mut self) -> Self {
        self.operation = self.operation.security(SecurityRequirement::default());
        self
    }

    pub(super) fn end(self) -> (&'static str, HttpMethod, Operation) {
        let mut operation = self.operation.build();
        if operation.security.is_none() {
            operation.responses.responses.insert("401".into(), shared::refusal(401).into());
        }
        operation.responses.responses.insert("500".into(), shared::refusal(500).into());
        (self.path, self.method, operation)
    }
}

/// An answer with these headers and those of every answer.
pub(super) fn with_headers(mut response: ResponseBuilder, headers: &[&str]) -> ResponseBuilder {
    for name in ALWAYS.iter().chain(headers) {
        response = response.header_ref(*name, Ref::new(format!("#/components/headers/{name}")));
    }
    response
}

/// A reference to one of the `schemas`.
pub(super) fn schema(name: &str) -> RefOr<Schema> {
    Ref::from_schema_name(name).into()
}
