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
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::HeaderValue;
use tokio::time::{Instant, timeout_at};

use crate::{Client, Error, Request};

/// The path of a login.
const LOGIN: &str = "/api/v1/login";
/// A new session is opened after so many tenths of the life of the last one.
const RENEWED_AFTER_TENTHS: u32 = 8;
/// A session that could not be renewed is renewed after so long again, while it lasts.
const RENEWED_AGAIN: Duration = Duration::from_secs(10);
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
    /// Held by the request that logs in.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Session {
    credential: HeaderValue,
    renew_at: Instant,
    ends_at: Instant,
}

impl Credential {
    pub(crate) fn of(key: &str, login: Option<Login>) -> Result<Self, Error> {
        match login {
            Some(login) => {
                let (current, opening) = (Mutex::default(), tokio::sync::Mutex::default());
                Ok(Self::Login(Box::new(Sessions { login, current, opening })))
            }
            None => Ok(Self::Key(header(key)?)),
        }
    }

    /// What a request of the client shows. A session is opened if there is none that lasts.
    pub(crate) async fn shown(&self, client: &Client, deadline: Instant) -> Result<HeaderValue, Error> {
        match self {
            Self::Key(key) => Ok(key.clone()),
            Self::Login(sessions) => sessions.shown(client, deadline).await,
        }
    }

    /// Forgets a session that a node has rejected. Returns whether another one may be opened instead.
    pub(crate) fn forget(&self, rejected: &HeaderValue) -> bool {
        let Self::Login(sessions) = self else { return false };
        let mut current = sessions.current();
        if current.as_ref().is_some_and(|session| session.credential == *rejected) {
            *current = None;
        }
        true
    }
}

impl Sessions {
    fn current(&self) -> MutexGuard<'_, Option<Session>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that lasts.
    fn lasting(&self) -> Option<Session> {
        self.current().clone().filter(|session| Instant::now() < session.ends_at)
    }

    async fn shown(&self, client: &Client, deadline: Instant) -> Result<HeaderValue, Error> {
        if let Some(session) = self.lasting() {
            // One request renews it, and has time left for itself. The others go on with what lasts.
            if session.renew_at <= Instant::now()
                && let Ok(_alone) = self.opening.try_lock()
            {
                let left = deadline.saturating_duration_since(Instant::now());
                self.renew(client, &session, deadline - left / 2).await;
            }
            return Ok(self.lasting().unwrap_or(session).credential);
        }
        // The others wait for the one login.
        let alone = timeout_at(deadline, self.opening.lock()).await;
        let _alone = alone.map_err(|_| Error::Unavailable("no session was opened in time".into()))?;
        if let Some(session) = self.lasting() {
            return Ok(session.credential);
        }
        let session = self.login.open(client, deadline).await?;
        let credential = session.credential.clone();
        *self.current() = Some(session);
        Ok(credential)
    }

    /// Opens another session in place of one that lasts. The provider or the cluster may be away for a while: then it tries
    /// again later.
    async fn renew(&self, client: &Client, lasting: &Session, deadline: Instant) {
        match self.login.open(client, deadline).await {
            Ok(session) => *self.current() = Some(session),
            Err(error) => {
                client.warn_of(&format!("no new session: {error}"));
                if let Some(session) =
                    self.current().as_mut().filter(|it| it.credential == lasting.credential)
                {
                    session.renew_at = Instant::now() + RENEWED_AGAIN;
                }
            }
        }
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
        let answer = client.log_in(&Request::new(http::Method::POST, LOGIN).json(&body), deadline).await;
        let answer = answer.map_err(|error| match error {
            // Of the login: the request that needs it was not sent.
            Error::Unknown { text, .. } => Error::Unavailable(format!("no response to the login: {text}")),
            Error::Usage(_) | Error::Refused(_) | Error::Unavailable(_) | Error::Protocol(_) => error,
        })?;
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;
    use crate::Options;

    /// A client with a token, and the number of logins that a node has rejected.
    fn client() -> (Client, tempfile::TempDir, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let logins = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&logins);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _head = stream.read(&mut [0; 4096]).unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let body = r#"{"errors": [{"msg": "no role"}]}"#;
                let length = body.len();
                let head = format!("HTTP/1.1 403 X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                stream.write_all((head + body).as_bytes()).unwrap();
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        std::fs::write(&token_file, "a.b.c").unwrap();
        let login = Some(Login { provider: "ci".into(), token_file });
        (Client::new(Options { urls: vec![url], login, ..Options::default() }).unwrap(), directory, logins)
    }

    fn sessions(client: &Client) -> &Sessions {
        match client.credential() {
            Credential::Login(sessions) => sessions,
            Credential::Key(_) => panic!("it logs in"),
        }
    }

    #[tokio::test]
    async fn a_session_that_lasts_is_used_while_it_can_not_be_renewed() {
        let (client, _directory, logins) = client();
        let now = Instant::now();
        let session = Session {
            credential: HeaderValue::from_static("lasts"),
            renew_at: now,
            ends_at: now + Duration::from_secs(3600),
        };
        *sessions(&client).current() = Some(session);
        let shown = async || client.credential().shown(&client, now + Duration::from_secs(30)).await.unwrap();
        assert_eq!(shown().await, "lasts");
        let tried = logins.load(Ordering::SeqCst);
        assert!(tried > 0);
        // It is not tried again with each request.
        assert_eq!(shown().await, "lasts");
        assert_eq!(logins.load(Ordering::SeqCst), tried);
        // Nobody waits for the request that renews it.
        sessions(&client).current().as_mut().unwrap().renew_at = now;
        let _alone = sessions(&client).opening.lock().await;
        assert_eq!(shown().await, "lasts");
        assert_eq!(logins.load(Ordering::SeqCst), tried);
        // Once it is rejected, the request waits for its own time at most.
        assert!(client.credential().forget(&HeaderValue::from_static("lasts")));
        let waited = client.credential().shown(&client, Instant::now() + Duration::from_millis(50)).await;
        assert!(matches!(waited, Err(Error::Unavailable(_))), "{waited:?}");
    }
}
