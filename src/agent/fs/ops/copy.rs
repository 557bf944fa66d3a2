//! Copying files and trees, and moving them between file systems.
//!
//! A copy merges into what is there: folders are joined, files replaced one by one and each as a whole, so that a copy
//! that fails in the middle leaves no half file. Links inside a tree are copied as links; the link that a request names
//! itself is followed, as in reading. Holes stay holes.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use serde::Serialize;

use super::failure::{At, Failure};
use super::staged::{Attributes, Parents, Staged};
use super::walk::{Step, Walk};
use super::{MAX_TOLD, open_regular, space};
use crate::sandbox::paths::{Paths, follow};

const VERB: &str = "copy";

/// The largest file that says it is empty and is not (as in /proc) that is copied.
const MAX_UNSIZED: u64 = 16 << 20;

/// How to copy.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// Directories too, with everything below.
    pub recursive: bool,
    /// Keep mode, times and, where the daemon may, the owner.
    pub preserve: bool,
    /// Bytes of free space to leave on the host.
    pub floor: u64,
}

/// What was copied. `copied` names the first thousand.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Copied {
    source: String,
    dest: String,
    copied: Vec<Pair>,
    count: u64,
    total_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Pair {
    source: String,
    dest: String,
}

/// Copies `source` to the path `dest`, both of the API.
pub fn copy(paths: &Paths, source: &Path, dest: &Path, how: How) -> Result<Copied, Failure> {
    let host = paths.to_host(source);
    let meta = std::fs::metadata(&host).at(VERB, source)?;
    let mut copier = Copier::new(paths, how);
    if meta.is_dir() {
        if !how.recursive {
            let what = "is a directory; copy it with recursive";
            let mut failure = Failure::os(VERB, source, Errno::ISDIR);
            failure.text = format!("{VERB} {}: {what}", source.display());
            return Err(failure);
        }
        copier.tree(&host, &meta, &paths.to_host(dest))?;
    } else {
        copier.one(&host, &meta, &paths.to_host(dest))?;
    }
    let lossy = |path: &Path| path.to_string_lossy().into_owned();
    Ok(Copied { source: lossy(source), dest: lossy(dest), ..copier.done })
}

/// Moves `source` to `dest` where the kernel cannot, because they lie on two file systems (host paths). The copy takes
/// its name in one step; only then the source goes.
pub fn move_across(paths: &Paths, source: &Path, dest: &Path, floor: u64) -> Result<(), Failure> {
    let api = paths.to_api(source);
    let meta = std::fs::symlink_metadata(source).at("rename", &api)?;
    let folder = dest.parent().unwrap_or(Path::new("/"));
    let temp = folder.join(super::staged::temp_name().at("rename", &api)?);
    let mut copier = Copier::new(paths, How { recursive: true, preserve: true, floor });
    let copied = if meta.is_dir() { copier.tree(source, &meta, &temp) } else { copier.one(source, &meta, &temp) };
    let moved = copied.and_then(|()| {
        // The source is gone after this, so the copy must not live in memory alone.
        let sync = |folder| File::open(folder).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
        sync(folder).and_then(|()| std::fs::rename(&temp, dest)).at("rename", &paths.to_api(dest))
    });
    if let Err(failure) = moved {
        _ = super::remove(&temp);
        return Err(failure);
    }
    if meta.is_dir() {
        // A rename does not ask for the modes of what lies below, so neither does its second half.
        _ = set_mode(source, meta.mode() | 0o700);
        for step in Walk::new(source, true).at("rename", &api)? {
            if let Step::Found(path, meta) = step
                && meta.is_dir()
            {
                _ = set_mode(&path, meta.mode() | 0o700);
            }
        }
    }
    super::remove(source).at("rename", &api)
}

struct Copier<'a> {
    paths: &'a Paths,
    how: How,
    done: Copied,
}

impl<'a> Copier<'a> {
    fn new(paths: &'a Paths, how: How) -> Self {
        Self { paths, how, done: Copied::default() }
    }

    /// Copies the directory `source` with everything below to `dest` (host paths).
    fn tree(&mut self, source: &Path, meta: &Metadata, dest: &Path) -> Result<(), Failure> {
        let source_api = self.paths.to_api(source);
        let dest_api = self.paths.to_api(dest);
        // The paths may hold links; a tree that holds its own copy would never end.
        let real_source = follow(source).at(VERB, &source_api)?;
        let real_dest = follow(dest).at(VERB, &dest_api)?;
        if real_dest.starts_with(&real_source) {
            return Err(Failure::invalid(VERB, &source_api, "cannot be copied into itself"));
        }
        if !self.paths.may_write(&real_dest) {
            return Err(Failure::outside(VERB, &dest_api));
        }
        let root = self.folder(source, meta, &real_dest)?;
        // Final attributes of the folders that the walk is in: a read-only folder must be filled first.
        let mut open = vec![(root, meta.clone())];
        let made = std::fs::metadata(&real_dest).at(VERB, &dest_api)?;
        for step in Walk::new(&real_source, true).at(VERB, &source_api)? {
            let (path, meta) = match step {
                Step::Found(path, meta) => (path, meta),
                Step::Left(path) => {
                    let (made, meta) = open.pop().unwrap_or((false, meta.clone()));
                    self.close(&real_dest.join(below(&path, &real_source)), made, &meta)?;
                    continue;
                }
                Step::Failed(path, error) => return Err(Failure::io(VERB, &self.paths.to_api(&path), &error)),
            };
            let dest = real_dest.join(below(&path, &real_source));
            if !meta.is_dir() {
                self.one(&path, &meta, &dest)?;
                continue;
            }
            // Reached when a mount shows the destination inside the source.
            if (meta.dev(), meta.ino()) == (made.dev(), made.ino()) {
                return Err(Failure::invalid(VERB, &source_api, "cannot be copied into itself"));
            }
            let made = self.folder(&path, &meta, &dest)?;
            open.push((made, meta));
        }
        self.close(&real_dest, root, meta)
    }

    /// Copies anything but a directory. `meta` says whether a link is followed.
    fn one(&mut self, source: &Path, meta: &Metadata, dest: &Path) -> Result<(), Failure> {
        let kind = meta.file_type();
        let bytes = if kind.is_file() {
            self.file(source, dest)?
        } else if kind.is_symlink() {
            self.link(source, dest)?;
            0
        } else if kind.is_fifo() || kind.is_socket() {
            self.node(meta, dest)?;
            0
        } else {
            return Err(Failure::invalid(VERB, &self.paths.to_api(source), "is a device and cannot be copied"));
        };
        self.tell(source, dest, bytes);
        Ok(())
    }

    fn file(&self, source: &Path, dest: &Path) -> Result<u64, Failure> {
        let api = self.paths.to_api(source);
        let dest_api = self.paths.to_api(dest);
        let (file, meta) = open_regular(source, VERB, &api)?;
        let staged = Staged::create(self.paths, &dest_api, VERB, Parents::Exist)?;
        if staged.existing().is_some_and(|old| (old.dev(), old.ino()) == (meta.dev(), meta.ino())) {
            return Err(Failure::invalid(VERB, &dest_api, "is the same file as the source"));
        }
        let space = |more| space::check(staged.folder(), more, self.how.floor, VERB, &dest_api);
        let bytes = copy_data(&file, &meta, staged.file(), space, &dest_api)?;
        staged.finish(&Attributes {
            mode: self.how.preserve.then_some(meta.mode()),
            new_mode: Some(meta.mode() & 0o777),
            owner: self.how.preserve.then_some((meta.uid(), meta.gid())),
            times: self.how.preserve.then(|| times(&meta)),
            durable: false,
        })?;
        Ok(bytes)
    }

    /// Copies a link as a link, in the place of whatever but a directory is there.
    fn link(&self, source: &Path, dest: &Path) -> Result<(), Failure> {
        let target = std::fs::read_link(source).at(VERB, &self.paths.to_api(source))?;
        let dest = self.vacate(dest)?;
        std::os::unix::fs::symlink(target, &dest).at(VERB, &self.paths.to_api(&dest))
    }

    /// Copies a FIFO or a socket: a new one of its kind.
    fn node(&self, meta: &Metadata, dest: &Path) -> Result<(), Failure> {
        let dest = self.vacate(dest)?;
        let kind = if meta.file_type().is_fifo() { FileType::Fifo } else { FileType::Socket };
        let api = self.paths.to_api(&dest);
        rustix::fs::mknodat(CWD, &dest, kind, Mode::from_raw_mode(meta.mode() & 0o777), 0).at(VERB, &api)
    }

    /// Removes what lies at `dest`, unless it is a directory or not the sprite's.
    fn vacate(&self, dest: &Path) -> Result<PathBuf, Failure> {
        let api = self.paths.to_api(dest);
        if !self.paths.may_remove(dest) {
            return Err(Failure::outside(VERB, &api));
        }
        match std::fs::remove_file(dest) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::io(VERB, &api, &error)),
            _ => Ok(dest.to_path_buf()),
        }
    }

    /// Makes the folder `dest` unless it is there; true when it was made.
    fn folder(&mut self, source: &Path, meta: &Metadata, dest: &Path) -> Result<bool, Failure> {
        let api = self.paths.to_api(dest);
        let made = match std::fs::symlink_metadata(dest) {
            Ok(old) if old.is_dir() => false,
            Ok(_) => return Err(Failure::os(VERB, &api, Errno::NOTDIR)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir(dest).at(VERB, &api)?;
                set_mode(dest, meta.mode() & 0o777 | 0o700).at(VERB, &api)?;
                true
            }
            Err(error) => return Err(Failure::io(VERB, &api, &error)),
        };
        self.tell(source, dest, 0);
        Ok(made)
    }

    /// Gives a folder its final attributes: its own when it was here before, the source's else or when asked.
    fn close(&self, dest: &Path, made: bool, meta: &Metadata) -> Result<(), Failure> {
        let api = self.paths.to_api(dest);
        if self.how.preserve {
            _ = std::os::unix::fs::chown(dest, Some(meta.uid()), Some(meta.gid()));
            set_mode(dest, meta.mode() & 0o7777).at(VERB, &api)?;
            rustix::fs::utimensat(CWD, dest, &times(meta), AtFlags::empty()).at(VERB, &api)?;
        } else if made {
            set_mode(dest, meta.mode() & 0o777).at(VERB, &api)?;
        }
        Ok(())
    }

    fn tell(&mut self, source: &Path, dest: &Path, bytes: u64) {
        self.done.count += 1;
        self.done.total_bytes += bytes;
        if self.done.copied.len() < MAX_TOLD {
            let lossy = |path: &Path| self.paths.to_api(path).to_string_lossy().into_owned();
            self.done.copied.push(Pair { source: lossy(source), dest: lossy(dest) });
        }
    }
}

fn below<'a>(path: &'a Path, root: &Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn times(meta: &Metadata) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: meta.atime(), tv_nsec: meta.atime_nsec() },
        last_modification: Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() },
    }
}

/// Copies the content of a regular file, hole by hole; `space` is asked before each stride. Answers the bytes that a
/// reader of the copy sees.
fn copy_data(
    source: &File,
    meta: &Metadata,
    dest: &File,
    space: impl Fn(u64) -> Result<(), Failure>,
    api: &Path,
) -> Result<u64, Failure> {
    let size = meta.len();
    if size == 0 {
        // Files of /proc have content and no size.
        let copied = io::copy(&mut source.take(MAX_UNSIZED + 1), &mut &*dest).at(VERB, api)?;
        return if copied > MAX_UNSIZED { Err(Failure::too_large(VERB, api, MAX_UNSIZED)) } else { Ok(copied) };
    }
    space(meta.blocks().saturating_mul(512).min(size))?;
    if rustix::fs::ioctl_ficlone(dest, source).is_ok() {
        return Ok(size);
    }
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(Failure::os(VERB, api, errno)),
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        at = start;
        (&*source).seek(io::SeekFrom::Start(at)).at(VERB, api)?;
        (&*dest).seek(io::SeekFrom::Start(at)).at(VERB, api)?;
        while at < end {
            let stride = (end - at).min(space::STRIDE);
            space(stride)?;
            let copied = io::copy(&mut source.take(stride), &mut &*dest).at(VERB, api)?;
            if copied == 0 {
                // The source was cut short meanwhile; so is the copy.
                dest.set_len(at).at(VERB, api)?;
                return Ok(at);
            }
            at += copied;
        }
    }
    dest.set_len(size).at(VERB, api)?;
    Ok(size)
}
