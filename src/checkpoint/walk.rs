//! Walks a tree through directory descriptors, in the order of names, and never follows a symbolic link.
//!
//! Not `walkdir`: that opens by whole paths, which a tree deeper than `PATH_MAX` does not have, and which somebody may
//! exchange under the walk. Here each name is looked up once, in the directory that was opened for it.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

/// How many directories of the current path stay open. Deeper ones are opened again through `..` on the way back, so a
/// tree of any depth costs a bounded number of descriptors.
const OPEN_LEVELS: usize = 128;
/// Buffer for directory reads: one call lists some two thousand names.
const LIST_BUFFER: usize = 64 * 1024;
/// How a directory is opened for the walk.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// One step of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A name in the current directory, with the type that its directory tells. Into a directory: [`Walk::enter`].
    Entry(FileType),
    /// All below a directory has been seen; the walk stands in its parent again, at its name.
    Leave,
}

/// A walk in progress.
#[derive(Debug)]
pub struct Walk {
    levels: Vec<Level>,
    path: Vec<u8>,
    /// The name at which the walk stands.
    name: CString,
    /// Whether permission bits do not bind this process.
    privileged: bool,
}

#[derive(Debug)]
struct Level {
    /// `None` while the walk is far below.
    fd: Option<OwnedFd>,
    id: (u64, u64),
    names: Vec<u8>,
    /// Where each name begins in `names`, in order.
    order: Vec<(u32, FileType)>,
    next: usize,
    path_len: usize,
    name: CString,
    /// The mode to give back to a directory that its owner had closed to himself.
    locked: Option<Mode>,
}

impl Walk {
    /// Starts in the directory `root`, which may itself be reached through links.
    pub fn new(root: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(root, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())?;
        let privileged = rustix::process::geteuid().is_root();
        let mut walk = Self { levels: Vec::new(), path: Vec::new(), name: CString::default(), privileged };
        let stat = rustix::fs::fstat(&fd)?;
        walk.push(fd, &stat)?;
        Ok(walk)
    }

    /// The directory in which the walk stands.
    pub fn dir(&self) -> BorrowedFd<'_> {
        match self.levels.last().and_then(|level| level.fd.as_ref()) {
            Some(fd) => fd.as_fd(),
            None => CWD, // Unreachable: the innermost directory is always open.
        }
    }

    /// The name of the current entry in [`Walk::dir`].
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// The path of the current entry below the root.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The file system of the root.
    pub fn device(&self) -> Option<u64> {
        self.levels.first().map(|level| level.id.0)
    }

    /// The next step, or `None` when the root has been walked.
    pub fn step(&mut self) -> io::Result<Option<Step>> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        self.path.truncate(level.path_len);
        if let Some(&(start, file_type)) = level.order.get(level.next) {
            level.next += 1;
            let name = CStr::from_bytes_until_nul(&level.names[start as usize..]).unwrap_or_default();
            if level.path_len > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            self.name = name.to_owned();
            return Ok(Some(Step::Entry(file_type)));
        }
        self.leave()
    }

    /// Opens the current entry, a directory. If its owner may not list it, he may after this, until the walk leaves it.
    pub fn open_dir(&mut self) -> io::Result<(OwnedFd, Stat)> {
        let fd = match rustix::fs::openat(self.dir(), self.name(), DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let mode = Mode::from_raw_mode(0o700);
                with_mode(self.dir(), self.name(), mode, || {
                    rustix::fs::openat(self.dir(), self.name(), DIRECTORY, Mode::empty())
                })?
            }
            other => other?,
        };
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    }

    /// Goes into the directory that [`Walk::open_dir`] opened: its entries come next.
    pub fn enter(&mut self, fd: OwnedFd, stat: &Stat) -> io::Result<()> {
        let far = self.levels.len().checked_sub(OPEN_LEVELS);
        // The root stays open: it is where a lost walk could not be found again.
        if let Some(level) = far.filter(|&index| index > 0).and_then(|index| self.levels.get_mut(index)) {
            level.fd = None;
        }
        self.push(fd, stat)
    }

    fn push(&mut self, fd: OwnedFd, stat: &Stat) -> io::Result<()> {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let needed = Mode::RUSR | Mode::XUSR;
        let mut locked = None;
        if !self.privileged && !mode.contains(needed) {
            rustix::fs::fchmod(&fd, mode | needed)?;
            locked = Some(mode);
        }
        let (names, order) = list(&fd)?;
        self.levels.push(Level {
            fd: Some(fd),
            id: (stat.st_dev, stat.st_ino),
            names,
            order,
            next: 0,
            path_len: self.path.len(),
            name: self.name.clone(),
            locked,
        });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<Option<Step>> {
        let Some(done) = self.levels.pop() else { return Ok(None) };
        if let (Some(mode), Some(fd)) = (done.locked, &done.fd) {
            let _ = rustix::fs::fchmod(fd, mode);
        }
        let Some(parent) = self.levels.last_mut() else { return Ok(None) };
        if parent.fd.is_none() {
            let above =
                done.fd.as_ref().map(|fd| rustix::fs::openat(fd, c"..", DIRECTORY, Mode::empty())).transpose()?;
            let stat = above.as_ref().map(rustix::fs::fstat).transpose()?;
            if stat.is_none_or(|stat| (stat.st_dev, stat.st_ino) != parent.id) {
                return Err(io::Error::other("a directory was moved during the walk"));
            }
            parent.fd = above;
        }
        self.path.truncate(done.path_len);
        self.name = done.name;
        Ok(Some(Step::Leave))
    }
}

impl Drop for Walk {
    /// A walk that ends early closes the directories again that it had opened for their owner.
    fn drop(&mut self) {
        while let Some(level) = self.levels.pop() {
            if let (Some(mode), Some(fd)) = (level.locked, &level.fd) {
                let _ = rustix::fs::fchmod(fd, mode);
            }
        }
    }
}

/// Runs `attempt` while `name` has more permissions, and takes them back. For files of our own that we had closed to
/// ourselves; the bits go through an `O_PATH` descriptor, so a link in the name's place is never followed.
pub(super) fn with_mode<T>(
    dir: BorrowedFd<'_>,
    name: &CStr,
    extra: Mode,
    attempt: impl FnOnce() -> rustix::io::Result<T>,
) -> io::Result<T> {
    let fd = rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
    {
        return Err(Errno::ACCESS.into());
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let this = proc_path(fd.as_fd());
    rustix::fs::chmod(&this, mode | extra)?;
    let result = attempt();
    rustix::fs::chmod(&this, mode)?;
    Ok(result?)
}

/// A path to an open descriptor, for calls that take none.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))
}

/// The names of a directory, one after the other, and where each begins, in order.
type Names = (Vec<u8>, Vec<(u32, FileType)>);

/// Lists a directory.
fn list(fd: &OwnedFd) -> io::Result<Names> {
    let mut buffer = [MaybeUninit::uninit(); LIST_BUFFER];
    let mut dir = RawDir::new(fd, &mut buffer);
    let mut names = Vec::new();
    let mut order = Vec::new();
    while let Some(entry) = dir.next() {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let start = u32::try_from(names.len()).map_err(|_| io::Error::other("a directory has too many entries"))?;
        order.push((start, entry.file_type()));
        names.extend_from_slice(entry.file_name().to_bytes_with_nul());
    }
    let name = |start: u32| CStr::from_bytes_until_nul(&names[start as usize..]).unwrap_or_default();
    order.sort_unstable_by(|a, b| name(a.0).cmp(name(b.0)));
    Ok((names, order))
}

/// Removes a tree, whatever its depth and its modes, but never what is mounted in it. A tree that is not there is no
/// error, and neither is somebody else who removes it at the same time.
pub fn remove_tree(root: &Path) -> io::Result<()> {
    let mut walk = match Walk::new(root) {
        Ok(walk) => walk,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            rustix::fs::chmod(root, Mode::RWXU)?;
            Walk::new(root)?
        }
        Err(error) => return Err(error),
    };
    if !walk.privileged {
        rustix::fs::fchmod(walk.dir(), Mode::RWXU)?;
    }
    while let Some(step) = walk.step()? {
        match step {
            Step::Leave => gone(rustix::fs::unlinkat(walk.dir(), walk.name(), AtFlags::REMOVEDIR))?,
            Step::Entry(file_type) => {
                let directory = match file_type {
                    FileType::Unknown => {
                        let stat = rustix::fs::statat(walk.dir(), walk.name(), AtFlags::SYMLINK_NOFOLLOW)?;
                        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                    }
                    other => other == FileType::Directory,
                };
                if !directory {
                    gone(rustix::fs::unlinkat(walk.dir(), walk.name(), AtFlags::empty()))?;
                    continue;
                }
                let (fd, mut stat) = match walk.open_dir() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    opened => opened?,
                };
                if Some(stat.st_dev) != walk.device() {
                    return Err(io::Error::other("another file system is mounted inside the tree"));
                }
                if !walk.privileged {
                    rustix::fs::fchmod(&fd, Mode::RWXU)?;
                    stat.st_mode |= 0o700;
                }
                walk.enter(fd, &stat)?;
            }
        }
    }
    drop(walk);
    Ok(gone(rustix::fs::rmdir(root))?)
}

/// The result of a removal: what is gone already is gone.
fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
