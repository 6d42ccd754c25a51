//! Fuzz targets: forwarded writes, their responses, and cursors (`fuzz_targets`).

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::{
    forward::wire::{WireAnswer, WireRequest},
    read::cursor::Cursor,
    request::{Caller, Principal, Write, WriteRequest},
};
use concord_model::{
    command::{Applied, Done, Expect, StepOutcome},
    document::Document,
    error::Rejection,
    patch::{Patch, PatchFormat},
    time::Timestamp,
};
use concord_net::codec;
use concord_state::testing::{JSON_DEPTH, samples};

/// A forwarded write, or the response to one, by the first byte.
pub fn forwarded(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    if kind % 2 == 0 {
        let Ok(request) = codec::decode::<WireRequest<'_>>(bytes) else { return false };
        let Ok((remaining, opened)) = request.open(JSON_DEPTH) else { return false };
        let encoded = codec::encode(&WireRequest::of(&opened, remaining));
        let again = codec::decode::<WireRequest<'_>>(&encoded).expect("an encoding is decoded");
        let (remaining, again) = again.open(JSON_DEPTH).expect("it was opened before");
        assert_eq!(codec::encode(&WireRequest::of(&again, remaining)), encoded);
    } else {
        let Ok(answer) = codec::decode::<WireAnswer>(bytes) else { return false };
        let encoded = codec::encode(&answer);
        assert_eq!(codec::decode::<WireAnswer>(&encoded).expect("an encoding is decoded"), answer);
    }
    true
}

/// Valid inputs of [`forwarded`].
pub fn forwarded_seeds() -> Vec<Vec<u8>> {
    let document = |text: &str| Document::new(serde_json::from_str(text).expect("a sample is JSON"));
    let (definition, key, expect) = ("d".to_owned(), "k".to_owned(), Expect::At(7));
    let data = document(r#"{"a":[1,2.50,null]}"#);
    let put = Write::WriteConfig { definition: definition.clone(), key: key.clone(), data, expect };
    let patch = Patch { format: PatchFormat::Json, document: document(r#"[{"op":"remove","path":"/a"}]"#) };
    let patch = Write::PatchConfig { definition: definition.clone(), key: key.clone(), patch, expect };
    let delete = Write::DeleteConfig { definition: definition.clone(), key, expect: Expect::Present };
    let schema = Some(document(r#"{"type":"object"}"#));
    let create = Write::CreateDefinition {
        key: definition,
        indexes: vec!["a".into()],
        schema,
        format_assertion: None,
    };
    let batch = Write::Batch(vec![put.clone(), delete.clone()]);
    let seed = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let request = |write: Write| {
        let caller = Caller {
            principal: Principal::root(),
            reason: Some("why".into()),
            idempotency_key: samples::all_proposals()[0].request,
            dry_run: false,
            listed_variants: concord_model::schema::ListedVariants::default(),
            bypass: None,
        };
        let request = WriteRequest::new(caller, write);
        seed(0, &codec::encode(&WireRequest::of(&request, Duration::from_millis(1500))))
    };
    let done = Done::Single(StepOutcome::Created);
    let applied = Applied { revision: 9, at: Timestamp(1), done };
    let steps = Box::from([StepOutcome::Changed, StepOutcome::Deleted]);
    let done = Done::Transaction { conditions_held: false, steps };
    let of_transaction = Applied { revision: 9, at: Timestamp(1), done };
    let answer = |answer: WireAnswer| seed(1, &codec::encode(&answer));
    let mut seeds: Vec<Vec<u8>> = [put, patch, delete, create, batch].map(request).into();
    seeds.extend([
        answer(WireAnswer::Decided(Ok(applied.clone()))),
        answer(WireAnswer::Decided(Ok(of_transaction))),
        answer(WireAnswer::Decided(Err(Rejection::RequestReused))),
        answer(WireAnswer::Computed(applied, r#"{"a":1}"#.into())),
        answer(WireAnswer::Unknown("no answer".into())),
    ]);
    seeds
}

/// A cursor: as text, or as bytes to which the right checksum is added.
pub fn cursor(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    let text = if kind % 2 == 0 {
        String::from_utf8_lossy(bytes).into_owned()
    } else {
        URL_SAFE_NO_PAD.encode([bytes, &crc32c::crc32c(bytes).to_be_bytes()].concat())
    };
    let Some(cursor) = Cursor::parse(&text) else { return false };
    assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
    true
}

/// Valid inputs of [`cursor`].
pub fn cursor_seeds() -> Vec<Vec<u8>> {
    let seeds = [2, 300, u64::MAX].map(|page| {
        let text = Cursor { node: 3, revision: 1 << 40, page, fingerprint: [9; 16] }.text();
        let bytes = URL_SAFE_NO_PAD.decode(&text).expect("a cursor is base64");
        let without_sum = &bytes[..bytes.len() - 4];
        [[b"\0", text.as_bytes()].concat(), [b"\x01", without_sum].concat()]
    });
    seeds.into_iter().flatten().collect()
}
