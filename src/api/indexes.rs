//! How far the indexes of a definition are.
//!
//! Many configs are indexed behind the answer of operation 4. Until then a list that needs a new index is refused,
//! and the answers about the definition bear a header: their bodies are closed.
//!
//! **Invariant:** what is said of a build is read from one state.

use axum::extract::State;

use super::{
    definitions::{self, find},
    extract::{Read, key},
    json::Object,
    reply::{Problem, Reply},
};
use crate::{model::index::Build, service::Service, state::Collection};

/// Each index, whether it can be used, and how many configs it holds.
pub(super) async fn show(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let (consistency, ()) = read.params.read(Ok(()))?;
    key(&read.keys.definition, definitions::KEY)?;
    let state = service.view(consistency).await?;
    let collection = find(&state, &read.keys.definition)?;
    let definition = &collection.definition;
    let reply = Reply::done("indexes found", &list(collection));
    let reply = reply.of(definition.revision, definition.modified_at).building(building(collection));
    Ok(reply.at(state.revision()))
}

fn list(collection: &Collection) -> String {
    let definition = &collection.definition;
    let of = collection.by_key.len();
    let done = collection.progress().map_or(of, |progress| progress.done);
    let item = |(path, slot): (&String, &u16)| {
        let is_building = definition.indexing.is_building(*slot);
        let (state, done) = if is_building { ("building", done) } else { ("ready", of) };
        Object::new().value("path", path).plain("state", state).value("done", &done).value("of", &of).end()
    };
    let items: Vec<String> = definition.indexes.iter().zip(&definition.indexing.slots).map(item).collect();
    Object::new().raw("indexes", &format!("[{}]", items.join(","))).end()
}

/// How far a build is, while one keeps a path from being used: `done/of`.
pub(super) fn building(collection: &Collection) -> Option<String> {
    let build = collection.definition.indexing.build.as_ref();
    build.filter(|build: &&Build| !build.slots.is_empty())?;
    collection.progress().map(|progress| format!("{}/{}", progress.done, progress.total))
}

/// Why a list of a definition's configs can't be had.
pub(super) fn refused(error: QueryError, collection: &Collection, revision: u64) -> Problem {
    let QueryError::Building(path) = error else { return error.into() };
    let far = collection.progress().map_or_else(String::new, |progress| {
        format!(" ({} of {} configs are done)", progress.done, progress.total)
    });
    let text = format!("the index of `{path}` is being built{far}; the list can be had when it is ready");
    Problem::Refused(Refusal::Conflict(text), Some(revision))
}
