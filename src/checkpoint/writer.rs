//! Writes a tree as one `tar` archive, compressed by zstd and hashed while it streams: no second pass over anything.
//!
//! Must never write a damaged archive: a file that changes its size while it is read is filled up or cut to the size in
//! its header, one that vanishes is left out, and any real error discards the whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::attributes::{At, describe};
use super::pax::{MAX_SEGMENTS, Segment};
use super::plan::{self, END, Entry, Kind};
use super::walk::{Step, Walk, with_mode};
use super::{Error, Meter, Progress, host};

/// Input handed to the compressor at once; fits the cache of a core.
const BUFFER: usize = 256 * 1024;
/// Compressed bytes after which the disk is asked to begin writing, so that the last fsync finds little left to do.
const FLUSH_EVERY: u64 = 16 << 20;
/// How a file is opened: never through a link, never waiting for a FIFO's other end.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// How an archive is written.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// zstd's level.
    pub level: i32,
    /// The most bytes the archive may have; more is [`Error::TooLarge`].
    pub max_bytes: u64,
    /// Free bytes below which the archive is given up with [`Error::DiskLow`].
    pub min_free: u64,
}

impl Default for Options {
    /// Level 1: the sprite stands still while its disk is archived, so speed counts for more than size.
    fn default() -> Self {
        Self { level: 1, max_bytes: u64::MAX, min_free: 0 }
    }
}

/// What went into an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries, directories and the root included.
    pub files: u64,
    /// Bytes of content, holes not included.
    pub data_bytes: u64,
    /// Size of the archive.
    pub archive_bytes: u64,
    /// SHA-256 of the archive, in hex.
    pub sha256: String,
    /// Sockets, which an archive cannot hold.
    pub sockets: u64,
    /// Files that were gone when their turn came.
    pub vanished: u64,
    /// Files that changed their size while they were read.
    pub changed: u64,
    /// Directories on other file systems, whose content was left out.
    pub mounts: u64,
}

/// Archives the tree below `root` into `out`, which must be empty, and returns once all of it is on disk.
pub fn write<'a>(root: &Path, out: &File, options: Options, progress: &'a mut Progress<'a>) -> Result<Summary, Error> {
    let meter = Meter::new(progress).keep_free(out, options.min_free).map_err(host("dup"))?;
    let (flush, flushes) = sync_channel(1);
    let sink = Sink { file: out, hash: Sha256::new(), written: 0, flushed: 0, max: options.max_bytes, flush };
    std::thread::scope(|scope| {
        scope.spawn(move || flush_as_told(out, &flushes));
        let encoder = encoder(sink, options.level).map_err(host("zstd"))?;
        let stream = Stream { buffer: vec![0; BUFFER].into_boxed_slice(), filled: 0, encoder };
        let archive = Archive { stream, meter, links: HashMap::new(), summary: Summary::default(), header: Vec::new() };
        archive.write(root).map_err(|error| match error {
            Error::Failed { source, .. } if is_too_large(&source) => Error::TooLarge(options.max_bytes),
            other => other,
        })
    })
}

fn encoder(sink: Sink<'_>, level: i32) -> io::Result<zstd::Encoder<'static, Sink<'_>>> {
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get()).min(8);
    let mut encoder = zstd::Encoder::new(sink, level)?;
    encoder.include_checksum(true)?;
    encoder.multithread(u32::try_from(workers).unwrap_or(1))?;
    Ok(encoder)
}

/// Starts the disk on what was written so far, each time it is told to. An error shows again in the last fsync.
fn flush_as_told(file: &File, told: &Receiver<()>) {
    while told.recv().is_ok() {
        let _ = file.sync_data();
    }
}

/// Where compressed bytes go.
struct Sink<'f> {
    file: &'f File,
    hash: Sha256,
    written: u64,
    flushed: u64,
    max: u64,
    flush: SyncSender<()>,
}

/// Marks the error of a [`Sink`] that was told to hold no more.
#[derive(Debug, thiserror::Error)]
#[error("the archive is larger than allowed")]
struct ArchiveTooLarge;

fn is_too_large(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<ArchiveTooLarge>())
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > self.max {
            return Err(io::Error::other(ArchiveTooLarge));
        }
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.written += written as u64;
        if self.written - self.flushed >= FLUSH_EVERY && self.flush.try_send(()).is_ok() {
            self.flushed = self.written;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A large buffer before the compressor, into which files are read directly.
struct Stream<'f> {
    buffer: Box<[u8]>,
    filled: usize,
    encoder: zstd::Encoder<'static, Sink<'f>>,
}

impl Stream<'_> {
    fn flush(&mut self) -> Result<(), Error> {
        let full = &self.buffer[..self.filled];
        self.filled = 0;
        self.encoder.write_all(full).map_err(host("write the archive"))
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let fits = room.len().min(bytes.len());
            room[..fits].copy_from_slice(&bytes[..fits]);
            self.filled += fits;
            bytes = &bytes[fits..];
        }
        Ok(())
    }

    /// Free space of the buffer, never empty.
    fn room(&mut self) -> Result<&mut [u8], Error> {
        if self.filled == self.buffer.len() {
            self.flush()?;
        }
        Ok(&mut self.buffer[self.filled..])
    }
}

struct Archive<'a, 'f> {
    stream: Stream<'f>,
    meter: Meter<'a>,
    /// The first path of each file that has further names to come, and how many.
    links: HashMap<(u64, u64), (Vec<u8>, usize)>,
    summary: Summary,
    header: Vec<u8>,
}

impl Archive<'_, '_> {
    fn write(mut self, root: &Path) -> Result<Summary, Error> {
        let mut walk = Walk::new(root).map_err(host("open the sprite's disk"))?;
        let stat = rustix::fs::fstat(walk.dir()).map_err(|errno| host("stat the sprite's disk")(errno.into()))?;
        let entry = describe(At::Fd(walk.dir()), b".", Kind::Directory, &stat);
        self.header(&entry.map_err(|source| Error::system("read", b".", source))?)?;
        let walking = |walk: &Walk| walk.path().to_vec();
        while let Some(step) = walk.step().map_err(|source| Error::system("walk", b"", source))? {
            let Step::Entry(file_type) = step else { continue };
            match self.add(&mut walk, file_type) {
                Err(Adding::Read(source)) if source.kind() == io::ErrorKind::NotFound => self.summary.vanished += 1,
                Err(Adding::Read(source)) => return Err(Error::system("read", &walking(&walk), source)),
                Err(Adding::Write(error)) => return Err(error),
                Ok(()) => {}
            }
            self.meter.tick()?;
        }
        self.stream.put(&END)?;
        self.stream.flush()?;
        let sink = self.stream.encoder.finish().map_err(host("write the archive"))?;
        sink.file.sync_all().map_err(host("fsync the archive"))?;
        self.summary.archive_bytes = sink.written;
        self.summary.sha256 = format!("{:x}", sink.hash.finalize());
        (self.summary.files, self.summary.data_bytes) = (self.meter.files, self.meter.bytes);
        Ok(self.summary)
    }

    /// Adds the walk's current entry.
    fn add(&mut self, walk: &mut Walk, file_type: FileType) -> Result<(), Adding> {
        match file_type {
            FileType::Directory => self.directory(walk),
            FileType::RegularFile => {
                let (fd, stat) = match open(walk) {
                    // A link took the name's place.
                    Err(Errno::LOOP) => return self.special(walk),
                    opened => opened?,
                };
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return self.special(walk);
                }
                if self.link(walk, &stat)? {
                    return Ok(());
                }
                self.file(walk, &fd, &stat)?;
                self.remember(walk, &stat);
                Ok(())
            }
            _ => self.special(walk),
        }
    }

    fn directory(&mut self, walk: &mut Walk) -> Result<(), Adding> {
        let (fd, stat) = walk.open_dir()?;
        self.header(&describe(At::Fd(fd.as_fd()), walk.path(), Kind::Directory, &stat)?)?;
        // Only directories are asked for their file system: an overlay lends files another device number.
        if Some(stat.st_dev) != walk.device() {
            self.summary.mounts += 1;
            return Ok(());
        }
        Ok(walk.enter(fd, &stat)?)
    }

    /// Whatever is described by its name alone, and what the directory did not know or no longer is.
    fn special(&mut self, walk: &mut Walk) -> Result<(), Adding> {
        let stat = rustix::fs::statat(walk.dir(), walk.name(), AtFlags::SYMLINK_NOFOLLOW)?;
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.directory(walk),
            FileType::RegularFile => return self.add(walk, FileType::RegularFile),
            FileType::Symlink => {
                Kind::Symlink(rustix::fs::readlinkat(walk.dir(), walk.name(), Vec::new())?.into_bytes())
            }
            FileType::Fifo => Kind::Fifo,
            FileType::CharacterDevice => Kind::CharDevice(device.0, device.1),
            FileType::BlockDevice => Kind::BlockDevice(device.0, device.1),
            FileType::Socket | FileType::Unknown => {
                self.summary.sockets += 1;
                return Ok(());
            }
        };
        if self.link(walk, &stat)? {
            return Ok(());
        }
        let entry = describe(At::Name(walk.dir(), walk.name()), walk.path(), kind, &stat)?;
        self.header(&entry)?;
        self.remember(walk, &stat);
        Ok(())
    }

    /// Remembers a file that went into the archive and has further names, perhaps in this tree.
    fn remember(&mut self, walk: &Walk, stat: &Stat) {
        if stat.st_nlink > 1 {
            // The field's type differs between architectures.
            let further = usize::try_from(stat.st_nlink).unwrap_or(usize::MAX) - 1;
            self.links.insert((stat.st_dev, stat.st_ino), (walk.path().to_vec(), further));
        }
    }

    /// Adds the walk's entry as a further name, if the file is already in the archive.
    fn link(&mut self, walk: &Walk, stat: &Stat) -> Result<bool, Adding> {
        let id = (stat.st_dev, stat.st_ino);
        let Some((first, left)) = self.links.get_mut(&id) else { return Ok(false) };
        let kind = Kind::HardLink(first.clone());
        *left -= 1;
        if *left == 0 {
            self.links.remove(&id);
        }
        let (mode, uid, gid) = (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid);
        let path = walk.path().to_vec();
        self.header(&Entry { path, kind, mode, uid, gid, mtime: Default::default(), xattrs: Vec::new() })?;
        Ok(true)
    }

    fn file(&mut self, walk: &Walk, fd: &OwnedFd, stat: &Stat) -> Result<(), Adding> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let allocated = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        let sparse = if allocated < size { holes(fd, size)? } else { None };
        let entry = describe(At::Fd(fd.as_fd()), walk.path(), Kind::File { size, sparse }, stat)?;
        self.header(&entry)?;
        let mut changed = false;
        match &entry.kind {
            Kind::File { sparse: Some(segments), .. } => {
                for segment in segments {
                    changed |= self.content(walk, fd, *segment)?;
                }
            }
            _ => changed = self.content(walk, fd, Segment { offset: 0, len: size })?,
        }
        self.summary.changed += u64::from(changed);
        Ok(self.stream.put(&END[..plan::padding(entry.data_len())])?)
    }

    /// Copies one run of a file. What has gone from its end since is written as zeros, and that is told.
    fn content(&mut self, walk: &Walk, fd: &OwnedFd, segment: Segment) -> Result<bool, Adding> {
        let mut offset = segment.offset;
        let end = segment.offset + segment.len;
        let mut gone = false;
        while offset < end {
            let room = self.stream.room()?;
            let wanted = room.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
            let room = &mut room[..wanted];
            let mut read = 0;
            if !gone {
                read = loop {
                    match rustix::io::pread(fd, &mut *room, offset) {
                        Err(Errno::INTR) => {}
                        // Not `?`: a file that cannot be read in its middle must not count as vanished.
                        Err(errno) => return Err(Adding::Write(Error::system("read", walk.path(), errno))),
                        Ok(read) => break read,
                    }
                };
                gone = read == 0;
            }
            if gone {
                room.fill(0);
                read = wanted;
            }
            self.stream.filled += read;
            offset += read as u64;
            self.meter.bytes += read as u64;
            self.meter.tick()?;
        }
        Ok(gone)
    }

    fn header(&mut self, entry: &Entry) -> Result<(), Error> {
        self.meter.files += 1;
        self.header.clear();
        plan::encode(entry, &mut self.header);
        self.stream.put(&self.header)
    }
}

/// Why an entry was not added: because of the tree, where a vanished file is no failure, or because of the archive.
enum Adding {
    Read(io::Error),
    Write(Error),
}

impl From<Errno> for Adding {
    fn from(errno: Errno) -> Self {
        Self::Read(errno.into())
    }
}

impl From<io::Error> for Adding {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<Error> for Adding {
    fn from(error: Error) -> Self {
        Self::Write(error)
    }
}

/// Opens the walk's current entry for reading, without touching its access time where that is allowed.
fn open(walk: &Walk) -> rustix::io::Result<(OwnedFd, Stat)> {
    let open = |flags| rustix::fs::openat(walk.dir(), walk.name(), flags, Mode::empty());
    let fd = match open(OPEN | OFlags::NOATIME) {
        Err(Errno::PERM) => open(OPEN)?,
        // A file that its owner closed to himself.
        Err(Errno::ACCESS) => with_mode(walk.dir(), walk.name(), Mode::RUSR, || open(OPEN))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::ACCESS))?,
        other => other?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    Ok((fd, stat))
}

/// The runs of data in a file that has holes, or `None` if it has none after all.
fn holes(fd: &OwnedFd, size: u64) -> rustix::io::Result<Option<Vec<Segment>>> {
    let mut segments = Vec::new();
    let mut end = 0;
    while end < size {
        let offset = match rustix::fs::seek(fd, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => break,
            // A file system that does not know where its holes are.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(None),
            offset => offset?.min(size),
        };
        if offset == size {
            break;
        }
        end = match rustix::fs::seek(fd, SeekFrom::Hole(offset)) {
            Err(Errno::NXIO) => size, // It shrank just now; what is missing is filled up when it is read.
            hole => hole?.min(size),
        };
        segments.push(Segment { offset, len: end - offset });
        if segments.len() >= MAX_SEGMENTS {
            return Ok(None);
        }
    }
    if matches!(segments[..], [Segment { offset: 0, len }] if len == size) {
        return Ok(None);
    }
    if end < size {
        // How the format says where the file ends.
        segments.push(Segment { offset: size, len: 0 });
    }
    Ok(Some(segments))
}
