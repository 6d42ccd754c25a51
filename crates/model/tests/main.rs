//! What this crate makes of schemas that others wrote, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `real_schemas` | are the schemas that libraries write definitions as they are, and are their paths found? |
//! | `schema_suite` | are the verdicts those of the JSON Schema test suite? |

#[cfg(test)]
mod real_schemas;
#[cfg(test)]
mod schema_suite;
