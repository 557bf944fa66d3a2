//! A real runner in a temporary folder. Dropping it runs `fountain stop --all` and demands that nothing is left.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{PATIENCE, Pidfd, processes};

/// The fixed token of every test runner.
pub const TOKEN: &str = "raw-tests-fixed-token-5d8c";

const BINARY: &str = env!("CARGO_BIN_EXE_fountain");

/// What a runner is started with besides the usual.
#[derive(Clone, Default)]
pub struct Options {
    /// More arguments of `fountain runner`.
    pub args: Vec<String>,
    /// A command that starts the runner, such as `env --ignore-signal=HUP`.
    pub wrapper: Vec<String>,
}

impl Options {
    pub fn args(args: &[&str]) -> Self {
        Self { args: args.iter().map(|a| (*a).to_owned()).collect(), ..Self::default() }
    }
}

/// A runner, its folder, and what it has printed.
pub struct Runner {
    folder: TempDir,
    options: Options,
    child: Option<Child>,
    printed: Arc<Mutex<String>>,
    /// The folder of its sockets, as its contact file names it.
    sockets: PathBuf,
    pub addr: SocketAddr,
}

impl Runner {
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Self {
        let folder = tempfile::Builder::new().prefix("fr-").tempdir().unwrap();
        for name in ["run", "home"] {
            fs::DirBuilder::new().mode(0o700).create(folder.path().join(name)).unwrap();
        }
        let addr = ([127, 0, 0, 1], 0).into();
        let mut runner = Self { folder, options, child: None, printed: Arc::default(), sockets: PathBuf::new(), addr };
        runner.launch(0).unwrap_or_else(|why| panic!("{why}"));
        runner
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The folder of the tests' own files, above the state.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id of the runner.
    pub fn pid(&self) -> i32 {
        self.child.as_ref().expect("a started runner").id() as i32
    }

    /// Any other command of the binary, in this runner's surroundings.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args);
        self.surround(&mut command);
        command
    }

    fn surround(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path().join("home"))
            .env("XDG_RUNTIME_DIR", self.folder.path().join("run"))
            .env("FOUNTAIN_RUNNER_TOKEN", TOKEN)
            .stdin(Stdio::null());
    }

    /// Runs a command of the binary to its end.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.cli_with(args, |_| {})
    }

    /// The same, after `change` had its say about the surroundings.
    pub fn cli_with(&self, args: &[&str], change: impl FnOnce(&mut Command)) -> Output {
        let mut command = self.command(args);
        change(&mut command);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let watch = Pidfd::open(child.id() as i32);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            watch.kill9();
            panic!("`fountain {}` did not end", args.join(" "))
        })
    }

    fn launch(&mut self, port: u16) -> Result<(), String> {
        let state = self.state();
        let mut words = self.options.wrapper.clone();
        words.push(BINARY.to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["runner", "--listen", &format!("127.0.0.1:{port}"), "--state"]).arg(&state);
        command.args(&self.options.args);
        self.surround(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(self.stderr_file()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        let printed = Arc::clone(&self.printed);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let mut all = printed.lock().unwrap();
                all.push_str(&line);
                all.push('\n');
                if let Some(addr) = line.strip_prefix("fountain runner listening on http://") {
                    _ = sender.send(addr.trim_end_matches('/').parse::<SocketAddr>());
                }
            }
        });
        match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(addr)) => {
                self.addr = addr;
                self.child = Some(child);
                let contact = fs::read(self.state().join("runner.json")).unwrap();
                let contact: serde_json::Value = serde_json::from_slice(&contact).unwrap();
                self.sockets = Path::new(contact["socket"].as_str().unwrap()).parent().unwrap().to_owned();
                Ok(())
            }
            answer => {
                _ = child.kill();
                let status = child.wait();
                Err(format!("the runner did not start: {answer:?}, {status:?}\n{}", self.output()))
            }
        }
    }

    fn stderr_file(&self) -> File {
        OpenOptions::new().create(true).append(true).open(self.folder.path().join("stderr.log")).unwrap()
    }

    /// Everything the runner (and whoever inherited its stderr) printed so far.
    pub fn output(&self) -> String {
        let stderr = fs::read(self.folder.path().join("stderr.log")).unwrap_or_default();
        format!("{}{}", self.printed.lock().unwrap(), String::from_utf8_lossy(&stderr))
    }

    /// `kill -9` of the runner alone; its agents live on.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("a started runner");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ctrl-C for the runner alone.
    pub fn interrupt(&mut self) -> ExitStatus {
        kill_process(Pid::from_raw(self.pid()).unwrap(), Signal::INT).unwrap();
        self.ended()
    }

    /// Waits for the end of the runner.
    pub fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("a started runner");
        let watch = Pidfd::open(child.id() as i32);
        assert!(watch.dead_within(PATIENCE), "the runner did not end");
        child.wait().unwrap()
    }

    /// Starts the runner again on the same state, on the same port if it is still free.
    pub fn restart(&mut self) {
        let port = self.addr.port();
        if self.launch(port).is_err() {
            self.launch(0).unwrap_or_else(|why| panic!("{why}"));
        }
    }

    /// Tries a second runner on the same state folder, which must refuse; its exit status and what it printed.
    pub fn rival(&self) -> Output {
        let state = self.state();
        self.cli(&["runner", "--listen", "127.0.0.1:0", "--state", state.to_str().unwrap()])
    }

    /// `fountain stop --all`: ends the agents in order and then the runner.
    pub fn stop_all(&mut self) {
        let state = self.state();
        let output = self.cli(&["stop", "--all", "--state", state.to_str().unwrap()]);
        assert!(output.status.success(), "fountain stop --all failed: {output:?}\n{}", self.output());
        if self.child.is_some() {
            self.ended();
        }
    }

    /// Demands that no process of this state folder lives.
    pub fn assert_nothing_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let left: Vec<_> = [&self.sockets, self.folder.path()]
            .into_iter()
            .flat_map(processes::mentioning)
            .filter(|(pid, _)| !Pidfd::open(*pid).dead_within(deadline.saturating_duration_since(Instant::now())))
            .collect();
        assert!(left.is_empty(), "left behind after fountain stop --all: {left:?}");
        assert!(!self.sockets.exists(), "sockets left behind: {:?}", walk(&self.sockets));
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- what the runner printed:\n{}", self.output());
            if let Some(mut child) = self.child.take() {
                _ = child.kill();
                _ = child.wait();
            }
            // Agents may start things while they are being killed; twice is enough for those.
            for place in [&self.sockets, self.folder.path(), self.folder.path()] {
                processes::kill_mentioning(place);
            }
            return;
        }
        self.stop_all();
        self.assert_nothing_left();
    }
}

/// Every path below `dir`.
pub fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}
