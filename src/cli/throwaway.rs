//! A runner of one's own for a few seconds: started in a new temporary folder with a random token, ended without a trace.
//!
//! It owns the folder and every process that was started on its account; the demo and the benches use it. It never
//! touches another runner, another state folder, or a process that does not carry this folder's random name.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;

use super::client::{Client, ClientError};

/// A first start of a debug build on a busy machine takes well under a second.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Agents get this long to end their sessions in order.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// How often a child that has no better event is looked at.
const POLL: Duration = Duration::from_millis(10);
/// What the runner says on stdout when it is ready; the address follows.
const READY: &str = "fountain runner listening on ";

/// Why the runner is not there, or not gone.
#[derive(Debug, thiserror::Error)]
pub enum ThrowawayError {
    /// The system refused something.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// The runner ended or stayed silent instead of listening.
    #[error("the runner did not start: {0}")]
    NotReady(String),
    /// Its address cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// `fountain stop --all` did not do its work.
    #[error("{0}")]
    NotStopped(String),
}

struct Running {
    child: Child,
    url: String,
}

/// One throw-away runner.
pub struct Throwaway {
    binary: PathBuf,
    folder: PathBuf,
    token: String,
    running: Option<Running>,
}

impl Throwaway {
    /// Makes the folder; no process runs yet. `label` becomes part of the folder's name.
    pub fn new(binary: PathBuf, label: &str) -> Result<Self, ThrowawayError> {
        let folder = std::env::temp_dir().join(format!("fountain-{label}-{}", random_hex::<4>()?));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| ThrowawayError::System("the temporary folder cannot be made", error))?;
        Ok(Self { binary, folder, token: random_hex::<16>()?, running: None })
    }

    /// The state folder of the runner.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The temporary folder that holds everything.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the runner writes its log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("runner.log")
    }

    /// The process id of the runner, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// The address that the runner listens on, while it runs.
    pub fn url(&self) -> Option<&str> {
        self.running.as_ref().map(|running| running.url.as_str())
    }

    /// The command line that [`Throwaway::start`] runs.
    pub fn command_line(&self) -> String {
        format!("fountain runner --listen 127.0.0.1:0 --state {}", self.state().display())
    }

    /// Starts the runner, or starts it again, and waits until it listens.
    pub async fn start(&mut self) -> Result<Client, ThrowawayError> {
        let log = File::options().create(true).append(true).mode(0o600).open(self.log());
        let log = log.map_err(|error| ThrowawayError::System("the runner's log cannot be opened", error))?;
        let mut command = self.fountain(&["runner", "--listen", "127.0.0.1:0"]);
        // A process group of its own: Ctrl-C of the terminal reaches only the program that will clean up.
        command.process_group(0).env("FOUNTAIN_RUNNER_TOKEN", &self.token);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = spawned.map_err(|error| ThrowawayError::System("the runner cannot be started", error))?;
        let stdout = child.stdout.take();
        // Stored before the first await, so that nothing that happens later can forget the child.
        self.running = Some(Running { child, url: String::new() });
        let Some(stdout) = stdout else { return Err(ThrowawayError::NotReady("it has no stdout".into())) };
        let receiver = Receiver::from_owned_fd(stdout.into());
        let receiver = receiver.map_err(|error| ThrowawayError::System("the runner's stdout cannot be read", error))?;
        let mut lines = BufReader::new(receiver).lines();
        let ready = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(url) = line.strip_prefix(READY) {
                    return Ok(url.trim().to_owned());
                }
            }
            Err(ThrowawayError::NotReady("it ended before it listened".into()))
        };
        let silent = || Err(ThrowawayError::NotReady(format!("no word from it in {START_DEADLINE:?}")));
        let url = tokio::time::timeout(START_DEADLINE, ready).await.unwrap_or_else(|_| silent())?;
        // Whatever else it prints is read away, so that it never blocks on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let client = Client::http(&url, &self.token)?;
        if let Some(running) = &mut self.running {
            running.url = url;
        }
        Ok(client)
    }

    /// Ends the runner with SIGKILL, as a crash or the kernel would, and waits until it is gone.
    pub fn kill_9(&mut self) -> Result<(), ThrowawayError> {
        if let Some(mut running) = self.running.take() {
            let gone = running.child.kill().and_then(|()| running.child.wait());
            gone.map_err(|error| ThrowawayError::System("the runner cannot be killed", error))?;
        }
        Ok(())
    }

    /// Ends the runner and every sprite in order, and removes the folder. What a failing step leaves is killed all the
    /// same; then the failure is reported.
    pub async fn stop(mut self) -> Result<(), ThrowawayError> {
        // One that is still starting cannot be asked yet; nothing is lost by a kill.
        if self.url() == Some("") {
            self.kill_9()?;
        }
        // A runner that never got far enough to make its folder leaves nothing that could be stopped.
        let orderly = if self.state().exists() { self.stop_all().await } else { Ok(()) };
        let killed = self.kill_9();
        let left = self.kill_survivors();
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let removed = remove(&self.folder).await;
        orderly.map_err(|error| ThrowawayError::NotStopped(format!("{error}\n{}", tail(&log))))?;
        killed?;
        if !left.is_empty() {
            let text = format!("stop --all left processes behind (killed now): {}", left.join(", "));
            return Err(ThrowawayError::NotStopped(text));
        }
        removed.map_err(|error| ThrowawayError::System("the temporary folder cannot be removed", error))
    }

    async fn stop_all(&mut self) -> Result<(), ThrowawayError> {
        let stop =
            self.fountain(&["stop", "--all"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut stop = stop.map_err(|error| ThrowawayError::System("fountain stop cannot be started", error))?;
        let status = ended(&mut stop, STOP_DEADLINE).await;
        let said = stop.stderr.take().map(io::read_to_string).and_then(Result::ok).unwrap_or_default();
        match status {
            Some(status) if status.success() => {}
            Some(status) => {
                return Err(ThrowawayError::NotStopped(format!("fountain stop --all: {status} {}", said.trim())));
            }
            None => return Err(ThrowawayError::NotStopped(format!("fountain stop --all took over {STOP_DEADLINE:?}"))),
        }
        if let Some(running) = &mut self.running
            && ended(&mut running.child, STOP_DEADLINE).await.is_none()
        {
            return Err(ThrowawayError::NotStopped("the runner goes on after fountain stop --all".into()));
        }
        Ok(())
    }

    /// The binary with a subcommand and the state folder, deaf to the settings of the user's own runner.
    fn fountain(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--state").arg(self.state());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FOUNTAIN_RUNNER_") {
                command.env_remove(name);
            }
        }
        command.env("FOUNTAIN_RUNNER_CONFIG", "/dev/null");
        command
    }

    /// Kills what is left; the numbers and names of it.
    fn kill_survivors(&self) -> Vec<String> {
        let kill = |pid: Pid| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
            // It may end by itself at this very moment.
            let _ = kill_process(pid, Signal::KILL);
            format!("{} {}", pid.as_raw_nonzero(), name.trim())
        };
        self.survivors().into_iter().map(kill).collect()
    }

    /// Processes that carry the folder's name in their arguments or environment, work in it or hold a file in it. An
    /// agent is seen by its log: it has no arguments and no environment.
    fn survivors(&self) -> Vec<Pid> {
        let needle = self.folder.as_os_str().as_encoded_bytes();
        let mentions = |file: PathBuf| {
            std::fs::read(file).unwrap_or_default().windows(needle.len()).any(|window| window == needle)
        };
        let inside = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(&self.folder));
        let ours = |process: &Path| {
            let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            mentions(process.join("cmdline"))
                || mentions(process.join("environ"))
                || inside(process.join("cwd"))
                || files.map(|file| file.path()).any(inside)
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbered = processes.filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?)));
        numbered
            .filter(|(path, pid)| *pid != std::process::id().cast_signed() && ours(path))
            .filter_map(|(_, pid)| Pid::from_raw(pid))
            .collect()
    }
}

impl Drop for Throwaway {
    /// The last resort of a path that never got to [`Throwaway::stop`], a panic for one.
    fn drop(&mut self) {
        let _ = self.kill_9();
        if self.folder.exists() {
            self.kill_survivors();
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Waits for a child without blocking the runtime; `None` when it is still there at the deadline.
async fn ended(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        tokio::time::sleep(POLL).await;
    }
    None
}

/// Removes a folder that processes which were killed a moment ago may still write to.
async fn remove(folder: &Path) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound && start.elapsed() < Duration::from_secs(2) => {
                tokio::time::sleep(POLL).await;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(()),
        }
    }
}

/// The last lines of a log.
pub fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

fn random_hex<const N: usize>() -> Result<String, ThrowawayError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| ThrowawayError::System("no random bytes from the system", io::Error::other(error)))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
