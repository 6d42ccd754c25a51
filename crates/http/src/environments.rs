//! Environments: list, get, put, delete.
//!
//! **Invariant:** an environment that the client may not see is answered as one that does not exist.

use serde_json::Value;
use utoipa::openapi::ObjectBuilder;

use super::{
    body::fields::{self, BodyFields, FieldType, array},
    endpoints::ENVIRONMENTS,
    extract::{BodyRequest, ReadRequest},
    json::Object,
    openapi::schemas::{integer, reference, text},
    reply::{Problem, Reply},
};
use concord_model::{
    limits::{APPROVALS_MAX, FREEZE_REASON_BYTES_MAX, FREEZES_MAX},
    time::Timestamp,
};
use concord_service::{EnvironmentRules, EnvironmentView, FreezeView, NewFreeze, Service};

/// The name of an environment in responses.
pub(super) const NAME: &str = "environment";
/// What `direct` can be.
pub(super) const DIRECT: [&str; 2] = ["allow", "refuse"];

/// The body that replaces the rules of an environment.
pub(super) fn rules(fields: &mut BodyFields) -> EnvironmentRules {
    const REFUSES_DIRECT: FieldType<bool> = FieldType {
        read: |value, fields| {
            let text = fields::string(value, fields)?;
            if !DIRECT.contains(&text.as_str()) {
                fields.violation(&[], format!("expected `{}`", DIRECT.join("` or `")));
            }
            Some(text == "refuse")
        },
        schema: |_| direct().into(),
    };
    const APPROVALS: FieldType<u64> = FieldType {
        read: |value, fields| {
            let approvals = fields::integer(value, fields)?;
            if approvals > u64::from(APPROVALS_MAX) {
                fields.violation(&[], format!("at most {APPROVALS_MAX} persons approve a change"));
            }
            Some(approvals)
        },
        schema: |_| approvals().into(),
    };
    const FREEZES: FieldType<Vec<NewFreeze>> = FieldType {
        read: |value, fields| {
            let too_long = format!("an environment has at most {FREEZES_MAX} freezes");
            fields.bounded_list(value, FREEZES_MAX, &too_long, |item, fields| fields.object(item, freeze))
        },
        schema: |_| array(reference("FreezeInput"), FREEZES_MAX).into(),
    };
    EnvironmentRules {
        refuses_direct: fields.optional("direct", &REFUSES_DIRECT),
        approvals: fields.optional("approvals", &APPROVALS),
        freezes: fields.required("freeze", &FREEZES),
    }
}

/// A freeze in a body.
pub(super) fn freeze(fields: &mut BodyFields) -> NewFreeze {
    const REASON: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| text().min_length(Some(1)).max_length(Some(FREEZE_REASON_BYTES_MAX)).into(),
    };
    NewFreeze {
        from: fields.nullable("from", &TIME),
        until: fields.required("until", &TIME),
        reason: fields.required("reason", &REASON),
    }
}

/// A time in a body.
pub(super) const TIME: FieldType<Timestamp> = FieldType {
    read: |value, fields| {
        let time = Timestamp::parse(&fields::string(value, fields)?);
        if time.is_none() {
            fields.violation(&[], "expected an RFC 3339 time such as `2027-01-01T00:00:00Z`");
        }
        time
    },
    schema: |_| text().description(Some("RFC 3339")).into(),
};

/// The schema of `direct`.
pub(super) fn direct() -> ObjectBuilder {
    text().enum_values(Some(DIRECT))
}

/// The schema of `approvals`.
pub(super) fn approvals() -> ObjectBuilder {
    integer(0).maximum(Some(usize::from(APPROVALS_MAX)))
}

/// Lists the environments that the client may see.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let (found, revision) = service.environments.environments(&request.principal, consistency).await?;
    let results = found.iter().map(record).collect::<Vec<_>>().join(",");
    let meta = Object::new().value("total", &found.len()).finish();
    let data = Object::new().raw("results", &format!("[{results}]")).raw("meta", &meta).finish();
    Ok(Reply::ok("environments found", &data).state_revision(revision))
}

/// Gets an environment.
pub(super) async fn get(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let name = request.name();
    let (found, revision) = service.environments.environment(&request.principal, &name, consistency).await?;
    // Whether it is frozen depends on the time as well, so the client's version is never the whole answer.
    let reply = Reply::ok("environment found", &record(&found));
    Ok(reply.record_version(found.revision, found.modified_at).state_revision(revision))
}

/// Creates or replaces an environment.
pub(super) async fn put(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_create_or_replace();
    let rules = request.read(&service, rules).await?;
    let stored = service.environments.put(request.caller, request.name, rules, expect).await?;
    let data = record(&stored.environment);
    let reply = if stored.is_created {
        let location = format!("{ENVIRONMENTS}{}", stored.environment.name);
        Reply::created("environment created", &data, &location)
    } else {
        Reply::ok("environment stored", &data)
    };
    Ok(reply.for_write(&stored.written))
}

/// Deletes an environment.
pub(super) async fn delete(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let name = request.name.clone();
    let written = service.environments.delete(request.caller, request.name, expect).await?;
    let data = Object::new().value(NAME, &name).finish();
    Ok(Reply::ok("environment deleted", &data).for_write_without_record(&written))
}

/// An environment as JSON.
fn record(environment: &EnvironmentView) -> String {
    let EnvironmentView { name, refuses_direct, approvals, approvers, freezes, .. } = environment;
    let freezes = freezes.iter().map(freeze_json).collect::<Vec<_>>().join(",");
    let object = Object::new()
        .value(NAME, name)
        .unescaped("direct", DIRECT[usize::from(*refuses_direct)])
        .value("approvals", approvals)
        .value("approvers", approvers)
        .raw("freeze", &format!("[{freezes}]"));
    let object = match environment.frozen_until {
        Some(until) => object.time("frozen_until", until),
        None => object.value("frozen_until", &Value::Null),
    };
    object.time("created_at", environment.created_at).time("modified_at", environment.modified_at).finish()
}

fn freeze_json(freeze: &FreezeView) -> String {
    let FreezeView { from, until, reason, by, is_active } = freeze;
    let object = Object::new().time("from", *from).time("until", *until);
    object.value("reason", reason).value("by", by).value("active", is_active).finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use concord_model::error::Invalid;
    use concord_service::Refusal;

    fn read(body: Value) -> Result<EnvironmentRules, Problem> {
        BodyFields::read(body, rules)
    }

    #[test]
    fn a_body_names_all_freezes_and_may_leave_the_other_rules_as_they_are() {
        let freeze = json!({"until": "2027-01-01T00:00:00Z", "reason": "holidays"});
        let rules = read(json!({"freeze": [freeze]})).unwrap();
        assert_eq!((rules.refuses_direct, rules.approvals), (None, None));
        let until = Timestamp::parse("2027-01-01T00:00:00Z").unwrap();
        assert_eq!(rules.freezes, [NewFreeze { from: None, until, reason: "holidays".into() }]);
        let rules = read(json!({"direct": "allow", "approvals": 2, "freeze": []})).unwrap();
        assert_eq!((rules.refuses_direct, rules.approvals), (Some(false), Some(2)));
        assert!(matches!(read(json!({})), Err(Problem::Shape(_))), "no list must not end all freezes");
    }

    #[test]
    fn a_wrong_member_is_named() {
        let many = vec![json!({"until": "2027-01-01T00:00:00Z", "reason": "r"}); FREEZES_MAX + 1];
        for (body, place) in [
            (json!({"direct": "deny", "freeze": []}), "direct"),
            (json!({"approvals": 11, "freeze": []}), "approvals"),
            (json!({"freeze": many}), "freeze"),
            (json!({"freeze": [{"until": "soon", "reason": "r"}]}), "freeze"),
        ] {
            match read(body) {
                Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), _)) => {
                    assert_eq!(violations.len(), 1);
                    assert_eq!(violations[0].loc[0], place.into());
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(read(json!({"freeze": [], "rollout": {}})), Err(Problem::Shape(_))));
    }
}
