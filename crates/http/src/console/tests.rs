//! The files of the console: complete, small, alone, and compressed as they are.

use std::{collections::BTreeSet, io::Read as _};

use flate2::read::GzDecoder;
use http::HeaderValue;

use super::*;

/// Compressed bytes that the console may load before somebody edits.
const FIRST_LOAD_BYTES_MAX: usize = 60 << 10;
/// The lines of a module.
const LINES_MAX: usize = 300;

fn text(asset: &Asset) -> &'static str {
    std::str::from_utf8(asset.plain).unwrap()
}

fn is_ours(asset: &Asset) -> bool {
    !asset.name.starts_with("vendor/")
}

fn accepting(value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))])
}

#[test]
fn a_file_is_found_by_its_name_only() {
    assert!(ASSETS.is_sorted_by_key(|asset| asset.name), "the search is binary");
    for asset in ASSETS {
        assert_eq!(find(asset.name).unwrap().name, asset.name);
    }
    for name in ["", "/", "../console.rs", "vendor", "vendor/", "app.js/", "absent.js"] {
        assert!(find(name).is_err(), "{name}");
    }
}

#[test]
fn what_is_sent_compressed_is_the_file() {
    for asset in ASSETS {
        let mut plain = Vec::new();
        GzDecoder::new(asset.packed).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, asset.plain, "{}", asset.name);
    }
}

#[test]
fn gzip_is_sent_to_those_who_take_it() {
    for value in ["gzip", "br, gzip", "deflate;q=0.5, gzip;q=0.1", "*"] {
        assert!(names(&accepting(value), &header::ACCEPT_ENCODING, is_gzip), "{value}");
    }
    for value in ["", "br", "gzip;q=0", "identity", "gzipped", "gzip;q=x"] {
        assert!(!names(&accepting(value), &header::ACCEPT_ENCODING, is_gzip), "{value}");
    }
}

/// The files that a browser loads with this one: those that the page names, and those that a module imports before it
/// runs.
fn loaded_with(name: &str, found: &mut BTreeSet<String>) {
    if !found.insert(name.to_owned()) {
        return;
    }
    let source = text(find(name).unwrap());
    let befores: &[&str] =
        if name.ends_with(".html") { &["href=\"", "src=\""] } else { &[" from \"", "import \""] };
    for reference in befores.iter().flat_map(|before| quoted_after(source, before)) {
        if name.ends_with(".html") {
            loaded_with(reference, found);
        } else if name.ends_with(".js") && !name.starts_with("vendor/") {
            loaded_with(&resolved(name, reference), found);
        }
    }
}

#[test]
fn what_is_loaded_before_somebody_edits_is_small() {
    let mut first = BTreeSet::new();
    for name in ["index.html", "pages/definitions.js", "pages/configs.js"] {
        loaded_with(name, &mut first);
    }
    assert!(first.len() > 15 && !first.contains("vendor/editor.js"), "{first:?}");
    let bytes: usize = first.iter().map(|name| find(name).unwrap().packed.len()).sum();
    assert!(bytes <= FIRST_LOAD_BYTES_MAX, "{bytes} bytes");
}

#[test]
fn each_module_says_what_it_is_for_and_is_short() {
    for asset in ASSETS.iter().filter(|asset| is_ours(asset) && asset.name.ends_with(".js")) {
        assert!(text(asset).starts_with("// "), "{} does not say what it is for", asset.name);
        let lines = text(asset).lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", asset.name);
    }
}

/// The texts in double quotes that come right after `before`.
fn quoted_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split_once('"')).map(|(quoted, _)| quoted).collect()
}

/// The name of the file that `reference` means in the file `from`.
fn resolved(from: &str, reference: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in reference.split('/') {
        match part {
            "." => {}
            ".." => assert!(parts.pop().is_some(), "{from} leaves the console by {reference}"),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn every_module_is_there_and_every_file_is_used() {
    let mut used: BTreeSet<String> = BTreeSet::from(["index.html".to_owned(), "moved.html".to_owned()]);
    for asset in ASSETS.iter().filter(|asset| is_ours(asset)) {
        let (source, name) = (text(asset), asset.name);
        let befores: &[&str] = if name.ends_with(".js") {
            &[" from \"", "import(\"", "import \""]
        } else {
            &["href=\"", "src=\""]
        };
        for reference in befores.iter().flat_map(|before| quoted_after(source, before)) {
            let target = if name.ends_with(".js") {
                assert!(reference.starts_with('.'), "{name} imports {reference}, which no browser resolves");
                resolved(name, reference)
            } else {
                reference.to_owned()
            };
            assert!(find(&target).is_ok(), "{name} refers to {reference}");
            used.insert(target);
        }
    }
    for asset in ASSETS.iter().filter(|asset| !asset.name.ends_with(".txt")) {
        assert!(used.contains(asset.name), "{} is used by no file", asset.name);
    }
}

#[test]
fn nothing_is_fetched_from_elsewhere_or_made_of_text() {
    for asset in ASSETS.iter().filter(|asset| is_ours(asset)) {
        for forbidden in ["https://", "eval(", "new Function", "innerHTML", "localStorage.setItem(\"key"] {
            assert!(!text(asset).contains(forbidden), "{} holds `{forbidden}`", asset.name);
        }
    }
    let page = text(find("index.html").unwrap());
    assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("onload"), "{page}");
    assert!(!page.contains("<script>"), "the policy allows files only: {page}");
}

#[test]
fn what_is_vendored_has_its_licence_and_is_what_was_fetched() {
    let notice = text(find("vendor/LICENSES.txt").unwrap());
    for name in ["preact", "htm", "@preact/signals", "@codemirror/view", "@lezer/common", "style-mod"] {
        assert!(notice.contains(&format!("\n{name} ")), "the licence of {name}");
    }
}
