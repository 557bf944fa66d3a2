//! `/control`: one long-lived socket, operations one after another (wire/exec.md §7).
//!
//! The Go and JS SDKs are refused by default: one hangs on errors here, the other runs failing commands twice. Both
//! fall back to direct sockets on a 404 (§7.6).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Message;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{exec, user_agent};
use crate::agent::Agent;
use crate::agent::relay::{self, Outcome, Plan, Receiver, Sender};
use crate::wire::error::ApiError;
use crate::wire::exec::ExecRequest;
use crate::wire::frame::{self, InputMode};
use crate::wire::message::{self, CONTROL_PREFIX};
use crate::wire::query::Query;

/// How often an idle channel is pinged.
const PING_EVERY: Duration = Duration::from_secs(20);
/// The exit code of an operation whose arguments make no command.
const BAD_ARGUMENTS: u8 = 126;

/// The setting `control`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Refuse the SDKs that misbehave here.
    #[default]
    Auto,
    /// Serve everybody.
    On,
    /// Serve nobody.
    Off,
}

/// `GET /control`.
pub async fn open(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, ApiError> {
    let name = user_agent(request.headers()).to_owned();
    let refused = match agent.config.control {
        Mode::On => false,
        Mode::Off => true,
        Mode::Auto => name.starts_with("sprites-go-sdk/") || name == "node",
    };
    if refused {
        return Err(ApiError::not_found(
            "control_not_served",
            "the control channel is not served to this client; use direct exec sockets",
        ));
    }
    if !exec::wants_upgrade(request.headers()) {
        return Err(ApiError::invalid("the control channel is a WebSocket"));
    }
    let query = Query::of(request.uri());
    let first = match query.text("op")? {
        None => None,
        Some("exec") => Some(ExecRequest::from_query(&query)?),
        Some(other) => return Err(ApiError::invalid(format!("unknown operation: {other}"))),
    };
    let raw = name.starts_with("sprites-go-sdk/");
    let response = exec::upgrade(request).await?.on_upgrade(move |socket| async move {
        let (sender, receiver) = socket.split();
        let mut channel = Channel { agent, sender, receiver, raw };
        if let Some(first) = first
            && channel.operate(Ok(first), raw).await.is_err()
        {
            return;
        }
        channel.run().await;
    });
    Ok(exec::with_capabilities(response))
}

/// The client has gone.
struct Gone;

struct Channel {
    agent: Arc<Agent>,
    sender: Sender,
    receiver: Receiver,
    /// Whether the dial says that stdin comes without a stream byte.
    raw: bool,
}

#[derive(Deserialize)]
struct Start {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    op: String,
    #[serde(default)]
    args: Value,
}

impl Channel {
    /// Idle: waits for the next operation. Stray binary frames of the last one are dropped (§7.3).
    async fn run(&mut self) {
        loop {
            let message = tokio::select! {
                message = self.receiver.next() => message,
                () = tokio::time::sleep(PING_EVERY) => {
                    if self.sender.send(Message::Ping(Bytes::new())).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let outcome = match message {
                None | Some(Err(_)) => return,
                Some(Ok(Message::Text(text))) => self.text(&text).await,
                Some(Ok(_)) => Ok(()),
            };
            if outcome.is_err() {
                return;
            }
        }
    }

    async fn text(&mut self, text: &str) -> Result<(), Gone> {
        let bare = text.strip_prefix(CONTROL_PREFIX);
        let Ok(start) = serde_json::from_str::<Start>(bare.unwrap_or(text)) else { return Ok(()) };
        if start.kind != "op.start" {
            return Ok(());
        }
        if start.op != "exec" {
            let sentence = format!("unknown operation: {}", start.op);
            let answer = match bare {
                Some(_) => message::op_error(&sentence),
                // Whoever asks without the prefix reads the answer without it (§7.4).
                None => json!({"error": sentence, "code": "ENOSYS"}).to_string(),
            };
            return self.send(Message::text(answer)).await;
        }
        let raw = self.raw || start.args.get("path").is_some();
        self.operate(ExecRequest::from_control_args(&start.args), raw).await
    }

    /// Runs one exec. Its errors are output and exit codes: Go does not see `op.error` (§7.3).
    async fn operate(&mut self, request: Result<ExecRequest, ApiError>, raw: bool) -> Result<(), Gone> {
        let joined = match request {
            Ok(ExecRequest::Attach(wanted)) => {
                exec::find(&self.agent, &wanted.id).map(|session| (session, self.agent.config.replay, wanted.size))
            }
            Ok(ExecRequest::Start(command)) => {
                self.agent.start(command, None).await.map(|session| (session, None, None))
            }
            Err(error) => Err(error),
        };
        let (session, replay, size) = match joined {
            Ok(joined) => joined,
            Err(error) => {
                let text = format!("{}\n", error.message());
                self.send(Message::Binary(frame::encode(frame::STDERR, text.as_bytes()))).await?;
                self.send(Message::Binary(frame::exit(BAD_ARGUMENTS))).await?;
                return self.send(Message::text(message::op_complete(BAD_ARGUMENTS))).await;
            }
        };
        if let Some((cols, rows)) = size {
            session.request(crate::agent::session::Control::Resize(cols, rows)).await;
        }
        let tty = session.header.tty;
        let plan = Plan {
            cursor: session.journal.cursor(replay),
            is_owner: session.attached() == 0,
            input: match (tty, raw) {
                (true, _) => InputMode::Raw,
                (false, true) => InputMode::RawWithEof,
                (false, false) => InputMode::FramedControl,
            },
            framed: !tty,
            drop_stray_eof: false,
            control: true,
            exit_u32: false,
            session,
        };
        match relay::relay(&mut self.sender, &mut self.receiver, plan).await {
            Outcome::Finished(_) => Ok(()),
            Outcome::Disconnected => Err(Gone),
        }
    }

    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        self.sender.send(message).await.map_err(|_| Gone)
    }
}
