//! The `OpenAPI` document (`/openapi.json`) and the page that renders it (`/docs`), both served from the binary.
//!
//! The page is Swagger UI. Its online validator would send the document to a third party, so it is disabled, and a
//! content security policy keeps the browser from every other host.
//!
//! **Invariants:** nothing here reveals any of the data. Nothing is fetched from another host.

use std::{
    borrow::Cow,
    future::{Ready, ready},
    sync::{Arc, LazyLock},
};

use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use utoipa_swagger_ui::{Config, serve};

use super::{
    extract::Name,
    openapi,
    reply::{Problem, Reply},
};
use concord_model::limits::Limits;
use concord_service::{Refusal, Service};

/// The path of the document.
pub(super) const DOCUMENT: &str = "/openapi.json";
/// The path of the page; its files are below it.
pub(super) const PAGE: &str = "/docs";

static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::from(DOCUMENT).validator_url("none").try_it_out_enabled(true);
    Arc::new(config.display_request_duration(true).persist_authorization(false))
});

/// Whether a path needs no key.
pub(super) fn is_public(path: &str) -> bool {
    path == DOCUMENT || path.strip_prefix(PAGE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The document of a node with these limits.
pub(super) fn document(limits: &Limits) -> MethodRouter<Service> {
    let text = serde_json::to_vec(&openapi::document(limits)).expect("the document has string keys only");
    let text = Bytes::from(text);
    get(move || ready(Reply::asset("application/json", text.clone())))
}

/// The page at `/docs`, whose files are one level below it.
pub(super) fn page() -> Ready<Result<Reply, Problem>> {
    ready(file("index.html").map(|(kind, bytes)| {
        let page = String::from_utf8_lossy(&bytes).replacen("<head>", "<head><base href=\"docs/\">", 1);
        Reply::html_page(&kind, page.into())
    }))
}

/// The page at `/docs/`.
pub(super) fn page_with_slash() -> Ready<Result<Reply, Problem>> {
    ready(file("index.html").map(|(kind, bytes)| Reply::html_page(&kind, bytes)))
}

/// A file of the page.
pub(super) fn asset(Name(name): Name) -> Ready<Result<Reply, Problem>> {
    ready(file(&name).map(|(kind, bytes)| Reply::asset(&kind, bytes)))
}

fn file(name: &str) -> Result<(String, Bytes), Problem> {
    let file = serve(name, Arc::clone(&CONFIG));
    let file = file.map_err(|error| Refusal::Internal(format!("a file of the page: {error}")))?;
    // What the page does not load is empty in the binary that is distributed (scripts/package.sh).
    let file = file.filter(|file| !file.bytes.is_empty()).ok_or(Problem::UnknownPath)?;
    // A stranger may ask for a file on each stream of many connections and read none of it: no copy is made for it.
    let bytes = match file.bytes {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    Ok((file.content_type, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_document_and_the_page_are_public() {
        for path in ["/openapi.json", "/docs", "/docs/", "/docs/swagger-ui.css", "/docs/absent"] {
            assert!(is_public(path), "{path}");
        }
        for path in ["/openapi.json/", "/docsx", "/doc", "//docs", "/api/v1/docs"] {
            assert!(!is_public(path), "{path}");
        }
    }

    #[test]
    fn a_file_is_sent_from_the_program_and_not_copied() {
        for name in ["swagger-ui-bundle.js", "swagger-ui.css", "index.html"] {
            let ((_, one), (_, two)) = (file(name).unwrap(), file(name).unwrap());
            assert_eq!(one.as_ptr(), two.as_ptr(), "{name}");
        }
        let (_, changed) = file("swagger-initializer.js").unwrap();
        assert!(changed.len() < 4096, "what is made for each answer is short");
    }

    #[test]
    fn the_page_refers_to_its_own_files_and_to_no_other_host() {
        let (_, page) = file("index.html").unwrap();
        let page = String::from_utf8(page.to_vec()).unwrap();
        assert!(page.contains("<head>") && !page.contains("//"), "{page}");
        for quoted in page.split('"').filter(|text| text.ends_with(".js") || text.ends_with(".css")) {
            file(quoted.trim_start_matches("./")).unwrap();
        }
        for unused in ["swagger-ui.js\"", "es-bundle"] {
            assert!(!page.contains(unused), "{unused} is left out of the binary that is distributed");
        }
        let (_, start) = file("swagger-initializer.js").unwrap();
        let start = String::from_utf8(start.to_vec()).unwrap();
        assert!(start.contains("/openapi.json") && start.contains("\"validatorUrl\": \"none\""), "{start}");
        assert!(file("../Cargo.toml").is_err() && file("absent.js").is_err());
    }
}
