//! The memory of previews.

use super::*;
use crate::request::Level;
use crate::{
    Share,
    editions::{StoredEdition, content::StoredOperation},
    testing::Scripted,
};
use concord_model::{
    access_key::Author,
    command::{ChangeAction, Command, Proposal, SystemCommand},
    key::Key,
    system::change::{Content, NewEdition, Scope, Timing},
};

#[tokio::test]
async fn a_preview_holds_memory_of_the_budget() {
    let node = Scripted::start().await;
    // The work of the pool takes real time.
    tokio::time::resume();
    let key = |text: &str| Key::parse(text).unwrap();
    let data = format!("{{\"n\":\"{}\"}}", "x".repeat(1 << 20)).into();
    let put = StoredOperation::PutConfig { definition: key("app"), config: key("k"), data };
    let stored = StoredEdition { operations: vec![put], patches: Vec::new(), ..StoredEdition::default() };
    let operations = stored.to_text_with(0);
    let bytes = operations.len() as u64;
    let edition = NewEdition {
        digest: [1; 32],
        scope: Scope::Definitions(vec![key("app")]),
        text: "{}".into(),
        operations,
        content: Content::new(Vec::new(), [1; 32]),
        timing: Timing::default(),
    };
    let id = ChangeId::parse("changechange").unwrap();
    let action = ChangeAction::Create(Box::new(edition));
    let command = Command::System(SystemCommand::Change { id, action });
    let verdict = node.fake.decide(&Proposal::new(node.true_time(), "root", Author::Root, command));
    assert!(format!("{verdict:?}").contains("Ok"), "{verdict:?}");
    let local = Consistency { level: Level::Local { max_staleness: None }, min_revision: None };
    let (root, budget) = (Principal::root(), &node.service.cx.memory_budget);
    let get = async |with_preview: bool| {
        let mut held = budget.begin(Share::Callers);
        let got = node.service.changes.get(&root, "changechange", with_preview, (local, &mut held)).await;
        got.map(|(change, _)| (change.preview.is_some(), held.bytes()))
    };
    assert_eq!(get(false).await, Ok((false, 0)));
    let (is_shown, held) = get(true).await.unwrap();
    assert!(is_shown && held >= 8 * bytes, "{held}");
    // Beside others that use up the memory there is none, and the change request itself is still shown.
    let others = budget.reserve(Share::Callers, 1 << 40).unwrap();
    assert!(matches!(get(true).await, Err(Refusal::LimitReached(_))));
    assert_eq!(get(false).await, Ok((false, 0)));
    drop(others);
    assert!(get(true).await.is_ok());
    tokio::time::pause();
    node.stop().await;
}
