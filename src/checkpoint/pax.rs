//! The text parts of a PAX archive: extended records, times, xattr keywords and the map of a sparse file (GNU sparse 1.0).
//!
//! Pure: bytes in, bytes out, no I/O, no clock. Nothing here may panic, whatever the bytes are.

use std::fmt;

/// What an archive holds that this product never writes, or that no archive may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, malformed)
    }
}

/// A [`Malformed`] result with `what` as its sentence.
pub(super) fn malformed<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(what.into()))
}

/// Appends one record, `"<length> <key>=<value>\n"`. The value may hold any byte, newlines too: readers go by the length.
pub fn push_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // The length counts its own digits, so it is found by growing it until it fits.
    let rest = key.len() + value.len() + 3;
    let mut total = rest + 1;
    while total != rest + digits(total) {
        total = rest + digits(total);
    }
    out.extend_from_slice(total.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// One record of an extended header: its key and its value.
pub type Record<'a> = (&'a [u8], &'a [u8]);

/// The records of an extended header, read by their length fields.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, Malformed>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let record = next_record(bytes);
        bytes = match &record {
            Ok((_, rest)) => rest,
            Err(_) => &[],
        };
        Some(record.map(|(record, _)| record))
    })
}

fn next_record(bytes: &[u8]) -> Result<(Record<'_>, &[u8]), Malformed> {
    let bad = || Malformed("an extended header is not made of records".into());
    let space = bytes.iter().take(12).position(|&byte| byte == b' ').ok_or_else(bad)?;
    let length = usize::try_from(number(&bytes[..space])?).map_err(|_| bad())?;
    if length <= space || length > bytes.len() {
        return Err(bad());
    }
    let (record, rest) = bytes.split_at(length);
    let body = record[space + 1..].strip_suffix(b"\n").ok_or_else(bad)?;
    let equals = body.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
    Ok(((&body[..equals], &body[equals + 1..]), rest))
}

/// A decimal number without sign or space.
pub fn number(text: &[u8]) -> Result<u64, Malformed> {
    let mut value: u64 = 0;
    if text.is_empty() {
        return malformed("a number is empty");
    }
    for &byte in text {
        if !byte.is_ascii_digit() {
            return malformed("a number holds something else than digits");
        }
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(byte - b'0')))
            .ok_or_else(|| Malformed("a number is too large".into()))?;
    }
    Ok(value)
}

/// A moment as the kernel keeps it: nanoseconds count forward from `secs`, also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// 0 to 999 999 999.
    pub nanos: u32,
}

impl Time {
    /// The decimal that a `mtime` record holds: −1.5 is half a second before −1, so nanoseconds of a negative time turn round.
    pub fn to_pax(self) -> String {
        match self {
            Self { secs, nanos: 0 } => secs.to_string(),
            Self { secs, nanos } if secs < 0 => format!("-{}.{:09}", (secs + 1).unsigned_abs(), 1_000_000_000 - nanos),
            Self { secs, nanos } => format!("{secs}.{nanos:09}"),
        }
    }

    /// Reads a `mtime` record; digits beyond nanoseconds are dropped.
    pub fn from_pax(text: &[u8]) -> Result<Self, Malformed> {
        let (negative, text) = match text.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let point = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
        let whole = i128::from(number(&text[..point])?);
        let mut nanos: u32 = 0;
        let mut unit: u32 = 100_000_000;
        for &byte in text.get(point + 1..).unwrap_or_default() {
            if !byte.is_ascii_digit() {
                return malformed("a time holds something else than digits");
            }
            nanos += u32::from(byte - b'0') * unit;
            unit /= 10;
        }
        let (secs, nanos) = match (negative, nanos) {
            (false, nanos) => (whole, nanos),
            (true, 0) => (-whole, 0),
            (true, nanos) => (-whole - 1, 1_000_000_000 - nanos),
        };
        let secs = i64::try_from(secs).map_err(|_| Malformed("a time is out of range".into()))?;
        Ok(Self { secs, nanos })
    }
}

/// Writes an xattr's name as GNU tar does in a keyword, where `=` would end the key.
pub fn encode_xattr_name(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'%' => out.extend_from_slice(b"%25"),
            b'=' => out.extend_from_slice(b"%3D"),
            _ => out.push(byte),
        }
    }
    out
}

/// The reverse of [`encode_xattr_name`].
pub fn decode_xattr_name(mut name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    while let Some((&first, rest)) = name.split_first() {
        let (byte, rest) = match name {
            [b'%', b'2', b'5', rest @ ..] => (b'%', rest),
            [b'%', b'3', b'D', rest @ ..] => (b'=', rest),
            _ => (first, rest),
        };
        out.push(byte);
        name = rest;
    }
    out
}

/// A run of data in a sparse file; what lies between runs is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where the run begins.
    pub offset: u64,
    /// How long it is. Zero only in the last segment, which then marks the file's end.
    pub len: u64,
}

/// The most segments a map may have. A file with more is written as an ordinary one.
pub const MAX_SEGMENTS: usize = 1 << 20;

/// The map as GNU sparse 1.0 puts it before the data: the count, then offset and length of each, one number a line,
/// filled up with zeros to whole blocks.
pub fn encode_map(segments: &[Segment]) -> Vec<u8> {
    let mut text = format!("{}\n", segments.len());
    for segment in segments {
        text.push_str(&format!("{}\n{}\n", segment.offset, segment.len));
    }
    let mut out = text.into_bytes();
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

/// Reads a map block by block, because only its text says how many blocks it has.
#[derive(Debug, Default)]
pub struct MapReader {
    line: Vec<u8>,
    count: Option<usize>,
    numbers: Vec<u64>,
}

impl MapReader {
    /// Takes the next block. Returns the map once it is complete; the rest of that block is filling.
    pub fn block(&mut self, block: &[u8; 512]) -> Result<Option<Vec<Segment>>, Malformed> {
        for &byte in block {
            if byte != b'\n' {
                self.line.push(byte);
                if self.line.len() > 20 {
                    return malformed("the map of a sparse file is not made of numbers");
                }
                continue;
            }
            let value = number(&self.line)?;
            self.line.clear();
            let count = match self.count {
                Some(count) => {
                    self.numbers.push(value);
                    count
                }
                None => {
                    let count = usize::try_from(value).unwrap_or(usize::MAX);
                    if count > MAX_SEGMENTS {
                        return malformed("the map of a sparse file is too long");
                    }
                    *self.count.insert(count)
                }
            };
            if self.numbers.len() == count * 2 {
                let pairs = self.numbers.chunks_exact(2);
                return Ok(Some(pairs.map(|pair| Segment { offset: pair[0], len: pair[1] }).collect()));
            }
        }
        Ok(None)
    }
}

/// The bytes of data that a map describes, if its segments rise, do not overlap and end within `size`.
pub fn check_map(segments: &[Segment], size: u64) -> Result<u64, Malformed> {
    let mut end = 0;
    let mut data: u64 = 0;
    for segment in segments {
        if segment.offset < end {
            return malformed("the segments of a sparse file overlap");
        }
        end = match segment.offset.checked_add(segment.len) {
            Some(end) if end <= size => end,
            _ => return malformed("a segment of a sparse file lies beyond its end"),
        };
        data += segment.len;
    }
    Ok(data)
}
