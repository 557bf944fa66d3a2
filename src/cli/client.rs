//! A small client of the Sprites API: HTTP/1.1 and WebSockets over TCP or over a unix socket, with a bearer token.
//!
//! It owns one address and one token and keeps nothing else: every call opens its own connection. Our commands, the
//! demo and the benches use it exactly as a stranger's program would; it must never look into the state folder, and
//! it never prints the token. Only `http://` is spoken; a runner behind TLS is reached by its unix socket.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, handshake::client::generate_key, protocol::WebSocketConfig};

/// How long a connection may take to open; every other wait is the caller's to bound.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// The longest body that is read whole into memory.
const MAX_BODY: usize = 256 * 1024 * 1024;
/// The longest line of an NDJSON stream (the Go SDK's limit, wire/rest.md §3.2).
const MAX_LINE: usize = 64 * 1024;
/// Far above the 64 KiB that a server sends in one frame, far below what hurts.
const MAX_FRAME: usize = 16 * 1024 * 1024;

/// Any byte stream that a request can go over.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open WebSocket to the runner.
pub type WebSocket = WebSocketStream<Box<dyn Stream>>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not one that this client can use.
    #[error("{0}")]
    Address(String),
    /// Nothing answers at the address.
    #[error("cannot reach {address}: {source}")]
    Connect {
        /// What was dialled.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server answered with a status that the caller did not ask for.
    #[error("{status}{}{}", space(.code), colon(.message))]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The machine code in the body, or nothing.
        code: String,
        /// The sentence in the body, or nothing.
        message: String,
    },
    /// The connection broke, or what came over it is not HTTP.
    #[error("the connection to the runner broke: {0}")]
    Http(#[from] hyper::Error),
    /// The WebSocket broke.
    #[error("the WebSocket to the runner broke: {0}")]
    WebSocket(Box<tungstenite::Error>),
    /// The request cannot be written down.
    #[error("this request cannot be sent: {0}")]
    Request(#[from] http::Error),
    /// The answer is not what the API promises.
    #[error("the runner's answer makes no sense: {0}")]
    Answer(String),
}

fn space(code: &str) -> String {
    if code.is_empty() { String::new() } else { format!(" {code}") }
}

fn colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl From<tungstenite::Error> for ClientError {
    fn from(error: tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                Self::status(response.status(), body)
            }
            other => Self::WebSocket(Box::new(other)),
        }
    }
}

impl ClientError {
    /// Reads an error body; anything that is not the JSON of wire/rest.md §4 leaves code and message empty.
    fn status(status: StatusCode, body: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Self::Status { status, code: text("error"), message: text("message") }
    }

    /// The HTTP status, if the server got to answer.
    pub fn http_status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
enum Address {
    Tcp { authority: String, prefix: String },
    Unix(PathBuf),
}

/// One runner, as a holder of one token sees it.
#[derive(Clone)]
pub struct Client {
    address: Address,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client of `http://host:port[/prefix]`.
    pub fn http(base_url: &str, token: &str) -> Result<Self, ClientError> {
        let uri: Uri = base_url
            .parse()
            .map_err(|_| ClientError::Address(format!("{base_url:?} is not a URL; try http://host:port")))?;
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(ClientError::Address(format!("{base_url:?}: only http://host:port is supported here")));
        };
        let port = authority.port_u16().unwrap_or(80);
        let authority = format!("{}:{port}", authority.host());
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { address: Address::Tcp { authority, prefix }, authorization: Some(bearer(token)?) })
    }

    /// A client of the runner that listens on a unix socket. Without a token the socket's owner is the credential.
    pub fn unix(path: impl Into<PathBuf>, token: Option<&str>) -> Result<Self, ClientError> {
        Ok(Self { address: Address::Unix(path.into()), authorization: token.map(bearer).transpose()? })
    }

    /// Sends one request and returns as soon as the head of the answer is there, whatever its status.
    pub async fn send(&self, method: Method, target: &str, body: impl Into<Bytes>) -> Result<Reply, ClientError> {
        self.send_as(method, target, None, body.into()).await
    }

    /// [`Client::send`] with a JSON body.
    pub async fn send_json(&self, method: Method, target: &str, body: &Value) -> Result<Reply, ClientError> {
        self.send_as(method, target, Some("application/json"), body.to_string().into()).await
    }

    /// `GET`, expecting success and JSON.
    pub async fn get_json(&self, target: &str) -> Result<Value, ClientError> {
        self.send(Method::GET, target, Bytes::new()).await?.success().await?.json().await
    }

    async fn send_as(
        &self,
        method: Method,
        target: &str,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Reply, ClientError> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await?)).await?;
        tokio::spawn(connection);
        let mut request = self.request(method, target)?;
        if let Some(content_type) = content_type {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        let (head, body) = sender.send_request(request.map(|()| Full::new(body))).await?.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body })
    }

    /// Opens a WebSocket. A refusal comes back as [`ClientError::Status`].
    pub async fn connect_ws(&self, target: &str) -> Result<WebSocket, ClientError> {
        let mut request = self.request(Method::GET, target)?;
        let absolute = format!("ws://{}{}", self.host(), request.uri());
        *request.uri_mut() = absolute.parse().map_err(http::Error::from)?;
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        headers.insert("sec-websocket-key", HeaderValue::try_from(generate_key()).map_err(http::Error::from)?);
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_FRAME))
            .max_frame_size(Some(MAX_FRAME))
            .write_buffer_size(0);
        let stream = self.connect().await?;
        let (socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
        Ok(socket)
    }

    fn request(&self, method: Method, target: &str) -> Result<Request<()>, ClientError> {
        let prefix = match &self.address {
            Address::Tcp { prefix, .. } => prefix.as_str(),
            Address::Unix(_) => "",
        };
        let mut request = Request::builder().method(method).uri(format!("{prefix}{target}")).body(())?;
        let host = HeaderValue::try_from(self.host()).map_err(http::Error::from)?;
        request.headers_mut().insert(HOST, host);
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    fn host(&self) -> &str {
        match &self.address {
            Address::Tcp { authority, .. } => authority,
            Address::Unix(_) => "localhost",
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let opened = async {
            let stream: Box<dyn Stream> = match &self.address {
                Address::Tcp { authority, .. } => {
                    let stream = TcpStream::connect(authority.as_str()).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            };
            Ok(stream)
        };
        let result = tokio::time::timeout(CONNECT_DEADLINE, opened).await;
        result.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(|source| {
            let address = match &self.address {
                Address::Tcp { authority, .. } => format!("http://{authority}"),
                Address::Unix(path) => path.display().to_string(),
            };
            ClientError::Connect { address, source }
        })
    }
}

fn bearer(token: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| ClientError::Address("the token holds characters that HTTP cannot carry".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// An answer whose head has arrived.
pub struct Reply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
}

impl Reply {
    /// This reply if its status is 2xx, else its error body as [`ClientError::Status`].
    pub async fn success(self) -> Result<Self, ClientError> {
        if self.status.is_success() {
            return Ok(self);
        }
        let status = self.status;
        Err(ClientError::status(status, &self.bytes().await?))
    }

    /// The whole body.
    pub async fn bytes(mut self) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(chunk) = next_chunk(&mut self.body).await? {
            if whole.len() + chunk.len() > MAX_BODY {
                return Err(ClientError::Answer(format!("the body is over {MAX_BODY} bytes")));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    /// The whole body as JSON.
    pub async fn json(self) -> Result<Value, ClientError> {
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Answer(format!("not JSON: {error}")))
    }

    /// The body as lines of JSON, each as soon as it is there.
    pub fn lines(self) -> Lines {
        Lines { body: self.body, unread: BytesMut::new() }
    }
}

/// An NDJSON stream.
pub struct Lines {
    body: Incoming,
    unread: BytesMut,
}

impl Lines {
    /// The next line, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line = self.unread.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let value = serde_json::from_slice(&line);
                return value.map(Some).map_err(|error| ClientError::Answer(format!("not JSON: {error}")));
            }
            if self.unread.len() > MAX_LINE {
                return Err(ClientError::Answer(format!("a line is over {MAX_LINE} bytes")));
            }
            match next_chunk(&mut self.body).await? {
                Some(chunk) => self.unread.extend_from_slice(&chunk),
                None if self.unread.trim_ascii().is_empty() => return Ok(None),
                None => return Err(ClientError::Answer("the stream ends inside a line".into())),
            }
        }
    }
}

async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Percent-encodes one query value or path segment: only unreserved characters stay as they are.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_value_keeps_only_unreserved_characters() {
        assert_eq!(encode("a b+é&="), "a%20b%2B%C3%A9%26%3D");
        assert_eq!(encode("-._~09AZaz"), "-._~09AZaz");
    }

    #[test]
    fn an_address_is_http_with_a_host_and_keeps_its_prefix() {
        let client = Client::http("http://127.0.0.1:8080/base/", "tok").unwrap();
        assert_eq!(client.request(Method::GET, "/v1/sprites").unwrap().uri(), "/base/v1/sprites");
        assert_eq!(client.host(), "127.0.0.1:8080");
        assert!(Client::http("https://host", "tok").is_err());
        assert!(Client::http("host:80", "tok").is_err());
        assert!(Client::http("http://host", "line\nbreak").is_err());
    }

    #[test]
    fn a_status_error_says_what_the_server_said() {
        let error =
            ClientError::status(StatusCode::NOT_FOUND, br#"{"error":"sprite_not_found","message":"no sprite x"}"#);
        assert_eq!(error.to_string(), "404 Not Found sprite_not_found: no sprite x");
        assert_eq!(ClientError::status(StatusCode::BAD_GATEWAY, b"<html>").to_string(), "502 Bad Gateway");
    }
}
