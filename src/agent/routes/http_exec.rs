//! `POST /exec`: one command over plain HTTP, without a terminal (wire/exec.md §6).
//!
//! Towards the client one HTTP chunk is one frame. A proxy in between may cut chunks as it likes, so the agent sends
//! `[length: u32 BE][frame]` and the runner, which writes to the client, makes the chunks.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{BufMut, BytesMut};
use futures_util::{StreamExt, stream};
use http::HeaderValue;
use tokio::time::sleep;

use crate::agent::Agent;
use crate::agent::session::{Attachment, Cursor, Input, Next, Session};
use crate::wire::error::ApiError;
use crate::wire::exec::ExecRequest;
use crate::wire::frame;
use crate::wire::query::Query;

/// The content type by which the runner knows frames that it has to turn into chunks.
pub const FRAMES_TYPE: &str = "application/x-fountain-frames";
/// How long output is collected, so that a chatty command does not become a thousand tiny chunks.
const COLLECT: Duration = Duration::from_millis(10);
/// The largest frame that small ones are joined into.
const JOINED: usize = 32 << 10;

/// `POST /exec`.
pub async fn run(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let command = match ExecRequest::from_query(&Query::of(&parts.uri))? {
        ExecRequest::Start(command) if !command.tty => command,
        ExecRequest::Start(_) => {
            return Err(ApiError::invalid("POST …/exec has no terminal; use the WebSocket for tty"));
        }
        ExecRequest::Attach(_) => return Err(ApiError::invalid("POST …/exec cannot attach; use the WebSocket")),
    };
    let takes_input = command.stdin;
    let session = agent.start(command, None).await?;
    let attachment = session.attach();
    let feeder = takes_input.then(|| tokio::spawn(feed(session.clone(), body)));
    let running = Running { cursor: session.journal.cursor(None), _attachment: attachment, feeder, over: false };
    let frames = stream::unfold(running, |mut running| async move {
        let chunk = running.next().await?;
        Some((Ok::<_, std::io::Error>(chunk), running))
    });
    let mut response = Response::new(Body::from_stream(frames));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(FRAMES_TYPE));
    Ok(response)
}

/// Passes the body to stdin. A body that breaks off ends the input as a client that goes does: not at all.
async fn feed(session: Arc<Session>, body: Body) {
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(bytes) => session.input(Input::Bytes(bytes)).await,
            Err(_) => return,
        }
    }
    session.input(Input::Eof).await;
}

struct Running {
    cursor: Cursor,
    _attachment: Attachment,
    feeder: Option<tokio::task::JoinHandle<()>>,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(feeder) = &self.feeder {
            feeder.abort();
        }
    }
}

impl Running {
    /// The next frames with their lengths; `None` behind the exit.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut out = BytesMut::new();
        let mut joined = BytesMut::new();
        match self.cursor.next().await {
            Next::Exit(exit) => {
                self.over = true;
                put(&mut out, &frame::exit(exit.code));
            }
            Next::Lost(bytes) => {
                let text = format!("\n[fountain: {bytes} bytes of output are missing here]\n");
                put(&mut out, &frame::encode(frame::STDERR, text.as_bytes()));
            }
            Next::Frames(first) => {
                join(&mut out, &mut joined, first);
                sleep(COLLECT).await;
                if let Next::Frames(more) = self.cursor.try_next() {
                    join(&mut out, &mut joined, more);
                }
            }
            Next::Pending => {}
        }
        if !joined.is_empty() {
            put(&mut out, &joined);
        }
        Some(out.freeze())
    }
}

/// Joins neighbours of one stream.
fn join(out: &mut BytesMut, joined: &mut BytesMut, frames: Vec<Bytes>) {
    for frame in frames {
        if joined.first() == frame.first() && joined.len() + frame.len() <= JOINED {
            joined.put_slice(&frame[1..]);
            continue;
        }
        if !joined.is_empty() {
            put(out, joined);
            joined.clear();
        }
        joined.put_slice(&frame);
    }
}

fn put(out: &mut BytesMut, frame: &[u8]) {
    out.put_u32(frame.len() as u32);
    out.put_slice(frame);
}
