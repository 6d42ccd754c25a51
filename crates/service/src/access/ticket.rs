//! Tickets: what lets a browser open the stream of the changes of flags, and nothing else.
//!
//! `EventSource` sends no header, so the address of the stream has to let its client in. A ticket is not the access key:
//! it is `<key id>.<revision of the secret>.<day>.<MAC>`, and the MAC, keyed with the stored digest of the secret, is over
//! the definition and the day. It is good for one definition, on its day and the next one, and only while the key is. It
//! needs no state: every node that knows the key can check it, and it is the same all day.
//!
//! **Invariants:** a ticket opens streams that say when to fetch again, and no other request takes one. It ends with the
//! secret that it was made from, and reveals nothing of it.

use std::sync::Arc;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::Authentication;
use crate::{Judgement, Principal};
use concord_model::{
    access_key::{KeyId, KeySecret},
    limits::KEYS_UNCONFIRMED_MAX,
    time::Timestamp,
};

/// Microseconds of a day.
const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;
/// Bytes of the MAC in a ticket.
const MAC_BYTES: usize = 16;
/// Bytes above which a text is no ticket.
const TICKET_BYTES_MAX: usize = 128;

fn today() -> u64 {
    crate::now().0 / DAY_US
}

fn mac(secret: &KeySecret, definition: &str, day: u64) -> Hmac<Sha256> {
    let keyed = Hmac::<Sha256>::new_from_slice(&secret.sha256).expect("a key of any length is taken");
    // What it is for comes first: no other MAC is made with this key.
    keyed.chain_update(b"concord flag events\0").chain_update(day.to_be_bytes()).chain_update(definition)
}

fn unhex(text: &str) -> Option<[u8; MAC_BYTES]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

impl Authentication {
    /// A ticket of today for the flags of a definition; `None` for the root key, which has no place in a page.
    #[must_use]
    pub fn ticket(&self, principal: &Principal, definition: &str) -> Option<String> {
        let key = principal.key()?;
        let secret = key.secrets.iter().find(|secret| secret.made == principal.secret)?;
        let day = today();
        let mac = mac(secret, definition, day).finalize().into_bytes();
        Some(format!("{}.{}.{day}.{}", key.id.as_str(), secret.made, HEXLOWER.encode(mac.get(..MAC_BYTES)?)))
    }

    /// The owner of a ticket for a definition.
    #[must_use]
    pub fn judge_ticket(&self, definition: &str, ticket: &str) -> Judgement {
        let is_recent = self.freshness.staleness().is_some_and(|age| age < KEYS_UNCONFIRMED_MAX);
        if !is_recent || self.cx.has_left() {
            return Judgement::Unsettled;
        }
        self.owner_of_ticket(definition, ticket, today()).map_or(Judgement::NotValid, Judgement::Valid)
    }

    fn owner_of_ticket(&self, definition: &str, ticket: &str, today: u64) -> Option<Principal> {
        if ticket.len() > TICKET_BYTES_MAX {
            return None;
        }
        let mut parts = ticket.split('.');
        let (id, made, day, given) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let (id, made, day) = (KeyId::parse(id)?, made.parse().ok()?, day.parse::<u64>().ok()?);
        // Of tomorrow: the clocks of nodes differ.
        if parts.next().is_some() || !(today.saturating_sub(1)..=today + 1).contains(&day) {
            return None;
        }
        let state = self.cx.applied();
        let key = state.access_key(&id)?;
        let at = if key.has_end() { self.clock.log_time(&state) } else { Timestamp(0) };
        let secret = key.secret_at(made, at)?;
        // Compared in constant time.
        mac(secret, definition, day).verify_truncated_left(&unhex(given)?).ok()?;
        if !key.is_valid_at(at) {
            return None;
        }
        self.note_use(key);
        Some(Principal::of_key(Arc::clone(key), made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_of_one_secret_definition_and_day() {
        let secret = |byte| KeySecret { sha256: [byte; 32], made: 7, until: None, is_own: false };
        let text = |byte, definition: &str, day| {
            HEXLOWER.encode(&mac(&secret(byte), definition, day).finalize().into_bytes())
        };
        let one = text(1, "flags", 20_000);
        assert_eq!(one, text(1, "flags", 20_000));
        for other in [text(2, "flags", 20_000), text(1, "flagss", 20_000), text(1, "flags", 20_001)] {
            assert_ne!(one, other);
        }
        let given = unhex(&one[..2 * MAC_BYTES]).unwrap();
        assert!(mac(&secret(1), "flags", 20_000).verify_truncated_left(&given).is_ok());
        assert!(mac(&secret(1), "flagss", 20_000).verify_truncated_left(&given).is_err());
        for wrong in ["", "00", &one, &"g".repeat(2 * MAC_BYTES), &"é".repeat(MAC_BYTES)] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }
}
