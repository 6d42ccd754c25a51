//! The sample data of a demo: limits of services, feature flags and routes of a shop.
//!
//! They are the same in each demo, so that the documents can show them.

use serde_json::{Value, json};

use crate::cli::manifest::{ManifestDefinition, Manifests};

const REGIONS: [&str; 9] = ["eu", "us", "ap", "sa", "af", "me", "uk", "jp", "in"];
const STAGES: [&str; 8] = ["", "-test", "-stage", "-batch", "-edge", "-search", "-pay", "-mail"];
const TEAMS: [&str; 5] = ["search", "payments", "identity", "mail", "platform"];
const FEATURES: [&str; 16] = [
    "checkout",
    "wishlist",
    "gift-cards",
    "dark-mode",
    "passkeys",
    "one-click",
    "reviews",
    "live-chat",
    "returns",
    "coupons",
    "pick-up",
    "invoices",
    "subscriptions",
    "size-guide",
    "price-alerts",
    "recommendations",
];
const AUDIENCES: [&str; 5] = ["all", "staff", "beta", "mobile", "web"];
const SERVICES: [&str; 7] = ["cart", "catalogue", "login", "orders", "prices", "search", "stock"];

/// All definitions and configs.
pub(super) fn manifests() -> Manifests {
    let mut all = Manifests::default();
    for (key, indexes, schema) in [
        ("service-limits", &["owner", "limit"][..], limits_schema()),
        ("feature-flags", &["enabled", "audience"][..], flags_schema()),
        ("routes", &["service", "weight"][..], routes_schema()),
    ] {
        let indexes = indexes.iter().map(|path| (*path).to_owned()).collect();
        let definition =
            ManifestDefinition { indexes, schema: Some(schema), ..ManifestDefinition::default() };
        all.definitions.insert(key.into(), definition);
    }
    let mut add =
        |definition: &str, key: String, data: Value| all.configs.insert((definition.into(), key), data);
    for (place, (region, stage)) in pairs(&REGIONS, &STAGES).take(71).enumerate() {
        // Seven limits are below 5: a schema that asks for more does not fit them.
        let limit = if stage == "-test" && place < 56 { 1 + place / 8 % 4 } else { 20 + place * 7 % 480 };
        let owner = TEAMS[place % TEAMS.len()];
        let data = json!({ "limit": limit, "burst": limit * 2, "owner": owner, "contact": format!("{owner}@example.com") });
        add("service-limits", format!("{region}{stage}"), data);
    }
    for (place, (feature, audience)) in pairs(&FEATURES, &AUDIENCES).enumerate() {
        let data = json!({
            "enabled": place % 3 != 0, "audience": audience, "percentage": place * 13 % 101,
            "description": format!("{feature} for {audience}"),
        });
        add("feature-flags", format!("{feature}.{audience}"), data);
    }
    for (place, (service, region)) in pairs(&SERVICES, &REGIONS).enumerate() {
        let hosts: Vec<String> =
            (1..=2).map(|host| format!("{service}-{host}.{region}.example.com")).collect();
        let data = json!({ "service": service, "region": region, "hosts": hosts, "weight": 10 + place * 3 % 90, "timeout_ms": 250 + place % 8 * 250 });
        add("routes", format!("{service}.{region}"), data);
    }
    all
}

fn pairs(
    first: &'static [&str],
    second: &'static [&str],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    first.iter().flat_map(move |one| second.iter().map(move |other| (*one, *other)))
}

fn limits_schema() -> Value {
    json!({
        "title": "Limits of a service", "type": "object", "required": ["limit", "owner"], "additionalProperties": false,
        "properties": {
            "limit": {"type": "integer", "minimum": 1, "maximum": 10000, "description": "Requests per second of one caller"},
            "burst": {"type": "integer", "minimum": 1, "description": "Requests that may come at once"},
            "owner": {"type": "string", "enum": TEAMS, "description": "The team that answers for the service"},
            "contact": {"type": "string", "format": "email", "description": "Where the team is reached"},
        },
    })
}

fn flags_schema() -> Value {
    json!({
        "title": "A feature flag", "type": "object", "required": ["enabled", "audience"], "additionalProperties": false,
        "properties": {
            "enabled": {"type": "boolean", "description": "Whether anybody sees the feature"},
            "audience": {"type": "string", "enum": AUDIENCES, "description": "Who may see it"},
            "percentage": {"type": "integer", "minimum": 0, "maximum": 100, "description": "How many of the audience see it"},
            "description": {"type": "string", "maxLength": 200},
        },
    })
}

fn routes_schema() -> Value {
    json!({
        "title": "Where a service is reached", "type": "object", "required": ["service", "hosts"],
        "properties": {
            "service": {"type": "string", "description": "The name of the service"},
            "region": {"type": "string", "description": "Where its hosts are"},
            "hosts": {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "The hosts, in the order of preference"},
            "weight": {"type": "integer", "minimum": 0, "maximum": 100, "description": "The share of requests"},
            "timeout_ms": {"type": "integer", "minimum": 1, "description": "After which time a request is given up"},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_what_the_documents_show() {
        let all = manifests();
        assert_eq!((all.definitions.len(), all.configs.len()), (3, 214));
        let limits: Vec<&Value> = all
            .configs
            .iter()
            .filter(|((definition, _), _)| definition == "service-limits")
            .map(|(_, data)| data)
            .collect();
        let low = limits.iter().filter(|data| data["limit"].as_u64().unwrap() < 5).count();
        assert_eq!((limits.len(), low), (71, 7));
        assert_eq!(all.configs[&("service-limits".into(), "eu".into())]["limit"], 20);
        assert!(all.configs[&("service-limits".into(), "eu-test".into())]["limit"].as_u64().unwrap() < 5);
    }
}
