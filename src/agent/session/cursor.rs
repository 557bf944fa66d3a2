//! One reader's place in a journal: replay and live tail are one path.
//!
//! A cursor takes from memory what is still there, else from the segments on disk. It never holds the journal's lock
//! over a read, and it never skips: where output is missing it says how much.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::watch;

use super::journal::{Exit, Journal};
use super::record;
use super::segment::Segment;
use crate::wire::frame;

/// How many bytes a cursor takes at once.
const READ: usize = 512 << 10;

/// What a cursor found.
#[derive(Debug)]
pub enum Next {
    /// Frames in order, as they were produced.
    Frames(Vec<Bytes>),
    /// Output is missing here, this many bytes.
    Lost(u64),
    /// The end.
    Exit(Exit),
    /// Nothing yet.
    Pending,
}
/// One reader's place in a journal. While it lives it counts as an attached client.
#[derive(Debug)]
pub struct Cursor {
    journal: Arc<Journal>,
    mark: Arc<AtomicU64>,
    changed: watch::Receiver<u64>,
    at: u64,
    /// Output bytes before `at`.
    seen: u64,
    /// Output bytes before the first one this cursor gives.
    start: u64,
    /// Output bytes still to be left out, when it starts inside a record.
    skip: u64,
}

impl Cursor {
    /// A cursor at position `at`, with `seen` bytes of output before it; what lies before byte `start` is left out.
    pub(super) fn new(
        journal: Arc<Journal>,
        mark: Arc<AtomicU64>,
        changed: watch::Receiver<u64>,
        at: u64,
        seen: u64,
        start: u64,
    ) -> Self {
        Self { journal, mark, changed, at, seen, start, skip: start - seen }
    }

    /// Output bytes that this cursor does not replay: dropped ones, and those in front of a bounded tail.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The next frames, without waiting. What an earlier call gave counts as sent from now on.
    pub fn try_next(&mut self) -> Next {
        self.changed.mark_unchanged();
        self.mark.store(self.at, Ordering::Relaxed);
        self.journal.moved.notify_one();
        let segment = {
            let state = self.journal.lock();
            if self.at >= state.end {
                return match state.exit {
                    Some(exit) => Next::Exit(exit),
                    None => Next::Pending,
                };
            }
            if state.tail.front().is_some_and(|first| first.at <= self.at) {
                let from = state.tail.partition_point(|record| record.at < self.at);
                let mut size = 0;
                let frames: Vec<Bytes> = state
                    .tail
                    .range(from..)
                    .take_while(|record| {
                        size += record.frame.len();
                        size <= READ
                    })
                    .map(|record| record.frame.clone())
                    .collect();
                drop(state);
                return self.take(frames);
            }
            match state.segments.iter().find(|segment| segment.end() > self.at) {
                Some(segment) => segment.clone(),
                // Only in memory, and newer than our place: the disk refused what came between.
                None => {
                    let at = state.tail.front().map_or(state.end, |first| first.at);
                    let after: u64 = state.tail.iter().map(|record| record::output_len(&record.frame)).sum();
                    let seen = state.output - after;
                    drop(state);
                    return self.jump(at, seen);
                }
            }
        };
        if segment.base > self.at {
            return self.jump(segment.base, segment.output_base);
        }
        match read_frames(&segment, self.at) {
            Ok(frames) if !frames.is_empty() => self.take(frames),
            outcome => {
                let error = outcome.err().map_or_else(|| "damaged record".into(), |error| error.to_string());
                tracing::warn!(error, "a journal segment could not be read");
                let (end, output) = self.after(&segment);
                self.jump(end, output)
            }
        }
    }

    /// Waits until `try_next` may find something new.
    pub async fn changed(&mut self) {
        // The sender lives in the journal that we hold, so this cannot fail.
        let _ = self.changed.changed().await;
    }

    /// The next frames; waits for them.
    pub async fn next(&mut self) -> Next {
        loop {
            match self.try_next() {
                Next::Pending => self.changed().await,
                other => return other,
            }
        }
    }

    fn after(&self, segment: &Segment) -> (u64, u64) {
        let state = self.journal.lock();
        let next = state.segments.iter().find(|other| other.base >= segment.end());
        next.map_or((state.end, state.output), |next| (next.base, next.output_base))
    }

    fn jump(&mut self, at: u64, seen: u64) -> Next {
        let lost = seen.saturating_sub(self.seen);
        (self.at, self.seen) = (at, seen);
        Next::Lost(lost)
    }

    fn take(&mut self, frames: Vec<Bytes>) -> Next {
        let mut given = Vec::with_capacity(frames.len());
        for frame in frames {
            self.at += (record::LENGTH + frame.len()) as u64;
            let output = record::output_len(&frame);
            self.seen += output;
            let skipped = self.skip.min(output);
            self.skip -= skipped;
            match output - skipped {
                0 => {}
                left if left == output => given.push(frame),
                _ => given.push(frame::encode(frame[0], &frame[1 + skipped as usize..])),
            }
        }
        // An exit among them is the last record: the next call finds the cursor at the end and gives it.
        Next::Frames(given)
    }
}

/// All whole records in the next stretch of a segment.
fn read_frames(segment: &Segment, at: u64) -> io::Result<Vec<Bytes>> {
    let read = || segment.read(at, READ);
    // A cold disk may take its time; other tasks of this thread must not wait for it.
    let on_workers = tokio::runtime::Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread);
    let mut bytes = if on_workers { tokio::task::block_in_place(read)? } else { read()? };
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = record::split_first(&mut bytes) {
        frames.push(frame);
    }
    Ok(frames)
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let mut state = self.journal.lock();
        state.cursors.retain(|mark| !Arc::ptr_eq(mark, &self.mark));
        Journal::trim(&mut state);
        drop(state);
        self.journal.moved.notify_one();
    }
}
