//! The API client of our own commands, against a scripted server on TCP and on a unix socket.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use fountain::cli::client::{Client, ClientError};
use fountain::cli::exec::{Command, Event, Exec};
use fountain::wire::error::ApiError;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;

/// One scripted exec: what the server sends after session_info, then it closes.
async fn exec(upgrade: WebSocketUpgrade, tty: bool, script: Vec<Message>) -> Response {
    upgrade.on_upgrade(async move |mut socket| {
        let info = json!({"type": "session_info", "session_id": "s1", "tty": tty}).to_string();
        for message in std::iter::once(Message::text(info)).chain(script) {
            socket.send(message).await.unwrap();
        }
        socket.send(Message::Close(Some(CloseFrame { code: 1000, reason: "".into() }))).await.unwrap();
        while let Some(Ok(_)) = socket.recv().await {}
    })
}

fn exit(code: u64) -> Message {
    Message::text(json!({"type": "exit", "exit_code": code, "code": code}).to_string())
}

fn server() -> Router {
    let bin = |bytes: &'static [u8]| Message::Binary(Bytes::from_static(bytes));
    Router::new()
        .route(
            "/v1/whoami",
            get(async |headers: HeaderMap| format!("{:?}", headers["authorization"].to_str().unwrap())),
        )
        .route("/v1/missing", get(async || ApiError::not_found("sprite_not_found", "no sprite x").into_response()))
        .route("/v1/lines", post(async || "{\"type\":\"info\"}\n\n{\"type\":\"complete\"}\n"))
        .route("/v1/cut", post(async || "{\"type\":\"info\"}\n{\"type\""))
        .route(
            "/v1/sprites/good/exec",
            get(async move |upgrade| {
                let script = vec![bin(b"\x01out\n"), bin(b"\x02err\n"), exit(7), bin(&[3, 7])];
                exec(upgrade, false, script).await
            }),
        )
        .route(
            "/v1/sprites/tty/exec",
            get(async move |upgrade| exec(upgrade, true, vec![bin(b"\x0240 120\r\n"), exit(0)]).await),
        )
        .route("/v1/sprites/silent/exec", get(async move |upgrade| exec(upgrade, false, vec![bin(b"\x01a")]).await))
        .route(
            "/v1/sprites/two-faced/exec",
            get(async move |upgrade| exec(upgrade, false, vec![exit(7), bin(&[3, 0])]).await),
        )
        .route(
            "/v1/sprites/none/exec",
            get(async || ApiError::not_found("sprite_not_found", "no sprite none").into_response()),
        )
}

/// A client over TCP and one over a unix socket; the folder lives as long as the socket is needed.
async fn clients() -> (tempfile::TempDir, [Client; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let unix = tokio::net::UnixListener::bind(&path).unwrap();
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", tcp.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(unix, server()).await });
    tokio::spawn(async move { axum::serve(tcp, server()).await });
    (folder, [Client::http(&url, "tok").unwrap(), Client::unix(path, Some("tok")).unwrap()])
}

#[tokio::test]
async fn requests_carry_the_token_and_refusals_say_why() {
    let (_folder, clients) = clients().await;
    for client in clients {
        assert_eq!(client.get_json("/v1/whoami").await.unwrap(), "Bearer tok");
        let error = client.get_json("/v1/missing").await.unwrap_err();
        assert_eq!(error.to_string(), "404 Not Found sprite_not_found: no sprite x");
    }
}

#[tokio::test]
async fn a_stream_comes_line_by_line_and_a_cut_one_is_an_error() {
    let (_folder, clients) = clients().await;
    for client in clients {
        let mut lines = client.send(Method::POST, "/v1/lines", "").await.unwrap().lines();
        assert_eq!(lines.next().await.unwrap(), Some(json!({"type": "info"})));
        assert_eq!(lines.next().await.unwrap(), Some(json!({"type": "complete"})));
        assert_eq!(lines.next().await.unwrap(), None);
        let mut lines = client.send(Method::POST, "/v1/cut", "").await.unwrap().lines();
        assert_eq!(lines.next().await.unwrap(), Some(json!({"type": "info"})));
        assert!(matches!(lines.next().await, Err(ClientError::Answer(_))));
    }
}

#[tokio::test]
async fn an_exec_socket_gives_streams_and_one_exit() {
    let (_folder, clients) = clients().await;
    for client in clients {
        let mut exec = Exec::start(&client, "good", &Command::sh("x")).await.unwrap();
        assert_eq!((exec.session.as_str(), exec.tty), ("s1", false));
        assert_eq!(exec.next().await.unwrap(), Some(Event::Stdout("out\n".into())));
        assert_eq!(exec.next().await.unwrap(), Some(Event::Stderr("err\n".into())));
        assert_eq!(exec.next().await.unwrap(), Some(Event::Exit(7)));
        assert_eq!(exec.next().await.unwrap(), None);
        let output = Exec::run(&client, "tty", &Command::sh("x").tty(40, 120)).await.unwrap();
        assert_eq!(output.stdout, b"\x0240 120\r\n", "a terminal's bytes have no stream byte");
    }
}

#[tokio::test]
async fn a_missing_or_contradicted_exit_is_an_error() {
    let (_folder, [client, _]) = clients().await;
    for sprite in ["silent", "two-faced"] {
        let error = Exec::run(&client, sprite, &Command::sh("x")).await.unwrap_err();
        assert!(matches!(error, ClientError::Answer(_)), "{sprite}: {error}");
    }
    let error = Exec::run(&client, "none", &Command::sh("x")).await.unwrap_err();
    assert_eq!(error.http_status(), Some(StatusCode::NOT_FOUND));
    assert_eq!(error.to_string(), "404 Not Found sprite_not_found: no sprite none");
}
