//! The harness of the raw-socket tests: a real runner in a temporary folder, and clients that hide nothing.
//!
//! It owns starting, killing and stopping the built binary ([`runner`]), a REST client ([`rest`]), a WebSocket client
//! that keeps every frame ([`socket`]), a chunk parser for HTTP exec ([`http_exec`]), the decoders of the official and
//! third-party clients re-told ([`decoders`]) and eyes on `/proc` ([`processes`]). It must never sleep: everything waits
//! for an event and gives up after [`PATIENCE`].
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part of the harness")]
#![allow(clippy::unwrap_used, reason = "a harness that unwraps fails the test, which is its purpose")]

pub mod control;
pub mod decoders;
pub mod http_exec;
pub mod processes;
pub mod query;
pub mod rest;
pub mod runner;
pub mod socket;

pub use control::Control;
pub use http_exec::HttpExec;
pub use processes::{Pidfd, agent_of};
pub use query::Query;
pub use rest::Reply;
pub use runner::{Options, Runner, TOKEN};
pub use socket::{Frame, Socket, Transcript};

use std::future::Future;
use std::time::Duration;

/// How long anything may take before a test calls it hung. Generous: six builds may share two cores.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Awaits `work`, or fails naming `what` was waited for.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(value) => value,
        Err(_) => panic!("gave up after {PATIENCE:?} waiting for {what}"),
    }
}

/// Asks `probe` again and again until it answers, yielding in between; for facts that only a request can show.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    within(what, async {
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}
