//! Restoring: a checkpoint's tree is staged beside the disk, then the two change places.
//!
//! ```text
//!             stage                 swap: intent     exchange        keep            forget
//!  disk       old         old         old             NEW            NEW             NEW
//!  .staging    –     ──▶  new   ──▶   new     ──▶     old     ──▶     –      ──▶      –
//!  .undo      older       older       older          older           old             old   = auto-N
//!  .trash-N    –           –           –               –            older             –
//! ```
//!
//! Until the exchange, any failure leaves the sprite exactly as it was. From the exchange on the restore has happened,
//! and the intent (`restore.json`), which was on disk before it, says how to go on: [`Catalog::recover`] and every later
//! change of the catalogue finish it. Whether the exchange took place is told by which tree lies under the disk's name,
//! known by its inode. Restoring the `auto-N` entry takes the same way with `.undo` in the place of `.staging`.
//!
//! A restored tree is not synced before it becomes the disk: that would take longer than the restore. Until it is synced
//! ([`Catalog::tidy`]) the intent stays, and should the host lose its power first, the tree is made again from its
//! archive, which is safe on disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::catalog::Lock;
use super::durable::{self, suffixed};
use super::failpoint::{forced, point};
use super::manifest::{FORMAT, Health, Manifest, State, canonical_id};
use super::settle::boot;
use super::walk::remove_tree;
use super::{Catalog, Checkpoint, Error, Expected, Progress, check_free, host, reader};
use crate::store::files::write_atomic;

const INTENT: &str = "restore.json";

/// What a restore is about to do, with everything that is needed to go on after a crash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Intent {
    /// Inode of the tree that is to become the disk.
    pub(super) new: u64,
    /// Inode of the tree that is the disk.
    pub(super) old: u64,
    /// Whether the new tree is the kept one, and so lies at `.undo` instead of `.staging`.
    pub(super) undo: bool,
    /// The entry for the tree that is replaced.
    pub(super) kept: Manifest,
    /// The catalogue's state after it.
    pub(super) state: State,
    /// The checkpoint that is restored.
    pub(super) id: String,
    /// The boot of the host during which the new tree was written, if it is not known to be on disk.
    pub(super) unsynced: Option<String>,
    /// Whether all of it is entered, and only the sync is left.
    pub(super) entered: bool,
}

/// A checkpoint's tree, ready beside the disk. Dropped without a swap, it is removed and the sprite is as it was. No
/// other change of the catalogue can happen while it lives.
#[derive(Debug)]
pub struct Staged {
    catalog: Catalog,
    _lock: Lock,
    checkpoint: Checkpoint,
    swapped: bool,
}

/// A restore that has happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Restored {
    /// The manifest of what was restored, with the service definitions in it.
    pub manifest: Manifest,
    /// The entry under which the replaced tree is kept.
    pub kept_as: String,
}

impl Catalog {
    /// Verifies a checkpoint and extracts it beside the disk. The sprite may go on working meanwhile.
    pub fn stage<'a>(&self, id: &str, progress: &'a mut Progress<'a>) -> Result<Staged, Error> {
        let id = canonical_id(id).ok_or(Error::NotFound)?;
        let lock = self.lock()?;
        self.settle()?;
        let checkpoint = self.load(&id).ok_or(Error::NotFound)?;
        let manifest = &checkpoint.manifest;
        if manifest.format > FORMAT {
            return Err(Error::Damaged(format!("format {} is newer than this program", manifest.format)));
        }
        if checkpoint.health == Health::Failed {
            return Err(Error::Damaged("manifest and archive do not belong together".into()));
        }
        if !manifest.is_auto {
            point("restore: before staging");
            self.extract(manifest, progress)?;
        }
        point("restore: staged");
        Ok(Staged { catalog: self.clone(), _lock: lock, checkpoint, swapped: false })
    }

    /// Makes a checkpoint's tree in the staging folder.
    pub(super) fn extract<'a>(&self, manifest: &Manifest, progress: &'a mut Progress<'a>) -> Result<(), Error> {
        let archive = fs::File::open(self.archive(&manifest.id)).map_err(reader::damaged)?;
        check_free(&archive, self.limits.min_free.saturating_add(manifest.data_bytes))?;
        let staging = self.staging();
        remove_tree(&staging).map_err(host("remove an old staging folder"))?;
        let expected = Expected {
            archive_bytes: manifest.archive_bytes,
            sha256: &manifest.sha256,
            data_bytes: manifest.data_bytes,
        };
        reader::extract(&archive, expected, &staging, self.limits.min_free, progress)
    }
}

impl Staged {
    /// What is about to be restored.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Puts the staged tree in the disk's place and keeps the replaced one as an `auto-…` entry. The sprite's processes
    /// must have ended. An error means that nothing was changed. [`Catalog::tidy`] should follow in the background.
    pub fn swap(mut self) -> Result<Restored, Error> {
        let catalog = &self.catalog;
        let mut state = catalog.state();
        let manifest = self.checkpoint.manifest.clone();
        let kept = Manifest {
            format: FORMAT,
            id: format!("auto-{}", state.next_auto),
            create_time: state.stamp(),
            source_id: state.current.clone(),
            history: state.lineage(),
            is_auto: true,
            ..Manifest::default()
        };
        state.next_auto += 1;
        if manifest.is_auto {
            // The kept tree had grown from its source, and has again.
            state.current.clone_from(&manifest.source_id);
            state.history.clone_from(&manifest.history);
            state.history.pop();
        } else {
            state.current = Some(manifest.id.clone());
            state.history.clone_from(&manifest.history);
        }
        let from = if manifest.is_auto { catalog.undo() } else { catalog.staging() };
        let inode = |path: &Path| fs::metadata(path).map(|metadata| metadata.ino()).map_err(host("stat a tree"));
        let (new, old) = (inode(&from)?, inode(&catalog.disk)?);
        let unsynced = (!manifest.is_auto).then(boot);
        let id = manifest.id.clone();
        let mut intent = Intent { new, old, undo: manifest.is_auto, kept, state, id, unsynced, entered: false };
        catalog.write_intent(&intent).map_err(host("write the intent"))?;
        point("restore: intent written");
        if let Err(error) = exchange(&from, &catalog.disk, &catalog.aside()) {
            // Without a disk (two renames failed in a row) the intent stays: it says which tree to put there.
            if catalog.disk.exists() {
                let _ = durable::remove_file(&catalog.intent());
            }
            return Err(host("exchange the trees")(error));
        }
        self.swapped = true;
        point("restore: exchanged");
        if let Err(error) = catalog.enter(&mut intent) {
            tracing::warn!(%error, "a restore took place but is not entered yet; the next change or start does");
        }
        Ok(Restored { manifest, kept_as: intent.kept.id })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.swapped
            && !self.checkpoint.manifest.is_auto
            && let Err(error) = remove_tree(&self.catalog.staging())
        {
            tracing::warn!(%error, "a staging folder could not be removed; the next start does");
        }
    }
}

impl Catalog {
    /// Where a tree is extracted.
    pub(super) fn staging(&self) -> PathBuf {
        suffixed(&self.disk, ".staging")
    }

    /// Where the tree lies that the last restore replaced.
    pub(super) fn undo(&self) -> PathBuf {
        suffixed(&self.disk, ".undo")
    }

    /// Where the disk waits for a moment if the file system cannot exchange two names.
    pub(super) fn aside(&self) -> PathBuf {
        suffixed(&self.disk, ".replaced")
    }

    pub(super) fn intent(&self) -> PathBuf {
        self.dir.join(INTENT)
    }

    pub(super) fn write_intent(&self, intent: &Intent) -> io::Result<()> {
        write_atomic(&self.intent(), &serde_json::to_vec_pretty(intent)?)
    }

    /// Takes the kept tree out of the catalogue and into the trash.
    pub(super) fn discard_undo(&self, id: &str) -> io::Result<()> {
        durable::remove_file(&self.manifest(id))?;
        point("delete: kept tree unlisted");
        match fs::rename(self.undo(), self.trash(&format!("{id}-deleted"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Lets the trees `new` and `disk` change names: in one step, or where the file system cannot do that in two with the
/// old tree at `aside`.
fn exchange(new: &Path, disk: &Path, aside: &Path) -> io::Result<()> {
    if forced("restore: no exchange") {
        return in_two_steps(new, disk, aside);
    }
    match rustix::fs::renameat_with(CWD, new, CWD, disk, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::XDEV) => in_two_steps(new, disk, aside),
        other => Ok(other?),
    }
}

fn in_two_steps(new: &Path, disk: &Path, aside: &Path) -> io::Result<()> {
    fs::rename(disk, aside)?;
    point("restore: disk put aside");
    fs::rename(new, disk).inspect_err(|_| {
        let _ = fs::rename(aside, disk);
    })
}
