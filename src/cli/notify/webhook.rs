//! Requests to the webhook.
//!
//! **Invariants:** a message is posted again until the webhook answers 2xx, or until it has rejected the message for good a
//! given number of times. No request lasts longer than its time limit, and none goes to another address: a redirect is a
//! failure. Neither the URL nor a header is printed, because both may be secrets.

use std::{error::Error as _, fmt::Display, fs, path::PathBuf, time::Duration};

use bytes::Bytes;
use clap::Args;
use concord_client::Tls;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout};

use super::signature::Secrets;
use crate::cli::{
    connection::Failure,
    env::parse_date,
    output::{note, printable, say},
};

/// How long the connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request may take with its connection and its answer.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The first pause after a failure; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often a failure that lasts is told.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Characters of an answer that a warning shows.
const ANSWER_MAX: usize = 200;
/// The header with the id of a message.
const ID: HeaderName = HeaderName::from_static("x-concord-event");
/// The headers of Standard Webhooks.
const SIGNED_ID: HeaderName = HeaderName::from_static("webhook-id");
const SIGNED_AT: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Statuses with which a webhook rejects every event, because of its address or its headers, or one event for now.
const NOT_OF_THE_EVENT: [u16; 9] = [401, 403, 404, 405, 407, 408, 410, 425, 429];

#[derive(Debug, Args)]
pub(super) struct WebhookArgs {
    /// The URL that events are posted to; other users of this machine can see it: prefer --webhook-file
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "webhook_file",
        conflicts_with = "webhook_file"
    )]
    webhook: Option<String>,
    /// File that holds the URL
    #[arg(long, value_name = "FILE")]
    webhook_file: Option<PathBuf>,
    /// File with headers of the requests, a `Name: value` in each line
    #[arg(long, value_name = "FILE")]
    headers: Option<PathBuf>,
    /// CA certificates to verify the webhook with, in PEM [default: the CAs that this machine trusts]
    #[arg(long, value_name = "FILE")]
    webhook_cacert: Option<PathBuf>,
    /// File with secrets, a `whsec_…` in each line, to sign the requests as Standard Webhooks; with several, a request has a
    /// signature by each
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

/// A webhook.
#[derive(Debug)]
pub(super) struct Webhook {
    http: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    secrets: Option<Secrets>,
}

/// A message as it is posted, the same in each attempt.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Letter {
    /// By it a receiver knows that it has the message already. Visible ASCII characters.
    pub(super) id: String,
    pub(super) content_type: String,
    pub(super) body: Box<RawValue>,
}

/// Why a request failed, and how long the webhook asks to be left alone.
struct Refused {
    why: String,
    pause: Option<Duration>,
    /// Whether the webhook will reject this message again, and perhaps no other.
    is_for_good: bool,
}

impl Refused {
    /// Not by the webhook, or not because of the message.
    fn by_chance(why: String) -> Self {
        Self { why, pause: None, is_for_good: false }
    }
}

impl Webhook {
    /// A webhook as the options name it. Sends nothing yet.
    pub(super) fn new(args: &WebhookArgs) -> Result<Self, Failure> {
        let text = match (&args.webhook, &args.webhook_file) {
            (Some(url), _) => url.clone(),
            (None, Some(path)) => read(path)?,
            (None, None) => return Err(Failure::Usage("no webhook".into())),
        };
        // What is wrong is said without the text, which may be a secret.
        let url = Url::parse(text.trim()).map_err(|error| Failure::Usage(format!("the webhook: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(Failure::Usage("the webhook: expected https://HOST/PATH".into()));
        }
        let tls = Tls { authority: args.webhook_cacert.clone(), own: None };
        let tls = tls.config(url.scheme() == "https").map_err(Failure::Usage)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| Failure::Usage(causes(error)))?;
        let headers = parsed(args.headers.as_ref(), headers)?.unwrap_or_default();
        let secrets = parsed(args.secret_file.as_ref(), Secrets::parse)?;
        Ok(Self { http, url, headers, secrets })
    }

    /// Posts a message until the webhook takes it, or until this moment. If it has rejected the message for good this
    /// often, returns why.
    pub(super) async fn post(
        &self,
        letter: &Letter,
        rejections_max: Option<u32>,
        until: Option<Instant>,
    ) -> Result<Option<String>, Failure> {
        let (body, mut pauses, mut rejections) =
            (Bytes::from(letter.body.get().to_owned()), Pauses::new(), 0);
        while let Err(Refused { why, pause, is_for_good }) = self.attempt(letter, &body).await {
            rejections += u32::from(is_for_good);
            if is_for_good && rejections_max.is_some_and(|most| rejections >= most) {
                return Ok(Some(why));
            }
            let text = format!("the webhook at {} did not take an event: {why}", self.shown());
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Failure::Failed(format!("{text}; the next run posts it again")));
            }
            pauses.warn(format_args!("{text}; it is posted again until it does"));
            pauses.wait(pause).await;
        }
        if pauses.has_warned() {
            note(format_args!("the webhook at {} takes events again", self.shown()));
        }
        Ok(None)
    }

    async fn attempt(&self, letter: &Letter, body: &Bytes) -> Result<(), Refused> {
        let headers = self.headers_of(letter, body).map_err(|error| Refused::by_chance(error.to_string()))?;
        let request = self.http.post(self.url.clone()).headers(headers).body(body.clone());
        let sent = timeout(TIMEOUT, request.send()).await;
        let mut response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Refused::by_chance(causes(error.without_url()))),
            Err(_) => return Err(Refused::by_chance("it did not answer in time".into())),
        };
        let status = response.status();
        // A small answer is read, so that the connection serves the next event.
        let answer = timeout(TIMEOUT, response.chunk()).await;
        if status.is_success() {
            return Ok(());
        }
        let pause = response.headers().get(RETRY_AFTER).and_then(|value| pause_of(value.to_str().ok()?));
        let is_for_good = status.is_client_error() && !NOT_OF_THE_EVENT.contains(&status.as_u16());
        if status.is_redirection() {
            let why = format!("{status}: it redirects to another address, and no event is posted there");
            return Err(Refused { why, pause, is_for_good });
        }
        let answer = answer.ok().and_then(Result::ok).flatten().unwrap_or_default();
        let answer: String = String::from_utf8_lossy(&answer).chars().take(ANSWER_MAX).collect();
        let why = match answer.trim() {
            "" => status.to_string(),
            answer => format!("{status}: {}", printable(answer)),
        };
        Err(Refused { why, pause, is_for_good })
    }

    /// The headers of an attempt.
    fn headers_of(
        &self,
        letter: &Letter,
        body: &[u8],
    ) -> Result<HeaderMap, http::header::InvalidHeaderValue> {
        let mut headers = self.headers.clone();
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_str(&letter.content_type)?);
        let id = HeaderValue::from_str(&letter.id)?;
        headers.insert(ID, id.clone());
        if let Some(secrets) = &self.secrets {
            let at = concord_service::now().0 / 1_000_000;
            headers.insert(SIGNED_ID, id);
            headers.insert(SIGNED_AT, at.into());
            headers.insert(SIGNATURE, HeaderValue::from_str(&secrets.sign(&letter.id, at, body))?);
        }
        Ok(headers)
    }

    /// The address without what may be a secret: user, path and query.
    fn shown(&self) -> String {
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}://{}{port}", self.url.scheme(), self.url.host_str().unwrap_or_default())
    }
}

/// The pauses between attempts, and what is said of them.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
    warned_at: Option<Instant>,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self { next: PAUSE_MIN, warned_at: None }
    }

    fn has_warned(&self) -> bool {
        self.warned_at.is_some()
    }

    /// Says why there is a pause, now and then.
    pub(super) fn warn(&mut self, text: impl Display) {
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            say(format_args!("warning: {text}"));
            self.warned_at = Some(Instant::now());
        }
    }

    /// Waits, longer each time; as long as the other side asks for, but never very long.
    pub(super) async fn wait(&mut self, asked: Option<Duration>) {
        let jitter = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        sleep(jitter.max(asked.unwrap_or_default()).min(PAUSE_MAX)).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
    }
}

/// How long a header `Retry-After` asks to wait: seconds, or until a date.
fn pause_of(text: &str) -> Option<Duration> {
    let until = || parse_date(text).map(|date| date.0.saturating_sub(concord_service::now().0));
    text.trim().parse().ok().map(Duration::from_secs).or_else(|| until().map(Duration::from_micros))
}

/// What a file says, if one is given; an error names the file.
fn parsed<T>(
    path: Option<&PathBuf>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    let named = |path: &PathBuf, error: String| Failure::Usage(format!("{}: {error}", path.display()));
    path.map(|path| parse(&read(path)?).map_err(|error| named(path, error))).transpose()
}

/// The text of a file.
pub(in crate::cli) fn read(path: &PathBuf) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// The headers in a text; an error names the line and not what is in it.
pub(in crate::cli) fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    let lines = (1..).zip(text.lines().map(str::trim));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("line {number}: expected `Name: value`");
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        all.append(name, value);
    }
    Ok(all)
}

/// An error with what caused it.
pub(in crate::cli) fn causes(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(url: &str) -> Result<Webhook, Failure> {
        let webhook = Some(url.to_owned());
        let (webhook_file, headers, webhook_cacert, secret_file) = (None, None, None, None);
        Webhook::new(&WebhookArgs { webhook, webhook_file, headers, webhook_cacert, secret_file })
    }

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        let shown = |url: &str| webhook(url).unwrap().shown();
        assert_eq!(shown("http://user:pw@hooks.example:8080/T0/secret?token=x"), "http://hooks.example:8080");
        for bad in ["secret", "ftp://hooks.example/secret", "http://"] {
            let text = webhook(bad).unwrap_err().into_text();
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_pause_is_a_number_of_seconds_or_ends_at_a_date() {
        assert_eq!(pause_of(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(pause_of("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(pause_of("Mon, 21 Oct 2120 07:28:00 GMT").is_some_and(|pause| pause > PAUSE_MAX));
        assert_eq!(pause_of("soon"), None);
    }

    #[test]
    fn a_header_that_is_wrong_is_named_by_its_line() {
        let found = headers("# a token\nAuthorization: Bearer x:y\n\n X-Team : core \n").unwrap();
        let text = |name: &str| found[name].to_str().unwrap().to_owned();
        assert_eq!((text("authorization"), text("x-team")), ("Bearer x:y".to_owned(), "core".to_owned()));
        assert!(!format!("{found:?}").contains("x:y"));
        for bad in ["secret", "a b: secret", "a: secret\u{1}"] {
            assert_eq!(headers(&format!("x: y\n{bad}")).unwrap_err(), "line 2: expected `Name: value`");
        }
    }
}
