//! File operations as plain blocking functions over the API's paths and one view of the host ([`Paths`]).
//!
//! No HTTP and no runtime in here, so that a sandboxed sprite can run the same functions in a process inside itself.
//! What a function is given is resolved and free of NUL; what it refuses comes back as a [`Failure`]. Nothing in here
//! may wait for another process: FIFOs, sockets and devices are never opened.

mod copy;
pub mod failure;
mod glob;
mod list;
mod owner;
mod read;
pub mod space;
pub mod staged;
mod walk;

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

pub use copy::{Copied, How, copy};
use failure::At;
pub use failure::Failure;
pub use list::{Entry, Filter, Listing, list, mode_text, timestamp};
pub use owner::{Names, Owner};
pub use read::{CHUNK, Opened, open};
use walk::{Step, Walk};

use crate::sandbox::paths::Paths;

/// How many of the changed files an answer names; nobody reads them, and a tree may hold millions.
const MAX_TOLD: usize = 1000;

/// Removes a file, a link, or a directory; a non-empty one only with `recursive`.
pub fn delete(paths: &Paths, api: &Path, recursive: bool) -> Result<(), Failure> {
    const VERB: &str = "remove";
    let host = paths.to_host(api);
    let meta = std::fs::symlink_metadata(&host).at(VERB, api)?;
    if !paths.may_remove(&host) {
        return Err(Failure::outside(VERB, api));
    }
    if meta.is_dir() && !recursive {
        return std::fs::remove_dir(&host).at(VERB, api);
    }
    remove(&host).at(VERB, api)
}

/// Renames `source` to `dest`, over a file that is there; also between file systems.
pub fn rename(paths: &Paths, source: &Path, dest: &Path, floor: u64) -> Result<(), Failure> {
    const VERB: &str = "rename";
    let (from, to) = (paths.to_host(source), paths.to_host(dest));
    std::fs::symlink_metadata(&from).at(VERB, source)?;
    for (api, host) in [(source, &from), (dest, &to)] {
        if !paths.may_remove(host) {
            return Err(Failure::outside(VERB, api));
        }
    }
    match rustix::fs::rename(&from, &to) {
        Err(Errno::XDEV) => copy::move_across(paths, &from, &to, floor),
        Err(Errno::INVAL) => Err(Failure::invalid(VERB, dest, "a directory cannot be moved into itself")),
        // The source was there a moment ago, so the rest is about the destination.
        result => result.at(VERB, dest),
    }
}

/// One file whose mode was set.
#[derive(Debug, Serialize)]
pub struct ModeSet {
    path: String,
    mode: String,
}

/// One file whose owner was set.
#[derive(Debug, Serialize)]
pub struct OwnerSet {
    path: String,
    uid: u32,
    gid: u32,
}

/// Files that were changed: the first thousand by name, and how many in all.
#[derive(Debug, Serialize)]
pub struct Affected<T> {
    affected: Vec<T>,
    count: u64,
}

impl<T> Affected<T> {
    fn none() -> Self {
        Self { affected: Vec::new(), count: 0 }
    }

    fn add(&mut self, item: T) {
        self.count += 1;
        if self.affected.len() < MAX_TOLD {
            self.affected.push(item);
        }
    }
}

/// Sets permission bits, with `recursive` of everything below too. The link that was named is followed; links below
/// have no mode of their own.
pub fn chmod(paths: &Paths, api: &Path, mode: u32, recursive: bool) -> Result<Affected<ModeSet>, Failure> {
    const VERB: &str = "chmod";
    let host = paths.to_host(api);
    let meta = std::fs::metadata(&host).at(VERB, api)?;
    if !paths.may_write(&host) {
        return Err(Failure::outside(VERB, api));
    }
    let mut affected = Affected::none();
    let mut set = |host: &Path, mode: u32, tell: bool| {
        let api = paths.to_api(host);
        std::fs::set_permissions(host, Permissions::from_mode(mode)).at(VERB, &api)?;
        if tell {
            affected.add(ModeSet { path: api.to_string_lossy().into_owned(), mode: mode_text(mode) });
        }
        Ok(())
    };
    if !(meta.is_dir() && recursive) {
        set(&host, mode, true)?;
        return Ok(affected);
    }
    // A directory must stay open to us until everything below it is done.
    set(&host, mode | 0o700, false)?;
    for step in Walk::new(&host, true).at(VERB, api)? {
        match step {
            Step::Found(path, meta) if meta.is_dir() => set(&path, mode | 0o700, false)?,
            Step::Found(_, meta) if meta.is_symlink() => {}
            Step::Found(path, _) | Step::Left(path) => set(&path, mode, true)?,
            Step::Failed(path, error) => return Err(Failure::io(VERB, &paths.to_api(&path), &error)),
        }
    }
    set(&host, mode, true)?;
    Ok(affected)
}

/// Sets owner and group, with `recursive` of everything below too; what is absent stays. The link that was named is
/// followed; links below change themselves.
pub fn chown(
    paths: &Paths,
    api: &Path,
    uid: Option<u32>,
    gid: Option<u32>,
    recursive: bool,
) -> Result<Affected<OwnerSet>, Failure> {
    const VERB: &str = "chown";
    let host = paths.to_host(api);
    let meta = std::fs::metadata(&host).at(VERB, api)?;
    if !paths.may_write(&host) {
        return Err(Failure::outside(VERB, api));
    }
    let mut affected = Affected::none();
    let mut told = |host: &Path, meta: &Metadata| {
        let path = paths.to_api(host).to_string_lossy().into_owned();
        affected.add(OwnerSet { path, uid: uid.unwrap_or(meta.uid()), gid: gid.unwrap_or(meta.gid()) });
    };
    std::os::unix::fs::chown(&host, uid, gid).at(VERB, api)?;
    told(&host, &meta);
    if meta.is_dir() && recursive {
        for step in Walk::new(&host, true).at(VERB, api)? {
            match step {
                Step::Found(path, meta) => {
                    lchown(&path, uid, gid).at(VERB, &paths.to_api(&path))?;
                    told(&path, &meta);
                }
                Step::Left(_) => {}
                Step::Failed(path, error) => return Err(Failure::io(VERB, &paths.to_api(&path), &error)),
            }
        }
    }
    Ok(affected)
}

/// Removes a host path with everything below; a link alone.
fn remove(host: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(host)?;
    if meta.is_dir() { std::fs::remove_dir_all(host) } else { std::fs::remove_file(host) }
}

/// Opens a regular file for reading and refuses everything else before it is opened: a FIFO would wait for a writer,
/// and to open a device can do something.
fn open_regular(host: &Path, verb: &'static str, api: &Path) -> Result<(File, Metadata), Failure> {
    let check = |meta: &Metadata| {
        if meta.is_dir() {
            return Err(Failure::os(verb, api, Errno::ISDIR));
        }
        if !meta.is_file() {
            return Err(Failure::invalid(verb, api, "is not a regular file"));
        }
        Ok(())
    };
    check(&std::fs::metadata(host).at(verb, api)?)?;
    // Should it have become a FIFO since, the open returns at once and the second look refuses it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(host, flags, Mode::empty()).at(verb, api)?);
    let meta = file.metadata().at(verb, api)?;
    check(&meta)?;
    Ok((file, meta))
}
