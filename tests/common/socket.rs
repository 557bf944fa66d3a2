//! A WebSocket client that keeps every frame and knows how each kind of goodbye looked.

use std::time::Instant;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::{PATIENCE, Query, Runner, TOKEN, decoders, processes, within};

/// One thing that came out of a socket.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Text(Value),
    Binary(Bytes),
    Ping,
    Pong(Bytes),
    /// A Close frame with its code (1005 when it had none) and reason.
    Close(u16, String),
    /// The TCP connection ended without a Close frame.
    Dropped,
}

impl Frame {
    pub fn is_end(&self) -> bool {
        matches!(self, Frame::Close(..) | Frame::Dropped)
    }

    /// A keepalive text, which may stand anywhere (exec.md §2.7).
    pub fn is_keepalive(&self) -> bool {
        matches!(self, Frame::Text(text) if text["type"] == "debug")
    }
}

/// An open exec or attach socket and what it has said.
pub struct Socket {
    ws: WebSocketStream<TcpStream>,
    /// Headers of the 101.
    pub headers: HeaderMap,
    /// Every frame but pings and pongs, in order.
    pub seen: Vec<Frame>,
    /// Keep output frames in `seen`? Off for streams of hundreds of MiB.
    pub keep_output: bool,
    /// Bytes of stdout that `line` has not handed out yet.
    unread: Vec<u8>,
}

impl Socket {
    /// Opens a socket, which must work.
    pub async fn open(runner: &Runner, target: &str, headers: &[(&str, &str)]) -> Self {
        let mut request = format!("ws://{}{target}", runner.addr).into_client_request().unwrap();
        let own = [("authorization", format!("Bearer {TOKEN}"))];
        let all = own.iter().map(|(k, v)| (*k, v.as_str())).chain(headers.iter().copied());
        for (name, value) in all {
            let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(10 << 20)) // what sprites-py accepts (exec.md §2.1)
            .max_frame_size(Some(10 << 20))
            .max_write_buffer_size(usize::MAX);
        let what = format!("the upgrade of {}", target.split('?').next().unwrap_or_default());
        let (ws, response) = within(&what, async {
            let stream = TcpStream::connect(runner.addr).await.unwrap();
            stream.set_nodelay(true).unwrap();
            match client_async_with_config(request, stream, Some(config)).await {
                Ok(opened) => opened,
                Err(Error::Http(refused)) => panic!("{what} was refused: {:?}", refused.map(|b| b.map(text))),
                Err(error) => panic!("{what} failed: {error}"),
            }
        })
        .await;
        let headers = response.headers().clone();
        Self { ws, headers, seen: Vec::new(), keep_output: true, unread: Vec::new() }
    }

    /// The next frame. After an end the same end is given again.
    pub async fn next(&mut self) -> Frame {
        if let Some(end) = self.seen.last().filter(|f| f.is_end()) {
            return end.clone();
        }
        let frame = match within("a frame", self.ws.next()).await {
            Some(Ok(Message::Text(text))) => Frame::Text(
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("text that is not JSON ({e}): {text}")),
            ),
            Some(Ok(Message::Binary(bytes))) => Frame::Binary(bytes),
            Some(Ok(Message::Ping(_))) => Frame::Ping,
            Some(Ok(Message::Pong(bytes))) => Frame::Pong(bytes),
            Some(Ok(Message::Close(None))) => Frame::Close(1005, String::new()),
            Some(Ok(Message::Close(Some(close)))) => Frame::Close(close.code.into(), close.reason.to_string()),
            Some(Ok(Message::Frame(_))) => unreachable!("raw frames are never read"),
            Some(Err(Error::Io(_) | Error::Protocol(_) | Error::ConnectionClosed)) | None => Frame::Dropped,
            Some(Err(error)) => panic!("socket error: {error}"),
        };
        let output = matches!(&frame, Frame::Binary(bytes) if bytes.first() != Some(&3));
        if !matches!(frame, Frame::Ping | Frame::Pong(_)) && (self.keep_output || !output) {
            self.seen.push(frame.clone());
        }
        frame
    }

    /// The next message as it came; for control sockets, whose texts are not all JSON.
    pub async fn next_raw(&mut self) -> Message {
        within("a message", self.ws.next()).await.expect("an open socket").expect("a readable socket")
    }

    /// The next frame that is neither ping, pong nor keepalive.
    pub async fn data(&mut self) -> Frame {
        loop {
            let frame = self.next().await;
            if !matches!(frame, Frame::Ping | Frame::Pong(_)) && !frame.is_keepalive() {
                return frame;
            }
        }
    }

    /// The `session_info`, which must be the first frame.
    pub async fn info(&mut self) -> Value {
        if self.seen.is_empty() {
            self.next().await;
        }
        match &self.seen[0] {
            Frame::Text(info) if info["type"] == "session_info" => info.clone(),
            other => panic!("the first frame must be session_info, not {other:?}"),
        }
    }

    /// The session's id.
    pub async fn id(&mut self) -> String {
        self.info().await["session_id"].as_str().expect("a string id").to_owned()
    }

    /// Reads until the whole stdout (or terminal output) so far contains `needle`.
    pub async fn until_stdout(&mut self, needle: &str) {
        let began = Instant::now();
        while !processes::contains(&self.stdout(), needle.as_bytes()) {
            let frame = self.next().await;
            let over = frame.is_end() || began.elapsed() > PATIENCE;
            assert!(!over, "{frame:?} before {needle:?}; output: {:?}", text(self.stdout()));
        }
    }

    /// The next line of stdout, without its end.
    pub async fn line(&mut self) -> String {
        let tty = self.info().await["tty"] == true;
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "no line; output: {:?}", text(self.stdout()));
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return text(line).trim_end_matches(['\r', '\n']).to_owned();
            }
            match self.next().await {
                Frame::Binary(bytes) if tty => self.unread.extend_from_slice(&bytes),
                Frame::Binary(bytes) if bytes.first() == Some(&1) => self.unread.extend_from_slice(&bytes[1..]),
                end if end.is_end() => panic!("ended ({end:?}) within a line: {:?}", text(self.unread.clone())),
                _ => {}
            }
        }
    }

    /// The next line of stdout as a number: how a command tells its pid.
    pub async fn number(&mut self) -> i32 {
        let line = self.line().await;
        line.trim().parse().unwrap_or_else(|_| panic!("not a number: {line:?}"))
    }

    fn is_tty(&self) -> bool {
        self.seen.iter().any(|f| matches!(f, Frame::Text(t) if t["type"] == "session_info" && t["tty"] == true))
    }

    /// All stdout (or terminal output) seen so far.
    pub fn stdout(&self) -> Vec<u8> {
        stream(&self.seen, self.is_tty(), 1)
    }

    pub fn stderr(&self) -> Vec<u8> {
        stream(&self.seen, self.is_tty(), 2)
    }

    /// Reads to the end and holds the whole to the rules of every exec.
    pub async fn finish(mut self) -> Transcript {
        // Keepalives alone are no progress.
        let mut progress = Instant::now();
        loop {
            match self.next().await {
                end if end.is_end() => break,
                frame if frame.is_keepalive() || frame == Frame::Ping => {
                    assert!(progress.elapsed() < PATIENCE, "no end; output: {:?}", text(self.stdout()));
                }
                _ => progress = Instant::now(),
            }
        }
        let transcript = Transcript { tty: self.is_tty(), frames: self.seen, headers: self.headers };
        transcript.check();
        transcript
    }

    pub async fn send(&mut self, message: Message) {
        within("a send", self.ws.send(message)).await.unwrap();
    }

    /// Sends, not minding a peer that has gone.
    pub async fn try_send(&mut self, message: Message) -> bool {
        within("a send", self.ws.send(message)).await.is_ok()
    }

    pub async fn binary(&mut self, bytes: impl Into<Bytes>) {
        self.send(Message::Binary(bytes.into())).await;
    }

    pub async fn text(&mut self, value: Value) {
        self.send(Message::Text(value.to_string().into())).await;
    }

    /// Stdin in pipe mode: `00` and the bytes.
    pub async fn stdin(&mut self, bytes: impl AsRef<[u8]>) {
        let mut frame = vec![0];
        frame.extend_from_slice(bytes.as_ref());
        self.binary(frame).await;
    }

    /// End of stdin: `04`.
    pub async fn eof(&mut self) {
        self.binary(vec![4]).await;
    }

    pub async fn signal(&mut self, name: &str) {
        self.text(json!({"type": "signal", "signal": name})).await;
    }

    pub async fn resize(&mut self, rows: u16, cols: u16) {
        self.text(json!({"type": "resize", "rows": rows, "cols": cols})).await;
    }

    pub async fn ping(&mut self, payload: &'static [u8]) {
        self.send(Message::Ping(Bytes::from_static(payload))).await;
    }

    /// Sends Close 1000 as a polite client does and waits for the answer.
    pub async fn close(mut self) {
        self.send(Message::Close(None)).await;
        while !self.next().await.is_end() {}
    }

    /// Drops TCP without a Close frame.
    pub fn vanish(self) {
        drop(self.ws);
    }

    /// Drops TCP by RST, so that whatever was in flight towards this client is void.
    pub fn reset(self) {
        self.ws.get_ref().set_zero_linger().unwrap();
        drop(self.ws);
    }

    /// Which end of the TCP connection is ours.
    pub fn port(&self) -> u16 {
        self.ws.get_ref().local_addr().unwrap().port()
    }
}

/// Lossy text, for messages and small outputs.
pub fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}

fn stream(frames: &[Frame], tty: bool, wanted: u8) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        match frame {
            Frame::Binary(bytes) if tty && wanted == 1 => all.extend_from_slice(bytes),
            Frame::Binary(bytes) if !tty && bytes.first() == Some(&wanted) => all.extend_from_slice(&bytes[1..]),
            _ => {}
        }
    }
    all
}

/// A socket read to its end.
#[derive(Debug)]
pub struct Transcript {
    pub frames: Vec<Frame>,
    pub tty: bool,
    pub headers: HeaderMap,
}

impl Transcript {
    pub fn stdout(&self) -> Vec<u8> {
        stream(&self.frames, self.tty, 1)
    }

    pub fn stderr(&self) -> Vec<u8> {
        stream(&self.frames, self.tty, 2)
    }

    pub fn out(&self) -> String {
        text(self.stdout())
    }

    pub fn err(&self) -> String {
        text(self.stderr())
    }

    pub fn info(&self) -> &Value {
        match &self.frames[0] {
            Frame::Text(info) if info["type"] == "session_info" => info,
            other => panic!("the first frame must be session_info, not {other:?}"),
        }
    }

    pub fn end(&self) -> &Frame {
        self.frames.last().unwrap()
    }

    /// The frames between `session_info` and the exit text that carry output.
    pub fn output_frames(&self) -> Vec<Bytes> {
        let output = |frame: &Frame| match frame {
            Frame::Binary(bytes) if self.tty || bytes.first() != Some(&3) => Some(bytes.clone()),
            _ => None,
        };
        self.frames.iter().filter_map(output).collect()
    }

    /// The exit text's code.
    pub fn code(&self) -> u8 {
        let is_exit = |frame: &&Frame| matches!(frame, Frame::Text(text) if text["type"] == "exit");
        let exits: Vec<_> = self.frames.iter().filter(is_exit).collect();
        let [Frame::Text(exit)] = exits[..] else { panic!("exactly one exit text, not {exits:?}: {:?}", self.tail()) };
        assert_eq!(exit["exit_code"], exit["code"], "{exit}");
        u8::try_from(exit["exit_code"].as_u64().expect("a number")).unwrap()
    }

    #[track_caller]
    pub fn expect(self, code: u8) -> Self {
        assert_eq!(self.code(), code, "stdout {:?}, stderr {:?}", self.out(), self.err());
        self
    }

    fn tail(&self) -> &[Frame] {
        &self.frames[self.frames.len().saturating_sub(6)..]
    }

    /// The rules that hold for every exec that was read to its end (exec.md §3.3), and every decoder.
    fn check(&self) {
        let info = self.info();
        assert_eq!(info["tty"].as_bool(), Some(self.tty), "{info}");
        assert!(info["created"].is_i64() && info["command"].is_string() && info["is_owner"].is_boolean(), "{info}");
        let code = self.code();
        let mut tail: Vec<Frame> = self.frames.iter().filter(|f| !f.is_keepalive()).cloned().collect();
        let close = if self.tty && code != 0 { 4000 + u16::from(code) } else { 1000 };
        let mut wanted = vec![Frame::Text(json!({"type": "exit", "exit_code": code, "code": code}))];
        if !self.tty {
            wanted.push(Frame::Binary(vec![3, code].into()));
        }
        wanted.push(Frame::Close(close, String::new()));
        let tail = tail.split_off(tail.len().saturating_sub(wanted.len()));
        assert_eq!(tail, wanted, "the exit sequence");
        for frame in self.output_frames() {
            assert!(!frame.is_empty() && (self.tty || frame.len() > 1), "an empty output frame: {frame:?}");
            assert!(self.tty || matches!(frame[0], 1 | 2), "an unknown stream: {}", frame[0]);
            assert!(frame.len() <= (64 << 10) + 1, "a frame of {} bytes", frame.len());
        }
        decoders::check_direct(self, code);
    }
}

impl Runner {
    /// A fresh command on `/exec`.
    pub async fn exec(&self, sprite: &str, query: &Query) -> Socket {
        self.exec_as(sprite, query, &[]).await
    }

    pub async fn exec_as(&self, sprite: &str, query: &Query, headers: &[(&str, &str)]) -> Socket {
        Socket::open(self, &format!("/v1/sprites/{sprite}/exec?{}", query.as_str()), headers).await
    }

    /// Runs a command without stdin to its end.
    pub async fn run(&self, sprite: &str, query: &Query) -> Transcript {
        self.exec(sprite, query).await.finish().await
    }

    /// Attaches by the path form.
    pub async fn attach(&self, sprite: &str, id: &str) -> Socket {
        self.attach_as(sprite, id, "stdin=true", "raw-tests").await
    }

    pub async fn attach_as(&self, sprite: &str, id: &str, query: &str, agent: &str) -> Socket {
        Socket::open(self, &format!("/v1/sprites/{sprite}/exec/{id}?{query}"), &[("user-agent", agent)]).await
    }
}
