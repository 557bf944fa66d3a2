//! Reads away what a handler left of its request's body, so that the connection can serve the next request.
//!
//! hyper closes a connection whose request was answered before its body was read, and does not say so in the answer: a
//! client that sends head and body apart, as Python's does, then loses whatever it sends next on that connection. A body
//! that cannot be read away soon is announced as the end of the connection instead.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use http::{HeaderValue, header};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::timeout;

/// How much is read away. A larger body costs more than a new connection.
const MOST: usize = 1 << 20;
/// How long that may take.
const LONGEST: Duration = Duration::from_secs(1);

/// The middleware.
pub async fn drain(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    // A client that waits to be asked for its body is not asked for one that nobody wants.
    let waits = request.headers().contains_key(header::EXPECT);
    let (parts, body) = request.into_parts();
    let shared = Arc::new(Mutex::new(body));
    let mut response = next.run(Request::from_parts(parts, Body::new(Lent(shared.clone())))).await;
    // Whoever still holds it reads it beside the answer, as `POST …/exec` does.
    if let Some(body) = Arc::into_inner(shared) {
        let body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_read = body.is_end_stream() || !waits && timeout(LONGEST, read_away(body)).await.unwrap_or(false);
        if !is_read {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
    response
}

/// Whether the end was reached.
async fn read_away(body: Body) -> bool {
    let mut pieces = body.into_data_stream();
    let mut left = MOST;
    while let Some(piece) = pieces.next().await {
        match piece.ok().and_then(|piece| left.checked_sub(piece.len())) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

/// A request's body that comes back when the handler has dropped it.
struct Lent(Arc<Mutex<Body>>);

impl Lent {
    fn with<T>(&self, look: impl FnOnce(&mut Body) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with(|body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|body| body.size_hint())
    }
}
