//! Listing, which is also the stat call of every SDK (wire/rest.md §2.6).
//!
//! Entries are made one by one while the answer is sent, so that a directory of a million names costs its names and no
//! more.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::failure::{At, Failure};
use super::glob;
use super::walk::{Step, Walk};
use crate::sandbox::paths::Paths;

/// The last second that the time library knows, a day before RFC 3339 has no year left.
const LAST_SECOND: i64 = 253_402_207_199;

/// One file as clients see it. Field names and forms are the wire's.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Base name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Absolute API path.
    pub path: String,
    /// `file`, `directory`, `symlink`, or `other` for FIFOs, sockets and devices.
    pub r#type: &'static str,
    /// Bytes.
    pub size: u64,
    /// Four octal digits.
    pub mode: String,
    /// RFC 3339, UTC, six fraction digits.
    pub mod_time: String,
    /// Whether it is a directory itself; a link to one is not.
    pub is_dir: bool,
}

impl Entry {
    fn new(path: &Path, meta: &Metadata) -> Self {
        let kind = meta.file_type();
        let name = path.file_name().unwrap_or(path.as_os_str());
        Self {
            name: name.to_string_lossy().into_owned(),
            path: path.to_string_lossy().into_owned(),
            r#type: match () {
                () if kind.is_file() => "file",
                () if kind.is_dir() => "directory",
                () if kind.is_symlink() => "symlink",
                () => "other",
            },
            size: meta.size(),
            mode: mode_text(meta.mode()),
            mod_time: timestamp(meta.mtime(), meta.mtime_nsec()),
            is_dir: kind.is_dir(),
        }
    }
}

/// Permission bits as the wire writes them.
pub fn mode_text(mode: u32) -> String {
    format!("{:04o}", mode & 0o7777)
}

/// A time in the wire's form; years that RFC 3339 cannot write become the nearest one that it can.
pub fn timestamp(seconds: i64, nanoseconds: i64) -> String {
    let seconds = seconds.clamp(0, LAST_SECOND);
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or_default();
    format!("{:.6}", jiff::Timestamp::new(seconds, nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// What is listed below a directory.
#[derive(Debug, Default)]
pub struct Filter {
    /// Everything below, not only the children.
    pub recursive: bool,
    /// A shell glob on the base name.
    pub pattern: Option<Vec<u8>>,
}

/// The entries of one listing, made as they are taken.
#[derive(Debug)]
pub struct Listing {
    /// The API path that was listed.
    pub path: PathBuf,
    paths: Paths,
    pattern: Option<Vec<u8>>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    One(Option<Entry>),
    Below(Walk),
}

/// Lists a directory's children, or the one entry of anything else. Links on the way are followed, links inside are
/// shown. A link that was named itself is shown as a link with the size, mode and time of the file it leads to, because
/// `read` would return that file.
pub fn list(paths: &Paths, api: &Path, filter: Filter) -> Result<Listing, Failure> {
    let host = paths.to_host(api);
    let path = paths.to_api(&host);
    let link = std::fs::symlink_metadata(&host).at("stat", api)?;
    let target = std::fs::metadata(&host).ok();
    let rest = match target {
        Some(target) if target.is_dir() => Rest::Below(Walk::new(&host, filter.recursive).at("open", api)?),
        target => {
            let mut entry = Entry::new(&path, target.as_ref().unwrap_or(&link));
            if link.is_symlink() {
                entry.r#type = "symlink";
            }
            Rest::One(Some(entry))
        }
    };
    Ok(Listing { path, paths: paths.clone(), pattern: filter.pattern, rest })
}

impl Iterator for Listing {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let walk = match &mut self.rest {
            Rest::One(entry) => return entry.take(),
            Rest::Below(walk) => walk,
        };
        walk.find_map(|step| match step {
            Step::Found(host, meta) => {
                let name = host.file_name().unwrap_or_default().as_encoded_bytes();
                let wanted = self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, name));
                wanted.then(|| Entry::new(&self.paths.to_api(&host), &meta))
            }
            // What may not be read is shown without its children, as `find` does.
            Step::Left(_) | Step::Failed(..) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_always_rfc_3339() {
        assert_eq!(timestamp(1_784_541_600, 5_000), "2026-07-20T10:00:00.000005Z");
        assert_eq!(timestamp(-5, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(timestamp(i64::MAX, 999_999_999), "9999-12-30T21:59:59.999999Z");
    }
}
