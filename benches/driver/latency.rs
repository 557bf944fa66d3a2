//! How long `true` takes over a fresh WebSocket, beside a bare fork, exec and wait.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
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
    let (mut bare, mut exec, mut close) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + (ROUNDS * percent / 100).max(100) {
        let start = Instant::now();
        fork_exec_wait()?;
        let forked = start.elapsed().as_secs_f64() * 1e3;
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

/// Setting the user id, even to what it is, makes std fork instead of posix_spawn.
fn fork_exec_wait() -> std::io::Result<()> {
    let mut command = std::process::Command::new("/bin/true");
    command.uid(rustix::process::getuid().as_raw()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop)
}
