//! Eyes on `/proc`: who still lives, whose child it is, and a wait for its death that cannot be fooled by a reused pid.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::PATIENCE;

/// A handle on one process that stays that process.
pub struct Pidfd {
    pub pid: i32,
    fd: Option<OwnedFd>,
}

impl Pidfd {
    /// Opens `pid`; a process that is already gone counts as dead.
    pub fn open(pid: i32) -> Self {
        let fd = match pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()) {
            Ok(fd) => Some(fd),
            Err(Errno::SRCH) => None,
            Err(error) => panic!("pidfd_open({pid}): {error}"),
        };
        Self { pid, fd }
    }

    /// Opens a process that must be alive.
    pub fn alive(pid: i32) -> Self {
        let handle = Self::open(pid);
        assert!(!handle.is_dead(), "process {pid} should be alive");
        handle
    }

    /// Has it ended (a zombie has)?
    pub fn is_dead(&self) -> bool {
        self.dead_within(Duration::ZERO)
    }

    /// Waits, blocking, until it has ended; false when it outlives `limit`.
    pub fn dead_within(&self, limit: Duration) -> bool {
        let Some(fd) = &self.fd else { return true };
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(error) => panic!("poll of a pidfd: {error}"),
            }
        }
    }

    /// Waits for its end; false when it outlives `limit`.
    pub async fn gone_within(self, limit: Duration) -> bool {
        tokio::task::spawn_blocking(move || self.dead_within(limit)).await.unwrap()
    }

    /// Waits for its end, or fails the test.
    pub async fn gone(self) {
        let pid = self.pid;
        assert!(self.gone_within(PATIENCE).await, "process {pid} is still alive");
    }

    /// Sends SIGKILL.
    pub fn kill9(&self) {
        let fd = self.fd.as_ref().expect("a living process");
        pidfd_send_signal(fd, Signal::KILL).unwrap();
    }
}

/// The argument vector of a process; empty for zombies and strangers.
pub fn cmdline(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.split(|b| *b == 0).filter(|a| !a.is_empty()).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// One field of `/proc/<pid>/status`.
pub fn status_field(pid: i32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// Parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    status_field(pid, "PPid")?.parse().ok()
}

/// The agent above a process of a sprite.
pub fn agent_of(pid: i32) -> i32 {
    let mut at = pid;
    while at > 1 {
        if cmdline(at).get(1).is_some_and(|a| a == "agent") {
            return at;
        }
        at = parent(at).unwrap_or(0);
    }
    panic!("no agent among the parents of {pid}");
}

/// Every living process whose arguments, environment, working folder, root or open files mention `path`, or that holds
/// a socket bound below it, but not this one.
pub fn mentioning(path: &Path) -> Vec<(i32, String)> {
    let needle = path.as_os_str().as_encoded_bytes();
    let sockets = sockets_below(path);
    let own = std::process::id() as i32;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if pid == own || status_field(pid, "State").is_none_or(|s| s.starts_with(['Z', 'X'])) {
            continue;
        }
        let dir = entry.path();
        let read = |name: &str| fs::read(dir.join(name)).unwrap_or_default();
        let link = |name: &str| fs::read_link(dir.join(name)).unwrap_or_default().into_os_string().into_encoded_bytes();
        let places = [read("cmdline"), read("environ"), link("cwd"), link("root")];
        let files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let mut files =
            files.map(|f| fs::read_link(f.path()).unwrap_or_default().into_os_string().into_encoded_bytes());
        let named = places.iter().any(|place| contains(place, needle));
        if named || files.any(|file| contains(&file, needle) || sockets.contains(&file)) {
            found.push((pid, cmdline(pid).join(" ")));
        }
    }
    found
}

/// The unix sockets bound below `path`, as `/proc/<pid>/fd` names them.
fn sockets_below(path: &Path) -> HashSet<Vec<u8>> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let bound = fields.filter(|f| f.get(7).is_some_and(|at| Path::new(at).starts_with(path)));
    bound.map(|f| format!("socket:[{}]", f[6]).into_bytes()).collect()
}

/// Kills what a failed test left behind, process by process.
pub fn kill_mentioning(path: &Path) {
    for (pid, _) in mentioning(path) {
        if let Some(pid) = Pid::from_raw(pid) {
            _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Is `needle` somewhere in `haystack`?
pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
