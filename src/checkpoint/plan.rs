//! What an entry of a checkpoint's archive is, and how it is written as a tar header and read back.
//!
//! The archive is an ordinary PAX tar. In come entries or bytes, out go bytes or entries; this module never touches a
//! file, and no input may make it panic. [`decode`] is the entry point for fuzzing.

use std::io::{self, BufRead, Read};

use tar::{EntryType, Header};

use super::pax::{self, Malformed, MapReader, Segment, Time, malformed};

/// Size of a tar block.
pub const BLOCK: usize = 512;
/// The most that one entry's extended header may hold: a path and its xattrs, which the kernel keeps to 64 KiB each.
const MAX_EXTENDED: u64 = 16 << 20;
/// How many bytes may follow the end marks: other tools fill up to a record of 10 KiB.
const MAX_TRAILER: u64 = 1 << 20;
/// The largest time that twelve octal digits of a header hold; later or earlier ones need a record.
const MAX_HEADER_TIME: u64 = 0o77_777_777_777;
/// Prefix of the keywords that hold extended attributes.
const XATTR: &[u8] = b"SCHILY.xattr.";

/// One file, directory or other thing of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it lies below the root of the tree, without a leading or trailing slash; `.` is the root itself.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, set-id and sticky bits: `mode & 0o7777`.
    pub mode: u32,
    /// Owner, as seen by whoever walks the tree.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// When its content changed last.
    pub mtime: Time,
    /// Extended attributes, capabilities and ACLs among them. Binary.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file of `size` bytes; with a map if it has holes, and then only the segments' bytes follow.
    File {
        /// Length, holes included.
        size: u64,
        /// Where its data lies, if it has holes.
        sparse: Option<Vec<Segment>>,
    },
    /// Another name of an earlier entry.
    HardLink(Vec<u8>),
    /// A symbolic link and what it says, which may be anything.
    Symlink(Vec<u8>),
    /// A FIFO.
    Fifo,
    /// A character device (0:0 is an overlay's whiteout).
    CharDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
}

impl Entry {
    /// How many bytes of content follow the header.
    pub fn data_len(&self) -> u64 {
        match &self.kind {
            Kind::File { sparse: Some(segments), .. } => segments.iter().map(|segment| segment.len).sum(),
            Kind::File { size, .. } => *size,
            _ => 0,
        }
    }
}

/// Whether an attribute belongs to the tree. Labels of the host's security modules and an overlay's notes about the
/// directory it once lay in do not: on another tree they would be wrong.
pub fn keeps_xattr(name: &[u8]) -> bool {
    if let Some(overlay) = name.strip_prefix(b"user.overlay.").or_else(|| name.strip_prefix(b"trusted.overlay.")) {
        return !matches!(overlay, b"uuid" | b"origin" | b"impure");
    }
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || matches!(name, b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default")
}

/// Splits an archive's path into its components. An absolute path, `..`, a NUL or nothing at all is an error; `.` and
/// doubled slashes are dropped, so the root itself has no components.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    if path.is_empty() || path[0] == b'/' {
        return malformed("a path is empty or absolute");
    }
    let mut parts = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return malformed("a path climbs out of the tree"),
            part if part.contains(&0) => return malformed("a path holds a NUL"),
            part => parts.push(part),
        }
    }
    Ok(parts)
}

/// Appends an entry's header blocks (and the map of a sparse file). Its content, filled up to whole blocks, is next.
pub fn encode(entry: &Entry, out: &mut Vec<u8>) {
    let mut records = Vec::new();
    let mut name = entry.path.clone();
    if matches!(entry.kind, Kind::Directory) {
        name.push(b'/');
    }
    let mut size = entry.data_len();
    let mut map = Vec::new();
    if let Kind::File { size: real, sparse: Some(segments) } = &entry.kind {
        map = pax::encode_map(segments);
        size += map.len() as u64;
        pax::push_record(&mut records, b"GNU.sparse.major", b"1");
        pax::push_record(&mut records, b"GNU.sparse.minor", b"0");
        pax::push_record(&mut records, b"GNU.sparse.name", &name);
        pax::push_record(&mut records, b"GNU.sparse.realsize", real.to_string().as_bytes());
        // A reader that does not know the format sees this name instead of a file with a map in it.
        name = b"GNUSparseFile.0/file".to_vec();
    }
    let (link, device): (&[u8], _) = match &entry.kind {
        Kind::HardLink(target) | Kind::Symlink(target) => (target, None),
        Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) => (b"", Some((*major, *minor))),
        _ => (b"", None),
    };

    let mut header = Header::new_ustar();
    header.set_entry_type(match &entry.kind {
        Kind::Directory => EntryType::Directory,
        Kind::File { .. } => EntryType::Regular,
        Kind::HardLink(_) => EntryType::Link,
        Kind::Symlink(_) => EntryType::Symlink,
        Kind::Fifo => EntryType::Fifo,
        Kind::CharDevice(..) => EntryType::Char,
        Kind::BlockDevice(..) => EntryType::Block,
    });
    header.set_mode(entry.mode);
    header.set_uid(entry.uid.into());
    header.set_gid(entry.gid.into());
    header.set_size(size);
    header.set_mtime(u64::try_from(entry.mtime.secs).unwrap_or(0).min(MAX_HEADER_TIME));
    if let Some(ustar) = header.as_ustar_mut() {
        fill(&mut ustar.name, &name, b"path", &mut records);
        fill(&mut ustar.linkname, link, b"linkpath", &mut records);
    }
    if let Some((major, minor)) = device {
        // The kernel's numbers (12 and 20 bits) always fit the fields, so these cannot fail.
        let _ = header.set_device_major(major);
        let _ = header.set_device_minor(minor);
    }
    let whole = entry.mtime.nanos == 0 && u64::try_from(entry.mtime.secs).is_ok_and(|secs| secs <= MAX_HEADER_TIME);
    if !whole {
        pax::push_record(&mut records, b"mtime", entry.mtime.to_pax().as_bytes());
    }
    for (name, value) in &entry.xattrs {
        pax::push_record(&mut records, &[XATTR, &pax::encode_xattr_name(name)].concat(), value);
    }

    if !records.is_empty() {
        let mut extended = Header::new_ustar();
        extended.set_entry_type(EntryType::XHeader);
        extended.set_mode(0o644);
        extended.set_uid(0);
        extended.set_gid(0);
        extended.set_size(records.len() as u64);
        if let Some(ustar) = extended.as_ustar_mut() {
            ustar.name[..11].copy_from_slice(b"PaxHeader/x");
        }
        extended.set_cksum();
        out.extend_from_slice(extended.as_bytes());
        out.extend_from_slice(&records);
        out.resize(out.len() + padding(records.len() as u64), 0);
    }
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&map);
}

/// Puts a value into a header's field, or into a record when it is too long for that.
fn fill(field: &mut [u8; 100], value: &[u8], key: &[u8], records: &mut Vec<u8>) {
    let fits = value.len().min(field.len());
    field[..fits].copy_from_slice(&value[..fits]);
    if fits < value.len() {
        pax::push_record(records, key, value);
    }
}

/// How many zeros fill `len` bytes up to whole blocks.
pub fn padding(len: u64) -> usize {
    (len.wrapping_neg() % BLOCK as u64) as usize
}

/// The two blocks that end an archive.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Reads entries from an uncompressed archive. Strict: what [`encode`] never writes, beyond harmless variants of other
/// tools, is [`Malformed`] and so ends the restore.
#[derive(Debug)]
pub struct Entries<R> {
    input: R,
    /// Content of the current entry that has not been read.
    left: u64,
    /// Filling after it.
    filling: usize,
}

impl<R: BufRead> Entries<R> {
    /// Starts at the first block of an archive.
    pub fn new(input: R) -> Self {
        Self { input, left: 0, filling: 0 }
    }

    /// The next entry, after skipping what was not read of the last one; `None` after the end marks.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        while self.left > 0 {
            let skipped = self.chunk()?.len();
            self.consume(skipped);
        }
        self.skip_filling()?;
        let mut extended = Vec::new();
        loop {
            let Some(header) = self.header()? else {
                if !extended.is_empty() {
                    return Err(Malformed("the archive ends after an extended header".into()).into());
                }
                return Ok(None);
            };
            if header.entry_type() != EntryType::XHeader {
                return self.entry(&header, &extended).map(Some);
            }
            let size = header.entry_size().map_err(|_| Malformed("a size is not a number".into()))?;
            if size > MAX_EXTENDED || !extended.is_empty() {
                return Err(Malformed("an extended header is too long, or follows another".into()).into());
            }
            (&mut self.input).take(size).read_to_end(&mut extended)?;
            if (extended.len() as u64) < size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.filling = padding(size);
            self.skip_filling()?;
        }
    }

    /// Some of the current entry's content; empty only when all of it has been consumed.
    pub fn chunk(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let bytes = self.input.fill_buf()?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(&bytes[..bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX))])
    }

    /// Marks `amount` bytes of [`Entries::chunk`] as read.
    pub fn consume(&mut self, amount: usize) {
        self.input.consume(amount);
        self.left -= amount as u64;
    }

    /// Reads whatever follows the end marks, so that a checksum over the input covers all of it.
    pub fn drain(&mut self) -> io::Result<()> {
        let copied = io::copy(&mut (&mut self.input).take(MAX_TRAILER + 1), &mut io::sink())?;
        if copied > MAX_TRAILER {
            return Err(Malformed("the archive goes on after its end".into()).into());
        }
        Ok(())
    }

    fn block(&mut self) -> io::Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block)?;
        Ok(block)
    }

    fn skip_filling(&mut self) -> io::Result<()> {
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block[..self.filling])?;
        self.filling = 0;
        Ok(())
    }

    /// The next header whose checksum holds, or `None` at the end marks.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let block = self.block()?;
        if block == [0; BLOCK] {
            if self.block()? != [0; BLOCK] {
                return Err(Malformed("a lone zero block inside the archive".into()).into());
            }
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        let sum: u32 =
            block.iter().enumerate().map(|(i, &b)| if (148..156).contains(&i) { 32 } else { b.into() }).sum();
        if header.as_ustar().is_none() && header.as_gnu().is_none() || header.cksum().ok() != Some(sum) {
            return Err(Malformed("a header is damaged".into()).into());
        }
        Ok(Some(header))
    }

    fn entry(&mut self, header: &Header, extended: &[u8]) -> io::Result<Entry> {
        let field = |value: io::Result<u64>| value.map_err(|_| Malformed("a header's field is not a number".into()));
        let id = |value: u64| u32::try_from(value).map_err(|_| Malformed("an owner is out of range".into()));
        let mut path = header.path_bytes().into_owned();
        let mut link = header.link_name_bytes().unwrap_or_default().into_owned();
        let mut size = field(header.entry_size())?;
        let mut uid = id(field(header.uid())?)?;
        let mut gid = id(field(header.gid())?)?;
        let secs = i64::try_from(field(header.mtime())?).map_err(|_| Malformed("a time is out of range".into()))?;
        let mut mtime = Time { secs, nanos: 0 };
        let mut xattrs = Vec::new();
        let (mut sparse, mut real_name, mut real_size) = (None, None, None);
        for record in pax::records(extended) {
            let (key, value) = record?;
            match key {
                b"path" => path = value.to_vec(),
                b"linkpath" => link = value.to_vec(),
                b"size" => size = pax::number(value)?,
                b"uid" => uid = id(pax::number(value)?)?,
                b"gid" => gid = id(pax::number(value)?)?,
                b"mtime" => mtime = Time::from_pax(value)?,
                b"GNU.sparse.major" => sparse = Some(value),
                b"GNU.sparse.name" => real_name = Some(value.to_vec()),
                b"GNU.sparse.realsize" => real_size = Some(pax::number(value)?),
                _ => {
                    if let Some(name) = key.strip_prefix(XATTR) {
                        xattrs.push((pax::decode_xattr_name(name), value.to_vec()));
                    }
                }
            }
        }
        let device = || -> Result<(u32, u32), Malformed> {
            match (header.device_major(), header.device_minor()) {
                (Ok(Some(major)), Ok(Some(minor))) => Ok((major, minor)),
                _ => malformed("a device has no numbers"),
            }
        };
        let kind = match header.entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Regular => Kind::File { size, sparse: None },
            EntryType::Link => Kind::HardLink(link),
            EntryType::Symlink => Kind::Symlink(link),
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char => device().map(|(major, minor)| Kind::CharDevice(major, minor))?,
            EntryType::Block => device().map(|(major, minor)| Kind::BlockDevice(major, minor))?,
            _ => return Err(Malformed("an entry of a kind that checkpoints do not hold".into()).into()),
        };
        let mode = header.mode().map_err(|_| Malformed("a mode is not a number".into()))? & 0o7777;
        let mut entry = Entry { path, kind, mode, uid, gid, mtime, xattrs };
        if matches!(entry.kind, Kind::File { .. }) {
            self.left = size;
            self.filling = padding(size);
        }
        if let (Kind::File { size: length, sparse: map }, Some(major)) = (&mut entry.kind, sparse) {
            let (b"1", Some(name), Some(real)) = (major, real_name, real_size) else {
                return Err(Malformed("a sparse file of another format".into()).into());
            };
            entry.path = name;
            *length = real;
            let segments = self.map()?;
            if pax::check_map(&segments, real)? != self.left {
                return Err(Malformed("a sparse file's map and its data disagree".into()).into());
            }
            *map = Some(segments);
        }
        if matches!(entry.kind, Kind::Directory) {
            while entry.path.len() > 1 && entry.path.ends_with(b"/") {
                entry.path.pop();
            }
        }
        Ok(entry)
    }

    /// The map at the head of a sparse file's data.
    fn map(&mut self) -> io::Result<Vec<Segment>> {
        let mut reader = MapReader::default();
        loop {
            self.left = self
                .left
                .checked_sub(BLOCK as u64)
                .ok_or_else(|| Malformed("a sparse file's map is longer than the file".into()))?;
            if let Some(segments) = reader.block(&self.block()?)? {
                return Ok(segments);
            }
        }
    }
}

/// Reads a whole uncompressed archive in memory and returns its entries, each with a path that stays inside the tree.
/// Never panics: this is what the fuzzer calls.
pub fn decode(bytes: &[u8]) -> io::Result<Vec<Entry>> {
    let mut entries = Entries::new(bytes);
    let mut found = Vec::new();
    while let Some(entry) = entries.next_entry()? {
        components(&entry.path)?;
        if let Kind::HardLink(target) = &entry.kind {
            components(target)?;
        }
        found.push(entry);
    }
    entries.drain()?;
    Ok(found)
}
