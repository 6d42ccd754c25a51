//! A secret that was given as a setting or on the command line.
//!
//! **Invariant:** it is shown by nothing but [`Secret::expose`], and its memory is overwritten when it is freed.

use std::fmt;

use zeroize::Zeroizing;

/// A secret, which `Debug` does not show, and whose memory is overwritten when it is freed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(super) Zeroizing<String>);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
