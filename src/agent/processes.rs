//! One thread owns every child of the agent: it starts them, signals them and collects them.
//!
//! Because starting and collecting happen on one thread, a child that is dead before its start has been recorded is
//! still found there, and a group is only signalled while its leader is uncollected, so no recycled pid is ever hit.
//! Adopted orphans (the agent is a subreaper) are collected and forgotten. Nobody else in the agent may wait.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::sys::proc;
use crate::sys::spawn::{self, SpawnError, wait_any};

/// What a child is started with.
#[derive(Debug)]
pub struct Start {
    /// Paths to try in order.
    pub programs: Vec<CString>,
    /// argv.
    pub argv: Vec<CString>,
    /// `KEY=VALUE` entries.
    pub env: Vec<CString>,
    /// Working directory.
    pub dir: CString,
    /// stdin, stdout, stderr.
    pub stdio: [OwnedFd; 3],
    /// Whether stdin is its terminal.
    pub terminal: bool,
}

/// A child that runs.
#[derive(Debug)]
pub struct Started {
    /// Its pid, which is also its group and session.
    pub pid: i32,
    /// Its start time, which makes the pid unmistakable.
    pub start: u64,
    /// Its exit code, from `wait` and nowhere else; 128+n for signal n.
    pub exit: oneshot::Receiver<u8>,
}

enum Request {
    Start(Box<Start>, oneshot::Sender<Result<Started, SpawnError>>),
    Signal(i32, Signal),
    Collect,
}

/// A handle to the thread.
#[derive(Debug, Clone)]
pub struct Processes {
    requests: mpsc::Sender<Request>,
}

impl Processes {
    /// Starts the thread. `open_files` are the limits that children get.
    pub fn new(open_files: (u64, u64)) -> io::Result<Self> {
        // Only needed so that the requests of one burst queue up; each caller waits for its own answer.
        let (requests, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("processes".into())
            .stack_size(256 << 10)
            .spawn(move || run(&inbox, open_files))?;
        let mut children = signal(SignalKind::child())?;
        let wake = requests.clone();
        tokio::spawn(async move {
            while children.recv().await.is_some() {
                if wake.send(Request::Collect).is_err() {
                    break;
                }
            }
        });
        Ok(Self { requests })
    }

    /// Starts a child.
    pub async fn start(&self, start: Start) -> Result<Started, SpawnError> {
        let gone = SpawnError { step: spawn::Step::Clone, errno: libc::EAGAIN };
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Start(Box::new(start), reply)).map_err(|_| gone)?;
        answer.await.unwrap_or(Err(gone))
    }

    /// Signals the whole group of a child that was started here and has not ended.
    pub fn signal_group(&self, leader: i32, signal: Signal) {
        // The thread lives as long as the agent.
        let _ = self.requests.send(Request::Signal(leader, signal));
    }
}

fn run(inbox: &mpsc::Receiver<Request>, open_files: (u64, u64)) {
    let mut children: HashMap<i32, oneshot::Sender<u8>> = HashMap::new();
    while let Ok(request) = inbox.recv() {
        match request {
            Request::Start(start, reply) => {
                let outcome = start_child(*start, open_files).map(|pid| {
                    let (exited, exit) = oneshot::channel();
                    children.insert(pid, exited);
                    let start = proc::stat(pid).map_or(0, |stat| stat.start);
                    Started { pid, start, exit }
                });
                // A caller that has gone leaves a child that nobody listed: it must not run on unseen.
                if let Err(Ok(started)) = reply.send(outcome) {
                    let _ = kill(Pid::from_raw(-started.pid), Signal::SIGKILL);
                }
            }
            Request::Signal(leader, signal) => {
                if children.contains_key(&leader) {
                    let _ = kill(Pid::from_raw(-leader), signal);
                }
            }
            Request::Collect => collect(&mut children),
        }
    }
}

fn start_child(start: Start, open_files: (u64, u64)) -> Result<i32, SpawnError> {
    spawn::spawn(&spawn::Plan {
        programs: &start.programs,
        argv: &start.argv,
        env: &start.env,
        dir: &start.dir,
        stdio: start.stdio.each_ref().map(AsFd::as_fd),
        terminal: start.terminal,
        open_files,
    })
}

fn collect(children: &mut HashMap<i32, oneshot::Sender<u8>>) {
    loop {
        let (pid, code) = match wait_any() {
            Ok(Some(ended)) => ended,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "waiting for children failed");
                return;
            }
        };
        if let Some(exited) = children.remove(&pid) {
            // A session that no longer listens has ended another way.
            let _ = exited.send(code);
        }
    }
}
