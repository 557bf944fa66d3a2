//! Sessions beyond one socket: attach, replay, several clients, the stray `04`, what survives a disconnect, and listing.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::time::{Duration, Instant};

use common::socket::text;
use common::{Frame, Options, Pidfd, Query, Runner, Socket, until};
use futures_util::future::join_all;
use serde_json::json;

/// Answers each line of stdin on both streams, as an adapter would; its own pid comes first.
const ADAPTER: &str = "echo $$; while read -r line; do echo \"out $line\"; echo \"err $line\" >&2; done; exit 5";

fn adapter() -> Query {
    Query::sh(ADAPTER).stdin().detachable()
}

/// One line in, both answers out.
async fn turn(socket: &mut Socket, line: &str) {
    socket.stdin(format!("{line}\n")).await;
    socket.until_stdout(&format!("out {line}\n")).await;
    while !text(socket.stderr()).contains(&format!("err {line}\n")) {
        assert!(!socket.next().await.is_end());
    }
}

/// Output records keep their streams, their borders and their order, live and in every replay.
#[tokio::test(flavor = "multi_thread")]
async fn replay_is_the_original_frames() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut owner = runner.exec("s", &adapter()).await;
    let id = owner.id().await;
    owner.number().await;
    for round in 0..20 {
        turn(&mut owner, &format!("line {round}")).await;
    }
    let mut early = runner.attach("s", &id).await;
    turn(&mut owner, "last").await;
    early.until_stdout("out last\n").await;
    owner.eof().await;
    let original = owner.finish().await.expect(5);
    let early = early.finish().await.expect(5);
    let late = runner.attach("s", &id).await.finish().await.expect(5);
    assert_eq!(original.output_frames().len(), 43);
    assert_eq!(early.output_frames(), original.output_frames());
    assert_eq!(late.output_frames(), original.output_frames());
    assert_eq!(late.info()["session_id"], id.as_str());
    // No offset is taken: Fountain counts bytes per stream from byte zero.
    assert_eq!((late.stdout(), late.stderr()), (original.stdout(), original.stderr()));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_clients_share_a_session() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut owner = runner.exec("s", &adapter()).await;
    assert_eq!(owner.info().await["is_owner"], true);
    let id = owner.id().await;
    let mut second = runner.attach("s", &id).await;
    assert_eq!(second.info().await["is_owner"], false);
    let mut third = runner.attach("s", &id).await;
    turn(&mut owner, "from owner").await;
    turn(&mut second, "from second").await;
    turn(&mut third, "from third").await;
    // One leaves rudely; nobody minds.
    third.reset();
    turn(&mut second, "after").await;
    second.eof().await;
    let [owner, second] = [owner.finish().await.expect(5), second.finish().await.expect(5)];
    assert_eq!(owner.output_frames(), second.output_frames());
    for who in ["owner", "second", "third"] {
        assert!(owner.out().contains(&format!("out from {who}\n")), "{}", owner.out());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_are_shared_too() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut owner = runner.exec("s", &Query::of(&["sh"]).tty(24, 80).stdin().env("PS1=")).await;
    let id = owner.id().await;
    owner.binary("stty -echo; echo one\n").await;
    owner.until_stdout("one\r\n").await;
    let mut second = Socket::open(
        &runner,
        &format!("/v1/sprites/s/exec/{id}?stdin=true&rows=40&cols=120"),
        &[("user-agent", "sprites-ex/0.2.2")],
    )
    .await;
    assert_eq!(second.info().await["tty"], true);
    second.until_stdout("one\r\n").await;
    second.binary("stty size; echo two\n").await;
    owner.until_stdout("40 120\r\ntwo\r\n").await;
    owner.vanish();
    second.binary("exit 4\n").await;
    let second = second.finish().await.expect(4);
    assert_eq!(second.stdout(), runner.attach("s", &id).await.finish().await.stdout());
}

/// exec.md §2.4: which lone `04` is noise of an SDK, and which is the end of input on purpose.
#[tokio::test(flavor = "multi_thread")]
async fn stray_eof() {
    let runner = Runner::start();
    runner.create("s").await;
    let dropped = [
        ("stdin=true", "sprites-py/0.7.2"),
        ("stdin=true", "sprites-py/0.7.2 fountain"),
        ("stdin=false", "Go-http-client/1.1"),
        ("stdin=false", "Go-http-client/2.0"),
    ];
    for (query, agent) in dropped {
        let mut owner = runner.exec("s", &adapter()).await;
        let id = owner.id().await;
        let mut other = runner.attach_as("s", &id, query, agent).await;
        other.eof().await;
        // What follows on the same socket is meant.
        other.stdin("meant\n").await;
        other.until_stdout("out meant\n").await;
        turn(&mut owner, "still open").await;
        other.eof().await;
        owner.finish().await.expect(5);
        other.finish().await.expect(5);
    }
    let honoured = [
        ("stdin=true", "Go-http-client/1.1"),
        ("stdin=false", "sprites-ex/0.2.2"),
        ("stdin=false", "gun/2.0"),
        ("stdin=true", "node"),
    ];
    for (query, agent) in honoured {
        let mut owner = runner.exec("s", &adapter()).await;
        let id = owner.id().await;
        let mut other = runner.attach_as("s", &id, query, agent).await;
        other.eof().await;
        owner.finish().await.expect(5);
        other.finish().await.expect(5);
    }
    // Not the first message: meant. Not on an attach: meant.
    let mut owner = runner.exec("s", &adapter()).await;
    let id = owner.id().await;
    let mut other = runner.attach_as("s", &id, "stdin=true", "sprites-py/0.7.2").await;
    other.stdin("x\n").await;
    other.eof().await;
    owner.finish().await.expect(5);
    let mut fresh = runner.exec_as("s", &adapter(), &[("user-agent", "sprites-py/0.7.2")]).await;
    fresh.eof().await;
    fresh.finish().await.expect(5);
    // Py sends it before it knows that the session is a terminal; typed, it would end the shell.
    let mut shell = runner.exec("s", &Query::of(&["cat"]).tty(24, 80).stdin()).await;
    let id = shell.id().await;
    let mut other = runner.attach_as("s", &id, "stdin=true", "sprites-py/0.7.2").await;
    other.eof().await;
    other.binary("alive\n").await;
    shell.until_stdout("alive\r\nalive\r\n").await;
    shell.binary(vec![4]).await;
    shell.finish().await.expect(0);
}

/// Whether bytes reach the child is decided by how the session was created, not by the attach (exec.md §4.3).
#[tokio::test(flavor = "multi_thread")]
async fn null_stdin_stays_null() {
    let runner = Runner::start();
    runner.create("s").await;
    for query in [Query::of(&["cat"]), Query::of(&["cat"]).no_stdin()] {
        let mut socket = runner.exec("s", &query).await;
        _ = socket.try_send(tokio_tungstenite::tungstenite::Message::binary(b"\0never".to_vec())).await;
        _ = socket.try_send(tokio_tungstenite::tungstenite::Message::binary(vec![4])).await;
        assert_eq!(socket.finish().await.expect(0).out(), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_sessions_have_a_grace() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut ids = Vec::new();
    for code in [0, 7, 143] {
        let script =
            if code == 143 { "echo o; kill -TERM $$".into() } else { format!("echo o; echo e >&2; exit {code}") };
        let mut socket = runner.exec("s", &Query::sh(&script).no_stdin()).await;
        let id = socket.id().await;
        let original = socket.finish().await.expect(code);
        // It leaves the list before its client hears the end.
        assert!(runner.sessions("s").await.is_empty());
        let again = runner.attach("s", &id).await.finish().await.expect(code);
        assert_eq!(again.output_frames(), original.output_frames());
        assert_eq!(again.info()["session_id"], id.as_str());
        let kill = runner.call("POST", &format!("/v1/sprites/s/exec/{id}/kill")).send().await.expect(200);
        assert_eq!(kill.lines().pop().unwrap()["exit_code"], code, "a kill comes too late and tells the real end");
        ids.push(id);
    }
    // Ids rise and never come back.
    let numbers: Vec<u64> = ids.iter().map(|id| id[1..].parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list() {
    let runner = Runner::start();
    runner.create("s").await;
    let empty = runner.get("/v1/sprites/s/exec").await.expect(200);
    assert_eq!(empty.json(), json!({"count": 0, "sessions": []}));
    assert!(!empty.header("sprite-version").is_empty());
    let tag = "FOUNTAIN_CONVERSATION_ID=00000000-0000-4000-8000-000000000001";
    let mut pipe = runner.exec("s", &Query::of(&["env", tag, "cat"]).stdin().detachable()).await;
    let mut tty = runner.exec("s", &Query::of(&["sh", "-c", "echo  two   spaces; exec cat"]).tty(24, 80)).await;
    let mut plain = runner.exec("s", &Query::of(&["cat"]).stdin().dir("/tmp")).await;
    let ids = [pipe.id().await, tty.id().await, plain.id().await];
    let list = runner.sessions("s").await;
    assert_eq!(list.len(), 3);
    let of = |id: &str| list.iter().find(|s| s["id"] == id).unwrap_or_else(|| panic!("{id} in {list:?}"));
    assert_eq!(of(&ids[0])["command"], format!("env {tag} cat"));
    assert_eq!(of(&ids[1])["command"], "sh -c echo  two   spaces; exec cat");
    assert_eq!((&of(&ids[1])["tty"], &of(&ids[2])["tty"]), (&json!(true), &json!(false)));
    assert_eq!((&of(&ids[0])["workdir"], &of(&ids[2])["workdir"]), (&json!("/home/sprite"), &json!("/tmp")));
    for session in &list {
        assert_eq!(session["is_active"], true, "{session}");
        assert!(session["bytes_per_second"].is_number(), "{session}");
        assert_time(session["created"].as_str().unwrap());
        if let Some(time) = session.get("last_activity") {
            assert_time(time.as_str().unwrap());
        }
    }
    for mut socket in [pipe, plain] {
        socket.eof().await;
        socket.finish().await.expect(0);
    }
    tty.binary(vec![4]).await;
    tty.finish().await.expect(0);
    assert!(runner.sessions("s").await.is_empty());
}

/// RFC 3339 in UTC with 0, 3 or 6 digits: all that Python before 3.11 can read.
fn assert_time(time: &str) {
    let body = time.strip_suffix('Z').unwrap_or_else(|| panic!("{time}"));
    assert_eq!(body.as_bytes()[10], b'T', "{time}");
    let digits = body.split_once('.').map_or(0, |(_, digits)| digits.len());
    assert!(matches!(digits, 0 | 3 | 6), "{time}");
}

/// A command without a terminal has 10 s after its last client left, not less, not more (exec.md §4.4).
#[tokio::test(flavor = "multi_thread")]
async fn ten_seconds_after_the_last_client() {
    let runner = Runner::start();
    runner.create("s").await;
    let plain = Query::sh("echo $$; exec sleep 1000").stdin();
    // Each row: the query, how the client leaves, when the process must end (none: it stays).
    let rows: [(Query, bool, Option<f64>); 9] = [
        (plain.clone(), true, Some(10.0)),
        (plain.clone(), false, Some(10.0)),
        (plain.clone().with("max_run_after_disconnect", "2s"), true, Some(2.0)),
        (plain.clone().with("max_run_after_disconnect", "500ms"), true, Some(0.5)),
        (plain.clone().detachable().with("max_run_after_disconnect", "1"), true, Some(1.0)),
        (plain.clone().tty(24, 80).with("max_run_after_disconnect", "1s500ms"), true, Some(1.5)),
        (plain.clone().with("max_run_after_disconnect", "0"), true, None),
        (plain.clone().detachable(), true, None),
        (plain.clone().tty(24, 80), true, None),
    ];
    let run = |(query, vanish, ends): (Query, bool, Option<f64>)| {
        let runner = &runner;
        async move {
            let mut socket = runner.exec("s", &query).await;
            let process = Pidfd::alive(socket.number().await);
            let pid = process.pid;
            let left = Instant::now();
            if vanish {
                socket.vanish()
            } else {
                socket.close().await
            }
            let Some(ends) = ends else { return Some(pid) };
            assert!(process.gone_within(Duration::from_secs(40)).await, "{query:?} outlives its client");
            let lived = left.elapsed().as_secs_f64();
            assert!(ends - 0.05 <= lived && lived < ends + 4.0, "{query:?} lived {lived} s, not {ends}");
            None
        }
    };
    let stay: Vec<i32> = join_all(rows.map(run)).await.into_iter().flatten().collect();
    assert_eq!(stay.len(), 3);
    for pid in stay {
        Pidfd::alive(pid);
    }
    assert_eq!(runner.sessions("s").await.len(), 3);
    let finished = |s: &serde_json::Value| s["is_active"].clone();
    assert_eq!(runner.sessions("s").await.iter().map(finished).collect::<Vec<_>>(), [false, false, false]);
}

/// SIGTERM first; what ignores it gets SIGKILL 5 s later. A client that comes back in time stops the clock.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_stops_and_starts_again() {
    let runner = Runner::start();
    runner.create("s").await;
    let stubborn = Query::sh("trap '' TERM; echo $$; while :; do sleep 1; done").stdin();
    let stubborn = stubborn.with("max_run_after_disconnect", "1s");
    let mut socket = runner.exec("s", &stubborn).await;
    let process = Pidfd::alive(socket.number().await);
    let left = Instant::now();
    socket.vanish();

    let mut returning = runner.exec("s", &adapter().with("max_run_after_disconnect", "3s")).await;
    let id = returning.id().await;
    let kept = Pidfd::alive(returning.number().await);
    returning.vanish();
    let mut back = runner.attach("s", &id).await;
    turn(&mut back, "back").await;

    assert!(process.gone_within(Duration::from_secs(30)).await);
    let lived = left.elapsed();
    assert!((5.9..12.0).contains(&lived.as_secs_f64()), "{lived:?}");
    // Six seconds later the one with a client lives; when it leaves, the clock starts from the beginning.
    turn(&mut back, "again").await;
    let left = Instant::now();
    back.vanish();
    assert!(kept.gone_within(Duration::from_secs(30)).await);
    let lived = left.elapsed();
    assert!((2.9..8.0).contains(&lived.as_secs_f64()), "{lived:?}");
}

/// A killed straggler's late attach still hears the end: 143 by the timer's SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn the_timer_leaves_an_exit() {
    let runner = Runner::start();
    runner.create("s").await;
    let query = Query::sh("echo $$; exec sleep 1000").stdin().with("max_run_after_disconnect", "200ms");
    let mut socket = runner.exec("s", &query).await;
    let id = socket.id().await;
    let process = Pidfd::alive(socket.number().await);
    socket.vanish();
    process.gone().await;
    runner.attach("s", &id).await.finish().await.expect(143);
}

/// How Fountain ends an old adapter: attach, `04`, gone. The end of input must arrive although the client is no more.
#[tokio::test(flavor = "multi_thread")]
async fn eof_then_abrupt_drop() {
    let runner = Runner::start();
    runner.create("s").await;
    for reset in [false, true, false, true, true] {
        let mut owner = runner.exec("s", &adapter()).await;
        let id = owner.id().await;
        let process = Pidfd::alive(owner.number().await);
        owner.vanish();
        let mut other = runner.attach_as("s", &id, "stdin=true", "sprites-ex/0.2.2").await;
        other.eof().await;
        if reset {
            other.reset()
        } else {
            other.vanish()
        }
        process.gone().await;
        runner.attach("s", &id).await.finish().await.expect(5);
    }
}

/// The same with 256 MiB of replay in the way that nobody will ever read.
#[tokio::test(flavor = "multi_thread")]
async fn eof_then_abrupt_drop_behind_a_big_replay() {
    let runner = Runner::start();
    runner.create("s").await;
    let script = "mkfifo full; echo $$; seq 1 31100000; echo > full; exec cat > /dev/null";
    let mut owner = runner.exec("s", &Query::sh(script).stdin().detachable()).await;
    owner.keep_output = false;
    let id = owner.id().await;
    let process = Pidfd::alive(owner.number().await);
    owner.vanish();
    // The fifo opens once all of it is in the journal: nobody attached, so the process never blocked.
    runner.run("s", &Query::of(&["cat", "full"]).no_stdin()).await.expect(0);
    assert!(!process.is_dead());
    let mut other = runner.attach_as("s", &id, "stdin=true", "sprites-ex/0.2.2").await;
    other.eof().await;
    other.reset();
    process.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_setting() {
    // A process that has served three turns: what a new client gets is the setting's choice (fountain.md §4.4).
    let script = "while read -r n; do i=0; while [ $i -lt 400 ]; do echo \"turn $n update $i of the adapter\"; \
                  i=$((i+1)); done; echo \"turn $n done\"; done";
    for (setting, bound) in [(None, usize::MAX), (Some("full"), usize::MAX), (Some("tail:16KiB"), 16 << 10)] {
        let args: Vec<&str> = setting.iter().flat_map(|s| ["--replay", *s]).collect();
        let runner = Runner::start_with(Options::args(&args));
        runner.create("s").await;
        let mut owner = runner.exec("s", &Query::sh(script).stdin().detachable()).await;
        let id = owner.id().await;
        for turn in 1..=3 {
            owner.stdin(format!("{turn}\n")).await;
            owner.until_stdout(&format!("turn {turn} done\n")).await;
        }
        let whole = owner.stdout();
        assert!(whole.len() > 32 << 10);
        owner.vanish();
        let mut back = runner.attach("s", &id).await;
        back.until_stdout("turn 3 done\n").await;
        let replay = back.stdout();
        assert!(whole.ends_with(&replay), "a suffix, byte for byte");
        if bound == usize::MAX {
            assert_eq!(replay.len(), whole.len(), "{setting:?}");
        } else {
            assert!(replay.len() <= bound && replay.len() > bound / 2, "{setting:?}: {}", replay.len());
            assert!(!text(&replay).contains("turn 1"), "the first turn is not told again");
        }
        // Live output follows as ever.
        back.stdin("4\n").await;
        back.until_stdout("turn 4 done\n").await;
        back.eof().await;
        back.finish().await.expect(0);
    }
}

/// Detached, a process never blocks and keeps all it says; its stdin stays open.
#[tokio::test(flavor = "multi_thread")]
async fn detached_output_is_kept() {
    let runner = Runner::start();
    runner.create("s").await;
    let script = "mkfifo done; echo $$; read -r go; seq 1 500000; seq 1 500000 >&2; echo > done; cat";
    let mut owner = runner.exec("s", &Query::sh(script).stdin().detachable()).await;
    let id = owner.id().await;
    let pid = owner.number().await;
    owner.stdin("go\n").await;
    owner.vanish();
    runner.run("s", &Query::of(&["cat", "done"]).no_stdin()).await.expect(0);
    Pidfd::alive(pid);
    let mut back = runner.attach("s", &id).await;
    back.stdin("tail\n").await;
    back.eof().await;
    let all = back.finish().await.expect(0);
    let numbers: String = (1..=500_000).map(|n| format!("{n}\n")).collect();
    assert!(all.out() == format!("{pid}\n{numbers}tail\n"), "stdout differs");
    assert!(all.err() == numbers, "stderr differs");
}

/// A session belongs to the sprite: gone with it, and its exit is told to whoever is attached.
#[tokio::test(flavor = "multi_thread")]
async fn delete_ends_sessions_with_an_exit() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut pipe = runner.exec("s", &Query::sh("echo $$; exec sleep 1000").stdin()).await;
    let mut tty = runner.exec("s", &Query::sh("echo $$; exec sleep 1000").tty(24, 80).stdin()).await;
    let processes = [Pidfd::alive(pipe.number().await), Pidfd::alive(tty.number().await)];
    runner.delete("/v1/sprites/s").await.expect(204);
    for process in processes {
        assert!(process.is_dead(), "delete answers when all is done");
    }
    for socket in [pipe, tty] {
        assert!(socket.finish().await.code() > 128);
    }
    runner.get("/v1/sprites/s/exec").await.expect(404);
    runner.call("GET", "/v1/sprites/s/exec?cmd=true").upgrade().send().await.expect(404);
    // The name is free, its old sessions are not the new sprite's.
    runner.create("s").await;
    runner.call("GET", "/v1/sprites/s/exec/s1").upgrade().send().await.expect(404);
}

/// A start that was cut off leaves either no child or a listed session (FAULTS 59).
#[tokio::test(flavor = "multi_thread")]
async fn gone_at_the_start() {
    let runner = Runner::start();
    runner.create("s").await;
    let query = Query::of(&["cat"]).stdin().with("max_run_after_disconnect", "100ms");
    for round in 0..50 {
        let socket = runner.exec("s", &query).await;
        if round % 2 == 0 { socket.vanish() } else { socket.reset() }
    }
    until("the cut-off sessions to end", || async { runner.sessions("s").await.is_empty().then_some(()) }).await;
    assert!(matches!(runner.run("s", &Query::of(&["true"])).await.end(), Frame::Close(1000, _)));
}
