//! Reading one file in pieces.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::failure::{At, Failure};
use super::open_regular;
use crate::sandbox::paths::Paths;

/// Bytes read at a time: large enough that a hop between threads costs nothing, small enough for a hundred readers.
pub const CHUNK: usize = 256 << 10;

/// Files that say they are small are read to their real end, for those of /proc and /sys state no true size. What goes
/// on beyond this has no end.
const MAX_UNSIZED: u64 = 16 << 20;

const VERB: &str = "open";

/// A file that is being read.
#[derive(Debug)]
pub struct Opened {
    file: File,
    /// Bytes that the file has, and that an answer may promise.
    pub size: u64,
    /// The whole content, when it is small.
    pub whole: Option<Vec<u8>>,
}

/// Opens the regular file `api`; a small one is read at once.
pub fn open(paths: &Paths, api: &Path) -> Result<Opened, Failure> {
    let (file, meta) = open_regular(&paths.to_host(api), VERB, api)?;
    if meta.len() > CHUNK as u64 {
        return Ok(Opened { file, size: meta.len(), whole: None });
    }
    let mut whole = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
    (&file).take(MAX_UNSIZED + 1).read_to_end(&mut whole).at(VERB, api)?;
    if whole.len() as u64 > MAX_UNSIZED {
        return Err(Failure::invalid(VERB, api, "has no end"));
    }
    Ok(Opened { file, size: whole.len() as u64, whole: Some(whole) })
}

impl Opened {
    /// The next bytes from `offset` on, at most `limit`. The end before its time is an error: the answer has promised
    /// more, and a cut connection is the only honest way to take that back.
    pub fn read(&self, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(limit).unwrap_or(CHUNK).min(CHUNK);
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) if filled == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}
