//! One client on one session: replay, live output and the exit in one direction, input in the other.
//!
//! The two directions never wait for each other: input must reach the process while 256 MiB of unread replay stand in
//! the way, and a client that sends its last frame and vanishes has still sent it (wire/fountain.md §4.4). The exit
//! sequence is wire/exec.md §3.3, to the letter: no socket is closed cleanly without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::agent::session::{Control, Cursor, Input, Next, Session};
use crate::wire::frame::{self, InputMode};
use crate::wire::message::{self, Request};

/// How often every socket is pinged, and how long it may be without a data frame before a text frame goes out: clients give
/// up after 45 s without a sign of life, and the JS SDK counts nothing but messages. On an idle socket both leave together.
const SIGN_OF_LIFE: Duration = Duration::from_secs(18);
/// A peer that sent nothing at all for so long, not even a pong, is gone. Pongs alone do not count: Go sends none.
const DEAD_AFTER: Duration = Duration::from_secs(80);
/// How long the client's answer to our Close is awaited. Closing earlier would reset the connection under the exit.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// How long the last words of a client that has gone may take to come in; they are in the socket already, as a rule.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The sending half of a client.
pub type Sender = SplitSink<WebSocket, Message>;
/// The receiving half.
pub type Receiver = SplitStream<WebSocket>;

/// How this client is spoken to.
pub struct Plan {
    /// The session.
    pub session: Arc<Session>,
    /// Where its output begins for this client.
    pub cursor: Cursor,
    /// Said in `session_info`.
    pub is_owner: bool,
    /// How its input is framed.
    pub input: InputMode,
    /// Whether output carries the stream byte. False on a terminal, but for the Go shim (wire/exec.md §4.3).
    pub framed: bool,
    /// Whether a first lone end-of-input frame is dropped (wire/exec.md §2.4).
    pub drop_stray_eof: bool,
    /// Whether this is an operation of a control channel.
    pub control: bool,
    /// Whether the older contract's exit frame follows the usual one.
    pub exit_u32: bool,
}

/// When the client was last heard of; both directions look at it.
struct Heard {
    begin: Instant,
    millis: AtomicU64,
}

impl Heard {
    fn new() -> Self {
        Self { begin: Instant::now(), millis: AtomicU64::new(0) }
    }

    fn now(&self) {
        self.millis.store(self.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        self.begin.elapsed().saturating_sub(Duration::from_millis(self.millis.load(Ordering::Relaxed)))
    }
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The exit sequence was sent.
    Finished(u8),
    /// The client has gone.
    Disconnected,
}

/// Runs until the session is over or the client has gone.
pub async fn relay(sender: &mut Sender, receiver: &mut Receiver, mut plan: Plan) -> Outcome {
    let attachment = plan.session.attach();
    let heard = Heard::new();
    let (notes, mut outbox) = mpsc::channel(4);
    let session = plan.session.clone();
    let input = read_input(receiver, &session, plan.input, plan.drop_stray_eof, plan.control, &heard, &notes);
    tokio::pin!(input);
    let outcome = tokio::select! {
        outcome = write_output(sender, &mut plan, &heard, &mut outbox) => match outcome {
            Ok(outcome) => outcome,
            Err(_) => {
                // The client has gone, and the write towards it knew first. What it sent before must still arrive.
                let _ = timeout(LAST_WORDS, input).await;
                Outcome::Disconnected
            }
        },
        () = &mut input => Outcome::Disconnected,
    };
    drop(attachment);
    outcome
}

/// Sends Close and waits for the other side to agree.
pub async fn close(mut sender: Sender, mut receiver: Receiver, code: u16) {
    let frame = CloseFrame { code, reason: "".into() };
    let goodbye = async {
        if sender.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = receiver.next().await {}
        }
    };
    tokio::select! {
        () = goodbye => {}
        () = sleep(CLOSE_WAIT) => {}
    }
}

/// The close code of a direct socket: 1000, or on a terminal 4000+N, the only place where JS looks (wire/exec.md §2.8).
pub fn close_code(tty: bool, exit: u8) -> u16 {
    if tty && exit != 0 { 4000 + u16::from(exit) } else { 1000 }
}

async fn read_input(
    receiver: &mut Receiver,
    session: &Session,
    mode: InputMode,
    drop_stray_eof: bool,
    control: bool,
    heard: &Heard,
    notes: &mpsc::Sender<String>,
) {
    let mut first_binary = true;
    while let Some(Ok(message)) = receiver.next().await {
        heard.now();
        match message {
            Message::Binary(bytes) => {
                let stray = drop_stray_eof && first_binary && bytes[..] == [frame::STDIN_EOF];
                first_binary = false;
                if stray {
                    continue;
                }
                match frame::decode_input(mode, bytes) {
                    frame::Input::Bytes(bytes) => session.input(Input::Bytes(bytes)).await,
                    frame::Input::Eof => session.input(Input::Eof).await,
                    frame::Input::Control(text) => request(session, &text).await,
                    frame::Input::Nothing => {}
                }
            }
            Message::Text(text) if control && text.starts_with(message::CONTROL_PREFIX) => {
                // One operation at a time: the first one goes on.
                let _ = notes.try_send(message::op_error("an operation is running already"));
            }
            Message::Text(text) => request(session, &text).await,
            // The library has queued the answer; reading on lets it out.
            Message::Close(_) => {
                tokio::select! {
                    _ = receiver.next() => {}
                    () = sleep(CLOSE_WAIT) => {}
                }
                return;
            }
            Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

async fn request(session: &Session, text: &str) {
    match message::parse_request(text) {
        Request::Resize(cols, rows) if session.header.tty => session.request(Control::Resize(cols, rows)).await,
        Request::Signal(number) => {
            if let Ok(signal) = nix::sys::signal::Signal::try_from(number) {
                session.request(Control::Signal(signal)).await;
            }
        }
        Request::Resize(..) | Request::Other => {}
    }
}

async fn write_output(
    sender: &mut Sender,
    plan: &mut Plan,
    heard: &Heard,
    outbox: &mut mpsc::Receiver<String>,
) -> Result<Outcome, axum::Error> {
    let (open, mut news) = plan.session.port_news();
    sender.feed(Message::text(session_info(plan))).await?;
    for port in open {
        sender.feed(Message::text(port)).await?;
    }
    sender.flush().await?;
    let tty = plan.session.header.tty;
    let (mut last_ping, mut last_data) = (Instant::now(), Instant::now());
    let code = loop {
        let next = tokio::select! {
            biased;
            Some(note) = outbox.recv() => {
                sender.send(Message::text(note)).await?;
                continue;
            }
            next = plan.cursor.next() => next,
            Ok(port) = news.recv() => {
                sender.send(Message::text(port)).await?;
                continue;
            }
            () = sleep_until(last_ping.min(last_data) + SIGN_OF_LIFE) => {
                if heard.elapsed() > DEAD_AFTER {
                    return Ok(Outcome::Disconnected);
                }
                last_ping = Instant::now();
                sender.feed(Message::Ping(Bytes::new())).await?;
                if last_data.elapsed() >= SIGN_OF_LIFE - Duration::from_secs(1) {
                    last_data = Instant::now();
                    if !plan.control {
                        sender.feed(Message::text(message::KEEPALIVE)).await?;
                    }
                }
                sender.flush().await?;
                continue;
            }
        };
        match next {
            Next::Frames(frames) => {
                for frame in frames {
                    let payload = if plan.framed { frame } else { frame.slice(1..) };
                    sender.feed(Message::Binary(payload)).await?;
                }
                sender.flush().await?;
            }
            Next::Lost(bytes) => sender.send(Message::Binary(lost(bytes, plan.framed))).await?,
            Next::Exit(exit) => break exit.code,
            Next::Pending => {}
        }
        last_data = Instant::now();
    };
    match (plan.control, tty) {
        (false, _) => {
            sender.feed(Message::text(message::exit(code))).await?;
            if !tty {
                sender.feed(Message::Binary(frame::exit(code))).await?;
            }
            if !tty && plan.exit_u32 {
                sender.feed(Message::Binary(frame::exit_u32(code))).await?;
            }
        }
        (true, false) => sender.feed(Message::Binary(frame::exit(code))).await?,
        (true, true) => sender.feed(Message::text(message::exit(code))).await?,
    }
    if plan.control {
        sender.feed(Message::text(message::op_complete(code))).await?;
    }
    sender.flush().await?;
    Ok(Outcome::Finished(code))
}

fn session_info(plan: &Plan) -> String {
    let header = &plan.session.header;
    let (cols, rows) = plan.session.size();
    message::to_text(&message::SessionInfo {
        kind: "session_info",
        session_id: &header.id,
        command: &header.command,
        created: header.created.div_euclid(1000),
        cols,
        rows,
        is_owner: plan.is_owner,
        tty: header.tty,
        replay_from: plan.cursor.start(),
    })
}

/// What a client reads where output is missing: a hole is said, never skipped.
fn lost(bytes: u64, framed: bool) -> Bytes {
    let text = format!("\n[fountain: {bytes} bytes of output are missing here: the host could not keep them]\n");
    match framed {
        true => frame::encode(frame::STDERR, text.as_bytes()),
        false => Bytes::from(text.replace('\n', "\r\n")),
    }
}
