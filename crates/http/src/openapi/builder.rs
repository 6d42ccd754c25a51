//! How an operation is described: a thin layer over the builders of `utoipa`, so that an entry is short.
//!
//! **Invariant:** what follows from the row of an endpoint, or is the same for all, is added here and not by its entry:
//! the parameters of its path, the headers of every response, and 500; and 401, 403, 429 and 503 where a key is needed.

use serde_json::{Value, json};
use utoipa::openapi::{
    Content, HttpMethod, Ref, RefOr, Required, SecurityRequirement,
    content::ContentBuilder,
    path::{Operation, OperationBuilder},
    request_body::RequestBodyBuilder,
    response::ResponseBuilder,
};

use super::{
    headers::{with_headers, without_key},
    refusals,
    schemas::reference,
};
use crate::endpoints::{ENDPOINTS, Endpoint, EndpointMethod, Pretty, RequiredRight};

/// The headers of a response about one record.
pub(super) const RECORD_HEADERS: &[&str] = &["ETag", "Last-Modified"];
/// The headers of a response about one config as its reader sees it.
pub(super) const SEEN_HEADERS: &[&str] = &["ETag = SeenTag", "Last-Modified", "X-Concord-Variant", "Vary"];
/// What a client says of itself as a reader.
pub(super) const READER_PARAMETERS: &[&str] = &["X-Concord-Reader", "X-Concord-Labels"];
/// The header of a response with data of configs.
pub(super) const REDACTED: &str = "X-Concord-Redacted";
/// The parameters of every read.
pub(super) const READ_PARAMETERS: &[&str] = &["consistency", "max_staleness_ms", "min_revision"];
/// The rejections of every read.
pub(super) const READ_REFUSALS: &[u16] = &[422, 429, 503, 504];
/// The rejections of every write.
pub(super) const WRITE_REFUSALS: &[u16] = &[413, 415, 422, 429, 503, 504];
/// The headers of a response that may be compressed.
pub(super) const CODED: &[&str] = &["Content-Encoding", "Vary"];
/// The parameters of every write.
pub(super) const WRITE_PARAMETERS: &[&str] = &["Idempotency-Key", "X-Change-Reason"];
/// The parameters of a write that has a dry run.
pub(super) const DRY_RUN_WRITE_PARAMETERS: &[&str] =
    &["Idempotency-Key", "X-Change-Reason", "dry_run", "bypass"];

/// What the document says of one endpoint, beside what its row says.
pub(super) struct OperationEntry {
    id: &'static str,
    operation: OperationBuilder,
}

/// The payload of a success: the name of its schema, and an example.
pub(super) struct ExamplePayload<'a> {
    schema: &'a str,
    example: Value,
}

pub(super) const fn payload(schema: &str, example: Value) -> ExamplePayload<'_> {
    ExamplePayload { schema, example }
}

/// Begins the entry of an endpoint. `id` is the operation of its row.
pub(super) fn describe(tag: &str, id: &'static str, summary: &str) -> OperationEntry {
    OperationEntry { id, operation: OperationBuilder::new().tag(tag).summary(Some(summary)) }
}

/// The path of a row, as the document has it: with the names that keys have in bodies.
pub(crate) fn path(row: &Endpoint) -> String {
    row.path.replace("{definition}", "{config_definition_key}").replace("{config}", "{config_key}")
}

/// The method of a row.
pub(super) const fn method(row: &Endpoint) -> HttpMethod {
    match row.method {
        EndpointMethod::Get => HttpMethod::Get,
        EndpointMethod::Put => HttpMethod::Put,
        EndpointMethod::Post => HttpMethod::Post,
        EndpointMethod::Patch => HttpMethod::Patch,
        EndpointMethod::Delete => HttpMethod::Delete,
    }
}

fn parameter(name: &str) -> Ref {
    Ref::new(format!("#/components/parameters/{name}"))
}

impl OperationEntry {
    /// Adds a description to the summary.
    pub(super) fn description(mut self, text: &str) -> Self {
        self.operation = self.operation.description(Some(text));
        self
    }

    /// Adds parameters, by their names in `parameters`.
    pub(super) fn parameters(mut self, names: &[&str]) -> Self {
        for name in names {
            self.operation = self.operation.parameter_ref(parameter(name));
        }
        self
    }

    /// Adds a JSON body.
    pub(super) fn body(self, schema: &str, example: Value) -> Self {
        let is_lenient = ENDPOINTS.iter().any(|row| row.operation == self.id && row.is_lenient);
        let about = if is_lenient {
            "Unknown members are ignored, and a `Warning` names them."
        } else {
            "Unknown members are rejected."
        };
        self.bodies(about, vec![("application/json", schema, example)])
    }

    /// Adds a body of one of several media types, each with its schema and an example.
    pub(super) fn bodies(mut self, about: &str, kinds: Vec<(&str, &str, Value)>) -> Self {
        let mut body = RequestBodyBuilder::new().description(Some(about)).required(Some(Required::True));
        for (kind, schema, example) in kinds {
            let content = ContentBuilder::new().schema(Some(reference(schema)));
            body = body.content(kind, content.example(Some(example)).build());
        }
        self.operation = self.operation.request_body(Some(body.build()));
        self
    }

    /// Adds a success, whose payload is in the envelope. `message` is the envelope's member too.
    pub(super) fn success(
        self,
        status: u16,
        message: &str,
        payload: ExamplePayload<'_>,
        headers: &[&str],
    ) -> Self {
        let ExamplePayload { schema, example } = payload;
        let envelope = json!({ "status": "SUCCESS", "message": message, "data": example });
        let content = ContentBuilder::new()
            .schema(Some(reference(&format!("{schema}Answer"))))
            .example(Some(envelope))
            .build();
        self.response(status, message, Some(("application/json", content)), headers)
    }

    /// Adds any other response.
    pub(super) fn response(
        mut self,
        status: u16,
        text: &str,
        content: Option<(&str, Content)>,
        headers: &[&str],
    ) -> Self {
        // The name of a parameter that has no effect.
        let may_warn = (200..300).contains(&status)
            && !headers.contains(&"Warning")
            && ENDPOINTS.iter().any(|row| row.operation == self.id && row.warns_of_parameters());
        let headers = [headers, if may_warn { &["Warning"] } else { &[] }].concat();
        let mut response = with_headers(ResponseBuilder::new().description(text), &headers);
        if let Some((kind, content)) = content {
            response = response.content(kind, content);
        }
        self.operation = self.operation.response(status.to_string(), response.build());
        self
    }

    /// Adds rejections, by their statuses in `refusals`.
    pub(super) fn refusals(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            self.operation = self.operation.response(status.to_string(), refusals::refusal(*status));
        }
        self
    }

    /// Adds a rejection that may have further headers.
    pub(super) fn refusal_with(mut self, status: u16, headers: &[&str]) -> Self {
        self.operation = self.operation.response(status.to_string(), refusals::refusal_with(status, headers));
        self
    }

    /// The operation of the row that it is for.
    pub(super) const fn id(&self) -> &'static str {
        self.id
    }

    /// The operation, with what follows from its row.
    pub(super) fn build(self, row: &Endpoint) -> Operation {
        let needs_key = row.right != RequiredRight::Open;
        let mut entry = Self { operation: self.operation.operation_id(Some(row.operation)), ..self };
        if !needs_key {
            entry.operation = entry.operation.security(SecurityRequirement::default());
        }
        if row.method == EndpointMethod::Get && !row.takes_head {
            entry = entry.refusals(&[405]);
        }
        let mut operation = entry.operation.build();
        let path = path(row);
        let mut names: Vec<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        names.push("X-Request-ID");
        if path.starts_with("/api/") && row.pretty != Pretty::Never {
            names.push("pretty");
        }
        let own = operation.parameters.take().unwrap_or_default();
        let first = names.into_iter().map(|name| RefOr::Ref(parameter(name)));
        operation.parameters = Some(first.chain(own).collect());
        if needs_key {
            // 422 is that of `pretty`, which every response takes, and 503 that of a node which can't know now whether the
            // key is valid.
            for status in [401, 403, 429, 422, 503] {
                let refusal = || refusals::refusal(status).into();
                operation.responses.responses.entry(status.to_string()).or_insert_with(refusal);
            }
        } else {
            for response in operation.responses.responses.values_mut() {
                if let RefOr::T(response) = response {
                    without_key(response);
                }
            }
        }
        operation.responses.responses.insert("500".into(), refusals::refusal(500).into());
        if row.is_ofrep {
            // 422 is the status in other forms.
            operation.responses.responses.remove("422");
            for (status, response) in &mut operation.responses.responses {
                let refused = status.parse().ok().filter(|status: &u16| *status >= 400);
                if let Some(status) = refused {
                    *response = refusals::of_ofrep(status).into();
                }
            }
        }
        operation
    }
}
