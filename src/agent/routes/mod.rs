//! The agent's HTTP face: the sprite-scoped part of the Sprites API, and a few routes of the runner's own under `/-/`.

pub mod control;
mod exec;
pub mod http_exec;
mod kill;
mod own;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use subtle::ConstantTimeEq;

use super::Agent;
use crate::wire::error::ApiError;

/// The header in which the runner shows the agent's secret. Loopback and file modes are not enough in plain mode, where
/// the sprite's processes are the same user.
pub const SECRET_HEADER: &str = "x-fountain-secret";

/// The header by which the runner names a request that starts a command: when the agent dies before it has answered, the
/// request is sent to the next one, and only that one can know whether the command had been started.
pub const REQUEST_HEADER: &str = "x-fountain-request";

/// All routes.
pub fn router(agent: Arc<Agent>, fs: Router) -> Router {
    let writes = middleware::from_fn_with_state(agent.clone(), own::wait_for_thaw);
    Router::new()
        .route("/exec", get(exec::list_or_start).post(http_exec::run))
        .route("/exec/{id}", get(exec::attach))
        .route("/exec/{id}/kill", post(kill::kill))
        .route("/control", get(control::open))
        .route("/-/hello", get(own::hello))
        .route("/-/lease", get(own::lease))
        .route("/-/pause", post(own::pause))
        .route("/-/stop", post(own::stop))
        .with_state(agent.clone())
        .merge(fs.layer(writes))
        .fallback(|| async { ApiError::not_found("not_found", "there is no such route in a sprite") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route does not take that method")
        })
        .layer(middleware::from_fn_with_state(agent, authorize))
}

async fn authorize(State(agent): State<Arc<Agent>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(SECRET_HEADER).map(|value| value.as_bytes()).unwrap_or_default();
    if !bool::from(shown.ct_eq(agent.config.secret.as_bytes())) {
        return ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "this socket is the runner's own")
            .into_response();
    }
    next.run(request).await
}

/// The client's User-Agent; some rules of the wire hang on it.
fn user_agent(headers: &HeaderMap) -> &str {
    headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
