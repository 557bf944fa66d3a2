//! The process inside a sprite: it owns the sprite's processes, their sessions and journals, and its files.
//!
//! One agent per awake sprite, started by the runner as the same binary, in a session of its own, so that it outlives
//! the runner. It serves the sprite-scoped API on a unix socket; the runner in front authenticates and passes through.
//! It knows nothing of tokens, names of other sprites, or the network.

pub mod fs;
pub mod lease;
pub mod pause;
mod ports;
pub mod processes;
pub mod relay;
pub mod routes;
pub mod session;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::sandbox::paths::Paths;
use crate::sys::proc;
use crate::wire::error::ApiError;
use crate::wire::exec::Command;
pub use routes::control::Mode as ControlMode;

/// Version of what runner and agent say to each other. A runner speaks to every agent of its own number or lower.
pub const PROTOCOL: u32 = 1;
/// Bytes that may be on their way to the runner on one connection; the kernel caps it.
const SEND_BUFFER: usize = 1 << 20;
/// How long sockets have for their exit sequences when the agent ends.
const FLUSH: Duration = Duration::from_secs(2);
/// How long the last processes may take to die.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Everything an agent is told, as JSON on its stdin: an argument list could be read by anyone on the host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// The sprite's id.
    pub sprite_id: String,
    /// Its writable folder.
    pub disk: PathBuf,
    /// The folder of its sessions.
    pub sessions: PathBuf,
    /// Where to listen.
    pub socket: PathBuf,
    /// What requests must show.
    pub secret: String,
    /// `KEY=VALUE` put into every process, by which they are found when the agent is dead.
    pub marker: String,
    /// The sprite's create-time environment.
    pub environment: Vec<(String, String)>,
    /// Bytes of journal per session.
    pub journal_ceiling: u64,
    /// Seconds a finished session stays attachable.
    pub grace_seconds: u64,
    /// Bytes of output replayed on attach; all of it when absent.
    pub replay: Option<u64>,
    /// Whether the older contract's exit frame follows the usual one.
    pub exit_u32: bool,
    /// Who is served the control channel.
    pub control: ControlMode,
    /// The largest file that can be written over the API, in bytes.
    pub max_file: u64,
    /// Free bytes below which files are not written.
    pub disk_floor: u64,
    /// Log filter.
    pub log: String,
}

/// The running agent.
#[derive(Debug)]
pub struct Agent {
    /// What it was told.
    pub config: Config,
    /// Its sessions.
    pub sessions: Arc<session::Sessions>,
    /// Whether a runner is there.
    pub lease: watch::Sender<lease::Lease>,
    /// Whether everything stands still.
    pub pause: Arc<pause::Pause>,
    stopping: watch::Sender<bool>,
}

impl Agent {
    /// Starts a command, once nothing is paused.
    pub async fn start(&self, command: Command, request: Option<String>) -> Result<Arc<session::Session>, ApiError> {
        self.pause.wait().await;
        if let Some(session) = request.as_deref().and_then(|request| self.sessions.started_by(request)) {
            return Ok(session);
        }
        self.sessions.start(command, request).await
    }

    /// Ends every session and every process. Returns how many sessions ran.
    async fn stop(&self, grace: Duration) -> usize {
        self.sessions.close();
        self.pause.thaw();
        let running = self.sessions.running();
        for session in &running {
            session.control(session::Control::End(Signal::SIGTERM)).await;
        }
        let all_ended = async {
            for session in &running {
                session.leader_exit().await;
            }
        };
        if timeout(grace, all_ended).await.is_err() {
            for session in &running {
                session.control(session::Control::End(Signal::SIGKILL)).await;
            }
        }
        let flushed = async {
            for session in self.sessions.all() {
                session.journal.ended().wait().await;
                session.detached().await;
            }
        };
        // Whoever is still attached then does not read; the journal keeps what he misses.
        let _ = timeout(FLUSH, flushed).await;
        let me = std::process::id() as i32;
        let left = tokio::task::spawn_blocking(move || proc::kill_all(KILL_DEADLINE, || proc::descendants(me))).await;
        if let Ok(left @ 1..) = left {
            tracing::warn!(left, "processes of the sprite could not be killed");
        }
        self.stopping.send_replace(true);
        running.len()
    }
}

/// The hidden subcommand. Reads its configuration from stdin, says `ready` on stdout once it listens, and serves.
pub fn main() -> io::Result<()> {
    // A session of its own: neither Ctrl-C nor a closing terminal of the runner's reaches it.
    if let Err(error) = nix::unistd::setsid() {
        tracing::debug!(%error, "already a session leader");
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let config: Config = serde_json::from_str(&text)?;
    crate::cli::log::init(&config.log, false);
    proc::become_subreaper()?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let open_files = raise_open_files();
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_stack_size(512 << 10)
        .enable_all()
        .build()?;
    runtime.block_on(serve(config, open_files))
}

/// Raises the limit of open files to what is allowed; children get the old one back.
fn raise_open_files() -> (u64, u64) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return (1024, 4096) };
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        tracing::debug!(%error, "the limit of open files stays");
    }
    // The runner raised its own, which the agent inherits: 1024 is what every program expects to start with.
    (soft.min(1024), hard)
}

async fn serve(config: Config, open_files: (u64, u64)) -> io::Result<()> {
    let processes = processes::Processes::new(open_files)?;
    let lease = watch::Sender::new(lease::Lease::default());
    let paths = Paths::new(config.disk.clone());
    let sessions = session::Sessions::open(
        session::Config {
            dir: config.sessions.clone(),
            paths: paths.clone(),
            environment: config.environment.clone(),
            marker: config.marker.clone(),
            limits: session::journal::Limits { ceiling: config.journal_ceiling },
            grace: Duration::from_secs(config.grace_seconds),
            arrivals: Arc::default(),
        },
        processes,
        lease.subscribe(),
    )?;
    let fs = fs::router(paths, fs::Limits { max_write: config.max_file, floor: config.disk_floor });
    let socket = config.socket.clone();
    let stopping = watch::Sender::new(false);
    let mut stopped = stopping.subscribe();
    let agent = Arc::new(Agent { config, sessions, lease, pause: Arc::default(), stopping });
    let router = routes::router(agent.clone(), fs);

    tokio::spawn(ports::watch(agent.sessions.clone()));

    // Whoever listened here before is dead: the runner made sure.
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut out = io::stdout();
    out.write_all(b"ready\n")?;
    out.flush()?;
    detach_stdio()?;
    crate::sys::memory::let_go_of_startup();

    // A larger buffer towards the runner: bulk output then changes hands less often. The usual one will do as well.
    let listener = listener.tap_io(|stream| {
        let _ = setsockopt(stream, sockopt::SndBuf, &SEND_BUFFER);
    });
    let server = axum::serve(listener, router);
    let on_signal = async {
        terminate.recv().await;
        agent.stop(Duration::from_secs(5)).await;
    };
    let ignore = async {
        loop {
            tokio::select! { _ = interrupt.recv() => {}, _ = hangup.recv() => {} }
        }
    };
    tokio::select! {
        outcome = async { server.await } => outcome?,
        () = async { tokio::join!(on_signal, std::future::pending::<()>()); } => {}
        () = ignore => {}
        _ = stopped.wait_for(|stopped| *stopped) => {
            // The answer to `/-/stop` is on its way; a moment for it to leave.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let _ = std::fs::remove_file(&socket);
    Ok(())
}

/// Lets go of the runner's pipes: stdin and stdout become the null device, stderr stays the log.
fn detach_stdio() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(())
}
