//! What a text of a store without types may stand for, and which names and texts look like secrets.
//!
//! Only a text that a program would print for a number or a boolean gets that type: `5432`, `0.75`, `true`. Another way
//! to write one may be a version, a code or a word, so it stays a text, and the report says so.

/// What a text stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Boolean,
    Integer,
    Number,
    /// Nothing but itself.
    Plain,
    /// Programs differ; the reason.
    Doubtful(&'static str),
}

/// Up to here all programs read an integer exactly, also those whose numbers are 64-bit floats.
const INTEGER_MAX: u64 = (1 << 53) - 1;

/// What a text stands for.
pub(super) fn meaning(text: &str) -> Meaning {
    let trimmed = text.trim();
    if trimmed.len() != text.len() {
        return match meaning(trimmed) {
            Meaning::Plain => Meaning::Plain,
            Meaning::Doubtful(reason) if trimmed.starts_with(['{', '[']) => Meaning::Doubtful(reason),
            Meaning::Boolean | Meaning::Integer | Meaning::Number | Meaning::Doubtful(_) => {
                Meaning::Doubtful("there are spaces or line ends around a number, a boolean or null")
            }
        };
    }
    match text.to_ascii_lowercase().as_str() {
        "true" | "false" if text.starts_with(['t', 'f']) && !text.contains(char::is_uppercase) => {
            return Meaning::Boolean;
        }
        "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" => {
            return Meaning::Doubtful("some programs read this word as a boolean");
        }
        "null" | "~" => return Meaning::Doubtful("some programs read this as null"),
        _ => {}
    }
    if text.starts_with(['{', '[']) {
        return Meaning::Doubtful("it begins as JSON does, and is not JSON");
    }
    number(text)
}

fn number(text: &str) -> Meaning {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) =
        digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    if !is_digits(whole) || fraction.is_some_and(|fraction| !is_digits(fraction)) {
        return if is_other_number(text) {
            Meaning::Doubtful("some programs read this as a number")
        } else {
            Meaning::Plain
        };
    }
    if whole.len() > 1 && whole.starts_with('0') {
        return Meaning::Doubtful("it has leading zeros, which a number loses");
    }
    match fraction {
        None if digits == "0" && text.starts_with('-') => Meaning::Doubtful("it is a zero with a sign"),
        None if whole.parse().is_ok_and(|value: u64| value <= INTEGER_MAX) => Meaning::Integer,
        None => Meaning::Doubtful("it is a number beyond 2^53, which many programs round"),
        // A version, such as 1.10, is no number.
        Some(fraction) if fraction.ends_with('0') => {
            Meaning::Doubtful("it ends with a zero after the point, which a number loses")
        }
        Some(_) if text.parse().is_ok_and(|value: f64| value.to_string() == text) => Meaning::Number,
        Some(_) => Meaning::Doubtful("it is a number with more digits than many programs keep"),
    }
}

/// Whether some program reads a text as a number that is written in another way.
fn is_other_number(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let has_digits = |text: &str, radix: u32| {
        text.starts_with(|first: char| first.is_digit(radix))
            && text.chars().all(|digit| digit.is_digit(radix) || digit == '_')
    };
    let with_radix = [("0x", 16), ("0X", 16), ("0o", 8), ("0b", 2)];
    let is_name =
        matches!(bare.trim_start_matches('.').to_ascii_lowercase().as_str(), "inf" | "nan" | "infinity");
    let is_float = bare.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && bare.replace('_', "").parse::<f64>().is_ok();
    let mut prefixed =
        with_radix.iter().filter_map(|(prefix, radix)| Some((bare.strip_prefix(prefix)?, *radix)));
    is_name || is_float || prefixed.any(|(digits, radix)| has_digits(digits, radix))
}

/// Whether YAML 1.1, unlike 1.2, takes a plain text for a date or for a number to the base of 60.
pub(super) fn is_date_or_sexagesimal(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let date = text.split(['T', 't', ' ']).next().unwrap_or(text);
    let parts: Vec<&str> = date.split('-').collect();
    let is_date = parts.len() == 3 && parts[0].len() == 4 && parts.iter().all(|part| is_number(part));
    let parts: Vec<&str> = text.strip_prefix(['+', '-']).unwrap_or(text).split(':').collect();
    is_date || (parts.len() > 1 && parts.iter().all(|part| is_number(part)))
}

/// Whether a field's name says that its value is a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    const ENDS: [&str; 16] = [
        "password",
        "passwords",
        "passwd",
        "pwd",
        "passphrase",
        "secret",
        "secrets",
        "token",
        "credential",
        "credentials",
        "apikey",
        "accesskey",
        "secretkey",
        "privatekey",
        "encryptionkey",
        "connectionstring",
    ];
    let bare: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    bare == "pass" || ENDS.iter().any(|end| bare.ends_with(end))
}

/// Whether a text is a secret whatever its name is: a private key, or a URL with a password.
pub(super) fn is_secret_text(text: &str) -> bool {
    let has_password = |(_, rest): (&str, &str)| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
    };
    let is_private_key = text
        .find("-----BEGIN ")
        .is_some_and(|at| text[at..].lines().next().is_some_and(|line| line.contains("PRIVATE KEY")));
    is_private_key || text.split_once("://").is_some_and(has_password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_that_a_program_would_print_has_a_type() {
        for (texts, expected) in [
            (&["true", "false"][..], Meaning::Boolean),
            (&["0", "7", "-12", "5432", "9007199254740991"], Meaning::Integer),
            (&["0.5", "-1.25", "3.14159", "0.000001"], Meaning::Number),
            (
                &["", "a", "1.0.0", "10.0.0.1", "1 2", "5s", "-", ".", "1-2", "v1", "yes sir", "Infinite"],
                Meaning::Plain,
            ),
        ] {
            for text in texts {
                assert_eq!(meaning(text), expected, "{text}");
            }
        }
        for text in [
            "007",
            "-01",
            "00.5",
            "1e5",
            "1E-7",
            "1.5e3",
            "+1",
            "-0",
            ".5",
            "5.",
            "1.10",
            "2.0",
            "0x1F",
            "0o17",
            "0b1",
            "1_000",
            "9007199254740992",
            "12345678901234567890",
            "0.1234567890123456789",
            "yes",
            "No",
            "ON",
            "off",
            "y",
            "True",
            "FALSE",
            "null",
            "~",
            ".inf",
            "NaN",
            "42\n",
            " true",
            "{a}",
            "[section]",
            " {a: 1}",
        ] {
            assert!(matches!(meaning(text), Meaning::Doubtful(_)), "{text}: {:?}", meaning(text));
        }
    }

    #[test]
    fn names_and_texts_of_secrets_are_found() {
        for name in [
            "password",
            "DB_PASSWORD",
            "dbPassword",
            "api-key",
            "apiKey",
            "client_secret",
            "TOKEN",
            "secretKey",
            "pass",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["token_ttl", "max_tokens", "bypass", "passwordPolicy", "key", "secretary", "host"] {
            assert!(!is_secret_name(name), "{name}");
        }
        for text in ["postgres://a:b@h/d", "-----BEGIN RSA PRIVATE KEY-----\nx", "amqp://u:p@h1,h2"] {
            assert!(is_secret_text(text), "{text}");
        }
        for text in ["https://h/a:b@c", "http://u@h", "http://u:@h", "-----BEGIN CERTIFICATE-----", "a@b"] {
            assert!(!is_secret_text(text), "{text}");
        }
    }

    #[test]
    fn what_yaml_1_1_reads_otherwise_is_found() {
        for text in ["2026-11-22", "2026-11-22T10:00:00Z", "22:22", "1:30:00", "-1:30"] {
            assert!(is_date_or_sexagesimal(text), "{text}");
        }
        for text in ["1-2-3", "2026-11", "a:b", "10", "::1", "host:80"] {
            assert!(!is_date_or_sexagesimal(text), "{text}");
        }
    }
}
