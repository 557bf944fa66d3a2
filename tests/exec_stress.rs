//! Many, large, slow and rude: nothing is lost, nobody waits for anybody else.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::socket::text;
use common::{Frame, HttpExec, Pidfd, Query, Runner, Socket, TOKEN, within};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

/// `seq 1 SEQ_64M` prints a little more than 64 MiB, every part of it different.
const SEQ_64M: &str = "8600000";
const SEQ_256M: &str = "31100000";

/// What a command should print, made by the same program on this side, and compared as it arrives.
struct Expected {
    child: Child,
    read: u64,
    buffer: Vec<u8>,
}

impl Expected {
    fn seq(last: &str) -> Self {
        let child = Command::new("seq").args(["1", last]).stdout(Stdio::piped()).spawn().unwrap();
        Self { child, read: 0, buffer: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.buffer.resize(bytes.len(), 0);
        let stdout = self.child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut self.buffer).unwrap_or_else(|e| panic!("more output than expected: {e}"));
        assert!(self.buffer == bytes, "wrong bytes after {}: {:?}", self.read, text(&bytes[..bytes.len().min(80)]));
        self.read += bytes.len() as u64;
    }

    fn end(mut self) -> u64 {
        let mut rest = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{} bytes are missing after {}", rest.len(), self.read);
        assert!(self.child.wait().unwrap().success());
        self.read
    }
}

/// Reads a socket to its end against `expected`; its exit must be 0.
async fn drain(socket: &mut Socket, mut expected: Expected) -> u64 {
    socket.keep_output = false;
    loop {
        match socket.next().await {
            Frame::Binary(bytes) if bytes[0] == 1 => expected.take(&bytes[1..]),
            Frame::Binary(bytes) => assert_eq!(bytes[..], [3, 0], "{:?}", text(&bytes)),
            Frame::Close(code, _) => {
                assert_eq!(code, 1000);
                return expected.end();
            }
            Frame::Dropped => panic!("dropped after {} bytes", expected.read),
            _ => {}
        }
    }
}

/// FAULTS 1 and 20: fast commands that lose their output or their exit.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_true_and_echo() {
    let runner = Runner::start();
    runner.create("s").await;
    let lane = |lane: u32| {
        let runner = &runner;
        async move {
            for round in 0..125 {
                let word = format!("{lane}-{round}");
                let echo = runner.run("s", &Query::of(&["echo", &word]).no_stdin()).await;
                assert_eq!((echo.code(), echo.out()), (0, format!("{word}\n")));
                runner.run("s", &Query::of(&["true"]).no_stdin()).await.expect(0);
            }
        }
    };
    join_all((0..8).map(lane)).await;
    assert!(runner.sessions("s").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_at_once() {
    let runner = Runner::start();
    runner.create("s").await;
    // All of them run before any may end: each waits for its own line of input.
    let open = |n: u8| {
        let runner = &runner;
        async move {
            let script = format!("echo start {n}; read word; echo $word >&2; exit {n}");
            let mut socket = runner.exec("s", &Query::sh(&script).stdin()).await;
            assert_eq!(socket.line().await, format!("start {n}"));
            (n, socket)
        }
    };
    let sockets = join_all((0..200).map(open)).await;
    assert_eq!(runner.sessions("s").await.len(), 200);
    let end = |(n, mut socket): (u8, Socket)| async move {
        socket.stdin(format!("word {n}\n")).await;
        let all = socket.finish().await.expect(n);
        assert_eq!(all.err(), format!("word {n}\n"));
    };
    join_all(sockets.into_iter().map(end)).await;
    assert!(runner.sessions("s").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn big_output_is_exact() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::of(&["seq", "1", SEQ_256M]).no_stdin()).await;
    assert!(drain(&mut socket, Expected::seq(SEQ_256M)).await >= 256 << 20);
}

/// A client that does not read holds its command back, as a slow terminal would, and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn slow_reader() {
    let runner = Runner::start();
    runner.create("s").await;
    let script = format!("echo $$ >&2; exec seq 1 {SEQ_64M}");
    let mut slow = runner.exec("s", &Query::sh(&script).no_stdin()).await;
    slow.keep_output = false;
    let pid = loop {
        if let Frame::Binary(bytes) = slow.next().await
            && bytes[0] == 2
        {
            break text(&bytes[1..]).trim().parse().unwrap();
        }
    };
    let process = Pidfd::alive(pid);
    // While nobody reads it, the rest of the sprite is quick.
    for round in 0..20 {
        let word = round.to_string();
        assert_eq!(runner.run("s", &Query::of(&["echo", &word]).no_stdin()).await.out(), format!("{word}\n"));
    }
    assert!(!process.is_dead(), "64 MiB went somewhere although nobody reads");
    // What `seq` printed before the pid was seen is gone from this count, so read the start again by an attach.
    let id = slow.id().await;
    let mut second = runner.attach("s", &id).await;
    let stderr_aside = |frame: &Frame| matches!(frame, Frame::Binary(bytes) if bytes[0] == 2);
    second.keep_output = false;
    let mut expected = Expected::seq(SEQ_64M);
    loop {
        match second.next().await {
            frame if stderr_aside(&frame) => {}
            Frame::Binary(bytes) if bytes[0] == 1 => expected.take(&bytes[1..]),
            Frame::Binary(bytes) => assert_eq!(bytes[..], [3, 0]),
            Frame::Close(code, _) => break assert_eq!(code, 1000),
            Frame::Dropped => panic!("dropped after {} bytes", expected.read),
            _ => {}
        }
    }
    assert!(expected.end() >= 64 << 20);
    slow.finish().await.expect(0);
}

/// The slow one does not slow the fast one, and still gets every byte later.
#[tokio::test(flavor = "multi_thread")]
async fn two_speeds() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut slow = runner.exec("s", &Query::of(&["seq", "1", SEQ_64M]).no_stdin()).await;
    let id = slow.id().await;
    let mut fast = runner.attach("s", &id).await;
    let bytes = drain(&mut fast, Expected::seq(SEQ_64M)).await;
    assert_eq!(drain(&mut slow, Expected::seq(SEQ_64M)).await, bytes);
}

/// FAULTS 22: a background child that keeps the pipe must not keep the client.
#[tokio::test(flavor = "multi_thread")]
async fn background_child_keeps_the_pipe() {
    let runner = Runner::start();
    runner.create("s").await;
    let began = Instant::now();
    let all = runner.run("s", &Query::sh("sleep 60 & echo $!").no_stdin()).await.expect(0);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let child = Pidfd::alive(all.out().trim().parse().unwrap());
    let began = Instant::now();
    let answer = HttpExec::post(&runner, "s", &Query::sh("sleep 60 & echo hi; exit 4"), b"").await;
    assert_eq!((answer.stream(1), answer.code()), (b"hi\n".to_vec(), 4));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(!child.is_dead(), "the background child lives on");
    runner.delete("/v1/sprites/s").await.expect(204);
    child.gone().await;
}

/// A child that never stops talking after its leader is dead is cut off after 2 s at most (DESIGN.md §3).
#[tokio::test(flavor = "multi_thread")]
async fn background_child_that_never_is_silent() {
    let runner = Runner::start();
    runner.create("s").await;
    let began = Instant::now();
    let script = "while :; do echo tick; done & echo hi; exit 6";
    let mut socket = runner.exec("s", &Query::sh(script).no_stdin()).await;
    socket.keep_output = false;
    while !socket.next().await.is_end() {}
    assert!(socket.seen.contains(&Frame::Binary(vec![3, 6].into())), "{:?}", socket.seen);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn vanishing_within_a_frame() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut stream = TcpStream::connect(runner.addr).await.unwrap();
    let target = format!("/v1/sprites/s/exec?{}", Query::of(&["cat"]).stdin().detachable().as_str());
    let head = format!(
        "GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !common::processes::contains(&answer, b"session_info") {
        assert!(within("the 101", stream.read_buf(&mut answer)).await.unwrap() > 0);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "));
    // A whole frame "00 whole\n" (mask zero), then 10 bytes of one that says it has 1,000, then an RST.
    stream.write_all(b"\x82\x87\0\0\0\0\0whole\n").await.unwrap();
    stream.write_all(b"\x82\xfe\x03\xe8\0\0\0\0\0torn-torn").await.unwrap();
    while !common::processes::contains(&answer, b"\x01whole\n") {
        assert!(within("the echo", stream.read_buf(&mut answer)).await.unwrap() > 0);
    }
    stream.set_zero_linger().unwrap();
    drop(stream);

    let [id] = &runner.session_ids("s").await[..] else { panic!("one session") };
    let mut again = runner.attach("s", id).await;
    again.stdin("after\n").await;
    again.eof().await;
    assert_eq!(again.finish().await.expect(0).out(), "whole\nafter\n");
    // Nonsense after the handshake ends that socket and nothing else.
    let mut socket = runner.exec("s", &Query::of(&["cat"]).stdin()).await;
    let id = socket.id().await;
    assert_eq!(runner.session_ids("s").await, [id]);
    socket.eof().await;
    socket.finish().await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_of_64_mib() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::of(&["sha256sum"]).stdin()).await;
    let mut bytes = vec![0; 1 + (64 << 20)];
    for (at, chunk) in bytes[1..].chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&(at as u64).to_le_bytes());
    }
    let mut local = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut local.stdin.take().unwrap(), &bytes[1..]).unwrap();
    let wanted = text(local.wait_with_output().unwrap().stdout);
    socket.binary(bytes).await;
    socket.eof().await;
    assert_eq!(socket.finish().await.expect(0).out(), wanted);
}

/// A socket that is not read cannot answer pings, and its signals would stand behind the data (exec.md §2.3).
#[tokio::test(flavor = "multi_thread")]
async fn child_that_does_not_read() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::of(&["sleep", "1000"]).stdin()).await;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..32 {
        socket.stdin(&piece).await;
    }
    socket.ping(b"are you there").await;
    loop {
        match socket.next().await {
            Frame::Pong(payload) => break assert_eq!(&payload[..], b"are you there"),
            end if end.is_end() => panic!("{end:?}"),
            _ => {}
        }
    }
    socket.signal("TERM").await;
    socket.finish().await.expect(143);
}

/// What such a child reads later is all there, in order.
#[tokio::test(flavor = "multi_thread")]
async fn stdin_waits_for_a_late_reader() {
    let runner = Runner::start();
    runner.create("s").await;
    // It starts to read when a file appears, which another command makes once everything was sent.
    let script = "mkfifo go; echo up; cat go; read -r word; echo $word; wc -c";
    let mut socket = runner.exec("s", &Query::sh(script).stdin()).await;
    socket.until_stdout("up\n").await;
    socket.stdin("first\n").await;
    let piece = vec![b'y'; 1 << 20];
    for _ in 0..24 {
        socket.stdin(&piece).await;
    }
    socket.eof().await;
    // After the end of stdin nothing more is taken.
    socket.stdin("late").await;
    socket.ping(b"").await;
    while !matches!(socket.next().await, Frame::Pong(_)) {}
    runner.run("s", &Query::sh("echo ready > go")).await.expect(0);
    assert_eq!(socket.finish().await.expect(0).out(), format!("up\nready\nfirst\n{}\n", 24 << 20));
}

/// The daemon lives through clients that speak no protocol at all.
#[tokio::test(flavor = "multi_thread")]
async fn rude_clients() {
    let runner = Runner::start();
    runner.create("s").await;
    for bytes in [&b"\0\x01\x02garbage\r\n\r\n"[..], b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost", b"\x16\x03\x01\x02\x00"]
    {
        let mut stream = TcpStream::connect(runner.addr).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.set_zero_linger().unwrap();
    }
    // An unmasked or reserved frame ends its socket.
    let mut socket = runner.exec("s", &Query::of(&["cat"]).stdin()).await;
    socket.info().await;
    socket.send(Message::Text("not json at all".into())).await;
    socket.send(Message::Ping(vec![7; 100].into())).await;
    socket.eof().await;
    socket.finish().await.expect(0);
    runner.run("s", &Query::of(&["true"])).await.expect(0);
}
