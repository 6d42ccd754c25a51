//! A discovery document leads to the provider's hosts only.

use concord_identity::{Discovery, Provider, discovery::DiscoveryError, url::UrlError};
use serde_json::{Value, json};

fn provider(issuer: &str, is_for_persons: bool) -> Provider {
    let mut document = json!({
        "issuer": issuer, "audiences": ["concord"], "single_tenant": true, "hosts": ["keys.example.net"],
    });
    if is_for_persons {
        document["persons"] = json!({ "label": "upn" });
    }
    Provider::parse(&document).unwrap()
}

fn document() -> Value {
    json!({
        "issuer": "https://login.example.com", "jwks_uri": "https://keys.example.net/jwks?x=1",
        "authorization_endpoint": "https://login.example.com/authorize?p=b2c",
        "token_endpoint": "https://Login.example.com:443/token",
        "end_session_endpoint": "https://login.example.com/logout",
        "response_types_supported": ["code"],
    })
}

fn parse(document: &Value, is_for_persons: bool) -> Result<Discovery, DiscoveryError> {
    let provider = provider("https://login.example.com", is_for_persons);
    Discovery::parse(document.to_string().as_bytes(), &provider)
}

#[test]
fn the_endpoints_of_a_provider_are_read() {
    let found = parse(&document(), true).unwrap();
    let login = found.login.unwrap();
    assert_eq!(found.jwks_uri, "https://keys.example.net/jwks?x=1");
    assert_eq!(login.token, "https://Login.example.com:443/token");
    assert_eq!((login.device_authorization, login.end_session.is_some()), (None, true));
}

#[test]
fn machines_need_a_key_set_only() {
    let document =
        json!({ "issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/jwks" });
    assert_eq!(parse(&document, false).unwrap().login, None);
    assert_eq!(parse(&document, true), Err(DiscoveryError::Missing("authorization_endpoint")));
}

#[test]
fn an_endpoint_elsewhere_is_rejected() {
    use UrlError::{Address, Character, Fragment, Scheme, User};
    let url = |error| DiscoveryError::Url { name: "x", error };
    let host = |host: &str| DiscoveryError::Host { name: "x", host: host.into() };
    let required = ["jwks_uri", "authorization_endpoint", "token_endpoint"];
    let optional = ["device_authorization_endpoint", "end_session_endpoint"];
    for (value, wanted) in [
        (json!("javascript:alert(1)//"), url(Scheme)),
        (json!("http://login.example.com/"), url(Scheme)),
        (json!("data:text/html,x"), url(Scheme)),
        (json!("/token"), url(Scheme)),
        (json!(""), url(Scheme)),
        (json!(null), DiscoveryError::Missing("x")),
        (json!(["https://login.example.com/"]), url(Scheme)),
        (json!("https://evil.example/"), host("evil.example")),
        (json!("https://evil.example/#@login.example.com"), url(Fragment)),
        (json!("https://login.example.com@evil.example/"), url(User)),
        (json!("https://login.example.com\\@evil.example/"), url(Character)),
        (json!("https://login.example.com.evil.example/"), host("login.example.com.evil.example")),
        (json!("https://sub.login.example.com/"), host("sub.login.example.com")),
        (json!("https://169.254.169.254/latest"), url(Address)),
        (json!("https://[fd00:ec2::254]/"), url(Address)),
        (json!("https://login.example.com:8443/"), DiscoveryError::Port { name: "x", port: 8443 }),
        (json!("https://login.example.com/#x"), url(Fragment)),
    ] {
        for name in required {
            let mut spoilt = document();
            spoilt[name] = value.clone();
            let found = parse(&spoilt, true).unwrap_err();
            // Except for the member's name.
            assert_eq!(found.to_string().replace(name, "x"), wanted.to_string(), "{name} {value}");
        }
        for name in optional {
            let mut spoilt = document();
            spoilt[name] = value.clone();
            let login = parse(&spoilt, true).unwrap().login.unwrap();
            let has_logout = name != "end_session_endpoint";
            assert_eq!(
                (login.device_authorization, login.end_session.is_some()),
                (None, has_logout),
                "{name} {value}"
            );
        }
    }
}

#[test]
fn an_endpoint_may_have_the_port_of_the_issuer() {
    let provider = provider("https://login.example.com:8443/realm", false);
    let document =
        |url: &str| json!({ "issuer": "https://login.example.com:8443/realm", "jwks_uri": url }).to_string();
    for (url, is_allowed) in [
        ("https://login.example.com:8443/jwks", true),
        ("https://login.example.com/jwks", true),
        ("https://keys.example.net:8443/jwks", true),
        ("https://login.example.com:9443/jwks", false),
    ] {
        assert_eq!(Discovery::parse(document(url).as_bytes(), &provider).is_ok(), is_allowed, "{url}");
    }
}

#[test]
fn the_document_of_another_issuer_is_rejected() {
    for issuer in ["https://login.example.com/", "https://LOGIN.example.com", "https://evil.example"] {
        let mut other = document();
        other["issuer"] = json!(issuer);
        assert!(matches!(parse(&other, true), Err(DiscoveryError::Issuer(_))), "{issuer}");
    }
    let provider = provider("https://login.example.com", false);
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(256 << 10));
    for text in ["", "[]", "null", r#"{"issuer":"a","issuer":"b"}"#, &large] {
        assert!(
            matches!(Discovery::parse(text.as_bytes(), &provider), Err(DiscoveryError::Json(_))),
            "{text:.40}"
        );
    }
}
