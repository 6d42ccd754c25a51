//! A definition with two indexes and configs of some 300 bytes, as a service would have them.

use std::sync::Arc;

use concord_model::{
    access_key::Author,
    command::{Command, Expect, Proposal},
    index::{self, StoredPath},
    key::Key,
    record::Revision,
    time::Timestamp,
};
use concord_state::{Change, State};
use serde_json::{Value, json};

/// The indexed paths.
const INDEXES: [&str; 2] = ["group", "owner"];

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).expect("the benches write valid keys")
}

/// The data of a config; `seed` moves both indexed fields.
pub(crate) fn data(seed: u64) -> Value {
    json!({
        "group": seed % 1000,
        "owner": format!("team-{}", seed % 50),
        "enabled": true,
        "timeouts": {"connect_ms": 250, "read_ms": seed % 5000},
        "text": "x".repeat(200),
    })
}

pub(crate) fn paths() -> Vec<StoredPath> {
    let world = World::new(0);
    let found = world.state.definition("d").expect("it was just made");
    index::stored_paths(&found.definition)
}

/// A state, and the commands that change it.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) state: State,
    paths: Arc<[StoredPath]>,
    definition: Revision,
}

impl World {
    pub(crate) fn new(configs: u64) -> Self {
        let mut world = Self { state: State::new(), paths: Arc::default(), definition: 0 };
        let indexes = INDEXES.map(String::from).to_vec();
        world.run(Command::CreateDefinition { key: key("d"), indexes, schema: None });
        world.definition = 1;
        let found = world.state.definition("d").expect("it was just made");
        world.paths = index::stored_paths(&found.definition).into();
        for number in 0..configs {
            world.run(world.write(number, number));
        }
        world
    }

    /// The command that writes config `number`.
    pub(crate) fn write(&self, number: u64, seed: u64) -> Command {
        let data = data(seed);
        let entries = index::entries(&self.paths, &data).expect("the fields are small");
        Command::WriteConfig {
            definition: key("d"),
            key: key(&format!("c{number:08}")),
            data: data.to_string().into(),
            entries,
            expect: Expect::Any,
        }
    }

    pub(crate) fn proposal(&self, command: Command) -> Proposal {
        let definition_read = (self.definition > 0).then_some(self.definition);
        let at = Timestamp(1_000_000 + self.state.revision() * 10);
        Proposal {
            at,
            by: "root".into(),
            reason: None,
            request: None,
            definition_read,
            command,
            author: Author::Root,
            tail: None,
        }
    }

    /// Applies one command.
    pub(crate) fn run(&mut self, command: Command) -> Arc<Change> {
        let proposal = self.proposal(command);
        let (_, change) = self.state.apply(self.state.revision() + 1, &proposal);
        Arc::new(change.expect("every command of the benches changes something"))
    }
}
