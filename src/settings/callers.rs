//! Settings of the client listener: its connections, its threads, and the origins whose pages may use it.
//!
//! **Invariant:** an origin is written as a browser sends it, because it is compared byte by byte.

use clap::Args;
use http::{Uri, uri::Scheme};

/// The client listener.
#[derive(Debug, Clone, Args)]
pub struct CallerArgs {
    /// Most connections of one address to the client listener; by default, and for 0, half of all its connections
    #[arg(long, env = "CONCORD_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    pub connections_per_address: Option<usize>,
    /// The origins whose pages may use the API from a browser, as `https://host:port`, comma-separated, or `*` for all;
    /// by default none
    #[arg(long, env = "CONCORD_CORS_ORIGINS", value_delimiter = ',', value_name = "LIST")]
    pub cors_origins: Vec<String>,
    /// Threads that serve requests; by default one per core, minus one for Raft, at least 1
    #[arg(long, env = "CONCORD_WORKER_THREADS", value_name = "N")]
    pub worker_threads: Option<usize>,
}

impl CallerArgs {
    /// The allowed origins besides the API's own; `*` alone allows all.
    ///
    /// # Errors
    /// When one of them is invalid.
    pub(super) fn origins(&self) -> Result<Vec<String>, String> {
        let given = self.cors_origins.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
        let given: Vec<String> = given.map(str::to_owned).collect();
        match given.iter().find(|text| !is_origin(text)) {
            Some(text) if given != ["*"] => Err(format!(
                "--cors-origins: `{text}` is no origin: expected `https://host` or `http://host:port` in lower case, \
                 without a path, or `*` alone"
            )),
            Some(_) | None => Ok(given),
        }
    }

    /// How many threads serve requests.
    ///
    /// # Errors
    /// When there are none, or too many.
    pub(super) fn worker_threads(&self) -> Result<usize, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.worker_threads.unwrap_or_else(|| cores.saturating_sub(1).max(1));
        if (1..=1024).contains(&threads) {
            Ok(threads)
        } else {
            Err("--worker-threads must be 1 to 1024".into())
        }
    }
}

/// Whether a text is an origin as browsers write it: in lower case, without a path, and without the port that its scheme
/// has anyway.
fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else { return false };
    let own_port = if *scheme == Scheme::HTTPS { 443 } else { 80 };
    (*scheme == Scheme::HTTP || *scheme == Scheme::HTTPS)
        && format!("{scheme}://{authority}") == text
        && !text.contains('@')
        && authority.port_u16() != Some(own_port)
        && !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(texts: &[&str]) -> Result<Vec<String>, String> {
        let cors_origins = texts.iter().map(|text| (*text).to_owned()).collect();
        CallerArgs { connections_per_address: None, cors_origins, worker_threads: None }.origins()
    }

    #[test]
    fn an_origin_is_as_a_browser_sends_it() {
        assert!(origins(&[]).unwrap().is_empty());
        assert!(origins(&[""]).unwrap().is_empty());
        assert_eq!(origins(&["*"]).unwrap(), ["*"]);
        let these = ["https://a.example", "http://localhost:3000", "http://[::1]:8080"];
        assert_eq!(origins(&these).unwrap(), these);
        for wrong in [
            "a.example",
            "https://a.example/",
            "https://a.example/x",
            "https://A.example",
            "https://a.example:443",
            "http://a.example:80",
            "ftp://a.example",
            "https://u@a.example",
            "null",
            "https://*.example/",
        ] {
            assert!(origins(&[wrong]).is_err(), "{wrong}");
        }
        assert!(origins(&["*", "https://a.example"]).is_err());
    }
}
