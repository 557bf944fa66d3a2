//! Small files and names that must survive a crash: written aside, synced, renamed, and the folder synced.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Ends the name of a file that is not whole yet.
pub(super) const PARTIAL: &str = ".partial";

/// Where a file is written before it gets its name.
pub(super) fn partial(path: &Path) -> PathBuf {
    suffixed(path, PARTIAL)
}

/// `path` with `suffix` after its last component.
pub(super) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Replaces the file at `path` as a whole.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = partial(path);
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let named = written.and_then(|()| fs::rename(&aside, path));
    if named.is_err() {
        let _ = fs::remove_file(&aside);
    }
    named?;
    sync_parent(path)
}

/// Makes names in the folder of `path` durable.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Removes a file that may be gone already.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
