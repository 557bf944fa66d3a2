//! Moves a process's output into its journal, and decides when the session is over.
//!
//! One task reads both pipes, so that what was written to stdout first is, where the kernel still shows it, recorded
//! first. The end comes when the leader has been collected and its pipes are at EOF; when a background child holds
//! them, after 250 ms of silence, 2 s at most (wire/exec.md §8.6). The child lives on: its pipe stays open and drained.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::Instant;

use super::journal::Appender;
use super::record;
use crate::wire::frame;

/// The largest payload of one frame. sprites-py refuses messages over 10 MiB, and proxies have smaller buffers.
const CHUNK: usize = 64 << 10;
/// Full reads in a row after which a pipe is made larger: a command that talks so much gets fewer interruptions.
const BUSY: u32 = 16;
/// The size of such a pipe. Others keep the usual one: what a user's pipes may take together is limited.
const LARGE_PIPE: usize = 1 << 20;
/// How long pipes that somebody still holds must be silent after the leader's end.
const SILENCE: Duration = Duration::from_millis(250);
/// How long their noise can delay the end.
const LONGEST_DRAIN: Duration = Duration::from_secs(2);

/// Where one stream of output comes from.
#[derive(Debug)]
pub enum Source {
    /// A pipe's read end.
    Pipe(pipe::Receiver),
    /// A terminal's master.
    Pty(AsyncFd<OwnedFd>),
    /// At its end.
    Closed,
}

impl Source {
    /// Waits until there is something to read (or the end); never, once closed.
    async fn ready(&self) {
        let outcome = match self {
            Self::Pipe(pipe) => pipe.readable().await,
            // Readiness is cleared by the read that finds nothing.
            Self::Pty(master) => master.readable().await.map(|mut guard| guard.retain_ready()),
            Self::Closed => std::future::pending().await,
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "waiting for output failed");
        }
    }

    /// One read: a frame, or `None` when nothing is there now. The end closes the source.
    fn read(&mut self, stream: u8, buffer: &mut BytesMut) -> Option<Bytes> {
        if buffer.capacity() - buffer.len() < CHUNK / 8 {
            buffer.reserve(CHUNK + 1);
        }
        buffer.put_u8(stream);
        let room = (buffer.capacity() - buffer.len()).min(CHUNK);
        let outcome = match self {
            Self::Pipe(pipe) => pipe.try_read_buf(&mut (&mut *buffer).limit(room)),
            Self::Pty(master) => read_pty(master, buffer),
            Self::Closed => Err(io::ErrorKind::WouldBlock.into()),
        };
        match outcome {
            Ok(count) if count > 0 => return Some(buffer.split().freeze()),
            Ok(_) => *self = Self::Closed,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "reading output failed");
                *self = Self::Closed;
            }
        }
        buffer.clear();
        None
    }

    /// One read that asks the kernel, not the last notification. `None` when nothing is there, or it fails: the usual
    /// read finds out why.
    fn read_now(&self, stream: u8) -> Option<Bytes> {
        let Self::Pipe(pipe) = self else { return None };
        let mut frame = vec![0; CHUNK + 1];
        frame[0] = stream;
        let count = rustix::io::read(pipe, &mut frame[1..]).ok().filter(|count| *count > 0)?;
        frame.truncate(count + 1);
        frame.shrink_to_fit();
        Some(frame.into())
    }

    fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

/// Reads a terminal: at most 4095 bytes come at once, and EIO is its end.
fn read_pty(master: &AsyncFd<OwnedFd>, buffer: &mut BytesMut) -> io::Result<usize> {
    let mut bytes = [0; 4096];
    let outcome = master.try_io(tokio::io::Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut bytes)?));
    match outcome {
        Ok(count) => {
            buffer.put_slice(&bytes[..count]);
            Ok(count)
        }
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
        Err(error) => Err(error),
    }
}

/// The streams of a session.
#[derive(Debug)]
pub struct Output {
    /// stdout, or the terminal.
    pub stdout: Source,
    /// stderr; closed with a terminal.
    pub stderr: Source,
    /// A frame of stderr that has to wait for one of stdout.
    pub held: Option<Bytes>,
    /// Full reads of stdout in a row.
    pub full_reads: u32,
}

impl Output {
    fn read(&mut self, buffer: &mut BytesMut) -> Option<Bytes> {
        if let Some(frame) = self.held.take() {
            return Some(frame);
        }
        if let Some(frame) = self.stdout.read(frame::STDOUT, buffer) {
            self.note_size(frame.len());
            return Some(frame);
        }
        let frame = self.stderr.read(frame::STDERR, buffer)?;
        // What a process wrote to stdout before this is there by now, though it was not a moment ago.
        match self.stdout.read_now(frame::STDOUT) {
            Some(earlier) => {
                self.held = Some(frame);
                Some(earlier)
            }
            None => Some(frame),
        }
    }

    fn note_size(&mut self, frame: usize) {
        self.full_reads = if frame > CHUNK { self.full_reads + 1 } else { 0 };
        if let (BUSY, Source::Pipe(pipe)) = (self.full_reads, &self.stdout) {
            // Refused where the user's pipes take much already: then it stays as it is.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE);
        }
    }

    async fn ready(&self) {
        tokio::select! {
            biased;
            () = self.stdout.ready() => {}
            () = self.stderr.ready() => {}
        }
    }

    fn is_closed(&self) -> bool {
        self.stdout.is_closed() && self.stderr.is_closed()
    }
}

/// Runs until the session is over, then records its exit. `exited` is set when the leader has been collected.
pub async fn run(mut output: Output, mut appender: Appender, mut exited: watch::Receiver<Option<u8>>) {
    let mut buffer = BytesMut::new();
    let mut ended: Option<(u8, Instant)> = None;
    let mut last_output = Instant::now();
    let code = loop {
        match ended {
            None => tokio::select! {
                () = appender.room() => {}
                code = leader_exit(&mut exited) => ended = Some((code, Instant::now())),
            },
            Some((code, at)) => {
                if output.is_closed() || last_output.max(at).elapsed() >= SILENCE || at.elapsed() >= LONGEST_DRAIN {
                    break code;
                }
            }
        }
        if let Some(frame) = output.read(&mut buffer) {
            appender.append(frame);
            last_output = Instant::now();
            continue;
        }
        // Nothing there: an idle session keeps no buffer.
        buffer = BytesMut::new();
        match ended {
            None => tokio::select! {
                biased;
                () = output.ready() => {}
                code = leader_exit(&mut exited) => ended = Some((code, Instant::now())),
            },
            Some(_) if output.is_closed() => {}
            Some((_, at)) => {
                let until = (last_output.max(at) + SILENCE).min(at + LONGEST_DRAIN);
                tokio::select! {
                    biased;
                    () = output.ready() => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
        }
    };
    appender.append(record::exit(code, jiff::Timestamp::now().as_millisecond()));
    drop(appender);
    if !output.is_closed() {
        tokio::spawn(discard(output));
    }
}

async fn leader_exit(exited: &mut watch::Receiver<Option<u8>>) -> u8 {
    let code = exited.wait_for(Option::is_some).await.ok().and_then(|code| *code);
    match code {
        Some(code) => code,
        // The actor that would tell has gone without telling: waiting is no lie, a code would be.
        None => std::future::pending().await,
    }
}

/// Keeps a background child's pipe open and empty, so that it neither blocks nor dies of SIGPIPE.
async fn discard(mut output: Output) {
    let mut buffer = BytesMut::new();
    while !output.is_closed() {
        while output.read(&mut buffer).is_some() {}
        buffer = BytesMut::new();
        if !output.is_closed() {
            output.ready().await;
        }
    }
}
