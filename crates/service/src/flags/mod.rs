//! Feature flags: the configs of a definition in flagd's format, evaluated for a client.
//!
//! A definition is compiled once for each of its versions and views: one for clients that see all of it, one for those
//! without `reveal`. One request compiles, the others wait for it. What a client may not see is no part of what is
//! evaluated for it: a flag with a secret part has no value for a client without `reveal`. A reader that is in rollouts gets
//! their candidates, and shares what is compiled of them with all that are in the same ones.
//!
//! | memory | bounded by |
//! |---|---|
//! | flags that are being compiled | the memory budget, flag by flag |
//! | compiled flags in the cache | [`concord_model::limits::CACHED_FLAGS_BYTES_MAX`] for all definitions |
//! | compiled flags that are too many for the cache | the memory budget, until their request ends |
//!
//! **Invariant:** all flags of a response are of one state.

mod cache;

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::timeout_at;

use super::{
    audit::target::name_read,
    context::{Context, INLINE_BYTES_MAX},
    cpu_pool::{Weight, late},
    freshness::Freshness,
    memory_budget::{Reservation, Share},
    redaction::Redactor,
    request::{Consistency, Principal, Refusal},
};
use cache::{FlagCache, InRollouts, View};
use concord_flags::{
    Context as EvaluationContext, ErrorCode, FlagSet, Outcome, SHARED_KEY,
    ofrep::{self, NotAll},
    sync,
};
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
    key::Key,
    limits::{FLAGS_BYTES_MAX, REDACTED_PLACES_BYTES_MAX},
    record::{Config, Revision},
    redaction::RedactedPlaces,
    system::rollout::Reader,
};
use concord_state::{Collection, State, seen::with_data_of};

/// Steps of an evaluation up to which it runs on the thread of its request: less than a millisecond.
const INLINE_STEPS_MAX: u64 = 20_000;

/// Evaluates flags.
#[derive(Debug)]
pub struct Flags {
    cx: Arc<Context>,
    freshness: Arc<Freshness>,
    redactor: Arc<Redactor>,
    cache: Arc<FlagCache>,
}

/// What to evaluate.
#[derive(Debug)]
pub struct FlagRequest<'a> {
    /// The key of the definition.
    pub definition: &'a str,
    /// The key of the flag; `None` for all.
    pub flag: Option<&'a str>,
    /// For whom.
    pub context: EvaluationContext,
    /// How fresh the flags have to be.
    pub consistency: Consistency,
    /// Who reads, if the client says it.
    pub reader: Option<Reader>,
}

/// A response about flags.
#[derive(Debug)]
pub struct FlagResponse {
    /// JSON text.
    pub body: Vec<u8>,
    /// Why there is no value, if one flag was requested.
    pub failure: Option<ErrorCode>,
    /// The revision of the state.
    pub revision: Revision,
    /// The paths of the secret values of flags that the client is not shown.
    pub redacted: RedactedPlaces,
    /// Whether the response may be compressed.
    pub may_compress: bool,
    /// The memory that the response may take.
    pub reservation: Reservation,
}

/// The configs of a definition for a client: the data of each, without those that have a part which it may not see.
struct ShownConfigs {
    configs: Vec<(Arc<Config>, bool)>,
    redacted: RedactedPlaces,
}

impl ShownConfigs {
    fn texts(&self) -> impl Iterator<Item = (&str, Option<&str>)> + Clone {
        self.configs.iter().map(|(config, is_shown)| (config.key.as_str(), is_shown.then_some(&*config.data)))
    }
}

impl Flags {
    pub(crate) fn new(cx: &Arc<Context>, freshness: &Arc<Freshness>, redactor: &Arc<Redactor>) -> Self {
        let (cx, freshness, redactor) = (Arc::clone(cx), Arc::clone(freshness), Arc::clone(redactor));
        Self { cx, freshness, redactor, cache: Arc::default() }
    }

    /// Evaluates a flag or all flags of a definition.
    ///
    /// # Errors
    /// If the principal may not read the definition, there is none, it is too large, or no state is available in time.
    pub async fn evaluate(
        &self,
        principal: &Principal,
        request: FlagRequest<'_>,
    ) -> Result<FlagResponse, Refusal> {
        let FlagRequest { definition, flag, context, consistency, reader } = request;
        let found = self.definition(principal, definition, consistency, reader.as_ref()).await?;
        let (compiled, reservation) = self.compiled(principal, &found).await?;
        let redacted = compiled.redacted.clone();
        let time_s = i64::try_from(crate::now().0 / 1_000_000).unwrap_or(i64::MAX);
        let set = &compiled.set;
        let is_long =
            set.steps(flag, &context) > INLINE_STEPS_MAX || flag.is_none() && set.bytes() > INLINE_BYTES_MAX;
        let flag = flag.map(str::to_owned);
        let work = move |is_over: &dyn Fn() -> bool| match &flag {
            None => (ofrep::all(&compiled.set, &context, time_s, is_over), None),
            Some(key) => {
                let evaluation = compiled.set.evaluate(key, &context, time_s);
                let failure = match evaluation.outcome {
                    Outcome::Failure { code, .. } => Some(code),
                    Outcome::Value { .. } | Outcome::CodeDefault { .. } => None,
                };
                (Ok(ofrep::one(&evaluation)), failure)
            }
        };
        let (body, failure) = if is_long {
            let deadline = self.cx.read_deadline();
            // It ends with its request, so that it does not hold its turn for nobody.
            let work =
                self.cx.cpu_pool.run(Weight::Short, deadline, move |cancel| work(&|| cancel.is_over()));
            Box::pin(work).await?
        } else {
            work(&|| false)
        };
        let body = body.map_err(|why| match why {
            NotAll::TooLarge => too_large("the evaluations are larger than a response may be"),
            NotAll::Over => late(),
        })?;
        Ok(found.response(body, failure, redacted, reservation))
    }

    /// All flags of a definition as the one document that flagd fetches.
    ///
    /// # Errors
    /// As for [`Self::evaluate`].
    pub async fn document(
        &self,
        principal: &Principal,
        definition: &str,
        consistency: Consistency,
        reader: Option<&Reader>,
    ) -> Result<FlagResponse, Refusal> {
        let found = self.definition(principal, definition, consistency, reader).await?;
        let reservation = self.reserve(&found)?;
        let shown = self.shown(principal, &found).await?;
        let deadline = self.cx.read_deadline();
        let work = move || (sync::document(shown.texts()), shown.redacted);
        let (body, redacted) = self.cx.work(found.bytes(), Weight::Short, deadline, work).await?;
        Ok(found.response(body, None, redacted, reservation))
    }

    /// A definition that the principal may read, from a state that is as fresh as requested.
    async fn definition(
        &self,
        principal: &Principal,
        definition: &str,
        consistency: Consistency,
        reader: Option<&Reader>,
    ) -> Result<FoundFlags, Refusal> {
        name_read(definition);
        principal.authorize(Verb::Read, Some(definition))?;
        let state = self.freshness.view(consistency).await?;
        let Some(collection) = state.definition(definition).cloned() else {
            return Err(Rejection::DefinitionNotFound.into());
        };
        let found = FoundFlags::new(state, collection, reader);
        if found.content_bytes() > FLAGS_BYTES_MAX {
            // How much it is would tell how long secret values are.
            return Err(too_large(&format!(
                "the flags have more than the {FLAGS_BYTES_MAX} bytes that are evaluated"
            )));
        }
        Ok(found)
    }

    /// The memory of a copy of the configs, or of a response.
    fn reserve(&self, found: &FoundFlags) -> Result<Reservation, Refusal> {
        self.cx.memory_budget.reserve(Share::Callers, found.content_bytes())
    }

    /// The compiled flags of a definition for a client, and the memory that the request takes.
    ///
    /// # Errors
    /// If they are not there in time, or too large for the memory that is left.
    async fn compiled(
        &self,
        principal: &Principal,
        found: &FoundFlags,
    ) -> Result<(Arc<CompiledFlags>, Reservation), Refusal> {
        let is_whole = super::redaction::may_see_all(principal, &found.collection);
        let slot = (if is_whole { View::Whole } else { View::Redacted }, found.in_rollouts.clone());
        let (version, at, deadline) =
            (found.collection.version(), found.state.revision(), self.cx.read_deadline());
        if let Some(known) = self.cache.find(version, &slot) {
            return Ok((known, self.reserve(found)?));
        }
        // One compiles, the others wait. They hold no memory: it would keep the one from having enough.
        let turn = self.cache.turn(version, &slot);
        let turn = timeout_at(deadline, turn.lock_owned()).await.map_err(|_| late())?;
        if let Some(known) = self.cache.find(version, &slot) {
            return Ok((known, self.reserve(found)?));
        }
        let mut reservation = self.reserve(found)?;
        let shown = self.shown(principal, found).await?;
        let (cache, content_bytes) = (Arc::clone(&self.cache), found.content_bytes());
        let work = move || {
            // The turn ends with the work, even if the request is long gone: those who wait find the result.
            let _turn = turn;
            let compiled = Arc::new(CompiledFlags::compile(shown, &mut reservation)?);
            if cache.insert(version, &slot, at, &compiled) {
                reservation.set(content_bytes);
            }
            Ok((compiled, reservation))
        };
        self.cx.work(found.bytes_to_compile(), Weight::Short, deadline, work).await?
    }

    /// The configs as a client may see them.
    async fn shown(&self, principal: &Principal, found: &FoundFlags) -> Result<ShownConfigs, Refusal> {
        let FoundFlags { state, collection, candidates, .. } = found;
        let seen = |proven: &Arc<Config>| Arc::clone(candidates.get(&proven.key).unwrap_or(proven));
        let configs: Vec<Arc<Config>> = collection.configs().map(seen).collect();
        let key = collection.definition.key.as_str();
        let redaction = self.redactor.redaction(principal, state, key, Revision::MAX).await?;
        if redaction.is_nothing() {
            let configs = configs.into_iter().map(|config| (config, true)).collect();
            return Ok(ShownConfigs { configs, redacted: RedactedPlaces::default() });
        }
        let (redacted_configs, redacted) = self.redactor.redact(redaction, configs.clone()).await?;
        // What is redacted has another text.
        let is_shown = |(config, redacted): (Arc<Config>, Arc<Config>)| {
            let is_same = Arc::ptr_eq(&config.data, &redacted.data);
            (config, is_same)
        };
        Ok(ShownConfigs {
            configs: configs.into_iter().zip(redacted_configs).map(is_shown).collect(),
            redacted,
        })
    }
}

/// A definition of flags, as a reader sees it.
struct FoundFlags {
    state: Arc<State>,
    collection: Arc<Collection>,
    /// The rollouts that it is in.
    in_rollouts: InRollouts,
    /// What it sees in place of proven configs, by their keys.
    candidates: BTreeMap<Key, Arc<Config>>,
}

impl FoundFlags {
    fn new(state: Arc<State>, collection: Arc<Collection>, reader: Option<&Reader>) -> Self {
        let (mut in_rollouts, mut candidates) = (InRollouts::new(), BTreeMap::new());
        let seen =
            reader.into_iter().flat_map(|reader| state.seen_rollouts(collection.definition.id, reader));
        for rollout in seen {
            in_rollouts.push((rollout.change.clone(), rollout.begun_at));
            for candidate in rollout.candidates {
                if let Some(proven) = collection.config(candidate.key.as_str()) {
                    candidates.insert(candidate.key.clone(), with_data_of(candidate, proven));
                }
            }
        }
        Self { state, collection, in_rollouts, candidates }
    }

    /// The bytes of all configs, with the candidates that are in place of some.
    fn content_bytes(&self) -> u64 {
        let candidates = self.candidates.values().map(|config| config.data.len() as u64);
        let replaced = self.candidates.keys().filter_map(|key| self.collection.config(key.as_str()));
        let replaced = replaced.map(|config| config.data.len() as u64);
        self.collection.content_bytes().saturating_add(candidates.sum()).saturating_sub(replaced.sum())
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.content_bytes()).unwrap_or(usize::MAX)
    }

    /// The bytes of a text that takes as long as compiling does: longer than anything else that is done with the text of
    /// the flags. How often they refer to a shared rule is not known before.
    fn bytes_to_compile(&self) -> usize {
        let has_shared = self.collection.config(SHARED_KEY).is_some();
        if has_shared { usize::MAX } else { self.bytes().saturating_mul(8) }
    }

    fn response(
        self,
        body: Vec<u8>,
        failure: Option<ErrorCode>,
        redacted: RedactedPlaces,
        reservation: Reservation,
    ) -> FlagResponse {
        let (revision, may_compress) = (self.state.revision(), !self.collection.may_have_secrets());
        FlagResponse { body, failure, revision, redacted, may_compress, reservation }
    }
}

fn too_large(msg: &str) -> Refusal {
    Invalid::from(Violation::at(vec!["config_definition_key".into()], msg)).into()
}

/// The compiled flags of a version of a definition, as some clients see them.
#[derive(Debug)]
struct CompiledFlags {
    set: FlagSet,
    /// What those clients do not see.
    redacted: RedactedPlaces,
}

impl CompiledFlags {
    fn compile(shown: ShownConfigs, reservation: &mut Reservation) -> Result<Self, Refusal> {
        let set = FlagSet::try_compile(shown.texts(), |bytes| reservation.grow(bytes as u64))?;
        Ok(Self { set, redacted: shown.redacted })
    }

    /// The memory that they take, roughly.
    const fn bytes(&self) -> usize {
        self.set.bytes() + REDACTED_PLACES_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
