//! `WS /control`: operations one after another on one socket (exec.md §7).

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{Frame, Runner, Socket, decoders, within};

/// A control socket.
pub struct Control {
    pub socket: Socket,
}

/// One finished operation.
#[derive(Debug)]
pub struct Operation {
    pub frames: Vec<Frame>,
    pub tty: bool,
    /// `args` of `op.complete`.
    pub complete: Value,
}

impl Operation {
    pub fn code(&self) -> i64 {
        self.complete["exitCode"].as_i64().expect("op.complete carries args.exitCode")
    }

    /// One stream of a pipe-mode operation, or all terminal output.
    pub fn stream(&self, id: u8) -> Vec<u8> {
        let payload = |frame: &Frame| match frame {
            Frame::Binary(bytes) if self.tty => Some(bytes.to_vec()),
            Frame::Binary(bytes) if bytes.first() == Some(&id) => Some(bytes[1..].to_vec()),
            _ => None,
        };
        self.frames.iter().filter_map(payload).flatten().collect()
    }
}

impl Control {
    /// Dials as `agent` (`sprites-py/0.7.2`, …).
    pub async fn open(runner: &Runner, sprite: &str, agent: &str) -> Self {
        let target = format!("/v1/sprites/{sprite}/control");
        Self { socket: Socket::open(runner, &target, &[("user-agent", agent)]).await }
    }

    /// `op.start` of an exec.
    pub async fn start(&mut self, args: Value) {
        self.control(json!({"type": "op.start", "op": "exec", "args": args})).await;
    }

    pub async fn control(&mut self, message: Value) {
        self.socket.send(Message::Text(format!("control:{message}").into())).await;
    }

    /// Reads to `op.complete`; every client must read the same code.
    pub async fn finish(&mut self) -> Operation {
        let mut frames = Vec::new();
        let complete = loop {
            match self.envelope_or_frame().await {
                Ok(frame) => frames.push(frame),
                Err(envelope) if envelope["type"] == "op.complete" => break envelope["args"].clone(),
                Err(envelope) => panic!("an unexpected {envelope}"),
            }
        };
        // What was refused before it became a session is told on stderr, without a session_info.
        let tty = match frames.first() {
            Some(Frame::Text(info)) if info["type"] == "session_info" => info["tty"] == true,
            Some(Frame::Binary(bytes)) if bytes[0] == 2 => false,
            other => panic!("an operation that begins with {other:?}"),
        };
        let code = u8::try_from(complete["exitCode"].as_i64().expect("args.exitCode")).unwrap();
        decoders::check_control(&frames, tty, &complete, code);
        Operation { frames, tty, complete }
    }

    /// A whole exec without stdin.
    pub async fn run(&mut self, args: Value) -> Operation {
        self.start(args).await;
        self.finish().await
    }

    /// The next `control:` envelope (Err) or ordinary frame (Ok).
    pub async fn envelope_or_frame(&mut self) -> Result<Frame, Value> {
        loop {
            match self.socket.next_raw().await {
                Message::Text(text) => {
                    return match text.strip_prefix("control:") {
                        Some(json) => Err(serde_json::from_str(json).unwrap()),
                        None => Ok(Frame::Text(serde_json::from_str(&text).unwrap())),
                    };
                }
                Message::Binary(bytes) => return Ok(Frame::Binary(bytes)),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("the control socket ended: {other:?}"),
            }
        }
    }
}
