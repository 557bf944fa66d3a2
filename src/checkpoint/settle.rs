//! What follows the exchange of two trees, at once or after a crash: entering the restore into the catalogue, getting the
//! new tree to disk, removing what nobody can reach any more. Every step can be interrupted and done again.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use super::catalog::{Recovered, TRASH, names};
use super::durable;
use super::failpoint::point;
use super::swap::Intent;
use super::walk::remove_tree;
use super::{Catalog, Error, host};

impl Catalog {
    /// Does in the background what nobody should wait for after a restore or a deletion: gets the restored tree to disk
    /// and removes old ones. What fails here is done by the next change or [`Catalog::recover`].
    pub fn tidy(&self) {
        if self.intent().exists()
            && let Err(error) = self.lock().and_then(|_lock| self.settle())
        {
            tracing::warn!(detail = error.detail(), "a restored tree could not be synced yet");
        }
        self.empty_trash();
    }

    /// Removes trees that nobody can reach any more, and says how many.
    pub(super) fn empty_trash(&self) -> usize {
        let mut removed = 0;
        let (Some(parent), Some(disk)) = (self.disk.parent(), self.disk.file_name().and_then(|name| name.to_str()))
        else {
            return 0;
        };
        for name in names(parent).unwrap_or_default() {
            if name.strip_prefix(disk).is_some_and(|rest| rest.starts_with(TRASH)) {
                match remove_tree(&parent.join(&name)) {
                    Ok(()) => removed += 1,
                    Err(error) => tracing::warn!(%error, "an old tree could not be removed"),
                }
            }
        }
        removed
    }

    /// Ends a restore that an earlier call could not end, before the catalogue changes again.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.settle_restore(&mut Recovered::default())
    }

    /// Ends or undoes an interrupted restore.
    pub(super) fn settle_restore(&self, done: &mut Recovered) -> Result<(), Error> {
        let bytes = match fs::read(self.intent()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            bytes => bytes.map_err(host("read the intent"))?,
        };
        // It was synced before its name appeared, so a failure here is a bad disk. The trees are whole; keep all of them.
        let mut intent: Intent =
            serde_json::from_slice(&bytes).map_err(|error| host("read the intent")(error.into()))?;
        let new = if intent.undo { self.undo() } else { self.staging() };
        if !self.disk.exists() {
            // Between two renames. Go on if the new tree is there, else go back.
            let next = if new.exists() { &new } else { &self.aside() };
            fs::rename(next, &self.disk).map_err(host("put a tree in place"))?;
        }
        let now = fs::metadata(&self.disk).map_err(host("stat the disk"))?.ino();
        if now != intent.new {
            self.forget_intent().map_err(host("forget a restore"))?;
            done.undone_restore = true;
            return Ok(());
        }
        if !intent.entered {
            self.enter(&mut intent).map_err(host("finish a restore"))?;
            done.finished_restore = true;
        }
        match &intent.unsynced {
            None => return Ok(()),
            Some(written) if *written == boot() => {
                let disk = File::open(&self.disk).map_err(host("open the disk"))?;
                rustix::fs::syncfs(&disk).map_err(|errno| Error::system("sync the disk", b"", errno))?;
            }
            Some(_) => {
                done.redone_restore = true;
                if let Err(error) = self.redo(&intent) {
                    let detail = error.detail();
                    tracing::error!(
                        detail,
                        "the host went down during a restore, and it cannot be done again; look at the disk"
                    );
                }
            }
        }
        self.forget_intent().map_err(host("forget a restore"))
    }

    /// Enters a restore whose trees have changed places. The intent stays if the new tree is not synced yet.
    pub(super) fn enter(&self, intent: &mut Intent) -> io::Result<()> {
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
        if intent.unsynced.is_none() {
            return self.forget_intent();
        }
        intent.entered = true;
        self.write_intent(intent)?;
        point("restore: entered");
        Ok(())
    }

    /// Makes a restored tree again that may not have reached the disk before the host went down.
    fn redo(&self, intent: &Intent) -> Result<(), Error> {
        let manifest = self.load(&intent.id).ok_or(Error::NotFound)?.manifest;
        self.extract(&manifest, &mut |_, _| ControlFlow::Continue(()))?;
        let staging = File::open(self.staging()).map_err(host("open the staging folder"))?;
        rustix::fs::syncfs(&staging).map_err(|errno| Error::system("sync the staging folder", b"", errno))?;
        point("redo: staged");
        let moved = fs::rename(&self.disk, self.trash(&format!("{}-unsynced", intent.kept.id)));
        moved.map_err(host("put a tree away"))?;
        point("redo: disk put away");
        fs::rename(self.staging(), &self.disk).map_err(host("put a tree in place"))?;
        point("redo: disk in place");
        durable::sync_parent(&self.disk).map_err(host("sync the sprite's folder"))
    }

    fn forget_intent(&self) -> io::Result<()> {
        durable::remove_file(&self.intent())?;
        durable::sync_parent(&self.intent())
    }
}

/// Names the time since the host started: what was written during it can still be read, synced or not.
pub(super) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}
