//! Reads `/proc`: who lives, whose child it is, which session it is in; and ends whole families of processes.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One line of `/proc/<pid>/stat`, as far as we need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// State letter: `Z` is dead and waiting to be collected.
    pub state: char,
    /// Parent.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session.
    pub session: i32,
    /// Start time in clock ticks since boot: with the pid it names a process for ever.
    pub start: u64,
}

/// Reads a process's `stat`; `None` when it is gone.
pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command may hold anything, so fields are counted from its last parenthesis.
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(close + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// Whether the process that had this pid at this start time still lives.
pub fn is_alive(pid: i32, start: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.start == start && !matches!(stat.state, 'Z' | 'X'))
}

/// Every pid on the host that we can see.
pub fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the process was started with this `KEY=VALUE` in its environment.
pub fn has_environment(pid: i32, entry: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|text| text.split(|byte| *byte == 0).any(|item| item == entry.as_bytes()))
}

/// Every living descendant of `root`, itself left out.
pub fn descendants(root: i32) -> Vec<i32> {
    let stats: Vec<(i32, Stat)> = pids().into_iter().filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let mut family = HashSet::from([root]);
    loop {
        let before = family.len();
        family.extend(
            stats.iter().filter(|(_, stat)| family.contains(&stat.parent)).map(|(pid, _)| *pid).collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    stats
        .iter()
        .filter(|(pid, stat)| *pid != root && family.contains(pid) && stat.state != 'Z')
        .map(|(pid, _)| *pid)
        .collect()
}

/// Kills whatever `find` names, again and again until it names nothing (a fork may race one look) or the deadline
/// passes. Returns how many were left.
pub fn kill_all(deadline: Duration, mut find: impl FnMut() -> Vec<i32>) -> usize {
    let until = Instant::now() + deadline;
    let mut pause = Duration::from_millis(1);
    loop {
        let found = find();
        for pid in &found {
            // Gone already is as good; a process of another user is reported by the count that stays.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if found.is_empty() || Instant::now() >= until {
            return found.len();
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Makes orphans of our descendants our own children, so that no process of a sprite can slip away by a double fork.
pub fn become_subreaper() -> std::io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_itself_and_its_children() {
        let me = std::process::id() as i32;
        let mine = stat(me).unwrap();
        assert!(is_alive(me, mine.start));
        assert!(!is_alive(me, mine.start + 1));
        let mut child = std::process::Command::new("sleep").arg("60").env("MARK", "x").spawn().unwrap();
        let pid = child.id() as i32;
        assert_eq!(stat(pid).unwrap().parent, me);
        assert!(descendants(me).contains(&pid));
        assert!(has_environment(pid, "MARK=x"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stat(pid), None);
    }
}
