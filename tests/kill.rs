//! `POST /exec/{id}/kill`: parameters in both places, the NDJSON that strict clients accept, and real endings.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::time::{Duration, Instant};

use common::{Pidfd, Query, Reply, Runner, Socket};
use serde_json::{Value, json};

/// What Fountain accepts (fountain.md §4.8): known types, an end, `complete` last, 16 KiB at most.
fn assert_fountain_accepts(reply: &Reply) {
    assert!(reply.body.len() <= 16_384);
    let lines = reply.lines();
    let (last, front) = lines.split_last().unwrap();
    assert_eq!(last["type"], "complete", "{lines:?}");
    assert!((0..=255).contains(&last["exit_code"].as_i64().unwrap()), "{lines:?}");
    let types: Vec<&str> = front.iter().map(|l| l["type"].as_str().unwrap()).collect();
    assert!(types.iter().all(|t| ["signal", "timeout", "exited", "killed"].contains(t)), "{types:?}");
    assert!(types.iter().any(|t| ["exited", "killed"].contains(t)), "{types:?}");
}

async fn kill(runner: &Runner, id: &str, query: &str, body: Option<Value>) -> Reply {
    let call = runner.call("POST", &format!("/v1/sprites/s/exec/{id}/kill{query}"));
    match body {
        Some(body) => call.json(&body).send().await,
        None => call.send().await,
    }
}

fn types(reply: &Reply) -> Vec<String> {
    reply.lines().iter().map(|l| l["type"].as_str().unwrap().to_owned()).collect()
}

/// A started `script` that prints `$$` first.
async fn start(runner: &Runner, script: &str) -> (Socket, String, Pidfd) {
    let mut socket = runner.exec("s", &Query::sh(&format!("echo $$; {script}")).stdin().detachable()).await;
    let id = socket.id().await;
    let process = Pidfd::alive(socket.number().await);
    (socket, id, process)
}

#[tokio::test(flavor = "multi_thread")]
async fn default_is_term() {
    let runner = Runner::start();
    runner.create("s").await;
    let (socket, id, process) = start(&runner, "exec sleep 1000").await;
    let pid = process.pid;
    let reply = kill(&runner, &id, "", None).await.expect(200);
    assert_eq!(reply.header("content-type"), "application/x-ndjson");
    assert_fountain_accepts(&reply);
    let lines = reply.lines();
    let strip = |line: &Value| {
        let mut line = line.clone();
        if let Some(data) = line.as_object_mut().unwrap().remove("data") {
            assert_eq!(data, line["message"], "data repeats the message for Py");
        }
        line
    };
    let message = format!("Signaling SIGTERM to process group {pid}");
    assert_eq!(strip(&lines[0]), json!({"type": "signal", "message": message, "signal": "SIGTERM", "pid": pid}));
    assert_eq!(strip(&lines[1]), json!({"type": "exited", "message": "Process exited"}));
    assert_eq!(strip(lines.last().unwrap()), json!({"type": "complete", "exit_code": 143}));
    assert!(process.is_dead());
    assert!(runner.sessions("s").await.is_empty(), "gone from the list at once");
    socket.finish().await.expect(143);
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_in_both_places() {
    let runner = Runner::start();
    runner.create("s").await;
    let cases = [
        ("?signal=SIGKILL&timeout=10000ms", None, 137),
        ("?signal=int", None, 130),
        ("?signal=15", None, 143),
        ("", Some(json!({"signal": "SIGTERM", "timeout": 10})), 143),
        ("", Some(json!({"signal": "KILL", "timeout": "5s"})), 137),
        ("?signal=HUP", Some(json!({"signal": "KILL"})), 129),
        ("", Some(json!({"signal": null, "timeout": null})), 143),
        ("", Some(json!({})), 143),
    ];
    for (query, body, code) in cases {
        let (socket, id, _) = start(&runner, "exec sleep 1000").await;
        let reply = kill(&runner, &id, query, body.clone()).await.expect(200);
        assert_fountain_accepts(&reply);
        let last = reply.lines().pop().unwrap();
        assert_eq!(last["exit_code"], code, "{query} {body:?}");
        socket.finish().await.expect(code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn escalation() {
    let runner = Runner::start();
    runner.create("s").await;
    let (socket, id, process) = start(&runner, "trap '' TERM; echo ready; while :; do sleep 1; done").await;
    let mut socket = socket;
    socket.until_stdout("ready\n").await;
    let began = Instant::now();
    let reply = kill(&runner, &id, "?timeout=700ms", None).await.expect(200);
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert_eq!(types(&reply), ["signal", "timeout", "killed", "complete"]);
    assert_fountain_accepts(&reply);
    let lines = reply.lines();
    assert_eq!(lines[1]["message"], "Timeout after 700ms, sending SIGKILL");
    assert_eq!(lines[2]["message"], "Process killed");
    assert_eq!(lines[3]["exit_code"], 137);
    assert!(process.is_dead());
    socket.finish().await.expect(137);
}

/// `timeout=0`: deliver and return, without escalation (Go's form of every signal).
#[tokio::test(flavor = "multi_thread")]
async fn zero_timeout_only_delivers() {
    let runner = Runner::start();
    runner.create("s").await;
    let script = "trap 'echo usr1' USR1; echo ready; while :; do read -r x && exit 8; done";
    let (mut socket, id, process) = start(&runner, script).await;
    socket.until_stdout("ready\n").await;
    for timeout in ["0s", "0"] {
        let reply = kill(&runner, &id, &format!("?signal=USR1&timeout={timeout}"), None).await.expect(200);
        assert_eq!(types(&reply), ["signal", "complete"]);
        assert_eq!(reply.lines()[1]["exit_code"], 0);
        socket.until_stdout("usr1\n").await;
    }
    assert!(!process.is_dead());
    assert_eq!(runner.session_ids("s").await, std::slice::from_ref(&id));
    socket.stdin("x\n").await;
    socket.finish().await.expect(8);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals() {
    let runner = Runner::start();
    runner.create("s").await;
    kill(&runner, "s99", "", None).await.expect(404);
    kill(&runner, "nonsense", "", None).await.expect(404);
    let (socket, id, _) = start(&runner, "exec sleep 1000").await;
    kill(&runner, &id, "?signal=NOSUCH", None).await.expect(400);
    kill(&runner, &id, "?timeout=soon", None).await.expect(400);
    kill(&runner, &id, "", Some(json!({"signal": 3.5}))).await.expect(400);
    runner.call("POST", &format!("/v1/sprites/s/exec/{id}/kill")).body("{not json").send().await.expect(400);
    runner.call("GET", &format!("/v1/sprites/s/exec/{id}/kill")).send().await.expect(405);
    assert_eq!(runner.session_ids("s").await, std::slice::from_ref(&id), "a refusal kills nobody");
    kill(&runner, &id, "?signal=KILL", None).await.expect(200);
    socket.finish().await.expect(137);
    // Ended by itself: within the grace a kill tells how, as a full answer (exec.md allows 410, Fountain does not).
    let (mut socket, id, _) = start(&runner, "read -r x").await;
    socket.eof().await;
    socket.finish().await.expect(1);
    let late = kill(&runner, &id, "", None).await.expect(200);
    assert_fountain_accepts(&late);
    assert_eq!(late.lines().pop().unwrap()["exit_code"], 1);
}

/// Fountain kills twice and takes 404 or a whole answer for the second (fountain.md §4.8).
#[tokio::test(flavor = "multi_thread")]
async fn kill_twice() {
    let runner = Runner::start();
    runner.create("s").await;
    let (socket, id, _) = start(&runner, "exec sleep 1000").await;
    assert_fountain_accepts(&kill(&runner, &id, "?timeout=10000ms", None).await.expect(200));
    let second = kill(&runner, &id, "?timeout=10000ms", None).await;
    match second.status {
        200 => assert_fountain_accepts(&second),
        404 => {}
        other => panic!("Fountain counts {other} as a failed kill: {second:?}"),
    }
    socket.finish().await.expect(143);
    // The sprite and its other sessions are untouched.
    runner.run("s", &Query::of(&["true"])).await.expect(0);
}

/// The whole group goes, and for a terminal the foreground group and everything behind it (FAULTS 49, 62).
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_tree_goes() {
    let runner = Runner::start();
    runner.create("s").await;
    let (mut socket, id, leader) =
        start(&runner, "sleep 1000 & echo $!; sh -c 'sleep 1000 & echo $!; wait' & wait").await;
    let children = [Pidfd::alive(socket.number().await), Pidfd::alive(socket.number().await)];
    kill(&runner, &id, "?signal=KILL", None).await.expect(200);
    socket.finish().await.expect(137);
    assert!(leader.is_dead());
    for child in children {
        child.gone().await;
    }

    let mut tty = runner.exec("s", &Query::of(&["sh"]).tty(24, 80).stdin().env("PS1=")).await;
    let id = tty.id().await;
    tty.binary("stty -echo; sh -c 'printf jo; echo b; exec sleep 1000'\n").await;
    tty.until_stdout("job\r\n").await;
    let reply = kill(&runner, &id, "?signal=TERM&timeout=2s", None).await.expect(200);
    assert_eq!(types(&reply).last().map(String::as_str), Some("complete"));
    tty.finish().await;
    assert!(runner.sessions("s").await.is_empty());
}

/// A kill does not wait behind a client that reads nothing, nor behind stdin that nobody takes.
#[tokio::test(flavor = "multi_thread")]
async fn kill_passes_everything() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::of(&["yes"]).stdin()).await;
    let id = socket.id().await;
    socket.stdin(vec![b'x'; 8 << 20]).await;
    let reply = kill(&runner, &id, "?signal=KILL", None).await.expect(200);
    assert_eq!(reply.lines().pop().unwrap()["exit_code"], 137);
    socket.keep_output = false;
    while !socket.next().await.is_end() {}
    assert!(socket.seen.iter().any(|f| *f == common::Frame::Binary(vec![3, 137].into())), "{:?}", socket.seen);
}
