//! What an idle runner, an idle agent and a thousand idle sessions cost.

use std::time::Duration;

use fountain::cli::client::Client;
use fountain::cli::exec::{Command, Exec};
use fountain::cli::throwaway::Throwaway;

use super::machine::{processor_seconds, resident};
use super::report::{Bound, Report};
use super::{Measured, create};

/// Long enough for what was started to have settled.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the processor time of idle sessions is watched.
const WATCH: Duration = Duration::from_secs(10);
/// "No CPU", as a share of one core in percent: what the clock can tell from nothing.
const NOTHING: f64 = 1.0;

/// Memory of daemon and agent, then of sessions that nobody is attached to, then of sessions with a client each.
pub async fn measure(host: &Throwaway, client: &Client, percent: u64, report: &mut Report) -> Measured {
    let count = usize::try_from(1000 * percent / 100)?.max(10);
    eprintln!("idle, {count} sessions");
    raise_file_limit();
    tokio::time::sleep(SETTLE).await;
    let daemon = host.pid().ok_or("the runner is gone")?;
    let (memory, own) = resident(daemon)?;
    report.bounded("idle daemon, RSS", memory, "MB", Bound::AtMost(20.0));
    report.figure("idle daemon, RSS that no file backs", format!("{own:.2} MB"));

    create(client, "idle").await?;
    let agent = agent(client).await?;
    tokio::time::sleep(SETTLE).await;
    let (agent_memory, own) = resident(agent)?;
    report.bounded("idle agent, RSS", agent_memory, "MB", Bound::AtMost(6.0));
    report.figure("idle agent, RSS that no file backs", format!("{own:.2} MB"));

    let command = Command::new(["sleep", "3600"]).stdin().detachable();
    let mut sockets = Vec::with_capacity(count);
    let before = resident(daemon)?.0 + agent_memory;
    for _ in 0..count {
        sockets.push(Exec::start(client, "idle", &command).await?);
    }
    tokio::time::sleep(SETTLE).await;
    sessions(report, "with a client", [daemon, agent], before, count).await?;
    drop(sockets);
    tokio::time::sleep(SETTLE).await;
    sessions(report, "without a client", [daemon, agent], before, count).await
}

async fn sessions(report: &mut Report, kind: &str, pids: [u32; 2], before: f64, count: usize) -> Measured {
    let total = || -> Measured<(f64, f64)> {
        Ok((resident(pids[0])?.0 + resident(pids[1])?.0, processor_seconds(pids[0])? + processor_seconds(pids[1])?))
    };
    let (memory, used) = total()?;
    tokio::time::sleep(WATCH).await;
    let share = (total()?.1 - used) / WATCH.as_secs_f64() * 100.0;
    let each = (memory - before) / count as f64;
    report.bounded(&format!("idle session {kind}, daemon and agent"), each, "MB", Bound::AtMost(0.3));
    report.bounded(&format!("processor, {count} idle sessions {kind}"), share, "% of a core", Bound::AtMost(NOTHING));
    Ok(())
}

/// The parent of a sprite's process is its agent.
async fn agent(client: &Client) -> Measured<u32> {
    let output = Exec::run(client, "idle", &Command::sh("echo $PPID")).await?;
    let pid: u32 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    match command.windows(5).any(|window| window == b"agent") {
        true => Ok(pid),
        false => Err(format!("process {pid} is not an agent").into()),
    }
}

/// Every socket of the thousand is a file of this process.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // A host that refuses will say so at the socket that is one too many.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
