//! The checkpoints of one sprite on disk: `vN.tar.zst` with `vN.json` beside it, and `state.json`.
//!
//! A checkpoint exists when its manifest does: the archive is named first, the manifest last, and on deletion the other
//! way round. So a half one is never listed, wherever the process dies; [`Catalog::recover`] removes what such a death
//! left. Reading takes no lock; create, delete and restore take one and so never meet.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use super::durable::{self, is_leftover, partial, suffixed};
use super::failpoint::point;
use super::manifest::{Checkpoint, FORMAT, Health, Manifest, State, canonical_id, number};
use super::walk::remove_tree;
use super::{Error, Options, Progress, check_free, host, writer};
use crate::store::files::write_atomic;

/// Follows the number in an archive's name.
const ARCHIVE: &str = ".tar.zst";
/// Follows the id in a manifest's name.
const MANIFEST: &str = ".json";
const STATE: &str = "state.json";
const LOCK: &str = "lock";
/// Follows the disk's name where an old tree waits for its removal.
pub(super) const TRASH: &str = ".trash-";

/// What a sprite may keep.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Checkpoints that clients made.
    pub count: usize,
    /// Bytes of all archives.
    pub bytes: u64,
    /// Bytes that stay free on the host's disk.
    pub min_free: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { count: 32, bytes: u64::MAX, min_free: 0 }
    }
}

/// What a client and the runner say about a new checkpoint.
#[derive(Debug, Clone, Default)]
pub struct NewCheckpoint {
    /// Kept byte for byte.
    pub comment: String,
    /// Goes into the manifest untouched.
    pub services: Value,
    /// Likewise.
    pub base_id: Option<String>,
}

/// What [`Catalog::recover`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// A restore that had swapped the trees was brought to its end.
    pub finished_restore: bool,
    /// A restore that had not was undone.
    pub undone_restore: bool,
    /// A restored tree may have been lost in a power failure, and was made again from its archive.
    pub redone_restore: bool,
    /// Leftovers that were removed.
    pub removed: usize,
}

/// The catalogue of one sprite. Cheap to clone; every call goes to the disk.
#[derive(Debug, Clone)]
pub struct Catalog {
    pub(super) dir: PathBuf,
    pub(super) disk: PathBuf,
    pub(super) limits: Limits,
}

/// Held while a catalogue changes.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "an flock lives as long as its descriptor")] File);

impl Catalog {
    /// The catalogue in the folder `dir` (made when the first checkpoint is) of the tree `disk`. Both must lie on one
    /// file system, and the folder of `disk` must allow siblings of it: `disk.staging`, `disk.undo` and such.
    pub fn new(dir: impl Into<PathBuf>, disk: impl Into<PathBuf>, limits: Limits) -> Self {
        Self { dir: dir.into(), disk: disk.into(), limits }
    }

    /// All checkpoints, newest first; automatic ones only if asked for. `Current` is the caller's.
    pub fn list(&self, include_auto: bool) -> Result<Vec<Checkpoint>, Error> {
        let mut found: Vec<_> = self.ids()?.iter().filter_map(|id| self.load(id)).collect();
        found.retain(|checkpoint| include_auto || !checkpoint.manifest.is_auto);
        found.sort_by(|a, b| {
            let key = |c: &Checkpoint| (c.manifest.create_time.clone(), number(&c.manifest.id));
            key(b).cmp(&key(a))
        });
        Ok(found)
    }

    /// One checkpoint by any form of its id.
    pub fn get(&self, id: &str) -> Result<Checkpoint, Error> {
        canonical_id(id).and_then(|id| self.load(&id)).ok_or(Error::NotFound)
    }

    /// The checkpoint last created or restored, from which the disk has grown since.
    pub fn source_id(&self) -> Option<String> {
        self.state().current
    }

    /// Bytes of all archives.
    pub fn archive_bytes(&self) -> Result<u64, Error> {
        let sizes = self.ids()?.into_iter().filter_map(|id| fs::metadata(self.archive(&id)).ok());
        Ok(sizes.map(|metadata| metadata.len()).sum())
    }

    /// Archives the disk. The sprite's processes should stand still meanwhile; the checkpoint is listed when this
    /// returns, and nothing is left of it if it fails.
    pub fn create<'a>(&self, new: NewCheckpoint, progress: &'a mut Progress<'a>) -> Result<Checkpoint, Error> {
        let _lock = self.lock()?;
        self.settle()?;
        let listed = self.list(false)?.len();
        if listed >= self.limits.count {
            return Err(Error::TooMany(self.limits.count));
        }
        let left = self.limits.bytes.saturating_sub(self.archive_bytes()?);
        let mut state = self.state();
        let id = format!("v{}", state.next);
        let archive = self.archive(&id);
        let aside = partial(&archive);
        let summary = self.write_archive(&aside, left, progress).inspect_err(|_| {
            let _ = durable::remove_file(&aside);
        })?;
        point("create: archive written");
        let manifest = Manifest {
            format: FORMAT,
            id: id.clone(),
            comment: new.comment,
            create_time: state.stamp(),
            source_id: state.current.clone(),
            history: state.lineage(),
            is_auto: false,
            file_count: summary.files,
            data_bytes: summary.data_bytes,
            archive_bytes: summary.archive_bytes,
            sha256: summary.sha256,
            sockets_skipped: summary.sockets,
            files_vanished: summary.vanished,
            files_changed: summary.changed,
            mounts_skipped: summary.mounts,
            services: new.services,
            base_id: new.base_id,
        };
        let named = fs::rename(&aside, &archive).and_then(|()| {
            point("create: archive named");
            self.write_manifest(&manifest)
        });
        if let Err(error) = named {
            for path in [self.manifest(&id), archive, aside] {
                let _ = durable::remove_file(&path);
            }
            return Err(host("name the checkpoint")(error));
        }
        point("create: manifest written");
        // The manifest is the checkpoint. If the state cannot follow it now, it is caught up from the manifest.
        state.catch_up(&manifest);
        if let Err(error) = self.write_state(&state) {
            tracing::warn!(%error, "the state of checkpoints could not be written; the next change does");
        }
        Ok(Checkpoint { manifest, health: Health::Good })
    }

    fn write_archive<'a>(
        &self,
        aside: &Path,
        max_bytes: u64,
        progress: &'a mut Progress<'a>,
    ) -> Result<writer::Summary, Error> {
        let file = File::create(aside).map_err(host("make the archive"))?;
        check_free(&file, self.limits.min_free)?;
        let options = Options { max_bytes, min_free: self.limits.min_free, ..Options::default() };
        point("create: begun");
        writer::write(&self.disk, &file, options, progress).map_err(|error| match error {
            Error::TooLarge(_) => Error::TooLarge(self.limits.bytes),
            other => other,
        })
    }

    /// Deletes a checkpoint; its number is never given again.
    pub fn delete(&self, id: &str) -> Result<(), Error> {
        let id = canonical_id(id).ok_or(Error::NotFound)?;
        let _lock = self.lock()?;
        self.settle()?;
        let checkpoint = self.load(&id).ok_or(Error::NotFound)?;
        let state = self.state();
        if state.current.as_deref() == Some(&id) {
            return Err(Error::Active);
        }
        // Before the manifest goes, so that the number stays taken.
        self.write_state(&state).map_err(host("write the state of checkpoints"))?;
        point("delete: state written");
        if checkpoint.manifest.is_auto {
            self.discard_undo(&id).map_err(host("delete the kept tree"))?;
            self.empty_trash();
            return Ok(());
        }
        let manifest = self.manifest(&id);
        let gone = durable::remove_file(&manifest).and_then(|()| durable::sync_parent(&manifest));
        gone.map_err(host("delete the checkpoint"))?;
        point("delete: manifest removed");
        durable::remove_file(&self.archive(&id)).map_err(host("delete the archive"))
    }

    /// Brings the sprite's folder to order after a crash, before anything else uses it: ends or undoes a restore and
    /// removes what half-done work left.
    pub fn recover(&self) -> Result<Recovered, Error> {
        let mut done = Recovered::default();
        if self.dir.exists() {
            let _lock = self.lock()?;
            self.settle_restore(&mut done)?;
            let state = self.state();
            if self.stored_state() != Some(state.clone()) && !self.ids()?.is_empty() {
                self.write_state(&state).map_err(host("write the state of checkpoints"))?;
            }
            for name in names(&self.dir).map_err(host("list checkpoints"))? {
                let orphan = name.strip_suffix(ARCHIVE).is_some_and(|id| !self.manifest(id).exists());
                if is_leftover(&name) || orphan {
                    durable::remove_file(&self.dir.join(&name)).map_err(host("remove a leftover"))?;
                    done.removed += 1;
                }
            }
        }
        let staging = self.staging();
        if staging.symlink_metadata().is_ok() {
            remove_tree(&staging).map_err(host("remove a leftover"))?;
            done.removed += 1;
        }
        if self.undo().is_dir() && !self.ids()?.iter().any(|id| id.starts_with("auto-")) {
            self.discard_undo("unlisted").map_err(host("remove a leftover"))?;
        }
        done.removed += self.empty_trash();
        Ok(done)
    }

    // ---- the files -------------------------------------------------------------------------------------------------

    pub(super) fn archive(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}{ARCHIVE}"))
    }

    pub(super) fn manifest(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}{MANIFEST}"))
    }

    pub(super) fn trash(&self, id: &str) -> PathBuf {
        suffixed(&self.disk, &format!("{TRASH}{id}"))
    }

    /// Makes the folder if need be and waits for whoever else changes it. Never the sprite's own folder: that may just
    /// have been deleted, and its name is free.
    pub(super) fn lock(&self) -> Result<Lock, Error> {
        match fs::create_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(host("make the folder of checkpoints"))?,
        }
        let file = File::options().create(true).truncate(false).write(true).open(self.dir.join(LOCK));
        let file = file.map_err(host("open the lock"))?;
        file.lock().map_err(host("lock"))?;
        Ok(Lock(file))
    }

    /// Every id that has a manifest, readable or not.
    pub(super) fn ids(&self) -> Result<Vec<String>, Error> {
        let names = match names(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names.map_err(host("list checkpoints"))?,
        };
        let ids = names.iter().filter_map(|name| name.strip_suffix(MANIFEST));
        Ok(ids.filter(|id| canonical_id(id).as_deref() == Some(id)).map(str::to_owned).collect())
    }

    /// What is known of the checkpoint with this canonical id, if it has a manifest.
    pub(super) fn load(&self, id: &str) -> Option<Checkpoint> {
        let path = self.manifest(id);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            other => other.unwrap_or_default(),
        };
        let Some(manifest) = serde_json::from_slice::<Manifest>(&bytes).ok().filter(|manifest| manifest.id == id)
        else {
            return Some(Checkpoint { manifest: unreadable(id, &path), health: Health::Failed });
        };
        let whole = match manifest.is_auto {
            true => self.undo().is_dir(),
            false => fs::metadata(self.archive(id)).is_ok_and(|metadata| metadata.len() == manifest.archive_bytes),
        };
        let health = if whole && manifest.format <= FORMAT { Health::Good } else { Health::Failed };
        Some(Checkpoint { manifest, health })
    }

    pub(super) fn write_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        write_atomic(&self.manifest(&manifest.id), &serde_json::to_vec_pretty(manifest)?)
    }

    fn stored_state(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.dir.join(STATE)).ok()?).ok()
    }

    /// The state, caught up with manifests that were written after it.
    pub(super) fn state(&self) -> State {
        let mut state = self.stored_state().unwrap_or_default();
        let mut ids = self.ids().unwrap_or_default();
        ids.sort_by_key(|id| number(id));
        for id in &ids {
            match self.load(id) {
                Some(checkpoint) if checkpoint.manifest.is_auto => {
                    state.next_auto = state.next_auto.max(number(id).unwrap_or(0).saturating_add(1));
                }
                Some(checkpoint) => state.catch_up(&checkpoint.manifest),
                None => {}
            }
        }
        state
    }

    pub(super) fn write_state(&self, state: &State) -> io::Result<()> {
        write_atomic(&self.dir.join(STATE), &serde_json::to_vec_pretty(state)?)
    }
}

/// What can be said of a checkpoint whose manifest cannot be read.
fn unreadable(id: &str, path: &Path) -> Manifest {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    let time = modified.ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or_default();
    Manifest {
        format: FORMAT,
        id: id.to_owned(),
        create_time: format!("{time:.6}"),
        is_auto: id.starts_with("auto-"),
        ..Manifest::default()
    }
}

/// The names in a folder that are text; ours all are.
pub(super) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?;
    entries.filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()).collect()
}
