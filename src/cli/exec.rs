//! The client's end of an exec socket: what to run, and the events that come back (wire/exec.md §1, §2, §4.3).
//!
//! It owns one open WebSocket. Bytes are passed on as they are and never decoded. It reports a missing exit as an
//! error: a socket that closes without one has not told how the command ended.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::client::{Client, ClientError, WebSocket, encode};
use crate::wire::frame;

/// A command and how to run it.
#[derive(Debug, Clone, Default)]
pub struct Command {
    argv: Vec<String>,
    stdin: bool,
    tty: Option<(u16, u16)>,
    detachable: bool,
}

impl Command {
    /// Runs `argv` as it is, without a shell.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Runs `script` with `sh -c`.
    pub fn sh(script: &str) -> Self {
        Self::new(["sh", "-c", script])
    }

    /// Gives the command a standard input; without this it reads end of file.
    pub fn stdin(mut self) -> Self {
        self.stdin = true;
        self
    }

    /// Runs the command on a terminal of this size.
    pub fn tty(mut self, rows: u16, cols: u16) -> Self {
        self.tty = Some((rows, cols));
        self
    }

    /// Lets the command go on for ever when no client is there.
    pub fn detachable(mut self) -> Self {
        self.detachable = true;
        self
    }

    /// The command as a person would type it.
    pub fn line(&self) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,+".contains(&byte);
        let words = self.argv.iter().map(|word| match word.is_empty() || !word.bytes().all(plain) {
            true => format!("'{}'", word.replace('\'', r"'\''")),
            false => word.clone(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn query(&self) -> String {
        let mut query = format!("stdin={}", self.stdin);
        if let Some((rows, cols)) = self.tty {
            query.push_str(&format!("&tty=true&rows={rows}&cols={cols}"));
        }
        if self.detachable {
            query.push_str("&detachable=true");
        }
        if let Some(program) = self.argv.first() {
            query.push_str(&format!("&path={}", encode(program)));
        }
        for word in &self.argv {
            query.push_str(&format!("&cmd={}", encode(word)));
        }
        query
    }
}

/// One thing that an exec socket says.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Standard output; on a terminal, everything.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// How the command ended; sent once.
    Exit(u8),
    /// Any other JSON message: ports, keepalives.
    Notice(Value),
}

/// Everything that a command said, once it has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output; on a terminal, everything.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The exit code, 128 + n after signal n.
    pub exit: u8,
}

/// An open exec socket.
pub struct Exec {
    socket: WebSocket,
    /// The session's id.
    pub session: String,
    /// Whether the session has a terminal.
    pub tty: bool,
    exit: Option<u8>,
}

impl Exec {
    /// Starts a command in a sprite.
    pub async fn start(client: &Client, sprite: &str, command: &Command) -> Result<Self, ClientError> {
        Self::open(client, &format!("/v1/sprites/{}/exec?{}", encode(sprite), command.query())).await
    }

    /// Joins a session: its output comes from the first byte on.
    pub async fn attach(client: &Client, sprite: &str, session: &str) -> Result<Self, ClientError> {
        Self::open(client, &format!("/v1/sprites/{}/exec/{}?stdin=true", encode(sprite), encode(session))).await
    }

    /// Starts a command and waits for its end.
    pub async fn run(client: &Client, sprite: &str, command: &Command) -> Result<Output, ClientError> {
        Self::start(client, sprite, command).await?.output().await
    }

    async fn open(client: &Client, target: &str) -> Result<Self, ClientError> {
        let mut exec =
            Self { socket: client.connect_ws(target).await?, session: String::new(), tty: false, exit: None };
        let Some(Event::Notice(info)) = exec.next().await? else {
            return Err(ClientError::Answer("an exec socket must begin with session_info".into()));
        };
        exec.session = info["session_id"].as_str().unwrap_or_default().to_owned();
        exec.tty = info["tty"].as_bool().unwrap_or_default();
        match info["type"] == "session_info" && !exec.session.is_empty() {
            true => Ok(exec),
            false => Err(ClientError::Answer("an exec socket must begin with session_info".into())),
        }
    }

    /// The next event, or `None` when the server has closed after the exit.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        while let Some(message) = self.socket.next().await {
            match message? {
                Message::Text(text) => {
                    let value: Value = serde_json::from_str(&text)
                        .map_err(|error| ClientError::Answer(format!("a text frame is not JSON: {error}")))?;
                    if value["type"] != "exit" {
                        return Ok(Some(Event::Notice(value)));
                    }
                    if let Some(event) = self.exited(value["exit_code"].as_u64())? {
                        return Ok(Some(event));
                    }
                }
                Message::Binary(bytes) if self.tty => return Ok(Some(Event::Stdout(bytes))),
                Message::Binary(mut bytes) => {
                    let stream = bytes.first().copied();
                    let payload = bytes.split_off(bytes.len().min(1));
                    match stream {
                        Some(frame::STDOUT) => return Ok(Some(Event::Stdout(payload))),
                        Some(frame::STDERR) => return Ok(Some(Event::Stderr(payload))),
                        Some(frame::EXIT) => {
                            if let Some(event) = self.exited(payload.first().map(|&code| code.into()))? {
                                return Ok(Some(event));
                            }
                        }
                        other => return Err(ClientError::Answer(format!("a frame of unknown stream {other:?}"))),
                    }
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
                Message::Close(_) => break,
            }
        }
        match self.exit {
            Some(_) => Ok(None),
            None => Err(ClientError::Answer("the socket closed before the command's exit came".into())),
        }
    }

    /// Notes an exit code. The text and the binary form must agree; the first one is the event.
    fn exited(&mut self, code: Option<u64>) -> Result<Option<Event>, ClientError> {
        let Some(code) = code.and_then(|code| u8::try_from(code).ok()) else {
            return Err(ClientError::Answer("an exit without a code of 0 to 255".into()));
        };
        match self.exit {
            None => {
                self.exit = Some(code);
                Ok(Some(Event::Exit(code)))
            }
            Some(first) if first == code => Ok(None),
            Some(first) => Err(ClientError::Answer(format!("two exit codes: {first}, then {code}"))),
        }
    }

    /// Sends input.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let message = match self.tty {
            true => Bytes::copy_from_slice(bytes),
            false => frame::encode(frame::STDIN, bytes),
        };
        Ok(self.socket.send(Message::Binary(message)).await?)
    }

    /// Ends the input of a session without a terminal.
    pub async fn end_stdin(&mut self) -> Result<(), ClientError> {
        Ok(self.socket.send(Message::Binary(frame::encode(frame::STDIN_EOF, &[]))).await?)
    }

    /// Changes the size of the session's terminal.
    pub async fn resize(&mut self, rows: u16, cols: u16) -> Result<(), ClientError> {
        let message = json!({"type": "resize", "rows": rows, "cols": cols});
        Ok(self.socket.send(Message::text(message.to_string())).await?)
    }

    /// Reads to the end, keeping everything in memory.
    pub async fn output(mut self) -> Result<Output, ClientError> {
        let mut output = Output::default();
        while let Some(event) = self.next().await? {
            match event {
                Event::Stdout(bytes) => output.stdout.extend_from_slice(&bytes),
                Event::Stderr(bytes) => output.stderr.extend_from_slice(&bytes),
                Event::Exit(code) => output.exit = code,
                Event::Notice(_) => {}
            }
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_becomes_the_query_of_the_sdks() {
        let command = Command::sh("echo a b; exit 7");
        assert_eq!(command.query(), "stdin=false&path=sh&cmd=sh&cmd=-c&cmd=echo%20a%20b%3B%20exit%207");
        let command = Command::new(["stty", "size"]).tty(40, 120).stdin().detachable();
        assert_eq!(command.query(), "stdin=true&tty=true&rows=40&cols=120&detachable=true&path=stty&cmd=stty&cmd=size");
    }

    #[test]
    fn a_command_line_is_quoted_for_a_shell() {
        assert_eq!(Command::sh("echo it's").line(), r"sh -c 'echo it'\''s'");
        assert_eq!(Command::new(["a", ""]).line(), "a ''");
    }
}
