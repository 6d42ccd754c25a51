//! The operators that flagd adds to `JsonLogic`.
//!
//! | operator | what it gives |
//! |---|---|
//! | `fractional` | a variant, drawn by the hash of who reads, in proportion to weights |
//! | `sem_ver` | whether one version is before, after, or compatible with another |
//! | `starts_with`, `ends_with` | whether a text begins or ends with another |
//!
//! What they can't use gives `null`, and a flag whose rule gives `null` has its default variant.

use datalogic_rs::{
    ArenaExt as _, CustomOperator, DataValue, EngineBuilder, bumpalo::Bump, operator::EvalContext,
};
use semver::Version;

use super::context::{FLAGD, TARGETING_KEY};

/// The greatest sum of weights, as flagd has it.
const WEIGHTS_MAX: u64 = i32::MAX as u64;
/// Characters of a version that is compared, as the library of Node has it.
const VERSION_BYTES_MAX: usize = 256;
/// The greatest number within a version, as the library of Node has it.
const VERSION_NUMBER_MAX: u64 = (1 << 53) - 1;

/// Adds them to an engine.
pub(crate) fn add(builder: EngineBuilder) -> EngineBuilder {
    builder
        .add_operator("fractional", Fractional)
        .add_operator("sem_ver", SemVer)
        .add_operator("starts_with", Affix { is_held: |text, affix| text.starts_with(affix) })
        .add_operator("ends_with", Affix { is_held: |text, affix| text.ends_with(affix) })
}

/// A number as JavaScript writes it in a text: `2`, `2.5`. It is how a number becomes the name of a variant.
pub(crate) fn number_text(number: f64) -> String {
    // The shortest digits, without `.0`. Numbers beyond 1e21 have an exponent in JavaScript; no variant is named so.
    format!("{number}")
}

/// Draws a variant: `[[variant, weight]…]`, or the same after a text to hash in place of the flag's key and the
/// `targetingKey`.
struct Fractional;

/// What is drawn, and how often in proportion to the others.
struct Bucket<'a> {
    variant: &'a DataValue<'a>,
    weight: u64,
}

impl<'a> Bucket<'a> {
    fn new(entry: &'a DataValue<'a>) -> Option<Self> {
        let (variant, weight) = match entry.as_array()? {
            [variant] => (variant, 1),
            [variant, weight] => (variant, whole(weight)?),
            _ => return None,
        };
        let is_scalar = matches!(
            variant,
            DataValue::Null | DataValue::Bool(_) | DataValue::Number(_) | DataValue::String(_)
        );
        is_scalar.then_some(Self { variant, weight })
    }
}

/// A weight: a whole number, of which a negative one counts as 0.
fn whole(value: &DataValue<'_>) -> Option<u64> {
    let DataValue::Number(_) = value else { return None };
    match value.as_i64() {
        Some(number) => Some(u64::try_from(number).unwrap_or(0)),
        // Beyond 64 bits: more than the sum may be.
        None => value
            .as_f64()
            .filter(|number| number.fract() == 0.0)
            .map(|number| if number < 0.0 { 0 } else { u64::MAX }),
    }
}

/// The member of an object.
fn member<'a>(object: &'a DataValue<'a>, name: &str) -> Option<&'a DataValue<'a>> {
    object.as_object()?.iter().rev().find(|(own, _)| *own == name).map(|(_, value)| value)
}

/// What is hashed when the rule does not say it: the flag and who reads.
fn seed(root: &DataValue<'_>) -> Option<String> {
    let flag = member(member(root, FLAGD)?, "flagKey")?.as_str()?;
    let reader = member(root, TARGETING_KEY)?.as_str().filter(|reader| !reader.is_empty())?;
    Some(format!("{flag}{reader}"))
}

/// The bucket that this text falls into.
fn draw<'a>(text: &str, entries: &[&'a DataValue<'a>]) -> Option<&'a DataValue<'a>> {
    let buckets: Vec<Bucket<'a>> = entries.iter().map(|entry| Bucket::new(entry)).collect::<Option<_>>()?;
    let total = buckets.iter().try_fold(0_u64, |sum, bucket| sum.checked_add(bucket.weight))?;
    if total > WEIGHTS_MAX {
        return None;
    }
    let hash = murmur3::murmur3_32(&mut text.as_bytes(), 0).ok()?;
    // Both are below 2^32, so the product fits.
    let place = (u64::from(hash) * total) >> 32;
    let mut end = 0;
    buckets.iter().find_map(|bucket| {
        end += bucket.weight;
        (place < end).then_some(bucket.variant)
    })
}

impl CustomOperator for Fractional {
    fn evaluate<'a>(
        &self,
        args: &[&'a DataValue<'a>],
        context: &mut EvalContext<'_, 'a>,
        arena: &'a Bump,
    ) -> datalogic_rs::Result<&'a DataValue<'a>> {
        let drawn = match args {
            [] => None,
            [DataValue::String(text), entries @ ..] => draw(text, entries),
            entries => seed(context.root_input()).and_then(|text| draw(&text, entries)),
        };
        Ok(drawn.unwrap_or_else(|| arena.null()))
    }
}

/// Compares versions: `[version, operator, version]`.
struct SemVer;

/// A version as people write it: `v` before it is allowed, `1` and `1.2` are completed.
fn version(value: &DataValue<'_>) -> Option<Version> {
    let text = match value {
        DataValue::String(text) => (*text).to_owned(),
        DataValue::Number(_) => number_text(value.as_f64()?),
        DataValue::Null | DataValue::Bool(_) | DataValue::Array(_) | DataValue::Object(_) => return None,
    };
    if text.len() > VERSION_BYTES_MAX {
        return None;
    }
    let bare = text.strip_prefix(['v', 'V']).unwrap_or(&text).trim();
    let bare = bare.strip_prefix('v').unwrap_or(bare);
    let is_short = bare.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let whole = match bare.matches('.').count() {
        0 if is_short => format!("{bare}.0.0"),
        1 if is_short => format!("{bare}.0"),
        _ => bare.to_owned(),
    };
    let parsed = Version::parse(&whole).ok()?;
    let numbers = [parsed.major, parsed.minor, parsed.patch];
    numbers.iter().all(|number| *number <= VERSION_NUMBER_MAX).then_some(parsed)
}

/// What the operator says of two versions.
fn compared(one: &Version, operator: &str, other: &Version) -> Option<bool> {
    let order = one.cmp_precedence(other);
    Some(match operator {
        "=" => order.is_eq(),
        "!=" => order.is_ne(),
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        ">=" => order.is_ge(),
        "^" => one.major == other.major,
        "~" => (one.major, one.minor) == (other.major, other.minor),
        _ => return None,
    })
}

impl CustomOperator for SemVer {
    fn evaluate<'a>(
        &self,
        args: &[&'a DataValue<'a>],
        _: &mut EvalContext<'_, 'a>,
        arena: &'a Bump,
    ) -> datalogic_rs::Result<&'a DataValue<'a>> {
        let [one, operator, other] = args else { return Ok(arena.null()) };
        let verdict = match (version(one), operator.as_str(), version(other)) {
            (Some(one), Some(operator), Some(other)) => compared(&one, operator, &other),
            _ => None,
        };
        Ok(verdict.map_or_else(|| arena.null(), |it| arena.bool(it)))
    }
}

/// Whether a text has another at one of its ends: `[text, other]`.
struct Affix {
    is_held: fn(&str, &str) -> bool,
}

impl CustomOperator for Affix {
    fn evaluate<'a>(
        &self,
        args: &[&'a DataValue<'a>],
        _: &mut EvalContext<'_, 'a>,
        arena: &'a Bump,
    ) -> datalogic_rs::Result<&'a DataValue<'a>> {
        let [text, affix] = args else { return Ok(arena.null()) };
        let (Some(text), Some(affix)) = (text.as_str(), affix.as_str()) else { return Ok(arena.null()) };
        Ok(arena.bool((self.is_held)(text, affix)))
    }
}
