//! `fountain demo`: starts a runner of its own, walks through what the API can do, checks every answer, cleans up.
//!
//! It is a client like any other (`client.rs`, `exec.rs`) and prints each request and what came back. The first answer
//! that is not as it should be ends the walk and makes the exit code 1. It leaves nothing behind, also after a failure
//! or Ctrl-C, and prints no secret.

mod screen;

use std::fmt::Debug;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::client::{Client, ClientError, encode};
use super::exec::{Command, Event, Exec, Output};
use super::throwaway::{Throwaway, ThrowawayError, tail};
use screen::Screen;

/// The whole walk takes a few seconds; a minute means that something hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long the host is without a runner in the middle of the walk.
const AWAY: Duration = Duration::from_millis(700);
/// The sprite of the walk.
const SPRITE: &str = "/v1/sprites/demo";
/// A session that never stops counting, some thirty times a second.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.03; done";
/// The file that the walk writes, breaks and gets back.
const NOTES: &str = "/home/sprite/project/notes.txt";
/// Its text.
const TEXT: &str = "the only copy\n";

/// Why the walk ended early.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Runner(#[from] ThrowawayError),
    #[error("expected {expected}, got {got}")]
    Unexpected { expected: String, got: String },
    #[error("no end in {} s", DEADLINE.as_secs())]
    TooSlow,
    #[error("interrupted")]
    Interrupted,
}

/// `fountain demo`: the exit code.
pub fn main() -> ExitCode {
    let (runtime, binary) = match (tokio::runtime::Runtime::new(), std::env::current_exe()) {
        (Ok(runtime), Ok(binary)) => (runtime, binary),
        (Err(error), _) | (_, Err(error)) => {
            Screen::new().failed(error);
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(run(binary))
}

/// Runs the demo of a `fountain` binary to its end and tells how it went.
pub async fn run(binary: PathBuf) -> ExitCode {
    let mut screen = Screen::new();
    screen.line("fountain demo: a runner of its own, a walk through the API, and nothing left behind");
    // Caught before there is anything to clean up.
    let stopped = match stop_signals() {
        Ok(stopped) => stopped,
        Err(error) => {
            screen.failed(error);
            return ExitCode::FAILURE;
        }
    };
    let mut host = match Throwaway::new(binary, "demo") {
        Ok(host) => host,
        Err(error) => {
            screen.failed(error);
            return ExitCode::FAILURE;
        }
    };
    let walked = tokio::select! {
        walked = tokio::time::timeout(DEADLINE, walk(&mut screen, &mut host)) => walked.unwrap_or(Err(Trouble::TooSlow)),
        () = stopped => Err(Trouble::Interrupted),
    };
    if let Err(trouble) = &walked {
        screen.failed(trouble);
        let log = std::fs::read_to_string(host.log()).unwrap_or_default();
        if !log.is_empty() && !matches!(trouble, Trouble::Interrupted) {
            screen.line(&format!("     the runner's log ends with:\n{}", tail(&log)));
        }
    }
    screen.step("Stop everything and remove the folder");
    screen.sent(&format!("$ fountain stop --all --state {}", host.state().display()));
    if let Err(error) = host.stop().await {
        screen.failed(error);
        return ExitCode::FAILURE;
    }
    screen.got("no process and no file is left");
    match walked {
        Ok(()) => {
            screen.finished();
            ExitCode::SUCCESS
        }
        // As a shell reports a program that Ctrl-C has ended.
        Err(Trouble::Interrupted) => ExitCode::from(130),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Ctrl-C, SIGTERM and the loss of the terminal, caught from here on.
fn stop_signals() -> std::io::Result<impl Future<Output = ()>> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut interrupt, mut terminate, mut hangup] = match kinds.map(signal) {
        [Ok(interrupt), Ok(terminate), Ok(hangup)] => [interrupt, terminate, hangup],
        [Err(error), ..] | [_, Err(error), _] | [.., Err(error)] => return Err(error),
    };
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

async fn walk(screen: &mut Screen, host: &mut Throwaway) -> Result<(), Trouble> {
    screen.step("Start a runner");
    screen.sent(&format!("$ {}", host.command_line()));
    let client = host.start().await?;
    screen.got(format!("listening on {}", host.url().unwrap_or_default()));

    screen.step("Create a sprite: a named sandbox with a home and processes of its own");
    screen.sent(r#"POST /v1/sprites  {"name":"demo"}"#);
    let reply = client.send_json(Method::POST, "/v1/sprites", &json!({"name": "demo"})).await?;
    let status = reply.status;
    let sprite = reply.success().await?.json().await?;
    same(201, status.as_u16())?;
    same("demo", text(&sprite, "name"))?;
    same("running", text(&sprite, "status"))?;
    screen.got(format!("{status}, it is {}", text(&sprite, "status")));

    commands(screen, &client).await?;
    let client = survive(screen, host, client).await?;
    files(screen, &client).await?;

    screen.step("Delete the sprite");
    screen.sent(&format!("DELETE {SPRITE}"));
    let status = client.send(Method::DELETE, SPRITE, Bytes::new()).await?.status;
    same(StatusCode::NO_CONTENT, status)?;
    screen.got(status);
    screen.sent(&format!("GET {SPRITE}"));
    let gone = client.get_json(SPRITE).await;
    same("404", refused(&gone))?;
    screen.got("404, it is gone");
    Ok(())
}

/// Commands: two streams and an exit code, standard input, a terminal.
async fn commands(screen: &mut Screen, client: &Client) -> Result<(), Trouble> {
    screen.step("Run a command: both streams and the exit code come back, byte for byte");
    let command = Command::sh("echo out; echo err >&2; exit 7");
    screen.sent(&format!("WS {SPRITE}/exec  {}", command.line()));
    let output = Exec::run(client, "demo", &command).await?;
    same_output(Output { stdout: b"out\n".into(), stderr: b"err\n".into(), exit: 7 }, &output)?;
    screen.got(said(&output));

    screen.step("Write to a command's standard input");
    let command = Command::new(["sort"]).stdin();
    screen.sent(&format!("WS {SPRITE}/exec  {}  <<< pear, apple", command.line()));
    let mut exec = Exec::start(client, "demo", &command).await?;
    exec.write(b"pear\napple\n").await?;
    exec.end_stdin().await?;
    let output = exec.output().await?;
    same_output(Output { stdout: b"apple\npear\n".into(), ..Output::default() }, &output)?;
    screen.got(said(&output));

    screen.step("Ask for a terminal");
    let command = Command::new(["stty", "size"]).tty(40, 120).stdin();
    screen.sent(&format!("WS {SPRITE}/exec?tty=true&rows=40&cols=120  {}", command.line()));
    let output = Exec::run(client, "demo", &command).await?;
    same_output(Output { stdout: b"40 120\r\n".into(), ..Output::default() }, &output)?;
    screen.got(said(&output));
    Ok(())
}

/// A session lives through the loss of its client and of the runner itself.
async fn survive(screen: &mut Screen, host: &mut Throwaway, client: Client) -> Result<Client, Trouble> {
    screen.step("Start a session that counts, and drop the connection");
    let command = Command::sh(COUNTER).detachable();
    screen.sent(&format!("WS {SPRITE}/exec?detachable=true  {}", command.line()));
    let mut exec = Exec::start(&client, "demo", &command).await?;
    let mut seen = Ticks::default();
    seen.read_to(&mut exec, 5).await?;
    let session = exec.session.clone();
    drop(exec);
    screen.got(format!("session {session} said tick 1 to tick {}; now nobody listens", seen.count));

    screen.step("Kill the runner the hard way, and start it again");
    screen.sent(&format!("$ kill -9 {}", host.pid().unwrap_or_default()));
    host.kill_9()?;
    let unreachable = client.get_json(SPRITE).await.is_err();
    same(true, unreachable)?;
    screen.got("no runner on this host; the session does not know");
    tokio::time::sleep(AWAY).await;
    screen.sent(&format!("$ {}", host.command_line()));
    let client = host.start().await?;
    screen.got(format!("listening on {}", host.url().unwrap_or_default()));

    screen.step("Attach again: everything from the first byte on, then live");
    screen.sent(&format!("WS {SPRITE}/exec/{session}"));
    let mut exec = Exec::attach(&client, "demo", &session).await?;
    let mut all = Ticks::default();
    // More than was seen, by about what was said while no runner was there, and then some that is live.
    all.read_to(&mut exec, seen.count + 30).await?;
    screen.got(format!("tick 1 to tick {}: none is missing, none comes twice", all.count));

    screen.step("List the sessions, and end this one");
    screen.sent(&format!("GET {SPRITE}/exec"));
    let list = client.get_json(&format!("{SPRITE}/exec")).await?;
    let ids: Vec<_> = list["sessions"].as_array().into_iter().flatten().map(|entry| text(entry, "id")).collect();
    same(session.as_str(), ids.join(" ").as_str())?;
    screen.got(format!("{session}  {}", text(&list["sessions"][0], "command")));
    screen.sent(&format!("POST {SPRITE}/exec/{session}/kill?signal=TERM"));
    let target = format!("{SPRITE}/exec/{session}/kill?signal=TERM&timeout=5s");
    let lines = stream(&client, &target, &Value::Null).await?;
    let exit = lines.last().and_then(|line| line["exit_code"].as_u64()).unwrap_or_default();
    same(143, exit)?;
    all.read_to(&mut exec, usize::MAX).await?;
    same(Some(143), all.exit)?;
    screen.got(format!("{}; the attached client got exit 143 too", kinds(&lines)));
    Ok(client)
}

/// Files, a checkpoint, an accident, and the way back.
async fn files(screen: &mut Screen, client: &Client) -> Result<(), Trouble> {
    screen.step("Write a file and read it back");
    let (write, read) = (format!("fs/write?path={NOTES}"), format!("fs/read?path={NOTES}"));
    screen.sent(&format!("PUT {SPRITE}/{write}  {TEXT:?}"));
    let target = format!("{SPRITE}/fs/write?path={}", encode(NOTES));
    let written = client.send(Method::PUT, &target, TEXT).await?.success().await?.json().await?;
    same(TEXT.len() as u64, written["size"].as_u64().unwrap_or_default())?;
    screen.got(format!("200, {} bytes", written["size"]));
    screen.sent(&format!("GET {SPRITE}/{read}"));
    let back = read_notes(client).await?;
    same(TEXT, back.as_str())?;
    screen.got(format!("200 {back:?}"));

    screen.step("Take a checkpoint");
    screen.sent(&format!(r#"POST {SPRITE}/checkpoint  {{"comment":"before the accident"}}"#));
    let lines = stream(client, &format!("{SPRITE}/checkpoint"), &json!({"comment": "before the accident"})).await?;
    let last = lines.last().map(|line| text(line, "data")).unwrap_or_default();
    same("Checkpoint v1 created successfully", last.as_str())?;
    screen.got(last);

    screen.step("Break it");
    let command = Command::sh("rm -rf project; ls -A project");
    screen.sent(&format!("WS {SPRITE}/exec  {}", command.line()));
    let output = Exec::run(client, "demo", &command).await?;
    same(true, output.exit != 0 && output.stdout.is_empty())?;
    screen.got(said(&output));
    screen.sent(&format!("GET {SPRITE}/{read}"));
    let lost = read_notes(client).await;
    same("404", refused(&lost))?;
    screen.got("404, the only copy is gone");

    screen.step("Restore the checkpoint");
    screen.sent(&format!("POST {SPRITE}/checkpoints/v1/restore"));
    let lines = stream(client, &format!("{SPRITE}/checkpoints/v1/restore"), &Value::Null).await?;
    let last = lines.last().map(|line| text(line, "data")).unwrap_or_default();
    same("Restore from v1 complete", last.as_str())?;
    screen.got(last);
    let command = Command::new(["cat", "project/notes.txt"]);
    screen.sent(&format!("WS {SPRITE}/exec  {}", command.line()));
    let output = Exec::run(client, "demo", &command).await?;
    same_output(Output { stdout: TEXT.into(), ..Output::default() }, &output)?;
    screen.got(said(&output));
    Ok(())
}

async fn read_notes(client: &Client) -> Result<String, ClientError> {
    let target = format!("{SPRITE}/fs/read?path={}", encode(NOTES));
    let body = client.send(Method::GET, &target, Bytes::new()).await?.success().await?.bytes().await?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Posts and collects the NDJSON answer; a line of type `error` is trouble.
async fn stream(client: &Client, target: &str, body: &Value) -> Result<Vec<Value>, Trouble> {
    let reply = match body {
        Value::Null => client.send(Method::POST, target, Bytes::new()).await?,
        body => client.send_json(Method::POST, target, body).await?,
    };
    let mut stream = reply.success().await?.lines();
    let mut lines = Vec::new();
    while let Some(line) = stream.next().await? {
        if line["type"] == "error" {
            return Err(Trouble::Unexpected { expected: "progress".into(), got: line.to_string() });
        }
        lines.push(line);
    }
    Ok(lines)
}

/// The output of the counter, checked byte by byte as it comes.
#[derive(Default)]
struct Ticks {
    /// Whole lines so far.
    count: usize,
    partial: Vec<u8>,
    exit: Option<u8>,
}

impl Ticks {
    /// Reads until `count` lines are there or the session has ended.
    async fn read_to(&mut self, exec: &mut Exec, count: usize) -> Result<(), Trouble> {
        while self.count < count {
            match exec.next().await? {
                Some(Event::Stdout(bytes)) => self.push(&bytes)?,
                Some(Event::Stderr(bytes)) => {
                    let got = String::from_utf8_lossy(&bytes).into_owned();
                    return Err(Trouble::Unexpected { expected: "nothing on stderr".into(), got });
                }
                Some(Event::Exit(code)) => self.exit = Some(code),
                Some(Event::Notice(_)) => {}
                None => break,
            }
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        for &byte in bytes {
            self.partial.push(byte);
            if byte == b'\n' {
                self.count += 1;
                same(format!("tick {}\n", self.count), String::from_utf8_lossy(&self.partial))?;
                self.partial.clear();
            }
        }
        Ok(())
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn kinds(lines: &[Value]) -> String {
    lines.iter().map(|line| text(line, "type")).collect::<Vec<_>>().join(", ")
}

fn said(output: &Output) -> String {
    let mut parts = Vec::new();
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            parts.push(format!("{name} {:?}", String::from_utf8_lossy(bytes)));
        }
    }
    parts.push(format!("exit {}", output.exit));
    parts.join("  ")
}

/// The status of a refusal, or what came instead.
fn refused<T>(result: &Result<T, ClientError>) -> String {
    match result {
        Ok(_) => "success".into(),
        Err(error) => error.http_status().map_or(error.to_string(), |status| status.as_u16().to_string()),
    }
}

fn same<T: Debug + PartialEq<U>, U: Debug>(expected: T, got: U) -> Result<(), Trouble> {
    if expected == got {
        return Ok(());
    }
    Err(Trouble::Unexpected { expected: format!("{expected:?}"), got: format!("{got:?}") })
}

fn same_output(expected: Output, got: &Output) -> Result<(), Trouble> {
    if expected == *got {
        return Ok(());
    }
    Err(Trouble::Unexpected { expected: said(&expected), got: said(got) })
}
