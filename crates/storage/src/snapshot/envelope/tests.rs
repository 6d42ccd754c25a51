//! What is read of an encrypted backup, and what is rejected.

use super::*;

struct BackupKeys {
    directory: tempfile::TempDir,
    recipient: String,
    signer: SignerKey,
}

impl BackupKeys {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (identity, recipient) = new_identity().unwrap();
        let (signing, signer) = new_signing_key().unwrap();
        let keys = Self { directory, recipient, signer };
        std::fs::write(keys.at("identity"), format!("# for reading\n{}\n", *identity)).unwrap();
        std::fs::write(keys.at("signing"), &*signing).unwrap();
        keys
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, content: &[u8]) -> Opening {
        let envelope = Envelope::read(std::slice::from_ref(&self.recipient), &self.at("signing")).unwrap();
        let (mut backup, own) = envelope.begin(File::create(self.at("backup")).unwrap()).unwrap();
        for part in content.chunks(1000) {
            backup.write(part).unwrap();
        }
        backup.finish().unwrap();
        own
    }

    fn opening(&self) -> Opening {
        Opening::read(Some(&self.at("identity")), &[self.signer.to_string()]).unwrap()
    }

    fn read(&self, opening: &Opening) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        opening.open(File::open(self.at("backup"))?)?.read_to_end(&mut content)?;
        Ok(content)
    }
}

#[test]
fn a_backup_is_read_by_its_recipient_and_by_its_writer() {
    let keys = BackupKeys::new();
    for length in [0, 1, 70_000, 200_000] {
        let content = vec![7; length];
        let own = keys.write(&content);
        assert_eq!(keys.read(&keys.opening()).unwrap(), content);
        assert_eq!(keys.read(&own).unwrap(), content);
        let mut file = File::open(keys.at("backup")).unwrap();
        assert_eq!(Opening::default().verify(&mut file).unwrap(), keys.signer);
    }
    let other = BackupKeys::new();
    let foreign = Opening::read(Some(&other.at("identity")), &[keys.signer.to_string()]).unwrap();
    assert!(keys.read(&foreign).unwrap_err().to_string().contains("decrypted"));
    let foreign = Opening::read(Some(&keys.at("identity")), &[other.signer.to_string()]).unwrap();
    assert!(keys.read(&foreign).unwrap_err().to_string().contains("signed by"));
    let unnamed = Opening::read(Some(&keys.at("identity")), &[]).unwrap();
    assert!(keys.read(&unnamed).unwrap_err().to_string().contains("--signer"));
}

#[test]
fn a_backup_that_is_sent_as_it_is_made_is_read_by_its_recipient() {
    let keys = BackupKeys::new();
    let envelope = Envelope::read(std::slice::from_ref(&keys.recipient), &keys.at("signing")).unwrap();
    for length in [0, 1, 70_000, 200_000] {
        let content: Vec<u8> = (0..=250).cycle().take(length).collect();
        let mut sealing = envelope.begin_stream().unwrap();
        let mut made = Vec::new();
        for part in content.chunks(30_000) {
            made.extend(sealing.push(part).unwrap());
        }
        made.extend(sealing.finish().unwrap());
        assert!(is_sealed(&made));
        std::fs::write(keys.at("backup"), made).unwrap();
        assert_eq!(keys.read(&keys.opening()).unwrap(), content);
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_rejected() {
    let keys = BackupKeys::new();
    keys.write(b"the content");
    let (whole, opening) = (std::fs::read(keys.at("backup")).unwrap(), keys.opening());
    for place in 8..whole.len() {
        let mut changed = whole.clone();
        changed[place] ^= 1 << (place % 8);
        std::fs::write(keys.at("backup"), &changed).unwrap();
        assert!(keys.read(&opening).is_err(), "byte {place}");
    }
    for cut in 8..whole.len() {
        std::fs::write(keys.at("backup"), &whole[..cut]).unwrap();
        assert!(keys.read(&opening).is_err(), "cut at {cut}");
    }
    std::fs::write(keys.at("backup"), [&whole[..], &[0]].concat()).unwrap();
    assert!(keys.read(&opening).is_err());
}

#[test]
fn a_backup_that_changes_between_reads_is_rejected() {
    let keys = BackupKeys::new();
    // Whoever knows the recipient can encrypt to it, and sign with a key of their own.
    let forger = BackupKeys { recipient: keys.recipient.clone(), ..BackupKeys::new() };
    for length in [10, 70_000, 600_000] {
        forger.write(&vec![6; length]);
        keys.write(&vec![7; length]);
        let forged = std::fs::read(forger.at("backup")).unwrap();
        let opening = keys.opening();
        let mut file = File::open(keys.at("backup")).unwrap();
        let (_, message) = opening.verified(&mut file).unwrap();
        file.rewind().unwrap();
        let mut verified =
            Verified { from: file.take(forged.len() as u64 - 64), hash: Sha512::new(), message };
        std::fs::write(keys.at("backup"), &forged).unwrap();
        let mut read = Vec::new();
        let error = verified.read_to_end(&mut read).unwrap_err();
        assert!(error.to_string().contains("changed"), "{error}");
        assert!(read.len() < forged.len() - 64, "the last bytes are kept back");
    }
}

#[test]
fn an_invalid_key_is_rejected_without_its_text() {
    let keys = BackupKeys::new();
    assert!(Envelope::read(&["age1nothing".into()], &keys.at("signing")).is_err());
    std::fs::write(keys.at("signing"), "a-secret-that-is-no-key").unwrap();
    let error = Envelope::read(std::slice::from_ref(&keys.recipient), &keys.at("signing")).unwrap_err();
    assert!(!error.contains("a-secret"), "{error}");
    std::fs::write(keys.at("identity"), "a-secret-that-is-no-key").unwrap();
    let error = Opening::read(Some(&keys.at("identity")), &[]).unwrap_err();
    assert!(!error.contains("a-secret"), "{error}");
    assert!(SignerKey::parse("nothing").is_err());
}
