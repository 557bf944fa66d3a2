//! The admin socket: what `fountain token …` and `fountain stop` talk to.
//!
//! Loopback is not a credential, so local commands come over a socket that only this user can open, and since plain
//! mode's sprites are this user too, they also show a secret kept in the state folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path as UrlPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use futures_util::future::join_all;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::sync::mpsc;

use super::body;
use super::host::Host;
use crate::store::files;
use crate::store::tokens::DEFAULT_ORG;
use crate::wire::error::ApiError;
use crate::wire::name;

/// The header that carries the secret.
pub const SECRET_HEADER: &str = "x-fountain-admin";
/// How long sessions have to end when a sprite is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// `<state>/runner.json`: how local commands find the running daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct Contact {
    /// The admin socket.
    pub socket: PathBuf,
    /// What it asks for.
    pub secret: String,
    /// The daemon's pid.
    pub pid: u32,
    /// Where the API is.
    pub url: String,
}

impl Contact {
    /// Writes it.
    pub fn write(&self, state: &Path) -> std::io::Result<()> {
        files::write_atomic(&Self::path(state), &serde_json::to_vec(self)?)
    }

    /// Reads it.
    pub fn read(state: &Path) -> std::io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(Self::path(state))?)?)
    }

    /// Where it is.
    pub fn path(state: &Path) -> PathBuf {
        state.join("runner.json")
    }
}

#[derive(Clone)]
struct Admin {
    host: Arc<Host>,
    secret: Arc<str>,
    /// Told when the runner is to end.
    quit: mpsc::Sender<()>,
}

/// The socket's routes.
pub fn router(host: Arc<Host>, secret: &str, quit: mpsc::Sender<()>) -> Router {
    let admin = Admin { host, secret: secret.into(), quit };
    Router::new()
        .route("/status", get(status))
        .route("/tokens", get(list_tokens).post(create_token))
        .route("/tokens/{id}", delete(revoke_token))
        .route("/stop", post(stop))
        .with_state(admin.clone())
        .fallback(|| async { ApiError::not_found("not_found", "there is no such route") })
        .layer(middleware::from_fn_with_state(admin, authorize))
}

async fn authorize(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(SECRET_HEADER).map(|value| value.as_bytes()).unwrap_or_default();
    match bool::from(shown.ct_eq(admin.secret.as_bytes())) {
        true => next.run(request).await,
        false => ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "the admin socket's secret is missing")
            .into_response(),
    }
}

async fn status(State(admin): State<Admin>) -> Json<Value> {
    let (sprites, sessions) = awake(&admin.host).await;
    Json(json!({"awake": sprites, "sessions": sessions, "sprites": admin.host.all().len()}))
}

/// How many sprites are awake, and how many sessions run in them.
pub async fn awake(host: &Host) -> (usize, u64) {
    let links: Vec<_> = host.all().iter().filter_map(|sprite| sprite.link()).collect();
    let counts = join_all(links.iter().map(|link| async {
        let response = link.call(http::Method::GET, "/-/hello").await.ok()?;
        let body = http_body_util::BodyExt::collect(response.into_body()).await.ok()?.to_bytes();
        serde_json::from_slice::<Value>(&body).ok()?["sessions"].as_u64()
    }))
    .await;
    (links.len(), counts.into_iter().flatten().sum())
}

async fn list_tokens(State(admin): State<Admin>) -> Json<Value> {
    let tokens = admin.host.tokens.list();
    let shown: Vec<Value> = tokens
        .iter()
        .map(|token| json!({"id": token.id, "org": token.org, "description": token.description, "created_at": token.created_at}))
        .collect();
    Json(json!({"tokens": shown}))
}

async fn create_token(State(admin): State<Admin>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::object(request).await?;
    let org = body.get("org").and_then(Value::as_str).unwrap_or(DEFAULT_ORG);
    if !name::is_valid(org) {
        return Err(ApiError::invalid("an org is named like a sprite: lowercase letters, digits and hyphens"));
    }
    let description = body.get("description").and_then(Value::as_str).unwrap_or_default();
    let (text, token) = admin.host.tokens.create(org, description).map_err(ApiError::internal)?;
    tracing::info!(token = token.id, org, "token created");
    Ok(Json(json!({"token": text, "id": token.id, "org": org})))
}

async fn revoke_token(State(admin): State<Admin>, UrlPath(id): UrlPath<String>) -> Result<StatusCode, ApiError> {
    match admin.host.tokens.revoke(&id).map_err(ApiError::internal)? {
        true => {
            tracing::info!(token = id, "token revoked");
            Ok(StatusCode::NO_CONTENT)
        }
        false => Err(ApiError::not_found("token_not_found", "there is no token with this id")),
    }
}

/// Ends agents in order: those of `sprites`, or all; then the runner itself, unless only named sprites were meant.
async fn stop(State(admin): State<Admin>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::object(request).await?;
    let named: Vec<&str> =
        body.get("sprites").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let all = body.get("all").and_then(Value::as_bool).unwrap_or(false);
    let org = body.get("org").and_then(Value::as_str).unwrap_or(DEFAULT_ORG);
    let sprites = match all {
        true => {
            // From here on nothing wakes any more, so nothing is missed that is just about to.
            admin.host.close();
            admin.host.all()
        }
        false => named.iter().map(|name| admin.host.find(org, name)).collect::<Result<_, _>>()?,
    };
    let was_awake = join_all(sprites.iter().map(|sprite| sprite.stop(GRACE))).await;
    // A sprite that is being deleted meanwhile ends that way.
    let stopped = was_awake.into_iter().filter(|outcome| matches!(outcome, Ok(true))).count();
    if named.is_empty() {
        // A full queue means that it is ending already.
        let _ = admin.quit.try_send(());
    }
    Ok(Json(json!({"stopped": stopped})))
}
