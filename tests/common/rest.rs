//! A REST client: one connection a request, nothing retried, nothing followed, and every error body held to its shape.

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{Runner, TOKEN, within};

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }

    /// The lines of an NDJSON answer.
    pub fn lines(&self) -> Vec<Value> {
        assert!(self.body.ends_with(b"\n"), "the last line must end too: {self:?}");
        let text = std::str::from_utf8(&self.body).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    /// Demands a status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// The machine code of an error body.
    pub fn code(&self) -> String {
        self.json()["error"].as_str().expect("a string `error`").to_owned()
    }

    /// Every error is a JSON object under 1 KiB with a string `error` (rest.md §4, DESIGN.md §10).
    #[track_caller]
    pub fn assert_error_shape(&self) {
        assert!(self.status >= 400, "{self:?}");
        assert!(self.header("content-type").starts_with("application/json"), "{self:?}");
        assert!(!self.body.is_empty() && self.body.len() < 1024, "{self:?}");
        let body = self.json();
        assert!(body.is_object() && body["error"].is_string(), "{self:?}");
        assert!(body.get("message").is_none_or(Value::is_string), "{self:?}");
        assert!(body["message"].is_string() || body["code"].is_string(), "one sentence for people: {self:?}");
    }
}

/// A request under construction.
pub struct Call {
    addr: std::net::SocketAddr,
    request: http::request::Builder,
    body: Bytes,
}

impl Call {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Another token than the runner's own, or none.
    pub fn token(mut self, token: Option<&str>) -> Self {
        self.request.headers_mut().unwrap().remove("authorization");
        match token {
            Some(token) => self.header("authorization", &format!("Bearer {token}")),
            None => self,
        }
    }

    pub fn json(self, value: &Value) -> Self {
        self.header("content-type", "application/json").body(value.to_string())
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// The headers of a WebSocket upgrade; for upgrades that must be refused.
    pub fn upgrade(self) -> Self {
        self.header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    }

    pub async fn send(self) -> Reply {
        let request = self.request.body(Full::new(self.body)).unwrap();
        let what = format!("{} {}", request.method(), request.uri().path());
        let head = request.method() == http::Method::HEAD;
        within(&what, async {
            let stream = TcpStream::connect(self.addr).await.unwrap();
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            let response = sender.send_request(request).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            let body = if status == 101 {
                Bytes::new()
            } else {
                body.collect().await.unwrap_or_else(|e| panic!("body of {what}: {e}")).to_bytes()
            };
            let reply = Reply { status, headers: parts.headers, body };
            if status >= 400 && !head {
                reply.assert_error_shape();
            }
            reply
        })
        .await
    }
}

impl Runner {
    pub fn call(&self, method: &str, path: &str) -> Call {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.addr.to_string())
            .header("authorization", format!("Bearer {TOKEN}"));
        Call { addr: self.addr, request, body: Bytes::new() }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call("GET", path).send().await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path).send().await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.call("POST", path).json(&body).send().await
    }

    pub async fn put(&self, path: &str, body: Value) -> Reply {
        self.call("PUT", path).json(&body).send().await
    }

    /// Creates a sprite, which must work.
    pub async fn create(&self, name: &str) -> Value {
        self.post("/v1/sprites", serde_json::json!({ "name": name })).await.expect(201).json()
    }

    /// The session list of a sprite.
    pub async fn sessions(&self, sprite: &str) -> Vec<Value> {
        let list = self.get(&format!("/v1/sprites/{sprite}/exec")).await.expect(200).json();
        let sessions = list["sessions"].as_array().expect("an array, never null").clone();
        assert_eq!(list["count"], sessions.len());
        sessions
    }

    /// Ids of the listed sessions.
    pub async fn session_ids(&self, sprite: &str) -> Vec<String> {
        self.sessions(sprite).await.iter().map(|s| s["id"].as_str().expect("a string id").to_owned()).collect()
    }
}
