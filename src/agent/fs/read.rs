//! `GET fs/read`: a file's bytes, all of them or the one range that was asked for.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::args::Args;
use super::ops::failure::At;
use super::ops::{self, Opened};
use super::{Files, Work, refuse_root};
use crate::wire::error::ApiError;
use crate::wire::query::Query;

/// Which bytes of a file an answer holds: from `start` up to and without `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
}

/// What a request's headers ask for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    All,
    Part(Span),
    Unsatisfiable,
}

pub(super) async fn read(State(files): State<Files>, request: Request) -> Result<Response, ApiError> {
    let args = Args::of_query(Query::of(request.uri()));
    refuse_root(&args)?;
    let path = args.path(&files.paths, "path")?;
    let api = path.clone();
    let opened = files.run(Work::Quick, move |paths| ops::open(paths, &path)).await?;
    let size = opened.size;
    let (status, span) = match asked(request.headers(), size) {
        Asked::All => (StatusCode::OK, Span { start: 0, end: size }),
        Asked::Part(span) => (StatusCode::PARTIAL_CONTENT, span),
        Asked::Unsatisfiable => return Ok(unsatisfiable(size, &api.to_string_lossy())),
    };
    let mut response = Response::new(content(files, opened, span, api));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(span.end - span.start));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if status == StatusCode::PARTIAL_CONTENT {
        headers.insert(header::CONTENT_RANGE, text(format!("bytes {}-{}/{size}", span.start, span.end - 1)));
    }
    Ok(response)
}

/// The bytes of `span`, as few in memory at a time as the file was opened with.
fn content(files: Files, opened: Opened, span: Span, api: std::path::PathBuf) -> Body {
    if let Some(whole) = opened.whole {
        let within = |at| usize::try_from(at).unwrap_or(usize::MAX).min(whole.len());
        let (start, end) = (within(span.start), within(span.end));
        return Body::from(Bytes::from(whole).slice(start..end));
    }
    let opened = Arc::new(opened);
    let pieces = stream::try_unfold(span.start, move |at| {
        let (files, opened, api) = (files.clone(), Arc::clone(&opened), api.clone());
        async move {
            if at >= span.end {
                return Ok::<_, ApiError>(None);
            }
            let piece = files.run(Work::Quick, move |_| opened.read(at, span.end - at).at("read", &api)).await?;
            let next = at + piece.len() as u64;
            Ok(Some((Bytes::from(piece), next)))
        }
    });
    Body::from_stream(pieces)
}

/// Reads `Range`. What is not one understandable range of bytes is ignored, as HTTP allows; so is every range under
/// `If-Range`, because these answers carry no validator that could match.
fn asked(headers: &HeaderMap, size: u64) -> Asked {
    if headers.contains_key(header::IF_RANGE) {
        return Asked::All;
    }
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let Some((unit, set)) = range.and_then(|range| range.split_once('=')) else { return Asked::All };
    let Some((first, last)) = set.trim().split_once('-') else { return Asked::All };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Asked::All;
    }
    let span = match (number(first), number(last)) {
        (Some(start), Some(last)) if start <= last => Span { start, end: last.saturating_add(1).min(size) },
        (Some(start), None) if last.is_empty() => Span { start, end: size },
        (None, Some(suffix)) if first.is_empty() => Span { start: size.saturating_sub(suffix), end: size },
        _ => return Asked::All,
    };
    if span.start < span.end { Asked::Part(span) } else { Asked::Unsatisfiable }
}

/// Digits only; what is too large for any file is as good as the largest number.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

fn unsatisfiable(size: u64, path: &str) -> Response {
    use axum::response::IntoResponse;
    let what = format!("read {path}: the range lies outside of the file's {size} bytes");
    let mut response = ApiError::fs(StatusCode::RANGE_NOT_SATISFIABLE, "EINVAL", what, path).into_response();
    response.headers_mut().insert(header::CONTENT_RANGE, text(format!("bytes */{size}")));
    response
}

fn text(value: String) -> HeaderValue {
    HeaderValue::try_from(value).unwrap_or_else(|_| HeaderValue::from_static("bytes */*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(range: &str, size: u64) -> Asked {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_str(range).unwrap());
        asked(&headers, size)
    }

    #[test]
    fn ranges_are_read_as_http_says() {
        let part = |start, end| Asked::Part(Span { start, end });
        assert_eq!(asked(&HeaderMap::new(), 10), Asked::All);
        assert_eq!(of("bytes=0-", 10), part(0, 10));
        assert_eq!(of("bytes=2-4", 10), part(2, 5));
        assert_eq!(of("bytes=2-99", 10), part(2, 10));
        assert_eq!(of("bytes=-3", 10), part(7, 10));
        assert_eq!(of("bytes=-99", 10), part(0, 10));
        assert_eq!(of("bytes=9-9", 10), part(9, 10));
        assert_eq!(of("bytes=2-99999999999999999999999", 10), part(2, 10));
        assert_eq!(of("bytes=10-", 10), Asked::Unsatisfiable);
        assert_eq!(of("bytes=-0", 10), Asked::Unsatisfiable);
        assert_eq!(of("bytes=0-", 0), Asked::Unsatisfiable);
        for ignored in ["bytes=4-2", "bytes=0-1,3-4", "lines=0-1", "bytes", "bytes=-", "bytes=a-b", "bytes=+1-2"] {
            assert_eq!(of(ignored, 10), Asked::All, "{ignored}");
        }
    }
}
