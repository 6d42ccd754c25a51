//! The states of a definition's indexes.
//!
//! The indexes of a large definition are built in the background, after the request that names them is answered. Until
//! an index is ready, a list that needs it is refused. Answers about the definition report the progress in a header,
//! because their bodies take no further members.
//!
//! **Invariant:** everything that an answer says of a build is read from one state.

use super::{
    definitions::{self, build_progress, find},
    extract::{ReadRequest, check_key},
    json::Object,
    reply::{Problem, Reply},
};
use concord_model::access_key::Verb;
use concord_service::Service;
use concord_state::Collection;

/// Lists the indexes of a definition: whether each can be used, and how many configs it holds.
pub(super) async fn show(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    check_key(&request.definition(), definitions::KEY)?;
    let key = request.definition();
    let view = service.read(&request.principal, Verb::Read, &key, consistency).await?;
    let collection = find(&view)?;
    let definition = &collection.definition;
    let reply = Reply::ok("indexes found", &states(collection));
    let reply = reply.record_version(definition.revision, definition.modified_at);
    Ok(reply.index_building(build_progress(collection)).state_revision(view.revision()))
}

fn states(collection: &Collection) -> String {
    let definition = &collection.definition;
    let of = collection.by_key.len();
    let done = collection.progress().map_or(of, |progress| progress.done);
    let item = |(path, slot): (&String, &u16)| {
        let is_building = definition.indexing.is_building(*slot);
        let (state, done) = if is_building { ("building", done) } else { ("ready", of) };
        let item = Object::new().value("path", path).unescaped("state", state);
        item.value("done", &done).value("of", &of).finish()
    };
    let items: Vec<String> = definition.indexes.iter().zip(&definition.indexing.slots).map(item).collect();
    Object::new().raw("indexes", &format!("[{}]", items.join(","))).finish()
}
