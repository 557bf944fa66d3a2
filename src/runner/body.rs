//! JSON bodies, read whatever the Content-Type says: shell scripts send none (wire/platform.md §0.2).

use axum::body::to_bytes;
use axum::extract::Request;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::wire::error::ApiError;

/// The longest JSON body, far above anything a client has reason to send.
const MAX_JSON: usize = 1 << 20;

/// The body as an object, without its nulls: an explicit null is as good as an absent key. No body is an empty object.
pub async fn object(request: Request) -> Result<Map<String, Value>, ApiError> {
    let bytes = to_bytes(request.into_body(), MAX_JSON).await.map_err(|_| {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "a JSON body can have 1 MiB at most")
    })?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(map.into_iter().filter(|(_, value)| !value.is_null()).collect()),
        Ok(_) => Err(ApiError::invalid("the body must be a JSON object")),
        // Where it went wrong, never what stood there.
        Err(error) => {
            Err(ApiError::invalid(format!("the body is no JSON (line {}, column {})", error.line(), error.column())))
        }
    }
}
