//! Makes the files of an archive below one open directory.
//!
//! Nothing may land outside of it: every name is made in a directory that was opened one component at a time with
//! `openat2` (`RESOLVE_BENEATH`, no links of any kind), every file is created anew, and whatever does not fit (an absolute
//! name, `..`, a link or a file in a directory's place, a name twice) is an error that ends the restore, never skipped.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::attributes::{At, Restorer};
use super::pax::Segment;
use super::plan::{Entries, Entry, Kind};
use super::reader::{components, damaged};
use super::{Error, Meter};

/// How many directories of the current path stay open; deeper ones are opened again when they are needed.
const OPEN_LEVELS: usize = 128;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const CREATE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);
/// How every component is resolved.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A restore in progress.
pub(super) struct Extractor<'a> {
    folders: Folders,
    /// Directories in the order in which they came; they get their modes and times last, from the innermost outwards.
    directories: Vec<Entry>,
    restorer: Restorer,
    meter: Meter<'a>,
    /// Content that may still come.
    left: u64,
}

impl<'a> Extractor<'a> {
    pub(super) fn new(root: &File, meter: Meter<'a>, data_bytes: u64) -> io::Result<Self> {
        let folders = Folders { root: root.try_clone()?.into(), open: Vec::new() };
        Ok(Self { folders, directories: Vec::new(), restorer: Restorer::current(), meter, left: data_bytes })
    }

    /// Makes everything but the attributes of directories, to the archive's very end.
    pub(super) fn extract(&mut self, entries: &mut Entries<impl BufRead>) -> Result<(), Error> {
        while let Some(entry) = entries.next_entry().map_err(damaged)? {
            self.meter.files += 1;
            self.add(entry, entries)?;
            self.meter.tick()?;
        }
        entries.drain().map_err(damaged)
    }

    /// Gives directories their owners, modes and times.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        while let Some(entry) = self.directories.pop() {
            let parts = components(&entry.path)?;
            let dir = self.folders.enter(&parts)?;
            self.restorer.apply(At::Fd(dir), &entry).map_err(|source| made(&entry, source))?;
            self.meter.tick()?;
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry, entries: &mut Entries<impl BufRead>) -> Result<(), Error> {
        let parts = components(&entry.path)?;
        let Some((name, parents)) = parts.split_last() else {
            if entry.kind != Kind::Directory {
                return Err(Error::Damaged("the root is not a directory".into()));
            }
            self.directories.push(entry);
            return Ok(());
        };
        let name = text(name)?;
        // The link's target first: it shares the open directories with the name itself.
        let target = match &entry.kind {
            Kind::HardLink(target) => Some(self.target(target)?),
            _ => None,
        };
        let dir = self.folders.enter(parents)?;
        let made = |result: rustix::io::Result<()>| result.map_err(|errno| made(&entry, errno));
        match &entry.kind {
            Kind::Directory => {
                made(rustix::fs::mkdirat(dir, &name, Mode::RWXU))?;
                self.directories.push(entry);
                return Ok(());
            }
            Kind::File { size, sparse } => {
                let (size, sparse) = (*size, sparse.as_deref());
                let file = rustix::fs::openat(dir, &name, CREATE, Mode::RUSR | Mode::WUSR);
                let file = file.map_err(|errno| self::made(&entry, errno))?;
                match sparse {
                    None => self.content(&file, Segment { offset: 0, len: size }, &entry, entries)?,
                    Some(segments) => {
                        for segment in segments {
                            self.content(&file, *segment, &entry, entries)?;
                        }
                        made(rustix::fs::ftruncate(&file, size))?;
                    }
                }
                let at = At::Fd(file.as_fd());
                return self.restorer.apply(at, &entry).map_err(|source| self::made(&entry, source));
            }
            Kind::HardLink(_) => {
                if let Some((from, target)) = target {
                    made(rustix::fs::linkat(&from, &target, dir, &name, AtFlags::empty()))?;
                }
                return Ok(());
            }
            Kind::Symlink(target) => made(rustix::fs::symlinkat(&text(target)?, dir, &name))?,
            Kind::Fifo => made(rustix::fs::mkfifoat(dir, &name, Mode::RUSR))?,
            Kind::CharDevice(major, minor) => {
                made(node(dir, &name, FileType::CharacterDevice, (*major, *minor)))?;
            }
            Kind::BlockDevice(major, minor) => made(node(dir, &name, FileType::BlockDevice, (*major, *minor)))?,
        }
        self.restorer.apply(At::Name(dir, &name), &entry).map_err(|source| self::made(&entry, source))
    }

    /// The directory and name of the file that a further name is for: an earlier one of this archive.
    fn target(&mut self, path: &[u8]) -> Result<(OwnedFd, CString), Error> {
        let parts = components(path)?;
        let Some((name, parents)) = parts.split_last() else {
            return Err(Error::Damaged("a hard link to the root".into()));
        };
        let dir = self.folders.enter(parents)?.try_clone_to_owned();
        Ok((dir.map_err(|source| Error::system("dup", path, source))?, text(name)?))
    }

    /// Writes one run of a file from the archive.
    fn content(
        &mut self,
        file: &OwnedFd,
        segment: Segment,
        entry: &Entry,
        entries: &mut Entries<impl BufRead>,
    ) -> Result<(), Error> {
        let Segment { mut offset, len } = segment;
        let end = offset + len;
        if len > self.left {
            return Err(Error::Damaged("the archive holds more than its manifest says".into()));
        }
        self.left -= len;
        while offset < end {
            let chunk = entries.chunk().map_err(damaged)?;
            let chunk = &chunk[..chunk.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX))];
            let written = match rustix::io::pwrite(file, chunk, offset) {
                Err(Errno::INTR) => 0,
                result => result.map_err(|errno| made(entry, errno))?,
            };
            entries.consume(written);
            offset += written as u64;
            self.meter.bytes += written as u64;
            self.meter.tick()?;
        }
        Ok(())
    }
}

/// The failure to make `entry`. A name that is taken, and a link to what is not there, are the archive's fault.
fn made(entry: &Entry, source: impl Into<io::Error>) -> Error {
    let source = source.into();
    let path = String::from_utf8_lossy(&entry.path);
    match Errno::from_io_error(&source) {
        Some(Errno::EXIST) => Error::Damaged(format!("{path:?} is in the archive twice")),
        Some(Errno::NOENT | Errno::PERM) if matches!(entry.kind, Kind::HardLink(_)) => {
            Error::Damaged(format!("{path:?} is a hard link to what is no earlier file of the archive"))
        }
        _ => Error::system("restore", &entry.path, source),
    }
}

fn node(dir: BorrowedFd<'_>, name: &CString, file_type: FileType, device: (u32, u32)) -> rustix::io::Result<()> {
    rustix::fs::mknodat(dir, name, file_type, Mode::RUSR, rustix::fs::makedev(device.0, device.1))
}

fn text(bytes: &[u8]) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::Damaged("a name holds a NUL".into()))
}

/// The directories on the way to the current entry, open.
struct Folders {
    root: OwnedFd,
    open: Vec<(Vec<u8>, Option<OwnedFd>)>,
}

impl Folders {
    /// Opens the directory at `parts` below the root, going on from the one that was open last.
    fn enter(&mut self, parts: &[&[u8]]) -> Result<BorrowedFd<'_>, Error> {
        let shared = self.open.iter().zip(parts).take_while(|((name, _), part)| name == *part).count();
        self.open.truncate(shared);
        // An ancestor may have been closed for being far away: begin again at the innermost that is open.
        if self.open.last().is_some_and(|(_, fd)| fd.is_none()) {
            let open = self.open.iter().rposition(|(_, fd)| fd.is_some()).map_or(0, |index| index + 1);
            self.open.truncate(open);
        }
        for part in &parts[self.open.len()..] {
            let name = text(part)?;
            let next = match rustix::fs::openat2(self.last(), &name, DIRECTORY, Mode::empty(), BENEATH) {
                // A container may forbid the call. For one component, which `name` is, `O_NOFOLLOW` says the same.
                Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(self.last(), &name, DIRECTORY, Mode::empty()),
                opened => opened,
            };
            let next = next.map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => {
                    Error::Damaged(format!("{:?} is no directory of the archive", String::from_utf8_lossy(part)))
                }
                errno => Error::system("open a restored directory", part, errno),
            })?;
            self.open.push((part.to_vec(), Some(next)));
            if let Some(far) = self.open.len().checked_sub(OPEN_LEVELS + 1) {
                self.open[far].1 = None;
            }
        }
        Ok(self.last())
    }

    fn last(&self) -> BorrowedFd<'_> {
        match self.open.last() {
            Some((_, Some(fd))) => fd.as_fd(),
            _ => self.root.as_fd(),
        }
    }
}
