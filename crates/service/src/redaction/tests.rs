//! Redaction of responses whose definition has changed since, and fairness while many schemas are compiled.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{
    Caller, Write,
    testing::{owner, patient_service, service},
};
use concord_model::{
    command::Expect, document::Document, index::Indexing, key::Key, limits::Limits, time::Timestamp,
};
use concord_net::Member;

/// A definition with a secret field, one of many.
fn marked(number: u64) -> Arc<Definition> {
    let schema = serde_json::json!({ "properties": { "pw": { "x-concord-secret": true } } });
    Arc::new(Definition {
        id: number,
        key: Key::parse(&format!("d{number}")).unwrap(),
        indexes: Vec::new(),
        schema: Some(schema.to_string().into()),
        indexing: Indexing::fresh(0),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: number,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    })
}

#[tokio::test(flavor = "current_thread")]
async fn other_tasks_run_between_the_schemas_of_one_response() {
    const DEFINITIONS: u64 = 50;
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let turns = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let blind = owner(&[Verb::Read]);
    let redact_all = async || {
        for number in 1..=DEFINITIONS {
            service.redactor.redaction_of(&blind, &marked(number)).await.unwrap();
        }
    };
    redact_all().await;
    let first = turns.load(Ordering::Relaxed);
    assert!(first >= DEFINITIONS, "{first} turns");
    redact_all().await;
    assert_eq!(turns.load(Ordering::Relaxed), first, "compiled schemas are cached");
    other.abort();
}

#[tokio::test]
async fn data_of_a_deleted_definition_is_not_redacted_by_the_schema_of_its_successor() {
    let directory = tempfile::tempdir().unwrap();
    let service = patient_service(directory.path());
    let (api_addr, peer_addr) = ("127.0.0.1:1".into(), "127.0.0.1:2".into());
    service.members.init(&Principal::root(), vec![Member { id: 1, api_addr, peer_addr }]).await.unwrap();
    let write = async |write: Write| {
        let caller = Caller {
            principal: Principal::root(),
            reason: None,
            idempotency_key: None,
            dry_run: false,
            listed_variants: concord_model::schema::ListedVariants::default(),
            bypass: None,
        };
        service.writes.write(caller, write).await.unwrap().applied.revision
    };
    let define = |schema: Option<Document>| Write::CreateDefinition {
        key: "s".into(),
        indexes: vec![],
        schema,
        format_assertion: None,
    };
    let schema = serde_json::json!({"properties": {"pw": {"x-concord-secret": true}}});
    let first = write(define(Some(Document::new(schema)))).await;
    let (blind, seeing) = (owner(&[Verb::Read, Verb::Write]), owner(&[Verb::Read, Verb::Reveal]));
    let shown = async |principal: &Principal, at: Revision| {
        let (text, places) =
            service.redactor.shown_data(principal, "s", at, r#"{"pw":"hidden"}"#.into()).await;
        (text.contains("hidden"), places.texts().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(shown(&blind, first).await, (false, vec!["#/pw".into()]));
    write(Write::DeleteDefinition {
        key: "s".into(),
        expect: Expect::Present,
        restrict: false,
        purge: false,
    })
    .await;
    assert_eq!(shown(&blind, first).await, (false, vec!["#".into()]), "deleted");
    let second = write(define(None)).await;
    assert_eq!(shown(&blind, first).await, (false, vec!["#".into()]), "created again, without the mark");
    assert_eq!(shown(&blind, second).await, (true, vec![]), "the new one has no mark");
    let later = second + 1000;
    assert_eq!(
        shown(&blind, later).await,
        (false, vec!["#".into()]),
        "this node does not know the schema yet"
    );
    for at in [first, second, later] {
        assert_eq!(shown(&seeing, at).await, (true, vec![]), "{at}");
    }
}

#[tokio::test]
async fn data_newer_than_the_applied_state_is_redacted_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let service = patient_service(directory.path());
    let (api_addr, peer_addr) = ("127.0.0.1:1".into(), "127.0.0.1:2".into());
    service.members.init(&Principal::root(), vec![Member { id: 1, api_addr, peer_addr }]).await.unwrap();
    let write = async |write: Write| {
        let caller = Caller {
            principal: Principal::root(),
            reason: None,
            idempotency_key: None,
            dry_run: false,
            listed_variants: concord_model::schema::ListedVariants::default(),
            bypass: None,
        };
        service.writes.write(caller, write).await.unwrap().applied.revision
    };
    let define = |key: &str| Write::CreateDefinition {
        key: key.into(),
        indexes: vec![],
        schema: None,
        format_assertion: None,
    };
    let at = write(define("s")).await;
    let (blind, seeing) = (owner(&[Verb::Read]), owner(&[Verb::Read, Verb::Reveal]));
    let event = |revision: Revision| {
        let data: Arc<str> = r#"{"pw":"hidden"}"#.into();
        let config = Config {
            key: Key::parse("k").unwrap(),
            data,
            entries: Box::default(),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision,
        };
        let definition = Key::parse("s").unwrap();
        let (key, after) = (config.key.clone(), Some(Arc::new(config)));
        let item = RecordChange::Config { definition, key, before: Before::Nothing, after };
        Event::new(revision, Timestamp(1), ("root", None), vec![item], Vec::new()).unwrap()
    };
    assert!(!service.redactor.is_to_be_redacted(&blind, &event(at)), "there is no mark");
    // The feed or another node's page has it before this node applies it. The entries in between may add a mark.
    let next = event(at + 1);
    assert!(
        service.redactor.is_to_be_redacted(&blind, &next)
            && !service.redactor.is_to_be_redacted(&seeing, &next)
    );
    let state = service.cx.applied();
    let redaction =
        async |principal: &Principal| service.redactor.redaction(principal, &state, "s", at + 1).await;
    assert!(matches!(redaction(&blind).await, Ok(Redaction::Whole)));
    assert!(matches!(redaction(&seeing).await, Ok(Redaction::Nothing)));
    let (shown, written) = tokio::join!(service.freshness.state_to_show(at + 1), write(define("t")));
    assert!(written > at && shown.unwrap().revision() > at, "it waits until the revision is applied");
    assert!(!service.redactor.is_to_be_redacted(&blind, &next), "no mark was added");
}
