//! The wire format of the condition of a check.
//!
//! **Invariant:** as for all of `wire`: new variants go to the end.

use serde::{Deserialize, Serialize};

use super::{Text, json, text};
use crate::request::CheckCondition;
use concord_model::{
    document::{Document, DocumentError},
    record::Revision,
};

/// A [`CheckCondition`] with a text in place of the value.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum WireCondition<'a> {
    Exists(bool),
    Revision(Revision),
    Value { pointer: Text<'a>, equals: Option<Text<'a>> },
}

impl<'a> WireCondition<'a> {
    pub(super) fn of(condition: &'a CheckCondition) -> Self {
        match condition {
            CheckCondition::Exists(exists) => Self::Exists(*exists),
            CheckCondition::Revision(revision) => Self::Revision(*revision),
            CheckCondition::Value { pointer, equals } => {
                Self::Value { pointer: text(pointer), equals: equals.as_ref().map(json) }
            }
        }
    }

    pub(super) fn open(
        self,
        parse: impl Fn(Text<'_>) -> Result<Document, DocumentError>,
    ) -> Result<CheckCondition, DocumentError> {
        Ok(match self {
            Self::Exists(exists) => CheckCondition::Exists(exists),
            Self::Revision(revision) => CheckCondition::Revision(revision),
            Self::Value { pointer, equals } => CheckCondition::Value {
                pointer: pointer.into_owned(),
                equals: equals.map(parse).transpose()?,
            },
        })
    }
}
