//! The log's time: the time of each proposal, by which the age of stored records is computed.
//!
//! | question | file |
//! |---|---|
//! | How is the time computed from the clocks of the members? | `log_clock` |
//! | How does a node learn the clocks of the others, and what happens if one is wrong? | this one |
//!
//! Every node asks the other voters for their clocks once a second, so that the next leader knows them.
//!
//! **Invariant:** nothing is deleted and nothing expires because of one reading of one clock. Each decision by age uses
//! [`Clock::confirmed_time`]; each entry has the time of [`Clock::stamp`].

mod log_clock;

use std::{
    sync::Arc,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::SetOnce,
    time::{Instant, timeout_at},
};

use super::{context::Context, now, request::Alarm};
use concord_consensus::Consensus;
use concord_model::time::Timestamp;
use concord_net::{
    Member,
    call::Call,
    client::Lane,
    codec::{decode, encode},
};
use concord_state::State;
use log_clock::{ClockReading, Deviation, LogClock, TOLERANCE};

/// How often the other voters are asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often they are asked before a first time is known.
const FIRST_INTERVAL: Duration = Duration::from_millis(50);
/// How long a member may take to respond. Its reading may be wrong by half of this.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the first writes after a start wait for the clocks of the others.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// A member's wall clock. Sent between nodes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ClockResponse {
    wall: Timestamp,
}

/// The clock of the log, with this node's monotonic clock.
#[derive(Debug)]
pub struct Clock {
    cx: Arc<Context>,
    began: Instant,
    log: Mutex<LogClock>,
    /// Set once a time is followed.
    is_set: SetOnce<()>,
}

impl Clock {
    pub(super) fn new(cx: &Arc<Context>) -> Self {
        Self { cx: Arc::clone(cx), began: Instant::now(), log: Mutex::default(), is_set: SetOnce::new() }
    }

    fn read(&self) -> ClockReading {
        ClockReading { wall: now(), elapsed: self.elapsed() }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, LogClock> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    /// The time of an entry that is proposed on this state. Just after a start it waits like [`Self::clock_set`], so that
    /// the clock of one node does not decide the time of the first entry.
    pub(super) async fn stamp(&self, state: &State) -> Timestamp {
        if concord_model::sabotage::is("wall-clock-trusted") {
            return now();
        }
        if self.is_set.get().is_none() {
            self.clock_set(Instant::now() + FIRST_TIMEOUT).await;
        }
        self.lock().stamp(self.read(), state.last_at())
    }

    /// The log's time as far as this node knows it, for checks that the log repeats.
    pub(super) fn log_time(&self, state: &State) -> Timestamp {
        self.lock().time(self.read(), state.last_at())
    }

    /// The time for decisions by age, if a majority of the voters has agreed on it for at least so long.
    pub(super) fn confirmed_time(&self, at_least: Duration) -> Option<Timestamp> {
        if concord_model::sabotage::is("wall-clock-trusted") {
            return Some(now());
        }
        self.lock().confirmed(self.read(), at_least)
    }

    /// Waits until the clocks of a majority are known, for [`FIRST_TIMEOUT`] at most.
    pub(super) async fn clock_set(&self, deadline: Instant) {
        if self.is_set.get().is_none() {
            let deadline = deadline.min(Instant::now() + FIRST_TIMEOUT);
            let _timed_out = timeout_at(deadline, self.is_set.wait()).await.is_err();
            // From now on the known clocks decide, even if they are no majority.
            drop(self.is_set.set(()));
        }
    }

    /// Every clock that is wrong, as far as this node knows.
    pub(super) fn clock_alarms(&self) -> Vec<Alarm> {
        let deviations = self.lock().deviations(self.read());
        deviations.into_iter().map(|deviation| self.alarm(deviation)).collect()
    }

    fn alarm(&self, deviation: Deviation) -> Alarm {
        let seconds = deviation.micros().unsigned_abs() / 1_000_000;
        let side = if deviation.micros() > 0 { "ahead of" } else { "behind" };
        let node_id = match deviation {
            Deviation::Own(_) => Some(self.cx.node_id()),
            Deviation::Other(id, _) => Some(id),
            Deviation::Log(_) => None,
        };
        match node_id {
            // Also this node by its id: commands show the alarms of all nodes together.
            Some(id) => Alarm {
                kind: "clock",
                node_id,
                message: format!("the clock of node {id} is {seconds} s {side} the log's time"),
            },
            None => Alarm {
                kind: "log_time",
                node_id,
                message: format!(
                    "the log's time is {seconds} s ahead of the members' clocks; it goes at half speed until they agree"
                ),
            },
        }
    }

    /// Asks the other voters for their clocks until this node stops. Logs when its own becomes wrong, or right again.
    pub(super) async fn keep_clock(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let mut was_wrong = false;
        while !self.cx.is_over() {
            let is_set = self.ask_clocks(consensus).await;
            let wrong =
                self.clock_alarms().into_iter().find(|alarm| alarm.node_id == Some(self.cx.node_id()));
            if wrong.is_some() != was_wrong {
                was_wrong = !was_wrong;
                match wrong {
                    Some(alarm) => tracing::warn!("this node's clock is wrong: {}", alarm.message),
                    None => tracing::info!(
                        "this node's clock is right again: within {} s of the log's time",
                        TOLERANCE.as_secs()
                    ),
                }
            }
            self.cx.pause(if is_set { INTERVAL } else { FIRST_INTERVAL }).await;
        }
        Ok(())
    }

    /// Asks each of the other voters once. Returns whether a time is followed.
    async fn ask_clocks(&self, consensus: &Consensus) -> bool {
        let members = consensus.status().members;
        if members.is_empty() {
            // Before the bootstrap the voters are unknown.
            return false;
        }
        let voters = members.into_iter().filter(|one| one.voter && one.member.id != self.cx.node_id());
        let others: Vec<Member> = voters.map(|one| one.member).collect();
        self.lock().set_others(others.iter().map(|member| member.id));
        join_all(others.iter().map(async |member| {
            let asked = self.elapsed();
            let called = self
                .cx
                .peers()
                .call(Lane::Forward, member.id, &member.peer_addr, Call::Clock, Bytes::new(), CALL_TIMEOUT)
                .await;
            let response = called.ok().and_then(|body| decode::<ClockResponse>(&body).ok());
            if let Some(ClockResponse { wall }) = response {
                self.lock().hear(member.id, wall, asked, self.elapsed());
            }
        }))
        .await;
        let last_at = consensus.state().last_at();
        let is_set = {
            let mut log = self.lock();
            log.update(self.read(), last_at, false);
            log.is_set()
        };
        if is_set {
            drop(self.is_set.set(()));
        }
        is_set
    }

    /// What [`Self::ask_clocks`] does with the responses of the other voters.
    #[cfg(test)]
    pub(crate) fn hear_all(&self, others: &[(concord_net::NodeId, Timestamp)], last_at: Timestamp) {
        let mut log = self.lock();
        log.set_others(others.iter().map(|(id, _)| *id));
        for (id, wall) in others {
            log.hear(*id, *wall, self.elapsed(), self.elapsed());
        }
        log.update(self.read(), last_at, false);
        drop(log);
        drop(self.is_set.set(()));
    }

    /// Responds to another node that asks for this node's clock.
    pub fn answer_clock(&self) -> Bytes {
        encode(&ClockResponse { wall: self.read().wall })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;
    use crate::testing::service;
    use concord_model::limits::Limits;

    #[tokio::test]
    async fn no_entry_has_a_time_before_the_clocks_of_the_others_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let (service, state) = (service(directory.path(), Limits::default()), State::new());
        let mut stamp = pin!(service.clock.stamp(&state));
        assert!(poll!(stamp.as_mut()).is_pending());
        service.clock.is_set.set(()).unwrap();
        assert!(stamp.await > Timestamp(0));
    }

    #[test]
    fn a_clock_decodes_to_what_was_encoded() {
        let response = ClockResponse { wall: Timestamp(1_763_000_000_000_100) };
        assert_eq!(decode::<ClockResponse>(&encode(&response)).unwrap(), response);
    }
}
