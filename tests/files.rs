//! Files of a sprite through the whole product: client, runner, agent, disk, and the sprite's own processes.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Options, Pidfd, Query, Reply, Runner, Socket, TOKEN, agent_of, within};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FS: &str = "/v1/sprites/box/fs";

async fn write(runner: &Runner, query: &str, body: impl Into<bytes::Bytes>) -> Reply {
    runner.call("PUT", &format!("{FS}/write?{query}")).body(body).send().await
}

async fn read(runner: &Runner, path: &str) -> Reply {
    runner.get(&format!("{FS}/read?path={path}")).await
}

async fn list(runner: &Runner, path: &str) -> Vec<String> {
    let json = runner.get(&format!("{FS}/list?path={path}")).await.expect(200).json();
    let names = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    json["entries"].as_array().unwrap().iter().map(names).collect()
}

/// The sprite's home on the host.
fn home(runner: &Runner) -> PathBuf {
    runner.state().join("sprites/default/box/disk/home/sprite")
}

#[track_caller]
fn refused(reply: Reply, status: u16, code: &str) {
    reply.assert_error_shape();
    assert_eq!((reply.status, reply.json()["code"].as_str().unwrap()), (status, code), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_written_right_after_create_is_the_processes_file() {
    let runner = Runner::start();
    runner.create("box").await;
    let query = "path=%2Fhome%2Fsprite%2F.env&workingDir=%2F&mode=600&mkdirParents=true";
    let reply = write(&runner, query, "export WORD='two\nlines'\n").await.expect(200);
    assert_eq!(reply.json(), json!({"path": "/home/sprite/.env", "size": 24, "mode": "0600"}));
    write(&runner, "path=/home/sprite/.claude/skills/x/SKILL.md&workingDir=/", "skill").await.expect(200);
    let script = "stat -c %a /home/sprite/.env /home/sprite/.claude; . /home/sprite/.env; printf %s \"$WORD\"; \
                  printf made > /home/sprite/by-process; cat ~/.claude/skills/x/SKILL.md";
    let told = runner.run("box", &Query::sh(script)).await.expect(0);
    assert_eq!(told.out(), "600\n755\ntwo\nlinesskill");
    assert_eq!(read(&runner, "by-process").await.expect(200).body, "made");
    assert!(list(&runner, "/home/sprite").await.contains(&"by-process".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_size_comes_back_byte_for_byte() {
    let runner = Runner::start();
    runner.create("box").await;
    for size in [0, 1, 18 << 10, (64 << 10) + 1, 20_000_000, (64 << 20) + 1] {
        let content: Vec<u8> = (0..size).map(|at: usize| (at * 7 % 251) as u8).collect();
        write(&runner, "path=f", content.clone()).await.expect(200);
        let reply = read(&runner, "f").await.expect(200);
        assert_eq!(reply.header("content-length"), size.to_string());
        assert!(reply.body == content, "{size}");
    }
    let part = runner.call("GET", &format!("{FS}/read?path=f")).header("range", "bytes=-3").send().await.expect(206);
    assert_eq!(part.header("content-range"), format!("bytes {}-{}/{}", (64 << 20) - 2, 64 << 20, (64 << 20) + 1));
    assert_eq!(part.body.len(), 3);
    assert_eq!(list(&runner, ".").await.iter().filter(|name| *name == "f").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_idioms_of_the_clients() {
    let runner = Runner::start();
    runner.create("box").await;
    let delete = async |query: &str| runner.delete(&format!("{FS}/delete?{query}")).await;
    // Python's mkdir(), Elixir's mkdir_p, Go's MkdirAll.
    write(&runner, "path=/home/sprite/py/.keep&workingDir=/&mode=0644&mkdirParents=false", "").await.expect(200);
    delete("path=/home/sprite/py/.keep&workingDir=/&recursive=false").await.expect(200);
    write(&runner, "path=/home/sprite/ex/a/.mkdir_placeholder&workingDir=/", "").await.expect(200);
    delete("path=/home/sprite/ex/a/.mkdir_placeholder&workingDir=/").await.expect(200);
    write(&runner, "path=go/a/.keep&workingDir=/home/sprite&mode=0755&mkdirParents=true", "").await.expect(200);
    assert_eq!(list(&runner, "py").await.len() + list(&runner, "ex/a").await.len(), 0);
    assert_eq!(list(&runner, "go/a").await, [".keep"]);
    // stat of a file, exists of nothing, append.
    write(&runner, "path=go/log", "one\n").await.expect(200);
    let stat = runner.get(&format!("{FS}/list?path=/home/sprite/go/log&workingDir=/")).await.expect(200).json();
    assert_eq!((&stat["path"], &stat["count"]), (&"/home/sprite/go/log".into(), &1.into()));
    assert_eq!((&stat["entries"][0]["size"], &stat["entries"][0]["isDir"]), (&4.into(), &false.into()));
    refused(runner.get(&format!("{FS}/list?path=none")).await, 404, "ENOENT");
    // The rest in the bodies that SDKs send.
    for (route, body) in [
        ("rename", json!({"source": "/home/sprite/go/log", "dest": "/home/sprite/moved", "workingDir": "/"})),
        ("copy", json!({"source": "moved", "dest": "copy", "recursive": true, "asRoot": false})),
        ("chmod", json!({"path": "copy", "mode": "0755"})),
        ("chmod", json!({"path": "copy", "mode": 493, "recursive": null})),
        ("chown", json!({"path": "copy", "uid": "sprite", "gid": null})),
    ] {
        runner.post(&format!("{FS}/{route}"), body).await.expect(200);
    }
    assert_eq!(runner.run("box", &Query::sh("stat -c %a copy; cat copy")).await.expect(0).out(), "755\none\n");
    delete("path=go").await.expect(409);
    delete("path=go&recursive=true").await.expect(200);
    let body = json!({"path": "/home/sprite/copy"});
    let reply = runner.call("DELETE", &format!("{FS}/delete")).json(&body).send().await.expect(200);
    assert_eq!(reply.json(), json!({"deleted": ["/home/sprite/copy"], "count": 1}));
    refused(delete("path=go&recursive=true").await, 404, "ENOENT");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_reach_the_client_whole() {
    let runner = Runner::start_with(Options::args(&["--max-file", "32MiB"]));
    runner.create("box").await;
    refused(read(&runner, "none").await, 404, "ENOENT");
    refused(read(&runner, "/home/sprite").await, 400, "EISDIR");
    refused(read(&runner, "/dev/zero").await, 400, "EINVAL");
    refused(read(&runner, "a%00b").await, 400, "EINVAL");
    refused(write(&runner, "path=big", vec![0; (32 << 20) + 1]).await, 413, "EINVAL");
    refused(write(&runner, "path=a&asRoot=true", "").await, 403, "EPERM");
    // Much more than any buffer on the way: the reason must not be lost in a reset connection.
    let reply = write(&runner, "path=/etc/fountain-test", vec![0; 30 << 20]).await;
    assert!(reply.json()["error"].as_str().unwrap().contains("permission denied"));
    refused(reply, 403, "EACCES");
    assert!(!fs::exists("/etc/fountain-test").unwrap());
    let missing = runner.get("/v1/sprites/none/fs/read?path=x").await.expect(404);
    missing.assert_error_shape();
    runner.call("GET", "/v1/sprites/none/fs/watch").upgrade().send().await.expect(404).assert_error_shape();
    runner.get(&format!("{FS}/watch")).await.expect(426).assert_error_shape();
    runner.post(&format!("{FS}/read?path=x"), json!({})).await.expect(405).assert_error_shape();
    runner.get(&format!("{FS}/nothing")).await.expect(404).assert_error_shape();
    assert!(list(&runner, ".").await.iter().all(|name| name.starts_with('.')), "nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_holds_nobody_up() {
    let runner = Runner::start();
    runner.create("box").await;
    runner.run("box", &Query::sh("mkfifo fifo; mkdir dir; mkfifo dir/fifo")).await.expect(0);
    for _ in 0..50 {
        refused(read(&runner, "fifo").await, 400, "EINVAL");
        refused(write(&runner, "path=fifo", "x").await, 400, "EINVAL");
    }
    runner.post(&format!("{FS}/copy"), json!({"source": "dir", "dest": "dir2", "recursive": true})).await.expect(200);
    assert_eq!(list(&runner, "dir2").await, ["fifo"]);
}

/// Begins to replace the file `f` and stops in the middle.
async fn half_an_upload(runner: &Runner) -> TcpStream {
    let mut socket = TcpStream::connect(runner.addr).await.unwrap();
    let head = format!(
        "PUT {FS}/write?path=new/dir/f HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 90000000\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // More than the buffers on the way hold: when it is all sent, the agent has taken some of it.
    within("most of an upload", socket.write_all(&vec![7; 30_000_000])).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_in_flight_at_a_crash_leaves_the_old_file() {
    let mut runner = Runner::start();
    runner.create("box").await;
    write(&runner, "path=new/dir/f", "old").await.expect(200);
    let pid = runner.exec("box", &Query::sh("echo $$; cat").stdin()).await.number().await;
    for crash in ["client", "agent", "runner"] {
        let mut socket = half_an_upload(&runner).await;
        match crash {
            "client" => drop(socket),
            "agent" => {
                Pidfd::open(agent_of(pid)).kill9();
                // The runner says so in its way, or ends the connection.
                let mut rest = Vec::new();
                _ = within("the end of the upload", socket.read_to_end(&mut rest)).await;
                assert!(!rest.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&rest));
            }
            _ => {
                runner.kill9();
                runner.restart();
            }
        }
        assert_eq!(read(&runner, "new/dir/f").await.expect(200).body, "old", "{crash}");
        assert_eq!(list(&runner, "new/dir").await, ["f"], "{crash}");
    }
    assert_eq!(fs::read_dir(home(&runner).join("new/dir")).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_writers_and_readers_see_whole_files() {
    let runner = Runner::start();
    runner.create("box").await;
    write(&runner, "path=shared", vec![0; 300_000]).await.expect(200);
    let runner = &runner;
    join_all((1..20_u8).map(|number| async move {
        write(runner, "path=shared", vec![number; 300_000]).await.expect(200);
        let body = read(runner, "shared").await.expect(200).body;
        assert!(body.len() == 300_000 && body.iter().all(|byte| *byte == body[0]));
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_by_processes_are_watched() {
    let runner = Runner::start();
    runner.create("box").await;
    write(&runner, "path=app/src/x", "").await.expect(200);
    let mut socket = Socket::open(&runner, &format!("{FS}/watch"), &[]).await;
    let mut hear = async |say: Option<Value>| {
        if let Some(say) = say {
            socket.text(say).await;
        }
        match socket.data().await {
            common::Frame::Text(text) => text,
            other => panic!("{other:?}"),
        }
    };
    let subscribe =
        |path: &str| json!({"type": "subscribe", "paths": [path], "recursive": true, "workingDir": "/home/sprite/app"});
    let error = hear(Some(subscribe("none"))).await;
    assert_eq!(error["message"], "watch /home/sprite/app/none: no such file or directory");
    assert_eq!(hear(None).await["type"], "subscribed");
    assert_eq!(hear(Some(subscribe("src"))).await, json!({"type": "subscribed", "paths": ["src"]}));
    runner.run("box", &Query::sh("mkdir -p app/src/a/b; echo 1 > app/src/a/b/c; rm app/src/x")).await.expect(0);
    let mut heard = Vec::new();
    while heard.last().is_none_or(|last| last != "remove /home/sprite/app/src/x") {
        let event = hear(None).await;
        assert_eq!(event["type"], "event", "{event}");
        heard.push(format!("{} {}", event["event"].as_str().unwrap(), event["path"].as_str().unwrap()));
    }
    for path in ["a", "a/b", "a/b/c"] {
        assert!(heard.contains(&format!("create /home/sprite/app/src/{path}")), "{path} in {heard:?}");
    }
    socket.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_calls_wake_a_sprite_whose_agent_died() {
    let runner = Runner::start();
    runner.create("box").await;
    write(&runner, "path=f", "kept").await.expect(200);
    let pid = runner.exec("box", &Query::sh("echo $$; cat").stdin()).await.number().await;
    let agent = Pidfd::open(agent_of(pid));
    agent.kill9();
    agent.gone().await;
    assert_eq!(read(&runner, "f").await.expect(200).body, "kept");
}
