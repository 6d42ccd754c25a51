//! Which violations are named where no branch of `anyOf` or `oneOf` accepts a value: those of the branch that fits best.
//!
//! The validator says of such a union only that nothing in it accepts the value, which for a large object tells nobody
//! what to correct. It carries what each branch has found, though. `best_match` of Python's jsonschema picks one of
//! these errors: the deepest one, unless two are equally good. Here a whole branch is picked, with all its violations.
//! The first of these criteria decides in which two branches differ:
//!
//! 1. A branch for a value of this type fits better than one for other types.
//! 2. A branch that allows the value of more tags (`"kind": {"const": "card"}`) fits better.
//! 3. A branch with a deeper violation fits better: it accepts what is above. The value of a member that may be a tag
//!    does not count as deep.
//! 4. A branch with fewer violations fits better.
//! 5. A branch whose deepest violation is deeper, of whatever kind, or comes first by its place.
//!
//! Where two branches are equally good in all of these, the union itself is named. Where no branch allows the value of a
//! tag, or the type, the violation lists what is allowed.
//!
//! **Invariant:** each error of the tree is looked at as often as unions are nested around it, which the compiled schema bounds.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, ops::ControlFlow};

use jsonschema::{
    JsonType, JsonTypeSet, ValidationError,
    error::{TypeKind, ValidationErrorKind},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tags::{DeclaredTags, UnionTags};

/// What is wrong at the place of an error.
pub(super) enum Finding<'e> {
    /// What the error says.
    Itself,
    /// The same, and where in the schema: one of all variants.
    InVariant,
    /// The value is none of those that the branches of a union allow.
    NoneOf(Vec<&'e Value>),
    /// The value has none of the types that the branches of a union are for.
    OtherType(Vec<Value>),
}

/// Is given each violation that is to be named, until it breaks.
pub(super) type Visitor<'v> = dyn FnMut(&ValidationError<'_>, &Finding<'_>) -> ControlFlow<()> + 'v;

/// Allowed values that are listed: more than a violation has room for.
const VALUES_MAX: usize = 100;

/// What a branch of a union has found.
type Branch = [ValidationError<'static>];

/// Which violations are named of a union that accepts a value in no branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedVariants {
    /// Those of the branch that fits best.
    #[default]
    BestFit,
    /// The violation of the union, then those of all branches. Each names its place in the schema.
    All,
}

/// Calls `visitor` for the violation of a union, and for those of all its branches.
pub(super) fn visit_all(error: &ValidationError<'_>, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
    visitor(error, &Finding::InVariant)?;
    let (ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context }) =
        error.kind()
    else {
        return ControlFlow::Continue(());
    };
    context.iter().flatten().try_for_each(|error| visit_all(error, visitor))
}

/// Calls `visitor` for each violation to be named of an error; `declared` are the tags of the schema. The recursion is
/// bounded by the nesting of unions, as the validator's own was.
pub(super) fn visit(
    error: &ValidationError<'_>,
    declared: &DeclaredTags,
    visitor: &mut Visitor<'_>,
) -> ControlFlow<()> {
    let (ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context }) =
        error.kind()
    else {
        return visitor(error, &Finding::Itself);
    };
    let place = error.instance_path().as_str();
    let of_type: Vec<&Branch> =
        context.iter().map(Vec::as_slice).filter(|branch| !is_of_other_type(branch, place)).collect();
    if of_type.is_empty() {
        return visitor(error, &types(context, place).map_or(Finding::Itself, Finding::OtherType));
    }
    let tags = Tags::of(&of_type, place, declared.at(error.schema_path().as_str()));
    let misses: Vec<Misses> = of_type.iter().map(|branch| tags.misses(branch)).collect();
    let least = misses.iter().min().copied().unwrap_or_default();
    let closest = of_type.iter().zip(&misses).filter(|(_, misses)| **misses == least);
    let closest: Vec<&Branch> = closest.map(|(branch, _)| *branch).collect();
    // A member of one value each is what all of them are told apart by, so it comes first.
    let unknown = (least.single > 0).then(|| tags.none_of(&of_type)).flatten();
    if let Some((error, values)) = unknown.or_else(|| tags.none_of(&closest)) {
        return visitor(error, &Finding::NoneOf(values));
    }
    let mut fits: Vec<(Fit<'_>, &Branch)> =
        closest.into_iter().map(|branch| (Fit::of(branch, place), branch)).collect();
    fits.sort_by(|(one, _), (other, _)| one.cmp(other));
    match fits.as_slice() {
        [(best, _), (second, _), ..] if best == second => visitor(error, &Finding::Itself),
        [(_, branch), ..] => branch.iter().try_for_each(|error| visit(error, declared, visitor)),
        [] => visitor(error, &Finding::Itself),
    }
}

/// Whether a branch is for other types than that of the value at `place`.
fn is_of_other_type(branch: &Branch, place: &str) -> bool {
    branch.iter().filter(|error| error.instance_path().as_str() == place).any(|error| match allowed(error) {
        Some(values) => {
            values.iter().all(|value| JsonType::from(value) != JsonType::from(error.instance().as_ref()))
        }
        None => matches!(error.kind(), ValidationErrorKind::Type { .. } | ValidationErrorKind::FalseSchema),
    })
}

/// The types that the branches are for; `None` when one of them does not name its own.
fn types(branches: &[Vec<ValidationError<'static>>], place: &str) -> Option<Vec<Value>> {
    let of_error = |error: &ValidationError<'static>| {
        let ValidationErrorKind::Type { kind } = error.kind() else { return None };
        Some(match kind {
            TypeKind::Single(one) => JsonTypeSet::from(*one),
            TypeKind::Multiple(several) => *several,
        })
    };
    let all = branches.iter().try_fold(JsonTypeSet::empty(), |all, branch| {
        let mut own = branch.iter().filter(|error| error.instance_path().as_str() == place);
        own.find_map(of_error).map(|types| all.union(types))
    })?;
    Some(all.iter().map(|one| one.as_str().into()).collect())
}

/// The values that an error of `const` or `enum` would allow.
fn allowed<'e>(error: &'e ValidationError<'_>) -> Option<&'e [Value]> {
    if let ValidationErrorKind::Constant { expected_value } = error.kind() {
        return Some(std::slice::from_ref(&**expected_value));
    }
    if let ValidationErrorKind::Enum { options } = error.kind() {
        options.as_array().map(Vec::as_slice)
    } else {
        None
    }
}

/// The places whose value tells the branches of a union apart: that of the union, and members of it.
struct Tags<'e>(BTreeMap<&'e str, TagErrors>);

/// The errors about the value at a place.
#[derive(Default)]
struct TagErrors {
    /// Whether a branch allows a single value there.
    is_single: bool,
    /// Whether it is a tag.
    is_tag: bool,
}

/// How many tags have a value that a branch does not allow: among those of single values, and in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Misses {
    single: usize,
    all: usize,
}

impl<'e> Tags<'e> {
    /// Those of branches. A member is one when a branch allows a single value there, or when the schema declares it.
    fn of(branches: &[&'e Branch], place: &str, declared: Option<&UnionTags>) -> Self {
        let mut tags: BTreeMap<&str, TagErrors> = BTreeMap::new();
        for error in branches.iter().copied().flatten() {
            let at = error.instance_path().as_str();
            let below = at.strip_prefix(place).unwrap_or_default();
            let Some(values) = allowed(error).filter(|_| below.matches('/').count() < 2) else { continue };
            let tag = tags.entry(at).or_default();
            let of_schema = declared.and_then(|tags| tags.get(&*name_of(below)));
            tag.is_single |= below.is_empty() || values.len() == 1 || of_schema == Some(&true);
            tag.is_tag |= tag.is_single || of_schema.is_some();
        }
        tags.retain(|_, tag| tag.is_tag);
        Self(tags)
    }

    /// The tags that a branch has an error about: that the value is another, or that there is no such member.
    fn misses(&self, branch: &Branch) -> Misses {
        let mut missed: BTreeMap<&str, bool> = BTreeMap::new();
        let mut add = |place: &str| {
            if let Some((place, tag)) = self.0.get_key_value(place) {
                missed.insert(place, tag.is_single);
            }
        };
        for error in branch {
            let place = error.instance_path();
            if allowed(error).is_some() {
                add(place.as_str());
            }
            unexpected(error).iter().for_each(|name| add(place.join(name.as_str()).as_str()));
        }
        Misses { single: missed.values().filter(|is_single| **is_single).count(), all: missed.len() }
    }

    /// When all of several branches have an error about the same tag, and allow several values: one of these errors, and
    /// the values. A tag of single values comes first.
    fn none_of(&self, branches: &[&'e Branch]) -> Option<(&'e ValidationError<'static>, Vec<&'e Value>)> {
        let mut tags: Vec<_> = self.0.iter().collect();
        tags.sort_by_key(|(_, tag)| !tag.is_single);
        tags.into_iter().filter(|_| branches.len() > 1).find_map(|(tag, _)| {
            let about = |branch: &&'e Branch| {
                let found = branch.iter().filter(|error| error.instance_path().as_str() == *tag);
                found.filter_map(|error| Some((error, allowed(error)?))).next()
            };
            let found: Vec<_> = branches.iter().map(about).collect::<Option<_>>()?;
            let (first, _) = *found.first()?;
            let mut values: Vec<&Value> = Vec::new();
            for value in found.into_iter().flat_map(|(_, values)| values).take(VALUES_MAX) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            (values.len() > 1).then_some((first, values))
        })
    }
}

/// The name of the member that a pointer of one segment leads to.
fn name_of(pointer: &str) -> Cow<'_, str> {
    let name = pointer.strip_prefix('/').unwrap_or(pointer);
    if name.contains('~') { name.replace("~1", "/").replace("~0", "~").into() } else { name.into() }
}

/// How well a branch fits: the least fits best.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit<'e> {
    /// The depth of the deepest violation, except of values that may be tags.
    depth: Reverse<usize>,
    violations: usize,
    /// The same with these values.
    deepest: Reverse<usize>,
    first: Option<&'e str>,
}

impl<'e> Fit<'e> {
    /// That of a branch of a union at `place`.
    fn of(branch: &'e Branch, place: &str) -> Self {
        let path = |error: &'e ValidationError<'static>| error.instance_path().as_str();
        let depth = depth_of;
        let own = place.matches('/').count();
        let without_tags =
            |error| if allowed(error).is_some() && depth(error) <= own + 1 { own } else { depth(error) };
        let deepest = branch.iter().map(depth).max().unwrap_or(own);
        Self {
            depth: Reverse(branch.iter().map(without_tags).max().unwrap_or(own)),
            violations: branch.iter().map(violations).sum(),
            deepest: Reverse(deepest),
            first: branch.iter().filter(|error| depth(error) == deepest).map(path).min(),
        }
    }
}

/// The depth of an error; of a union, that of the deepest violation in its branches.
fn depth_of(error: &ValidationError<'static>) -> usize {
    let own = error.instance_path().as_str().matches('/').count();
    if let ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } =
        error.kind()
    {
        return context.iter().flatten().map(depth_of).max().unwrap_or(own);
    }
    own
}

/// The violations that an error stands for: each unexpected member is one.
fn violations(error: &ValidationError<'static>) -> usize {
    unexpected(error).len().max(1)
}

/// The members that must not be there.
fn unexpected<'e>(error: &'e ValidationError<'static>) -> &'e [String] {
    if let ValidationErrorKind::AdditionalProperties { unexpected }
    | ValidationErrorKind::UnevaluatedProperties { unexpected } = error.kind()
    {
        return unexpected;
    }
    &[]
}
