//! Binary frames of a session (wire/exec.md §2): `[stream][payload]` without a TTY, raw bytes with one.

use bytes::{BufMut, Bytes, BytesMut};

/// Client → server: bytes for stdin.
pub const STDIN: u8 = 0;
/// Server → client: stdout.
pub const STDOUT: u8 = 1;
/// Server → client: stderr.
pub const STDERR: u8 = 2;
/// Server → client: the exit code, one byte.
pub const EXIT: u8 = 3;
/// Client → server: end of stdin, no payload.
pub const STDIN_EOF: u8 = 4;

/// What a client's binary message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Bytes for the process.
    Bytes(Bytes),
    /// End of input.
    Eof,
    /// A JSON control message sent as binary (the JS SDK on the control channel, wire/exec.md §7.3).
    Control(String),
    /// Nothing that means anything here: dropped, never an error.
    Nothing,
}

/// How a client frames its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputMode {
    /// `00…` and `04`.
    Framed,
    /// As `Framed`, and a JSON object may come as binary (control channel).
    FramedControl,
    /// Raw bytes, but a lone `04` is end of input (the Go SDK on the control channel).
    RawWithEof,
    /// A terminal: every byte is input.
    Raw,
}

/// Reads one binary message of a client.
pub fn decode_input(mode: InputMode, message: Bytes) -> Input {
    match (mode, message.first()) {
        (_, None) => Input::Nothing,
        (InputMode::Raw, _) => Input::Bytes(message),
        (InputMode::RawWithEof, _) if message[..] == [STDIN_EOF] => Input::Eof,
        (InputMode::RawWithEof, _) => Input::Bytes(message),
        (_, Some(&STDIN)) if message.len() == 1 => Input::Nothing,
        (_, Some(&STDIN)) => Input::Bytes(message.slice(1..)),
        (_, Some(&STDIN_EOF)) => Input::Eof,
        (InputMode::FramedControl, Some(b'{')) => match std::str::from_utf8(&message) {
            Ok(text) => Input::Control(text.to_owned()),
            Err(_) => Input::Nothing,
        },
        _ => Input::Nothing,
    }
}

/// A frame with its stream byte in front.
pub fn encode(stream: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(payload.len() + 1);
    frame.put_u8(stream);
    frame.put_slice(payload);
    frame.freeze()
}

/// The exit frame: exactly one byte of code (wire/exec.md §3).
pub fn exit(code: u8) -> Bytes {
    encode(EXIT, &[code])
}

/// The older contract's exit frame, four bytes big-endian; sent only by the `exit_u32` setting.
pub fn exit_u32(code: u8) -> Bytes {
    encode(EXIT, &[0, 0, 0, code])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(mode: InputMode, bytes: &[u8]) -> Input {
        decode_input(mode, Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn golden_frames() {
        assert_eq!(&exit(7)[..], [3, 7]);
        assert_eq!(&exit_u32(7)[..], [3, 0, 0, 0, 7]);
        assert_eq!(&encode(STDOUT, b"out\n")[..], b"\x01out\n");
    }

    #[test]
    fn input_by_mode() {
        assert_eq!(input(InputMode::Framed, b"\0hi"), Input::Bytes(Bytes::from_static(b"hi")));
        assert_eq!(input(InputMode::Framed, b"\x04"), Input::Eof);
        assert_eq!(input(InputMode::Framed, b"\x07x"), Input::Nothing);
        assert_eq!(input(InputMode::Framed, b""), Input::Nothing);
        assert_eq!(input(InputMode::Framed, b"\0"), Input::Nothing);
        assert_eq!(input(InputMode::Framed, b"{}"), Input::Nothing);
        assert_eq!(input(InputMode::FramedControl, b"{}"), Input::Control("{}".into()));
        assert_eq!(input(InputMode::RawWithEof, b"\x04"), Input::Eof);
        assert_eq!(input(InputMode::RawWithEof, b"\x04\x04"), Input::Bytes(Bytes::from_static(b"\x04\x04")));
        assert_eq!(input(InputMode::Raw, b"\x04"), Input::Bytes(Bytes::from_static(b"\x04")));
    }
}
