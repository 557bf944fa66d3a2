//! Checkpoints of a sprite's disk: archives on disk, their catalogue, and the swap that restores one.
//!
//! A blocking library: a folder goes in, `vN.tar.zst` and `vN.json` come out, and the other way round. It knows nothing
//! of HTTP, of processes or of who may ask. The caller stops the sprite's processes (or pauses them) around
//! [`Catalog::create`] and before [`Staged::swap`]; this room must never show a half checkpoint, and never leave a
//! sprite with half a disk, wherever it is killed.
//!
//! ```text
//!  tree ──walk──▶ writer ──plan──▶ tar ──▶ zstd ──▶ SHA-256 ──▶ vN.tar.zst      create
//!  tree ◀─stage── reader ◀─plan─── tar ◀── zstd ◀── SHA-256 ◀── vN.tar.zst      restore, then swap
//! ```
//!
//! Error policy: [`Error`]'s `Display` is the sentence for the client, [`Error::code`] the stable code, and
//! [`Error::detail`] a line for the log only.

mod attributes;
mod catalog;
mod durable;
mod extract;
mod failpoint;
mod manifest;
pub mod pax;
pub mod plan;
mod reader;
mod settle;
mod swap;
pub mod walk;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::io::Errno;

pub use catalog::{Catalog, Limits, NewCheckpoint, Recovered};
pub use manifest::{Checkpoint, Health, Manifest};
pub use reader::{Expected, extract};
pub use swap::{Restored, Staged};
pub use writer::{Options, Summary, write};

/// Told how many entries and bytes are done, at once and then at most every 100 ms. `Break` cancels the work, which then
/// leaves nothing behind.
pub type Progress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// How long two calls of a [`Progress`] lie apart at least.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Why a checkpoint was not made, found or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such id here (404).
    #[error("this sprite has no such checkpoint")]
    NotFound,
    /// As many checkpoints as the setting allows (409).
    #[error("this sprite already has {0} checkpoints, as many as the runner allows; delete one first")]
    TooMany(usize),
    /// As many bytes as the setting allows (409).
    #[error("this sprite's checkpoints would exceed the {0} bytes that the runner allows; delete one first")]
    TooLarge(u64),
    /// The one that the disk was last made from or restored to (409).
    #[error("the sprite is on this checkpoint; create or restore another one before deleting it")]
    Active,
    /// Below the free-space floor, or no space at all (507).
    #[error("the runner's disk is too full for this; free some space and try again")]
    DiskLow(String),
    /// The archive does not hold what its manifest says. Nothing was changed.
    #[error("this checkpoint's archive is damaged or missing, so it cannot be restored; the sprite is unchanged")]
    Damaged(String),
    /// The caller's [`Progress`] said so.
    #[error("cancelled; the sprite is unchanged")]
    Cancelled,
    /// Anything else, with the place in the sprite's own tree where it happened.
    #[error("the checkpoint failed {}: {source}; the sprite is unchanged", Place(.path))]
    Failed {
        /// Path below the sprite's root; empty when it was not about one.
        path: Vec<u8>,
        /// What the system said.
        source: io::Error,
        /// What was being done, for the log.
        doing: &'static str,
    },
}

/// The part of a sentence that names a place in the sprite.
struct Place<'a>(&'a Vec<u8>);

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("on the runner's disk");
        }
        // A path may be 4 KiB long and the sentence must stay short: its end says most.
        let start = self.0.len().saturating_sub(120);
        write!(f, "at {:?}", String::from_utf8_lossy(&self.0[start..]))
    }
}

impl Error {
    /// The stable code for clients.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "checkpoint_not_found",
            Self::TooMany(_) | Self::TooLarge(_) => "checkpoint_limit",
            Self::Active => "checkpoint_active",
            Self::DiskLow(_) => "disk_low",
            Self::Damaged(_) => "checkpoint_damaged",
            Self::Cancelled => "checkpoint_cancelled",
            Self::Failed { .. } => "checkpoint_failed",
        }
    }

    /// A line for the log, which may name files of the host.
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::DiskLow(detail) | Self::Damaged(detail) => Some(detail.clone()),
            Self::Failed { path, source, doing } => {
                Some(format!("{doing}: {:?}: {source}", String::from_utf8_lossy(path)))
            }
            _ => None,
        }
    }

    /// A failure of the system while `doing` something at `path` of the tree. A full disk has its own error.
    fn system(doing: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let full = [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error()));
        if full.contains(&source.raw_os_error()) {
            return Self::DiskLow(format!("{doing}: {source}"));
        }
        Self::Failed { path: path.to_vec(), source, doing }
    }
}

/// Shorthand for `map_err`: a failure on the runner's own files.
fn host(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::system(doing, b"", source)
}

/// Keeps the pace of a [`Progress`], and looks at the free space at the same moments.
struct Meter<'a> {
    progress: &'a mut Progress<'a>,
    last: Option<Instant>,
    files: u64,
    bytes: u64,
    floor: Option<(std::fs::File, u64)>,
}

impl<'a> Meter<'a> {
    fn new(progress: &'a mut Progress<'a>) -> Self {
        Self { progress, last: None, files: 0, bytes: 0, floor: None }
    }

    /// Ends the work with [`Error::DiskLow`] when less than `floor` bytes are free on `file`'s disk.
    fn keep_free(mut self, file: &std::fs::File, floor: u64) -> io::Result<Self> {
        if floor > 0 {
            self.floor = Some((file.try_clone()?, floor));
        }
        Ok(self)
    }

    fn tick(&mut self) -> Result<(), Error> {
        if self.last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return Ok(());
        }
        self.last = Some(Instant::now());
        if let Some((file, floor)) = &self.floor {
            check_free(file, *floor)?;
        }
        match (self.progress)(self.files, self.bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// [`Error::DiskLow`] when less than `floor` bytes are free on `file`'s disk.
fn check_free(file: &std::fs::File, floor: u64) -> Result<(), Error> {
    let stat = rustix::fs::fstatvfs(file).map_err(|errno| host("statvfs")(errno.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < floor {
        return Err(Error::DiskLow(format!("{free} bytes are free and {floor} must be")));
    }
    Ok(())
}
