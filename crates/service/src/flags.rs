//! Feature flags: the configs of a definition in flagd's format, evaluated for a client.
//!
//! A definition is compiled once for each of its versions. The compiled flags are cached, with a limit on their memory.
//! What a client may not see is no part of what is evaluated for it: a flag with a secret part has no value for a client
//! without `reveal`.
//!
//! **Invariant:** all flags of a response are of one state.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    audit::target::name_read,
    context::{Context, INLINE_BYTES_MAX},
    cpu_pool::Weight,
    freshness::Freshness,
    memory_budget::{Reservation, Share},
    redaction::Redactor,
    request::{Consistency, Principal, Refusal},
};
use concord_flags::{
    Context as EvaluationContext, ErrorCode, FlagSet, Outcome,
    ofrep::{self, NotAll},
    sync,
};
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
    limits::{CACHED_FLAGS_BYTES_MAX, FLAGS_BYTES_MAX},
    record::{Config, Revision},
    redaction::RedactedPlaces,
};
use concord_state::Collection;

/// Steps of an evaluation up to which it runs on the thread of its request: less than a millisecond.
const INLINE_STEPS_MAX: u64 = 20_000;

/// Evaluates flags.
#[derive(Debug)]
pub struct Flags {
    cx: Arc<Context>,
    freshness: Arc<Freshness>,
    redactor: Arc<Redactor>,
    compiled: CompiledFlags,
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
        Self { cx, freshness, redactor, compiled: CompiledFlags::default() }
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
        let FlagRequest { definition, flag, context, consistency } = request;
        let found = self.definition(principal, definition, consistency).await?;
        let (set, redacted) = self.compiled(principal, &found).await?;
        let time_s = i64::try_from(crate::now().0 / 1_000_000).unwrap_or(i64::MAX);
        let is_long =
            set.steps(flag, &context) > INLINE_STEPS_MAX || flag.is_none() && set.bytes() > INLINE_BYTES_MAX;
        let flag = flag.map(str::to_owned);
        let work = move |is_over: &dyn Fn() -> bool| match &flag {
            None => (ofrep::all(&set, &context, time_s, is_over), None),
            Some(key) => {
                let evaluation = set.evaluate(key, &context, time_s);
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
            NotAll::Over => Refusal::Unavailable("the work was not done in time".into()),
        })?;
        Ok(found.response(body, failure, redacted))
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
    ) -> Result<FlagResponse, Refusal> {
        let found = self.definition(principal, definition, consistency).await?;
        let shown = self.shown(principal, &found).await?;
        let (bytes, deadline) = (found.bytes(), self.cx.read_deadline());
        let work = move || (sync::document(shown.texts()), shown.redacted);
        let (body, redacted) = self.cx.work(bytes, Weight::Short, deadline, work).await?;
        Ok(found.response(body, None, redacted))
    }

    /// A definition that the principal may read, from a state that is as fresh as requested.
    async fn definition(
        &self,
        principal: &Principal,
        definition: &str,
        consistency: Consistency,
    ) -> Result<FoundFlags, Refusal> {
        name_read(definition);
        principal.authorize(Verb::Read, Some(definition))?;
        let state = self.freshness.view(consistency).await?;
        let Some(collection) = state.definition(definition).cloned() else {
            return Err(Rejection::DefinitionNotFound.into());
        };
        let bytes = collection.content_bytes();
        if bytes > FLAGS_BYTES_MAX {
            // How much it is would tell how long secret values are.
            return Err(too_large(&format!(
                "the flags have more than the {FLAGS_BYTES_MAX} bytes that are evaluated"
            )));
        }
        let reservation = self.cx.memory_budget.reserve(Share::Callers, bytes)?;
        Ok(FoundFlags { state, collection, reservation })
    }

    /// The compiled flags of a definition for a client, with the places that it is not shown.
    async fn compiled(
        &self,
        principal: &Principal,
        found: &FoundFlags,
    ) -> Result<(Arc<FlagSet>, RedactedPlaces), Refusal> {
        let is_whole = super::redaction::may_see_all(principal, &found.collection);
        let version = found.collection.version();
        if is_whole && let Some(known) = self.compiled.find(version) {
            return Ok((known, RedactedPlaces::default()));
        }
        let shown = self.shown(principal, found).await?;
        let work = move || (Arc::new(FlagSet::compile(shown.texts())), shown.redacted);
        // Compiling takes longer than anything else that is done with a text.
        let (bytes, deadline) = (found.bytes().saturating_mul(8), self.cx.read_deadline());
        let (set, redacted) = self.cx.work(bytes, Weight::Short, deadline, work).await?;
        if is_whole {
            self.compiled.insert(version, &set);
        }
        Ok((set, redacted))
    }

    /// The configs as a client may see them.
    async fn shown(&self, principal: &Principal, found: &FoundFlags) -> Result<ShownConfigs, Refusal> {
        let FoundFlags { state, collection, .. } = found;
        let configs: Vec<Arc<Config>> = collection.configs().map(Arc::clone).collect();
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

/// A definition of flags, and what a response about it may take.
struct FoundFlags {
    state: Arc<concord_state::State>,
    collection: Arc<Collection>,
    reservation: Reservation,
}

impl FoundFlags {
    fn bytes(&self) -> usize {
        usize::try_from(self.collection.content_bytes()).unwrap_or(usize::MAX)
    }

    fn response(self, body: Vec<u8>, failure: Option<ErrorCode>, redacted: RedactedPlaces) -> FlagResponse {
        let (revision, may_compress) = (self.state.revision(), !self.collection.may_have_secrets());
        FlagResponse { body, failure, revision, redacted, may_compress, reservation: self.reservation }
    }
}

fn too_large(msg: &str) -> Refusal {
    Invalid::from(Violation::at(vec!["config_definition_key".into()], msg)).into()
}

/// The version of a definition with its configs.
type Version = (Revision, Revision, u128);

/// The compiled flags that were used last.
#[derive(Debug, Default)]
struct CompiledFlags {
    cache: Mutex<FlagCache>,
}

#[derive(Debug, Default)]
struct FlagCache {
    /// By the id of the definition: only its newest version is needed.
    by_definition: BTreeMap<Revision, CachedFlags>,
    bytes: usize,
    /// Counts the uses; the entry with the lowest number was used longest ago.
    uses: u64,
}

#[derive(Debug)]
struct CachedFlags {
    version: Version,
    set: Arc<FlagSet>,
    last_use: u64,
}

impl CompiledFlags {
    fn lock(&self) -> MutexGuard<'_, FlagCache> {
        // Nothing panics while it is held, except for lack of memory, and then all entries are complete.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, version: Version) -> Option<Arc<FlagSet>> {
        let mut cache = self.lock();
        cache.uses += 1;
        let uses = cache.uses;
        let found = cache.by_definition.get_mut(&version.0).filter(|found| found.version == version)?;
        found.last_use = uses;
        Some(Arc::clone(&found.set))
    }

    fn insert(&self, version: Version, set: &Arc<FlagSet>) {
        self.lock().insert(version, Arc::clone(set));
    }
}

impl FlagCache {
    fn insert(&mut self, version: Version, set: Arc<FlagSet>) {
        let bytes = set.bytes();
        self.remove(version.0);
        while self.bytes.saturating_add(bytes) > CACHED_FLAGS_BYTES_MAX {
            let oldest = self.by_definition.iter().min_by_key(|(_, kept)| kept.last_use).map(|(id, _)| *id);
            // What is larger than all of it is not kept.
            let Some(oldest) = oldest else { return };
            self.remove(oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_definition.insert(version.0, CachedFlags { version, set, last_use: self.uses });
    }

    fn remove(&mut self, id: Revision) {
        if let Some(kept) = self.by_definition.remove(&id) {
            self.bytes -= kept.set.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rules: usize) -> Arc<FlagSet> {
        let flag = |n: usize| {
            let rule = serde_json::json!({ "==": [{ "var": "x" }, "y".repeat(1 << 10)] });
            let flag = serde_json::json!({ "state": "ENABLED", "variants": {}, "targeting": rule });
            (format!("f{n}"), flag.to_string())
        };
        let flags: Vec<(String, String)> = (0..rules).map(flag).collect();
        Arc::new(FlagSet::compile(flags.iter().map(|(key, data)| (key.as_str(), Some(data.as_str())))))
    }

    #[test]
    fn the_cache_has_the_newest_version_and_is_bounded_by_bytes() {
        let cache = CompiledFlags::default();
        let one = set(1000);
        let most = CACHED_FLAGS_BYTES_MAX / one.bytes();
        assert!(most >= 2, "{most}");
        cache.insert((1, 1, 1), &one);
        cache.insert((1, 1, 2), &one);
        assert!(cache.find((1, 1, 1)).is_none() && cache.find((1, 1, 2)).is_some());
        for id in 2..=most as u64 + 1 {
            assert!(cache.find((1, 1, 2)).is_some());
            cache.insert((id, id, 1), &one);
        }
        assert!(cache.find((1, 1, 2)).is_some(), "it was used just now");
        assert!(cache.find((2, 2, 1)).is_none(), "it was used longest ago");
        assert!(cache.lock().bytes <= CACHED_FLAGS_BYTES_MAX);
    }
}
