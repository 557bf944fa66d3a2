//! How fast output comes out, live and replayed, beside ssh and a bare pipe.

use std::io::Read;
use std::process::Stdio;
use std::time::Instant;

use fountain::cli::client::Client;
use fountain::cli::exec::{Command, Event, Exec};

use super::report::{Bound, Report, median};
use super::{Measured, create, delete};

const ROUNDS: usize = 3;
const MIB: u64 = 1 << 20;
/// What the bare reader reads at a time: a whole pipe.
const READ: usize = 64 * 1024;

/// A command that writes so many MiB as fast as a pipe takes them.
fn producer(mib: u64) -> Vec<String> {
    let count = format!("count={}", mib * MIB / 65536);
    ["dd", "if=/dev/zero", "bs=65536", &count, "status=none"].map(str::to_owned).to_vec()
}

/// 1 GiB of stdout over a WebSocket, over ssh, over a pipe.
pub async fn stdout(client: &Client, ssh: Option<&str>, percent: u64, report: &mut Report) -> Measured {
    let mib = (1024 * percent / 100).max(16);
    eprintln!("stdout, {mib} MiB");
    let command = producer(mib);
    let (mut ours, mut pipe, mut shell) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        pipe.push(mib as f64 / read_all(&command, mib)?);
        if let Some(ssh) = ssh {
            let mut over: Vec<_> = ssh.split_whitespace().map(str::to_owned).collect();
            over.push(command.join(" "));
            shell.push(mib as f64 / read_all(&over, mib)?);
        }
        let name = format!("stdout{round}");
        create(client, &name).await?;
        let start = Instant::now();
        let exec = Exec::start(client, &name, &Command::new(command.clone())).await?;
        ours.push(mib as f64 / drain(exec, mib, start).await?);
        delete(client, &name).await?;
    }
    let (ours, pipe) = (median(ours), median(pipe));
    let what = format!("{mib} MiB of stdout over a WebSocket");
    let figure = format!("{ours:.0} MiB/s");
    let beside = format!("a bare pipe {pipe:.0} MiB/s");
    report.beside(&what, figure.clone(), beside, ours / pipe, Some(Bound::AtLeast(0.4)));
    match shell.is_empty() {
        true => report.figure("stdout beside ssh", "not measured: no --ssh".into()),
        false => {
            let shell = median(shell);
            let beside = format!("ssh on loopback {shell:.0} MiB/s");
            report.beside(&what, figure, beside, ours / shell, Some(Bound::AtLeast(3.0)));
        }
    }
    Ok(())
}

/// The replay of a finished session beside the live stream that it was.
pub async fn replay(client: &Client, percent: u64, report: &mut Report) -> Measured {
    let mib = (256 * percent / 100).max(16);
    eprintln!("replay, {mib} MiB");
    let (mut live, mut again) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("replay{round}");
        create(client, &name).await?;
        let start = Instant::now();
        let exec = Exec::start(client, &name, &Command::new(producer(mib))).await?;
        let session = exec.session.clone();
        live.push(mib as f64 / drain(exec, mib, start).await?);
        let start = Instant::now();
        let exec = Exec::attach(client, &name, &session).await?;
        again.push(mib as f64 / drain(exec, mib, start).await?);
        delete(client, &name).await?;
    }
    let (live, again) = (median(live), median(again));
    let (figure, beside) = (format!("{again:.0} MiB/s"), format!("the live stream {live:.0} MiB/s"));
    report.beside(&format!("replay of {mib} MiB"), figure, beside, again / live, Some(Bound::AtLeast(1.0)));
    Ok(())
}

/// Reads a session to its end; the seconds since `start`.
async fn drain(mut exec: Exec, mib: u64, start: Instant) -> Measured<f64> {
    let mut bytes = 0;
    let mut exit = None;
    while exit.is_none() {
        match exec.next().await? {
            Some(Event::Stdout(chunk)) => bytes += chunk.len() as u64,
            Some(Event::Exit(code)) => exit = Some(code),
            Some(_) => {}
            None => break,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    while exec.next().await?.is_some() {}
    match bytes == mib * MIB && exit == Some(0) {
        true => Ok(seconds),
        false => Err(format!("{bytes} bytes and exit {exit:?} instead of {} and 0", mib * MIB).into()),
    }
}

/// Reads a local command's stdout to its end and counts; the seconds it took.
fn read_all(command: &[String], mib: u64) -> Measured<f64> {
    let (Some(program), arguments) = (command.first(), command.get(1..).unwrap_or_default()) else {
        return Err("no command".into());
    };
    let start = Instant::now();
    let mut child =
        std::process::Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut buffer = vec![0; READ];
    let mut bytes = 0;
    if let Some(stdout) = &mut child.stdout {
        loop {
            match stdout.read(&mut buffer)? {
                0 => break,
                count => bytes += count as u64,
            }
        }
    }
    let status = child.wait()?;
    match bytes == mib * MIB && status.success() {
        true => Ok(start.elapsed().as_secs_f64()),
        false => Err(format!("{program}: {bytes} bytes, {status}").into()),
    }
}
