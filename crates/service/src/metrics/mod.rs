//! The metrics of a node, as the page at `/metrics` shows them.
//!
//! | to find | look in |
//! |---|---|
//! | limits and queues, memory, state, alarms | this file |
//! | consensus, log, store | `replicated` |
//! | the process | `process` |
//! | a metric with its samples; the text of a page | `family` |
//!
//! Most values exist anyway and are read when the page is requested. `http` adds the times of requests.
//!
//! **Invariants:** a page contains no key of a config, no address of a client and no secret of an access key, only sizes
//! and times; ids of access keys and keys of definitions only for those who have a key themselves. It comes from this node
//! alone. docs/reference/metrics.md lists each metric, and a test compares the two.

mod family;
pub(super) mod process;
mod replicated;

pub use concord_consensus::histogram::{Histogram, TimeCounts};
pub use family::{Labels, MEDIA_TYPE, MetricFamily, render};

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;

use super::{
    Principal, Refusal, Service, Share,
    cpu_pool::PoolFigures,
    now, reload,
    request::ALARMS,
    usage::{DefinitionUsage, Figure, UsageCounts, UsageView},
};
use concord_model::{access_key::Verb, limits::WAITING_CHANGES_BYTES_MAX};
use concord_net::tls::certificate::Certificate;

/// Rows of the usage that are shown for each figure.
const TOP_SHOWN: usize = 100;
/// The same on a page of metrics, which is read every few seconds and kept.
const TOP_METRICS: usize = 20;
/// How long a page of metrics waits for them.
const USAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Open connections of a listener. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<AtomicUsize>);

/// An open connection. Dropping it ends it.
#[derive(Debug)]
pub struct OpenConnection(Connections);

impl Connections {
    /// Counts one more connection until the result is dropped.
    #[must_use]
    pub fn open(&self) -> OpenConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }

    /// The number of open connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

impl Service {
    /// All metrics of this node, with the use by those that the principal may know of.
    ///
    /// # Errors
    /// When the principal may not see it.
    pub async fn metrics(&self, principal: &Principal) -> Result<Vec<MetricFamily>, Refusal> {
        principal.authorize(Verb::Observe, None)?;
        // A node with too much to do shows its other metrics all the same.
        let usage = timeout(USAGE_TIMEOUT, self.usage_view(principal, TOP_METRICS)).await;
        let mut families = self.open_metrics();
        families.extend(of_usage(&usage.ok().and_then(Result::ok).unwrap_or_default()));
        Ok(families)
    }

    /// The same without a permission check, for the metrics listener.
    pub fn open_metrics(&self) -> Vec<MetricFamily> {
        let mut families = vec![MetricFamily::gauges(
            "concord_build_info",
            "The version of the program; always 1.",
            [(label("version", env!("CARGO_PKG_VERSION")), 1_u64)],
        )];
        families.extend(self.of_node());
        families.extend(self.of_requests());
        families.extend(self.of_memory());
        families.extend(self.of_consensus());
        families.extend(self.of_store());
        families.extend(self.of_state());
        families.extend(process::families());
        families
    }

    /// Who uses this node, and which definitions: those that the principal may know of.
    ///
    /// # Errors
    /// When the principal may not see it, or this node has too much to do.
    pub async fn usage(&self, principal: &Principal) -> Result<UsageView, Refusal> {
        principal.authorize(Verb::Observe, None)?;
        self.usage_view(principal, TOP_SHOWN).await
    }

    async fn usage_view(&self, principal: &Principal, top: usize) -> Result<UsageView, Refusal> {
        let (cx, principal) = (Arc::clone(&self.cx), principal.clone());
        // All definitions are looked at.
        let view = move || cx.usage.view(cx.node_id(), &cx.applied(), &principal, top);
        self.cx.run_long(view).await
    }

    /// The connections of the client listener.
    #[must_use]
    pub fn caller_connections(&self) -> Connections {
        self.connections[0].clone()
    }

    /// The connections of the peer listener.
    #[must_use]
    pub fn node_connections(&self) -> Connections {
        self.connections[1].clone()
    }

    /// Readiness, alarms, certificates, the audit log.
    fn of_node(&self) -> Vec<MetricFamily> {
        let alarms = self.members.alarms();
        let raised = ALARMS
            .map(|kind| (label("type", kind), alarms.iter().filter(|alarm| alarm.kind == kind).count()));
        let ends = reload::certificates_in_use(&self.cx).into_iter().map(|(place, one)| {
            let Certificate { subject, serial, ends, .. } = one;
            let labels = vec![("place", place.to_owned()), ("subject", subject), ("serial", serial)];
            (labels, ends.0 / 1_000_000)
        });
        let (is_failing, lost) = self.cx.audit.figures();
        let syslog = self.cx.audit.syslog_figures();
        vec![
            MetricFamily::gauge("concord_node_id", "The id of this node.", self.cx.node_id()),
            MetricFamily::gauge(
                "concord_ready",
                "1 while this node has caught up with a live leader.",
                self.members.ready().is_ok(),
            ),
            MetricFamily::gauges(
                "concord_alarms",
                "Problems that an operator must resolve, as far as this node knows.",
                raised,
            ),
            MetricFamily::gauges(
                "concord_tls_certificate_end_seconds",
                "When a certificate in use ends, in seconds since 1970.",
                dedup(ends.collect()),
            ),
            MetricFamily::counter(
                "concord_audit_syslog_lines",
                "Lines of the audit log that were sent to the syslog server, repeated lines included.",
                syslog.lines,
            ),
            MetricFamily::counter(
                "concord_audit_syslog_failures",
                "Failed connections and messages to the syslog server.",
                syslog.failures,
            ),
            MetricFamily::counter(
                "concord_audit_syslog_lost_lines",
                "Lines of the audit log that were never sent to the syslog server.",
                syslog.lost,
            ),
            MetricFamily::gauge(
                "concord_audit_syslog_waiting_lines",
                "Lines of the audit log that wait to be sent to the syslog server.",
                syslog.waiting,
            ),
            MetricFamily::gauge(
                "concord_audit_failing",
                "1 while the audit log can't be written.",
                is_failing,
            ),
            MetricFamily::gauge(
                "concord_audit_lost_lines",
                "Lost lines of the audit log that no line reports yet.",
                lost,
            ),
            MetricFamily::gauge(
                "concord_clock_seconds",
                "This node's clock, in seconds since 1970.",
                now().0 / 1_000_000,
            ),
        ]
    }

    /// Queues, and limits of what is open.
    fn of_requests(&self) -> Vec<MetricFamily> {
        let (cx, limits) = (&self.cx, self.cx.limits());
        let in_flight = limits.writes_in_flight.saturating_sub(self.writes.admission.free());
        let PoolFigures { turns, running, waiting } = cx.cpu_pool.figures();
        let [watches, watches_max] = self.watches.hub.figures();
        let [quota_keys, failing_addresses] = self.quotas.counts();
        let spans = cx.spans.figures();
        let listeners = ["callers", "nodes"].into_iter().zip(&self.connections);
        let connections = listeners.map(|(name, open)| (label("listener", name), open.count()));
        vec![
            MetricFamily::gauges("concord_connections", "Open connections.", connections),
            MetricFamily::gauge(
                "concord_writes_in_flight",
                "Writes that this node has received and not yet answered.",
                in_flight,
            ),
            MetricFamily::gauge(
                "concord_writes_in_flight_max",
                "The limit of writes in flight.",
                limits.writes_in_flight,
            ),
            MetricFamily::gauge(
                "concord_forward_queue_writes",
                "Writes that wait on this node for the next RPC to the leader.",
                self.writes.forwarder.batcher.waiting(),
            ),
            MetricFamily::gauge(
                "concord_cpu_pool_threads",
                "Threads for work that takes longer than a millisecond.",
                turns,
            ),
            MetricFamily::gauge("concord_cpu_pool_running", "Pieces of such work that run.", running),
            MetricFamily::gauge(
                "concord_cpu_pool_waiting",
                "Pieces of such work that wait for a thread.",
                waiting,
            ),
            MetricFamily::gauge("concord_watches", "Open watches.", watches),
            MetricFamily::gauge("concord_watches_max", "The limit of open watches.", watches_max),
            MetricFamily::gauge(
                "concord_quota_keys",
                "Access keys with a quota that were used recently.",
                quota_keys,
            ),
            MetricFamily::gauge(
                "concord_failed_credential_addresses",
                "Addresses whose failed credentials are counted.",
                failing_addresses,
            ),
            MetricFamily::counter("concord_spans_sent", "Spans that the collector has accepted.", spans.sent),
            MetricFamily::counters(
                "concord_spans_dropped",
                "Dropped spans: because the queue was full, or because the collector did not accept them.",
                [(label("why", "queue"), spans.unqueued), (label("why", "collector"), spans.refused)],
            ),
        ]
    }

    /// The known parts of the memory in use.
    fn of_memory(&self) -> Vec<MetricFamily> {
        let budget = &self.cx.memory_budget;
        let (pinned, pinned_bytes) = self.reads.pinned_states.figures(&self.cx.applied());
        let [callers, callers_max] = budget.used(Share::Callers);
        let [peers, peers_max] = budget.used(Share::Peers);
        let shares = |values: [u64; 3]| {
            ["callers", "nodes", "pins"].map(|share| label("share", share)).into_iter().zip(values)
        };
        vec![
            MetricFamily::gauges(
                "concord_memory_budget_bytes",
                "Bytes that the requests in flight have reserved, and that states for cursors and watches take.",
                shares([callers, peers, pinned_bytes]),
            ),
            MetricFamily::gauges(
                "concord_memory_budget_max_bytes",
                "The limits of concord_memory_budget_bytes.",
                shares([callers_max, peers_max, budget.pins_max()]),
            ),
            MetricFamily::gauge(
                "concord_pinned_states",
                "States that are retained for cursors and watches.",
                pinned,
            ),
            MetricFamily::gauge(
                "concord_store_queue_max_bytes",
                "The limit of applied changes that wait for the disk. Above it, writes are rejected.",
                WAITING_CHANGES_BYTES_MAX,
            ),
        ]
    }

    /// The replicated state.
    fn of_state(&self) -> Vec<MetricFamily> {
        let state = self.cx.applied();
        vec![
            MetricFamily::gauge(
                "concord_state_revision",
                "The revision that this node has applied.",
                state.revision(),
            ),
            MetricFamily::gauge("concord_state_definitions", "Definitions.", state.definition_count()),
            MetricFamily::gauge("concord_state_configs", "Configs of all definitions.", state.config_count()),
            MetricFamily::gauge(
                "concord_state_deleted_definitions",
                "Deleted definitions that are kept, so that their deletion can be undone.",
                state.deleted().count() as u64,
            ),
            MetricFamily::gauge(
                "concord_state_deleted_bytes",
                "The memory that they take, about; bounded by CONCORD_DELETED_BYTES.",
                state.deleted_bytes(),
            ),
            MetricFamily::gauge(
                "concord_state_remembered_requests",
                "Idempotency records.",
                state.request_count(),
            ),
            MetricFamily::gauge("concord_state_access_keys", "Access keys.", state.access_key_count()),
            MetricFamily::gauge(
                "concord_state_frozen_environments",
                "Environments that a freeze closes to changes now.",
                self.environments.frozen_count(&state),
            ),
            MetricFamily::gauge(
                "concord_state_environments_without_approvers",
                "Environments that ask for more approvals than there are persons to give them.",
                self.environments.without_approvers_count(&state),
            ),
            MetricFamily::gauge(
                "concord_state_pending_change_requests",
                "Change requests that are open or held.",
                state.pending_change_count(),
            ),
            MetricFamily::gauge(
                "concord_state_change_content_bytes",
                "The bytes of those that are pending, in whole MiB.",
                // The exact sum would tell how long the data of each is.
                state.change_content_bytes().next_multiple_of(1 << 20),
            ),
            MetricFamily::gauge(
                "concord_state_unreviewed_bypasses",
                "Bypasses of the rules of environments that wait for a review.",
                state.unreviewed_bypass_count(),
            ),
            MetricFamily::gauge(
                "concord_state_change_requests_overdue_seconds",
                "For how long a change request has been due that the cluster applies or takes back; 0 for none.",
                self.members.due_changes.overdue_s(&state),
            ),
            MetricFamily::gauge(
                "concord_state_feature_level",
                "The feature level of the cluster.",
                state.feature_level(),
            ),
            MetricFamily::gauge(
                "concord_feature_level_max",
                "The highest feature level that this node agrees to.",
                self.cx.options.feature_level_max,
            ),
        ]
    }
}

/// The keys and the definitions that use this node most.
fn of_usage(view: &UsageView) -> Vec<MetricFamily> {
    let keys = view.keys.iter().map(|one| ("key", one.id.as_str(), one.counts));
    let definitions = view.definitions.iter().map(|one| ("definition", one.key.as_str(), one.counts));
    let rows: Vec<_> = keys.chain(definitions).collect();
    let of = |figure: Figure<UsageCounts>, more: Option<(&'static str, &str)>| -> Vec<(Labels, u64)> {
        let sample = |(by, name, counts): &(&str, &str, UsageCounts)| {
            let mut labels = vec![("by", (*by).to_owned()), ("name", (*name).to_owned())];
            labels.extend(more.map(|(label, value)| (label, value.to_owned())));
            (labels, figure(counts))
        };
        rows.iter().map(sample).collect()
    };
    let two = |label, first: (&str, Figure<UsageCounts>), second: (&str, Figure<UsageCounts>)| {
        [first, second].map(|(value, figure)| of(figure, Some((label, value)))).concat()
    };
    let seconds = |(labels, nanos)| (labels, Duration::from_nanos(nanos));
    let stored = |figure: fn(&DefinitionUsage) -> Option<u64>| {
        let sample = |one: &DefinitionUsage| Some((vec![("definition", one.key.clone())], figure(one)?));
        view.definitions.iter().filter_map(sample).collect::<Vec<_>>()
    };
    vec![
        MetricFamily::counters(
            "concord_usage_requests",
            "Requests of the access keys and for the definitions that use this node most.",
            of(|counts| counts.requests, None),
        ),
        MetricFamily::counters(
            "concord_usage_bytes",
            "Bytes of the bodies of these requests and of their responses.",
            two("direction", ("in", |counts| counts.bytes_in), ("out", |counts| counts.bytes_out)),
        ),
        MetricFamily::counters(
            "concord_usage_busy_seconds",
            "Time in which this node worked for these requests.",
            of(|counts| counts.busy_ns, None).into_iter().map(seconds),
        ),
        MetricFamily::counters(
            "concord_usage_records",
            "Records that they have read and written.",
            two(
                "access",
                ("read", |counts| counts.records_read),
                ("written", |counts| counts.records_written),
            ),
        ),
        MetricFamily::gauges(
            "concord_definition_configs",
            "Configs of the definitions that are used most or store most.",
            stored(|one| one.configs),
        ),
        MetricFamily::gauges(
            "concord_definition_stored_bytes",
            "Bytes of the keys and data of these configs.",
            stored(|one| one.stored_bytes),
        ),
    ]
}

/// Removes samples with the same labels: a file may contain a certificate twice.
fn dedup(samples: Vec<(Labels, u64)>) -> Vec<(Labels, u64)> {
    let mut seen: Vec<(Labels, u64)> = Vec::with_capacity(samples.len());
    for sample in samples {
        if !seen.iter().any(|(labels, _)| *labels == sample.0) {
            seen.push(sample);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_connections_are_no_longer_counted() {
        let connections = Connections::default();
        let (one, other) = (connections.open(), connections.clone().open());
        assert_eq!(connections.count(), 2);
        drop(one);
        assert_eq!(connections.count(), 1);
        drop(other);
        assert_eq!(connections.count(), 0);
    }
}
