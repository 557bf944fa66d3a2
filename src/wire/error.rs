//! Errors as clients see them: a status, a stable code, one sentence that says what to do, and (for the log only) a detail.
//!
//! Policy (DESIGN.md §10, wire/rest.md §4): the body is always a JSON object under 1 KiB with a string `error` (the code)
//! and a string `message` (the sentence). Filesystem errors are the exception the SDKs insist on: `error` holds the
//! text and `code` the errno name (wire/rest.md §2.3). 404 means "does not exist" and nothing else. The detail never
//! reaches a client, and neither text may hold a query string, stdin, output, a file's body or a token.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

/// The longest sentence a client is sent, in bytes as JSON. Clients keep only the first 1,024 bytes of a handshake error.
const MAX_MESSAGE: usize = 400;

/// The longest path that a filesystem error repeats, in bytes as JSON.
const MAX_PATH: usize = 256;

/// One refused or failed request.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// The JSON body.
    body: Map<String, Value>,
    /// Seconds for the `Retry-After` header.
    retry_after: Option<u32>,
    /// A line for the log; never sent.
    pub detail: Option<String>,
}

impl ApiError {
    /// An error with a stable machine `code` and a sentence for people.
    pub fn new(status: StatusCode, code: &str, message: impl AsRef<str>) -> Self {
        let mut body = Map::new();
        body.insert("error".into(), code.into());
        body.insert("message".into(), shorten(message.as_ref()).into());
        Self { status, body, retry_after: None, detail: None }
    }

    /// A filesystem failure in the form of wire/rest.md §2.3: `error` is the text, `code` the errno name.
    pub fn fs(status: StatusCode, errno: &str, text: impl AsRef<str>, path: &str) -> Self {
        let mut body = Map::new();
        body.insert("error".into(), shorten(text.as_ref()).into());
        body.insert("code".into(), errno.into());
        if !path.is_empty() && fitting(path, MAX_PATH) == path.len() {
            body.insert("path".into(), path.into());
        }
        Self { status, body, retry_after: None, detail: None }
    }

    /// 400: the request itself is wrong. Also carries the `errors` array that newer SDKs read.
    pub fn invalid(message: impl AsRef<str>) -> Self {
        let text = shorten(message.as_ref());
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", &text).with("errors", json!([text]))
    }

    /// 404 with the code of the thing that does not exist.
    pub fn not_found(code: &str, message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// 503 that asks the client to try again in a second.
    pub fn unavailable(code: &str, message: impl AsRef<str>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        error.retry_after = Some(1);
        error
    }

    /// 500 whose cause goes to the log only.
    pub fn internal(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the runner failed to do this; its log says why")
            .detail(detail)
    }

    /// Adds a field to the body.
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.body.insert(key.into(), value);
        self
    }

    /// Adds the line for the log.
    pub fn detail(mut self, detail: impl std::fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// The stable machine code.
    pub fn code(&self) -> &str {
        let key = if self.body.contains_key("code") { "code" } else { "error" };
        self.body.get(key).and_then(Value::as_str).unwrap_or("error")
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        let key = if self.body.contains_key("message") { "message" } else { "error" };
        self.body.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The body as JSON.
    pub fn to_json(&self) -> Value {
        Value::Object(self.body.clone())
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.status.as_u16(), self.code(), self.message())?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), code = self.code(), detail = self.detail, "request failed");
        }
        let bytes = self.to_json().to_string().into_bytes();
        let mut response = Response::new(Body::from(bytes));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Cuts a sentence that is too long.
fn shorten(text: &str) -> String {
    let end = fitting(text, MAX_MESSAGE);
    if end == text.len() { text.to_owned() } else { format!("{}…", &text[..end]) }
}

/// How many bytes of `text`, in whole characters, take at most `limit` bytes as JSON. A control character takes six.
fn fitting(text: &str, limit: usize) -> usize {
    let mut taken = 0;
    for (at, character) in text.char_indices() {
        taken += match character {
            '"' | '\\' => 2,
            control if control < ' ' => 6,
            other => other.len_utf8(),
        };
        if taken > limit {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_an_object_under_one_kibibyte_with_string_error_and_message() {
        let error = ApiError::invalid("é".repeat(5000));
        let text = error.to_json().to_string();
        assert!(text.len() < 1024, "{}", text.len());
        assert_eq!(error.to_json()["error"], "invalid_request");
        assert!(error.to_json()["message"].is_string());
        for hostile in ["\u{1}", "\"", "\\", "\n", "€"] {
            let text = hostile.repeat(5000);
            assert!(ApiError::invalid(&text).to_json().to_string().len() < 1024);
            for path in [&text, &hostile.repeat(200), &hostile.repeat(40)] {
                let error = ApiError::fs(StatusCode::NOT_FOUND, "ENOENT", &text, path);
                assert!(error.to_json().to_string().len() < 1024);
            }
        }
    }

    #[test]
    fn a_filesystem_error_has_text_in_error_and_errno_in_code() {
        let error = ApiError::fs(StatusCode::NOT_FOUND, "ENOENT", "open /x: no such file or directory", "/x");
        assert_eq!(
            error.to_json(),
            json!({"error": "open /x: no such file or directory", "code": "ENOENT", "path": "/x"})
        );
        assert_eq!(error.code(), "ENOENT");
    }
}
