//! `kill -9` of the runner and of agents, two runners on one folder, Ctrl-C, `fountain stop`: what must survive does,
//! what must die does, and no end is told that did not happen.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::socket::text;
use common::{Frame, Pidfd, Query, Runner, Socket, agent_of, until};
use futures_util::future::join_all;

/// A command that writes numbered lines until the file `stop` appears in its home.
fn counter(code: u8, pause: &str) -> String {
    format!("echo $$; n=0; while [ ! -e stop ]; do n=$((n+1)); echo \"line $n\"; {pause} done; echo end; exit {code}")
}

/// A counting session and what its first client saw.
struct Counter {
    id: String,
    tty: bool,
    code: u8,
    pid: i32,
    seen: Vec<u8>,
}

impl Counter {
    async fn start(runner: &Runner, n: u8, pause: &str) -> (Self, Socket) {
        let query = Query::sh(&counter(10 + n, pause)).stdin();
        // Pipes and terminals; of the pipes, some detachable and some not.
        let query = match n % 4 {
            0 | 2 => query.tty(24, 80),
            1 => query.detachable(),
            _ => query,
        };
        let mut socket = runner.exec("s", &query).await;
        let id = socket.id().await;
        let pid = socket.number().await;
        socket.until_stdout("line 20").await;
        let tty = n.is_multiple_of(2);
        (Self { id, tty, code: 10 + n, pid, seen: Vec::new() }, socket)
    }

    /// Every byte from the first on, in order, and the code.
    async fn check(&self, socket: Socket) {
        let all = socket.finish().await.expect(self.code);
        let out = all.stdout();
        assert!(out.starts_with(&self.seen), "what the first client saw is the head of the replay");
        let out = text(out);
        let mut lines = out.split_inclusive('\n');
        let end = if self.tty { "\r\n" } else { "\n" };
        assert_eq!(lines.next(), Some(format!("{}{end}", self.pid).as_str()));
        let lines: Vec<&str> = lines.collect();
        let (last, counted) = lines.split_last().unwrap();
        assert_eq!(*last, format!("end{end}"));
        for (at, line) in counted.iter().enumerate() {
            assert_eq!(*line, format!("line {}{end}", at + 1), "session {} at line {at}", self.id);
        }
    }
}

/// The sprite's home folder on this machine.
async fn home(runner: &Runner) -> PathBuf {
    Path::new(runner.run("s", &Query::of(&["pwd"]).no_stdin()).await.out().trim_end()).to_path_buf()
}

async fn dropped(mut socket: Socket) -> Vec<u8> {
    loop {
        match socket.next().await {
            Frame::Dropped => return socket.stdout(),
            Frame::Close(code, _) => panic!("a Close {code}, which old clients read as exit 0"),
            _ => {}
        }
    }
}

async fn ten(runner: &Runner, pause: &str) -> Vec<Counter> {
    let started = join_all((0..10).map(|n| Counter::start(runner, n, pause))).await;
    let (counters, sockets): (Vec<_>, Vec<_>) = started.into_iter().unzip();
    // The sockets are read until the runner's death, which the caller brings about right after.
    let pid = runner.pid();
    Pidfd::alive(pid).kill9();
    let seen = join_all(sockets.into_iter().map(dropped)).await;
    counters.into_iter().zip(seen).map(|(counter, seen)| Counter { seen, ..counter }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_sessions_outlive_the_runner() {
    let mut runner = Runner::start();
    runner.create("s").await;
    let home = home(&runner).await;
    let counters = ten(&runner, "").await;
    runner.kill9();
    for counter in &counters {
        Pidfd::alive(counter.pid);
    }
    runner.restart();
    assert_eq!(runner.get("/v1/sprites/s").await.expect(200).json()["status"], "running");
    assert_eq!(runner.sessions("s").await.len(), 10);
    let sockets = join_all(counters.iter().map(|c| runner.attach("s", &c.id))).await;
    // Attached again and still writing; then they end.
    std::fs::write(home.join("stop"), "").unwrap();
    join_all(counters.iter().zip(sockets).map(|(counter, socket)| counter.check(socket))).await;
    let next = runner.exec("s", &Query::of(&["true"])).await.id().await;
    assert!(counters.iter().all(|c| c.id != next), "ids survive too");
}

/// What ends while the runner is away keeps its last byte and its code.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_while_the_runner_is_away() {
    let mut runner = Runner::start();
    runner.create("s").await;
    let home = home(&runner).await;
    let counters = ten(&runner, "").await;
    runner.kill9();
    let processes: Vec<_> = counters.iter().map(|c| Pidfd::open(c.pid)).collect();
    std::fs::write(home.join("stop"), "").unwrap();
    for process in processes {
        process.gone().await;
    }
    runner.restart();
    until("the ended sessions to leave the list", || async { runner.sessions("s").await.is_empty().then_some(()) })
        .await;
    for counter in &counters {
        counter.check(runner.attach("s", &counter.id).await).await;
    }
}

/// The lease rule of DESIGN.md §2: clocks of left sessions stand still while no runner lives, and start afresh after.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_seconds_away() {
    let mut runner = Runner::start();
    runner.create("s").await;
    let home = home(&runner).await;
    let counters = ten(&runner, "sleep 0.5;").await;
    let mut lonely = Vec::new();
    runner.kill9();
    // Time itself is the event here.
    tokio::time::sleep(Duration::from_secs(30)).await;
    for counter in &counters {
        Pidfd::alive(counter.pid);
    }
    let back = Instant::now();
    runner.restart();
    // One that is not detachable gets no client now: it has its ten seconds from the new lease on.
    let (left, kept): (Vec<_>, Vec<_>) = counters.into_iter().partition(|c| c.code == 13);
    let sockets = join_all(kept.iter().map(|c| runner.attach("s", &c.id))).await;
    lonely.extend(left.iter().map(|c| Pidfd::alive(c.pid)));
    for process in lonely {
        assert!(process.gone_within(Duration::from_secs(40)).await, "its clock did not start again");
        let lived = back.elapsed().as_secs_f64();
        assert!((9.9..20.0).contains(&lived), "{lived} s after the runner came back");
    }
    std::fs::write(home.join("stop"), "").unwrap();
    join_all(kept.iter().zip(sockets).map(|(counter, socket)| counter.check(socket))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_runner_a_folder() {
    let runner = Runner::start();
    runner.create("s").await;
    let output = runner.rival();
    assert!(!output.status.success(), "{output:?}");
    let said = text(&output.stderr) + &text(&output.stdout);
    assert!(!said.contains("listening on"), "{said}");
    assert!(said.contains(runner.state().to_str().unwrap()), "names the folder: {said}");
    runner.run("s", &Query::of(&["true"])).await.expect(0);
    runner.get("/v1/sprites/s").await.expect(200);
}

/// Processes that left their group, their session or their terminal, and say who they are.
const STRAYS: &str = "sleep 1000 & echo $!; \
    setsid sh -c 'echo $$; exec sleep 1000' & \
    nohup sh -c 'echo $$; exec sleep 1000' 2>/dev/null & \
    sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 1000\" >&2 & exit' ; \
    env -i setsid sh -c 'echo $$; exec sleep 1000' & ";

async fn strays(runner: &Runner) -> (Socket, Vec<Pidfd>) {
    let script = format!("echo $$; {STRAYS} echo all; exec sleep 1000");
    let mut socket = runner.exec("s", &Query::sh(&format!("exec 2>&1; {script}")).stdin().detachable()).await;
    let mut pids = Vec::new();
    let mut all = false;
    while pids.len() < 6 || !all {
        match socket.line().await.trim().parse() {
            Ok(pid) => pids.push(Pidfd::alive(pid)),
            Err(_) => all = true,
        }
    }
    (socket, pids)
}

#[tokio::test(flavor = "multi_thread")]
async fn kill9_of_an_agent() {
    let runner = Runner::start();
    let id = runner.create("s").await["id"].clone();
    let (mut pipe, pids) = strays(&runner).await;
    let mut tty = runner.exec("s", &Query::sh("echo on a terminal; exec sleep 1000").tty(24, 80).stdin()).await;
    tty.until_stdout("terminal\r\n").await;
    let finished = runner.run("s", &Query::sh("echo finished; exit 9")).await.expect(9);
    let (pipe_id, tty_id) = (pipe.id().await, tty.id().await);
    let finished_id = finished.info()["session_id"].as_str().unwrap().to_owned();

    Pidfd::alive(agent_of(pids[0].pid)).kill9();
    // Attached clients lose TCP, with no Close that an old client would read as exit 0.
    let before = dropped(pipe).await;
    dropped(tty).await;
    for pid in pids {
        pid.gone().await;
    }
    until("the sprite to be cold", || async {
        let sprite = runner.get("/v1/sprites/s").await.expect(200).json();
        assert_eq!(sprite["id"], id);
        (sprite["status"] == "cold").then_some(())
    })
    .await;
    assert!(runner.sessions("s").await.is_empty(), "a cold sprite has no sessions, and listing wakes nobody");
    assert_eq!(runner.get("/v1/sprites/s").await.json()["status"], "cold");

    let all = runner.attach("s", &pipe_id).await.finish().await.expect(137);
    assert_eq!(all.stdout(), before);
    assert!(!all.stderr().is_empty() && all.err().ends_with('\n'), "a line says why: {:?}", all.err());
    let all = runner.attach("s", &tty_id).await.finish().await.expect(137);
    assert!(all.out().starts_with("on a terminal\r\n"), "{:?}", all.out());
    // What had ended before keeps its own end.
    let all = runner.attach("s", &finished_id).await.finish().await.expect(9);
    assert_eq!((all.out().as_str(), all.err().as_str()), ("finished\n", ""));

    let woken = runner.run("s", &Query::of(&["echo", "awake"])).await.expect(0);
    assert_eq!(woken.out(), "awake\n");
    assert_eq!(runner.get("/v1/sprites/s").await.json()["status"], "running");
    let number = |id: &str| id[1..].parse::<u64>().unwrap();
    assert!(number(woken.info()["session_id"].as_str().unwrap()) > number(&finished_id), "ids never come back");
}

/// Both die; then the runner returns to a dead agent.
#[tokio::test(flavor = "multi_thread")]
async fn kill9_of_both() {
    let mut runner = Runner::start();
    runner.create("s").await;
    let (mut socket, pids) = strays(&runner).await;
    let id = socket.id().await;
    let agent = Pidfd::alive(agent_of(pids[0].pid));
    runner.kill9();
    agent.kill9();
    agent.gone().await;
    let before = dropped(socket).await;
    runner.restart();
    let all = runner.attach("s", &id).await.finish().await.expect(137);
    assert!(all.stdout().starts_with(&before));
    for pid in pids {
        pid.gone().await;
    }
    runner.run("s", &Query::of(&["true"])).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_after_an_agents_death_just_works() {
    let runner = Runner::start();
    runner.create("s").await;
    for round in 0..5 {
        let mut socket = runner.exec("s", &Query::sh("echo $$; exec sleep 1000").stdin()).await;
        Pidfd::alive(agent_of(socket.number().await)).kill9();
        dropped(socket).await;
        // At once, without waiting for the runner to notice.
        let word = format!("round {round}");
        assert_eq!(runner.run("s", &Query::of(&["echo", &word])).await.out(), format!("{word}\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_leaves_nothing() {
    let runner = Runner::start();
    runner.create("s").await;
    let home = home(&runner).await;
    let (socket, pids) = strays(&runner).await;
    let agent = Pidfd::alive(agent_of(pids[0].pid));
    runner.delete("/v1/sprites/s").await.expect(204);
    runner.get("/v1/sprites/s").await.expect(404);
    for pid in pids.into_iter().chain([agent]) {
        assert!(pid.is_dead(), "{} outlives its sprite", pid.pid);
    }
    assert!(!home.exists());
    assert!(socket.finish().await.code() > 128);
    runner.delete("/v1/sprites/s").await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_says_what_keeps_running() {
    let mut runner = Runner::start();
    runner.create("s").await;
    let mut socket = runner.exec("s", &Query::sh("echo $$; exec cat").stdin()).await;
    let id = socket.id().await;
    let process = Pidfd::alive(socket.number().await);
    let status = runner.interrupt();
    assert!(status.success(), "{status:?}");
    let said = until("the farewell", || async {
        runner.output().split_once("fountain runner stopped").map(|(_, s)| s.to_owned())
    });
    let said = said.await;
    assert!(said.contains("1 sprites with 1 sessions keep running"), "says what runs on: {said:?}");
    assert!(said.contains("fountain stop --all"), "says how to end the rest: {said:?}");
    dropped(socket).await;
    assert!(!process.is_dead());
    runner.restart();
    // `fountain stop` is the same from another terminal.
    let mut again = runner.attach("s", &id).await;
    again.info().await;
    let state = runner.state();
    let output = runner.cli(&["stop", "--state", state.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    runner.ended();
    dropped(again).await;
    assert!(!process.is_dead());
    runner.restart();
    let mut again = runner.attach("s", &id).await;
    again.stdin("still\n").await;
    again.eof().await;
    assert!(again.finish().await.expect(0).out().ends_with("still\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_all_ends_in_order() {
    let mut runner = Runner::start();
    runner.create("s").await;
    runner.create("idle").await;
    let (socket, pids) = strays(&runner).await;
    let agent = Pidfd::alive(agent_of(pids[0].pid));
    runner.stop_all();
    assert!(socket.finish().await.code() > 128, "attached clients hear a real end");
    for pid in pids.into_iter().chain([agent]) {
        assert!(pid.is_dead(), "{} outlives stop --all", pid.pid);
    }
    runner.assert_nothing_left();
    // Stopping what is stopped is no error, and everything is there again after.
    runner.stop_all();
    runner.restart();
    assert_eq!(runner.run("s", &Query::of(&["echo", "again"])).await.out(), "again\n");
}

/// A file that a sprite wrote is there after every kind of restart.
#[tokio::test(flavor = "multi_thread")]
async fn files_survive() {
    let mut runner = Runner::start();
    runner.create("s").await;
    runner.run("s", &Query::sh("echo kept > file")).await.expect(0);
    runner.kill9();
    runner.restart();
    assert_eq!(runner.run("s", &Query::of(&["cat", "file"])).await.out(), "kept\n");
    runner.stop_all();
    runner.restart();
    assert_eq!(runner.run("s", &Query::of(&["cat", "file"])).await.out(), "kept\n");
}

/// The runner dies in the middle of many short commands: each client hears the truth or a plain drop, never a false end.
#[tokio::test(flavor = "multi_thread")]
async fn no_false_end_when_the_runner_dies() {
    let mut runner = Runner::start();
    runner.create("s").await;
    let mut sockets = Vec::new();
    for n in 0..40 {
        sockets.push(runner.exec("s", &Query::sh(&format!("echo {n}; exit 77")).no_stdin()).await);
    }
    runner.kill9();
    for mut socket in sockets {
        while !socket.next().await.is_end() {}
        if matches!(socket.seen.last(), Some(Frame::Close(..))) {
            socket.finish().await.expect(77);
        }
    }
    runner.restart();
}
