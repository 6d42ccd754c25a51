//! What a request says: parsed, rejected, and remembered by its fingerprint.

use super::*;
use crate::{endpoints::TABLE, reply::Detail};
use concord_model::error::{Invalid, LocSegment};
use concord_service::Refusal;

fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn violations<T: std::fmt::Debug>(made: Result<T, Problem>) -> usize {
    match made {
        Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) => violations.len(),
        other => panic!("{other:?} is not a refusal with violations"),
    }
}

fn read(query: &str, rest: Result<(), QueryError>) -> Result<Consistency, Problem> {
    QueryParams::from_uri(&format!("/?{query}").parse().unwrap())
        .with_consistency(rest)
        .map(|(consistency, ())| consistency)
}

#[test]
fn if_none_match_is_compared_with_the_current_version() {
    let has = |values: &[&str]| {
        let pairs: Vec<_> = values.iter().map(|value| (header::IF_NONE_MATCH, *value)).collect();
        let uri = Uri::from_static("/");
        ReadRequest {
            is_raw: false,
            principal: Principal::root(),
            params: QueryParams::from_uri(&uri),
            matched: TABLE.find(&Method::GET, "/"),
            uri,
            headers: headers(&pairs),
        }
        .has(7)
    };
    assert!(has(&["\"7\""]) && has(&["*"]) && has(&["\"1\", W/\"7\""]) && has(&["\"1\"", "\"7\""]));
    assert!(!has(&[]) && !has(&["\"8\""]) && !has(&["7"]) && !has(&["\"77\""]) && !has(&["\"7"]));
}

#[test]
fn consistency_is_parsed_and_its_violations_are_listed_with_the_others() {
    let local = |max_staleness| Level::Local { max_staleness };
    let is = |level, min_revision| Consistency { level, min_revision };
    assert_eq!(read("", Ok(())).unwrap(), is(Level::Linearizable, None));
    assert_eq!(
        read("consistency=linearizable&min_revision=%2B5", Ok(())).unwrap(),
        is(Level::Linearizable, Some(5))
    );
    let time = Some(Duration::from_millis(20));
    assert_eq!(read("consistency=local&max_staleness_ms=20", Ok(())).unwrap(), is(local(time), None));
    let huge = "consistency=local&min_revision=18446744073709551615";
    assert_eq!(read(huge, Ok(())).unwrap(), is(local(None), Some(u64::MAX)));
    assert_eq!(read("min_revision=-0", Ok(())).unwrap(), is(Level::Linearizable, Some(0)));
    for bad in [
        "consistency=",
        "consistency=Local",
        "max_staleness_ms=1",
        "min_revision=-1",
        "min_revision=18446744073709551616",
        "min_revision=-99999999999999999999999",
    ] {
        assert_eq!(violations(read(bad, Ok(()))), 1, "{bad}");
    }
    let rest = QueryError::Violations(vec![Violation::new("x")]);
    assert_eq!(violations(read("consistency=x&min_revision=-1", Err(rest))), 3);
}

#[test]
fn all_integers_that_do_not_parse_are_listed_before_anything_else_is() {
    let rest = QueryError::NotIntegers(vec!["page".into()]);
    let made = read("min_revision=&max_staleness_ms=1.5&consistency=x", Err(rest));
    let Err(Problem::Shape(details)) = made else { panic!("{made:?}") };
    let loc = |name: &str| vec![LocSegment::from("query"), name.into()];
    let locs: Vec<_> = details.iter().map(|Detail { loc, .. }| loc.clone()).collect();
    assert_eq!(locs, [loc("page"), loc("max_staleness_ms"), loc("min_revision")]);
    assert!(details.iter().all(|detail| detail.kind == "int_parsing"));
}

#[test]
fn keys_are_decoded_once_and_invalid_utf_8_is_no_key() {
    let keys = |path: &str| {
        let uri: Uri = format!("/api/v1/config_definition{path}").parse().unwrap();
        Keys::of(&TABLE.find(&Method::PUT, uri.path()), &uri)
    };
    let both = keys("/d.1/config/k%7E/");
    assert_eq!((both.definition.as_str(), both.config.as_str()), ("d.1", "k~"));
    assert_eq!(keys("/a%252F/config/").definition, "a%2F");
    assert_eq!(keys("/").definition, "");
    for bad in ["/%ff", "/a%2Fb", "/%00", "/a%20"] {
        assert_eq!(violations(check_key(&keys(bad).definition, "config_definition_key")), 1, "{bad}");
    }
}

#[test]
fn requests_have_the_same_fingerprint_only_when_no_part_differs() {
    let key_of_request =
        |principal: &str, method: &str, uri: &str, pairs: &[(HeaderName, &str)], body: &str| {
            let mut request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
            *request.headers_mut() = headers(pairs);
            request.headers_mut().append(IDEMPOTENCY_KEY, "k".parse().unwrap());
            let (parts, ()) = request.into_parts();
            let begun = begin_idempotency_key(&Principal::named(principal, 0), &parts).unwrap().unwrap();
            begun.end(body.as_bytes())
        };
    let tag = (header::IF_MATCH, "\"1\"");
    let first = key_of_request("p", "PUT", "/a", std::slice::from_ref(&tag), "b");
    assert_eq!(key_of_request("p", "PUT", "/a/", std::slice::from_ref(&tag), "b"), first);
    let other = key_of_request("q", "PUT", "/a", std::slice::from_ref(&tag), "b");
    assert!(other.id != first.id && other.fingerprint == first.fingerprint);
    for different in [
        key_of_request("p", "POST", "/a", std::slice::from_ref(&tag), "b"),
        key_of_request("p", "PUT", "/b", std::slice::from_ref(&tag), "b"),
        key_of_request("p", "PUT", "/a?x", std::slice::from_ref(&tag), "b"),
        key_of_request("p", "PUT", "/a", &[], "b"),
        key_of_request("p", "PUT", "/a", &[(header::IF_NONE_MATCH, "\"1\"")], "b"),
        key_of_request("p", "PUT", "/a", std::slice::from_ref(&tag), "c"),
    ] {
        assert!(different.id == first.id && different.fingerprint != first.fingerprint);
    }
}

#[test]
fn reasons_and_idempotency_keys_are_bounded() {
    let reason_of = |value: &str| reason(&headers(&[(CHANGE_REASON, value)]));
    assert_eq!(reason_of("größer").unwrap().as_deref(), Some("größer"));
    assert_eq!(reason_of("").unwrap(), None);
    assert!(reason_of(&"x".repeat(1024)).is_ok());
    assert_eq!(violations(reason_of(&"x".repeat(1025))), 1);
    let latin = HeaderMap::from_iter([(CHANGE_REASON, HeaderValue::from_bytes(b"\xff").unwrap())]);
    assert_eq!(violations(reason(&latin)), 1);
    let key_of = |value: &str| {
        let mut request = http::Request::new(());
        request.headers_mut().append(IDEMPOTENCY_KEY, value.parse().unwrap());
        begin_idempotency_key(&Principal::root(), &request.into_parts().0)
    };
    assert!(key_of(&"x".repeat(255)).is_ok());
    for bad in ["", "a b", &"x".repeat(256)] {
        assert_eq!(violations(key_of(bad)), 1, "{bad:?}");
    }
}
