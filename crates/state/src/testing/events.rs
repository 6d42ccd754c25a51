//! Events of the feed.

use std::sync::Arc;

use concord_model::{
    key::Key,
    record::{Config, Revision},
    time::Timestamp,
};

use crate::feed::{Before, Event, RecordChange};

/// A valid key.
pub fn key(text: &str) -> Key {
    Key::parse(text).expect("a fixture is valid")
}

/// A config as a write at this revision left it.
pub fn config(name: &str, revision: Revision, data: &str) -> Arc<Config> {
    Arc::new(Config {
        key: key(name),
        data: data.into(),
        entries: Box::default(),
        created_at: Timestamp(1),
        modified_at: Timestamp(revision),
        revision,
    })
}

/// The event of a new config.
pub fn event(revision: Revision, definition: &str, name: &str, data: &str) -> Arc<Event> {
    let after = Some(config(name, revision, data));
    let item =
        RecordChange::Config { definition: key(definition), key: key(name), before: Before::Nothing, after };
    let event = Event::new(revision, Timestamp(revision), ("root", None), vec![item], Vec::new());
    Arc::new(event.expect("a fixture is valid"))
}
