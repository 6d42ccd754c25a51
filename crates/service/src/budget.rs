//! The cost limit of the preparation of a write, which also decides on which threads it runs.
//!
//! A write is prepared on the threads that serve requests as long as that takes less than about a millisecond. Its
//! length does not tell: 20 KB of data may take seconds to validate. So each part of the work is charged before it is
//! done, by what is known of it then: evaluations of the schema, bytes, a schema to compile, the cost of a patch. When
//! the inline allowance is used up, the attempt is *abandoned*: its result is void, and the write is prepared again in
//! the pool for long work. A small write pays for a few subtractions.
//!
//! In the pool a batch has one budget for all its operations. Between two operations the work ends if the request has
//! ended.
//!
//! **Invariants:** work that takes longer than about a millisecond is charged before it is done. An abandoned attempt
//! has changed nothing.

use std::cell::Cell;

use crate::{
    cpu_pool::{Cancel, Weight, late},
    request::{Effect, Refusal, Write},
};
use concord_model::{
    error::Invalid,
    limits::{
        BATCH_DATA_BYTES_MAX, BATCH_EVALUATIONS_MAX, BATCH_PATCH_COST_MAX, BATCH_REPLACED_BYTES_MAX,
        ENTRY_BYTES_MAX, PATCH_COST_MAX,
    },
    schema::ListedVariants,
};

/// Evaluations of schemas inline: each takes from a few nanoseconds to a few dozen.
const INLINE_EVALUATIONS_MAX: u64 = 10_000;
/// Bytes of data checked inline; and these bytes times the number of indexed paths, each of which may select all data.
const INLINE_DATA_BYTES_MAX: usize = 64 << 10;
const INLINE_INDEXED_BYTES_MAX: usize = 256 << 10;
/// Bytes of a schema that is compiled inline, provided that its cost is proportional to its length.
const INLINE_SCHEMA_BYTES_MAX: usize = 2 << 10;
/// Cost of the patches applied inline.
const INLINE_PATCH_COST_MAX: usize = 256 << 10;
/// Operations of a batch prepared inline.
const INLINE_OPERATIONS_MAX: usize = 128;
/// The same if they depend on each other: each is applied to a copy of the state, which costs as much as its
/// preparation.
const INLINE_SCRATCH_MAX: usize = 16;
/// The cost of compiling a byte of a schema, in evaluations of about the same time.
const EVALUATIONS_PER_SCHEMA_BYTE: u64 = 20;

/// The cost that remains for one preparation.
#[derive(Debug)]
pub(super) struct Budget {
    /// `None` inline, where no work runs long enough to be cancelled.
    cancel: Option<Cancel>,
    evaluations: Cell<u64>,
    patch_cost: Cell<usize>,
    /// Bytes of data to parse and check; in the pool those of a single write are bounded by the limits of a write.
    data_bytes: Cell<usize>,
    indexed_bytes: Cell<usize>,
    /// Bytes that remain for the entry of the log.
    entry_bytes: Cell<usize>,
    /// What kept secret values count beyond their own length, in all that was prepared so far.
    kept_beyond: Cell<usize>,
    /// Bytes of records that the write may still replace.
    replaced_bytes: Cell<usize>,
    is_abandoned: Cell<bool>,
    is_over: Cell<bool>,
    /// Which violations of a union the response lists.
    listed_variants: ListedVariants,
}

/// Whether a write of this kind may be prepared inline. Its budget decides.
pub(super) fn may_be_inline(write: &Write) -> bool {
    let operations = write.operations();
    let is_plain = |write: &Write| match write.effect() {
        Effect::Store
        | Effect::Restore
        | Effect::Compute
        | Effect::Remove
        | Effect::Read
        | Effect::Access => true,
        // As steps of a batch they are applied to a scratch state, with all configs of their definition.
        Effect::Define | Effect::Constrain | Effect::Batch => false,
    };
    !write.is_long()
        || write.effect() == Effect::Batch
            && operations.len() <= INLINE_OPERATIONS_MAX
            && operations.iter().all(is_plain)
}

/// The expected weight of its preparation in the pool.
pub(super) fn weight_of(write: &Write) -> Weight {
    if write.is_long() { Weight::Long } else { Weight::Short }
}

impl Budget {
    /// The allowance on the threads that serve requests.
    pub(super) fn inline() -> Self {
        Self {
            cancel: None,
            evaluations: Cell::new(INLINE_EVALUATIONS_MAX),
            patch_cost: Cell::new(INLINE_PATCH_COST_MAX),
            data_bytes: Cell::new(INLINE_DATA_BYTES_MAX),
            indexed_bytes: Cell::new(INLINE_INDEXED_BYTES_MAX),
            entry_bytes: Cell::new(ENTRY_BYTES_MAX),
            kept_beyond: Cell::new(0),
            replaced_bytes: Cell::new(BATCH_REPLACED_BYTES_MAX),
            is_abandoned: Cell::new(false),
            is_over: Cell::new(false),
            listed_variants: ListedVariants::BestFit,
        }
    }

    /// The same with this choice of the variants whose violations are listed.
    pub(super) fn listing(self, listed_variants: ListedVariants) -> Self {
        Self { listed_variants, ..self }
    }

    pub(super) fn listed_variants(&self) -> ListedVariants {
        self.listed_variants
    }

    /// The budget of a write in the pool. The cost of a single write is bounded by the limits of its parts.
    pub(super) fn in_pool(write: &Write, cancel: Cancel) -> Self {
        let is_batch = write.is_long();
        Self {
            cancel: Some(cancel),
            evaluations: Cell::new(if is_batch { BATCH_EVALUATIONS_MAX } else { u64::MAX }),
            patch_cost: Cell::new(if is_batch { BATCH_PATCH_COST_MAX } else { PATCH_COST_MAX }),
            data_bytes: Cell::new(if is_batch { BATCH_DATA_BYTES_MAX } else { usize::MAX }),
            indexed_bytes: Cell::new(usize::MAX),
            ..Self::inline()
        }
    }

    /// The budget in the pool of a request that does not end.
    #[cfg(test)]
    pub(super) fn of_test(write: &Write) -> Self {
        let later = tokio::time::Instant::now() + std::time::Duration::from_secs(600);
        Self::in_pool(write, Cancel::new(tokio_util::sync::CancellationToken::new(), later))
    }

    /// Whether the preparation must be repeated in the pool; its result is void.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.get()
    }

    /// Whether the budget is used up. Then the refusal that reported it is the response, whatever else was found.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Refuses to continue when the request has ended.
    pub(super) fn check_time(&self) -> Result<(), Refusal> {
        match &self.cancel {
            Some(cancel) if cancel.is_over() => {
                self.is_over.set(true);
                Err(late())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Charges a check of data.
    pub(super) fn charge_check(&self, evaluations: u64) -> Result<(), Refusal> {
        self.check_time()?;
        let left = self.evaluations.get().checked_sub(evaluations);
        self.evaluations
            .set(left.ok_or_else(|| self.exceeded("evaluations of schemas", BATCH_EVALUATIONS_MAX))?);
        Ok(())
    }

    /// Charges the parsing of data of this length, and its index entries.
    pub(super) fn charge_data(&self, bytes: usize, indexed_paths: usize) -> Result<(), Refusal> {
        self.check_time()?;
        let data = self.data_bytes.get().checked_sub(bytes);
        let indexed = self.indexed_bytes.get().checked_sub(bytes.saturating_mul(indexed_paths));
        let (Some(data), Some(indexed)) = (data, indexed) else {
            return Err(self.exceeded("bytes of data", BATCH_DATA_BYTES_MAX as u64));
        };
        self.data_bytes.set(data);
        self.indexed_bytes.set(indexed);
        Ok(())
    }

    /// Charges the application of operations to a scratch state.
    pub(super) fn charge_scratch(&self, operations: usize) -> Result<(), Refusal> {
        if self.cancel.is_none() && operations > INLINE_SCRATCH_MAX {
            return Err(self.exceeded("operations that depend on each other", 0));
        }
        Ok(())
    }

    /// Charges the bytes of the record that a step of a batch replaces.
    pub(super) fn charge_replaced(&self, bytes: usize) -> Result<(), Refusal> {
        let Some(left) = self.replaced_bytes.get().checked_sub(bytes) else {
            self.is_over.set(true);
            let text = format!(
                "the batch replaces or deletes records of more than {BATCH_REPLACED_BYTES_MAX} bytes: divide it"
            );
            return Err(Invalid::TooLarge(text).into());
        };
        self.replaced_bytes.set(left);
        Ok(())
    }

    /// Charges bytes of the entry of the log. An entry above the limit is rejected when it is proposed; this keeps a
    /// batch of patches from growing far beyond the limit before.
    pub(super) fn charge_entry(&self, bytes: usize) -> Result<(), Refusal> {
        let Some(left) = self.entry_bytes.get().checked_sub(bytes) else {
            self.is_over.set(true);
            return Err(entry_too_large());
        };
        self.entry_bytes.set(left);
        Ok(())
    }

    /// Charges what kept secret values count beyond their own length.
    pub(super) fn charge_kept(&self, bytes: usize) -> Result<(), Refusal> {
        self.kept_beyond.set(self.kept_beyond.get().saturating_add(bytes));
        self.charge_entry(bytes)
    }

    /// The sum of [`Self::charge_kept`].
    pub(super) fn kept_beyond(&self) -> usize {
        self.kept_beyond.get()
    }

    /// Charges the compilation of a schema.
    pub(super) fn charge_compilation(&self, schema: &str) -> Result<(), Refusal> {
        if self.cancel.is_none() && !is_quick_to_compile(schema) {
            return Err(self.exceeded("bytes", 0));
        }
        let bytes = u64::try_from(schema.len()).unwrap_or(u64::MAX);
        // Inline, only quick compilations get here: a millisecond at most, in addition to any checks.
        if self.cancel.is_none() {
            Ok(())
        } else {
            self.charge_check(bytes.saturating_mul(EVALUATIONS_PER_SCHEMA_BYTE))
        }
    }

    /// The cost limit of the next patch.
    pub(super) fn patch_cost(&self) -> usize {
        self.patch_cost.get().min(PATCH_COST_MAX)
    }

    /// Charges a patch.
    pub(super) fn charge_patch(&self, cost: usize) {
        self.patch_cost.set(self.patch_cost.get().saturating_sub(cost));
    }

    /// The refusal of a patch that costs more than [`Self::patch_cost`]; `None` if the patch alone exceeds the limit
    /// of one patch.
    pub(super) fn patch_exceeds(&self) -> Option<Refusal> {
        let is_own_fault = self.patch_cost.get() >= PATCH_COST_MAX;
        (!is_own_fault).then(|| self.exceeded("bytes that patches copy", BATCH_PATCH_COST_MAX as u64))
    }

    /// The refusal when the budget is used up. No client sees it if it happens inline.
    fn exceeded(&self, what: &str, most: u64) -> Refusal {
        self.is_over.set(true);
        if self.cancel.is_none() {
            self.is_abandoned.set(true);
        }
        let text = format!(
            "the operations up to this one take more than {most} {what}, the limit of one batch; send fewer at once"
        );
        Invalid::TooLarge(text).into()
    }
}

/// Whether compiling a schema takes a short time, proportional to its length. A few bytes of a pattern may compile to
/// megabytes. A few references, or coverage that is computed level by level, may compile to a large automaton of costs.
fn is_quick_to_compile(schema: &str) -> bool {
    // This program has written the text, and it escapes no letters.
    let has = |keyword: &str| schema.contains(keyword);
    schema.len() <= INLINE_SCHEMA_BYTES_MAX
        && !has("attern")
        && !has("Ref\"")
        && !has("$ref\"")
        && !has("unevaluated")
}

/// The refusal of a write whose entry of the log would exceed [`ENTRY_BYTES_MAX`].
pub(super) fn entry_too_large() -> Refusal {
    Invalid::TooLarge("the write takes more bytes than an entry of the log may".into()).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn cancel(time: Duration) -> Cancel {
        Cancel::new(CancellationToken::new(), Instant::now() + time)
    }

    fn batch() -> Budget {
        Budget::in_pool(&Write::Batch(Vec::new()), cancel(Duration::from_secs(60)))
    }

    #[test]
    fn an_inline_attempt_is_abandoned_when_its_allowance_is_used_up() {
        type Spend = fn(&Budget) -> Result<(), Refusal>;
        let spend: [Spend; 6] = [
            |budget| budget.charge_check(INLINE_EVALUATIONS_MAX + 1),
            |budget| budget.charge_data(INLINE_DATA_BYTES_MAX + 1, 0),
            |budget| budget.charge_data(INLINE_DATA_BYTES_MAX, 5),
            |budget| budget.charge_scratch(INLINE_SCRATCH_MAX + 1),
            |budget| budget.charge_compilation(r#"{"pattern":"a"}"#),
            |budget| budget.charge_compilation(r##"{"$ref":"#/$defs/a"}"##),
        ];
        for spend in spend {
            let budget = Budget::inline();
            assert!(!budget.is_abandoned());
            assert!(spend(&budget).is_err() && budget.is_abandoned() && budget.is_over());
        }
        let budget = Budget::inline();
        assert!(budget.charge_check(INLINE_EVALUATIONS_MAX).is_ok());
        assert!(budget.charge_data(1000, 10).is_ok() && budget.charge_compilation("{}").is_ok());
        assert!(budget.charge_scratch(INLINE_SCRATCH_MAX).is_ok());
        assert!(!budget.is_abandoned());
    }

    #[test]
    fn the_operations_of_a_batch_share_one_budget() {
        let budget = batch();
        for _ in 0..4 {
            budget.charge_check(BATCH_EVALUATIONS_MAX / 4).unwrap();
        }
        let refused = budget.charge_check(1);
        assert!(
            matches!(&refused, Err(Refusal::Invalid(Invalid::TooLarge(text))) if text.contains("one batch"))
        );
        assert!(budget.is_over() && !budget.is_abandoned());
        let budget = batch();
        budget.charge_patch(BATCH_PATCH_COST_MAX - 1);
        assert_eq!(budget.patch_cost(), 1);
        assert!(budget.patch_exceeds().is_some());
        let budget = batch();
        budget.charge_scratch(INLINE_SCRATCH_MAX + 1).unwrap();
        budget.charge_entry(ENTRY_BYTES_MAX).unwrap();
        assert!(budget.charge_entry(1).is_err());
    }

    #[test]
    fn work_ends_when_its_time_is_up() {
        let budget = Budget::in_pool(&Write::Batch(Vec::new()), cancel(Duration::ZERO));
        assert_eq!(budget.charge_check(1), Err(late()));
        assert!(budget.is_over());
    }

    #[test]
    fn small_plain_writes_and_small_batches_of_them_start_inline() {
        let remove = || Write::DeleteDefinition {
            key: "d".into(),
            expect: concord_model::command::Expect::Any,
            restrict: false,
            purge: false,
        };
        let indexes = || Write::SetIndexes {
            key: "d".into(),
            indexes: Vec::new(),
            expect: concord_model::command::Expect::Any,
        };
        let many = |count: usize| Write::Batch((0..count).map(|_| remove()).collect());
        assert!(may_be_inline(&remove()) && may_be_inline(&indexes()) && may_be_inline(&many(128)));
        assert!(!may_be_inline(&many(129)) && !may_be_inline(&Write::Batch(vec![indexes()])));
    }
}
