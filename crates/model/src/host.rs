//! Names of hosts, as URLs of outgoing calls have them.
//!
//! **Invariant:** neither a resolver nor the C library takes a [`dns_name`] for an address.

/// Longest name (RFC 1035).
pub const HOST_BYTES_MAX: usize = 253;
/// Longest of its labels.
pub const HOST_LABEL_BYTES_MAX: usize = 63;

/// A DNS name in lower case; `None` for an address in any notation, and for what is no name.
///
/// The last label begins with a letter, as that of every top-level domain does. `inet_aton` reads only texts whose parts
/// begin with digits, so this excludes each notation of IPv4: `127.0.0.1`, `2130706433`, `0x7f.1`, `0177.1`.
#[must_use]
pub fn dns_name(text: &str) -> Option<String> {
    let is_label = |label: &str| {
        (1..=HOST_LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A dot at the end makes an empty label.
    let is_name = text.len() <= HOST_BYTES_MAX
        && text.split('.').all(is_label)
        && text.rsplit('.').next().is_some_and(|last| last.starts_with(|c: char| c.is_ascii_alphabetic()));
    is_name.then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_labels_and_no_address_is_one() {
        for name in ["localhost", "a-1.example", "xn--idp-8na.example", "1.2.3.4.example", "0x7f.a1"] {
            assert_eq!(dns_name(name).as_deref(), Some(name));
        }
        assert_eq!(dns_name("IDP.Example").as_deref(), Some("idp.example"));
        let label = "a".repeat(HOST_LABEL_BYTES_MAX);
        let long = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!((long.len(), dns_name(&long)), (HOST_BYTES_MAX, Some(long.clone())));
        for wrong in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "-a",
            "a-",
            "a_b",
            "ä",
            "%61.example",
            "*.example",
            "a b",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0X7F.0.0.0x1",
            "example.1",
            "example.0x1",
            "a.1b",
            "::1",
            "[::1]",
            &format!("{label}a"),
            &format!("{long}a"),
        ] {
            assert_eq!(dns_name(wrong), None, "{wrong}");
        }
    }
}
