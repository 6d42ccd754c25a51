//! stub
use concord_model::system::{
    change::ChangeId,
    rollout::{Evidence, Rollout},
};
#[derive(Debug, Default)]
pub(crate) struct EvidenceStore;
impl EvidenceStore {
    pub(crate) fn counted(&self, _: &ChangeId, _: &Rollout) -> Evidence {
        Evidence::default()
    }
    pub(crate) fn bad_gate(&self, _: &Rollout) -> Option<String> {
        None
    }
    pub(crate) async fn changed(&self) {
        std::future::pending::<()>().await
    }
    pub(crate) fn clear(&self) {}
}
