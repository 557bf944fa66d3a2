//! `POST /exec/{id}/kill`: a signal, its outcome, and an escalation, told line by line (wire/exec.md §5).
//!
//! A session that has ended already gets the full answer with its real code: killing twice succeeds for every client
//! (Fountain needs 404 or this; JS and Python raise on anything but 200; wire/fountain.md §4.8).

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use futures_util::stream;
use http::HeaderValue;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::exec;
use crate::agent::Agent;
use crate::agent::session::{Control, Session};
use crate::wire::error::ApiError;
use crate::wire::query::Query;
use crate::wire::{duration, signal};

/// How long a process may take to end before SIGKILL, unless the client says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long SIGKILL may take: only a process stuck in the kernel needs more.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest JSON body that is read.
const MAX_BODY: usize = 64 << 10;

/// `POST /exec/{id}/kill`.
pub async fn kill(
    State(agent): State<Arc<Agent>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let query = Query::of(request.uri());
    // A body that cannot be read may have named another signal: better to kill nobody.
    let unreadable = || ApiError::invalid("the body is not JSON; send signal and timeout in the query or in an object");
    let body = to_bytes(request.into_body(), MAX_BODY).await.map_err(|_| unreadable())?;
    let body: Value = match body.trim_ascii() {
        [] => Value::Null,
        body => serde_json::from_slice(body).map_err(|_| unreadable())?,
    };
    let text = |key: &str| -> Result<Option<String>, ApiError> {
        Ok(query.text(key)?.map(str::to_owned).or_else(|| match &body[key] {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }))
    };
    let signal = match text("signal")? {
        None => Signal::SIGTERM,
        Some(name) => signal::parse(&name)
            .and_then(|number| Signal::try_from(number).ok())
            .ok_or_else(|| ApiError::invalid("unknown signal").with("error", "unknown_signal".into()))?,
    };
    let limit = match text("timeout")? {
        None => DEFAULT_TIMEOUT,
        // Py's helper sends seconds as a number, whole or not.
        Some(text) => duration::parse(&text)
            .or_else(|| duration::parse(&format!("{text}s")))
            .ok_or_else(|| ApiError::invalid("invalid duration in timeout"))?,
    };
    let session = exec::find(&agent, &id)?;
    agent.pause.thaw();

    let (lines, receiver) = mpsc::channel(4);
    // A task of its own: the escalation happens whether or not the client stays to read about it.
    tokio::spawn(run(session, signal, limit, lines));
    let lines = stream::unfold(receiver, |mut receiver| async {
        let line: Bytes = receiver.recv().await?;
        Some((Ok::<_, std::io::Error>(line), receiver))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

async fn run(session: Arc<Session>, signal: Signal, limit: Duration, lines: mpsc::Sender<Bytes>) {
    let say = async |kind: &str, message: String, more: Value| {
        let mut line = json!({"type": kind, "message": message, "data": message});
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        // A client that has left need not be told.
        let _ = lines.send(Bytes::from(format!("{line}\n"))).await;
    };
    let name = signal::name(signal as i32);
    if session.pid > 0 {
        let message = format!("Signaling {name} to process group {}", session.pid);
        say("signal", message, json!({"signal": name, "pid": session.pid})).await;
    }
    let code;
    if !session.is_running() {
        say("exited", "Process exited".into(), json!({})).await;
        code = Some(session.leader_exit().await);
    } else if limit.is_zero() {
        // Delivered, and no more: Go sends every signal this way.
        session.control(Control::Signal(signal)).await;
        code = Some(timeout(Duration::from_millis(20), session.leader_exit()).await.unwrap_or(0));
    } else {
        session.control(Control::End(signal)).await;
        match timeout(limit, session.leader_exit()).await {
            Ok(exit) => {
                say("exited", "Process exited".into(), json!({})).await;
                code = Some(exit);
            }
            Err(_) => {
                say("timeout", format!("Timeout after {limit:?}, sending SIGKILL"), json!({})).await;
                session.control(Control::End(Signal::SIGKILL)).await;
                code = timeout(KILL_TIMEOUT, session.leader_exit()).await.ok();
                match code {
                    Some(_) => say("killed", "Process killed".into(), json!({})).await,
                    None => say("error", "Warning: process may not have terminated".into(), json!({})).await,
                }
            }
        }
    }
    let mut line = json!({"type": "complete"});
    if let Some(code) = code {
        line["exit_code"] = code.into();
    }
    let _ = lines.send(Bytes::from(format!("{line}\n"))).await;
}
