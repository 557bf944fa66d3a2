//! A session's output on disk: appended from the first byte, read by any number of cursors.
//!
//! ```text
//!  output task ──append──▶ segments on disk (all of it, up to the ceiling)
//!                     └──▶ tail in memory (the newest MiBs) ──▶ cursor ──▶ socket
//! ```
//!
//! A record is on disk before any client can see it, so a replay by the next agent is never shorter than what a client
//! was sent. Replay and live tail are one code path: a cursor at a position. When the disk is full the tail carries
//! clients that keep up, and the hole is recorded; when the ceiling is reached the oldest segment goes. A cursor that
//! meets a hole is told how many bytes it missed: nothing is ever skipped silently. The lock guards a few words and is
//! never held over I/O.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use super::cursor::Cursor;
use super::rate::{Activity, Rate};
use super::record;
pub use super::segment::Header;
use super::segment::Segment;

/// How far the fastest attached client may be behind before the process has to wait.
const WINDOW: u64 = 4 << 20;
/// How much a session keeps in memory while clients are attached: their window, and what one read may add to it.
const ATTACHED_TAIL: usize = WINDOW as usize + (1 << 20);
/// How much it keeps while nobody is attached: enough for a first screen.
const DETACHED_TAIL: usize = 64 << 10;
/// What a record costs in memory beside its bytes.
const RECORD_COST: usize = 96;
/// How long a full disk is left alone before the next try.
const RETRY_DISK: Duration = Duration::from_millis(500);

/// Size rules of one journal.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of journal a session may keep on disk.
    pub ceiling: u64,
}

impl Limits {
    /// A segment is an eighth of the ceiling, 64 MiB at most: dropping one loses little.
    fn segment(self) -> u64 {
        (self.ceiling / 8).clamp(64 << 10, 64 << 20)
    }
}

/// One frame and its place.
#[derive(Debug)]
pub(super) struct Record {
    pub at: u64,
    pub frame: Bytes,
}

/// What the lock guards.
#[derive(Debug, Default)]
pub(super) struct State {
    pub segments: VecDeque<Arc<Segment>>,
    pub tail: VecDeque<Record>,
    pub tail_bytes: usize,
    /// Position behind the newest record, and output bytes before it.
    pub end: u64,
    pub output: u64,
    /// One mark for each attached cursor: how far it has sent.
    pub cursors: Vec<Arc<AtomicU64>>,
    /// Position behind the newest record that the disk refused: the tail holds the only copy of what is below.
    pub refused_until: u64,
    pub exit: Option<Exit>,
    pub rate: Rate,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// 0–255; 128+n for signal n.
    pub code: u8,
    /// Unix milliseconds.
    pub at: i64,
}

/// The reading side, shared by everyone who looks at a session.
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    /// Told when a cursor has moved or gone.
    pub(super) moved: Notify,
}

/// The writing side: one per session, owned by its output task.
#[derive(Debug)]
pub struct Appender {
    journal: Arc<Journal>,
    dir: PathBuf,
    limits: Limits,
    header: Header,
    /// Number of the next segment file.
    next: u64,
    /// Set while the disk refuses: not before then is it tried again.
    retry: Option<Instant>,
}

impl Journal {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts a journal in an empty folder. A disk that refuses is remembered, not an error: the session runs, its
    /// newest output lives in memory, and the log says so.
    pub fn create(dir: &Path, header: Header, limits: Limits) -> Appender {
        let journal = Arc::new(Journal {
            state: Mutex::new(State::default()),
            changed: watch::Sender::new(0),
            moved: Notify::new(),
        });
        let mut appender = Appender { journal, dir: dir.to_owned(), limits, header, next: 0, retry: None };
        appender.open_segment();
        appender
    }

    /// Opens what an earlier agent left. A record torn by its end is cut off.
    pub fn reopen(dir: &Path, limits: Limits) -> io::Result<Appender> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"journal.")))
            .collect();
        paths.sort();
        let next = paths.last().and_then(|path| path.extension()?.to_str()?.parse::<u64>().ok()).map_or(0, |n| n + 1);

        let mut segments = VecDeque::new();
        let mut header = None;
        for path in &paths {
            match Segment::open(path) {
                Ok((segment, read)) => {
                    segments.push_back(Arc::new(segment));
                    header = Some::<Header>(read);
                }
                Err(error) => tracing::warn!(%error, "a journal segment is unreadable"),
            }
        }
        let mut header = header.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no readable journal"))?;

        // A later segment names the leader in its header, the first one in its first record.
        header.leader = header.leader.or_else(|| {
            let first = segments.front()?;
            let frame = record::split_first(&mut first.read(first.base, 256).ok()?).ok()??;
            record::parse_leader(&frame)
        });
        // Only the newest segment can be torn.
        let mut state = State::default();
        if let Some(last) = segments.back() {
            let (len, output, exit) = scan(last)?;
            if len < last.size() {
                last.truncate(len)?;
            }
            state.end = last.end();
            state.output = last.output_base + output;
            state.exit = exit;
        }
        state.segments = segments;
        Self::trim(&mut state);
        let journal = Arc::new(Journal {
            changed: watch::Sender::new(state.end),
            state: Mutex::new(state),
            moved: Notify::new(),
        });
        Ok(Appender { journal, dir: dir.to_owned(), limits, header, next, retry: None })
    }

    /// How the session ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        self.lock().exit
    }

    /// All the output so far, in bytes, dropped ones included.
    pub fn output(&self) -> u64 {
        self.lock().output
    }

    /// How busy it is.
    pub fn activity(&self) -> Activity {
        self.lock().rate.activity(jiff::Timestamp::now().as_millisecond())
    }

    /// Bytes on disk.
    pub fn disk_use(&self) -> u64 {
        self.lock().segments.iter().map(|segment| segment.size()).sum()
    }

    /// Waits for the end without counting as a client.
    pub fn ended(self: &Arc<Self>) -> Ended {
        Ended { journal: self.clone(), changed: self.changed.subscribe() }
    }

    /// A cursor at the beginning, or `tail` bytes of output before the end.
    pub fn cursor(self: &Arc<Self>, tail: Option<u64>) -> Cursor {
        let mark = Arc::new(AtomicU64::new(0));
        let changed = self.changed.subscribe();
        let mut state = self.lock();
        let (at, seen) = match state.segments.front() {
            Some(first) if first.base > 0 => (first.base, first.output_base),
            _ => (0, 0),
        };
        mark.store(at, Ordering::Relaxed);
        state.cursors.push(mark.clone());
        let start = tail.map_or(seen, |tail| state.output.saturating_sub(tail).max(seen));
        // The nearest known place in front of that byte; the rest is skipped while reading.
        let in_tail: u64 = state.tail.iter().map(|record| record::output_len(&record.frame)).sum();
        let places = state.segments.iter().map(|segment| (segment.base, segment.output_base));
        let places = places.chain(state.tail.front().map(|first| (first.at, state.output - in_tail)));
        let (at, seen) = places.filter(|(_, output)| *output <= start).max().unwrap_or((at, seen));
        drop(state);
        Cursor::new(self.clone(), mark, changed, at, seen, start)
    }

    /// Drops from memory what the disk has and no client is about to need.
    pub(super) fn trim(state: &mut State) {
        let only_copy = state.tail.front().is_some_and(|first| first.at < state.refused_until);
        let keep = match (only_copy || !state.cursors.is_empty(), state.exit) {
            (true, _) => ATTACHED_TAIL,
            (false, None) => DETACHED_TAIL,
            (false, Some(_)) => 0,
        };
        while state.tail_bytes > keep {
            let Some(record) = state.tail.pop_front() else { break };
            state.tail_bytes -= record.frame.len() + RECORD_COST;
        }
        if state.tail.is_empty() {
            state.tail = VecDeque::new();
        }
        if state.exit.is_some() && state.cursors.is_empty() {
            state.segments.iter().for_each(|segment| segment.close());
        }
    }
}

/// Reads a segment to its last whole record: its length, its output, and the exit if it holds one.
fn scan(segment: &Segment) -> io::Result<(u64, u64, Option<Exit>)> {
    let (mut at, mut output, mut exit) = (segment.base, 0, None);
    'file: loop {
        let mut bytes = segment.read(at, 4 << 20)?;
        let before = at;
        loop {
            let left = bytes.len();
            match record::split_first(&mut bytes) {
                Ok(Some(frame)) => {
                    at += (left - bytes.len()) as u64;
                    output += record::output_len(&frame);
                    if let Some((code, when)) = record::parse_exit(&frame) {
                        exit = Some(Exit { code, at: when });
                        break 'file;
                    }
                }
                Ok(None) => break,
                Err(record::Damaged) => break 'file,
            }
        }
        if at == before {
            break;
        }
    }
    Ok((at - segment.base, output, exit))
}

impl Appender {
    /// The reading side.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Records who the leader is, for whoever has to clean up after a dead agent.
    pub fn set_leader(&mut self, pid: i32, start: u64) {
        self.header.leader = Some((pid, start));
        self.append(record::leader(pid, start));
    }

    /// What describes the session.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Appends one frame (`[stream][payload]`): to disk, then for everyone to see.
    pub fn append(&mut self, frame: Bytes) {
        let on_disk = self.write(&frame);
        let now = jiff::Timestamp::now().as_millisecond();
        let mut state = self.journal.lock();
        let at = state.end;
        state.end += (record::LENGTH + frame.len()) as u64;
        let output = record::output_len(&frame);
        state.output += output;
        if output > 0 {
            state.rate.add(now, output);
        }
        if !on_disk {
            state.refused_until = state.end;
        }
        if let Some((code, when)) = record::parse_exit(&frame) {
            state.exit = Some(Exit { code, at: when });
        }
        state.tail_bytes += frame.len() + RECORD_COST;
        state.tail.push_back(Record { at, frame });
        Journal::trim(&mut state);
        let end = state.end;
        drop(state);
        self.journal.changed.send_replace(end);
    }

    /// Waits until the fastest attached client is near enough; at once when nobody is attached.
    pub async fn room(&self) {
        loop {
            let moved = self.journal.moved.notified();
            {
                let state = self.journal.lock();
                let best = state.cursors.iter().map(|mark| mark.load(Ordering::Relaxed)).max();
                if best.is_none_or(|best| state.end.saturating_sub(best) <= WINDOW) {
                    return;
                }
            }
            moved.await;
        }
    }

    /// Writes a record to the newest segment, opening the next one when it is full. False when the disk refused.
    fn write(&mut self, frame: &[u8]) -> bool {
        if self.retry.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        let current = {
            let state = self.journal.lock();
            // A segment that does not reach the end has a hole behind it: what follows goes to a new one.
            let fits = |last: &&Arc<Segment>| last.end() == state.end && last.size() < self.limits.segment();
            state.segments.back().filter(fits).cloned()
        };
        let Some(segment) = current.or_else(|| self.open_segment()) else { return false };
        match segment.append(frame) {
            Ok(()) => {
                if self.retry.take().is_some() {
                    tracing::info!(session = self.header.id, "the journal is being written again");
                }
                true
            }
            Err(error) => self.refused(&error),
        }
    }

    fn open_segment(&mut self) -> Option<Arc<Segment>> {
        let (base, output_base) = {
            let state = self.journal.lock();
            (state.end, state.output)
        };
        let header = Header { base, output_base, ..self.header.clone() };
        match Segment::create(&self.dir, self.next, &header) {
            Ok(segment) => {
                self.next += 1;
                let segment = Arc::new(segment);
                let dropped = self.push_segment(segment.clone());
                dropped.iter().for_each(|old| old.remove());
                Some(segment)
            }
            Err(error) => {
                self.refused(&error);
                None
            }
        }
    }

    /// Adds a segment and takes out the oldest ones beyond the ceiling.
    fn push_segment(&self, segment: Arc<Segment>) -> Vec<Arc<Segment>> {
        let mut state = self.journal.lock();
        state.segments.push_back(segment);
        let mut dropped = Vec::new();
        let mut total: u64 = state.segments.iter().map(|segment| segment.size()).sum();
        while total + self.limits.segment() > self.limits.ceiling && state.segments.len() > 1 {
            if let Some(old) = state.segments.pop_front() {
                total -= old.size();
                dropped.push(old);
            }
        }
        dropped
    }

    fn refused(&mut self, error: &io::Error) -> bool {
        if self.retry.is_none() {
            tracing::warn!(%error, session = self.header.id, "the journal cannot be written; output is kept in memory only");
        }
        self.retry = Some(Instant::now() + RETRY_DISK);
        false
    }
}

/// Somebody who only wants to know the exit.
#[derive(Debug)]
pub struct Ended {
    journal: Arc<Journal>,
    changed: watch::Receiver<u64>,
}

impl Ended {
    /// Waits for the exit record.
    pub async fn wait(&mut self) -> Exit {
        loop {
            self.changed.mark_unchanged();
            if let Some(exit) = self.journal.exit() {
                return exit;
            }
            let _ = self.changed.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cursor::Next;
    use super::*;
    use crate::wire::frame;

    fn header() -> Header {
        Header {
            id: "s1".into(),
            command: "x".into(),
            workdir: "/".into(),
            tty: false,
            created: 0,
            request: None,
            base: 0,
            output_base: 0,
            leader: None,
        }
    }

    fn out(text: &[u8]) -> Bytes {
        frame::encode(frame::STDOUT, text)
    }

    /// Everything a cursor has to give: output, bytes lost, exit.
    fn drain(cursor: &mut Cursor) -> (Vec<u8>, u64, Option<u8>) {
        let (mut text, mut lost) = (Vec::new(), 0);
        loop {
            match cursor.try_next() {
                Next::Frames(frames) => frames.iter().for_each(|frame| text.extend_from_slice(&frame[1..])),
                Next::Lost(bytes) => lost += bytes,
                Next::Exit(exit) => return (text, lost, Some(exit.code)),
                Next::Pending => return (text, lost, None),
            }
        }
    }

    #[test]
    fn replay_and_live_are_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let mut appender = Journal::create(dir.path(), header(), Limits { ceiling: 1 << 30 });
        appender.set_leader(5, 6);
        let mut live = appender.journal().cursor(None);
        let mut expected = Vec::new();
        for number in 0..20_000u32 {
            let line = format!("line {number}\n");
            expected.extend_from_slice(line.as_bytes());
            appender.append(out(line.as_bytes()));
        }
        assert_eq!(drain(&mut live), (expected.clone(), 0, None));
        drop(live);
        appender.append(record::exit(7, 1));
        assert_eq!(drain(&mut appender.journal().cursor(None)), (expected.clone(), 0, Some(7)));
        drop(appender);

        let again = Journal::reopen(dir.path(), Limits { ceiling: 1 << 30 }).unwrap();
        assert_eq!(again.header().leader, Some((5, 6)));
        assert_eq!(drain(&mut again.journal().cursor(None)), (expected.clone(), 0, Some(7)));
        let mut tail = again.journal().cursor(Some(16));
        assert_eq!(tail.start(), expected.len() as u64 - 16);
        assert_eq!(drain(&mut tail), (expected[expected.len() - 16..].to_vec(), 0, Some(7)));
    }

    #[test]
    fn a_torn_record_is_cut_off_and_what_follows_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { ceiling: 1 << 30 };
        let mut appender = Journal::create(dir.path(), header(), limits);
        appender.append(out(b"whole"));
        appender.append(out(b"torn"));
        drop(appender);
        let path = dir.path().join("journal.000000");
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 2).unwrap();
        let mut appender = Journal::reopen(dir.path(), limits).unwrap();
        assert_eq!(appender.journal().exit(), None);
        appender.append(frame::encode(frame::STDERR, b"!"));
        appender.append(record::exit(137, 1));
        assert_eq!(drain(&mut appender.journal().cursor(None)), (b"whole!".to_vec(), 0, Some(137)));
    }

    #[test]
    fn the_ceiling_drops_the_oldest_and_every_cursor_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { ceiling: 1 << 20 };
        let mut appender = Journal::create(dir.path(), header(), limits);
        let mut early = appender.journal().cursor(None);
        assert!(matches!(early.try_next(), Next::Pending));
        let block = vec![b'x'; 60_000];
        for _ in 0..200 {
            appender.append(out(&block));
        }
        assert!(appender.journal().disk_use() <= 1 << 20);
        let late = appender.journal().cursor(None);
        assert!(late.start() > 0 && late.start() % 60_000 == 0);
        let (text, lost, _) = drain(&mut early);
        assert_eq!(text.len() as u64 + lost, 200 * 60_000);
        assert!(lost > 0);
    }

    #[test]
    fn a_disk_that_refuses_loses_nothing_for_a_client_that_keeps_up() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("gone");
        std::fs::create_dir(&inner).unwrap();
        let mut appender = Journal::create(&inner, header(), Limits { ceiling: 1 << 20 });
        let mut live = appender.journal().cursor(None);
        appender.append(out(b"a"));
        // The folder vanishes: the next segment cannot be opened.
        std::fs::remove_dir_all(&inner).unwrap();
        let block = vec![b'y'; 50_000];
        let mut got = 0;
        for _ in 0..40 {
            appender.append(out(&block));
            let (text, lost, _) = drain(&mut live);
            got += text.len();
            assert_eq!(lost, 0);
        }
        assert_eq!(got, 1 + 40 * 50_000);
        appender.append(record::exit(0, 1));
        assert_eq!(drain(&mut live), (Vec::new(), 0, Some(0)));
    }

    #[tokio::test]
    async fn the_appender_waits_for_the_fastest_client_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut appender = Journal::create(dir.path(), header(), Limits { ceiling: 1 << 30 });
        let block = vec![b'z'; 60_000];
        for _ in 0..100 {
            appender.append(out(&block));
        }
        tokio::time::timeout(Duration::from_secs(5), appender.room()).await.expect("nobody attached: never waits");
        let _slow = appender.journal().cursor(None);
        let waited = tokio::time::timeout(Duration::from_millis(50), appender.room()).await;
        assert!(waited.is_err(), "a client 6 MB behind holds it");
        let mut fast = appender.journal().cursor(None);
        drain(&mut fast);
        tokio::time::timeout(Duration::from_secs(5), appender.room()).await.expect("the fast one frees it");
    }
}
