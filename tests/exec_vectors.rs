//! The test vectors of exec.md §10, frame by frame, and the exit codes that every client must read in every mode.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use common::{Control, Frame, HttpExec, Query, Runner, Socket};
use serde_json::{Value, json};

/// Codes that have a meaning somewhere: success, failure, shell conventions, signals, the edge of the byte.
const CODES: [u8; 11] = [0, 1, 2, 42, 126, 127, 128, 130, 137, 143, 255];

fn bin(bytes: &[u8]) -> Frame {
    Frame::Binary(bytes.to_vec().into())
}

fn exit(code: u8) -> Frame {
    Frame::Text(json!({"type": "exit", "exit_code": code, "code": code}))
}

fn close(code: u16) -> Frame {
    Frame::Close(code, String::new())
}

fn assert_id(id: &Value) {
    let id = id.as_str().expect("a string id");
    let digits = id.strip_prefix('s').unwrap_or_else(|| panic!("ids look like s17, not {id}"));
    assert!(!digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()), "ids look like s17, not {id}");
}

#[tokio::test(flavor = "multi_thread")]
async fn out_err_and_seven() {
    let runner = Runner::start();
    runner.create("s").await;
    let query = "cmd=sh&cmd=-c&cmd=echo+out%3B+echo+err+%3E%262%3B+exit+7&path=sh&stdin=false";
    let all = runner.run("s", &Query::raw(query)).await;
    assert_eq!(all.headers["x-sprite-capabilities"], "signal");
    assert_eq!(all.headers["sprite-capabilities"], "control-ws");
    assert!(!all.headers["sprite-version"].is_empty());

    let info = all.info().clone();
    assert_id(&info["session_id"]);
    let created = info["created"].as_i64().unwrap();
    let wanted = json!({"type": "session_info", "session_id": info["session_id"], "created": created, "cols": 0,
        "rows": 0, "command": "sh -c echo out; echo err >&2; exit 7", "is_owner": true, "tty": false});
    assert_eq!(info, wanted);
    assert!((1_700_000_000..10_000_000_000).contains(&created), "unix seconds: {created}");

    assert_eq!(all.frames[1..], [bin(b"\x01out\n"), bin(b"\x02err\n"), exit(7), bin(&[3, 7]), close(1000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cat_with_input() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::of(&["cat"]).stdin()).await;
    socket.stdin("hi\n").await;
    socket.eof().await;
    let all = socket.finish().await;
    assert_eq!(all.frames[1..], [bin(b"\x01hi\n"), exit(0), bin(&[3, 0]), close(1000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_size_and_exit_three() {
    let runner = Runner::start();
    runner.create("s").await;
    let query = Query::raw("cmd=stty&cmd=size&path=stty&tty=true&rows=24&cols=80&stdin=true");
    let all = runner.run("s", &query).await;
    let info = all.info();
    assert_eq!((&info["tty"], &info["rows"], &info["cols"]), (&json!(true), &json!(24), &json!(80)));
    assert_eq!(all.frames[1..], [bin(b"24 80\r\n"), exit(0), close(1000)]);

    let all = runner.run("s", &Query::sh("exit 3").tty(24, 80).stdin()).await;
    assert_eq!(all.frames[1..], [exit(3), close(4003)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_by_text() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::sh("echo ready; exec sleep 1000").no_stdin()).await;
    socket.until_stdout("ready\n").await;
    socket.signal("TERM").await;
    let all = socket.finish().await;
    assert_eq!(all.frames[1..], [bin(b"\x01ready\n"), exit(143), bin(&[3, 143]), close(1000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn detach_list_attach() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut owner = runner.exec("s", &Query::of(&["cat"]).detachable().stdin()).await;
    let id = owner.id().await;
    owner.stdin("one\n").await;
    owner.until_stdout("one\n").await;
    owner.vanish();
    assert_eq!(runner.session_ids("s").await, std::slice::from_ref(&id));
    let mut again = runner.attach("s", &id).await;
    assert_eq!(again.id().await, id);
    again.until_stdout("one\n").await;
    again.stdin("two\n").await;
    again.until_stdout("one\ntwo\n").await;
    again.eof().await;
    let all = again.finish().await;
    assert_eq!(all.frames[1..], [bin(b"\x01one\n"), bin(b"\x01two\n"), exit(0), bin(&[3, 0]), close(1000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_forms_and_unknown_sessions() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut owner = runner.exec("s", &Query::of(&["cat"]).detachable().stdin()).await;
    let id = owner.id().await;
    let forms = [
        (format!("/v1/sprites/s/exec/{id}?stdin=true"), "sprites-ex/0.2.2"),
        (format!("/v1/sprites/s/exec?id={id}&stdin=true&tty=true"), "Go-http-client/1.1"),
        // JS 0.0.1 attaches with a whole command beside the id; old Elixir with an empty one.
        (
            format!("/v1/sprites/s/exec?cmd=tmux&cmd=attach&cmd=-t&cmd={id}&path=tmux&stdin=true&tty=true&id={id}"),
            "node",
        ),
        (format!("/v1/sprites/s/exec?session_id={id}&stdin=false&path=&cmd="), "gun"),
    ];
    for (target, agent) in forms {
        let mut socket = Socket::open(&runner, &target, &[("user-agent", agent)]).await;
        assert_eq!(socket.id().await, id, "{target}");
        assert_eq!(socket.headers["x-sprite-capabilities"], "signal");
        assert_eq!(runner.session_ids("s").await, std::slice::from_ref(&id), "{target} must start nothing");
        socket.close().await;
    }
    for target in
        ["/v1/sprites/s/exec/s99", "/v1/sprites/s/exec?id=s99", "/v1/sprites/s/exec?session_id=s99&path=&cmd="]
    {
        let reply = runner.call("GET", target).upgrade().send().await.expect(404);
        assert_eq!(reply.json()["error"], "session_not_found", "{target}");
        assert_eq!(reply.json()["message"], "session not found: s99", "{target}");
    }
    owner.eof().await;
    owner.finish().await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn python_and_elixir_control() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut control = Control::open(&runner, "s", "sprites-py/0.7.2").await;
    control.start(json!({"cmd": ["true"], "stdin": "false"})).await;
    control.socket.eof().await;
    let done = control.finish().await;
    assert_eq!(done.frames[1..], [bin(&[3, 0])]);
    assert_eq!(done.complete, json!({"exitCode": 0, "ok": true}));
    // The late 04 of Py, and stdin after the end, reach nobody and break nothing.
    control.socket.eof().await;
    control.socket.stdin("late").await;
    control.start(json!({"cmd": ["cat"], "stdin": "true"})).await;
    control.socket.stdin("hello").await;
    control.socket.eof().await;
    let done = control.finish().await;
    assert_eq!(done.frames[1..], [bin(b"\x01hello"), bin(&[3, 0])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn go_control_is_raw() {
    let runner = Runner::start_with(common::Options::args(&["--control", "on"]));
    runner.create("s").await;
    let mut control = Control::open(&runner, "s", "sprites-go-sdk/1.0").await;
    control.start(json!({"cmd": ["cat"], "path": "cat", "stdin": "true"})).await;
    control.socket.binary(b"hello".to_vec()).await;
    control.socket.eof().await;
    let done = control.finish().await;
    assert_eq!(done.frames[1..], [bin(b"\x01hello"), bin(&[3, 0])]);
    control.socket.text(json!({"type": "release"})).await;
    assert_eq!(control.run(json!({"cmd": ["sh", "-c", "exit 5"], "path": "sh"})).await.code(), 5);
}

/// Two SDKs misbehave on a control socket, so `auto` tells them it does not exist (exec.md §7.6).
#[tokio::test(flavor = "multi_thread")]
async fn control_is_refused_to_go_and_js() {
    let runner = Runner::start();
    runner.create("s").await;
    for agent in ["sprites-go-sdk/1.0", "node"] {
        runner.call("GET", "/v1/sprites/s/control").header("user-agent", agent).upgrade().send().await.expect(404);
    }
    for agent in ["sprites-py/0.7.2", "sprites-ex/0.2.3"] {
        Control::open(&runner, "s", agent).await.socket.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_errors_leave_the_socket_usable() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut control = Control::open(&runner, "s", "sprites-py/0.7.2").await;
    control.control(json!({"type": "op.start", "op": "dance", "args": {}})).await;
    let error = control.envelope_or_frame().await.expect_err("an op.error");
    assert_eq!(error["type"], "op.error");
    assert_eq!(error["args"]["error"], "unknown operation: dance");
    control.socket.text(json!("not an object")).await;
    control.control(json!(17)).await;

    // A second start while one runs fails alone.
    control.start(json!({"cmd": ["cat"], "stdin": "true"})).await;
    assert!(matches!(control.envelope_or_frame().await, Ok(Frame::Text(t)) if t["type"] == "session_info"));
    control.start(json!({"cmd": ["true"]})).await;
    let error = control.envelope_or_frame().await.expect_err("an op.error for the second");
    assert_eq!(error["type"], "op.error");
    control.socket.stdin("still here").await;
    control.socket.eof().await;
    assert_eq!(control.envelope_or_frame().await, Ok(bin(b"\x01still here")));
    assert_eq!(control.envelope_or_frame().await, Ok(bin(&[3, 0])));
    let complete = control.envelope_or_frame().await.expect_err("op.complete");
    assert_eq!(complete["args"]["exitCode"], 0);
    assert_eq!(control.run(json!({"cmd": ["true"]})).await.code(), 0);
}

/// JS sends signal and resize as binary messages that hold JSON (exec.md §7.3).
#[tokio::test(flavor = "multi_thread")]
async fn control_takes_json_in_binary() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut control = Control::open(&runner, "s", "js-like/1").await;
    control.start(json!({"cmd": ["sleep", "1000"], "stdin": "true"})).await;
    control.socket.binary(r#"{"type":"signal","signal":"SIGTERM"}"#).await;
    assert_eq!(control.finish().await.code(), 143);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_exec_bytes() {
    let runner = Runner::start();
    runner.create("s").await;
    let answer = HttpExec::post(&runner, "s", &Query::raw("cmd=sh&cmd=-c&cmd=exit+3"), b"").await;
    assert_eq!(answer.chunks, [[3, 3]]);
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    assert!(!answer.header("sprite-version").is_empty());

    let answer = HttpExec::post(&runner, "s", &Query::sh("echo out; echo err >&2; exit 7"), b"").await;
    assert_eq!((answer.stream(1), answer.stream(2)), (b"out\n".to_vec(), b"err\n".to_vec()));
    // The JS reader glues chunks of one TCP read together: a pause stands before each one (exec.md §6).
    for pair in answer.times.windows(2) {
        assert!(pair[1] - pair[0] >= std::time::Duration::from_millis(1), "chunks back to back: {:?}", answer.times);
    }

    // Without stdin=true the body is ignored; with it, the body's end is EOF.
    let answer = HttpExec::post(&runner, "s", &Query::of(&["cat"]), b"ignored").await;
    assert_eq!(answer.chunks, [[3, 0]]);
    let answer = HttpExec::post(&runner, "s", &Query::of(&["cat"]).stdin(), b"body").await;
    assert_eq!(answer.stream(1), b"body");
    // A JSON body is not a command: no cmd means bash, with empty stdin.
    let answer = HttpExec::post(&runner, "s", &Query::raw("x=1"), br#"{"cmd":["ls"]}"#).await;
    assert_eq!(answer.chunks, [[3, 0]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_code_in_every_mode() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut control = Control::open(&runner, "s", "sprites-py/0.7.2").await;
    for code in CODES {
        let script = format!("exit {code}");
        let query = Query::sh(&script);
        runner.run("s", &query.clone().no_stdin()).await.expect(code);
        runner.run("s", &query.clone().tty(24, 80).stdin()).await.expect(code);
        assert_eq!(HttpExec::post(&runner, "s", &query, b"").await.code(), code);
        assert_eq!(control.run(json!({"cmd": ["sh", "-c", script], "stdin": "false"})).await.code(), i64::from(code));
        let tty = control.run(json!({"cmd": ["sh", "-c", script], "tty": "true", "rows": "24", "cols": "80"})).await;
        assert_eq!((tty.tty, tty.code()), (true, i64::from(code)));
    }
}

/// With `exit_u32` a literal reader of the older four-byte contract sees its frame, and the SDKs still read the code.
#[tokio::test(flavor = "multi_thread")]
async fn exit_u32_setting() {
    let runner = Runner::start_with(common::Options::args(&["--exit-u32"]));
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::sh("exit 42").no_stdin()).await;
    while !socket.next().await.is_end() {}
    assert_eq!(socket.seen[1..], [exit(42), bin(&[3, 42]), bin(&[3, 0, 0, 0, 42]), close(1000)]);
    // Never on control or in HTTP exec, where it would read as 0.
    assert_eq!(HttpExec::post(&runner, "s", &Query::sh("exit 42"), b"").await.chunks, [[3, 42]]);
    let mut control = Control::open(&runner, "s", "sprites-py/0.7.2").await;
    assert_eq!(control.run(json!({"cmd": ["sh", "-c", "exit 42"]})).await.code(), 42);
}
