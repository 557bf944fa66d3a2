//! One file of a journal: a header record, then output records up to a size; only ever appended to, dropped whole.
//!
//! A finished session that nobody reads keeps no descriptor: its file is opened again for whoever comes.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::record;

/// What a segment's header says of its session, and of what came before it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Header {
    /// The session's id.
    pub id: String,
    /// argv joined by spaces.
    pub command: String,
    /// Working directory as the API shows it.
    pub workdir: String,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Unix milliseconds.
    pub created: i64,
    /// The runner's name for the request that started it, so that one sent twice starts nothing twice.
    #[serde(default)]
    pub request: Option<String>,
    /// Journal position of the first record behind this header.
    #[serde(default)]
    pub base: u64,
    /// Bytes of output before it, the dropped ones included.
    #[serde(default)]
    pub output_base: u64,
    /// Pid and start time of the session's leader, once known.
    #[serde(default)]
    pub leader: Option<(i32, u64)>,
}

/// An open segment. Readers share it; only the appender writes.
#[derive(Debug)]
pub struct Segment {
    path: PathBuf,
    /// Closed once nothing is written any more and nobody reads.
    file: Mutex<Option<Arc<File>>>,
    /// Where the first record stands in the file.
    start: u64,
    /// Journal position of that record.
    pub base: u64,
    /// Output bytes before it.
    pub output_base: u64,
    /// Bytes of whole records behind the header.
    written: AtomicU64,
}

impl Segment {
    /// Creates `journal.<number>` with its header.
    pub fn create(dir: &Path, number: u64, header: &Header) -> io::Result<Self> {
        let path = dir.join(format!("journal.{number:06}"));
        let file = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&path)?;
        let mut frame = vec![record::HEADER];
        serde_json::to_writer(&mut frame, header)?;
        let start = (record::LENGTH + frame.len()) as u64;
        let segment = Self {
            path,
            file: opened(file),
            start,
            base: header.base,
            output_base: header.output_base,
            written: AtomicU64::new(0),
        };
        if let Err(error) = segment.write(&frame) {
            segment.remove();
            return Err(error);
        }
        Ok(segment)
    }

    /// Opens a segment that an earlier agent wrote, and reads its header.
    pub fn open(path: &Path) -> io::Result<(Self, Header)> {
        let file = OpenOptions::new().read(true).append(true).open(path)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the segment has no header");
        let mut prefix = [0; record::LENGTH];
        file.read_exact_at(&mut prefix, 0)?;
        let length = u32::from_le_bytes(prefix) as usize;
        if length == 0 || length > record::MAX_RECORD {
            return Err(damaged());
        }
        let mut frame = vec![0; length];
        file.read_exact_at(&mut frame, record::LENGTH as u64)?;
        let text = frame.strip_prefix(&[record::HEADER]).ok_or_else(damaged)?;
        let header: Header = serde_json::from_slice(text)?;
        let start = (record::LENGTH + length) as u64;
        let written = file.metadata()?.len().saturating_sub(start);
        let segment = Self {
            path: path.to_owned(),
            file: opened(file),
            start,
            base: header.base,
            output_base: header.output_base,
            written: AtomicU64::new(written),
        };
        Ok((segment, header))
    }

    fn file(&self) -> io::Result<Arc<File>> {
        let open = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match open {
            Some(file) => Ok(file),
            None => OpenOptions::new().read(true).append(true).open(&self.path).map(Arc::new),
        }
    }

    /// Lets go of the descriptor.
    pub fn close(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Bytes of records in it.
    pub fn size(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Journal position behind its last record.
    pub fn end(&self) -> u64 {
        self.base + self.size()
    }

    /// Appends one record; a failed write leaves no part of it.
    pub fn append(&self, frame: &[u8]) -> io::Result<()> {
        self.write(frame)?;
        self.written.fetch_add((record::LENGTH + frame.len()) as u64, Ordering::Release);
        Ok(())
    }

    fn write(&self, frame: &[u8]) -> io::Result<()> {
        let prefix = record::length_prefix(frame.len());
        let whole = prefix.len() + frame.len();
        let mut slices = [IoSlice::new(&prefix), IoSlice::new(frame)];
        let mut rest: &mut [IoSlice] = &mut slices;
        let mut done = 0;
        let file = self.file()?;
        while done < whole {
            match (&*file).write_vectored(rest) {
                Ok(0) => return Err(self.undo(&file, done, io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    done += count;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.undo(&file, done, error)),
            }
        }
        Ok(())
    }

    /// Cuts off the part of a record that was written before `error`.
    fn undo(&self, file: &File, done: usize, error: io::Error) -> io::Error {
        if done > 0 {
            let whole = if self.start > 0 { self.start + self.size() } else { 0 };
            if let Err(second) = file.set_len(whole) {
                tracing::warn!(%second, "a torn journal record could not be cut off");
            }
        }
        error
    }

    /// Reads up to `max` bytes of records from journal position `at`, which must be a record's start.
    pub fn read(&self, at: u64, max: usize) -> io::Result<Bytes> {
        let available = self.end().saturating_sub(at).min(max as u64) as usize;
        let mut buffer = vec![0; available];
        self.file()?.read_exact_at(&mut buffer, self.start + (at - self.base))?;
        Ok(Bytes::from(buffer))
    }

    /// Cuts everything behind the first `len` bytes of records: what a kill tore.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        self.file()?.set_len(self.start + len)?;
        self.written.store(len, Ordering::Release);
        Ok(())
    }

    /// Unlinks the file; readers that hold it can finish.
    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "a journal segment could not be removed");
        }
    }
}

fn opened(file: File) -> Mutex<Option<Arc<File>>> {
    Mutex::new(Some(Arc::new(file)))
}
