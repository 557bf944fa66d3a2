//! Any bytes as a journal: whole records, then an end, and what was taken encodes back to what was read.
#![no_main]

use bytes::Bytes;
use fountain::agent::session::record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut left = Bytes::copy_from_slice(bytes);
    let mut at = 0;
    while let Ok(Some(frame)) = record::split_first(&mut left) {
        let prefix = record::length_prefix(frame.len());
        assert_eq!(bytes[at..at + prefix.len()], prefix);
        at += prefix.len() + frame.len();
        assert_eq!(bytes[at - frame.len()..at], frame[..]);
        assert!(record::output_len(&frame) < frame.len() as u64);
        _ = (record::parse_exit(&frame), record::parse_leader(&frame));
    }
    assert_eq!(bytes[at..], left[..]);
});
