//! The `OpenAPI` document (`/openapi.json`) and the page that renders it (`/docs`), both served from the binary.
//!
//! The page is Swagger UI. Its online validator would send the document to a third party, so it is disabled, and a
//! content security policy keeps the browser from every other host.
//!
//! **Invariants:** nothing here reveals any of the data. Nothing is fetched from another host.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use utoipa_swagger_ui::{Config, serve};

use super::{
    Api,
    endpoints::{DOCS, DOCUMENT, OpenCall},
    openapi,
    reply::{Problem, Reply},
};
use concord_model::limits::Limits;
use concord_service::Refusal;

static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::from(DOCUMENT).validator_url("none").try_it_out_enabled(true);
    Arc::new(config.display_request_duration(true).persist_authorization(false))
});

/// The text of the document of a node with these limits.
pub(super) fn document_text(limits: &Limits) -> Bytes {
    serde_json::to_vec(&openapi::document(limits)).expect("the document has string keys only").into()
}

/// The document.
pub(super) fn document(api: &Api, _: &OpenCall) -> Reply {
    Reply::asset("application/json", api.document.clone())
}

/// The page. Its files are named as they are seen from `/docs/`.
pub(super) fn page(_: &Api, call: &OpenCall) -> Result<Reply, Problem> {
    let (kind, bytes) = asset("index.html")?;
    if call.parts.uri.path() != DOCS {
        return Ok(Reply::html_page(&kind, bytes));
    }
    let page = String::from_utf8_lossy(&bytes).replacen("<head>", "<head><base href=\"docs/\">", 1);
    Ok(Reply::html_page(&kind, page.into()))
}

/// A file of the page.
pub(super) fn file(_: &Api, call: &OpenCall) -> Result<Reply, Problem> {
    asset(&call.name()).map(|(kind, bytes)| Reply::asset(&kind, bytes))
}

fn asset(name: &str) -> Result<(String, Bytes), Problem> {
    let file = serve(name, Arc::clone(&CONFIG));
    let file = file.map_err(|error| Refusal::Internal(format!("a file of the page: {error}")))?;
    // What the page does not load is empty in the binary that is distributed (scripts/package.sh).
    let file = file.filter(|file| !file.bytes.is_empty()).ok_or(Problem::UnknownPath)?;
    // An unauthenticated client may ask for a file on each stream of many connections and read none of it: no copy is
    // made for it.
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
    fn a_file_is_sent_from_the_program_and_not_copied() {
        for name in ["swagger-ui-bundle.js", "swagger-ui.css", "index.html"] {
            let ((_, one), (_, two)) = (asset(name).unwrap(), asset(name).unwrap());
            assert_eq!(one.as_ptr(), two.as_ptr(), "{name}");
        }
        let (_, changed) = asset("swagger-initializer.js").unwrap();
        assert!(changed.len() < 4096, "what is made for each answer is short");
    }

    #[test]
    fn the_page_refers_to_its_own_files_and_to_no_other_host() {
        let (_, page) = asset("index.html").unwrap();
        let page = String::from_utf8(page.to_vec()).unwrap();
        assert!(page.contains("<head>") && !page.contains("//"), "{page}");
        for quoted in page.split('"').filter(|text| text.ends_with(".js") || text.ends_with(".css")) {
            asset(quoted.trim_start_matches("./")).unwrap();
        }
        for unused in ["swagger-ui.js\"", "es-bundle"] {
            assert!(!page.contains(unused), "{unused} is left out of the binary that is distributed");
        }
        let (_, start) = asset("swagger-initializer.js").unwrap();
        let start = String::from_utf8(start.to_vec()).unwrap();
        assert!(start.contains("/openapi.json") && start.contains("\"validatorUrl\": \"none\""), "{start}");
        assert!(asset("../Cargo.toml").is_err() && asset("absent.js").is_err());
    }
}
