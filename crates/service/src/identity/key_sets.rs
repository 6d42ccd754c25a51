//! The keys of identity providers, which the leader fetches, and the sessions that have ended, which it removes.
//!
//! | when | what |
//! |---|---|
//! | every [`INTERVAL`] | the keys of each provider are fetched |
//! | a node has a token of an unknown key | they are fetched soon, but not twice within [`PAUSE`] |
//! | other keys came | they are written at once, but not more than [`WRITES_MAX`] times an hour |
//! | the same keys came | that is written once an hour: a key set that is a day old opens no session |
//! | a session has ended | it is removed with others |
//!
//! All nodes verify tokens with the key set of the log, so a restart needs no provider, and one that is away for some hours
//! stops no login.
//!
//! **Invariant:** only the node that leads calls providers and proposes. Two nodes that both assume that they lead do no
//! harm: a key set never becomes older.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use concord_consensus::Consensus;
use concord_identity::{Discovery, KeySet, Provider, provider::KeySource};
use concord_model::{
    access_key::Author,
    command::{Command, IdentityCommand, Proposal, SystemCommand},
    key::Key,
    limits::PROVIDER_ANSWER_BYTES_MAX,
    system::identity::ProviderId,
    time::Timestamp,
};
use concord_net::outgoing::{
    OutgoingClient, OwnAuthorities,
    endpoint::{AllowedHosts, Endpoint},
    error::OutgoingError,
};
use concord_state::State;

use crate::{
    clock::Clock, context::Context, login_pace::LoginPace, policy::Policy, request::Alarm, run_blocking,
};

/// The author of what the leader proposes: no access key has this id.
const AUTHOR: &str = "cluster";
/// How often the state is looked at.
const POLL: Duration = Duration::from_secs(1);
/// How often the keys of a provider are fetched.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The shortest time between two fetches from a provider.
const PAUSE: Duration = Duration::from_secs(30);
/// A fetch that failed is repeated after so long.
const RETRY: Duration = Duration::from_secs(60);
/// Key sets of a provider that are written in an hour.
const WRITES_MAX: usize = 6;
/// The time in which they are counted, and after which the same keys are confirmed.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// How long the log may take to decide, before the next look tries again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a majority must agree on the time before a session is removed because of it.
const SWEEP_CONFIRM: Duration = Duration::from_secs(60);
/// A key set that was confirmed longer ago raises an alarm.
const CONFIRMED_AGE_US: u64 = 2 * 60 * 60 * 1_000_000;
/// So does a provider without one, after so long.
const FETCHED_AGE_US: u64 = 10 * 60 * 1_000_000;

/// Fetches the keys of providers, and removes sessions, while this node leads.
#[derive(Debug)]
pub(crate) struct KeySetTask {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    logins: Arc<LoginPace>,
    /// Made when it is needed first: it reads the certificates of this machine.
    client: OnceCell<OutgoingClient>,
}

/// What is known of the keys of a provider since this node leads.
#[derive(Debug, Default)]
struct Fetches {
    /// When they were fetched last, and whether that succeeded.
    last: Option<(Instant, bool)>,
    /// When they were written.
    written: VecDeque<Instant>,
}

/// A provider whose keys are to be fetched.
struct DueFetch {
    name: Key,
    id: ProviderId,
    provider: Provider,
}

impl KeySetTask {
    pub(crate) fn new(cx: &Arc<Context>, clock: &Arc<Clock>, logins: &Arc<LoginPace>) -> Self {
        let (cx, clock) = (Arc::clone(cx), Arc::clone(clock));
        Self { cx, clock, logins: Arc::clone(logins), client: OnceCell::new() }
    }

    async fn client(&self) -> Result<&OutgoingClient, String> {
        let policy = self.cx.options.identity_calls;
        let make = async || {
            let made = run_blocking(move || OutgoingClient::new(policy, None)).await;
            made.map_err(|error| format!("{error:?}"))?
        };
        self.client.get_or_try_init(make).await
    }

    /// Does so until the node stops.
    ///
    /// # Errors
    /// Never: failures are tried again.
    pub(crate) async fn keep_fetching(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let mut known: BTreeMap<ProviderId, Fetches> = BTreeMap::new();
        while !self.cx.is_over() {
            if self.cx.leads(consensus) {
                self.fetch_due(consensus, &mut known).await;
                self.sweep(consensus).await;
            } else {
                known.clear();
            }
            self.cx.pause(POLL).await;
        }
        Ok(())
    }

    /// Fetches the keys of all providers that are due, and writes what came.
    async fn fetch_due(&self, consensus: &Consensus, known: &mut BTreeMap<ProviderId, Fetches>) {
        let state = consensus.state();
        let due = self.due(&state, known);
        known.retain(|id, _| state.provider(*id).is_some());
        let fetched =
            join_all(due.iter().map(async |due| fetched(self.client().await?, &due.provider).await)).await;
        for (DueFetch { name, id, .. }, keys) in due.iter().zip(fetched) {
            let fetches = known.entry(*id).or_default();
            fetches.last = Some((Instant::now(), keys.is_ok()));
            match keys {
                Ok(keys) => self.write(consensus, (name, *id), &keys, fetches).await,
                Err(word) => {
                    tracing::warn!(provider = %name, "could not fetch the keys of an identity provider: {word}");
                }
            }
        }
    }

    fn due(&self, state: &State, known: &BTreeMap<ProviderId, Fetches>) -> Vec<DueFetch> {
        let policy = self.cx.policies.of(state);
        let due = state.providers().filter_map(|record| {
            let (id, provider) = (record.provider()?.id, policy.provider(record.name.as_str())?);
            let is_fixed = matches!(provider.keys, KeySource::Fixed(_));
            let is_due = match known.get(&id).and_then(|fetches| fetches.last) {
                None => true,
                Some((at, _)) if at.elapsed() < PAUSE => false,
                Some((at, is_good)) => {
                    self.logins.take_wanted(id) || at.elapsed() >= if is_good { INTERVAL } else { RETRY }
                }
            };
            let due = || DueFetch { name: record.name.clone(), id, provider: provider.clone() };
            (is_due && !is_fixed).then(due)
        });
        due.collect()
    }

    /// Writes a key set if it is another one, or if the last confirmation is an hour old.
    async fn write(
        &self,
        consensus: &Consensus,
        (name, id): (&Key, ProviderId),
        keys: &KeySet,
        fetches: &mut Fetches,
    ) {
        let (state, text) = (consensus.state(), keys.to_text());
        let at = self.clock.stamp(&state).await;
        let found = state.key_set_record(name.as_str());
        let hour = u64::try_from(HOUR.as_micros()).unwrap_or(u64::MAX);
        let is_confirmed = found.is_some_and(|found| {
            let confirmed_at = found.key_set().map_or(Timestamp(0), |keys| keys.confirmed_at);
            *found.text == *text && at.0.saturating_sub(confirmed_at.0) < hour
        });
        if is_confirmed {
            return;
        }
        while fetches.written.front().is_some_and(|first| first.elapsed() >= HOUR) {
            fetches.written.pop_front();
        }
        if fetches.written.len() >= WRITES_MAX {
            tracing::warn!(provider = %name, "an identity provider gives other keys too often: they are not stored now");
            return;
        }
        fetches.written.push_back(Instant::now());
        let command = IdentityCommand::PutKeySet { provider: id, text: text.into(), confirmed_at: at };
        self.propose(consensus, at, command).await;
    }

    /// Removes some of the sessions that have ended.
    async fn sweep(&self, consensus: &Consensus) {
        let state = consensus.state();
        if state.session_count() == 0 {
            return;
        }
        let Some(now) = self.clock.confirmed_time(SWEEP_CONFIRM) else { return };
        if state.has_ended_sessions(now) {
            let at = self.clock.stamp(&state).await;
            self.propose(consensus, at, IdentityCommand::SweepSessions { now }).await;
        }
    }

    async fn propose(&self, consensus: &Consensus, at: Timestamp, command: IdentityCommand) {
        let command = Command::System(SystemCommand::Identity(command));
        let proposal = Proposal::new(at, AUTHOR, Author::Cluster, command);
        match timeout(WRITE_TIMEOUT, consensus.write(proposal)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(?error, "keys or ended sessions were not decided"),
            Err(_) => tracing::debug!("keys or ended sessions were not decided in time"),
        }
    }
}

/// Fetches the keys of a provider. The error is a word for the log, without anything of the response.
async fn fetched(client: &OutgoingClient, provider: &Provider) -> Result<KeySet, String> {
    let word = |error: OutgoingError| format!("{}: {error}", error.word());
    let text = match &provider.keys {
        KeySource::Fixed(keys) => return Ok(keys.clone()),
        KeySource::Url { url, ca } => {
            let endpoint = Endpoint::named(url).map_err(|error| error.to_string())?;
            match ca {
                None => client.get(&endpoint, PROVIDER_ANSWER_BYTES_MAX).await.map_err(word)?,
                Some(ca) => {
                    let authorities = OwnAuthorities::from_pem(ca)?;
                    client.get_with(&endpoint, PROVIDER_ANSWER_BYTES_MAX, &authorities).await.map_err(word)?
                }
            }
        }
        KeySource::Discovery => {
            let hosts = provider.hosts.iter().map(String::as_str);
            let allowed = AllowedHosts::new(&provider.issuer, hosts).map_err(|error| error.to_string())?;
            let endpoint =
                Endpoint::parse(&provider.discovery_url(), &allowed).map_err(|error| error.to_string())?;
            let document = client.get(&endpoint, PROVIDER_ANSWER_BYTES_MAX).await.map_err(word)?;
            let discovery = Discovery::parse(&document, provider).map_err(|error| error.to_string())?;
            let endpoint =
                Endpoint::parse(&discovery.jwks_uri, &allowed).map_err(|error| error.to_string())?;
            client.get(&endpoint, PROVIDER_ANSWER_BYTES_MAX).await.map_err(word)?
        }
    };
    let keys = KeySet::parse(&text).map_err(|error| format!("bad answer: {error}"))?;
    if keys.is_empty() {
        return Err("bad answer: the key set has no key that can verify a token".into());
    }
    Ok(keys)
}

/// An alarm for each provider whose keys could not be fetched for long. The messages name no times.
pub(crate) fn alarms(state: &State, policy: &Policy, now: Timestamp) -> Vec<Alarm> {
    let is_fetched = |name: &str| {
        policy.provider(name).is_some_and(|provider| !matches!(provider.keys, KeySource::Fixed(_)))
    };
    let late = state.providers().filter(|record| is_fetched(record.name.as_str())).filter_map(|record| {
        let found = state.key_set_record(record.name.as_str()).and_then(|keys| keys.key_set());
        let (since, most, what) = match found {
            Some(keys) => (keys.confirmed_at, CONFIRMED_AGE_US, "for hours: when they are a day old, nobody logs in"),
            None => (record.modified_at, FETCHED_AGE_US, "yet: nobody logs in"),
        };
        (now.0.saturating_sub(since.0) > most).then(|| Alarm {
            kind: "identity_keys",
            node_id: None,
            message: format!(
                "the keys of the identity provider `{}` could not be fetched {what} with it; the log of the leader says why",
                record.name
            ),
        })
    });
    late.collect()
}

#[cfg(test)]
mod tests;
