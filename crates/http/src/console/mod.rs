//! The console at `/ui`: a page of ES modules that runs in the browser of a user with a key.
//!
//! `build.rs` puts the files of `console/` into the program; the browser runs them unchanged. The console has no
//! permission of its own: it sends the key that the user types to the public API, as any client does.
//!
//! **Invariants:** no file reveals any of the data, and no state is read. The content security policy of the page
//! blocks every other host, scripts and styles that are not files of the console, and frames.

use bytes::Bytes;
use http::{HeaderMap, header};

use super::{
    Api,
    endpoints::{OpenCall, UI},
    reply::{Problem, Reply},
};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'self'; form-action 'none'; frame-ancestors 'none'";

/// A file of the console.
#[derive(Debug)]
struct Asset {
    /// Its path below [`UI`].
    name: &'static str,
    /// Its `ETag`.
    version: &'static str,
    plain: &'static [u8],
    /// The same, compressed with gzip.
    packed: &'static [u8],
}

/// By name.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// The page at `/ui/`; at `/ui` what sends the browser there, so that what the page names is found below it.
pub(super) fn page(_: &Api, call: &OpenCall) -> Result<Reply, Problem> {
    let name = if call.parts.uri.path() == UI { "moved.html" } else { "index.html" };
    find(name).map(|asset| answer(asset, &call.parts.headers))
}

/// A file of the page.
pub(super) fn file(_: &Api, call: &OpenCall) -> Result<Reply, Problem> {
    find(&call.name()).map(|asset| answer(asset, &call.parts.headers))
}

/// A file in a folder of the page.
pub(super) fn file_in_folder(_: &Api, call: &OpenCall) -> Result<Reply, Problem> {
    find(&call.names().join("/")).map(|asset| answer(asset, &call.parts.headers))
}

fn find(name: &str) -> Result<&'static Asset, Problem> {
    let place = ASSETS.binary_search_by_key(&name, |asset| asset.name);
    place.ok().and_then(|place| ASSETS.get(place)).ok_or(Problem::UnknownPath)
}

fn answer(asset: &'static Asset, headers: &HeaderMap) -> Reply {
    let known = names(headers, &header::IF_NONE_MATCH, |known| known == asset.version || known == "*");
    let reply = if known { Reply::not_modified() } else { whole(asset, headers) };
    // A browser keeps the file and asks whether it is still the one.
    let reply = reply.header(header::ETAG, asset.version).header(header::CACHE_CONTROL, "no-cache");
    reply.header(header::VARY, "accept-encoding")
}

fn whole(asset: &'static Asset, headers: &HeaderMap) -> Reply {
    let takes_gzip = names(headers, &header::ACCEPT_ENCODING, is_gzip);
    // From the program, not copied: an unauthenticated client may ask for it on each stream of many connections and
    // read none of it.
    let bytes = Bytes::from_static(if takes_gzip { asset.packed } else { asset.plain });
    let reply = Reply::asset(media_type(asset.name), bytes);
    let reply = if takes_gzip { reply.header(header::CONTENT_ENCODING, "gzip") } else { reply };
    if !asset.name.ends_with(".html") {
        return reply;
    }
    reply.header(header::CONTENT_SECURITY_POLICY, POLICY).header(header::REFERRER_POLICY, "no-referrer")
}

/// Whether a header with a list has an element of which `is` says so.
fn names(headers: &HeaderMap, name: &header::HeaderName, is: impl Fn(&str) -> bool) -> bool {
    let texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|element| is(element.trim()))
}

/// Whether an element of `Accept-Encoding` allows gzip.
fn is_gzip(element: &str) -> bool {
    let (coding, weight) = element.split_once(';').unwrap_or((element, ""));
    let weight = weight.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
    matches!(coding.trim(), "gzip" | "*") && weight.is_ok_and(|weight| weight > 0.0)
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, end)| end) {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "html" => "text/html; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests;
