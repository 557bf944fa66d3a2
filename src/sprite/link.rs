//! The runner's side of an agent: starting it, finding it again, the lease, and requests over its socket.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};

use crate::agent::Config;
use crate::agent::routes::SECRET_HEADER;
use crate::store::sprites::AgentRecord;
use crate::sys::{cgroup, proc};

/// How long an agent may take to listen.
const READY: Duration = Duration::from_secs(8);
/// Pauses between tries to get the lease back from an agent that lives but does not answer.
const LEASE_RETRY: Duration = Duration::from_millis(200);

/// An agent that was started or found.
#[derive(Debug)]
pub struct Link {
    /// Who it is and where it listens.
    pub record: AgentRecord,
}

impl Link {
    /// Starts an agent with this configuration, in the control group of this name, and waits until it listens.
    pub async fn start(config: &Config, log: PathBuf, group: &str) -> io::Result<Self> {
        let text = serde_json::to_vec(config)?;
        let (socket, secret) = (config.socket.clone(), config.secret.clone());
        let (pid, mut out) =
            tokio::task::spawn_blocking(move || spawn(&text, &log)).await.map_err(io::Error::other)??;
        let start = proc::stat(pid).map_or(0, |stat| stat.start);
        let mut line = [0; 6];
        match timeout(READY, out.read_exact(&mut line)).await {
            Ok(Ok(_)) if &line == b"ready\n" => {
                // It has no child yet: whatever it starts will be in the group.
                let cgroup =
                    cgroup::adopt(group, pid).inspect_err(|error| tracing::debug!(%error, "no control group")).ok();
                Ok(Self { record: AgentRecord { pid, start, socket, secret, cgroup } })
            }
            outcome => {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
                let why = match outcome {
                    Err(_) => "it did not listen in time",
                    Ok(_) => "it ended before it listened; its log says why",
                };
                Err(io::Error::other(format!("the agent did not start: {why}")))
            }
        }
    }

    /// Whether its process lives.
    pub fn is_alive(&self) -> bool {
        proc::is_alive(self.record.pid, self.record.start)
    }

    /// Opens a connection for one request. An error means that nothing was asked.
    pub async fn connect(&self) -> io::Result<Connection> {
        let stream = UnixStream::connect(&self.record.socket).await?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to an agent ended");
            }
        });
        Ok(Connection { sender, secret: self.record.secret.parse().map_err(io::Error::other)? })
    }

    async fn request(&self, request: Request<Body>) -> io::Result<Response<Incoming>> {
        self.connect().await?.send(request).await
    }

    /// A request of the runner's own, without a body.
    pub async fn call(&self, method: Method, path: &str) -> io::Result<Response<Incoming>> {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).map_err(io::Error::other)?;
        self.request(request).await
    }

    /// Holds the lease for as long as the agent lives. Returns when it is dead.
    pub async fn hold_lease(&self) {
        loop {
            if let Err(error) = self.lease_once().await {
                tracing::debug!(%error, "a lease was not to be had");
            }
            if !self.is_alive() {
                return;
            }
            sleep(LEASE_RETRY).await;
        }
    }

    async fn lease_once(&self) -> io::Result<()> {
        let request = Request::builder()
            .uri("/-/lease")
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, "fountain-lease")
            .body(Body::empty())
            .map_err(io::Error::other)?;
        let response = self.request(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(io::Error::other(format!("the agent answered {}", response.status())));
        }
        let mut stream = TokioIo::new(hyper::upgrade::on(response).await.map_err(io::Error::other)?);
        let mut byte = [0; 64];
        while stream.read(&mut byte).await? > 0 {}
        Ok(())
    }
}

/// A connection to an agent, for one request. After an upgrade it belongs to whoever asked.
pub struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Body>,
    secret: header::HeaderValue,
}

impl Connection {
    /// Sends the request.
    pub async fn send(mut self, mut request: Request<Body>) -> io::Result<Response<Incoming>> {
        let headers = request.headers_mut();
        headers.insert(SECRET_HEADER, self.secret.clone());
        headers.insert(header::HOST, header::HeaderValue::from_static("agent"));
        self.sender.send_request(request).await.map_err(io::Error::other)
    }
}

/// Starts the process and hands it its configuration. Returns its pid and its stdout.
fn spawn(config: &[u8], log: &std::path::Path) -> io::Result<(i32, pipe::Receiver)> {
    let log = std::fs::File::options().create(true).append(true).mode(0o600).open(log)?;
    let mut child = Command::new(own_binary())
        .arg0("fountain")
        .arg("agent")
        .env_clear()
        // Two arenas at most: an agent is small, and there is one for each awake sprite.
        .env("MALLOC_ARENA_MAX", "2")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()?;
    let pid = child.id() as i32;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let mut stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write_all(config)?;
    drop(stdin);
    let stdout = stdout.ok_or(io::ErrorKind::BrokenPipe)?;
    // Collected by the runner's own reaper, like every other child.
    Ok((pid, pipe::Receiver::from_owned_fd(stdout.into())?))
}

/// This binary: by its path while it is still there, else by the kernel's own reference to it.
fn own_binary() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}
