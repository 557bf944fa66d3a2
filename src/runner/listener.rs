//! Accepts connections, with or without TLS, and speaks HTTP/1.1 on them.
//!
//! hyper answers what it cannot parse by itself, with an empty body. `Explained` turns those into JSON on their way
//! out, since every error is JSON here (DESIGN.md §10).

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tower::ServiceExt;

use crate::wire::error::ApiError;

/// Connections at a time. Each costs two descriptors while it is forwarded.
const MAX_CONNECTIONS: usize = 8192;
/// How long a client may take for its request's head. It also ends idle connections, so it is longer than the time for
/// which any client keeps one: a request never meets a connection that is just being closed.
const HEAD: Duration = Duration::from_secs(120);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The pause after an accept that failed, for want of descriptors as a rule.
const BACKOFF: Duration = Duration::from_millis(200);

/// Reads certificate and key.
pub fn tls(cert: &std::path::Path, key: &std::path::Path) -> Result<TlsAcceptor, String> {
    let wrong = |what: &str, path: &std::path::Path, error: &dyn std::fmt::Display| {
        format!("the {what} {} cannot be used: {error}", path.display())
    };
    let certs: Vec<CertificateDer> = CertificateDer::pem_file_iter(cert)
        .and_then(|certs| certs.collect())
        .map_err(|error| wrong("certificate", cert, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("key", key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certs, private))
        .map_err(|error| wrong("certificate", cert, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves TCP until the task is dropped.
pub async fn serve_tcp(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let limit = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(BACKOFF).await;
                continue;
            }
        };
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection stays slow");
            }
            match tls {
                None => connection(stream, router).await,
                Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, router).await,
                    _ => tracing::debug!("a TLS handshake failed"),
                },
            }
        });
    }
}

/// Serves a unix socket until the task is dropped.
pub async fn serve_unix(listener: UnixListener, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| is_trusted(peer.uid())) => {
                tokio::spawn(connection(stream, router.clone()));
            }
            Ok(_) => tracing::warn!("a stranger knocked at a socket of the runner's"),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(BACKOFF).await;
            }
        }
    }
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, router: Router) {
    let turn = Arc::new(Turn::default());
    let turns = turn.clone();
    let service = tower::service_fn(move |request: http::Request<Incoming>| {
        turns.set(BUSY);
        let (answer, turn) = (router.clone().oneshot(request.map(Body::new)), turns.clone());
        async move {
            let response = answer.await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                turn.set(UPGRADED);
            }
            Ok::<_, Infallible>(response.map(|body| Watched { body, turn }))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(Explained { stream, answer: None, turn }), TowerToHyperService::new(service))
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Whose turn it is on a connection. What hyper writes while nobody else answers is its own.
#[derive(Default)]
struct Turn(AtomicU8);

/// No request is being answered.
const IDLE: u8 = 0;
/// One is.
const BUSY: u8 = 1;
/// Its body has been given to hyper; the next flush puts the last of it on the wire.
const ENDING: u8 = 2;
/// The connection is no longer HTTP.
const UPGRADED: u8 = 3;

impl Turn {
    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Release);
    }

    fn moves(&self, from: u8, to: u8) {
        // A state that is not `from` stays as it is.
        let _ = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == IDLE
    }
}

/// A body that says when hyper is done with it.
struct Watched {
    body: Body,
    turn: Arc<Turn>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.turn.moves(BUSY, ENDING);
    }
}

/// A stream on which hyper's own empty errors become JSON.
struct Explained<S> {
    stream: S,
    /// An answer that stands in for hyper's, and how much of it has been written.
    answer: Option<(Vec<u8>, usize)>,
    turn: Arc<Turn>,
}

/// hyper's own refusals by the start of their head, and what is said instead.
fn explain(head: &[u8]) -> Option<Vec<u8>> {
    let refusals = [
        (
            &b"HTTP/1.1 414 "[..],
            "URI Too Long",
            "uri_too_long",
            "a request target can have 65534 bytes at most; send long arguments as stdin of POST …/exec or in a file",
        ),
        (
            b"HTTP/1.1 431 ",
            "Request Header Fields Too Large",
            "headers_too_large",
            "the request's headers are too large: 100 headers and about 400 KiB at most",
        ),
        (b"HTTP/1.1 400 ", "Bad Request", "bad_request", "this is no HTTP/1.1 request that can be read"),
    ];
    let (start, reason, code, message) = refusals.into_iter().find(|(start, ..)| head.starts_with(start))?;
    let text = std::str::from_utf8(head).ok().filter(|text| text.ends_with("\r\n\r\n"))?.to_ascii_lowercase();
    // Answers of our own carry a type.
    if !text.contains("content-length: 0\r\n") || text.contains("content-type:") {
        return None;
    }
    let status = std::str::from_utf8(&start[9..12]).ok()?.parse().ok()?;
    let body = ApiError::new(status, code, message).to_json().to_string();
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        status.as_u16(),
        body.len()
    );
    Some(head.into_bytes())
}

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.answer.is_none() {
            match Some(buf).filter(|_| self.turn.is_idle()).and_then(explain) {
                Some(answer) => self.answer = Some((answer, 0)),
                None => return Pin::new(&mut self.stream).poll_write(cx, buf),
            }
        }
        let this = &mut *self;
        if let Some((answer, written)) = &mut this.answer {
            while *written < answer.len() {
                match Pin::new(&mut this.stream).poll_write(cx, &answer[*written..]) {
                    Poll::Ready(Ok(count)) => *written += count,
                    other => return other.map_ok(|_| 0),
                }
            }
        }
        // hyper closes behind its own errors, so nothing else comes.
        self.answer = None;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs.iter().filter(|buf| !buf.is_empty()).count() {
            1 => {
                let only = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
                self.poll_write(cx, only)
            }
            _ => Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.turn.moves(ENDING, IDLE);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hypers_own_refusals_are_explained() {
        let own = explain(b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
        let text = String::from_utf8(own).unwrap();
        assert!(text.starts_with("HTTP/1.1 414 URI Too Long\r\ncontent-type: application/json\r\n"), "{text}");
        assert!(text.contains("65534 bytes"), "{text}");
        let ours = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n";
        assert!(explain(ours).is_none());
        assert!(explain(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_none());
        assert!(explain(b"\x81\x05hello").is_none());
    }
}
