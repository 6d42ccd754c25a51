//! Compiling the flags of a definition: once for each view, in bounded memory.

use futures::future::join_all;

use super::*;
use crate::{
    Service,
    testing::{owner, patient_service, service},
};
use concord_model::{index::Indexing, limits::Limits, record::Definition, time::Timestamp};
use concord_state::builder::StateBuilder;

/// Flags that share one rule, in a definition whose variant `token` is secret.
fn found(flags: usize) -> FoundFlags {
    let token = serde_json::json!({ "properties": { "token": { "x-concord-secret": true } } });
    let schema = serde_json::json!({ "properties": { "variants": token } });
    let definition = Definition {
        id: 1,
        key: Key::parse("flags").unwrap(),
        indexes: Vec::new(),
        schema: Some(schema.to_string().into()),
        indexing: Indexing::fresh(0),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    };
    let mut builder = StateBuilder::new();
    builder.definition(definition).unwrap();
    let flag = serde_json::json!({ "state": "ENABLED", "variants": { "token": 1 }, "targeting": { "$ref": "long" } });
    let shared =
        serde_json::json!({ "$evaluators": { "long": { "in": [{ "var": "x" }, vec!["y"; 1000]] } } });
    let flags = (0..flags).map(|number| (format!("f{number:04}"), flag.to_string()));
    for (key, data) in flags.chain([(SHARED_KEY.to_owned(), shared.to_string())]) {
        let config = Config {
            key: Key::parse(&key).unwrap(),
            data: data.into(),
            entries: Box::default(),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 1,
        };
        builder.config(1, config).unwrap();
    }
    let state = Arc::new(builder.finish(1, Timestamp(1)).unwrap());
    let collection = state.definition("flags").cloned().unwrap();
    FoundFlags::new(state, collection, None)
}

async fn compiled(service: &Service, principal: &Principal, found: &FoundFlags) -> Arc<CompiledFlags> {
    service.flags.compiled(principal, found).await.unwrap().0
}

#[tokio::test]
async fn flags_are_compiled_once_for_each_view() {
    let directory = tempfile::tempdir().unwrap();
    let (service, found) = (patient_service(directory.path()), found(50));
    let (reader, revealer) = (owner(&[Verb::Read]), owner(&[Verb::Read, Verb::Reveal]));
    let whole = compiled(&service, &Principal::root(), &found).await;
    let redacted = compiled(&service, &reader, &found).await;
    assert!(Arc::ptr_eq(&whole, &compiled(&service, &revealer, &found).await));
    assert!(Arc::ptr_eq(&redacted, &compiled(&service, &reader, &found).await));
    assert!(whole.redacted.is_empty());
    assert_eq!(redacted.redacted.texts().collect::<Vec<_>>(), ["#/variants/token"]);
    let evaluation = redacted.set.evaluate("f0001", &EvaluationContext::empty(), 0);
    assert!(
        matches!(evaluation.outcome, Outcome::Failure { code: ErrorCode::General, .. }),
        "{evaluation:?}"
    );
}

#[tokio::test]
async fn requests_at_the_same_time_compile_once() {
    let directory = tempfile::tempdir().unwrap();
    let (service, found, root) = (patient_service(directory.path()), found(50), Principal::root());
    let all = join_all((0..10).map(|_| compiled(&service, &root, &found))).await;
    assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0])));
}

#[tokio::test]
async fn memory_is_reserved_while_flags_are_compiled() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { in_flight_bytes: 4 << 20, ..Limits::default() };
    let (service, found, root) = (service(directory.path(), limits), found(30), Principal::root());
    let content = found.collection.content_bytes();
    let other = service.cx.memory_budget.reserve(Share::Callers, 100 << 10).unwrap();
    let refused = service.flags.compiled(&root, &found).await;
    assert!(matches!(refused, Err(Refusal::LimitReached(_))), "{refused:?}");
    assert_eq!(service.cx.memory_budget.used(Share::Callers)[0], other.bytes());
    drop(other);
    let (compiled, reservation) = service.flags.compiled(&root, &found).await.unwrap();
    assert!(compiled.bytes() > 2 << 20, "{compiled:?}");
    assert_eq!(reservation.bytes(), content, "the cache holds the rest");
}
