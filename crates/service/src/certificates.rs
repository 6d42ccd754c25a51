//! The certificates of this node: read again when their files change, and an alarm before they end.
//!
//! **Invariant:** a certificate that has ended, or ends within [`CERTIFICATE_WARNING`], is an alarm as long as it is in
//! use, and a line of the log when it becomes one and once a day.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{context::Context, now, request::Alarm, run_blocking};
use concord_model::{limits::CERTIFICATE_WARNING, time::Timestamp};
use concord_net::tls::certificate::Certificate;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a certificate that ends is logged again.
const REMINDER: Duration = Duration::from_secs(24 * 60 * 60);

/// Where a certificate is in use.
const FOR_CALLERS: &str = "the listener for callers";
const FOR_NODES: &str = "calls between nodes";

/// The certificates in use, with where.
pub(super) fn in_use(cx: &Context) -> Vec<(&'static str, Certificate)> {
    let callers = cx.options.caller_tls.iter().flat_map(|tls| tls.certificates());
    let nodes = cx.peers().tls().into_iter().flat_map(|tls| tls.certificates());
    callers.map(|one| (FOR_CALLERS, one)).chain(nodes.map(|one| (FOR_NODES, one))).collect()
}

/// Every certificate of this node that has ended or ends soon.
pub(super) fn alarms(cx: &Context) -> Vec<Alarm> {
    let now = now();
    let alarm = |(place, one): (_, Certificate)| {
        let message = ending(place, &one, now)?;
        Some(Alarm { kind: "certificate", node_id: Some(cx.node_id()), message })
    };
    in_use(cx).into_iter().filter_map(alarm).collect()
}

/// Reads the files of the certificates again when they change, until this node stops. A file that can't be used
/// leaves what was read before. Returns the reason when it can't go on.
pub(super) async fn keep(cx: &Arc<Context>) -> String {
    let (mut said, mut said_at) = (Vec::new(), Instant::now());
    loop {
        let alarms = alarms(cx);
        if alarms != said || said_at.elapsed() >= REMINDER {
            for alarm in &alarms {
                tracing::warn!("{}", alarm.message);
            }
            (said, said_at) = (alarms, Instant::now());
        }
        sleep(INTERVAL).await;
        let at_files = Arc::clone(cx);
        if let Err(refusal) = run_blocking(move || look_at_files(&at_files)).await {
            return format!("the certificates can't be read again: {refusal:?}");
        }
    }
}

fn look_at_files(cx: &Context) {
    let callers = cx.options.caller_tls.as_ref().and_then(|tls| tls.look());
    let nodes = cx.peers().tls().and_then(|tls| tls.look());
    for (place, looked) in [(FOR_CALLERS, callers), (FOR_NODES, nodes)] {
        match looked {
            None => {}
            Some(Ok(())) => tracing::info!("the files of TLS for {place} have changed and are in use"),
            Some(Err(error)) => tracing::error!(
                "the files of TLS for {place} have changed and can't be used; what was read before stays: {error}"
            ),
        }
    }
}

/// What is to be said of a certificate, if it has ended or ends soon.
fn ending(place: &str, certificate: &Certificate, now: Timestamp) -> Option<String> {
    let Certificate { subject, serial, begins, ends, .. } = certificate;
    let warning = u64::try_from(CERTIFICATE_WARNING.as_micros()).unwrap_or(u64::MAX);
    let what = if *ends <= now {
        format!("has ended at {ends}")
    } else if *begins > now {
        format!("is good from {begins} only")
    } else if ends.0.saturating_sub(now.0) <= warning {
        format!("ends at {ends}")
    } else {
        return None;
    };
    Some(format!("the certificate of {subject} for {place}, with the serial {serial}, {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_an_alarm_a_month_before_its_end() {
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
        let at = |day: u64| ending(FOR_NODES, &certificate, Timestamp(day * DAY));
        assert!(at(999).unwrap().contains("is good from"));
        assert_eq!(at(1000), None);
        assert_eq!(at(1334), None);
        assert!(at(1335).unwrap().contains("ends at 1973-09-27"), "{:?}", at(1335));
        assert!(at(1365).unwrap().contains("has ended"));
    }
}
