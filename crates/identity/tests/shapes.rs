//! Tokens in the shapes that their issuers document, each accepted.

use concord_identity::{Accepted, Reason};
use serde_json::{Value, json};

use super::forge::{Forge, NOW_S, Signer, good, jwk, jwk_with, person, raw};

fn accepted(forge: &Forge) -> Accepted {
    let judgement = forge.judge();
    judgement.outcome.unwrap_or_else(|reason| panic!("{reason:?}: {:#?}", judgement.checks))
}

/// The token of a payload, with a header as the issuer makes it.
fn token(header: Value, payload: Value, provider: Value) -> Forge {
    let mut forge = good().header("typ", Value::Null).payload(payload).judged_by(provider);
    for (name, value) in header.as_object().unwrap() {
        forge = forge.header(name, value.clone());
    }
    forge
}

#[test]
fn a_good_token_is_accepted_by_each_algorithm() {
    let found = accepted(&good().claim("jti", json!("j-1")));
    assert_eq!((found.subject.as_str(), found.issued_at_s, found.expires_at_s), ("ann", NOW_S, NOW_S + 300));
    assert_eq!((found.key_id.as_deref(), found.token_id.as_deref()), (Some("rsa"), Some("j-1")));
    assert_eq!((found.label, found.claims.to_text()), (None, "{}".to_owned()));
    for (algorithm, kid, signer) in
        [("PS256", "rsa", Signer::Ps256), ("ES256", "ec", Signer::Es256), ("EdDSA", "ed", Signer::EdDsa)]
    {
        accepted(&good().signed(algorithm, kid, signer));
        let only = good().signed(algorithm, kid, signer).header("kid", Value::Null);
        accepted(
            &only.keys(&[jwk_with(kid, json!({ "alg": algorithm, "kid": null, "key_ops": ["verify"] }))]),
        );
    }
}

#[test]
fn what_a_check_allows_is_accepted() {
    for forge in [
        good().header("typ", json!("jwt")),
        good().header("typ", Value::Null),
        good().header("kid", Value::Null),
        good().header("x5c", json!(["AAAA"])).header("jku", json!("https://evil.example")),
        good().claim("aud", json!(["concord-2"])),
        good().claim("aud", json!(["concord", "other"])).claim("azp", json!("concord-2")),
        good().claim("azp", json!("somebody else's client")),
        good()
            .provider("require", json!({ "tid": ["9f"], "azp": ["ci"] }))
            .claim("aud", json!(["concord", "account"]))
            .claim("azp", json!("ci")),
        good().claim("exp", json!(NOW_S + 1)),
        good().claim("exp", raw("253402300799")),
        good().claim("iat", json!(NOW_S + 60)).claim("nbf", json!(NOW_S + 60)),
        good().claim("iat", json!(NOW_S - 3600)).claim("nbf", json!(0)),
        good().claim("tid", json!("a0")),
        good().claim("sub", json!("x".repeat(1024))),
        person().claim("sub", json!("x".repeat(255))),
        good()
            .provider("require", json!({ "sub": ["x".repeat(1024)] }))
            .claim("sub", json!("x".repeat(1024))),
        good().claim("nonce", json!("of no login")),
        good().nonce("n").claim("nonce", json!("n")),
        good().payload_end(r#","deep":[[[[[[[]]]]]]]"#),
        good().claim("_claim_names", json!({ "other": "src1" })),
        good().claim("_claim_names", json!({ "groups": "src1" })).claim("groups", json!([])),
        good().claim("hasgroups", json!(true)).claim("groups", json!(["x"])),
        // The order of keys, a copy of one, and one id for several algorithms don't matter.
        good().keys(&[jwk("rsa"), jwk("ec"), jwk("rsa")]),
        good().keys(&["PS256", "RS256"].map(|name| jwk_with("rsa", json!({ "alg": name })))),
        good()
            .header("kid", Value::Null)
            .keys(&["PS256", "RS256"].map(|name| jwk_with("rsa", json!({ "alg": name })))),
        good().signed("Ed25519", "ed", Signer::EdDsa).keys(&[jwk_with("ed", json!({ "alg": "EdDSA" }))]),
        good().signed("EdDSA", "ed", Signer::EdDsa).keys(&[jwk_with("ed", json!({ "alg": "Ed25519" }))]),
        person().nonce("n").claim("nonce", json!("n")),
        person().claim("azp", json!("concord")),
        person().claim("aud", json!(["concord", "other"])).claim("azp", json!("concord")),
    ] {
        accepted(&forge);
    }
}

#[test]
fn the_label_of_a_person_is_in_lower_case_and_its_domain_is_one_of_the_provider_s() {
    assert_eq!(accepted(&person()).label.as_deref(), Some("ann@example.com"));
    let name = json!({ "label": "preferred_username" });
    let named = person().provider("persons", name).claim("preferred_username", json!("Ann B"));
    assert_eq!(accepted(&named).label.as_deref(), Some("ann b"));
    let upn = person().provider("persons", json!({ "label": "upn", "domains": ["example.com"] }));
    let upn = upn.claim("upn", json!("ANN@example.com")).without("email_verified");
    assert_eq!(accepted(&upn).label.as_deref(), Some("ann@example.com"));
    for verified in [json!(true), json!(1), json!("1")] {
        let tenant = json!({ "label": "email", "domains": ["example.com"], "verified_by": "tenant" });
        let tenant =
            person().provider("persons", tenant).without("email_verified").claim("xms_edov", verified);
        assert_eq!(accepted(&tenant).label.as_deref(), Some("ann@example.com"));
        let google = tenant.provider("require", json!({ "hd": ["example.com"] })).without("xms_edov");
        accepted(&google.without("tid").claim("hd", json!("example.com")));
    }
    let longest = person().claim("email", json!(format!("{}@example.com", "x".repeat(116))));
    assert_eq!(accepted(&longest).label.map(|label| label.len()), Some(128));
}

#[test]
fn a_token_of_github_actions_is_accepted() {
    let payload = json!({
        "jti": "example-id", "sub": "repo:octo-org/octo-repo:environment:prod", "environment": "prod",
        "aud": "concord", "ref": "refs/heads/main", "sha": "example-sha", "repository": "octo-org/octo-repo",
        "repository_owner": "octo-org", "actor_id": "12", "repository_visibility": "private",
        "repository_id": "74", "repository_owner_id": "65", "run_id": "example-run-id", "run_number": "10",
        "run_attempt": "2", "runner_environment": "github-hosted", "actor": "octocat",
        "workflow": "example-workflow", "head_ref": "", "base_ref": "", "event_name": "workflow_dispatch",
        "enterprise": "avocado-corp", "enterprise_id": "2", "ref_type": "branch",
        "job_workflow_ref": "octo-org/octo-automation/.github/workflows/oidc.yml@refs/heads/main",
        "iss": "https://token.actions.githubusercontent.com", "nbf": NOW_S - 600, "exp": NOW_S + 300, "iat": NOW_S,
    });
    let provider = json!({
        "issuer": "https://token.actions.githubusercontent.com", "audiences": ["concord"],
        "require": { "repository_owner_id": ["65"] },
        "claims": { "repository_id": true, "environment": true, "ref": ["refs/heads/*"], "head_ref": true },
    });
    let header = json!({ "typ": "JWT", "alg": "RS256", "x5t": "example-thumbprint", "kid": "rsa" });
    let found =
        accepted(&token(header, payload, provider).keys(&[jwk_with("rsa", json!({ "alg": "RS256" }))]));
    assert_eq!(found.subject, "repo:octo-org/octo-repo:environment:prod");
    assert_eq!(
        found.claims.to_text(),
        r#"{"environment":"prod","head_ref":"","ref":"refs/heads/main","repository_id":"74"}"#
    );
}

#[test]
fn a_token_of_gitlab_is_accepted() {
    let payload = json!({
        "namespace_id": "72", "namespace_path": "my-group", "project_id": "20",
        "project_path": "my-group/my-project", "user_id": "1", "user_login": "sample-user",
        "user_email": "sample-user@example.com",
        "user_identities": [{ "provider": "github", "extern_uid": "2435223452345" }],
        "pipeline_id": "574", "pipeline_source": "push", "job_id": "302", "ref": "main", "ref_type": "branch",
        "ref_path": "refs/heads/main", "ref_protected": "true", "groups_direct": ["mygroup/mysubgroup", "myothergroup"],
        "environment": "test-environment2", "environment_protected": "false", "deployment_tier": "testing",
        "environment_action": "start", "runner_id": 1, "runner_environment": "self-hosted",
        "sha": "714a629c0b401fdce83e847fc9589983fc6f46bc", "project_visibility": "public",
        "ci_config_ref_uri": "gitlab.example.com/my-group/my-project//.gitlab-ci.yml@refs/heads/main",
        "ci_config_sha": "714a629c0b401fdce83e847fc9589983fc6f46bc",
        "jti": "235b3a54-b797-45c7-ae9a-f72d7bc6ef5b", "iss": "https://gitlab.example.com", "iat": NOW_S,
        "nbf": NOW_S - 5, "exp": NOW_S + 3600,
        "sub": "project_path:my-group/my-project:ref_type:branch:ref:main", "aud": "concord",
    });
    let provider = json!({
        "issuer": "https://gitlab.example.com", "audiences": ["concord"], "require": { "namespace_id": ["72"] },
        "claims": { "project_id": true, "ref_protected": true, "groups_direct": ["mygroup/*"], "runner_id": true },
    });
    let header = json!({ "kid": "rsa", "typ": "JWT", "alg": "RS256" });
    let found = accepted(&token(header, payload, provider));
    assert_eq!(
        found.claims.to_text(),
        r#"{"groups_direct":["mygroup/mysubgroup"],"project_id":"20","ref_protected":"true","runner_id":1}"#
    );
}

#[test]
fn a_token_of_a_kubernetes_service_account_is_accepted() {
    let payload = json!({
        "aud": ["concord"], "exp": NOW_S + 3607, "iat": NOW_S, "iss": "https://kubernetes.default.svc.cluster.local",
        "jti": "ea28ed49-2e11-4280-9ec5-bc3d1d84661a",
        "kubernetes.io": {
            "namespace": "prod",
            "node": { "name": "127.0.0.1", "uid": "58456cb0-dd00-45ed-b797-5578fdceaced" },
            "pod": { "name": "deployer-69cbfb9798-jv9gn", "uid": "778a530c-b3f4-47c0-9cd5-ab018fb64f33" },
            "serviceaccount": { "name": "deployer", "uid": "a087d5a0-e1dd-43ec-93ac-f13d89cd13af" },
            "warnafter": NOW_S + 3000,
        },
        "nbf": NOW_S, "sub": "system:serviceaccount:prod:deployer",
    });
    let provider = json!({
        "issuer": "https://kubernetes.default.svc.cluster.local", "audiences": ["concord"], "single_tenant": true,
        "keys": { "url": "https://kubernetes.default.svc/openid/v1/jwks",
                  "ca": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" },
        "claims": { "/kubernetes.io/namespace": true, "/kubernetes.io/serviceaccount/uid": true },
    });
    let found = accepted(&token(json!({ "alg": "RS256", "kid": "rsa" }), payload, provider));
    assert_eq!(
        found.claims.to_text(),
        r#"{"/kubernetes.io/namespace":"prod","/kubernetes.io/serviceaccount/uid":"a087d5a0-e1dd-43ec-93ac-f13d89cd13af"}"#
    );
}

#[test]
fn a_token_of_a_cluster_whose_issuer_is_an_address_is_accepted_by_static_keys() {
    let issuer = "https://10.0.0.5:6443";
    let payload = json!({
        "aud": [issuer], "exp": NOW_S + 3607, "iat": NOW_S, "iss": issuer,
        "sub": "system:serviceaccount:prod:deployer",
    });
    let provider = json!({
        "issuer": issuer, "audiences": [issuer], "single_tenant": true,
        "keys": { "jwks": { "keys": [jwk("rsa")] } },
    });
    let found = accepted(&token(json!({ "alg": "RS256", "kid": "rsa" }), payload, provider));
    assert_eq!(found.subject, "system:serviceaccount:prod:deployer");
}

#[test]
fn a_token_of_entra_is_accepted_in_the_name_of_its_tenant() {
    let tenant = "9122040d-6c67-4c5b-b112-36a304b66dad";
    let payload = json!({
        "ver": "2.0", "iss": format!("https://login.microsoftonline.com/{tenant}/v2.0"),
        "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ", "aud": "6cb04018-a3f5-46a7-b995-940c78f5aef3",
        "exp": NOW_S + 3900, "iat": NOW_S, "nbf": NOW_S, "name": "Abe Lincoln", "email": "AbeLi@example.com",
        "preferred_username": "AbeLi@example.com", "oid": "00000000-0000-0000-66f3-3332eca7ea81", "tid": tenant,
        "xms_edov": true,
        "nonce": "123523", "aio": "Df2UVXL1ix!lMCWMSOJBcFatzcGfvFGhjKv8q5g0x732dR5MB5BisvGQO7YWByjd8iQDLq", "rh": "0.A",
        "groups": ["3f4a", "concord-platform"],
    });
    let provider = json!({
        "issuer": format!("https://login.microsoftonline.com/{tenant}/v2.0"),
        "audiences": ["6cb04018-a3f5-46a7-b995-940c78f5aef3"], "require": { "tid": [tenant] },
        "claims": { "groups": ["concord-*"] },
        "persons": { "label": "email", "domains": ["example.com"], "verified_by": "tenant" },
        "login": { "client_id": "6cb04018-a3f5-46a7-b995-940c78f5aef3" },
    });
    let header = json!({ "typ": "JWT", "alg": "RS256", "kid": "rsa" });
    let keys =
        [jwk_with("rsa", json!({ "x5t": "x", "x5c": ["AAAA"], "issuer": "x", "use": "sig" })), jwk("other")];
    let found = accepted(&token(header, payload, provider).keys(&keys).nonce("123523"));
    assert_eq!(found.label.as_deref(), Some("abeli@example.com"));
    assert_eq!(found.claims.to_text(), r#"{"groups":["concord-platform"]}"#);
}

#[test]
fn a_token_of_google_is_accepted() {
    let client = "1234987819200.apps.googleusercontent.com";
    let payload = json!({
        "iss": "https://accounts.google.com", "azp": client, "aud": client, "sub": "10769150350006150715113082367",
        "at_hash": "HK6E_P6Dh8Y93mRNtsDB1Q", "hd": "example.com", "email": "jsmith@example.com",
        "email_verified": true, "iat": NOW_S, "exp": NOW_S + 3600, "nonce": "0394852-3190485-2490358",
    });
    let provider = json!({
        "issuer": "https://accounts.google.com", "audiences": [client], "require": { "hd": ["example.com"] },
        "hosts": ["oauth2.googleapis.com", "www.googleapis.com"], "claims": { "hd": true },
        "persons": { "label": "email", "domains": ["example.com"] },
        "login": { "client_id": client, "scopes": ["openid", "email"],
                   "redirect_uris": ["https://concord.example.com/ui/callback", "http://127.0.0.1:8400/"] },
    });
    let header = json!({ "alg": "RS256", "kid": "rsa", "typ": "JWT" });
    let found = accepted(&token(header, payload, provider).nonce("0394852-3190485-2490358"));
    assert_eq!(
        (found.subject.as_str(), found.label.as_deref()),
        ("10769150350006150715113082367", Some("jsmith@example.com"))
    );
    assert_eq!(found.claims.to_text(), r#"{"hd":"example.com"}"#);
}

#[test]
fn a_person_can_be_an_object_of_a_tenant_of_entra() {
    const OBJECT: &str = "d5a0c2c4-6c67-4c5b-b112-36a304b66dad";
    let of_tenant = person().provider("require", json!({ "tid": ["9f"] })).claim("tid", json!("9f"));
    let by_oid = json!({
        "label": "upn", "domains": ["example.com"], "subject": "oid",
    });
    let forge = of_tenant.provider("persons", by_oid).claim("upn", json!("ann@example.com"));
    let accepted = forge.clone().claim("oid", json!(OBJECT)).judge().outcome.unwrap();
    assert_eq!(accepted.subject, OBJECT);
    for oid in [json!(""), json!(7), json!(null), json!("o-1"), json!(OBJECT.to_uppercase())] {
        assert_eq!(forge.clone().claim("oid", oid.clone()).judge().outcome, Err(Reason::Subject), "{oid}");
    }
    assert_eq!(forge.judge().outcome, Err(Reason::Subject), "the scope `profile` is missing");
}
