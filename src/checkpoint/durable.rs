//! Names in a sprite's folder: those of files that are not whole yet, and what makes a name durable.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::store::files::sync_dir;

/// Ends the name of an archive that is not whole yet.
const PARTIAL: &str = ".partial";

/// Where an archive is written before it gets its name.
pub(super) fn partial(path: &Path) -> PathBuf {
    suffixed(path, PARTIAL)
}

/// Whether a file is one that a crash kept from its name: an archive, or a record that the store was writing.
pub(super) fn is_leftover(name: &str) -> bool {
    name.ends_with(PARTIAL) || name.starts_with('.') && name.ends_with(".tmp")
}

/// `path` with `suffix` after its last component.
pub(super) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Makes names in the folder of `path` durable.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Removes a file that may be gone already.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
