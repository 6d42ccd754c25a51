//! Keys are turned on, rotated and turned off; what is encrypted is read as it was written, or rejected.

use std::{
    fs,
    io::{Read as _, Write as _},
};

use proptest::prelude::*;

use super::{
    stream::{DecryptingReader, FileHead, Sink},
    *,
};

fn key_file(directory: &Path, lines: &str) -> PathBuf {
    let path = directory.join("data-keys");
    fs::write(&path, lines).unwrap();
    path
}

fn refusal(directory: &Path, lines: &str) -> String {
    AtRest::open(directory, Some(&key_file(directory, lines))).unwrap_err()
}

/// The files of a directory that hold keys, with their bytes.
fn key_bytes(directory: &Path) -> Vec<Option<Vec<u8>>> {
    ["keys", "keys.copy"].map(|name| fs::read(directory.join(name)).ok()).to_vec()
}

#[test]
fn the_key_of_a_directory_survives_rotation_and_needs_the_right_data_key() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let first = AtRest::for_tests(at, KEYS[0]);
    let sealed = first.file_key(KeyPurpose::Log, b"x").unwrap().seal(b"here", b"content");
    let read = |at_rest: &AtRest| at_rest.file_key(KeyPurpose::Log, b"x").unwrap().open(b"here", &sealed);
    let before = key_bytes(at);
    assert!(refusal(at, KEYS[1]).contains(&first.encryption().unwrap().data_key.to_string()));
    assert!(AtRest::open(at, None).unwrap_err().contains("CONCORD_DATA_KEY_FILE"));
    assert!(AtRest::open(at, Some(&at.join("missing"))).is_err());
    assert_eq!(key_bytes(at), before, "a refused key changes nothing");

    // Without a restart: the key in use must be in the file, too.
    key_file(at, KEYS[1]);
    assert!(first.reload().unwrap_err().contains("holds only"));
    assert_eq!(key_bytes(at), before);
    key_file(at, &format!("{}\n{}", KEYS[1], KEYS[0]));
    let current = first.reload().unwrap().unwrap();
    assert_eq!(first.encryption().unwrap().data_key, current);
    assert_eq!(first.reload().unwrap(), None);
    assert_ne!(key_bytes(at), before);

    let second = AtRest::open(at, Some(&key_file(at, KEYS[1]))).unwrap();
    assert_eq!(read(&second).unwrap(), b"content");
    assert!(refusal(at, KEYS[0]).contains(&current.to_string()));
}

#[test]
fn one_damaged_copy_is_tolerated_and_two_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    drop(AtRest::for_tests(at, KEYS[0]));
    let whole = fs::read(at.join("keys")).unwrap();
    let file = key_file(at, KEYS[0]);
    let open = || AtRest::open(at, Some(&file));
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(at.join("keys"), &damaged).unwrap();
        assert!(open().is_ok(), "bit {bit}");
        fs::write(at.join("keys.copy"), &damaged).unwrap();
        assert!(open().is_err(), "bit {bit} in both");
        fs::write(at.join("keys.copy"), &whole).unwrap();
    }
    for cut in 0..whole.len() {
        fs::write(at.join("keys"), &whole[..cut]).unwrap();
        fs::write(at.join("keys.copy"), &whole[..cut]).unwrap();
        assert!(open().is_err(), "cut at {cut}");
    }
    fs::remove_file(at.join("keys")).unwrap();
    fs::write(at.join("keys.copy"), &whole).unwrap();
    open().unwrap().prepare().unwrap();
    assert_eq!(key_bytes(at), vec![Some(whole.clone()), Some(whole)], "the missing copy is there again");
    // As a sector that can't be read, it gives no bytes but an error.
    fs::remove_file(at.join("keys")).unwrap();
    fs::create_dir(at.join("keys")).unwrap();
    assert!(open().is_ok(), "the other copy is whole");
    fs::remove_file(at.join("keys.copy")).unwrap();
    assert!(open().is_err(), "there may be a key, so none is made");
}

#[test]
fn encryption_is_turned_off_by_the_word_none() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    drop(AtRest::for_tests(at, KEYS[0]));
    let off = AtRest::open(at, Some(&key_file(at, &format!("none\n{}", KEYS[0])))).unwrap();
    off.prepare().unwrap();
    assert!(!off.seals() && off.has_key() && off.encryption().is_none());
    // The directory still holds encrypted files: the key stays until they are rewritten.
    assert!(AtRest::open(at, None).is_err());
    off.converted().unwrap();
    assert!(AtRest::open(at, None).is_ok());
    assert_eq!(key_bytes(at), [None, None]);
    let plain = AtRest::open(at, Some(&key_file(at, &format!("none\n{}", KEYS[0])))).unwrap();
    assert!(!plain.has_key());
}

#[test]
fn the_mark_of_an_encrypted_directory_is_kept_by_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let first = AtRest::for_tests(at, KEYS[0]);
    assert!(!first.is_converted() && first.allows_plain());
    first.converted().unwrap();
    key_file(at, &format!("{}\n{}", KEYS[1], KEYS[0]));
    first.reload().unwrap().unwrap();
    let again = AtRest::open(at, Some(&key_file(at, KEYS[1]))).unwrap();
    assert!(again.is_converted() && !again.allows_plain());
    assert!(AtRest::default().is_converted() && AtRest::default().allows_plain());
}

fn write(path: &Path, at_rest: &AtRest, parts: &[Vec<u8>]) {
    let mut sink = Sink::new(fs::File::create(path).unwrap(), at_rest, KeyPurpose::Snapshot).unwrap();
    for part in parts {
        sink.write_all(part).unwrap();
    }
    sink.finish().unwrap();
}

fn read(path: &Path, at_rest: &AtRest) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    DecryptingReader::new(fs::File::open(path)?, at_rest, KeyPurpose::Snapshot)?.read_to_end(&mut content)?;
    Ok(content)
}

#[test]
fn a_stream_is_read_as_it_was_written_and_its_length_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let at_rest = AtRest::for_tests(directory.path(), KEYS[0]);
    let path = directory.path().join("file");
    for length in [0_usize, 1, 65_535, 65_536, 65_537, 131_072, 200_000] {
        let content: Vec<u8> = (0..length).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
        for part in [1000, 65_536, 1 << 20] {
            let parts: Vec<Vec<u8>> = content.chunks(part).map(<[u8]>::to_vec).collect();
            write(&path, &at_rest, &parts);
            assert_eq!(read(&path, &at_rest).unwrap(), content, "{length} in parts of {part}");
            let bytes = fs::metadata(&path).unwrap().len();
            assert_eq!(stream::content_bytes(bytes), length as u64);
        }
    }
    let kind = |at_rest: &AtRest, purpose| {
        FileHead::parse(&fs::read(&path).unwrap()[..stream::HEAD_BYTES], at_rest, purpose)
    };
    assert!(kind(&at_rest, KeyPurpose::Log).is_err(), "another purpose");
    assert!(kind(&AtRest::default(), KeyPurpose::Snapshot).is_err(), "no key");
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_small_stream_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let at_rest = AtRest::for_tests(directory.path(), KEYS[0]);
    let path = directory.path().join("file");
    write(&path, &at_rest, &[b"some content".to_vec()]);
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &damaged).unwrap();
        // A damaged magic makes it a plain file, which its reader rejects; its content never appears.
        match read(&path, &at_rest) {
            Ok(content) => assert!(bit < 64 && content == damaged, "bit {bit}"),
            Err(_) => assert!(bit >= 64, "bit {bit}"),
        }
    }
    for cut in 8..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(read(&path, &at_rest).is_err(), "cut at {cut}");
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert!(read(&path, &at_rest).is_err(), "a byte more");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_long_stream_that_is_changed_anywhere_is_refused(
        length in 1_usize..300_000,
        flip in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let at_rest = AtRest::for_tests(directory.path(), KEYS[0]);
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..length).map(|byte| u8::try_from(byte * 7 % 256).unwrap()).collect();
        write(&path, &at_rest, std::slice::from_ref(&content));
        let whole = fs::read(&path).unwrap();
        prop_assert_eq!(&read(&path, &at_rest).unwrap(), &content);
        let mut changed = whole.clone();
        let bit = 64 + flip.index(whole.len() * 8 - 64);
        changed[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &changed).unwrap();
        prop_assert!(read(&path, &at_rest).is_err());
        fs::write(&path, &whole[..8 + cut.index(whole.len() - 8)]).unwrap();
        prop_assert!(read(&path, &at_rest).is_err());
        // Two chunks of the same file change places.
        let chunk = 65_536 + 16;
        let chunks = whole.len().saturating_sub(stream::HEAD_BYTES).div_ceil(chunk);
        let (from, to) = (from.index(chunks), to.index(chunks));
        let place = |number: usize| {
            let begin = stream::HEAD_BYTES + number * chunk;
            begin..(begin + chunk).min(whole.len())
        };
        let mut chunks: Vec<&[u8]> = (0..chunks).map(|number| &whole[place(number)]).collect();
        chunks.swap(from, to);
        fs::write(&path, [&[&whole[..stream::HEAD_BYTES]], &chunks[..]].concat().concat()).unwrap();
        prop_assert_eq!(read(&path, &at_rest).is_ok(), from == to);
        // The same content in another file: a chunk of it does not fit.
        write(&path, &at_rest, std::slice::from_ref(&content));
        let mut other = fs::read(&path).unwrap();
        other[place(from)].copy_from_slice(&whole[place(from)]);
        fs::write(&path, &other).unwrap();
        prop_assert!(read(&path, &at_rest).is_err());
    }
}

#[test]
fn no_nonce_is_used_twice_and_debug_shows_no_key() {
    let directory = tempfile::tempdir().unwrap();
    let at_rest = AtRest::for_tests(directory.path(), KEYS[0]);
    let mut nonces = std::collections::BTreeSet::new();
    for _ in 0..4 {
        // As after a restart: the same key, another process.
        let key = at_rest.file_key(KeyPurpose::Log, &[]).unwrap();
        for _ in 0..256 {
            assert!(nonces.insert(key.seal(b"the same place", b"the same content")[..24].to_vec()));
        }
    }
    let shown = format!("{at_rest:?} {:?}", at_rest.file_key(KeyPurpose::Log, &[]));
    assert_eq!(shown, "AtRest { seals: true, .. } Some(FileKey)");
}
