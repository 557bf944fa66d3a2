//! The task that owns a running session: its input, its terminal, its signals and its disconnect timer.
//!
//! ```text
//!              leader collected                journal closed
//!  running ───────────────────────▶ draining ───────────────────▶ over (attachable until the grace ends)
//!     │ last client gone for max_run_after_disconnect, or a kill
//!     └──▶ ending: TERM to the group, KILL after the grace
//! ```
//!
//! Everybody else sends it messages. The timer runs only while a runner holds the lease: a runner that is away must
//! not cost anybody a session (DESIGN.md §2).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portable_pty::MasterPty;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::stdin::Queue;
use crate::agent::lease::Lease;
use crate::agent::processes::Processes;
use crate::sys::pty;

/// How long a session that outlived its clients has between TERM and KILL.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// Input of a client.
#[derive(Debug)]
pub enum Input {
    /// Bytes for stdin or the terminal.
    Bytes(Bytes),
    /// End of input; what comes later is dropped.
    Eof,
    /// A request that has its place among the bytes: a size that was sent before a line counts for that line.
    Request(Control),
}

/// What else is asked of a session. From a socket it comes in order with the input, from elsewhere at once.
#[derive(Debug)]
pub enum Control {
    /// A new terminal size: columns, rows.
    Resize(u16, u16),
    /// A signal for the group, or for a terminal's foreground group.
    Signal(Signal),
    /// A signal for the whole session, and a hang-up when it has a terminal (the kill route).
    End(Signal),
}

/// Where input goes.
#[derive(Debug)]
pub enum Sink {
    /// A pipe.
    Pipe(pipe::Sender),
    /// A terminal's master. It is never closed before the session is over, and never typed into by us.
    Pty(AsyncFd<OwnedFd>),
    /// Nowhere: the null device, or closed.
    Closed,
}

impl Sink {
    async fn ready(&self) {
        let outcome = match self {
            Self::Pipe(pipe) => pipe.writable().await,
            Self::Pty(master) => master.writable().await.map(|mut guard| guard.retain_ready()),
            Self::Closed => std::future::pending().await,
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "waiting to write input failed");
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_write(bytes),
            Self::Pty(master) => master.try_io(tokio::io::Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)),
            Self::Closed => Ok(bytes.len()),
        }
    }
}

/// The state of a running session.
pub struct Actor {
    /// The leader's pid.
    pub pid: i32,
    /// Where signals go through.
    pub processes: Processes,
    /// The leader's exit code.
    pub exit: oneshot::Receiver<u8>,
    /// Tells the leader's exit code, once.
    pub exited: watch::Sender<Option<u8>>,
    /// The output task.
    pub output: tokio::task::JoinHandle<()>,
    /// Input of clients.
    pub inputs: mpsc::Receiver<Input>,
    /// Requests of clients.
    pub controls: mpsc::Receiver<Control>,
    /// How many clients are attached.
    pub attached: watch::Receiver<usize>,
    /// Whether a runner holds the lease.
    pub lease: watch::Receiver<Lease>,
    /// Where input goes.
    pub sink: Sink,
    /// Input that waits.
    pub queue: Queue,
    /// The terminal, to size it and to know its foreground group.
    pub terminal: Option<Box<dyn MasterPty + Send>>,
    /// How long it may run without clients.
    pub max_run: Option<Duration>,
}

impl Actor {
    /// Runs until the journal is closed.
    pub async fn run(mut self) {
        let mut eof = false;
        let mut leader_runs = true;
        let mut alone_until = self.timer();
        let mut kill_at: Option<Instant> = None;
        loop {
            tokio::select! {
                outcome = &mut self.output => {
                    if let Err(error) = outcome {
                        tracing::error!(%error, "an output task failed");
                    }
                    break;
                }
                code = &mut self.exit, if leader_runs => {
                    leader_runs = false;
                    match code {
                        Ok(code) => { self.exited.send_replace(Some(code)); }
                        // The collecting thread is gone: nobody can know the code, so none is told.
                        Err(_) => tracing::error!("the exit of a session is lost"),
                    }
                    self.queue.clear();
                    self.sink = Sink::Closed;
                }
                Some(input) = self.inputs.recv(), if !self.queue.is_full() => match input {
                    Input::Bytes(bytes) if !eof && leader_runs && !matches!(self.sink, Sink::Closed) => self.queue.push(bytes),
                    Input::Eof if !matches!(self.sink, Sink::Pty(_)) => eof = true,
                    Input::Request(control) => self.control(control),
                    _ => {}
                },
                () = self.sink.ready(), if !self.queue.is_empty() => self.feed(),
                Some(control) = self.controls.recv() => self.control(control),
                Ok(()) = self.attached.changed() => alone_until = self.timer(),
                Ok(()) = self.lease.changed() => alone_until = self.timer(),
                () = sleep_until(alone_until), if leader_runs && kill_at.is_none() => {
                    tracing::info!(pid = self.pid, "a session outlived its clients and is ended");
                    self.end(Signal::SIGTERM);
                    kill_at = Some(Instant::now() + KILL_AFTER);
                }
                () = sleep_until(kill_at), if leader_runs && kill_at.is_some() => {
                    self.end(Signal::SIGKILL);
                    kill_at = None;
                    alone_until = None;
                }
            }
            if eof && self.queue.is_empty() {
                self.sink = Sink::Closed;
            }
        }
    }

    /// When the session has been without clients for too long; `None` while that cannot happen.
    fn timer(&mut self) -> Option<Instant> {
        let alone = *self.attached.borrow_and_update() == 0;
        let held = self.lease.borrow_and_update().held;
        self.max_run.filter(|_| alone && held).map(|limit| Instant::now() + limit)
    }

    /// Writes what the process takes.
    fn feed(&mut self) {
        let bytes = self.queue.front();
        if bytes.is_empty() {
            return;
        }
        match self.sink.write(bytes) {
            Ok(count) => self.queue.consume(count),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => {
                // The process has closed its input: the rest has nowhere to go, as with any pipe.
                self.queue.clear();
                self.sink = Sink::Closed;
            }
        }
    }

    fn control(&self, control: Control) {
        match control {
            Control::Resize(cols, rows) => {
                if let Some(terminal) = &self.terminal
                    && let Err(error) = terminal.resize(pty::size((cols, rows)))
                {
                    tracing::warn!(%error, "a terminal could not be resized");
                }
            }
            Control::Signal(signal) => match self.foreground() {
                Some(group) => signal_group(group, signal),
                None => self.processes.signal_group(self.pid, signal),
            },
            Control::End(signal) => self.end(signal),
        }
    }

    /// Signals everything the session has: its foreground group, its leader's group, and a hang-up to both when there
    /// is a terminal, because a shell ignores TERM but obeys the loss of its terminal.
    fn end(&self, signal: Signal) {
        let foreground = self.foreground().filter(|group| *group != self.pid);
        let hang_up = self.terminal.is_some() && signal != Signal::SIGKILL;
        for signal in std::iter::once(signal).chain(hang_up.then_some(Signal::SIGHUP)) {
            if let Some(group) = foreground {
                signal_group(group, signal);
            }
            self.processes.signal_group(self.pid, signal);
        }
        if hang_up {
            self.processes.signal_group(self.pid, Signal::SIGCONT);
        }
    }

    fn foreground(&self) -> Option<i32> {
        self.terminal.as_ref()?.process_group_leader().filter(|group| *group > 0)
    }
}

/// Signals a group that the terminal has just named; it may be gone by now, which is as good.
fn signal_group(group: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(-group), signal);
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
