//! What an answer to a write shows when the definition is another one by then.

use super::*;
use crate::{
    model::{command::Expect, document::Document},
    peer::Member,
    service::{
        Caller, Write,
        tests::{owner, patient_service},
    },
};

#[tokio::test]
async fn what_was_written_to_a_definition_that_is_gone_is_not_shown_by_the_schema_of_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let service = patient_service(directory.path());
    let (api_addr, peer_addr) = ("127.0.0.1:1".into(), "127.0.0.1:2".into());
    service.init(&Principal::root(), vec![Member { id: 1, api_addr, peer_addr }]).await.unwrap();
    let write = async |write: Write| {
        let caller =
            Caller { principal: Principal::root(), reason: None, idempotency_key: None, dry_run: false };
        service.write(caller, write).await.unwrap().applied.revision
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
        let (text, places) = service.shown_data(principal, ("s", at), r#"{"pw":"hidden"}"#.into()).await;
        (text.contains("hidden"), places.texts().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(shown(&blind, first).await, (false, vec!["#/pw".into()]));
    write(Write::DeleteDefinition { key: "s".into(), expect: Expect::Present, restrict: false }).await;
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
