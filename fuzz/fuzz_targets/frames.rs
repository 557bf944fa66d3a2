//! Any client message, binary or text, in any mode: it means something or nothing.
#![no_main]

use bytes::Bytes;
use fountain::wire::frame::{Input, InputMode, decode_input};
use fountain::wire::message::parse_request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for mode in [InputMode::Framed, InputMode::FramedControl, InputMode::RawWithEof, InputMode::Raw] {
        match decode_input(mode, Bytes::copy_from_slice(bytes)) {
            Input::Bytes(payload) => assert!(!payload.is_empty() && bytes.ends_with(&payload)),
            Input::Control(text) => drop(parse_request(&text)),
            Input::Eof | Input::Nothing => {}
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        _ = parse_request(text);
    }
});
