//! Signatures of messages, as Standard Webhooks has them: HMAC-SHA256 over the id, the time of the attempt and the body.
//!
//! **Invariants:** a message has a signature by each secret, so that a secret can be replaced without a moment in which
//! either side is wrong. No secret is printed.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// What a secret begins with in its file.
const PREFIX: &str = "whsec_";
/// Bytes of a secret, by the specification.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Secrets of a file: each adds 48 bytes to a header.
const SECRETS_MAX: usize = 16;

/// The secrets that messages are signed with.
pub(super) struct Secrets(Vec<Hmac<Sha256>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// The secrets in a text, one in each line; an error names the line and not what is in it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let secret = |(number, line): (usize, &str)| {
            let bytes = line.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok());
            let bytes = bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len()));
            let mac = bytes.and_then(|bytes| Hmac::new_from_slice(&bytes).ok());
            mac.ok_or_else(|| {
                let (least, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
                format!("line {number}: expected `{PREFIX}` and {least} to {most} bytes as base64")
            })
        };
        let secrets: Vec<_> = lines.map(secret).collect::<Result<_, _>>()?;
        match secrets.len() {
            1..=SECRETS_MAX => Ok(Self(secrets)),
            count => Err(format!("it has {count} secrets; expected 1 to {SECRETS_MAX}, one in each line")),
        }
    }

    /// The signatures of a message, separated by spaces. The time is that of the attempt, in seconds.
    pub(super) fn sign(&self, id: &str, at: u64, body: &[u8]) -> String {
        let sign = |mac: &Hmac<Sha256>| {
            let mac = mac.clone().chain_update(format!("{id}.{at}.")).chain_update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        self.0.iter().map(sign).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    #[test]
    fn a_signature_is_the_one_of_the_specification() {
        // The vectors of the official libraries.
        let (id, body) =
            ("msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", r#"{"email":"test@example.com","username":"test_user"}"#);
        let first = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";
        assert_eq!(Secrets::parse(SECRET).unwrap().sign(id, 1_649_367_553, body.as_bytes()), first);
        let other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#);
        let second = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(Secrets::parse(other).unwrap().sign(id, 1_614_265_330, body.as_bytes()), second);
        // Both, while one takes the place of the other.
        let both = Secrets::parse(&format!("# the new one\n{SECRET}\n\n {other}\n")).unwrap();
        let signed = both.sign(id, 1_614_265_330, body.as_bytes());
        assert!(signed.starts_with("v1,") && signed.ends_with(&format!(" {second}")), "{signed}");
    }

    #[test]
    fn a_secret_that_is_wrong_is_named_by_its_line() {
        let short = format!("{PREFIX}{}", STANDARD.encode([7; 23]));
        let long = format!("{PREFIX}{}", STANDARD.encode([7; 65]));
        for bad in ["C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_!", &short, &long] {
            let error = Secrets::parse(&format!("{SECRET}\n{bad}")).unwrap_err();
            assert!(error.starts_with("line 2: expected `whsec_`") && !error.contains(bad), "{error}");
        }
        assert!(Secrets::parse("# none\n").unwrap_err().contains("0 secrets"));
        assert!(Secrets::parse(&format!("{SECRET}\n").repeat(17)).unwrap_err().contains("17 secrets"));
        assert_eq!(format!("{:?}", Secrets::parse(SECRET).unwrap()), "1 secrets");
    }
}
