//! Reads an archive back into a tree: one thread decompresses and hashes, the caller's makes the files.
//!
//! The checksum is known only when the last byte has been read, and by then the tree exists. So the tree is made in a
//! fresh staging folder, and any doubt about the archive removes all of it: [`extract`] leaves a whole tree or none.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sha2::{Digest, Sha256};

use super::extract::Extractor;
use super::plan::{self, Entries};
use super::walk::remove_tree;
use super::{Error, Meter, Progress, host};

/// Decompressed bytes that go from one thread to the other at once.
const CHUNK: usize = 256 * 1024;
/// How many of them may wait: what the disk lags behind the decompressor, in memory.
const CHUNKS: usize = 8;

/// What a manifest says of its archive.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Size of the archive.
    pub archive_bytes: u64,
    /// Its SHA-256 in hex.
    pub sha256: &'a str,
    /// The content that comes out of it; an archive that holds more is damaged.
    pub data_bytes: u64,
}

/// Extracts `archive` into the folder `staging`, which must not exist. Syncing it is the caller's. On any error the folder
/// is gone again, and nothing outside of it was touched.
pub fn extract<'a>(
    archive: &File,
    expected: Expected<'_>,
    staging: &Path,
    min_free: u64,
    progress: &'a mut Progress<'a>,
) -> Result<(), Error> {
    rustix::fs::mkdir(staging, rustix::fs::Mode::RWXU)
        .map_err(|errno| host("make the staging folder")(errno.into()))?;
    let result = fill(archive, expected, staging, min_free, progress);
    if result.is_err()
        && let Err(error) = remove_tree(staging)
    {
        tracing::warn!(%error, "a staging folder could not be removed; the next start does");
    }
    result
}

fn fill<'a>(
    archive: &File,
    expected: Expected<'_>,
    staging: &Path,
    min_free: u64,
    progress: &'a mut Progress<'a>,
) -> Result<(), Error> {
    let root = File::open(staging).map_err(host("open the staging folder"))?;
    let meter = Meter::new(progress).keep_free(&root, min_free).map_err(host("dup"))?;
    let mut extractor = Extractor::new(&root, meter, expected.data_bytes).map_err(host("open the staging folder"))?;
    std::thread::scope(|scope| {
        let (full, chunks) = sync_channel(CHUNKS);
        let (empty, spare) = sync_channel(CHUNKS + 2);
        let decoder = scope.spawn(move || decode(archive, &full, &spare));
        let mut entries = Entries::new(Chunks { chunks, empty, chunk: Vec::new(), at: 0 });
        let extracted = extractor.extract(&mut entries);
        // Ends the decoder if it still waits for room; after a whole extraction it is done anyway.
        drop(entries);
        let decoded = decoder.join().unwrap_or_else(|_| Err(io::Error::other("the decoder panicked")));
        extracted?;
        let (bytes, sha256) = decoded.map_err(damaged)?;
        if bytes != expected.archive_bytes || sha256 != expected.sha256 {
            return Err(Error::Damaged(format!("{bytes} bytes with SHA-256 {sha256} are not those of the manifest")));
        }
        extractor.finish()
    })
}

/// Any failure to read an archive means that it cannot be restored, a bad disk as much as a bad bit.
pub(super) fn damaged(error: io::Error) -> Error {
    Error::Damaged(error.to_string())
}

/// Decompresses all of `archive` into chunks; returns its size and SHA-256.
fn decode(
    archive: &File,
    full: &SyncSender<io::Result<Vec<u8>>>,
    spare: &Receiver<Vec<u8>>,
) -> io::Result<(u64, String)> {
    let hashed = Hashed { file: archive, hash: Sha256::new(), read: 0 };
    let mut decoder = zstd::Decoder::with_buffer(BufReader::with_capacity(CHUNK, hashed))?;
    loop {
        let mut chunk = spare.try_recv().unwrap_or_default();
        chunk.resize(CHUNK, 0);
        let mut filled = 0;
        while filled < chunk.len() {
            match decoder.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) => {
                    let _ = full.send(Err(io::Error::new(error.kind(), error.to_string())));
                    return Err(error);
                }
            }
        }
        chunk.truncate(filled);
        if filled == 0 || full.send(Ok(chunk)).is_err() {
            let hashed = decoder.finish().into_inner();
            return Ok((hashed.read, format!("{:x}", hashed.hash.finalize())));
        }
    }
}

/// The archive's file, hashed as it is read.
struct Hashed<'f> {
    file: &'f File,
    hash: Sha256,
    read: u64,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.read += read as u64;
        Ok(read)
    }
}

/// The decoder's chunks as one stream.
pub(super) struct Chunks {
    chunks: Receiver<io::Result<Vec<u8>>>,
    empty: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.chunk.len() {
            let done = std::mem::take(&mut self.chunk);
            if done.capacity() > 0 {
                let _ = self.empty.try_send(done);
            }
            self.at = 0;
            if let Ok(next) = self.chunks.recv() {
                self.chunk = next?;
            }
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount;
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let fits = bytes.len().min(buffer.len());
        buffer[..fits].copy_from_slice(&bytes[..fits]);
        self.consume(fits);
        Ok(fits)
    }
}

/// What an entry's path must be, as a restore's error.
pub(super) fn components(path: &[u8]) -> Result<Vec<&[u8]>, Error> {
    plan::components(path).map_err(|malformed| Error::Damaged(malformed.0))
}
