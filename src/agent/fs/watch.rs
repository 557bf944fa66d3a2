//! The `fs/watch` socket: subscriptions in, messages out (wire/rest.md §2.10).
//!
//! One task owns one socket and its [`Watcher`]. A client that reads slowly slows this task only; the kernel's queue
//! behind it is bounded, and what is lost there is said. A client that reads nothing for a minute, or answers no ping,
//! is dropped.

use std::path::PathBuf;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite;

use super::ops::failure::Failure;
use super::watcher::{Message, Watcher};
use super::{Files, Work};
use crate::sys::pty::register;
use crate::wire::error::ApiError;

/// The largest message of a client; room for hundreds of paths.
const MAX_FRAME: usize = 256 << 10;

/// How often a silent client is asked whether it is still there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a message may wait for the client to read.
const SEND: Duration = Duration::from_secs(60);

/// The socket is to be ended.
struct Gone;

/// What a client sends. Everything but the type may be absent or null.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wish {
    r#type: String,
    #[serde(default)]
    paths: Option<Vec<String>>,
    #[serde(default)]
    recursive: Option<bool>,
    #[serde(default)]
    working_dir: Option<String>,
}

pub(super) async fn watch(
    State(files): State<Files>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|_| {
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", "fs/watch is a WebSocket; ask for an upgrade")
    })?;
    // Before the upgrade, so that a host without a free inotify instance is an HTTP error and not a dead socket.
    let watcher = Watcher::new(files.paths.clone()).map_err(|errno| {
        ApiError::unavailable("watch_limit", "this host has too many file watchers; close some, then try again")
            .detail(errno)
    })?;
    Ok(upgrade.max_message_size(MAX_FRAME).max_frame_size(MAX_FRAME).on_upgrade(move |socket| async move {
        // However it ends, there is nobody left to tell.
        _ = Watching { files, socket, watcher: Some(watcher), heard: Instant::now() }.serve().await;
    }))
}

struct Watching {
    files: Files,
    socket: WebSocket,
    /// Away only while a blocking step has it.
    watcher: Option<Watcher>,
    heard: Instant,
}

impl Watching {
    async fn serve(mut self) -> Result<(), Gone> {
        let readiness = self.watcher.as_ref().ok_or(Gone)?.readiness().map_err(|_| Gone)?;
        let readiness = register(readiness).map_err(|_| Gone)?;
        let mut ping = tokio::time::interval(PING);
        loop {
            tokio::select! {
                frame = self.socket.recv() => match frame {
                    Some(Ok(frame)) => self.hear(frame).await?,
                    Some(Err(error)) => return self.refuse(error).await,
                    None => return Err(Gone),
                },
                ready = readiness.readable() => {
                    // Cleared first: what comes while draining makes it ready again.
                    ready.map_err(|_| Gone)?.clear_ready();
                    self.drain().await?;
                }
                _ = ping.tick() => {
                    if self.heard.elapsed() > PATIENCE {
                        return Err(Gone);
                    }
                    self.send(Frame::Ping(Default::default())).await?;
                }
            }
        }
    }

    async fn drain(&mut self) -> Result<(), Gone> {
        loop {
            let batch = self.with_watcher(|watcher| watcher.drain()).await?;
            match batch.map_err(|_| Gone)? {
                Some(messages) => self.tell(messages).await?,
                None => return Ok(()),
            }
        }
    }

    async fn hear(&mut self, frame: Frame) -> Result<(), Gone> {
        self.heard = Instant::now();
        let text = match frame {
            Frame::Text(text) => text,
            Frame::Binary(_) => return self.tell(vec![Message::error("send JSON text frames only")]).await,
            Frame::Ping(_) | Frame::Pong(_) => return Ok(()),
            Frame::Close(_) => return Err(Gone),
        };
        let Ok(wish) = serde_json::from_str::<Wish>(&text) else {
            let message = "send {\"type\":\"subscribe\",\"paths\":[…],\"recursive\":true,\"workingDir\":\"/\"}";
            return self.tell(vec![Message::error(message)]).await;
        };
        let paths = wish.paths.unwrap_or_default();
        let mut wanted: Vec<(String, Option<PathBuf>)> = Vec::new();
        for path in paths {
            let dir = wish.working_dir.as_deref().filter(|dir| !dir.is_empty());
            let usable = !path.is_empty() && !path.contains('\0') && !dir.is_some_and(|dir| dir.contains('\0'));
            let api = usable.then(|| self.files.paths.resolve(path.as_bytes(), dir.map(str::as_bytes)));
            wanted.push((path, api));
        }
        match wish.r#type.as_str() {
            "subscribe" => self.subscribe(wanted, wish.recursive.unwrap_or(false)).await,
            "unsubscribe" => self.unsubscribe(wanted).await,
            _ => self.tell(vec![Message::error("the type must be subscribe or unsubscribe")]).await,
        }
    }

    async fn subscribe(&mut self, wanted: Vec<(String, Option<PathBuf>)>, recursive: bool) -> Result<(), Gone> {
        let work = move |watcher: &mut Watcher| {
            let mut messages = Vec::new();
            if wanted.is_empty() {
                messages.push(Message::error("subscribe needs paths"));
            }
            let mut paths = Vec::new();
            for (path, api) in wanted {
                let Some(api) = api else {
                    messages.push(Message::error("a path must be text without NUL, and not empty"));
                    continue;
                };
                match watcher.subscribe(&api, recursive) {
                    Ok(warnings) => {
                        paths.push(path);
                        messages.extend(warnings);
                    }
                    Err(failure) => messages.push(Message::error(failure.text)),
                }
            }
            messages.push(Message::Subscribed { paths });
            messages
        };
        let messages = self.with_watcher(work).await?;
        self.tell(messages).await
    }

    async fn unsubscribe(&mut self, wanted: Vec<(String, Option<PathBuf>)>) -> Result<(), Gone> {
        let work = move |watcher: &mut Watcher| {
            let mut paths = Vec::new();
            for (path, api) in wanted {
                if let Some(api) = api {
                    watcher.unsubscribe(&api);
                }
                paths.push(path);
            }
            Message::Unsubscribed { paths }
        };
        let message = self.with_watcher(work).await?;
        self.tell(vec![message]).await
    }

    /// Lends the watcher to a thread that may block. When it does not come back in time the socket ends.
    async fn with_watcher<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Watcher) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let mut watcher = self.watcher.take().ok_or(Gone)?;
        let done = self.files.run(Work::Long, move |_| {
            let result = work(&mut watcher);
            Ok::<_, Failure>((watcher, result))
        });
        let (watcher, result) = done.await.map_err(|_| Gone)?;
        self.watcher = Some(watcher);
        Ok(result)
    }

    async fn tell(&mut self, messages: Vec<Message>) -> Result<(), Gone> {
        for message in messages {
            let text = serde_json::to_string(&message).map_err(|_| Gone)?;
            self.send(Frame::Text(text.into())).await?;
        }
        Ok(())
    }

    async fn send(&mut self, frame: Frame) -> Result<(), Gone> {
        match timeout(SEND, self.socket.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }

    /// Says goodbye to a client that broke the protocol, with the code that names how.
    async fn refuse(mut self, error: axum::Error) -> Result<(), Gone> {
        let error = error.into_inner();
        let (code, reason) = match error.downcast_ref::<tungstenite::Error>() {
            Some(tungstenite::Error::Capacity(_)) => (close_code::SIZE, "messages are at most 256 KiB"),
            Some(tungstenite::Error::Utf8(_)) => (close_code::INVALID, "text frames are UTF-8"),
            _ => (close_code::PROTOCOL, "protocol error"),
        };
        self.send(Frame::Close(Some(CloseFrame { code, reason: reason.into() }))).await?;
        // Unread bytes would turn the end of the connection into a reset that eats the Close.
        let rest = async { while let Some(Ok(_)) = self.socket.recv().await {} };
        _ = timeout(Duration::from_secs(1), rest).await;
        Ok(())
    }
}
