//! `concord mcp`: a server of the Model Context Protocol on stdin and stdout, for assistants.
//!
//! | what | file |
//! |---|---|
//! | start and end | this one |
//! | lines of stdin and stdout | `lines` |
//! | messages, and the versions of the protocol | `protocol` |
//! | the requests in work; which call leads to which tool | `server` |
//! | names, texts and schemas of the tools | `tools` |
//! | what they do | `read`, `write` |
//! | the length of results; errors | `result` |
//!
//! **Invariants:** stdout has messages of the protocol and nothing else; the log is on stderr. Without `--allow-write`
//! there is no tool that changes anything. No secret value is handed out: a key that may see them is rejected.

mod lines;
mod protocol;
mod read;
mod result;
mod server;
mod tools;
mod write;

use std::{io, time::Duration};

use clap::Args;
use concord_client::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{Failure, NodeArgs, TryArgs, client_of, run_async},
    output::{printable, say},
};
use lines::Lines;
use server::{REVEALS, Server, reveals};

/// Time limit of a request to the cluster with all its retries, in seconds: clients of the protocol wait for a minute.
const REQUEST_TIMEOUT_S: u64 = 30;
/// How long the start waits to hear what the access key may do. Clients wait some seconds for a server.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end waits until the last results are read.
const END_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(
    after_help = "It speaks the Model Context Protocol on stdin and stdout until stdin ends, and is started by an \
                  assistant: docs/guides/assistants.md has the settings. The access key decides what the assistant can do; \
                  it must not have `reveal`.\n\nExample of a key: concord key create --name assistant --grant \
                  'read,propose:prod.*'"
)]
pub(super) struct McpArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Offer tools that write configs and create change requests, as far as the access key may
    #[arg(long)]
    allow_write: bool,
}

/// Runs the command.
pub(super) fn run(args: &McpArgs) -> Result<(), Failure> {
    let client = client_of(&args.node, &TryArgs::lasting(REQUEST_TIMEOUT_S))?;
    run_async(serve(Server { client, may_write: args.allow_write }))
}

/// Serves until stdin ends, nobody reads stdout any more, or a signal arrives.
async fn serve(server: Server) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("signals can't be received: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        on_signal.cancel();
    });
    let found = tokio::select! {
        found = reveals(&server.client, Some(START_TIMEOUT)) => found,
        () = stop.cancelled() => return Ok(()),
    };
    match found {
        Ok(false) => {}
        Ok(true) => return Err(Failure::Usage(REVEALS.into())),
        // Each call asks again.
        Err(error @ (Error::Unavailable(_) | Error::Unknown { .. })) => {
            say(format_args!("warning: the cluster does not respond: {}", printable(&error.to_string())));
        }
        Err(error) => return Err(error.into()),
    }
    let Lines { input, output, is_written } = Lines::start()?;
    server::serve(server, input, output, stop).await;
    // The results are lost if nobody reads them.
    let _ = tokio::time::timeout(END_TIMEOUT, is_written).await;
    Ok(())
}
