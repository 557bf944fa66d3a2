//! Passes sprite-scoped requests through to the agent: wakes, forwards, and after an upgrade copies bytes.
//!
//! It parses nothing of what passes, but for one thing: `POST /exec` needs one HTTP chunk per frame, and only whoever
//! writes to the client can see to that.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_buf, split};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::auth::Org;
use super::host::Host;
use crate::agent::routes::REQUEST_HEADER;
use crate::agent::routes::http_exec::FRAMES_TYPE;
use crate::sprite::Sprite;
use crate::store::tokens::random_hex;
use crate::wire::error::ApiError;
use crate::wire::query;

/// How long a handshake may wait for a sprite to wake. Clients give up after 10 s.
const WAKE_FOR_UPGRADE: Duration = Duration::from_secs(8);
/// How long another request may.
const WAKE: Duration = Duration::from_secs(25);
/// What an upgraded connection buffers towards the agent, and towards the client, where the bulk goes. Pages that are
/// never filled cost nothing.
const UP: usize = 64 << 10;
const DOWN: usize = 256 << 10;
/// How long a client has to close its side once the agent has closed.
const LINGER: Duration = Duration::from_secs(5);
/// The pause between two chunks of `POST /exec`: the JS SDK takes what one read gives for one frame (wire/exec.md §6).
const CHUNK_GAP: Duration = Duration::from_millis(5);

/// The pause before an agent that is gone is asked for again.
const RETRY: Duration = Duration::from_millis(20);

/// Headers of one hop only, which never pass.
const HOP: [HeaderName; 5] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE, header::TRAILER];

/// `/v1/sprites/{name}/…` for everything that an agent serves.
pub async fn forward(State(host): State<Arc<Host>>, Org(org): Org, request: Request) -> Result<Response, ApiError> {
    let (name, path) = split_path(request.uri()).ok_or_else(|| ApiError::invalid("the path is no sprite's"))?;
    let sprite = host.find(&org, &name)?;
    let upgrade = request.headers().contains_key(header::UPGRADE);
    // A list of sessions is not worth waking anybody for: a sleeping sprite has none (DESIGN.md §11).
    if path.path() == "/exec"
        && !upgrade
        && matches!(*request.method(), Method::GET | Method::HEAD)
        && sprite.link().is_none()
    {
        return Ok(axum::Json(serde_json::json!({"count": 0, "sessions": []})).into_response());
    }
    let mut response = send(&sprite, path, request, upgrade).await?;
    if upgrade && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// The sprite's name and the agent's path: split first, decoded after.
fn split_path(uri: &Uri) -> Option<(String, PathAndQuery)> {
    let rest = uri.path().strip_prefix("/v1/sprites/")?;
    let (name, tail) = rest.split_at(rest.find('/')?);
    let name = String::from_utf8(query::decode_segment(name.as_bytes())).ok()?;
    let target = match uri.query() {
        Some(query) => format!("{tail}?{query}"),
        None => tail.to_owned(),
    };
    Some((name, target.parse().ok()?))
}

async fn send(sprite: &Sprite, path: PathAndQuery, mut request: Request, upgrade: bool) -> Result<Response, ApiError> {
    let patience = if upgrade { WAKE_FOR_UPGRADE } else { WAKE };
    let deadline = Instant::now() + patience;
    // A handshake and a list are answered at once by an agent that is well; the rest may take as long as it takes.
    let quick =
        upgrade || (path.path().starts_with("/exec") && matches!(*request.method(), Method::GET | Method::HEAD));
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let mut headers = passing(parts.headers, upgrade);
    if upgrade {
        // Named, so that it can be sent again: a command that an agent started before it died is not started twice.
        let name = random_hex(12).map_err(ApiError::internal)?;
        headers.insert(REQUEST_HEADER, name.parse().map_err(ApiError::internal)?);
    }
    let uri = Uri::from(path);
    let inner = |body: Body| {
        let mut inner = http::Request::new(body);
        *inner.method_mut() = parts.method.clone();
        *inner.uri_mut() = uri.clone();
        *inner.headers_mut() = headers.clone();
        inner
    };
    let mut body = Some(body);
    let mut link = timeout_at(deadline, sprite.wake()).await.map_err(|_| waking())??;
    loop {
        let gone = match timeout_at(deadline, link.connect()).await.map_err(|_| waking())? {
            Err(error) => error,
            Ok(connection) => {
                let request = inner(if quick { Body::empty() } else { body.take().unwrap_or_default() });
                let asked = connection.send(request);
                let answered = match quick {
                    true => timeout_at(deadline, asked).await.map_err(|_| slow())?,
                    false => asked.await,
                };
                match answered {
                    Ok(response) => return Ok(answer(response, client)),
                    Err(error) if quick => error,
                    Err(error) => return Err(agent_gone(error)),
                }
            }
        };
        // The agent is dead or about to be: its successor answers.
        if Instant::now() + RETRY > deadline {
            return Err(agent_gone(gone));
        }
        sleep(RETRY).await;
        link = timeout_at(deadline, sprite.wake_again()).await.map_err(|_| waking())??;
    }
}

fn waking() -> ApiError {
    ApiError::unavailable("sprite_waking", "the sprite is still waking; try again in a moment")
}

fn slow() -> ApiError {
    ApiError::unavailable("agent_slow", "the sprite's agent does not answer; try again in a moment")
}

fn agent_gone(error: std::io::Error) -> ApiError {
    ApiError::unavailable("agent_gone", "the sprite's agent ended while it was asked; try again in a moment")
        .detail(error)
}

/// The headers that go on, in either direction.
fn passing(mut headers: HeaderMap, upgrade: bool) -> HeaderMap {
    let upgraded = upgrade.then(|| headers.get(header::UPGRADE).cloned()).flatten();
    HOP.iter().for_each(|name| {
        headers.remove(name);
    });
    headers.remove(header::AUTHORIZATION);
    if let Some(protocol) = upgraded {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    headers
}

fn answer(response: http::Response<Incoming>, client: Option<OnUpgrade>) -> Response {
    let (mut parts, body) = response.into_parts();
    if let (StatusCode::SWITCHING_PROTOCOLS, Some(client)) = (parts.status, client) {
        let mut agent = http::Response::from_parts(parts.clone(), body);
        let agent = hyper::upgrade::on(&mut agent);
        tokio::spawn(async move {
            match tokio::try_join!(client, agent) {
                Ok((client, agent)) => pump(client, agent).await,
                Err(error) => tracing::debug!(%error, "an upgrade did not come about"),
            }
        });
        parts.headers = passing(parts.headers, true);
        return Response::from_parts(parts, Body::empty());
    }
    let frames = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == FRAMES_TYPE);
    parts.headers = passing(parts.headers, false);
    if frames {
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        parts.headers.remove(header::CONTENT_LENGTH);
        return Response::from_parts(parts, chunks(body));
    }
    Response::from_parts(parts, Body::new(body))
}

/// Copies both ways until both sides are done. A client that has sent its last frame and gone makes the writes towards
/// it fail first; what it sent must still arrive (DESIGN.md §2).
async fn pump(client: Upgraded, agent: Upgraded) {
    let (from_client, mut to_client) = split(TokioIo::new(client));
    let (from_agent, mut to_agent) = split(TokioIo::new(agent));
    let up = copy_then_close(from_client, &mut to_agent, UP);
    let down = copy_then_close(from_agent, &mut to_client, DOWN);
    tokio::pin!(up, down);
    tokio::select! {
        () = &mut up => {
            // The client has gone. The agent sees it, and what it still had to say has no reader.
            let _ = timeout(LINGER, down).await;
        }
        () = &mut down => {
            // The agent has closed, or died: without a Close frame of its own the client sees a bare end.
            let _ = timeout(LINGER, up).await;
        }
    }
}

async fn copy_then_close(reader: impl AsyncRead + Unpin, writer: &mut (impl AsyncWrite + Unpin), buffer: usize) {
    let mut reader = tokio::io::BufReader::with_capacity(buffer, reader);
    // Either side's end is an ordinary end here.
    let _ = copy_buf(&mut reader, writer).await;
    let _ = writer.shutdown().await;
}

/// Turns the agent's length-prefixed frames into chunks, one each, with a pause between them.
fn chunks(body: Incoming) -> Body {
    let frames = Frames { body, buffer: BytesMut::new(), next: Instant::now() };
    Body::from_stream(stream::unfold(frames, |mut frames| async move {
        let frame = frames.next().await?;
        sleep_until(frames.next).await;
        frames.next = Instant::now() + CHUNK_GAP;
        Some((frame, frames))
    }))
}

struct Frames {
    body: Incoming,
    buffer: BytesMut,
    next: Instant,
}

impl Frames {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        loop {
            if let Some(length) = self.buffer.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize)
                && self.buffer.len() >= 4 + length
            {
                self.buffer.advance(4);
                return Some(Ok(self.buffer.split_to(length).freeze()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Some(Err(std::io::Error::other(error))),
                // An end inside a frame is a dead agent: the client must see a broken body, not a short one.
                None if self.buffer.is_empty() => return None,
                None => return Some(Err(std::io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }
}
