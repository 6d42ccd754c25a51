//! JSON values as text of other formats. The API responds in them, and the command line and the agent write files.
//!
//! | format | module |
//! |---|---|
//! | YAML, for readers of YAML 1.1 and 1.2 | [`yaml`] |
//! | Java properties; names of nested values as Spring reads them | [`properties`] |
//!
//! **Invariant:** no value is omitted or rounded silently.

pub mod properties;
pub mod yaml;
