//! Stops all of a sprite's processes for the length of a checkpoint's walk, and lets them go on.
//!
//! Plain mode has no freezer, so it is SIGSTOP, parents before children and each seen to stand before its children are
//! touched, then SIGCONT the other way round: a shell never notices (isolation.md §7). Processes that stood already
//! are not woken. Starts of commands and changes of files wait meanwhile.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::watch;

use crate::sys::proc;
use crate::wire::error::ApiError;

/// How long one process may take to stand still: it may be in the middle of a disk wait.
const STAND_STILL: Duration = Duration::from_millis(500);

/// The sprite's one pause.
#[derive(Debug)]
pub struct Pause {
    frozen: watch::Sender<bool>,
    stopped: Mutex<Vec<i32>>,
}

impl Default for Pause {
    fn default() -> Self {
        Self { frozen: watch::Sender::new(false), stopped: Mutex::default() }
    }
}

/// Everything stands still while this lives, or until somebody thaws it.
#[derive(Debug)]
pub struct Frozen(Arc<Pause>);

impl Pause {
    /// Whether everything stands still.
    pub fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    /// Waits until nothing is paused.
    pub async fn wait(&self) {
        // The sender is our own, so this cannot fail.
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    /// Stops everything below this process.
    pub async fn freeze(self: &Arc<Self>, limit: Duration) -> Result<Frozen, ApiError> {
        if self.frozen.send_replace(true) {
            return Err(ApiError::unavailable("paused", "the sprite is paused already"));
        }
        let frozen = Frozen(self.clone());
        let this = self.clone();
        let stopped = tokio::task::spawn_blocking(move || this.stop_all()).await;
        stopped.map_err(ApiError::internal)?;
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            if let Some(this) = this.upgrade() {
                this.thaw();
            }
        });
        Ok(frozen)
    }

    /// Lets everything go on. Harmless when nothing is paused.
    pub fn thaw(&self) {
        let stopped = std::mem::take(&mut *self.stopped.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for pid in stopped.iter().rev() {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
        }
        self.frozen.send_replace(false);
    }

    fn stop_all(&self) {
        let me = std::process::id() as i32;
        let mut done: HashSet<i32> = HashSet::from([me]);
        loop {
            // Breadth first: a parent stands before its children are looked at.
            let mut fresh: Vec<(i32, proc::Stat)> = proc::pids()
                .into_iter()
                .filter(|pid| !done.contains(pid))
                .filter_map(|pid| Some((pid, proc::stat(pid)?)))
                .filter(|(_, stat)| done.contains(&stat.parent))
                .collect();
            if fresh.is_empty() {
                return;
            }
            fresh.sort_unstable_by_key(|(pid, _)| *pid);
            for (pid, stat) in fresh {
                done.insert(pid);
                if matches!(stat.state, 'T' | 't' | 'Z' | 'X') || kill(Pid::from_raw(pid), Signal::SIGSTOP).is_err() {
                    continue;
                }
                self.stopped.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(pid);
                let until = Instant::now() + STAND_STILL;
                while proc::stat(pid).is_some_and(|stat| !matches!(stat.state, 'T' | 't' | 'Z' | 'X'))
                    && Instant::now() < until
                {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }
}

impl Frozen {
    /// Waits until it is over.
    pub async fn thawed(&self) {
        self.0.wait().await;
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.thaw();
    }
}
