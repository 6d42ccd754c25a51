//! A snapshot is read as it was written, or rejected.

use std::{fs, sync::Arc};

use super::{header::FORMAT, *};
use concord_model::{
    audit::{AnchoredLog, AuditAnchor},
    command::IdempotencyKey,
    error::Rejection,
    index::Indexing,
    key::Key,
    record::{IndexEntry, Revision, VoidRevisions},
    system::{SystemBody, environment::Environment},
    testing::key,
    time::Timestamp,
};

pub(crate) fn definition(id: Revision) -> Definition {
    Definition {
        id,
        key: Key::parse(&format!("d{id}")).unwrap(),
        indexes: vec!["a".into()],
        schema: Some(r#"{"type":"object"}"#.into()),
        indexing: Indexing::fresh(1),
        created_at: Timestamp(id),
        modified_at: Timestamp(id),
        revision: id,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    }
}

pub(crate) fn config(key: &str, revision: Revision, data: &str) -> Config {
    Config {
        key: Key::parse(key).unwrap(),
        data: data.into(),
        entries: Box::new([IndexEntry { slot: 0, value: (&b"v\0"[..]).into() }]),
        created_at: Timestamp(revision),
        modified_at: Timestamp(revision),
        revision,
    }
}

pub(crate) fn remembered(revision: Revision) -> RememberedOutcome {
    RememberedOutcome {
        request: IdempotencyKey { id: [1; 16], fingerprint: [2; 16] },
        at: Timestamp(revision),
        revision,
        outcome: Err(Rejection::ConfigNotFound),
    }
}

pub(crate) fn anchors(revision: Revision) -> AuditAnchors {
    let mut anchors = AuditAnchors::new(AnchoredLog { cluster: [3; 16], node: 1 });
    anchors.add(AuditAnchor { at: Timestamp(revision), seq: 300, sha256: [4; 32] });
    AuditAnchors { revision, ..anchors }
}

fn environment(revision: Revision) -> SystemRecord {
    SystemRecord {
        name: Key::parse("prod").unwrap(),
        body: SystemBody::Environment(Environment::default()),
        text: "{}".into(),
        created_at: Timestamp(revision),
        modified_at: Timestamp(revision),
        revision,
    }
}

/// Writes a file that is whole and holds no state: its config has no definition.
pub(crate) fn without_a_state(path: &Path) {
    let header = Header::of(&State::new(), &Position { index: 9, raft_meta: Vec::new() });
    let header = Header { configs: 1, ..header };
    let mut writer = SnapshotWriter::create(path, &header, 1 << 10, &AtRest::default()).unwrap();
    writer.record(SnapshotRecordRef::Config(&config("k", 9, "1"))).unwrap();
    writer.finish().unwrap();
}

fn sample(path: &Path, configs: u64) -> Vec<SnapshotRecord> {
    let mut records = vec![SnapshotRecord::Definition(definition(1))];
    for number in 0..configs {
        let data = format!("{{\"a\":{}}}", "1".repeat(usize::try_from(number).unwrap()));
        records.push(SnapshotRecord::Config(config(&format!("k{number:05}"), number + 2, &data)));
    }
    records.push(SnapshotRecord::Request(remembered(9)));
    records.push(SnapshotRecord::AccessKey(key(9)));
    records.push(SnapshotRecord::AuditAnchors(anchors(9)));
    records.push(SnapshotRecord::System(environment(9)));
    let header = Header {
        format: FORMAT,
        feature_level: 1,
        position: Position { index: 9, raft_meta: vec![1, 2, 3] },
        revision: 9,
        last_at: Timestamp(9),
        definitions: 1,
        configs,
        requests: 1,
        access_keys: 1,
        audit_anchors: 1,
        system: 1,
        digest: u128::MAX - 5,
        compaction_revision: 3,
        root_disabled: true,
        void: vec![VoidRevisions { first: 2, last: 3 }],
        content_bytes: 0,
    };
    let mut writer = SnapshotWriter::create(path, &header, 100, &AtRest::default()).unwrap();
    for record in &records {
        let record = match record {
            SnapshotRecord::Definition(record) => SnapshotRecordRef::Definition(record),
            SnapshotRecord::Config(record) => SnapshotRecordRef::Config(record),
            SnapshotRecord::Request(record) => SnapshotRecordRef::Request(record),
            SnapshotRecord::AccessKey(record) => SnapshotRecordRef::AccessKey(record),
            SnapshotRecord::AuditAnchors(record) => SnapshotRecordRef::AuditAnchors(record),
            SnapshotRecord::System(record) => SnapshotRecordRef::System(record),
        };
        writer.record(record).unwrap();
    }
    writer.finish().unwrap();
    records
}

fn read_all(path: &Path) -> Result<Vec<SnapshotRecord>, StoreError> {
    let mut reader = SnapshotReader::open(path, &AtRest::default())?;
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push(record);
    }
    Ok(records)
}

fn verify(path: &Path) -> Result<(), StoreError> {
    SnapshotReader::open(path, &AtRest::default()).and_then(SnapshotReader::verify).map(drop)
}

#[test]
fn records_are_read_in_the_order_they_were_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let records = sample(&path, 300);
    verify(&path).unwrap();
    assert_eq!(read_all(&path).unwrap(), records);
}

#[test]
fn every_flipped_bit_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    sample(&path, 6);
    let file = fs::read(&path).unwrap();
    for bit in 0..file.len() * 8 {
        let mut file = file.clone();
        file[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, file).unwrap();
        assert!(matches!(verify(&path), Err(StoreError::Damaged(_))), "bit {bit}");
        assert!(matches!(read_all(&path), Err(StoreError::Damaged(_))), "bit {bit}");
    }
}

#[test]
fn every_cut_and_every_addition_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    sample(&path, 20);
    let mut file = fs::read(&path).unwrap();
    for cut in 0..file.len() {
        fs::write(&path, &file[..cut]).unwrap();
        assert!(matches!(verify(&path), Err(StoreError::Damaged(_))), "cut at {cut}");
        assert!(matches!(read_all(&path), Err(StoreError::Damaged(_))), "cut at {cut}");
    }
    file.push(0);
    fs::write(&path, &file).unwrap();
    assert!(matches!(verify(&path), Err(StoreError::Damaged(_))));
    assert!(matches!(read_all(&path), Err(StoreError::Damaged(_))));
}

#[test]
fn borrowed_records_have_the_same_bytes_as_owned_ones() {
    let shared = Arc::new(definition(3));
    let bytes = postcard::to_stdvec(&SnapshotRecordRef::Definition(&shared)).unwrap();
    assert_eq!(postcard::from_bytes::<SnapshotRecord>(&bytes), Ok(SnapshotRecord::Definition(definition(3))));
}
