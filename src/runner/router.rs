//! All routes of the front door.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http::{HeaderValue, StatusCode, header};

use super::host::Host;
use super::object::SPRITE_VERSION;
use super::{auth, checkpoints, forward, policy, sprites, unread};
use crate::wire::error::ApiError;

/// Builds the router.
pub fn router(host: Arc<Host>) -> Router {
    let of_sprite = |rest: &str| format!("/v1/sprites/{{name}}{rest}");
    let api = Router::new()
        .route("/v1/organization", get(sprites::organization))
        .route("/v1/sprites", get(sprites::list).post(sprites::create))
        .route(&of_sprite(""), get(sprites::get).put(sprites::update).delete(sprites::delete))
        .route(&of_sprite("/upgrade"), post(sprites::upgrade))
        .route(&of_sprite("/restart"), post(sprites::restart))
        .route(&of_sprite("/check"), get(sprites::check))
        .route(&of_sprite("/policy/network"), get(policy::get).post(policy::set).put(policy::set).delete(policy::clear))
        .route(&of_sprite("/checkpoint"), post(checkpoints::create))
        .route(&of_sprite("/checkpoints"), get(checkpoints::list))
        .route(&of_sprite("/checkpoints/{id}"), get(checkpoints::get).delete(checkpoints::delete))
        .route(&of_sprite("/checkpoints/{id}/restore"), post(checkpoints::restore))
        .route(&of_sprite("/exec"), any(forward::forward))
        .route(&of_sprite("/exec/{*rest}"), any(forward::forward))
        .route(&of_sprite("/control"), any(forward::forward))
        .route(&of_sprite("/fs/{*rest}"), any(forward::forward))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(host.clone(), auth::check));
    Router::new()
        .fallback_service(api.with_state(host.clone()))
        .layer(middleware::from_fn_with_state(host, front))
        .layer(middleware::from_fn(unread::drain))
}

async fn unknown() -> ApiError {
    ApiError::not_found("not_found", "there is no such route")
}

async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route does not take that method")
}

/// What holds for every answer: the version that the Go SDK looks for, and a sprite's own host never reaches the API.
async fn front(State(host): State<Arc<Host>>, request: Request, next: Next) -> Response {
    let mut response = match is_sprite_url(&host, &request) {
        true => ApiError::unavailable("url_not_served", "sprite URLs are not served by this version").into_response(),
        false => next.run(request).await,
    };
    response.headers_mut().insert("sprite-version", HeaderValue::from_static(SPRITE_VERSION));
    response
}

/// Whether the Host header names a sprite: one label in front of the URL domain.
fn is_sprite_url(host: &Host, request: &Request) -> bool {
    let named = request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let named = named.rsplit_once(':').map_or(named, |(name, _)| name).to_ascii_lowercase();
    let label = named.strip_suffix(&host.settings.url_domain).and_then(|rest| rest.strip_suffix('.'));
    label.is_some_and(|label| !label.is_empty() && !label.contains('.'))
}
