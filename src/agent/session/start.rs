//! Starts a session: folder, journal, descriptors, process, tasks. A command that cannot start is a session too, with
//! its reason on stderr and its code (wire/exec.md §8.3), so that every client reads it the usual way.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::actor::{Actor, Sink};
use super::journal::{Header, Journal};
use super::output::{self, Output, Source};
use super::stdin::Queue;
use super::table::Config;
use super::{Ports, Session, environment, record};
use crate::agent::lease::Lease;
use crate::agent::processes::{Processes, Start, Started};
use crate::sys::pty;
use crate::sys::spawn::{SpawnError, Step};
use crate::wire::exec::Command;
use crate::wire::frame;

/// Messages of clients that may wait for the actor.
const INBOX: usize = 8;

/// The agent's ends of a session's descriptors.
struct Ends {
    output: Output,
    sink: Sink,
    terminal: Option<Box<dyn portable_pty::MasterPty + Send>>,
}

/// Starts `command` as session `id`.
pub async fn start(
    id: String,
    command: &Command,
    request: Option<String>,
    config: &Config,
    processes: &Processes,
    lease: watch::Receiver<Lease>,
) -> Arc<Session> {
    let prepared = environment::prepare(command, &config.paths, &config.environment, &config.marker);
    let header = Header {
        id: id.clone(),
        command: command.display(),
        workdir: prepared.workdir.clone(),
        tty: command.tty,
        created: jiff::Timestamp::now().as_millisecond(),
        request,
        base: 0,
        output_base: 0,
        leader: None,
    };
    let dir = config.dir.join(&id);
    if let Err(error) = crate::store::files::create_private_dir(&dir) {
        tracing::warn!(%error, session = id, "the folder of a session could not be made");
    }
    let mut appender = Journal::create(&dir, header.clone(), config.limits);
    let journal = appender.journal().clone();
    let (inputs, input_box) = mpsc::channel(INBOX);
    let (controls, control_box) = mpsc::channel(INBOX);
    let (exited, exited_watch) = watch::channel(None);
    let attached = watch::Sender::new(0);
    let size = if command.tty { u32::from(command.size.0) << 16 | u32::from(command.size.1) } else { 0 };
    let session = |pid| {
        Arc::new(Session {
            header,
            journal,
            pid,
            inputs,
            controls,
            exited: exited_watch.clone(),
            attached: attached.clone(),
            size: AtomicU32::new(size),
            arrivals: config.arrivals.clone(),
            ports: Ports::default(),
        })
    };

    let opened = open(command);
    let outcome = match opened {
        Ok((stdio, ends)) => {
            let workdir = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(prepared.dir.as_os_str()));
            let start = Start {
                programs: prepared.programs,
                argv: prepared.argv,
                env: prepared.env,
                dir: workdir.unwrap_or_default(),
                stdio,
                terminal: command.tty,
            };
            processes
                .start(start)
                .await
                .map(|started| (started, ends))
                .map_err(|error| explain(error, command, &prepared.workdir))
        }
        Err(error) => Err((format!("cannot open its input and output: {error}"), 126)),
    };
    match outcome {
        Ok((Started { pid, start, exit }, Ends { output, sink, terminal })) => {
            appender.set_leader(pid, start);
            let output = tokio::spawn(output::run(output, appender, exited_watch.clone()));
            let actor = Actor {
                pid,
                processes: processes.clone(),
                exit,
                exited,
                output,
                inputs: input_box,
                controls: control_box,
                attached: attached.subscribe(),
                lease,
                sink,
                queue: Queue::new(dir.join("stdin")),
                terminal,
                max_run: command.max_run_after_disconnect,
            };
            tokio::spawn(actor.run());
            session(pid)
        }
        Err((message, code)) => {
            let (stream, end) = if command.tty { (frame::STDOUT, "\r\n") } else { (frame::STDERR, "\n") };
            appender.append(frame::encode(stream, format!("{message}{end}").as_bytes()));
            appender.append(record::exit(code, jiff::Timestamp::now().as_millisecond()));
            exited.send_replace(Some(code));
            session(0)
        }
    }
}

/// Opens pipes or a terminal: the child's three descriptors and our ends.
fn open(command: &Command) -> io::Result<([OwnedFd; 3], Ends)> {
    if command.tty {
        let pty::Pty { master, io: fd, slave } = pty::open(command.size)?;
        let stdio = [slave.try_clone()?, slave.try_clone()?, slave];
        let writer = pty::register(fd.try_clone()?)?;
        let ends = Ends {
            output: Output {
                stdout: Source::Pty(pty::register(fd)?),
                stderr: Source::Closed,
                held: None,
                full_reads: 0,
            },
            sink: Sink::Pty(writer),
            terminal: Some(master),
        };
        return Ok((stdio, ends));
    }
    let (stdin, sink) = if command.stdin {
        let (read, write) = io::pipe()?;
        (read.into(), Sink::Pipe(pipe::Sender::from_owned_fd(write.into())?))
    } else {
        (std::fs::File::open("/dev/null")?.into(), Sink::Closed)
    };
    let (stdout, out) = io::pipe()?;
    let (stderr, err) = io::pipe()?;
    let ends = Ends {
        output: Output {
            stdout: Source::Pipe(pipe::Receiver::from_owned_fd(stdout.into())?),
            stderr: Source::Pipe(pipe::Receiver::from_owned_fd(stderr.into())?),
            held: None,
            full_reads: 0,
        },
        sink,
        terminal: None,
    };
    Ok(([stdin, out.into(), err.into()], ends))
}

/// The sentence and the exit code of a failed start.
fn explain(error: SpawnError, command: &Command, workdir: &str) -> (String, u8) {
    let program = String::from_utf8_lossy(&command.path);
    let reason = errno_text(error.errno);
    match (error.step, error.errno) {
        (Step::Chdir, _) => (format!("chdir {workdir}: {reason}"), 1),
        (Step::Exec, libc::ENOENT | libc::ENOTDIR) if !program.contains('/') => {
            (format!("executable file `{program}` not found in $PATH: no such file or directory"), 127)
        }
        (Step::Exec, libc::ENOENT | libc::ENOTDIR) => (format!("{program}: {reason}"), 127),
        (Step::Exec, _) => (format!("{program}: {reason}"), 126),
        (Step::Clone | Step::Prepare, _) => (format!("cannot start a process: {reason}"), 126),
    }
}

/// The kernel's words for an error, in lower case as Go and the shells print them.
fn errno_text(errno: i32) -> String {
    let text = nix::errno::Errno::from_raw(errno).desc().to_lowercase();
    if text.is_empty() { format!("error {errno}") } else { text }
}

/// A line that a dead agent's session gets before its 137.
pub fn died(tty: bool) -> Bytes {
    let text = "fountain: the agent of this sprite ended unexpectedly; the command was killed";
    match tty {
        true => frame::encode(frame::STDOUT, format!("\r\n{text}\r\n").as_bytes()),
        false => frame::encode(frame::STDERR, format!("{text}\n").as_bytes()),
    }
}
