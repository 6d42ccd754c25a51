//! The part of the crate `age` that `envelope` uses, for a program that is built without it. Nothing here succeeds.
//!
//! `age` and the 45 crates that only it needs are a twentieth of a first compilation, and a cluster to try needs none of
//! them.

use std::{
    convert::Infallible,
    io::{self, Write},
    marker::PhantomData,
};

/// Why nothing here succeeds.
pub(super) const MISSING: &str = "this program was built without the feature `encrypted-backups`";

pub(super) type DecryptError = &'static str;

pub(super) trait Recipient {}

pub(super) trait Identity {}

pub(super) mod x25519 {
    use std::{fmt, str::FromStr};

    pub(in super::super) struct Recipient;

    impl super::Recipient for Recipient {}

    impl FromStr for Recipient {
        type Err = &'static str;

        fn from_str(_: &str) -> Result<Self, Self::Err> {
            Err(super::MISSING)
        }
    }

    impl fmt::Display for Recipient {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(super::MISSING)
        }
    }

    pub(in super::super) struct Identity;

    impl super::Identity for Identity {}

    impl Identity {
        pub(in super::super) fn generate() -> Self {
            Self
        }

        pub(in super::super) fn to_public(&self) -> Recipient {
            Recipient
        }
    }

    impl FromStr for Identity {
        type Err = &'static str;

        fn from_str(_: &str) -> Result<Self, Self::Err> {
            Err(super::MISSING)
        }
    }
}

pub(super) struct Encryptor(Infallible);

impl Encryptor {
    pub(super) fn with_recipients<'a>(
        _: impl Iterator<Item = &'a dyn Recipient>,
    ) -> Result<Self, &'static str> {
        Err(MISSING)
    }

    pub(super) fn wrap_output<W: Write>(self, _: W) -> io::Result<stream::StreamWriter<W>> {
        match self.0 {}
    }
}

pub(super) mod stream {
    use super::{Infallible, PhantomData, Write, io};

    pub(in super::super) struct StreamWriter<W>(Infallible, PhantomData<W>);

    impl<W> StreamWriter<W> {
        pub(in super::super) fn finish(self) -> io::Result<W> {
            match self.0 {}
        }
    }

    impl<W> Write for StreamWriter<W> {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            match self.0 {}
        }

        fn flush(&mut self) -> io::Result<()> {
            match self.0 {}
        }
    }
}

pub(super) struct Decryptor(Infallible);

impl Decryptor {
    pub(super) fn new_buffered<R>(_: R) -> Result<Self, DecryptError> {
        Err(MISSING)
    }

    pub(super) fn decrypt<'a>(
        &self,
        _: impl Iterator<Item = &'a dyn Identity>,
    ) -> Result<io::Empty, DecryptError> {
        match self.0 {}
    }
}
