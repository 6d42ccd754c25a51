//! Values for the tests of this crate and of those above.

use crate::{
    access_key::{AccessKey, Grant, Grants, KeyId, KeySecret, Pattern, Quota, Verb},
    time::Timestamp,
};

/// A key that may read everything, whose times, id and name follow from a number.
pub fn key(number: u64) -> AccessKey {
    let grant = Grant { verbs: [Verb::Read].into_iter().collect(), definitions: vec![Pattern::all()] };
    let secret = KeySecret { sha256: [7; 32], made: number, until: None, is_own: false };
    AccessKey {
        id: KeyId::parse(&format!("{number:012}")).expect("a fixture is valid"),
        name: format!("key-{}", 100 - number),
        grants: Grants(vec![grant]),
        quota: Quota::default(),
        expires_at: None,
        created_at: Timestamp(number.div_ceil(2)),
        created_by: "root".into(),
        modified_at: Timestamp(number),
        revision: number,
        secrets: vec![secret],
        last_used_day: None,
        person: None,
        attestation: None,
        half_attested: None,
    }
}
