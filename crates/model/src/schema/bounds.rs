//! `minimum`, `maximum`, their exclusive forms and `multipleOf`, exact for all numbers.
//!
//! The validator's own keywords compare some pairs as doubles: a decimal with an integer beyond 2⁵³, or an integer with
//! a bound that has a decimal point. Here all pairs are compared as [`Decimal`].
//!
//! **Invariant:** the result depends on the values of the two numbers, and not on how they are written.

use std::cmp::Ordering;

use jsonschema::{Keyword, ValidationError, ValidationOptions, paths::Location};
use serde_json::{Map, Number, Value};

use crate::decimal::Decimal;

/// A keyword that bounds a number.
#[derive(Debug, Clone, Copy)]
enum Relation {
    Minimum,
    ExclusiveMinimum,
    Maximum,
    ExclusiveMaximum,
    MultipleOf,
}

/// A keyword with its value in the schema.
struct NumberBound {
    relation: Relation,
    limit: Number,
    decimal: Decimal,
}

/// A value that is not a number, such as the boolean `exclusiveMinimum` of draft 4. It bounds nothing.
struct NoBound;

/// The keywords, by name.
const KEYWORDS: [(&str, Relation); 5] = [
    ("minimum", Relation::Minimum),
    ("exclusiveMinimum", Relation::ExclusiveMinimum),
    ("maximum", Relation::Maximum),
    ("exclusiveMaximum", Relation::ExclusiveMaximum),
    ("multipleOf", Relation::MultipleOf),
];

/// Replaces these keywords of the validator with the exact ones.
pub(super) fn configure(options: ValidationOptions<'static>) -> ValidationOptions<'static> {
    KEYWORDS.iter().fold(options, |options, (name, relation)| {
        options.with_keyword(*name, |map, value, _: Location| Ok(keyword(relation.beside(map), value)))
    })
}

/// Whether this is one of these keywords. The text of its error does not contain the number that breaks it.
pub(super) fn is_bound(keyword: &str) -> bool {
    KEYWORDS.iter().any(|(name, _)| *name == keyword)
}

impl Relation {
    /// The relation. In draft 4, the exclusive keyword with the value `true` makes the inclusive bound beside it
    /// exclusive.
    fn beside(self, map: &Map<String, Value>) -> Self {
        let is_true = |keyword| map.get(keyword) == Some(&Value::Bool(true));
        match self {
            Self::Minimum if is_true("exclusiveMinimum") => Self::ExclusiveMinimum,
            Self::Maximum if is_true("exclusiveMaximum") => Self::ExclusiveMaximum,
            Self::Minimum
            | Self::ExclusiveMinimum
            | Self::Maximum
            | Self::ExclusiveMaximum
            | Self::MultipleOf => self,
        }
    }
}

fn keyword(relation: Relation, value: &Value) -> Box<dyn for<'i> Keyword<'i>> {
    match value {
        Value::Number(limit) => {
            let decimal = Decimal::of(limit.as_str());
            Box::new(NumberBound { relation, limit: limit.clone(), decimal })
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Box::new(NoBound)
        }
    }
}

impl NumberBound {
    fn holds(&self, number: &Number) -> bool {
        // Almost all bounds and numbers are short integers.
        let order = || match (number.as_i64(), self.limit.as_i64()) {
            (Some(number), Some(limit)) => number.cmp(&limit),
            _ => Decimal::of(number.as_str()).cmp(&self.decimal),
        };
        match self.relation {
            Relation::Minimum => order() != Ordering::Less,
            Relation::ExclusiveMinimum => order() == Ordering::Greater,
            Relation::Maximum => order() != Ordering::Greater,
            Relation::ExclusiveMaximum => order() == Ordering::Less,
            Relation::MultipleOf => match (number.as_u64(), self.limit.as_u64()) {
                (Some(number), Some(limit)) if limit > 0 => number % limit == 0,
                _ => Decimal::of(number.as_str()).is_multiple_of(&self.decimal),
            },
        }
    }

    /// The violation, without the number in front of it.
    fn text(&self) -> String {
        let what = match self.relation {
            Relation::Minimum => "less than the minimum of",
            Relation::ExclusiveMinimum => "less than or equal to the minimum of",
            Relation::Maximum => "greater than the maximum of",
            Relation::ExclusiveMaximum => "greater than or equal to the maximum of",
            Relation::MultipleOf => "not a multiple of",
        };
        format!("is {what} {}", self.limit)
    }
}

impl<'i> Keyword<'i> for NumberBound {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom(self.text())) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        instance.as_number().is_none_or(|number| self.holds(number))
    }
}

impl<'i> Keyword<'i> for NoBound {
    fn validate(&self, _: &'i Value) -> Result<(), ValidationError<'i>> {
        Ok(())
    }

    fn is_valid(&self, _: &'i Value) -> bool {
        true
    }
}
