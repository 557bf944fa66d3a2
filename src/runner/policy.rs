//! Network policy in plain mode: nothing can be enforced, so nothing but "no rules" is accepted (DESIGN.md §6).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use http::StatusCode;
use serde_json::{Value, json};

use super::auth::Org;
use super::body;
use super::host::Host;
use crate::wire::error::ApiError;

/// `GET …/policy/network`.
pub async fn get(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    host.find(&org, &name)?;
    Ok(Json(json!({"rules": []})))
}

/// `POST` or `PUT …/policy/network`: 204 for no rules, 422 for any.
pub async fn set(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    host.find(&org, &name)?;
    let body = body::object(request).await?;
    match body.get("rules") {
        Some(Value::Array(rules)) if rules.is_empty() => Ok(StatusCode::NO_CONTENT),
        Some(Value::Array(_)) => Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "network_policy_unsupported",
            "plain mode cannot enforce a network policy; use an environment without network limits, or a host in a sandbox mode",
        )),
        _ => Err(ApiError::invalid("rules must be an array")),
    }
}

/// `DELETE …/policy/network`: there is none.
pub async fn clear(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    host.find(&org, &name)?;
    Ok(StatusCode::NO_CONTENT)
}
