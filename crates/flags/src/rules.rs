//! The engine of `JsonLogic`, and one evaluation of a rule.

use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

use concord_model::limits::FLAG_STEPS_MAX;
use datalogic_rs::{DataValue, Engine, ErrorKind, Logic, bumpalo::Bump, datavalue::OwnedDataValue};
use serde_json::Value;

use super::{
    context::{Context, FLAGD},
    cost,
    operators::{self, number_text},
};

/// The one engine: its operators never change.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    // Folding would evaluate parts of a rule while it is compiled, before its cost is known.
    operators::add(Engine::builder().with_constant_folding(false)).build()
});

/// A compiled rule.
#[derive(Debug)]
pub(crate) struct Rule {
    logic: Logic,
    /// From which its cost is computed.
    source: Value,
    /// The cost for contexts of up to 2^n steps, where it is known; 0 elsewhere.
    costs: [AtomicU64; SIZES],
    /// The memory that it takes, roughly.
    pub(crate) bytes: usize,
}

/// Bytes in memory for each byte of a rule's text: a value of a rule has some ten characters and takes some 300 bytes.
pub(crate) const BYTES_OF_TEXT: usize = 30;

/// Powers of two that the size of a context can have: a request has less than a megabyte.
const SIZES: usize = 21;

/// What a rule gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The name of a variant.
    Variant(String),
    /// `null`: the default variant.
    Nothing,
}

/// Why a rule gives nothing that can be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RuleError {
    /// It may take more steps than are left.
    Steps,
    /// An operator rejected its arguments; or the rule gave an array or an object.
    Evaluation(String),
}

impl Rule {
    /// Compiles a rule whose references are replaced.
    ///
    /// # Errors
    /// When it is no rule, or names an operator that there is not.
    pub(crate) fn compile(rule: Value) -> Result<Self, String> {
        let text = rule.to_string();
        if let Some(name) = unknown_operator(&rule) {
            return Err(format!("there is no operator `{name}`"));
        }
        let bytes = BYTES_OF_TEXT * text.len();
        let logic = ENGINE.compile(text.as_str()).map_err(|error| sentence(&error.kind).to_owned())?;
        Ok(Self { logic, source: rule, costs: std::array::from_fn(|_| AtomicU64::new(0)), bytes })
    }

    /// The most steps that an evaluation takes. Computed once for each power of two, because it takes as long as an
    /// evaluation.
    fn cost(&self, context: u64) -> u64 {
        let size = context.max(1).next_power_of_two();
        let Some(known) = self.costs.get(size.trailing_zeros() as usize) else {
            return u64::MAX;
        };
        match known.load(Ordering::Relaxed) {
            0 => {
                let cost = cost::of(&self.source, size).max(1);
                known.store(cost, Ordering::Relaxed);
                cost
            }
            cost => cost,
        }
    }

    /// The same for this context, whose members are copied for each evaluation.
    pub(crate) fn steps(&self, context: &Context) -> u64 {
        self.cost(context.size.saturating_add(ADDED_SIZE)).saturating_add(context.members.len() as u64)
    }

    /// Evaluates it for a flag, and takes what it costs from `steps`; that, too, if it is more than there is: to compute
    /// the cost takes as long.
    ///
    /// # Errors
    /// When it takes too long, or an operator rejects its arguments.
    pub(crate) fn evaluate(&self, frame: &Frame<'_>, key: &str, steps: &mut u64) -> Result<Given, RuleError> {
        if *steps == 0 {
            return Err(RuleError::Steps);
        }
        let cost = self.cost(frame.size).saturating_add(frame.members.len() as u64);
        let is_affordable = cost <= FLAG_STEPS_MAX.min(*steps);
        *steps = steps.saturating_sub(cost.min(FLAG_STEPS_MAX));
        if !is_affordable {
            return Err(RuleError::Steps);
        }
        let scratch = Bump::new();
        let data = frame.of(key, &scratch);
        let value = ENGINE.evaluate(&self.logic, data, &scratch);
        match value.map_err(|error| RuleError::Evaluation(sentence(&error.kind).to_owned()))? {
            DataValue::Null => Ok(Given::Nothing),
            DataValue::String(text) => Ok(Given::Variant((*text).to_owned())),
            DataValue::Bool(it) => Ok(Given::Variant(it.to_string())),
            DataValue::Number(number) => Ok(Given::Variant(match number.as_i64() {
                Some(integer) => integer.to_string(),
                None => number_text(number.as_f64()),
            })),
            DataValue::Array(_) | DataValue::Object(_) => {
                Err(RuleError::Evaluation("the rule gives an array or an object".to_owned()))
            }
        }
    }
}

/// Why the engine has no result. Its own texts show its internal values.
const fn sentence(kind: &ErrorKind) -> &'static str {
    match kind {
        // What it throws by itself is its "not a number".
        ErrorKind::Thrown(_) | ErrorKind::ArithmeticError(_) => {
            "an operator for numbers has got a value that is not a number"
        }
        ErrorKind::InvalidArguments(_)
        | ErrorKind::TypeError(_)
        | ErrorKind::FormatError(_)
        | ErrorKind::IndexOutOfBounds { .. } => "an operator can't use its arguments",
        ErrorKind::VariableNotFound(_) | ErrorKind::InvalidContextLevel(_) => {
            "the rule refers to a variable that there is not"
        }
        ErrorKind::InvalidOperator(_) => "there is no such operator",
        ErrorKind::ParseError(_) | ErrorKind::ConfigurationError(_) => {
            "the rule is malformed or nested too deep"
        }
        ErrorKind::Custom(_) => "the rule can't be evaluated",
        // The engine may get more kinds.
        _ => "the rule can't be evaluated",
    }
}

/// The first name of an operator that there is not. The engine would find it only in an evaluation that reaches it.
fn unknown_operator(rule: &Value) -> Option<&str> {
    match rule {
        Value::Array(items) => items.iter().find_map(unknown_operator),
        Value::Object(object) => {
            let (name, arguments) = object.iter().next()?;
            let is_known = ENGINE.has_custom_operator(name) || BUILT_IN.contains(&name.as_str());
            if is_known { unknown_operator(arguments) } else { Some(name) }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// The operators of `JsonLogic` that a rule may use: those of flagd's `targeting.json`, and a few that every engine has.
const BUILT_IN: [&str; 37] = [
    "var",
    "missing",
    "missing_some",
    "if",
    "?:",
    "==",
    "===",
    "!=",
    "!==",
    "!",
    "!!",
    "or",
    "and",
    ">",
    ">=",
    "<",
    "<=",
    "max",
    "min",
    "+",
    "-",
    "*",
    "/",
    "%",
    "map",
    "filter",
    "reduce",
    "all",
    "none",
    "some",
    "merge",
    "in",
    "cat",
    "substr",
    "val",
    "exists",
    "??",
];

/// A context in the form that the engine reads, for any number of flags.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    members: Vec<(&'a str, DataValue<'a>)>,
    time_s: i64,
    /// The steps of the context, and of what flagd adds.
    size: u64,
}

/// The steps of `$flagd`, whose longest text is a key of 255 bytes.
const ADDED_SIZE: u64 = 16;

impl<'a> Frame<'a> {
    pub(crate) fn new(context: &'a Context, time_s: i64, arena: &'a Bump) -> Self {
        let view = |(name, value): &'a (String, OwnedDataValue)| (name.as_str(), value.to_arena(arena));
        let size = context.size.saturating_add(ADDED_SIZE);
        Self { members: context.members.iter().map(view).collect(), time_s, size }
    }

    /// The data of one evaluation: the members of the context, and what flagd adds.
    fn of<'b>(&self, key: &str, arena: &'b Bump) -> DataValue<'b>
    where
        'a: 'b,
    {
        let key = DataValue::String(arena.alloc_str(key));
        let added = [("flagKey", key), ("timestamp", DataValue::from_i64(self.time_s))];
        let added = DataValue::Object(arena.alloc_slice_copy(&added));
        let members = self.members.iter().copied().chain([(FLAGD, added)]);
        DataValue::Object(arena.alloc_slice_fill_iter(members.collect::<Vec<_>>()))
    }
}
