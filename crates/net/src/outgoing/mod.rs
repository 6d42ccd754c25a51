//! Calls from nodes to identity providers.

pub mod address;
