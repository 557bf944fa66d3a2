//! A failed file operation in the words of wire/rest.md §2.3.
//!
//! Owns the table from the kernel's error numbers to status, code and text. The text is what SDKs parse when they do
//! not know a code, so the phrases here are part of the wire. It names API paths only, never the host's.

use std::io;
use std::path::Path;

use http::StatusCode;
use rustix::io::Errno;

use crate::wire::error::ApiError;

/// The code of an answer that refuses to fill the host's disk (DESIGN.md §4).
pub const DISK_LOW: &str = "disk_low";

/// One failed operation on one API path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status; 404 means that the path is missing and nothing else.
    pub status: StatusCode,
    /// The errno name that SDKs know, or [`DISK_LOW`].
    pub code: &'static str,
    /// `verb path: what went wrong`.
    pub text: String,
    /// The API path, lossily as text.
    pub path: String,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, verb: &str, path: &Path, what: &str) -> Self {
        let path = path.to_string_lossy().into_owned();
        Self { status, code, text: format!("{verb} {path}: {what}"), path }
    }

    /// What the kernel answered.
    pub fn os(verb: &str, path: &Path, errno: Errno) -> Self {
        let (status, code, what) = describe(errno);
        Self::new(status, code, verb, path, what)
    }

    /// What the standard library answered.
    pub fn io(verb: &str, path: &Path, error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Self::os(verb, path, errno),
            None => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "EIO", verb, path, "input/output error"),
        }
    }

    /// An argument that makes no sense for this path.
    pub fn invalid(verb: &str, path: &Path, why: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "EINVAL", verb, path, why)
    }

    /// A body above the limit.
    pub fn too_large(verb: &str, path: &Path, limit: u64) -> Self {
        let what = format!("the body is over the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "EINVAL", verb, path, &what)
    }

    /// A change outside of what a plain sprite may change.
    pub fn outside(verb: &str, path: &Path) -> Self {
        let what = "permission denied: without a sandbox only /home/sprite, the sprite's own folder and what is below \
                    /tmp may be changed";
        Self::new(StatusCode::FORBIDDEN, "EACCES", verb, path, what)
    }

    /// A write that would leave the host less free space than its floor.
    pub fn disk_low(verb: &str, path: &Path) -> Self {
        let what = "the host's disk is nearly full; free some space, then try again";
        Self::new(StatusCode::INSUFFICIENT_STORAGE, DISK_LOW, verb, path, what)
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        Self::fs(failure.status, failure.code, failure.text, &failure.path)
    }
}

/// Says which step on which API path an error belongs to.
pub trait At<T> {
    /// Turns the error into a [`Failure`] of `verb` on `path`.
    fn at(self, verb: &str, path: &Path) -> Result<T, Failure>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, verb: &str, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| Failure::io(verb, path, &error))
    }
}

impl<T> At<T> for rustix::io::Result<T> {
    fn at(self, verb: &str, path: &Path) -> Result<T, Failure> {
        self.map_err(|errno| Failure::os(verb, path, errno))
    }
}

/// Status, code and phrase of an error number. Codes outside the set that clients know are folded into it.
fn describe(errno: Errno) -> (StatusCode, &'static str, &'static str) {
    match errno {
        Errno::NOENT => (StatusCode::NOT_FOUND, "ENOENT", "no such file or directory"),
        Errno::EXIST => (StatusCode::CONFLICT, "EEXIST", "file exists"),
        Errno::NOTEMPTY => (StatusCode::CONFLICT, "ENOTEMPTY", "directory not empty"),
        Errno::NOTDIR => (StatusCode::BAD_REQUEST, "ENOTDIR", "not a directory"),
        Errno::ISDIR => (StatusCode::BAD_REQUEST, "EISDIR", "is a directory"),
        Errno::ACCESS => (StatusCode::FORBIDDEN, "EACCES", "permission denied"),
        Errno::PERM => (StatusCode::FORBIDDEN, "EPERM", "permission denied (operation not permitted)"),
        Errno::ROFS => (StatusCode::FORBIDDEN, "EACCES", "permission denied (read-only file system)"),
        Errno::INVAL => (StatusCode::BAD_REQUEST, "EINVAL", "invalid argument"),
        Errno::NAMETOOLONG => (StatusCode::BAD_REQUEST, "EINVAL", "file name too long"),
        Errno::LOOP => (StatusCode::BAD_REQUEST, "EINVAL", "too many levels of symbolic links"),
        Errno::FBIG => (StatusCode::PAYLOAD_TOO_LARGE, "EINVAL", "file too large"),
        Errno::NOSPC | Errno::DQUOT => {
            (StatusCode::INSUFFICIENT_STORAGE, DISK_LOW, "no space left on the host's disk; free some, then try again")
        }
        Errno::BUSY => (StatusCode::INTERNAL_SERVER_ERROR, "EIO", "device or resource busy"),
        Errno::MFILE | Errno::NFILE => (StatusCode::INTERNAL_SERVER_ERROR, "EIO", "too many open files"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "EIO", "input/output error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_that_sdks_look_for_are_there() {
        let path = Path::new("/app/x");
        let failure = |errno| Failure::os("open", path, errno);
        assert_eq!(failure(Errno::NOENT).text, "open /app/x: no such file or directory");
        assert!(failure(Errno::ISDIR).text.contains("is a directory"));
        assert!(failure(Errno::NOTDIR).text.contains("not a directory"));
        assert!(failure(Errno::NOTEMPTY).text.contains("not empty"));
        for errno in [Errno::ACCESS, Errno::PERM, Errno::ROFS] {
            assert!(failure(errno).text.contains("permission denied"));
        }
        assert!(Failure::outside("open", path).text.contains("permission denied"));
    }

    #[test]
    fn only_missing_is_404() {
        for number in 1..134 {
            let errno = Errno::from_raw_os_error(number);
            let failure = Failure::os("open", Path::new("/"), errno);
            assert_eq!(failure.status == StatusCode::NOT_FOUND, errno == Errno::NOENT);
        }
    }
}
