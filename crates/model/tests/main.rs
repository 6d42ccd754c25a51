//! What this crate makes of schemas that others wrote, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `oracle` | are numbers compared as Python's fractions, and places in unions named as by its jsonschema, or better? |
//! | `real_schemas` | are the schemas that libraries write definitions as they are, and are their paths found? |
//! | `schema_suite` | are the verdicts those of the JSON Schema test suite? |

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod real_schemas;
#[cfg(test)]
mod schema_suite;
