//! The contents of a certificate. `verify` checks whether they are true.

use rustls::pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use x509_parser::{extensions::GeneralName, prelude::FromDer as _};

use concord_model::time::Timestamp;

/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// The contents of a certificate, as far as operators need them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its subject.
    pub subject: String,
    /// The authority that signed it.
    pub issuer: String,
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// The SHA-256 of its bytes, in hexadecimal digits.
    pub fingerprint: String,
    /// The begin of its validity.
    pub begins: Timestamp,
    /// The end of its validity.
    pub ends: Timestamp,
    /// The names that it is for: of hosts and of nodes.
    pub names: Vec<String>,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
}

impl Certificate {
    /// Reads a certificate.
    ///
    /// # Errors
    /// When it is invalid.
    pub fn parse(der: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(der)
            .map_err(|error| format!("invalid certificate: {error}"))?;
        let names = parsed.subject_alternative_name().map_err(|error| format!("its names: {error}"))?;
        let names = names.iter().flat_map(|names| &names.value.general_names).filter_map(name).collect();
        let at = |seconds: i64| Timestamp(u64::try_from(seconds).unwrap_or(0).saturating_mul(SECOND_US));
        Ok(Self {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            serial: serial(parsed.raw_serial()),
            fingerprint: fingerprint(der),
            begins: at(parsed.validity().not_before.timestamp()),
            ends: at(parsed.validity().not_after.timestamp()),
            names,
            is_authority: parsed.is_ca(),
        })
    }

    /// Why it is invalid at that time, if it is.
    #[must_use]
    pub fn invalid_at(&self, time: Timestamp) -> Option<String> {
        let Self { begins, ends, .. } = self;
        match () {
            () if *ends <= time => Some(format!("expired at {ends}")),
            () if *begins > time => Some(format!("is not valid before {begins}")),
            () => None,
        }
    }
}

/// Refuses a new certificate that has expired, or is not valid yet, in the place of one that is valid: all would reject it.
/// The first of each list is a node's own one.
///
/// # Errors
/// Which of the two it is.
pub(super) fn refuse_invalid(before: &[Certificate], now: &[Certificate]) -> Result<(), String> {
    let clock = Timestamp(UnixTime::now().as_secs().saturating_mul(SECOND_US));
    let was_valid = before.first().is_some_and(|one| one.invalid_at(clock).is_none());
    match now.first().and_then(|one| Some((one, one.invalid_at(clock)?))) {
        Some((Certificate { subject, serial, .. }, what)) if was_valid => {
            Err(format!("the certificate of {subject} with the serial {serial} {what}"))
        }
        Some(_) | None => Ok(()),
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(four) => Some(std::net::IpAddr::from(four).to_string()),
            Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|all| std::net::IpAddr::from(all).to_string()),
        },
        GeneralName::OtherName(..)
        | GeneralName::RFC822Name(_)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::URI(_)
        | GeneralName::RegisteredID(_)
        | GeneralName::Invalid(..) => None,
    }
}

/// A serial as text. A leading zero byte, which only says that the number is positive, is left out.
fn serial(bytes: &[u8]) -> String {
    let digits = hex(bytes);
    let trimmed = digits.trim_start_matches('0');
    if trimmed.len() % 2 == 1 { format!("0{trimmed}") } else { trimmed.to_owned() }
}

fn fingerprint(der: &[u8]) -> String {
    hex(&Sha256::digest(der))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digits of a SHA-256, and the most digits of a serial (RFC 5280, 4.1.2.2), which are also those of a SHA-1.
const SHA256_DIGITS: usize = 64;
const SERIAL_DIGITS_MAX: usize = 40;

/// Revoked certificates, by their fingerprint or their serial.
///
/// `openssl x509 -fingerprint` prints a SHA-1, and a serial may have as many digits. So an entry of this length counts as
/// both: an operator must not believe that a certificate is revoked that is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked(Vec<String>);

/// How many entries of the list of revoked certificates match one that this node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevokedCount {
    /// The entries of the list.
    pub entries: usize,
    /// Those that match a certificate of this node, or one that another node has shown since the start.
    pub matching: usize,
}

impl Revoked {
    /// Reads a list: one fingerprint or serial a line, in hexadecimal digits, with or without colons. What follows a `#`
    /// is a comment.
    ///
    /// # Errors
    /// The first line that can match no certificate.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut revoked = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let entry = line.split('#').next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            let digits: String = entry.chars().filter(|char| *char != ':').collect::<String>().to_lowercase();
            let trimmed = digits.trim_start_matches('0');
            let is_serial = (1..=SERIAL_DIGITS_MAX).contains(&trimmed.len());
            let is_fingerprint = [SHA256_DIGITS, SERIAL_DIGITS_MAX].contains(&digits.len());
            if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) || !(is_serial || is_fingerprint) {
                return Err(format!(
                    "line {number}: `{entry}` matches no certificate; expected is a serial, a SHA-256 or a SHA-1, in \
                     hexadecimal digits, as `concord cert show` prints them"
                ));
            }
            revoked.push(digits);
        }
        Ok(Self(revoked))
    }

    /// Whether a certificate is in the list. One that can't be read is.
    pub(super) fn has(&self, der: &CertificateDer<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(names) = RevocableNames::of(der) else { return true };
        self.0.iter().any(|entry| names.has(entry))
    }

    /// How many entries match one of these certificates.
    pub(super) fn count<'a>(
        &self,
        known: impl IntoIterator<Item = &'a CertificateDer<'static>>,
    ) -> RevokedCount {
        let names: Vec<RevocableNames> = known.into_iter().filter_map(RevocableNames::of).collect();
        let matching = self.0.iter().filter(|entry| names.iter().any(|names| names.has(entry))).count();
        RevokedCount { entries: self.0.len(), matching }
    }
}

/// What an entry of the list may name a certificate by.
struct RevocableNames {
    serial: String,
    sha256: String,
    sha1: String,
}

impl RevocableNames {
    fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
        let sha1 = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, der);
        let serial = hex(parsed.raw_serial()).trim_start_matches('0').to_owned();
        Some(Self { serial, sha256: fingerprint(der), sha1: hex(sha1.as_ref()) })
    }

    fn has(&self, entry: &str) -> bool {
        entry == self.sha256 || entry == self.sha1 || entry.trim_start_matches('0') == self.serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SerialNumber};

    fn made(serial: &[u8]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["a.b".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.not_before = time::OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        params.not_after = time::OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_is_parsed() {
        let read = Certificate::parse(&made(&[0x0a, 0xbc])).unwrap();
        assert_eq!(read.serial, "0abc");
        assert_eq!(read.names, ["a.b", "127.0.0.1"]);
        assert_eq!((read.begins.0, read.ends.0), (1_700_000_000 * SECOND_US, 1_800_000_000 * SECOND_US));
        assert!(!read.is_authority && read.fingerprint.len() == 64);
        assert!(Certificate::parse(&CertificateDer::from(vec![1, 2, 3])).is_err());
    }

    #[test]
    fn an_invalid_certificate_does_not_replace_a_valid_one() {
        let of = |begins, ends| {
            let parsed = Certificate::parse(&made(&[7])).unwrap();
            vec![Certificate { begins: Timestamp(begins), ends: Timestamp(ends), ..parsed }]
        };
        let (valid, ended, later) = (of(0, u64::MAX), of(0, 7), of(u64::MAX - 1, u64::MAX));
        assert_eq!(refuse_invalid(&valid, &valid), Ok(()));
        assert!(refuse_invalid(&valid, &ended).unwrap_err().contains("expired at"));
        assert!(refuse_invalid(&valid, &later).unwrap_err().contains("not valid before"));
        // Nothing is lost then.
        assert_eq!(refuse_invalid(&ended, &later), Ok(()));
        assert_eq!(refuse_invalid(&ended, &valid), Ok(()));
    }

    #[test]
    fn a_certificate_is_revoked_by_serial_or_fingerprint() {
        let (one, other) = (made(&[0x8a, 0xbc]), made(&[7]));
        let fingerprint = Certificate::parse(&one).unwrap().fingerprint;
        for list in ["00:8A:BC # lost", "8abc", "008abc", &fingerprint, &fingerprint.to_uppercase()] {
            let revoked = Revoked::parse(&format!("# a comment\n\n{list}\n")).unwrap();
            assert!(revoked.has(&one) && !revoked.has(&other), "{list}");
        }
        assert!(Revoked::parse("07").unwrap().has(&other) && Revoked::parse("7").unwrap().has(&other));
        assert!(!Revoked::parse("").unwrap().has(&one));
        // A SHA-512 and a cut SHA-256 match nothing.
        let (longer, cut) = ("a".repeat(128), &fingerprint[..63]);
        for wrong in ["x", "12 34", "0", "ab\nnode-3", &longer, cut] {
            assert!(Revoked::parse(wrong).is_err(), "{wrong}");
        }
        // As `openssl x509 -fingerprint` prints it.
        let sha1 = hex(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &one).as_ref());
        let pairs: Vec<&str> = (0..20).map(|byte| &sha1[2 * byte..2 * byte + 2]).collect();
        let revoked = Revoked::parse(&pairs.join(":").to_uppercase()).unwrap();
        assert!(revoked.has(&one) && !revoked.has(&other));
        let list = Revoked::parse(&format!("{sha1}\n07\n99\n{}", "b".repeat(64))).unwrap();
        assert_eq!(list.count([&one, &other]), RevokedCount { entries: 4, matching: 2 });
        assert_eq!(list.count([]), RevokedCount { entries: 4, matching: 0 });
        assert!(Revoked::parse("07").unwrap().has(&CertificateDer::from(vec![1])), "what can't be read");
    }
}
