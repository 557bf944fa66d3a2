//! What clients are told beside output: listening ports, and the end of a finished session's grace.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use common::{Frame, Options, Query, Runner, Socket, until};
use serde_json::Value;

/// Listens, says where, closes at the first line of input and ends at the second.
const LISTENER: &str = "import socket, sys
s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True)
sys.stdin.readline(); s.close(); sys.stdin.readline()";

async fn port_message(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await {
            Frame::Text(text) if text["type"] == "port_opened" || text["type"] == "port_closed" => return text,
            frame => assert!(!frame.is_end(), "{frame:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_the_session_are_told_to_every_client() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut other = runner.exec("s", &Query::sh("echo ready; cat").stdin()).await;
    other.until_stdout("ready\n").await;
    // A shell in between: the listener is a child of the session's leader.
    let query = Query::of(&["sh", "-c", "python3 -c \"$0\"; echo done", LISTENER]).stdin();
    let mut socket = runner.exec("s", &query).await;
    let id = socket.id().await;
    let port = socket.number().await;
    let opened = port_message(&mut socket).await;
    assert_eq!(
        (&opened["type"], &opened["port"], &opened["address"]),
        (&"port_opened".into(), &port.into(), &"127.0.0.1".into())
    );
    assert!(opened["pid"].as_i64().unwrap() > 0);

    // Whoever comes later is told what listens already.
    let mut late = runner.attach("s", &id).await;
    assert_eq!(port_message(&mut late).await, opened);
    socket.stdin("close\n").await;
    for client in [&mut socket, &mut late] {
        let closed = port_message(client).await;
        assert_eq!(
            (&closed["type"], &closed["port"], &closed["pid"]),
            (&"port_closed".into(), &port.into(), &opened["pid"])
        );
    }
    socket.stdin("end\n").await;
    socket.finish().await.expect(0);

    // Another session's client has heard nothing of it.
    other.eof().await;
    let all = other.finish().await.expect(0);
    assert!(all.frames.iter().all(|frame| !matches!(frame, Frame::Text(text) if text["type"] == "port_opened")));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_grace_a_session_is_gone_with_its_journal() {
    let runner = Runner::start_with(Options::args(&["--session-grace", "1s"]));
    runner.create("s").await;
    let socket = runner.run("s", &Query::sh("echo secret; exit 4")).await.expect(4);
    let id = socket.info()["session_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sprites/s/exec/{id}");
    let reply = until("the grace to end", || async {
        let reply = runner.call("GET", &path).upgrade().send().await;
        (reply.status != 101).then_some(reply)
    })
    .await;
    assert_eq!((reply.status, reply.code().as_str()), (404, "session_not_found"));
    let folder = runner.state().join(format!("sprites/default/s/sessions/{id}"));
    until("its folder to be removed", || async { (!folder.exists()).then_some(()) }).await;
}
