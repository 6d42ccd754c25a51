//! What is done to the data of one write before it goes into the log.

use concord::model::{
    document, index,
    schema::{Formats, Schema},
};
use divan::{Bencher, black_box};
use serde_json::json;

use crate::data::{World, data, paths};

/// The JSON text of a body.
#[divan::bench]
fn parse_data(bencher: Bencher<'_, '_>) {
    let text = data(7).to_string();
    bencher.bench_local(|| document::parse(black_box(text.as_bytes()), 64));
}

/// The index entries of two paths.
#[divan::bench]
fn index_entries(bencher: Bencher<'_, '_>) {
    let (paths, data) = (paths(), data(7));
    bencher.bench_local(|| index::entries(black_box(&paths), black_box(&data)));
}

/// Data against a compiled schema of seven rules.
#[divan::bench]
fn schema_check(bencher: Bencher<'_, '_>) {
    let document = json!({
        "type": "object",
        "required": ["group", "owner"],
        "properties": {
            "group": {"type": "integer", "minimum": 0},
            "owner": {"type": "string", "pattern": "^team-[0-9]+$"},
            "enabled": {"type": "boolean"},
            "timeouts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "text": {"type": "string", "maxLength": 1000},
        },
    });
    let schema = Schema::compile(&document, Formats::Asserted);
    let (schema, data) = (schema.expect("it is a valid schema"), data(7));
    bencher.bench_local(|| schema.check(black_box(&data)));
}

/// The bytes of an entry of the log, and back.
#[divan::bench]
fn proposal_there_and_back(bencher: Bencher<'_, '_>) {
    let world = World::new(1);
    let proposal = world.proposal(world.write(0, 7));
    bencher.bench_local(|| concord::model::command::Proposal::from_bytes(&black_box(&proposal).to_bytes()));
}
