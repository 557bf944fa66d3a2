//! Journal records, sans I/O: `[length: u32 LE][stream: u8][payload]`, the length counting stream and payload.
//!
//! The part behind the length is the very frame that goes to a client, so a replayed record is the live one byte for
//! byte, borders included. Streams 1 and 2 are output, 3 the exit; the letters are the journal's own.

use bytes::Bytes;

use crate::wire::frame;

/// The journal's first record in each segment: JSON that describes the session.
pub const HEADER: u8 = b'H';
/// The leader's pid and start time: `[i32 LE][u64 LE]`.
pub const LEADER: u8 = b'P';
/// Bytes of the length in front of each record.
pub const LENGTH: usize = 4;
/// The longest record that is believed. Headers hold argv, so they can be large; output records are 64 KiB at most.
pub const MAX_RECORD: usize = 1 << 20;

/// The length field of a record whose frame has `frame_len` bytes.
pub fn length_prefix(frame_len: usize) -> [u8; LENGTH] {
    u32::try_from(frame_len).unwrap_or(u32::MAX).to_le_bytes()
}

/// Takes the first whole record off `buffer`: its frame, or `None` when the buffer ends inside it, or an error when
/// what stands there can be no record.
pub fn split_first(buffer: &mut Bytes) -> Result<Option<Bytes>, Damaged> {
    let Some(prefix) = buffer.first_chunk::<LENGTH>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length == 0 || length > MAX_RECORD {
        return Err(Damaged);
    }
    if buffer.len() < LENGTH + length {
        return Ok(None);
    }
    let mut record = buffer.split_to(LENGTH + length);
    let frame = record.split_off(LENGTH);
    if !matches!(frame[0], frame::STDOUT | frame::STDERR | frame::EXIT | HEADER | LEADER) {
        return Err(Damaged);
    }
    Ok(Some(frame))
}

/// What stands there is no record: the journal ends in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// Bytes of output in a frame: what clients count.
pub fn output_len(frame: &[u8]) -> u64 {
    match frame.first() {
        Some(&(frame::STDOUT | frame::STDERR)) => frame.len() as u64 - 1,
        _ => 0,
    }
}

/// An exit frame for the journal: the code, and when it happened in Unix milliseconds.
pub fn exit(code: u8, at_millis: i64) -> Bytes {
    let mut payload = vec![code];
    payload.extend_from_slice(&at_millis.to_le_bytes());
    frame::encode(frame::EXIT, &payload)
}

/// Reads an exit frame.
pub fn parse_exit(frame: &[u8]) -> Option<(u8, i64)> {
    match frame {
        [frame::EXIT, code, at @ ..] => Some((*code, at.try_into().map(i64::from_le_bytes).unwrap_or_default())),
        _ => None,
    }
}

/// The leader's identity as a frame.
pub fn leader(pid: i32, start: u64) -> Bytes {
    let mut payload = pid.to_le_bytes().to_vec();
    payload.extend_from_slice(&start.to_le_bytes());
    frame::encode(LEADER, &payload)
}

/// Reads a leader frame.
pub fn parse_leader(frame: &[u8]) -> Option<(i32, u64)> {
    let rest = frame.strip_prefix(&[LEADER])?;
    let (pid, start) = rest.split_first_chunk::<4>()?;
    Some((i32::from_le_bytes(*pid), u64::from_le_bytes(start.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(frame: &[u8]) -> Vec<u8> {
        [length_prefix(frame.len()).as_slice(), frame].concat()
    }

    #[test]
    fn records_come_back_whole_and_a_torn_one_is_not_taken() {
        let mut text = encode(b"\x01out");
        text.extend(encode(&exit(7, 1234)));
        text.extend(&encode(b"\x02err")[..5]);
        let mut buffer = Bytes::from(text);
        assert_eq!(split_first(&mut buffer), Ok(Some(Bytes::from_static(b"\x01out"))));
        let exit = split_first(&mut buffer).unwrap().unwrap();
        assert_eq!(parse_exit(&exit), Some((7, 1234)));
        assert_eq!(split_first(&mut buffer), Ok(None));
        assert_eq!(buffer.len(), 5);
        assert_eq!(parse_leader(&leader(42, 99)), Some((42, 99)));
    }

    #[test]
    fn zeros_and_nonsense_end_the_journal() {
        for bytes in [&[0u8; 16][..], &encode(b"\x09what"), &[0xff; 16]] {
            assert_eq!(split_first(&mut Bytes::copy_from_slice(bytes)), Err(Damaged));
        }
    }
}
