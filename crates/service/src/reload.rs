//! Reloads the files of certificates and data keys while the node runs, and raises alarms about them.
//!
//! A new certificate is in use within a second. A new first data key takes the place of the old one in seconds: it
//! encrypts the key of the data directory, which is one small file. A file that can't be used changes nothing, and an
//! alarm or an error in the log says so.
//!
//! Connections between nodes stay open for days, so a node whose new certificate the others do not trust would be noticed
//! at its next restart only. So after each change the node opens a connection to every other member and closes it again.
//! One that fails because of a certificate is an alarm until it succeeds. Open connections are not touched.
//!
//! **Invariants:** a certificate that has expired, or expires within [`CERTIFICATE_WARNING`], is an alarm as long as it is
//! in use. It is logged when the alarm is raised, and once a day. A data key that the directory still needs is never
//! given up.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::{context::Context, now, request::Alarm, run_blocking};
use concord_model::{limits::CERTIFICATE_WARNING, time::Timestamp};
use concord_net::{
    Member, NodeId, PeerAddress,
    call::Call,
    tls::certificate::{Certificate, RevokedCount},
};

/// How often the files of certificates are checked.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(1);
/// How often a certificate that expires is logged again.
const REMINDER: Duration = Duration::from_secs(24 * 60 * 60);
/// How often the file of data keys is read: the longest time that an operator waits for a new key.
const DATA_KEYS_INTERVAL: Duration = Duration::from_secs(5);

/// How long a connection to another member may take to be opened and used.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a failed check the next one is.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);

/// Where a certificate is in use.
const FOR_CALLERS: &str = "the listener for callers";
const FOR_NODES: &str = "calls between nodes";

/// The certificates in use, each with the place where it is.
pub(super) fn certificates_in_use(cx: &Context) -> Vec<(&'static str, Certificate)> {
    let callers = cx.options.caller_tls.iter().flat_map(|tls| tls.certificates());
    let nodes = cx.peers().tls().into_iter().flat_map(|tls| tls.certificates());
    callers.map(|one| (FOR_CALLERS, one)).chain(nodes.map(|one| (FOR_NODES, one))).collect()
}

/// An alarm for each certificate of this node that has expired or expires soon.
pub(super) fn certificate_alarms(cx: &Context) -> Vec<Alarm> {
    let now = now();
    let alarm = |(place, one): (_, Certificate)| {
        let message = expiry_warning(place, &one, now)?;
        Some(Alarm { kind: "certificate", node_id: Some(cx.node_id()), message })
    };
    let expiring = certificates_in_use(cx).into_iter().filter_map(alarm);
    let distrust = cx.distrust.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let distrusted = distrust.into_iter().map(|(node, why)| Alarm {
        kind: "certificate",
        node_id: Some(cx.node_id()),
        message: format!(
            "node {node} and this node can't open new connections, because of the certificate of one of them: {why}"
        ),
    });
    expiring.chain(distrusted).collect()
}

/// Opens a connection to each other member, to see whether they trust each other's certificates.
async fn check_members(cx: &Context) {
    let Some(consensus) = cx.consensus() else { return };
    let members = consensus.status().members;
    let others = members.into_iter().map(|member| member.member).filter(|member| member.id != cx.node_id());
    let checked = join_all(others.map(async |member: Member| {
        let to = PeerAddress { id: member.id, addr: &member.peer_addr };
        Some((member.id, cx.peers().distrust(to, Call::Levels, CHECK_TIMEOUT).await?))
    }));
    let found: BTreeMap<NodeId, String> = checked.await.into_iter().flatten().collect();
    // The lock guards one value, which is replaced as a whole.
    *cx.distrust.lock().unwrap_or_else(PoisonError::into_inner) = found;
}

/// Whether members have to be checked: once after each change of the files, and again while a check has failed.
#[derive(Default)]
struct MemberCheck {
    due: Option<Instant>,
}

impl MemberCheck {
    async fn run(&mut self, cx: &Context, have_changed: bool) {
        let now = Instant::now();
        if !have_changed && self.due.is_none_or(|due| now < due) {
            return;
        }
        check_members(cx).await;
        let is_failing = !cx.distrust.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        // Once more after a success: the other nodes may have read their files later than this one.
        self.due = (is_failing || have_changed).then(|| now + CHECK_INTERVAL);
    }
}

/// Reloads certificates when their files change, until this node stops. After an error the previous ones stay in use.
/// Returns the reason when it can't go on.
pub(super) async fn keep_certificates(cx: &Arc<Context>) -> String {
    let (mut logged, mut logged_at) = (Vec::new(), Instant::now());
    let (mut check, mut have_changed) = (MemberCheck::default(), false);
    loop {
        let alarms = certificate_alarms(cx);
        if alarms != logged || logged_at.elapsed() >= REMINDER {
            for alarm in &alarms {
                tracing::warn!("{}", alarm.message);
            }
            (logged, logged_at) = (alarms, Instant::now());
        }
        // After the log: it may take some seconds.
        check.run(cx, have_changed).await;
        sleep(CERTIFICATES_INTERVAL).await;
        let for_reload = Arc::clone(cx);
        match run_blocking(move || reload_certificates(&for_reload)).await {
            Ok(changed) => have_changed = changed,
            Err(refusal) => return format!("the certificates can't be reloaded: {refusal:?}"),
        }
    }
}

/// Logs how many of the revoked certificates this node knows: an operator sees whether a new entry has an effect.
fn log_revoked(cx: &Context) {
    let Some(RevokedCount { entries, matching }) = cx.peers().tls().map(|tls| tls.revoked()) else { return };
    if entries > 0 {
        tracing::info!(
            entries,
            matching,
            "{matching} of the {entries} revoked certificates are known to this node: its own, or one that another node \
             has shown since this node started"
        );
    }
}

/// Returns whether those for peer RPCs have changed.
fn reload_certificates(cx: &Context) -> bool {
    let callers = cx.options.caller_tls.as_ref().and_then(|tls| tls.look());
    let nodes = cx.peers().tls().and_then(|tls| tls.look());
    let have_changed = nodes.as_ref().is_some_and(Result::is_ok);
    for (place, reloaded) in [(FOR_CALLERS, callers), (FOR_NODES, nodes)] {
        match reloaded {
            None => {}
            Some(Ok(())) => {
                tracing::info!("the files of TLS for {place} have changed and are in use");
                if place == FOR_NODES {
                    log_revoked(cx);
                }
            }
            Some(Err(error)) => tracing::error!(
                "the files of TLS for {place} have changed and can't be used; the previous ones stay in use: {error}"
            ),
        }
    }
    have_changed
}

/// The message about a certificate that has expired, expires soon or is not valid yet.
fn expiry_warning(place: &str, certificate: &Certificate, now: Timestamp) -> Option<String> {
    let Certificate { subject, serial, ends, .. } = certificate;
    let warning = u64::try_from(CERTIFICATE_WARNING.as_micros()).unwrap_or(u64::MAX);
    let expires_soon = || (ends.0.saturating_sub(now.0) <= warning).then(|| format!("expires at {ends}"));
    let what = certificate.invalid_at(now).or_else(expires_soon)?;
    Some(format!("the certificate of {subject} for {place}, with the serial {serial}, {what}"))
}

/// Reads the file of data keys again and again, until the node stops.
pub(super) async fn keep_data_keys(cx: Arc<Context>) -> Result<(), String> {
    let Some(consensus) = cx.consensus() else { return Ok(()) };
    let at_rest = consensus.store().at_rest();
    if !at_rest.seals() {
        return Ok(());
    }
    while !cx.is_over() {
        cx.pause(DATA_KEYS_INTERVAL).await;
        let at_rest = at_rest.clone();
        concord_consensus::blocking::blocking(move || at_rest.refresh())
            .await
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What is wrong with the file of data keys.
pub(super) fn data_key_alarm(cx: &Context) -> Option<Alarm> {
    let message = cx.consensus()?.store().at_rest().problem()?;
    Some(Alarm { kind: "data_key", node_id: Some(cx.node_id()), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_an_alarm_from_a_month_before_it_expires() {
        const DAY: u64 = 24 * 60 * 60 * 1_000_000;
        let certificate = Certificate {
            subject: "CN=node-1.a".into(),
            issuer: String::new(),
            serial: "07".into(),
            fingerprint: String::new(),
            begins: Timestamp(1000 * DAY),
            ends: Timestamp(1365 * DAY),
            names: Vec::new(),
            is_authority: false,
        };
        let at = |day: u64| expiry_warning(FOR_NODES, &certificate, Timestamp(day * DAY));
        assert!(at(999).unwrap().contains("is not valid before"));
        assert_eq!(at(1000), None);
        assert_eq!(at(1334), None);
        assert!(at(1335).unwrap().contains("expires at 1973-09-27"), "{:?}", at(1335));
        assert!(at(1365).unwrap().contains("expired at"));
    }
}
