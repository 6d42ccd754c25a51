//! The listeners of a node, from the bound address to the end of their servers.
//!
//! **Invariant:** a server that has ended although nobody stopped it is the node's end.

use std::{io, time::Duration};

use tokio::{net::TcpListener, runtime::Handle, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::FAILED_SHUTDOWN_TIMEOUT;
use concord_http::{
    Served,
    server::{ServeOptions, Transport},
};

/// A bound listener.
pub(super) struct BoundListener {
    listener: TcpListener,
    /// Where its connections are served.
    runtime: Handle,
}

/// A server that accepts connections of a listener.
pub(super) struct RunningServer {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl BoundListener {
    /// Listens on an address. Its connections are served where `runtime` runs.
    pub(super) async fn bind(address: &str, runtime: &Handle) -> Result<Self, String> {
        let asked = address.to_owned();
        // A socket belongs to the runtime in which it is made.
        let bound = runtime.spawn(async move { TcpListener::bind(asked).await }).await;
        let bound = bound.unwrap_or_else(|error| Err(io::Error::other(error)));
        bound.map(|listener| Self { listener, runtime: runtime.clone() }).map_err(|error| {
            let in_use = error.kind() == io::ErrorKind::AddrInUse;
            let why = if in_use { "address in use".into() } else { error.to_string() };
            format!("cannot listen on {address}: {why}")
        })
    }

    pub(super) fn serve(self, served: Served, transport: Transport, options: ServeOptions) -> RunningServer {
        let stop = CancellationToken::new();
        let serving = served.serve(self.listener, transport, options, stop.clone());
        RunningServer { task: self.runtime.spawn(serving), stop }
    }
}

/// The servers of a node.
pub(super) struct Servers {
    pub(super) api: RunningServer,
    pub(super) peer: RunningServer,
    pub(super) metrics: MetricsServer,
}

impl Servers {
    /// Waits until one of them ends although nobody stopped it; the reason.
    pub(super) async fn failed(&mut self) -> String {
        tokio::select! {
            reason = self.api.failed("clients") => reason,
            reason = self.peer.failed("peers") => reason,
            reason = self.metrics.failed() => reason,
        }
    }
}

/// The server of metrics, if the settings name an address for it.
pub(super) struct MetricsServer(Option<RunningServer>);

impl MetricsServer {
    pub(super) fn serve(listener: Option<BoundListener>, served: Served, options: ServeOptions) -> Self {
        Self(listener.map(|listener| listener.serve(served, Transport::Plain, options)))
    }

    pub(super) async fn failed(&mut self) -> String {
        match &mut self.0 {
            Some(server) => server.failed("metrics").await,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn close(self) {
        if let Some(server) = self.0 {
            server.close("metrics", FAILED_SHUTDOWN_TIMEOUT).await;
        }
    }
}

impl RunningServer {
    /// Waits until the server ends although nobody stopped it; the reason. A node that accepts no connections can't
    /// go on.
    async fn failed(&mut self, clients: &str) -> String {
        let why = match (&mut self.task).await {
            Ok(()) => "it has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        format!("the server for {clients} has failed: {why}")
    }

    /// Accepts no more connections and waits for the requests in flight.
    pub(super) async fn close(mut self, clients: &str, drain: Duration) {
        self.stop.cancel();
        // One that has failed was awaited already.
        if self.task.is_finished() {
            return;
        }
        match timeout(drain, &mut self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("the server for {clients} has failed: {error}"),
            Err(_) => {
                self.task.abort();
                tracing::warn!("requests of {clients} were aborted after {} s", drain.as_secs());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let Err(error) = BoundListener::bind(&address, &Handle::current()).await else {
            panic!("bound twice")
        };
        assert_eq!(error, format!("cannot listen on {address}: address in use"));
    }
}
