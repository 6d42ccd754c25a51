//! The flags of a definition, compiled once, and their evaluation.

use std::{collections::BTreeMap, convert::Infallible, fmt};

use concord_model::limits::{FLAG_STEPS_MAX, FLAGS_STEPS_MAX};
use datalogic_rs::bumpalo::Bump;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    SHARED_KEY,
    context::Context,
    definition::{self, Flag, Unusable, primitives},
    references::SharedRules,
    rules::{BYTES_OF_TEXT, Frame, Given, RuleError},
};

/// Why a value was chosen, as `OpenFeature` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The flag has no rule.
    Static,
    /// The rule gave nothing.
    Default,
    /// The rule gave the variant.
    TargetingMatch,
    /// The flag is disabled.
    Disabled,
}

impl Reason {
    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "STATIC",
            Self::Default => "DEFAULT",
            Self::TargetingMatch => "TARGETING_MATCH",
            Self::Disabled => "DISABLED",
        }
    }
}

impl ErrorCode {
    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlagNotFound => "FLAG_NOT_FOUND",
            Self::ParseError => "PARSE_ERROR",
            Self::InvalidContext => "INVALID_CONTEXT",
            Self::General => "GENERAL",
        }
    }
}

/// Why there is no value, as `OpenFeature` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// There is no such flag.
    FlagNotFound,
    /// The flag or the request can't be read.
    ParseError,
    /// The context can't be used.
    InvalidContext,
    /// The rule failed, took too many steps, or gave a variant that there is not.
    General,
}

/// What an evaluation gives.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// A variant.
    Value {
        /// As it is written in the flag.
        value: &'a RawValue,
        /// Its name.
        variant: &'a str,
        /// Why this one.
        reason: Reason,
    },
    /// The default that the program has for the flag.
    CodeDefault {
        /// Why.
        reason: Reason,
    },
    /// No value.
    Failure {
        /// Why.
        code: ErrorCode,
        /// In words.
        details: String,
    },
}

/// The outcome for one flag.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The key of the flag.
    pub key: &'a str,
    /// What it gives.
    pub outcome: Outcome<'a>,
    /// The metadata of the flag, if there is one.
    pub metadata: Option<&'a Map<String, Value>>,
    /// The metadata of the set, which that of the flag precedes.
    pub set_metadata: &'a Map<String, Value>,
}

/// A flag, or why it can't be used, and its metadata.
struct Entry {
    flag: Result<Flag, Unusable>,
    metadata: Map<String, Value>,
}

/// The flags of a definition.
pub struct FlagSet {
    flags: BTreeMap<String, Entry>,
    metadata: Map<String, Value>,
    bytes: usize,
}

/// What the flags of a definition share.
#[derive(Default, Deserialize)]
struct Shared {
    #[serde(default, rename = "$evaluators")]
    evaluators: Map<String, Value>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

impl FlagSet {
    /// Compiles configs without a limit on memory: see [`Self::try_compile`].
    pub fn compile<'a>(configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)> + Clone) -> Self {
        let Ok(set) = Self::try_compile(configs, |_| Ok::<(), Infallible>(()));
        set
    }

    /// Compiles configs: their keys and their data, which is `None` where a part of it is hidden from the client. A flag
    /// that can't be used does not spoil the others; its evaluation says why it can't.
    ///
    /// `reserve` is called with the bytes that each part takes in memory, at the latest when the part is there. How many
    /// they are is known only then, because flags can refer to the same shared rule. The parts exceed what was reserved
    /// by one flag at most.
    ///
    /// # Errors
    /// The first error of `reserve`.
    pub fn try_compile<'a, E>(
        configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)> + Clone,
        mut reserve: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Self, E> {
        let shared = configs.clone().into_iter().find(|(key, _)| *key == SHARED_KEY).map(|(_, data)| data);
        reserve(BYTES_OF_TEXT * shared.flatten().map_or(0, str::len))?;
        let (mut rules, metadata, broken) = match shared.map(|data| data.map(definition::object::<Shared>)) {
            None => (SharedRules::new(Map::new()), Map::new(), None),
            Some(Some(Ok(Shared { evaluators, metadata }))) => {
                (SharedRules::new(evaluators), primitives(Some(&metadata)), None)
            }
            Some(Some(Err(_))) => {
                let why = format!("`$evaluators` and `metadata` of `{SHARED_KEY}` must be objects");
                (SharedRules::new(Map::new()), Map::new(), Some(why))
            }
            // Flags that do not refer to them have no secret part.
            Some(None) => (SharedRules::hidden(), Map::new(), None),
        };
        let mut bytes = metadata_bytes(&metadata);
        let mut flags = BTreeMap::new();
        for (key, data) in configs.into_iter().filter(|(key, _)| *key != SHARED_KEY) {
            let entry = Entry::new(data, &mut rules, broken.as_deref());
            let of_entry = entry.bytes(key, data.unwrap_or_default());
            reserve(of_entry)?;
            bytes += of_entry;
            flags.insert(key.to_owned(), entry);
        }
        Ok(Self { flags, metadata, bytes })
    }

    /// The memory that it takes, roughly.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The metadata of the set.
    #[must_use]
    pub const fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// At most how many steps an evaluation takes: of one flag, or of all. One step more for each flag. What takes more
    /// than [`FLAG_STEPS_MAX`] is not computed to its end.
    #[must_use]
    pub fn steps(&self, key: Option<&str>, context: &Context) -> u64 {
        match key {
            Some(key) => self.flags.get(key).map_or(0, |entry| entry.steps(context)),
            None => {
                let mut sum: u64 = 0;
                for entry in self.flags.values() {
                    sum = sum.saturating_add(entry.steps(context));
                    if sum > FLAG_STEPS_MAX {
                        break;
                    }
                }
                sum
            }
        }
    }

    /// Evaluates one flag at a time in seconds since 1970.
    #[must_use]
    pub fn evaluate<'a>(&'a self, key: &'a str, context: &Context, time_s: i64) -> Evaluation<'a> {
        let Some((key, entry)) = self.flags.get_key_value(key) else {
            let details = format!("there is no flag `{key}`");
            let outcome = Outcome::Failure { code: ErrorCode::FlagNotFound, details };
            return Evaluation { key, outcome, metadata: None, set_metadata: &self.metadata };
        };
        let arena = Bump::new();
        let frame = Frame::new(context, time_s, &arena);
        let outcome = entry.evaluate(key, &frame, &mut { FLAGS_STEPS_MAX });
        Evaluation { key, outcome, metadata: Some(&entry.metadata), set_metadata: &self.metadata }
    }

    /// Evaluates the flags in the order of their keys, until `each` says that it wants no more.
    pub fn evaluate_all<'a>(
        &'a self,
        context: &Context,
        time_s: i64,
        mut each: impl FnMut(&Evaluation<'a>) -> bool,
    ) {
        let arena = Bump::new();
        let frame = Frame::new(context, time_s, &arena);
        let mut steps = FLAGS_STEPS_MAX;
        for (key, entry) in &self.flags {
            let outcome = entry.evaluate(key, &frame, &mut steps);
            let (metadata, set_metadata) = (Some(&entry.metadata), &self.metadata);
            if !each(&Evaluation { key, outcome, metadata, set_metadata }) {
                break;
            }
        }
    }
}

fn metadata_bytes(metadata: &Map<String, Value>) -> usize {
    metadata.iter().map(|(name, value)| 128 + name.len() + value.as_str().map_or(0, str::len)).sum()
}

/// Bytes in memory of a member of a flag's `variants`, in addition to its text.
const VARIANT_BYTES: usize = 128;

impl Entry {
    /// The flag of this text, which is `None` where a part of it is hidden; `broken` says why no flag of the set can be
    /// used.
    fn new(data: Option<&str>, rules: &mut SharedRules, broken: Option<&str>) -> Self {
        let (flag, metadata) = match data.map(|data| definition::parse(data, rules)) {
            None => (Err(Unusable::hidden()), Map::new()),
            Some(parsed) => (parsed.flag.map_err(Unusable::broken), parsed.metadata),
        };
        // A rule without references could be evaluated, but nobody would notice the broken part.
        let flag = broken.map_or(flag, |why| Err(Unusable::broken(why.to_owned())));
        Self { flag, metadata }
    }

    /// What it takes in memory, roughly: its variants and metadata, and its compiled rule.
    fn bytes(&self, key: &str, data: &str) -> usize {
        let of_flag = self.flag.as_ref().map_or(0, |flag| {
            let rule = flag.rule.as_ref().and_then(|rule| rule.as_ref().ok()).map_or(0, |rule| rule.bytes);
            VARIANT_BYTES * flag.variants.len() + rule
        });
        256 + key.len() + 2 * data.len() + metadata_bytes(&self.metadata) + of_flag
    }

    fn evaluate<'a>(&'a self, key: &str, frame: &Frame<'_>, steps: &mut u64) -> Outcome<'a> {
        match &self.flag {
            Err(why) => why.outcome(),
            Ok(flag) if !flag.is_enabled => Outcome::CodeDefault { reason: Reason::Disabled },
            Ok(flag) => flag.evaluate(key, frame, steps),
        }
    }

    fn steps(&self, context: &Context) -> u64 {
        let rule = self.flag.as_ref().ok().and_then(|flag| flag.rule.as_ref()?.as_ref().ok());
        rule.map_or(1, |rule| rule.steps(context).saturating_add(1))
    }
}

impl Flag {
    fn evaluate<'a>(&'a self, key: &str, frame: &Frame<'_>, steps: &mut u64) -> Outcome<'a> {
        let (given, reason) = match &self.rule {
            None => (Given::Nothing, Reason::Static),
            Some(Err(why)) => return why.outcome(),
            Some(Ok(rule)) => match rule.evaluate(frame, key, steps) {
                Ok(Given::Nothing) => (Given::Nothing, Reason::Default),
                Ok(given) => (given, Reason::TargetingMatch),
                Err(error) => return failure(error.text()),
            },
        };
        let name = match &given {
            Given::Variant(name) => name.as_str(),
            Given::Nothing => match &self.default {
                Some(name) => name,
                // Whether there is a rule or not: the value is the default of the program.
                None => return Outcome::CodeDefault { reason: Reason::Default },
            },
        };
        match self.variants.get_key_value(name) {
            Some((variant, value)) => Outcome::Value { value, variant, reason },
            None => failure(format!("the rule gives `{name}`, which is not in `variants`")),
        }
    }
}

const fn failure(details: String) -> Outcome<'static> {
    Outcome::Failure { code: ErrorCode::General, details }
}

impl Unusable {
    fn outcome(&self) -> Outcome<'static> {
        Outcome::Failure { code: self.code, details: self.details.clone() }
    }
}

impl RuleError {
    fn text(self) -> String {
        match self {
            Self::Steps => "the rule takes too many steps".to_owned(),
            Self::Evaluation(why) => format!("`targeting`: {why}"),
        }
    }
}

impl fmt::Debug for FlagSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlagSet").field("flags", &self.flags.len()).field("bytes", &self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_that_take_too_many_steps_leave_none_for_others() {
        let mut rule = json!("on");
        for _ in 0..8 {
            rule = json!({ "map": [{ "var": "x" }, rule] });
        }
        let flag = |rule: &Value| {
            json!({ "state": "ENABLED", "variants": { "on": true }, "defaultVariant": "on", "targeting": rule }).to_string()
        };
        let (costly, cheap) = (flag(&rule), flag(&json!({ "if": [true, "on"] })));
        let costly_count = FLAGS_STEPS_MAX / FLAG_STEPS_MAX;
        let mut configs: Vec<(String, &str)> =
            (0..2 * costly_count).map(|n| (format!("costly{n}"), costly.as_str())).collect();
        configs.extend([("a".to_owned(), cheap.as_str()), ("z".to_owned(), cheap.as_str())]);
        let set = FlagSet::compile(configs.iter().map(|(key, data)| (key.as_str(), Some(*data))));
        let context = Context::new(&json!({ "x": [1, 2, 3, 4, 5, 6, 7, 8] })).unwrap();
        assert!(set.steps(None, &context) > FLAG_STEPS_MAX);
        let mut has_value = Vec::new();
        set.evaluate_all(&context, 0, |one| {
            has_value.extend(matches!(one.outcome, Outcome::Value { .. }).then_some(one.key));
            true
        });
        assert_eq!(has_value, ["a"]);
        assert!(matches!(set.evaluate("z", &context, 0).outcome, Outcome::Value { .. }));
    }

    #[test]
    fn memory_is_reserved_for_each_flag_and_ends_the_work_when_it_is_too_much() {
        let shared =
            json!({ "$evaluators": { "long": { "in": [{ "var": "x" }, vec!["y"; 1000]] } } }).to_string();
        let flag = json!({ "state": "ENABLED", "variants": {}, "targeting": { "$ref": "long" } }).to_string();
        let keys: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
        let flags = keys.iter().map(|key| (key.as_str(), Some(flag.as_str())));
        let configs = flags.chain([(SHARED_KEY, Some(shared.as_str()))]);
        let (mut reserved, limit) = (0, 1 << 20);
        let mut reserve = |bytes: usize| {
            reserved += bytes;
            if reserved > limit { Err(reserved) } else { Ok(()) }
        };
        let too_much = FlagSet::try_compile(configs.clone(), &mut reserve).unwrap_err();
        let whole = FlagSet::compile(configs).bytes();
        // The flags have little text, and much with the shared rule in its places.
        assert!(
            100 * flag.len() < limit && whole > 2 * limit && too_much < 2 * limit,
            "{too_much} of {whole}"
        );
    }

    #[test]
    fn a_secret_that_flags_share_hides_those_that_refer_to_it() {
        let flag = |rule: Value| {
            json!({ "state": "ENABLED", "variants": { "on": true }, "targeting": rule }).to_string()
        };
        let (refers, own) = (flag(json!({ "$ref": "a" })), flag(json!({ "if": [true, "on"] })));
        let set = FlagSet::compile([
            ("own", Some(own.as_str())),
            ("refers", Some(refers.as_str())),
            (SHARED_KEY, None),
        ]);
        let context = Context::empty();
        assert!(matches!(set.evaluate("own", &context, 0).outcome, Outcome::Value { .. }));
        let Outcome::Failure { code, details } = set.evaluate("refers", &context, 0).outcome else {
            panic!("a part of it is hidden")
        };
        assert_eq!(code, ErrorCode::General);
        assert!(details.contains("`reveal`") && details.contains(SHARED_KEY), "{details}");
    }

    #[test]
    fn a_rule_that_fails_is_explained_in_a_sentence() {
        let rules = [
            json!({ "<": [[1], 2] }),
            json!({ "+": ["a", 1] }),
            json!({ "==": [1] }),
            json!({ "/": [1] }),
            json!({ "reduce": [1] }),
        ];
        for rule in rules {
            let flag = json!({ "state": "ENABLED", "variants": {}, "targeting": rule }).to_string();
            let set = FlagSet::compile([("f", Some(flag.as_str()))]);
            if let Outcome::Failure { details, .. } = set.evaluate("f", &Context::empty(), 0).outcome {
                assert!(
                    !details.contains(['(', '{', '[']) && !details.contains("Thrown"),
                    "{rule}: {details}"
                );
            }
        }
        let flag = json!({ "state": "ENABLED", "variants": {}, "targeting": { "<": [[1], 2] } }).to_string();
        let set = FlagSet::compile([("f", Some(flag.as_str()))]);
        let outcome = set.evaluate("f", &Context::empty(), 0).outcome;
        assert!(
            matches!(&outcome, Outcome::Failure { details, .. } if details.contains("is not a number")),
            "{outcome:?}"
        );
    }

    #[test]
    fn the_members_of_the_context_count_for_each_flag() {
        let flag = json!({ "state": "ENABLED", "variants": { "on": true }, "targeting": { "cat": "on" } })
            .to_string();
        let keys: Vec<String> = (0..2000).map(|n| format!("f{n}")).collect();
        let set = FlagSet::compile(keys.iter().map(|key| (key.as_str(), Some(flag.as_str()))));
        let members: Map<String, Value> = (0..20_000).map(|n| (n.to_string(), json!(0))).collect();
        let context = Context::new(&members.into()).unwrap();
        assert!(set.steps(Some("f0"), &context) >= 20_000);
        let mut values = 0;
        set.evaluate_all(&context, 0, |one| {
            values += u64::from(matches!(one.outcome, Outcome::Value { .. }));
            true
        });
        assert!((1..=FLAGS_STEPS_MAX / 20_000).contains(&values), "{values}");
    }
}
