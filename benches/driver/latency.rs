//! How long `true` takes over a fresh WebSocket, beside a bare fork, exec and wait.
//!
//! The bare side runs in a small process of its own. A fork copies its parent's page tables, so a driver that has held
//! a thousand sockets before forks ten times slower, and would make ours look faster than a fork that it contains.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use fountain::cli::client::Client;
use fountain::cli::exec::{Command, Event, Exec};

use super::report::{Bound, Report, quantile};
use super::{Measured, create};

const ROUNDS: u64 = 3000;
const WARM_UP: u64 = 100;

/// Takes turns, so that both feel the same machine.
pub async fn measure(client: &Client, percent: u64, report: &mut Report) -> Measured {
    eprintln!("latency");
    create(client, "latency").await?;
    let command = Command::new(["/bin/true"]);
    let mut forker = Forker::start()?;
    let (mut bare, mut exec, mut close) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + (ROUNDS * percent / 100).max(100) {
        let forked = forker.milliseconds()?;
        let start = Instant::now();
        let mut socket = Exec::start(client, "latency", &command).await?;
        while !matches!(socket.next().await?, Some(Event::Exit(0)) | None) {}
        let exited = start.elapsed().as_secs_f64() * 1e3;
        while socket.next().await?.is_some() {}
        let closed = start.elapsed().as_secs_f64() * 1e3;
        if round >= WARM_UP {
            bare.push(forked);
            exec.push(exited);
            close.push(closed - exited);
        }
    }
    for (name, share, bound) in [("p50", 0.5, 4.0), ("p99", 0.99, 8.0)] {
        let (ours, peer) = (quantile(&mut exec, share), quantile(&mut bare, share));
        let (figure, beside) = (format!("{ours:.2} ms"), format!("bare fork+exec+wait {peer:.2} ms"));
        let what = format!("exec of `true` over a fresh WebSocket, {name}");
        report.beside(&what, figure, beside, ours / peer, Some(Bound::AtMost(bound)));
    }
    report.figure("from the exit to the close, p99", format!("{:.2} ms", quantile(&mut close, 0.99)));
    Ok(())
}

/// The small process that forks, execs and waits when it is told to.
struct Forker {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Forker {
    fn start() -> Measured<Self> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        let mut child = command.arg("bare").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(ask), Some(stdout)) => Ok(Self { child, ask, answers: BufReader::new(stdout) }),
            _ => Err("the forking process has no pipes".into()),
        }
    }

    fn milliseconds(&mut self) -> Measured<f64> {
        self.ask.write_all(b"\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        // It may have ended already; either way it is collected.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The forking process: for each line one fork, exec and wait, and a line with the milliseconds it took.
pub fn bare() -> std::io::Result<()> {
    for line in std::io::stdin().lock().lines() {
        line?;
        let start = Instant::now();
        fork_exec_wait()?;
        println!("{}", start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

/// Setting the user id, even to what it is, makes std fork instead of posix_spawn.
fn fork_exec_wait() -> std::io::Result<()> {
    let mut command = std::process::Command::new("/bin/true");
    command.uid(rustix::process::getuid().as_raw()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop)
}
