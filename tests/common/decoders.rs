//! The exit decoders of the clients, re-told from exec.md §3.1, one small function each. Every transcript that the
//! tests capture is read by all of them, and all of them must read the code that the process really had.

use serde_json::Value;

use super::socket::{Frame, Transcript};

/// What a decoder makes of a socket: a code, or an error as its client would report it.
type Verdict = Result<i64, &'static str>;

type Decoder = fn(&Transcript) -> Verdict;

/// The clients on a direct socket. JS reads a TTY's code from the close code, as 0 or 1.
const DIRECT: &[(&str, Decoder)] = &[
    ("Go", go),
    ("Py", py),
    ("JS", js),
    ("ExA, ExB", |t| elixir(t, exit_u32, "code", true)),
    ("ExC", |t| elixir(t, exit_two_bytes, "exit_code", true)),
    ("ExD", |t| elixir(t, exit_first_byte, "exit_code", true)),
    ("ExE", elixir_e),
    ("third party A", third_party_a),
    ("third party B", third_party_b),
    ("read until close", naive),
];

/// Demands that every decoder reads `code`.
pub fn check_direct(transcript: &Transcript, code: u8) {
    for (name, decode) in DIRECT {
        let wanted = if *name == "JS" && transcript.tty { i64::from(code != 0) } else { i64::from(code) };
        assert_eq!(decode(transcript), Ok(wanted), "{name} reads a wrong exit, TTY {}", transcript.tty);
    }
}

/// What ExA/ExB would read if only binary frames counted: the literal reader of the four-byte contract.
pub fn literal_u32(transcript: &Transcript) -> Option<i64> {
    transcript.frames.iter().find_map(|f| match f {
        Frame::Binary(bytes) => exit_u32(bytes),
        _ => None,
    })
}

fn text_exit(frame: &Frame, key: &str) -> Option<i64> {
    match frame {
        Frame::Text(text) if text["type"] == "exit" => Some(text.get(key).and_then(Value::as_i64).unwrap_or(0)),
        _ => None,
    }
}

fn exit_u32(bytes: &[u8]) -> Option<i64> {
    match *bytes {
        [3, a, b, c, d] => Some(i64::from(u32::from_be_bytes([a, b, c, d]))),
        _ => None,
    }
}

fn exit_two_bytes(bytes: &[u8]) -> Option<i64> {
    match *bytes {
        [3, code] => Some(i64::from(code)),
        _ => None,
    }
}

fn exit_first_byte(bytes: &[u8]) -> Option<i64> {
    match bytes {
        [3] => Some(0),
        [3, code, ..] => Some(i64::from(*code)),
        _ => None,
    }
}

/// Go direct: the first `03` or text exit ends the command; in a TTY binaries are output. A close is an error.
fn go(transcript: &Transcript) -> Verdict {
    for frame in &transcript.frames {
        if let Some(code) = text_exit(frame, "exit_code") {
            return Ok(code);
        }
        if let (Frame::Binary(bytes), false) = (frame, transcript.tty)
            && let Some(code) = exit_first_byte(bytes)
        {
            return Ok(code);
        }
    }
    Err("connection closed")
}

/// Py direct: like Go, but its TTY mode is what `session_info` said last, false before it came.
fn py(transcript: &Transcript) -> Verdict {
    let mut tty = false;
    for frame in &transcript.frames {
        match frame {
            Frame::Text(text) if !text.is_object() => return Err("NetworkError: text that is no object"),
            Frame::Text(text) if text["type"] == "session_info" => tty = text["tty"].as_bool().unwrap_or(false),
            Frame::Binary(bytes) if !tty => {
                if let Some(code) = exit_first_byte(bytes) {
                    return Ok(code);
                }
            }
            _ => {}
        }
        if let Some(code) = text_exit(frame, "exit_code") {
            return Ok(code);
        }
    }
    Err("NetworkError")
}

/// JS: pipe mode reads only `03`, reported on the close; TTY mode reads only the close code.
fn js(transcript: &Transcript) -> Verdict {
    let Frame::Close(close, _) = transcript.end() else { return Err("WebSocket error 1006") };
    if transcript.tty {
        return Ok(i64::from(*close != 1000));
    }
    let first = |frame: &Frame| match frame {
        Frame::Binary(bytes) => exit_first_byte(bytes),
        _ => None,
    };
    Ok(transcript.frames.iter().find_map(first).unwrap_or(-1))
}

/// All Elixir lines: a binary form (pipe mode), a text key (both modes), and whether a Close without exit is 0.
fn elixir(t: &Transcript, binary: fn(&[u8]) -> Option<i64>, key: &str, close_is_zero: bool) -> Verdict {
    for frame in &t.frames {
        if let Some(code) = text_exit(frame, key) {
            return Ok(code);
        }
        match frame {
            Frame::Binary(bytes) if !t.tty => {
                if let Some(code) = binary(bytes) {
                    return Ok(code);
                }
            }
            Frame::Close(..) if close_is_zero => return Ok(0),
            _ => {}
        }
    }
    Err("closed before exit")
}

/// ExE also reads `session_info` when asked: an id of its alphabet, the same every time.
fn elixir_e(transcript: &Transcript) -> Verdict {
    let mut known = None;
    for frame in &transcript.frames {
        let Frame::Text(text) = frame else { continue };
        if text["type"] != "session_info" {
            continue;
        }
        let Some(id) = text["session_id"].as_str() else { return Err("invalid_session_info") };
        let allowed = id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if id.is_empty() || id.len() > 256 || !allowed {
            return Err("invalid_session_info");
        }
        if *known.get_or_insert(id) != id {
            return Err("conflicting_session_info");
        }
    }
    elixir(transcript, exit_first_byte, "exit_code", false)
}

/// Exactly `03 NN`, later data ignored; a text exit is held until the binary one or the close.
fn third_party_a(transcript: &Transcript) -> Verdict {
    let mut held = None;
    for frame in &transcript.frames {
        if let Some(code) = text_exit(frame, "exit_code") {
            held = Some(code);
        }
        match frame {
            Frame::Binary(bytes) if !transcript.tty && bytes.first() == Some(&3) => {
                return exit_two_bytes(bytes).ok_or("a bad exit frame");
            }
            _ => {}
        }
    }
    held.ok_or("closed before exit")
}

/// The strictest: known texts only, no empty binary, no two exits of one source, no output after an exit, one code.
fn third_party_b(transcript: &Transcript) -> Verdict {
    let (mut by_text, mut by_binary) = (None, None);
    for frame in &transcript.frames {
        match frame {
            Frame::Text(text) => {
                let kind = text["type"].as_str().unwrap_or_default();
                if !matches!(kind, "session_info" | "exit" | "debug" | "port_opened" | "port_closed") {
                    return Err("an unknown text");
                }
                if kind == "exit" {
                    let Some(code) = text["exit_code"].as_i64() else { return Err("an exit without a code") };
                    if by_text.replace(code).is_some() {
                        return Err("two text exits");
                    }
                }
            }
            Frame::Binary(bytes) if bytes.is_empty() => return Err("an empty binary message"),
            Frame::Binary(bytes) if !transcript.tty && bytes[0] == 3 => {
                let Some(code) = exit_two_bytes(bytes) else { return Err("a bad exit frame") };
                if by_binary.replace(code).is_some() {
                    return Err("two exit frames");
                }
            }
            Frame::Binary(_) if by_text.or(by_binary).is_some() => return Err("output after the exit"),
            _ => {}
        }
    }
    match (by_text, by_binary) {
        (Some(a), Some(b)) if a != b => Err("two codes"),
        (a, b) => a.or(b).ok_or("closed before exit"),
    }
}

/// Reads to the close and takes the last `03`'s first byte, or the last text in a TTY.
fn naive(transcript: &Transcript) -> Verdict {
    let last = |frame: &Frame| match frame {
        Frame::Binary(bytes) if !transcript.tty => exit_first_byte(bytes),
        frame if transcript.tty => text_exit(frame, "exit_code"),
        _ => None,
    };
    transcript.frames.iter().rev().find_map(last).ok_or("closed before exit")
}

/// Demands that every client reads `code` from one operation of a control socket (exec.md §3.1, §3.3). `frames` runs
/// from after `op.start` to `op.complete`, whose `args` come beside it.
pub fn check_control(frames: &[Frame], tty: bool, complete: &Value, code: u8) {
    let code = i64::from(code);
    assert_eq!(complete["exitCode"].as_i64(), Some(code), "Py and JS read op.complete: {complete}");
    assert_eq!(complete["ok"].as_bool(), Some(code == 0), "{complete}");
    let binaries = |form: fn(&[u8]) -> Option<i64>| -> Vec<i64> {
        let read = |frame: &Frame| match frame {
            Frame::Binary(bytes) if !tty => form(bytes),
            _ => None,
        };
        frames.iter().filter_map(read).collect()
    };
    let texts = |key: &str| frames.iter().filter_map(|f| text_exit(f, key)).collect::<Vec<_>>();
    // Go ignores every control: text, so an exit must come before op.complete.
    let go: Vec<_> = binaries(exit_first_byte).into_iter().chain(texts("exit_code")).collect();
    assert_eq!(go, [code], "Go control");
    // The Elixir lines take op.complete when nothing was read before, and must see exactly one exit in all.
    let versions: [(&str, Vec<i64>, Vec<i64>); 3] = [
        ("ExB", binaries(exit_u32), texts("code")),
        ("ExC", binaries(exit_two_bytes), texts("exit_code")),
        ("ExD, ExE", binaries(exit_first_byte), texts("exit_code")),
    ];
    for (name, binary, text) in versions {
        let read: Vec<_> = binary.into_iter().chain(text).collect();
        assert!(read.is_empty() || read == [code], "{name} control reads {read:?}, not {code} once");
    }
}

/// Demands that every reader of HTTP exec reads `code` (exec.md §6).
pub fn check_http(chunks: &[Vec<u8>], code: u8) {
    // JS 0.1.0: one chunk is one frame.
    let mut js = None;
    for chunk in chunks {
        match chunk[..] {
            [3, code] => assert_eq!(js.replace(code), None, "JS: two exit frames"),
            [1 | 2, _, ..] => {}
            _ => panic!("JS throws on {chunk:?}"),
        }
    }
    assert_eq!(js, Some(code), "JS execFileHTTP");
    // The docs' sample: the whole body, the last two bytes.
    let body = chunks.concat();
    assert_eq!(body[body.len() - 2..], [3, code], "the docs' sample");
    // Strict third parties: the exit is the last chunk, exactly two bytes.
    assert_eq!(chunks.last().map(Vec::as_slice), Some(&[3, code][..]), "strict parsers");
}
