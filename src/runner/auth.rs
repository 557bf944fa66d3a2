//! Who asks: a bearer token stands for an org. Every request under `/v1` needs one, WebSocket handshakes included.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::host::Host;
use crate::wire::error::ApiError;

/// The org whose token came with the request.
#[derive(Debug, Clone)]
pub struct Org(pub String);

impl<S: Sync> FromRequestParts<S> for Org {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Org>().cloned().ok_or_else(unauthorized)
    }
}

/// The middleware: no token, no route.
pub async fn check(State(host): State<Arc<Host>>, mut request: Request, next: Next) -> Response {
    match bearer(request.headers()).and_then(|token| host.tokens.org_of(token)) {
        Some(org) => {
            request.extensions_mut().insert(Org(org));
            next.run(request).await
        }
        None => {
            let mut response = unauthorized().into_response();
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn unauthorized() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "the token is missing or not valid here; make one with `fountain token create`",
    )
}
