//! Sessions of a client that logs in with the token of an identity provider.
//!
//! A platform puts the token into a file and replaces it before it expires: Kubernetes for a pod, a CI system for a job. The
//! client reads the file when it logs in: before the first request, again when most of the session's life is over, and when a
//! node knows the session no more.
//!
//! **Invariant:** neither the token nor the session is in an error or in debug output.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use http::HeaderValue;
use tokio::{sync::Mutex, time::Instant};

use crate::{Client, Error, Request};

/// The path of a login.
const LOGIN: &str = "/api/v1/login";
/// A new session is opened after so many tenths of the life of the last one.
const RENEWED_AFTER_TENTHS: u32 = 8;
/// Bytes of a token file that are read at most: more than a token has.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// How a client logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The name of the identity provider.
    pub provider: String,
    /// The file with its token.
    pub token_file: PathBuf,
}

/// What a client proves itself with.
pub(crate) enum Credential {
    /// An access key, or the text of a session.
    Key(HeaderValue),
    /// Sessions that the client opens.
    Login(Box<Sessions>),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(_) => f.write_str("Key"),
            Self::Login(sessions) => sessions.login.fmt(f),
        }
    }
}

/// The sessions of a login, one after the other.
pub(crate) struct Sessions {
    login: Login,
    current: Mutex<Option<Session>>,
}

#[derive(Clone)]
struct Session {
    credential: HeaderValue,
    renew_at: Instant,
    ends_at: Instant,
}

/// The credential of one request.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) header: HeaderValue,
}

impl Credential {
    pub(crate) fn of(key: &str, login: Option<Login>) -> Result<Self, Error> {
        match login {
            Some(login) => Ok(Self::Login(Box::new(Sessions { login, current: Mutex::default() }))),
            None => Ok(Self::Key(header(key)?)),
        }
    }

    /// What a request of the client shows. A session is opened if there is none that lasts.
    pub(crate) async fn shown(&self, client: &Client, deadline: Instant) -> Result<Shown, Error> {
        let sessions = match self {
            Self::Key(key) => return Ok(Shown { header: key.clone() }),
            Self::Login(sessions) => sessions,
        };
        // The others wait for the one login.
        let mut current = sessions.current.lock().await;
        let now = Instant::now();
        let held = current.as_ref().filter(|session| now < session.ends_at).cloned();
        if let Some(session) = held.as_ref().filter(|session| now < session.renew_at) {
            return Ok(Shown { header: session.credential.clone() });
        }
        match sessions.login.open(client, deadline).await {
            Ok(session) => {
                let header = session.credential.clone();
                *current = Some(session);
                Ok(Shown { header })
            }
            // The provider or the cluster may be away for a while: the session lasts yet.
            Err(error) => match held {
                Some(session) => {
                    client.warn_of(&format!("no new session: {error}"));
                    Ok(Shown { header: session.credential })
                }
                None => Err(error),
            },
        }
    }

    /// Forgets a session that a node has rejected. Returns whether another one may be opened instead.
    pub(crate) async fn forget(&self, rejected: &Shown) -> bool {
        let Self::Login(sessions) = self else { return false };
        let mut current = sessions.current.lock().await;
        if current.as_ref().is_some_and(|session| session.credential == rejected.header) {
            *current = None;
        }
        true
    }
}

fn header(text: &str) -> Result<HeaderValue, Error> {
    let mut header = HeaderValue::from_str(text)
        .map_err(|_| Error::Usage("the access key contains invalid characters".into()))?;
    header.set_sensitive(true);
    Ok(header)
}

impl Login {
    async fn open(&self, client: &Client, deadline: Instant) -> Result<Session, Error> {
        let token = read(&self.token_file).map_err(Error::Usage)?;
        let body = serde_json::json!({ "provider": self.provider, "token": token });
        let begun = Instant::now();
        let answer = client.log_in(&Request::new(http::Method::POST, LOGIN).json(&body), deadline).await?;
        let (text, life) = (answer["session"].as_str(), answer["expires_in_s"].as_u64());
        let (Some(text), Some(life)) = (text, life.map(Duration::from_secs)) else {
            return Err(Error::Unavailable("the response to the login has no session".into()));
        };
        // From the sending on: so the session ends here before it does in the cluster.
        let renew_at = begun + life * RENEWED_AFTER_TENTHS / 10;
        Ok(Session { credential: header(text)?, renew_at, ends_at: begun + life })
    }
}

/// The token of a file.
fn read(path: &Path) -> Result<String, String> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| format!("the token file {}: {error}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    let token = text.trim();
    if token.is_empty() {
        Err(format!("the token file {} is empty", path.display()))
    } else {
        Ok(token.to_owned())
    }
}
