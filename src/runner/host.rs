//! What the whole runner shares: its settings, its folders, and the table of sprites.
//!
//! Nothing here that could not be read again from disk. Two runners with different state folders never meet: every
//! name outside the state folder carries a hash of it.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::settings::Settings;
use crate::checkpoint::{self, Catalog};
use crate::sandbox::Plan;
use crate::sprite::{Sprite, leftovers};
use crate::store::files;
use crate::store::sprites::{AgentRecord, Record};
use crate::store::tokens::Tokens;
use crate::sys::proc;
use crate::wire::error::ApiError;

/// The largest floor under free disk space that is taken by default.
const LARGEST_FLOOR: u64 = 2 << 30;

/// Sprites by org and name, so that one org's are neighbours in the order of their names.
type Table = BTreeMap<(String, String), Arc<Sprite>>;

/// The runner's shared state.
#[derive(Debug)]
pub struct Host {
    /// The settings.
    pub settings: Settings,
    /// What sprites are here.
    pub plan: Plan,
    /// Who gets in.
    pub tokens: Tokens,
    /// Where sockets are: `<runtime>/<hash of the state folder>`.
    pub runtime: PathBuf,
    /// The port that sprite URLs name; known once the listener is bound.
    pub port: std::sync::OnceLock<u16>,
    /// Set once everything is being stopped: nothing wakes any more.
    closed: AtomicBool,
    sprites: RwLock<Table>,
    changes: watch::Sender<u64>,
}

/// A short name for a path or an id, for places where names must be short.
pub fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// The folder for sockets of this state folder. Never inside it: a socket path has at most 107 bytes.
pub fn runtime_dir(state: &Path) -> io::Result<PathBuf> {
    let user = nix::unistd::geteuid();
    let base = if user.is_root() && Path::new("/run").is_dir() {
        PathBuf::from("/run/fountain")
    } else if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_dir()) {
        dir.join("fountain")
    } else {
        PathBuf::from(format!("/tmp/fountain-{user}"))
    };
    files::create_private_dir(&base)?;
    let meta = std::fs::symlink_metadata(&base)?;
    if !meta.is_dir() || meta.uid() != user.as_raw() || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{} belongs to somebody else; remove it", base.display())));
    }
    Ok(base.join(short_hash(state.as_os_str().as_bytes())))
}

impl Host {
    /// Puts the parts together. The sprites come with `load`.
    pub fn new(settings: Settings, plan: Plan, tokens: Tokens, runtime: PathBuf) -> Self {
        Self {
            settings,
            plan,
            tokens,
            runtime,
            port: std::sync::OnceLock::new(),
            closed: AtomicBool::new(false),
            sprites: RwLock::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Cleans what a kill left, and takes every sprite over.
    pub fn load(self: &Arc<Self>) -> io::Result<()> {
        files::create_private_dir(&self.settings.state.join("sprites"))?;
        files::create_private_dir(&self.trash_dir())?;
        for entry in std::fs::read_dir(self.trash_dir())?.flatten() {
            self.empty_trash(&entry.path());
        }
        let mut table = Table::new();
        for org in std::fs::read_dir(self.settings.state.join("sprites"))?.flatten() {
            for entry in std::fs::read_dir(org.path())?.flatten() {
                let dir = entry.path();
                match Record::read(&dir) {
                    Ok(record) => {
                        if let Err(error) = self.catalog(&dir).recover() {
                            tracing::error!(%error, detail = error.detail(), "a sprite's checkpoints need attention");
                        }
                        let key = (record.org.clone(), record.name.clone());
                        table.insert(key, Sprite::adopt(self.clone(), dir, record));
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        tracing::info!("half a sprite, left by a create that was killed, is removed");
                        files::remove_tree(&dir)?;
                    }
                    Err(error) => {
                        tracing::error!(%error, dir = %dir.display(), "a sprite's record cannot be read; it is left alone")
                    }
                }
            }
        }
        *self.write() = table;
        Ok(())
    }

    /// Finishes a delete that was interrupted.
    fn empty_trash(&self, dir: &Path) {
        if let Some(agent) = AgentRecord::read(dir) {
            proc::kill_all(std::time::Duration::from_secs(5), || {
                Some(agent.pid).filter(|pid| proc::is_alive(*pid, agent.start)).into_iter().collect()
            });
        }
        if let Ok(record) = Record::read(dir) {
            let group = AgentRecord::read(dir).and_then(|agent| agent.cgroup);
            leftovers::kill(&self.marker(&record.id), &dir.join("sessions"), group.as_deref());
            let _ = std::fs::remove_dir_all(self.runtime_of(&record.id));
        }
        if let Err(error) = files::remove_tree(dir) {
            tracing::error!(%error, dir = %dir.display(), "a deleted sprite could not be removed");
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.sprites.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.sprites.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A sprite of an org.
    pub fn find(&self, org: &str, name: &str) -> Result<Arc<Sprite>, ApiError> {
        let found = self.read().get(&(org.to_owned(), name.to_owned())).cloned();
        found.ok_or_else(|| ApiError::not_found("sprite_not_found", "sprite not found"))
    }

    /// Adds a sprite that has just been created.
    pub fn insert(&self, sprite: Arc<Sprite>) {
        let record = sprite.record();
        self.write().insert((record.org, record.name), sprite);
        self.changed();
    }

    /// Takes a sprite out: it is 404 from now on. `None` when somebody else did.
    pub fn remove(&self, org: &str, name: &str) -> Option<Arc<Sprite>> {
        self.write().remove(&(org.to_owned(), name.to_owned()))
    }

    /// The sprites of an org whose names begin with `prefix` and come behind `after`, in order.
    pub fn list(&self, org: &str, prefix: &str, after: Option<&str>) -> Vec<Arc<Sprite>> {
        let table = self.read();
        table
            .range((org.to_owned(), after.unwrap_or_default().max(prefix).to_owned())..)
            .take_while(|((owner, name), _)| owner == org && name.starts_with(prefix))
            .filter(|((_, name), _)| after.is_none_or(|after| name.as_str() > after))
            .map(|(_, sprite)| sprite.clone())
            .collect()
    }

    /// Every sprite of every org.
    pub fn all(&self) -> Vec<Arc<Sprite>> {
        self.read().values().cloned().collect()
    }

    /// Refuses to wake any sprite from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether everything is being stopped.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Something that lists show has changed.
    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Follows changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Where an org's sprites are.
    pub fn org_dir(&self, org: &str) -> PathBuf {
        self.settings.state.join("sprites").join(org)
    }

    fn trash_dir(&self) -> PathBuf {
        self.settings.state.join("trash")
    }

    /// Where a deleted sprite's folder goes until it is removed.
    pub fn trash(&self, id: &str) -> PathBuf {
        self.trash_dir().join(id)
    }

    /// Where a sprite's sockets are. By id, so that a re-created name never meets its dead twin.
    pub fn runtime_of(&self, id: &str) -> PathBuf {
        self.runtime.join(short_hash(id.as_bytes()))
    }

    /// The environment entry by which a sprite's processes are found.
    pub fn marker(&self, id: &str) -> String {
        format!("FOUNTAIN_RUNNER_SPRITE={id}")
    }

    /// The checkpoints of the sprite in this folder.
    pub fn catalog(&self, dir: &Path) -> Catalog {
        let limits = checkpoint::Limits {
            count: self.settings.checkpoints_max,
            bytes: self.settings.checkpoint_bytes_max.unwrap_or(u64::MAX),
            min_free: self.disk_floor(),
        };
        Catalog::new(dir.join("checkpoints"), dir.join("disk"), limits)
    }

    /// The name of a sprite's control group.
    pub fn group(&self, id: &str) -> String {
        format!("fountain-{}-{}", short_hash(self.settings.state.as_os_str().as_bytes()), short_hash(id.as_bytes()))
    }

    /// Free bytes that must stay on the state folder's disk.
    pub fn disk_floor(&self) -> u64 {
        self.settings.disk_floor.unwrap_or_else(|| {
            let total = rustix::fs::statvfs(&self.settings.state).map_or(0, |disk| disk.f_blocks * disk.f_frsize);
            (total / 20).min(LARGEST_FLOOR)
        })
    }

    /// Refuses what would fill the disk.
    pub fn check_disk(&self) -> Result<(), ApiError> {
        let free = rustix::fs::statvfs(&self.settings.state).map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
        if free >= self.disk_floor() {
            return Ok(());
        }
        Err(ApiError::new(
            http::StatusCode::INSUFFICIENT_STORAGE,
            "disk_low",
            "the host's disk is nearly full; free some space or lower the setting disk_floor",
        ))
    }
}
