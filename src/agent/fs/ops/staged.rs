//! A file that becomes visible only when it is whole (wire/rest.md §2.5).
//!
//! New content goes into a nameless file of the target's own folder (or a hidden temporary one where the file system has
//! none), and takes the target's name at the very end. Whatever ends before that leaves the old file as it was, no
//! temporary file, and none of the folders that were made on the way. The name of a link is never replaced: the link is
//! followed, and what it leads to must be the sprite's to change.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, Timestamps};
use rustix::io::Errno;

use super::failure::{At, Failure};
use crate::sandbox::paths::{Paths, follow};

/// Mode of a new file whose writer names none.
pub const NEW_FILE: u32 = 0o644;

/// Mode of folders made on the way to a file.
const NEW_FOLDER: u32 = 0o755;

/// The longest file name of every Linux file system.
const MAX_NAME: usize = 255;

/// Names of temporary files: watchers know them by this and stay silent about them.
const TEMP_PREFIX: &str = ".fountain-";
const TEMP_SUFFIX: &str = ".part";

/// Which folders above the file may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// None.
    Exist,
    /// The one that holds the file, in a folder that exists (wire/rest.md §2.9, the `.keep` rule).
    MakeOne,
    /// All that are missing.
    MakeAll,
}

/// What the file shall look like besides its content.
#[derive(Debug, Default)]
pub struct Attributes {
    /// Permission bits; absent keeps those of the file that is replaced.
    pub mode: Option<u32>,
    /// Permission bits of a new file when `mode` is absent.
    pub new_mode: Option<u32>,
    /// Owner and group, as far as the daemon may set them; absent keeps those of the file that is replaced.
    pub owner: Option<(u32, u32)>,
    /// Access and modification times.
    pub times: Option<Timestamps>,
    /// Whether content and name are on the disk before this returns.
    pub durable: bool,
}

/// A file on its way to its name.
#[derive(Debug)]
pub struct Staged {
    file: File,
    api: PathBuf,
    verb: &'static str,
    /// The host path that the file will have, every link followed.
    target: PathBuf,
    existing: Option<Metadata>,
    litter: Litter,
}

/// What is removed when the file never gets its name; the newest thing is last.
#[derive(Debug, Default)]
struct Litter {
    folders: Vec<PathBuf>,
    temp: Option<PathBuf>,
}

impl Drop for Litter {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            _ = std::fs::remove_file(temp);
        }
        for folder in self.folders.iter().rev() {
            // A folder that somebody else has begun to use is not empty and stays.
            _ = std::fs::remove_dir(folder);
        }
    }
}

impl Staged {
    /// Opens the way to `api`: checks, makes folders, creates the file without its name.
    pub fn create(paths: &Paths, api: &Path, verb: &'static str, parents: Parents) -> Result<Self, Failure> {
        let target = follow(&paths.to_host(api)).at(verb, api)?;
        let existing = match std::fs::symlink_metadata(&target) {
            Ok(meta) if meta.is_dir() => return Err(Failure::os(verb, api, Errno::ISDIR)),
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::io(verb, api, &error)),
        };
        if !paths.may_write(&target) {
            return Err(Failure::outside(verb, api));
        }
        if existing.as_ref().is_some_and(|meta| !meta.is_file()) {
            return Err(Failure::invalid(verb, api, "is not a regular file"));
        }
        if existing.is_some() {
            rustix::fs::accessat(CWD, &target, Access::WRITE_OK, AtFlags::EACCESS).at(verb, api)?;
        }
        if target.file_name().is_none_or(|name| name.len() > MAX_NAME) {
            return Err(Failure::os(verb, api, Errno::NAMETOOLONG));
        }
        let mut litter = Litter::default();
        let folder = folder_of(&target);
        make_folders(folder, parents, &mut litter.folders).at(verb, api)?;
        let file = match nameless(folder) {
            Ok(file) => file,
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let (temp, file) = named(folder).at(verb, api)?;
                litter.temp = Some(temp);
                file
            }
            Err(errno) => return Err(Failure::os(verb, api, errno)),
        };
        Ok(Self { file, api: api.to_path_buf(), verb, target, existing, litter })
    }

    /// Where the content goes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The folder of the host that will hold the file.
    pub fn folder(&self) -> &Path {
        folder_of(&self.target)
    }

    /// The file that will be replaced.
    pub fn existing(&self) -> Option<&Metadata> {
        self.existing.as_ref()
    }

    /// Gives the file its attributes and then its name. Answers the permission bits that it has now.
    pub fn finish(mut self, attributes: &Attributes) -> Result<u32, Failure> {
        let (verb, api) = (self.verb, self.api.clone());
        let old = self.existing.as_ref();
        let new_mode = attributes.new_mode.unwrap_or(NEW_FILE);
        let mode = attributes.mode.unwrap_or(old.map_or(new_mode, MetadataExt::mode)) & 0o7777;
        let owner = attributes.owner.or(old.map(|meta| (meta.uid(), meta.gid())));
        if let Some((uid, gid)) = owner {
            // Only root may give files away; for everybody else the file is simply their own.
            _ = std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid));
        }
        self.file.set_permissions(Permissions::from_mode(mode)).at(verb, &api)?;
        if let Some(times) = &attributes.times {
            rustix::fs::futimens(&self.file, times).at(verb, &api)?;
        }
        if attributes.durable {
            self.file.sync_all().at(verb, &api)?;
        }
        self.take_name().at(verb, &api)?;
        if attributes.durable {
            File::open(self.folder()).and_then(|folder| folder.sync_all()).at(verb, &api)?;
        }
        Ok(mode)
    }

    /// From here on the file is there under its name, or an error left everything as it was.
    fn take_name(&mut self) -> rustix::io::Result<()> {
        let temp = match self.litter.temp.clone() {
            Some(temp) => temp,
            None => {
                if self.existing.is_none() && link(&self.file, &self.target).is_ok() {
                    self.litter.folders.clear();
                    return Ok(());
                }
                let temp = self.folder().join(temp_name()?);
                link(&self.file, &temp)?;
                self.litter.temp = Some(temp.clone());
                temp
            }
        };
        rustix::fs::rename(&temp, &self.target)?;
        self.litter.temp = None;
        self.litter.folders.clear();
        Ok(())
    }
}

/// Whether a file name is that of a file on its way.
pub fn is_temp(name: &[u8]) -> bool {
    name.starts_with(TEMP_PREFIX.as_bytes()) && name.ends_with(TEMP_SUFFIX.as_bytes())
}

/// Whether a watcher's event on `path` is about a nameless file, which the kernel calls `#` and its inode there.
pub fn is_nameless(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let inode = name.strip_prefix(b"#").filter(|inode| !inode.is_empty());
    inode.is_some_and(|inode| inode.iter().all(u8::is_ascii_digit)) && std::fs::symlink_metadata(path).is_err()
}

/// A name that no file has: 64 random bits.
pub fn temp_name() -> rustix::io::Result<String> {
    let random = getrandom::u64().map_err(|_| Errno::IO)?;
    Ok(format!("{TEMP_PREFIX}{random:016x}{TEMP_SUFFIX}"))
}

fn folder_of(target: &Path) -> &Path {
    target.parent().unwrap_or(Path::new("/"))
}

/// A file without a name. `linkat` needs /proc to give it one later.
fn nameless(folder: &Path) -> rustix::io::Result<File> {
    if !Path::new("/proc/self/fd").exists() {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

fn named(folder: &Path) -> rustix::io::Result<(PathBuf, File)> {
    let path = folder.join(temp_name()?);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?;
    Ok((path, file.into()))
}

fn link(file: &File, path: &Path) -> rustix::io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Makes the missing folders down to `folder` and notes them in `made`.
fn make_folders(folder: &Path, parents: Parents, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut missing = Vec::new();
    for ancestor in folder.ancestors() {
        match std::fs::metadata(ancestor) {
            Ok(meta) if meta.is_dir() => break,
            Ok(_) => return Err(Errno::NOTDIR.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(ancestor),
            Err(error) => return Err(error),
        }
    }
    let allowed = match parents {
        Parents::Exist => 0,
        Parents::MakeOne => 1,
        Parents::MakeAll => usize::MAX,
    };
    if missing.len() > allowed {
        return Err(Errno::NOENT.into());
    }
    for folder in missing.into_iter().rev() {
        match std::fs::create_dir(folder) {
            Ok(()) => made.push(folder.to_path_buf()),
            // Another request made it first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
        std::fs::set_permissions(folder, Permissions::from_mode(NEW_FOLDER))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn view() -> (tempfile::TempDir, Paths) {
        let state = tempfile::tempdir_in("/var/tmp").unwrap();
        let paths = Paths::new(state.path().join("disk"));
        std::fs::create_dir_all(paths.home()).unwrap();
        (state, paths)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_given_up_leaves_nothing() {
        let (_state, paths) = view();
        std::fs::write(paths.home().join("old"), "old").unwrap();
        for api in ["/home/sprite/a/b/c", "/home/sprite/old"] {
            let staged = Staged::create(&paths, Path::new(api), "open", Parents::MakeAll).unwrap();
            staged.file().write_all(b"half").unwrap();
            drop(staged);
        }
        assert_eq!(names(paths.home()), ["old"]);
        assert_eq!(std::fs::read(paths.home().join("old")).unwrap(), b"old");
    }

    #[test]
    fn both_kinds_of_temporary_file_take_the_name() {
        let (_state, paths) = view();
        for (api, existing) in [("/home/sprite/x", false), ("/home/sprite/x", true)] {
            for with_name in [false, true] {
                let mut staged = Staged::create(&paths, Path::new(api), "open", Parents::Exist).unwrap();
                if with_name {
                    let (temp, file) = named(paths.home()).unwrap();
                    staged.litter.temp = Some(temp);
                    staged.file = file;
                }
                staged.file().write_all(b"whole").unwrap();
                let attributes = Attributes { durable: true, ..Attributes::default() };
                assert_eq!(staged.finish(&attributes).unwrap(), 0o644, "{existing}");
                assert_eq!(std::fs::read(paths.home().join("x")).unwrap(), b"whole");
                assert_eq!(names(paths.home()), ["x"]);
            }
        }
        assert!(is_temp(temp_name().unwrap().as_bytes()));
    }

    #[test]
    fn folders_that_others_use_meanwhile_stay() {
        let (_state, paths) = view();
        let staged = Staged::create(&paths, Path::new("/home/sprite/a/b/c"), "open", Parents::MakeAll).unwrap();
        std::fs::write(paths.home().join("a/mine"), "").unwrap();
        drop(staged);
        assert_eq!(names(&paths.home().join("a")), ["mine"]);
    }
}
