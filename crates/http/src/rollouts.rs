//! Rollouts: the plan in the body of a change request, what a change request shows of its rollout, and what a person does
//! with one.

use serde_json::{Map, Value, json};
use utoipa::openapi::{ObjectBuilder, Schema, schema::OneOfBuilder};

use super::{
    body::fields::{self, BodyFields, FieldType, array, schema_of},
    change_requests::{COMMENT, answered, party, unconditional},
    extract::BodyRequest,
    openapi::schemas::{integer, number, reference, text},
    reply::{Problem, Reply},
};
use concord_model::{
    error::LocSegment,
    limits::{
        GATE_NAME_BYTES_MAX, LABEL_BYTES_MAX, ROLLOUT_GATES_MAX, ROLLOUT_LABELS_MAX, ROLLOUT_STAGES_MAX,
        ROLLOUT_TIME_S_MAX,
    },
    system::rollout::{GateRule, LabelValues, OnFail, Plan, SHARE_ALL, Stage},
    time::Timestamp,
};
use concord_service::{
    ChangeWrite, FailureReport, GateView, RolloutStatus, RolloutSteer, RolloutView, Service,
};

/// The plans that have a name.
pub(super) const NAMED_PLANS: [&str; 2] = ["linear", "canary"];
/// What follows a failure: the names in a body.
pub(super) const ON_FAIL: [&str; 2] = ["abort", "pause"];
/// How much longer than it must a stage may take by default: an hour.
const TIMEOUT_S: u32 = 3600;

/// The plan of an edition: an object, or the name of one.
pub(super) const PLAN: FieldType<Plan> = FieldType {
    read: |value, fields| {
        if let Value::String(name) = &value {
            let plan = named(name);
            if plan.is_none() {
                let names = NAMED_PLANS.join("`, `");
                fields.violation(&[], format!("expected a plan, or one of `{names}`"));
            }
            return plan;
        }
        let plan = fields.object(value, plan)?;
        if let Err(bound) = plan.check() {
            fields.violation(&[], bound.to_string());
            return None;
        }
        Some(plan)
    },
    schema: |_| {
        let name = text().enum_values(Some(NAMED_PLANS));
        OneOfBuilder::new().item(name).item(reference("RolloutPlan")).into()
    },
};

/// A plan by its name, which goes on only with a reader that runs well: `linear`, a fifth more each six minutes; `canary`, a tenth for twenty minutes.
fn named(name: &str) -> Option<Plan> {
    let stage =
        |percent: u16, for_s| Stage { labels: Vec::new(), share: percent * 100, for_s, min_healthy: 1 };
    let stages = match name {
        "linear" => [20, 40, 60, 80, 100].into_iter().map(|percent| stage(percent, 360)).collect(),
        "canary" => vec![stage(10, 1200)],
        _ => return None,
    };
    Some(Plan { stages, max_failed: 0, gates: Vec::new(), on_fail: OnFail::Abort, timeout_s: TIMEOUT_S })
}

const COUNT: FieldType<u32> =
    FieldType { read: |value, fields| small(value, fields, u32::MAX), schema: |_| integer(0).into() };

const SECONDS: FieldType<u32> = FieldType {
    read: |value, fields| small(value, fields, ROLLOUT_TIME_S_MAX),
    schema: |_| integer(0).maximum(Some(ROLLOUT_TIME_S_MAX)).into(),
};

fn small(value: Value, fields: &mut BodyFields, most: u32) -> Option<u32> {
    let number = u32::try_from(fields::integer(value, fields)?).ok().filter(|number| *number <= most);
    if number.is_none() {
        fields.violation(&[], format!("expected an integer of at most {most}"));
    }
    number
}

/// A plan in a body.
pub(super) fn plan(fields: &mut BodyFields) -> Plan {
    const STAGES: FieldType<Vec<Stage>> = FieldType {
        read: |value, fields| {
            let too_many = format!("a rollout has at most {ROLLOUT_STAGES_MAX} stages");
            let read = |item, fields: &mut BodyFields| fields.object(item, stage);
            fields.bounded_list(value, ROLLOUT_STAGES_MAX, &too_many, read)
        },
        schema: |limits| {
            array(Schema::from(schema_of(limits, stage)), ROLLOUT_STAGES_MAX).min_items(Some(1)).into()
        },
    };
    const GATES: FieldType<Vec<GateRule>> = FieldType {
        read: |value, fields| {
            let too_many = format!("a rollout has at most {ROLLOUT_GATES_MAX} gates");
            let read = |item, fields: &mut BodyFields| fields.object(item, gate);
            fields.bounded_list(value, ROLLOUT_GATES_MAX, &too_many, read)
        },
        schema: |limits| array(Schema::from(schema_of(limits, gate)), ROLLOUT_GATES_MAX).into(),
    };
    const ON_FAILURE: FieldType<OnFail> = FieldType {
        read: |value, fields| match fields::string(value, fields)?.as_str() {
            "abort" => Some(OnFail::Abort),
            "pause" => Some(OnFail::Pause),
            _ => {
                fields.violation(&[], format!("expected one of `{}`", ON_FAIL.join("`, `")));
                None
            }
        },
        schema: |_| text().enum_values(Some(ON_FAIL)).into(),
    };
    Plan {
        stages: fields.required("stages", &STAGES),
        max_failed: fields.optional("max_failed", &COUNT).unwrap_or_default(),
        gates: fields.optional("gates", &GATES).unwrap_or_default(),
        on_fail: fields.optional("on_fail", &ON_FAILURE).unwrap_or(OnFail::Abort),
        timeout_s: fields.optional("timeout_s", &SECONDS).unwrap_or(TIMEOUT_S),
    }
}

fn stage(fields: &mut BodyFields) -> Stage {
    const LABELS: FieldType<Vec<LabelValues>> = FieldType {
        read: |value, fields| {
            let Value::Object(labels) = fields::any_object(value, fields)? else { return None };
            let all: Vec<_> = labels.into_iter().map(|(name, values)| label(name, values, fields)).collect();
            all.into_iter().collect()
        },
        schema: |_| {
            let value = text().min_length(Some(1)).max_length(Some(LABEL_BYTES_MAX));
            let values = array(value, ROLLOUT_LABELS_MAX).min_items(Some(1));
            let about = "a reader has one of the values of each of these labels";
            ObjectBuilder::new()
                .additional_properties(Some(Schema::from(values)))
                .description(Some(about))
                .into()
        },
    };
    const SHARE: FieldType<u16> = FieldType {
        read: |value, fields| {
            let share = value.as_number().and_then(|number| hundredths(&number.to_string()));
            if share.is_none() {
                fields.violation(
                    &[],
                    "expected a percentage from 0.01 to 100, with two digits after the point",
                );
            }
            share
        },
        schema: |_| {
            let about = "percent of these readers, with two digits after the point";
            number().minimum(Some(0.01)).maximum(Some(100)).description(Some(about)).into()
        },
    };
    Stage {
        labels: fields.optional("labels", &LABELS).unwrap_or_default(),
        share: fields.optional("share", &SHARE).unwrap_or(SHARE_ALL),
        for_s: fields.required("for_s", &SECONDS),
        min_healthy: fields.optional("min_healthy", &COUNT).unwrap_or_default(),
    }
}

/// A label of a stage with its values.
fn label(name: String, values: Value, fields: &mut BodyFields) -> Option<LabelValues> {
    let texts = |values: &Value| -> Option<Vec<String>> {
        values.as_array()?.iter().map(|value| value.as_str().map(str::to_owned)).collect()
    };
    let values = texts(&values);
    if values.is_none() {
        let name: String = name.chars().take(LABEL_BYTES_MAX).collect();
        fields.violation(&[LocSegment::Name(name)], "expected a list of texts");
    }
    Some(LabelValues { name, values: values? })
}

/// A percentage in hundredths.
fn hundredths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 2 {
        return None;
    }
    let part: u16 = format!("{fraction:0<2}").parse().ok()?;
    let share = whole.parse::<u16>().ok()?.checked_mul(100)?.checked_add(part)?;
    (1..=SHARE_ALL).contains(&share).then_some(share)
}

fn gate(fields: &mut BodyFields) -> GateRule {
    const NAME: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| text().min_length(Some(1)).max_length(Some(GATE_NAME_BYTES_MAX)).into(),
    };
    GateRule { name: fields.required("name", &NAME), fresh_s: fields.required("fresh_s", &SECONDS) }
}

/// Lets a rollout wait.
pub(super) async fn pause(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    steer(service, request, RolloutSteer::Pause, "rollout paused").await
}

/// Lets a rollout go on that waits.
pub(super) async fn resume(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    steer(service, request, RolloutSteer::Resume, "rollout resumed").await
}

/// Ends the present stage of a rollout.
pub(super) async fn advance(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    steer(service, request, RolloutSteer::Advance, "rollout advanced").await
}

/// Takes a rollout back.
pub(super) async fn abort(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    steer(service, request, RolloutSteer::Abort, "rollout aborted").await
}

/// The body that pauses or ends a rollout: the stage at which it must be, and why.
pub(super) fn stopped(fields: &mut BodyFields) -> (Option<u32>, String) {
    (at_stage(fields), fields.optional("comment", &COMMENT).unwrap_or_default())
}

/// The body that lets a rollout go on: the stage at which it must be.
pub(super) fn at_stage(fields: &mut BodyFields) -> Option<u32> {
    const STAGE: FieldType<u32> = FieldType {
        read: |value, fields| small(value, fields, u32::MAX),
        schema: |_| {
            integer(0).description(Some("the stage at which it must be, from 0; otherwise 409")).into()
        },
    };
    fields.nullable("stage", &STAGE)
}

async fn steer(
    service: Service,
    request: BodyRequest,
    steer: RolloutSteer,
    message: &'static str,
) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let (stage, comment) = match steer {
        RolloutSteer::Pause | RolloutSteer::Abort => request.read(&service, stopped).await?,
        RolloutSteer::Resume | RolloutSteer::Advance => {
            (request.read(&service, at_stage).await?, String::new())
        }
    };
    let write = ChangeWrite::Steer { id: request.name, steer, stage, comment };
    answered(message, service.changes.write(request.caller, write).await)
}

/// A rollout as JSON.
pub(super) fn rollout(view: &RolloutView) -> Value {
    let RolloutView { plan, status } = view;
    let mut object = plan_json(plan);
    object["status"] = status.as_ref().map(status_json).into();
    object
}

/// A plan as a body has it.
fn plan_json(plan: &Plan) -> Value {
    let labels = |stage: &Stage| -> Map<String, Value> {
        stage.labels.iter().map(|of| (of.name.clone(), of.values.clone().into())).collect()
    };
    let stage = |stage: &Stage| {
        json!({
            "labels": labels(stage), "share": percent(stage.share), "for_s": stage.for_s,
            "min_healthy": stage.min_healthy,
        })
    };
    let gate = |gate: &GateRule| json!({ "name": gate.name, "fresh_s": gate.fresh_s });
    json!({
        "stages": plan.stages.iter().map(stage).collect::<Vec<_>>(),
        "max_failed": plan.max_failed,
        "gates": plan.gates.iter().map(gate).collect::<Vec<_>>(),
        "on_fail": ON_FAIL[usize::from(plan.on_fail == OnFail::Pause)],
        "timeout_s": plan.timeout_s,
    })
}

fn percent(share: u16) -> Value {
    if share.is_multiple_of(100) { (share / 100).into() } else { (f64::from(share) / 100.0).into() }
}

fn status_json(status: &RolloutStatus) -> Value {
    let time = |time: Timestamp| time.to_string();
    let paused = status.paused.as_ref().map(|paused| {
        json!({ "at": time(paused.at), "by": paused.by.as_ref().map(party), "comment": paused.comment })
    });
    let passed = status.passed.iter().map(|passed| {
        let counts = passed.evidence.as_ref();
        json!({
            "at": time(passed.at), "by": passed.by.as_ref().map(party),
            "healthy": counts.map(|counts| counts.healthy), "failed": counts.map(|counts| counts.failed),
            "gates": counts.map(|counts| counts.gates),
        })
    });
    let evidence = status.evidence.as_ref();
    let failure = |failure: &FailureReport| {
        let labels: Map<String, Value> =
            failure.labels.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let detail = (!status.hides_details).then_some(&failure.detail);
        let instance = Some(&failure.instance).filter(|instance| !instance.is_empty());
        json!({
            "reader": failure.reader, "instance": instance, "labels": labels, "detail": detail,
            "at": time(failure.at),
        })
    };
    let gate = |gate: &GateView| json!({ "name": gate.name, "ok": gate.ok, "evidence": gate.evidence, "at": gate.at.map(time) });
    json!({
        "stage": status.stage, "begun_at": time(status.begun_at), "since": time(status.since), "paused": paused,
        "passed": passed.collect::<Vec<_>>(),
        "healthy": evidence.map(|evidence| evidence.healthy), "failed": evidence.map(|evidence| evidence.failed),
        "failures": evidence.map(|evidence| evidence.failures.iter().map(failure).collect::<Vec<_>>()),
        "gates": evidence.map(|evidence| evidence.gates.iter().map(gate).collect::<Vec<_>>()),
        "watches": status.watches.map(|watches| {
            json!({ "identified": watches.identified, "unidentified": watches.unidentified })
        }),
        "waits_for": status.waits_for,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(plan: Value) -> Result<Plan, Problem> {
        let read = |fields: &mut BodyFields| fields.nullable("rollout", &PLAN);
        BodyFields::read(json!({ "rollout": plan }), read).map(|plan| plan.expect("it is there"))
    }

    #[test]
    fn a_plan_is_shown_as_it_is_sent() {
        let sent = json!({
            "stages": [
                { "labels": { "ring": ["canary"] }, "share": 100, "for_s": 600, "min_healthy": 2 },
                { "labels": {}, "share": 0.5, "for_s": 900, "min_healthy": 0 },
                { "labels": {}, "share": 100, "for_s": 600, "min_healthy": 0 },
            ],
            "max_failed": 2, "gates": [{ "name": "errors", "fresh_s": 120 }], "on_fail": "pause", "timeout_s": 7200,
        });
        let plan = read(sent.clone()).unwrap();
        assert_eq!(plan_json(&plan), sent);
        let short = read(json!({ "stages": [{ "for_s": 5 }] })).unwrap();
        let stage = Stage { labels: Vec::new(), share: SHARE_ALL, for_s: 5, min_healthy: 0 };
        let expected = Plan {
            stages: vec![stage],
            max_failed: 0,
            gates: Vec::new(),
            on_fail: OnFail::Abort,
            timeout_s: TIMEOUT_S,
        };
        assert_eq!(short, expected);
    }

    #[test]
    fn a_plan_has_a_name_or_is_a_valid_object() {
        for name in NAMED_PLANS {
            assert_eq!(read(json!(name)).unwrap().check(), Ok(()), "{name}");
        }
        for wrong in [
            json!("fast"),
            json!(5),
            json!({}),
            json!({ "stages": [] }),
            json!({ "stages": [{}] }),
            json!({ "stages": [{ "for_s": -1 }] }),
            json!({ "stages": [{ "for_s": 604_801 }] }),
            json!({ "stages": [{ "for_s": 1, "labels": { "ring": "canary" } }] }),
            json!({ "stages": [{ "for_s": 1, "labels": { "ring": [] } }] }),
            json!({ "stages": [{ "for_s": 1, "shares": 5 }] }),
            json!({ "stages": [{ "for_s": 1 }], "on_fail": "ignore" }),
            json!({ "stages": [{ "for_s": 1 }], "gates": [{ "name": "g" }] }),
            json!({ "stages": [{ "for_s": 1, "share": 50 }, { "for_s": 1, "share": 20 }] }),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_is_read_in_hundredths() {
        let shares =
            [("5", 500), ("0.01", 1), ("0.5", 50), ("12.34", 1234), ("12.340", 1234), ("100.0", 10_000)];
        for (text, expected) in shares {
            assert_eq!(hundredths(text), Some(expected), "{text}");
        }
        for wrong in ["0", "0.001", "100.01", "-1", "1e1", "101", "65536"] {
            assert_eq!(hundredths(wrong), None, "{wrong}");
        }
    }
}
