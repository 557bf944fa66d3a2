//! What a running command feels: signals, window sizes, terminals, keepalive, and a clean start.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::processes::status_field;
use common::socket::text;
use common::{Frame, Options, Pidfd, Query, Runner};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn signals_by_every_spelling() {
    let runner = Runner::start();
    runner.create("s").await;
    let spellings = [("INT", 130), ("SIGTERM", 143), ("hup", 129), ("SigKill", 137), ("QUIT", 131), ("USR1", 138)];
    for (name, code) in spellings.into_iter().chain([("sigusr2", 140), ("9", 137)]) {
        let mut socket = runner.exec("s", &Query::of(&["sleep", "1000"]).no_stdin()).await;
        socket.info().await;
        // None of these may end the socket or the command.
        socket.signal("NOSUCH").await;
        socket.text(json!({"type": "signal"})).await;
        socket.text(json!({"type": "dance"})).await;
        socket.text(json!([1, 2])).await;
        socket.send(tokio_tungstenite::tungstenite::Message::text("{not json")).await;
        socket.signal(name).await;
        socket.finish().await.expect(code);
    }
}

/// Kill reaches the whole group, not only the leader (FAULTS 62).
#[tokio::test(flavor = "multi_thread")]
async fn signal_reaches_the_group() {
    let runner = Runner::start();
    runner.create("s").await;
    let script = "sleep 1000 & echo $!; sleep 1000 & echo $!; wait";
    let mut socket = runner.exec("s", &Query::sh(script).no_stdin()).await;
    let children = [Pidfd::alive(socket.number().await), Pidfd::alive(socket.number().await)];
    socket.signal("TERM").await;
    socket.finish().await.expect(143);
    for child in children {
        child.gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn death_by_signal_is_128_plus_n() {
    let runner = Runner::start();
    runner.create("s").await;
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let script = format!("kill -{signal} $$");
        runner.run("s", &Query::sh(&script).no_stdin()).await.expect(code);
        runner.run("s", &Query::sh(&script).tty(24, 80).stdin()).await.expect(code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_counts_for_the_line_behind_it() {
    let runner = Runner::start();
    runner.create("s").await;
    let script = "stty -echo; echo ready; while read -r line; do stty size; done";
    let mut socket = runner.exec("s", &Query::sh(script).tty(24, 80).stdin()).await;
    socket.until_stdout("ready\r\n").await;
    let mut expected = text(socket.stdout());
    for n in 1..=60 {
        socket.resize(n, 2 * n).await;
        socket.binary("\n").await;
        expected += &format!("{n} {}\r\n", 2 * n);
        socket.until_stdout(&expected).await;
    }
    socket.signal("KILL").await;
    socket.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_input_resize_and_ctrl_c() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::of(&["sh"]).tty(30, 100).stdin().env("PS1=")).await;
    socket.binary("stty -echo; stty size; echo MARK1\n").await;
    socket.until_stdout("30 100\r\nMARK1\r\n").await;
    socket.resize(50, 180).await;
    socket.resize(0, 0).await;
    socket.text(json!({"type": "resize", "cols": 7})).await;
    socket.binary("stty size\n").await;
    socket.until_stdout("50 180\r\n").await;
    // Bytes are never decoded: half a character, then the other half.
    socket.binary(b"printf '<%s>\\n' '\xe6\x97".to_vec()).await;
    socket.binary(b"\xa5'\n".to_vec()).await;
    socket.until_stdout("<\u{65e5}>\r\n").await;
    // Ctrl-C goes through the line discipline to the foreground job only.
    // The job itself says when it has the foreground; before that, ^C would be the shell's.
    socket.binary("sh -c 'echo go; exec sleep 1000'; echo code=$?\n").await;
    socket.until_stdout("go\r\n").await;
    socket.binary(vec![3]).await;
    socket.binary("echo back\n").await;
    socket.until_stdout("back\r\n").await;
    socket.binary("exit 9\n").await;
    socket.finish().await.expect(9);
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_signals_and_hangup() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::sh("echo $$; exec sleep 1000").tty(24, 80).stdin()).await;
    let pid = Pidfd::alive(socket.number().await);
    socket.signal("INT").await;
    socket.finish().await.expect(130);
    pid.gone().await;
    // Ctrl-D is a byte like others; 04 is never sent on a terminal.
    let mut socket = runner.exec("s", &Query::of(&["cat"]).tty(24, 80).stdin()).await;
    socket.binary("hi\n").await;
    socket.until_stdout("hi\r\nhi\r\n").await;
    socket.binary(vec![4]).await;
    socket.finish().await.expect(0);
}

/// The attach of a Go client to a terminal without `tty=true` gets framed output (exec.md §4.3).
#[tokio::test(flavor = "multi_thread")]
async fn go_attach_shim() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut owner = runner.exec("s", &Query::of(&["cat"]).tty(24, 80).stdin()).await;
    let id = owner.id().await;
    owner.binary("one\n").await;
    owner.until_stdout("one\r\none\r\n").await;
    let mut go = runner.attach_as("s", &id, "stdin=true", "Go-http-client/1.1").await;
    assert_eq!(go.info().await["tty"], true);
    go.stdin("two\n").await;
    let mut framed = Vec::new();
    while !common::processes::contains(&framed, b"two\r\ntwo\r\n") {
        match go.data().await {
            Frame::Binary(bytes) => {
                assert_eq!(bytes[0], 1);
                framed.extend_from_slice(&bytes[1..]);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(framed.starts_with(b"one\r\none\r\n"), "replay too");
    owner.binary(vec![4]).await;
    owner.finish().await.expect(0);
    assert_eq!(go.data().await, Frame::Text(json!({"type": "exit", "exit_code": 0, "code": 0})));
}

/// JS dies without a data message for 60 s, so 20 s of silence bring a text (exec.md §2.7).
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_kept_alive() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut pipe = runner.exec("s", &Query::of(&["sleep", "1000"]).no_stdin()).await;
    let mut tty = runner.exec("s", &Query::of(&["sleep", "1000"]).tty(24, 80).stdin()).await;
    pipe.info().await;
    tty.info().await;
    let began = Instant::now();
    for socket in [&mut pipe, &mut tty] {
        let mut pings = 0;
        let keepalive = loop {
            match socket.next().await {
                Frame::Ping => pings += 1,
                other => break other,
            }
        };
        assert_eq!(keepalive, Frame::Text(json!({"type": "debug", "msg": "keepalive"})));
        assert!(pings >= 1, "a ping every 15 to 20 s");
        let took = began.elapsed();
        assert!(Duration::from_secs(10) < took && took < Duration::from_secs(26), "{took:?}");
    }
    for mut socket in [pipe, tty] {
        socket.signal("KILL").await;
        socket.finish().await.expect(137);
    }
}

/// Default dispositions, an empty mask and only 0, 1, 2 open, whatever the runner was started with.
#[tokio::test(flavor = "multi_thread")]
async fn children_start_clean() {
    let soiled = "exec 7</etc/passwd 8</etc/passwd 9>&1; exec env --ignore-signal=HUP --ignore-signal=PIPE \
                  --ignore-signal=INT --block-signal=USR1 --block-signal=TERM \"$0\" \"$@\"";
    let wrapper = ["sh", "-c", soiled].map(str::to_owned).to_vec();
    for options in [Options::default(), Options { wrapper, ..Options::default() }] {
        let mut runner = Runner::start_with(options);
        runner.create("s").await;
        let query = Query::sh("echo $$; exec cat");
        for query in [query.clone().stdin(), query.clone().no_stdin().env("X=1"), query.tty(24, 80).stdin()] {
            let tty = query.as_str().contains("tty=true");
            let mut socket = runner.exec("s", &query).await;
            let pid = socket.number().await;
            if query.as_str().contains("stdin=true") {
                // The answer of cat shows that the shell has become it; a terminal's echo of the same comes before.
                socket.binary(if tty { &b"x\n"[..] } else { b"\x00x\n" }).await;
                socket.until_stdout(if tty { "x\r\nx" } else { "x" }).await;
                for field in ["SigBlk", "SigIgn", "SigCgt"] {
                    assert_eq!(status_field(pid, field).as_deref(), Some("0000000000000000"), "{field}, {query:?}");
                }
                let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
                let mut fds: Vec<_> = fds.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
                fds.sort();
                assert_eq!(fds, ["0", "1", "2"], "{query:?}");
                // Its own session and process group.
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
                let ids: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
                assert_eq!((ids[2], ids[3]), (pid.to_string().as_str(), pid.to_string().as_str()), "pgrp, session");
                socket.binary(vec![4]).await;
            }
            socket.finish().await.expect(0);
        }
        // A runner that was told to ignore signals still stops when asked.
        runner.stop_all();
        runner.restart();
    }
}
