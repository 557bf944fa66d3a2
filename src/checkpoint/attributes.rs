//! Extended attributes, owners, modes and times of one file: reading them into an entry, putting an entry's back.
//!
//! Everything goes through descriptors, or through a name in an open directory without following links.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use super::pax::Time;
use super::plan::{Entry, Kind, keeps_xattr};
use super::walk::proc_path;

/// Most files have no attribute at all and few have names beyond this; longer lists are read again with room enough.
const LIST_BUFFER: usize = 1024;

/// Where an attribute is read or written.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// An open file or directory.
    Fd(BorrowedFd<'a>),
    /// A name in a directory, for what cannot be opened: links, devices, FIFOs.
    Name(BorrowedFd<'a>, &'a CStr),
}

impl At<'_> {
    /// A path for the calls that know no directory descriptors.
    fn path(self) -> Option<Vec<u8>> {
        match self {
            At::Fd(_) => None,
            At::Name(dir, name) => Some([proc_path(dir).as_bytes(), b"/", name.to_bytes()].concat()),
        }
    }
}

/// An entry of `kind` with all attributes of the file that `stat` describes.
pub(super) fn describe(at: At<'_>, path: &[u8], kind: Kind, stat: &Stat) -> io::Result<Entry> {
    Ok(Entry {
        path: path.to_vec(),
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Time { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) },
        xattrs: xattrs(at)?,
    })
}

fn xattrs(at: At<'_>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = at.path();
    let mut names = [0; LIST_BUFFER];
    let long;
    let names: &[u8] = match list(at, path.as_deref(), &mut names) {
        // No attributes on this file system, or none on this kind of file.
        Err(Errno::NOTSUP | Errno::NOENT | Errno::PERM) => return Ok(Vec::new()),
        Err(Errno::RANGE) => {
            long = grow(|buffer| list(at, path.as_deref(), buffer))?;
            &long
        }
        length => &names[..length?],
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| keeps_xattr(name)) {
        let value = grow(|buffer| match (at, &path) {
            (At::Name(..), Some(path)) => rustix::fs::lgetxattr(path.as_slice(), name, buffer),
            (At::Fd(fd) | At::Name(fd, _), _) => rustix::fs::fgetxattr(fd, name, buffer),
        });
        match value {
            Ok(value) => found.push((name.to_vec(), value)),
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    found.sort();
    Ok(found)
}

fn list(at: At<'_>, path: Option<&[u8]>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    match (at, path) {
        (At::Name(..), Some(path)) => rustix::fs::llistxattr(path, buffer),
        (At::Fd(fd) | At::Name(fd, _), _) => rustix::fs::flistxattr(fd, buffer),
    }
}

/// Calls with more and more room until the answer fits. (Asking for the size first would race with a change.)
fn grow(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; LIST_BUFFER];
    loop {
        match call(&mut buffer) {
            Err(Errno::RANGE) if buffer.len() < 1 << 24 => buffer = vec![0; buffer.len() * 8],
            Err(errno) => return Err(errno),
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }
}

/// Who restores: decides whether owners can be given away.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restorer {
    privileged: bool,
    gid: u32,
}

impl Restorer {
    pub(super) fn current() -> Self {
        let privileged = rustix::process::geteuid().is_root();
        Self { privileged, gid: rustix::process::getegid().as_raw() }
    }

    /// Gives a restored file its owner, attributes, mode and times, in the order in which none undoes another: a change
    /// of owner clears set-id bits and capabilities, a closed mode forbids attributes, and times come last.
    pub(super) fn apply(self, at: At<'_>, entry: &Entry) -> io::Result<()> {
        self.chown(at, entry)?;
        let path = at.path();
        for (name, value) in &entry.xattrs {
            let result = match (at, &path) {
                (At::Name(..), Some(path)) => {
                    rustix::fs::lsetxattr(path.as_slice(), name.as_slice(), value, XattrFlags::empty())
                }
                (At::Fd(fd) | At::Name(fd, _), _) => {
                    rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty())
                }
            };
            match result {
                // What only root may set, only root can have set: without root there is nobody to give it back.
                Err(Errno::PERM) if !self.privileged && !name.starts_with(b"user.") => {}
                other => other?,
            }
        }
        let mode = Mode::from_raw_mode(entry.mode);
        match (at, &entry.kind) {
            (At::Fd(fd), _) => rustix::fs::fchmod(fd, mode)?,
            (At::Name(..), Kind::Symlink(_)) => {}
            // A device or FIFO: the name was made a moment ago in a tree that is ours alone.
            (At::Name(dir, name), _) => rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?,
        }
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
            last_modification: Timespec { tv_sec: entry.mtime.secs, tv_nsec: entry.mtime.nanos.into() },
        };
        match at {
            At::Fd(fd) => rustix::fs::futimens(fd, &times)?,
            At::Name(dir, name) => rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?,
        }
        Ok(())
    }

    fn chown(self, at: At<'_>, entry: &Entry) -> io::Result<()> {
        // Without root everything belongs to us already; only the group may be one of our others.
        let owner = self.privileged.then(|| Uid::from_raw(entry.uid));
        if owner.is_none() && entry.gid == self.gid {
            return Ok(());
        }
        let group = Some(Gid::from_raw(entry.gid));
        let result = match at {
            At::Fd(fd) => rustix::fs::fchown(fd.as_fd(), owner, group),
            At::Name(dir, name) => rustix::fs::chownat(dir, name, owner, group, AtFlags::SYMLINK_NOFOLLOW),
        };
        match result {
            Err(Errno::PERM) if !self.privileged => Ok(()),
            other => Ok(other?),
        }
    }
}
