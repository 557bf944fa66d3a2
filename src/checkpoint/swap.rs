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

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::catalog::{Lock, Recovered};
use super::durable::{self, suffixed};
use super::failpoint::{forced, point};
use super::manifest::{FORMAT, Health, Manifest, State, canonical_id};
use super::walk::remove_tree;
use super::{Catalog, Checkpoint, Error, Expected, Progress, check_free, host, reader};
use crate::store::files::write_atomic;

const INTENT: &str = "restore.json";

/// What a restore is about to do, with everything that is needed to go on after a crash.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Intent {
    /// Inode of the tree that is to become the disk.
    new: u64,
    /// Inode of the tree that is the disk.
    old: u64,
    /// Whether the new tree is the kept one, and so lies at `.undo` instead of `.staging`.
    undo: bool,
    /// The entry for the tree that is replaced.
    kept: Manifest,
    /// The catalogue's state after it.
    state: State,
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
            let archive = fs::File::open(self.archive(&id)).map_err(reader::damaged)?;
            check_free(&archive, self.limits.min_free.saturating_add(manifest.data_bytes))?;
            let staging = self.staging();
            remove_tree(&staging).map_err(host("remove an old staging folder"))?;
            let expected = Expected {
                archive_bytes: manifest.archive_bytes,
                sha256: &manifest.sha256,
                data_bytes: manifest.data_bytes,
            };
            point("restore: before staging");
            reader::extract(&archive, expected, &staging, self.limits.min_free, progress)?;
        }
        point("restore: staged");
        Ok(Staged { catalog: self.clone(), _lock: lock, checkpoint, swapped: false })
    }
}

impl Staged {
    /// What is about to be restored.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Puts the staged tree in the disk's place and keeps the replaced one as an `auto-…` entry. The sprite's processes
    /// must have ended. An error means that nothing was changed. What the tree before that one took may be removed by
    /// [`Catalog::empty_trash`] afterwards.
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
        let intent = Intent { new, old, undo: manifest.is_auto, kept, state };
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
        if let Err(error) = catalog.finish(&intent) {
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
    fn aside(&self) -> PathBuf {
        suffixed(&self.disk, ".replaced")
    }

    fn intent(&self) -> PathBuf {
        self.dir.join(INTENT)
    }

    fn write_intent(&self, intent: &Intent) -> io::Result<()> {
        write_atomic(&self.intent(), &serde_json::to_vec_pretty(intent)?)
    }

    /// Ends a restore that an earlier call could not end, before the catalogue changes again.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.settle_restore(&mut Recovered::default())
    }

    /// Ends or undoes an interrupted restore. Every step can itself be interrupted and done again.
    pub(super) fn settle_restore(&self, done: &mut Recovered) -> Result<(), Error> {
        let bytes = match fs::read(self.intent()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            bytes => bytes.map_err(host("read the intent"))?,
        };
        let intent: Intent = match serde_json::from_slice(&bytes) {
            Ok(intent) => intent,
            // It was synced before its name appeared, so this is a bad disk. The trees are whole; keep all of them.
            Err(error) => return Err(host("read the intent")(error.into())),
        };
        let new = if intent.undo { self.undo() } else { self.staging() };
        if !self.disk.exists() {
            // Between two renames. Go on if the new tree is there, else go back.
            let next = if new.exists() { &new } else { &self.aside() };
            fs::rename(next, &self.disk).map_err(host("put a tree in place"))?;
        }
        let now = fs::metadata(&self.disk).map_err(host("stat the disk"))?.ino();
        if now == intent.new {
            self.finish(&intent).map_err(host("finish a restore"))?;
            done.finished_restore = true;
        } else {
            durable::remove_file(&self.intent()).map_err(host("forget a restore"))?;
            done.undone_restore = true;
        }
        Ok(())
    }

    /// Enters a restore whose trees have changed places.
    fn finish(&self, intent: &Intent) -> io::Result<()> {
        durable::sync_parent(&self.disk)?;
        let (aside, staging, undo) = (self.aside(), self.staging(), self.undo());
        let replaced = match intent.undo {
            _ if aside.exists() => Some(aside),
            false if staging.exists() => Some(staging),
            _ => None,
        };
        if let Some(replaced) = replaced {
            if undo.exists() {
                fs::rename(&undo, self.trash(&intent.kept.id))?;
                point("restore: older tree put away");
            }
            fs::rename(replaced, &undo)?;
            durable::sync_parent(&self.disk)?;
        }
        point("restore: old tree kept");
        self.write_manifest(&intent.kept)?;
        point("restore: kept tree listed");
        let ids = self.ids().map_err(|error| io::Error::other(error.to_string()))?;
        for id in ids.iter().filter(|id| id.starts_with("auto-") && **id != intent.kept.id) {
            durable::remove_file(&self.manifest(id))?;
        }
        self.write_state(&intent.state)?;
        point("restore: state written");
        durable::remove_file(&self.intent())?;
        durable::sync_parent(&self.intent())
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
