//! Finds and kills what a dead agent left running.
//!
//! Four signs, because a process can lose any but the first: the control group, where the host gives one; the marker in
//! its environment; the session of a command whose journal has no exit; and, while the runner that started the agent
//! still lives, having become the runner's own child (the runner is a subreaper).

use std::path::Path;
use std::time::Duration;

use crate::agent::session::journal::{Journal, Limits};
use crate::sys::{cgroup, proc};

/// How long they may take to die.
const DEADLINE: Duration = Duration::from_secs(5);

/// Kills the processes of the sprite with this marker and these sessions. Returns how many could not be killed. Blocks.
pub fn kill(marker: &str, sessions: &Path, group: Option<&Path>) -> usize {
    let leaders = open_leaders(sessions);
    let me = std::process::id() as i32;
    let left = proc::kill_all(DEADLINE, || {
        let members = group.map(cgroup::members).unwrap_or_default();
        proc::pids()
            .into_iter()
            .filter(|pid| *pid != me)
            .filter(|pid| {
                let Some(stat) = proc::stat(*pid) else { return false };
                if matches!(stat.state, 'Z' | 'X') {
                    return false;
                }
                let orphan = stat.parent == me && !is_own_binary(*pid);
                orphan
                    || members.contains(pid)
                    || in_session(*pid, stat, &leaders)
                    || proc::has_environment(*pid, marker)
            })
            .collect()
    });
    if let Some(group) = group {
        cgroup::remove(group);
    }
    left
}

/// Whether a process is in the session of one of these leaders. A pid that is in use as a session cannot be given out
/// again, so only a leader itself can be a stranger: its start time tells.
fn in_session(pid: i32, stat: proc::Stat, leaders: &[(i32, u64)]) -> bool {
    leaders.iter().any(|(leader, start)| stat.session == *leader && (pid != *leader || stat.start == *start))
}

/// A child that has not yet become the agent it is about to be, or is one.
fn is_own_binary(pid: i32) -> bool {
    let own = std::fs::read_link("/proc/self/exe");
    own.is_ok_and(|own| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own))
}

/// The leaders of sessions without an exit.
fn open_leaders(sessions: &Path) -> Vec<(i32, u64)> {
    let Ok(entries) = std::fs::read_dir(sessions) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| {
            let appender = Journal::reopen(&entry.path(), Limits { ceiling: u64::MAX }).ok()?;
            appender.journal().exit().is_none().then(|| appender.header().leader).flatten()
        })
        // A leader's pid that now belongs to somebody else ends nobody: its session is gone.
        .filter(|(pid, start)| proc::stat(*pid).is_none_or(|stat| stat.start == *start))
        .collect()
}
