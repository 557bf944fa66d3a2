//! What the runner asks of an agent: who it is, the lease, a pause for a checkpoint, and its end.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::stream;
use http::{Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::agent::{Agent, PROTOCOL, lease};
use crate::wire::error::ApiError;
use crate::wire::{duration, query::Query};

/// `GET /-/hello`: identity and protocol, so that a new runner knows an old agent.
pub async fn hello(State(agent): State<Arc<Agent>>) -> Json<Value> {
    Json(json!({
        "protocol": PROTOCOL,
        "version": env!("CARGO_PKG_VERSION"),
        "sprite_id": agent.config.sprite_id,
        "pid": std::process::id(),
        "sessions": agent.sessions.running().len(),
    }))
}

/// `GET /-/lease`: an upgraded stream that the runner holds while it lives.
pub async fn lease(State(agent): State<Arc<Agent>>, mut request: Request) -> Result<Response, ApiError> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let held = lease::take(&agent.lease);
        let mut stream = hyper_util::rt::TokioIo::new(upgraded);
        // Nothing is said on it yet; its end is the news.
        let mut byte = [0; 1];
        while stream.read(&mut byte).await.is_ok_and(|count| count > 0) {}
        drop(held);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, header::HeaderValue::from_static("fountain-lease"));
    Ok(response)
}

/// `POST /-/pause?max=30s`: everything of the sprite stands still until the answer's body is closed by the runner, or
/// the time is up. A runner that dies in the middle freezes nobody.
pub async fn pause(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, ApiError> {
    let query = Query::of(request.uri());
    let limit = query.text("max")?.and_then(duration::parse).unwrap_or(Duration::from_secs(60));
    let frozen = agent.pause.freeze(limit).await?;
    // One byte says that all stands still; then silence until either side lets go.
    let body = stream::unfold((frozen, false), |(frozen, said)| async move {
        if said {
            frozen.thawed().await;
            return None;
        }
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"\n")), (frozen, true)))
    });
    Ok(Response::new(Body::from_stream(body)))
}

/// `POST /-/stop?grace=5s`: ends every session in order, then whatever is left, then the agent.
pub async fn stop(State(agent): State<Arc<Agent>>, request: Request) -> Result<Json<Value>, ApiError> {
    let query = Query::of(request.uri());
    let grace = query.text("grace")?.and_then(duration::parse).unwrap_or(Duration::from_secs(5));
    let ended = agent.stop(grace).await;
    Ok(Json(json!({"sessions_ended": ended})))
}

/// Holds changes of files back while a checkpoint is walking over them.
pub async fn wait_for_thaw(State(agent): State<Arc<Agent>>, request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        agent.pause.wait().await;
    }
    next.run(request).await
}
