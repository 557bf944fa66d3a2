//! Properties of the sans-IO cores: what is encoded comes back, and no bytes at all bring one down. The fuzz targets in
//! `fuzz/` call the same functions without end.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

use std::time::Duration;

use bytes::Bytes;
use fountain::agent::session::journal::{Exit, Header, Journal, Limits};
use fountain::agent::session::record;
use fountain::agent::session::{Cursor, Next};
use fountain::wire::exec::{Command, ExecRequest};
use fountain::wire::frame::{self, Input, InputMode};
use fountain::wire::message::{self, Request};
use fountain::wire::query::{Query, decode, decode_segment};
use fountain::wire::{duration, error::ApiError, name, signal};
use proptest::collection::vec;
use proptest::prelude::*;

const MODES: [InputMode; 4] = [InputMode::Framed, InputMode::FramedControl, InputMode::RawWithEof, InputMode::Raw];

fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|b| if *b == b' ' { "+".into() } else { format!("%{b:02x}") }).collect()
}

fn encode_some(bytes: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.~*!()'@/:$,;?".contains(b);
    bytes.iter().map(|b| if plain(b) { (*b as char).to_string() } else { encode(&[*b]) }).collect()
}

proptest! {
    #[test]
    fn query_round_trip(pairs in vec((vec(any::<u8>(), 0..8), vec(any::<u8>(), 0..40)), 0..12), all in any::<bool>()) {
        let encode = if all { encode } else { encode_some };
        let text: Vec<String> = pairs.iter().map(|(k, v)| format!("{}={}", encode(k), encode(v))).collect();
        let query = Query::parse(text.join("&").as_bytes());
        for (key, _) in &pairs {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            let wanted: Vec<&[u8]> =
                pairs.iter().filter(|(k, _)| k == key.as_bytes()).map(|(_, v)| v.as_slice()).collect();
            prop_assert_eq!(query.all(key).collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn decoding_never_fails_and_never_grows(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).len() <= bytes.len());
        prop_assert!(decode_segment(&bytes).len() <= bytes.len());
        let query = Query::parse(&bytes);
        for key in ["cmd", "path", "env", "tty", "rows", "id", ""] {
            _ = (query.text(key), query.flag(key), query.get(key));
        }
        _ = ExecRequest::from_query(&query);
    }

    /// argv and env arrive as the bytes they were, in order; NUL never gets through.
    #[test]
    fn commands_arrive(argv in vec(vec(any::<u8>(), 0..30), 1..6), env in vec(vec(any::<u8>(), 0..20), 0..5)) {
        let mut text = argv.iter().map(|a| format!("cmd={}", encode(a))).collect::<Vec<_>>();
        text.extend(env.iter().map(|e| format!("env=K%3D{}", encode(e))));
        text.push("path=prog".into());
        let nul = argv.iter().chain(&env).any(|part| part.contains(&0));
        match ExecRequest::from_query(&Query::parse(text.join("&").as_bytes())) {
            Ok(ExecRequest::Start(command)) => {
                prop_assert!(!nul);
                prop_assert_eq!(&command.argv, &argv);
                let wanted: Vec<Vec<u8>> = env.iter().map(|e| [b"K=", e.as_slice()].concat()).collect();
                prop_assert_eq!(&command.env, &wanted);
                prop_assert_eq!(&command.path, b"prog");
            }
            Ok(ExecRequest::Attach(attach)) => prop_assert!(false, "{:?}", attach),
            Err(_) => prop_assert!(nul),
        }
    }

    /// The query and the control channel's JSON say the same thing.
    #[test]
    fn query_and_control_agree(argv in vec("[a-zA-Z0-9 +&=%é/.-]{0,12}", 1..5), tty in any::<bool>(), stdin in any::<bool>()) {
        let mut text = argv.iter().map(|a| format!("cmd={}", encode(a.as_bytes()))).collect::<Vec<_>>();
        text.push(format!("path=p&tty={tty}&stdin={stdin}&rows=30&cols=90&dir=%2Ftmp&max_run_after_disconnect=5s"));
        let text = text.join("&");
        let args = serde_json::json!({"cmd": argv, "path": "p", "tty": tty, "stdin": stdin.to_string(), "rows": 30,
            "cols": "90", "dir": "/tmp", "max_run_after_disconnect": "5s"});
        let by_query = ExecRequest::from_query(&Query::parse(text.as_bytes())).unwrap();
        prop_assert_eq!(&by_query, &ExecRequest::from_control_args(&args).unwrap());
        prop_assert_eq!(&by_query, &ExecRequest::from_control_args(&serde_json::json!(text)).unwrap());
    }

    /// An id wins over everything that came along (exec.md §1.2).
    #[test]
    fn an_id_attaches(id in "[A-Za-z0-9_-]{1,20}", argv in vec("[a-z]{0,5}", 0..4), old in any::<bool>()) {
        let key = if old { "session_id" } else { "id" };
        let cmds: String = argv.iter().map(|a| format!("cmd={a}&")).collect();
        let query = Query::parse(format!("{cmds}path=&stdin=false&{key}={id}").as_bytes());
        match ExecRequest::from_query(&query) {
            Ok(ExecRequest::Attach(attach)) => {
                prop_assert_eq!(attach.id, id);
                prop_assert!(attach.stdin_false);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn json_args_never_bring_it_down(text in ".{0,80}", number in any::<i64>()) {
        for args in [serde_json::json!(text), serde_json::json!({"cmd": [text, number, null, {"x": text}]}),
            serde_json::json!({"cmd": text, "tty": number, "rows": text}), serde_json::json!([number])] {
            _ = ExecRequest::from_control_args(&args);
        }
    }

    #[test]
    fn stdin_frames(payload in vec(any::<u8>(), 0..100)) {
        let message = Bytes::from([&[frame::STDIN], payload.as_slice()].concat());
        let wanted = if payload.is_empty() { Input::Nothing } else { Input::Bytes(payload.clone().into()) };
        for mode in [InputMode::Framed, InputMode::FramedControl] {
            prop_assert_eq!(frame::decode_input(mode, message.clone()), wanted.clone());
        }
        // Raw modes take every byte, but for the lone end of input.
        let raw = Bytes::from(payload);
        if !raw.is_empty() {
            prop_assert_eq!(frame::decode_input(InputMode::Raw, raw.clone()), Input::Bytes(raw.clone()));
            if raw[..] != [4] {
                prop_assert_eq!(frame::decode_input(InputMode::RawWithEof, raw.clone()), Input::Bytes(raw));
            }
        }
    }

    #[test]
    fn any_message_means_something_or_nothing(bytes in vec(any::<u8>(), 0..60), text in ".{0,60}") {
        for mode in MODES {
            _ = frame::decode_input(mode, bytes.clone().into());
        }
        _ = message::parse_request(&text);
        _ = message::parse_request(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn output_frames(stream in 1u8..=2, payload in vec(any::<u8>(), 0..100), code in any::<u8>()) {
        let made = frame::encode(stream, &payload);
        prop_assert_eq!((made[0], &made[1..]), (stream, payload.as_slice()));
        prop_assert_eq!(&frame::exit(code)[..], &[3, code]);
        prop_assert_eq!(&frame::exit_u32(code)[..], &[3, 0, 0, 0, code]);
        let exit: serde_json::Value = serde_json::from_str(&message::exit(code)).unwrap();
        prop_assert_eq!(exit, serde_json::json!({"type": "exit", "exit_code": code, "code": code}));
        let complete = message::op_complete(code);
        let complete: serde_json::Value = serde_json::from_str(complete.strip_prefix("control:").unwrap()).unwrap();
        prop_assert_eq!(&complete["args"], &serde_json::json!({"exitCode": code, "ok": code == 0}));
    }

    #[test]
    fn resize_requests(cols in any::<u16>(), rows in any::<u16>()) {
        let text = serde_json::json!({"type": "resize", "cols": cols, "rows": rows}).to_string();
        let wanted = if cols > 0 && rows > 0 { Request::Resize(cols, rows) } else { Request::Other };
        prop_assert_eq!(message::parse_request(&text), wanted);
    }

    #[test]
    fn signals_in_every_spelling(at in 0usize..8, sig in any::<bool>(), upper in any::<bool>()) {
        let (name, number) = [("INT", 2), ("TERM", 15), ("HUP", 1), ("KILL", 9), ("QUIT", 3), ("USR1", 10), ("USR2", 12),
            ("WINCH", 28)][at];
        let text = format!("{}{name}", if sig { "SIG" } else { "" });
        let text = if upper { text } else { text.to_lowercase() };
        prop_assert_eq!(signal::parse(&text), Some(number));
        prop_assert_eq!(signal::parse(&number.to_string()), Some(number));
        prop_assert_eq!(signal::name(number), format!("SIG{name}"));
    }

    /// Go's own notation of a duration comes back as the duration, to the nanosecond or a float's reach.
    #[test]
    fn durations(hours in 0u64..2000, minutes in 0u64..60, millis in 0u64..60_000) {
        let wanted = Duration::from_secs(hours * 3600 + minutes * 60) + Duration::from_millis(millis);
        let (whole, part) = (millis / 1000, millis % 1000);
        for text in [
            format!("{hours}h{minutes}m{whole}.{part:03}s"),
            format!("{hours}h{minutes}m{whole}s{part}ms"),
            format!("{}ms", wanted.as_millis()),
        ] {
            let read = duration::parse(&text).unwrap();
            prop_assert!(read.abs_diff(wanted) < Duration::from_micros(1), "{}: {:?}", text, read);
        }
        prop_assert_eq!(duration::parse(&hours.to_string()), Some(Duration::from_secs(hours)));
        prop_assert_eq!(duration::parse(&format!("-{hours}s")), None);
    }

    #[test]
    fn any_duration_text(text in "[-+.0-9hmsnuµ e]{0,24}|.{0,20}") {
        _ = duration::parse(&text);
    }

    #[test]
    fn names(text in "[a-z0-9-]{0,60}|.{0,10}") {
        let by_rule = !text.is_empty() && text.len() <= 54 && !text.starts_with('-') && !text.ends_with('-')
            && text.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'));
        prop_assert_eq!(name::is_valid(&text), by_rule);
        prop_assert_eq!(name::check(&text).is_ok(), by_rule);
    }

    /// An error body is small and well formed whatever was put into it (DESIGN.md §10).
    #[test]
    fn error_bodies(text in "\\PC{0,3000}") {
        use axum::response::IntoResponse;
        let errors = [ApiError::invalid(&text), ApiError::fs(http::StatusCode::NOT_FOUND, "ENOENT", &text, &text)];
        for error in errors {
            let body = error.into_response().into_body();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let bytes = runtime.block_on(axum::body::to_bytes(body, usize::MAX)).unwrap();
            prop_assert!(bytes.len() < 1024, "{} bytes", bytes.len());
            let body: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert!(body["error"].is_string());
        }
    }
}

/// Output records as the session writes them, and how a model remembers them.
fn outputs(max: usize) -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    vec((1u8..=2, prop_oneof![vec(any::<u8>(), 1..40), vec(any::<u8>(), 1000..9000)]), 0..max)
}

fn record_bytes(frame: &[u8]) -> Vec<u8> {
    [record::length_prefix(frame.len()).as_slice(), frame].concat()
}

proptest! {
    #[test]
    fn records_come_back(outputs in outputs(8), code in any::<u8>(), at in any::<i64>(), pid in any::<i32>(), start in any::<u64>()) {
        let mut frames: Vec<Bytes> = vec![record::leader(pid, start)];
        frames.extend(outputs.iter().map(|(stream, payload)| frame::encode(*stream, payload)));
        frames.push(record::exit(code, at));
        let mut buffer = Bytes::from(frames.iter().flat_map(|f| record_bytes(f)).collect::<Vec<_>>());
        for frame in &frames {
            prop_assert_eq!(record::split_first(&mut buffer), Ok(Some(frame.clone())));
        }
        prop_assert_eq!(record::split_first(&mut buffer), Ok(None));
        prop_assert_eq!(record::parse_leader(&frames[0]), Some((pid, start)));
        prop_assert_eq!(record::parse_exit(frames.last().unwrap()), Some((code, at)));
        let total: u64 = frames.iter().map(|f| record::output_len(f)).sum();
        prop_assert_eq!(total, outputs.iter().map(|(_, p)| p.len() as u64).sum::<u64>());
    }

    /// A journal torn anywhere gives the whole records in front of the tear and nothing else.
    #[test]
    fn torn_records(outputs in outputs(6), cut in any::<prop::sample::Index>()) {
        let frames: Vec<Bytes> = outputs.iter().map(|(stream, payload)| frame::encode(*stream, payload)).collect();
        let all: Vec<u8> = frames.iter().flat_map(|f| record_bytes(f)).collect();
        let cut = cut.index(all.len() + 1);
        let mut buffer = Bytes::from(all[..cut].to_vec());
        let mut read = Vec::new();
        while let Ok(Some(frame)) = record::split_first(&mut buffer) {
            read.push(frame);
        }
        prop_assert_eq!(&read[..], &frames[..read.len()]);
        let taken: usize = read.iter().map(|f| f.len() + record::LENGTH).sum();
        let next = frames.get(read.len()).map_or(0, |f| f.len() + record::LENGTH);
        prop_assert!(cut - taken < next.max(1));
    }

    #[test]
    fn any_bytes_as_records(bytes in vec(any::<u8>(), 0..300)) {
        let mut buffer = Bytes::from(bytes);
        while let Ok(Some(frame)) = record::split_first(&mut buffer) {
            _ = (record::parse_exit(&frame), record::parse_leader(&frame), record::output_len(&frame));
        }
    }
}

/// Everything a cursor has to give now: frames and bytes that are lost, until it has to wait or the session has ended.
fn drain(cursor: &mut Cursor) -> (Vec<Bytes>, u64, Option<Exit>) {
    let (mut frames, mut lost) = (Vec::new(), 0);
    loop {
        match cursor.try_next() {
            Next::Frames(more) => frames.extend(more),
            Next::Lost(bytes) => lost += bytes,
            Next::Exit(exit) => return (frames, lost, Some(exit)),
            Next::Pending => return (frames, lost, None),
        }
    }
}

/// Output frames only: leaders and exits are the journal's own.
fn output_only(frames: Vec<Bytes>) -> Vec<Bytes> {
    frames.into_iter().filter(|f| matches!(f[0], frame::STDOUT | frame::STDERR)).collect()
}

fn header() -> Header {
    let (id, command, workdir) = ("s1".into(), "cmd".into(), "/".into());
    Header { id, command, workdir, tty: false, created: 0, request: None, base: 0, output_base: 0, leader: None }
}

fn bytes_of(frames: &[Bytes]) -> Vec<u8> {
    frames.iter().flat_map(|f| f[1..].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Cursors that join at any time, and the next agent after a tear, read the same frames in the same order.
    #[test]
    fn journals_replay(outputs in outputs(40), joins in vec(any::<prop::sample::Index>(), 0..3), tail in 0u64..40_000,
        code in any::<u8>(), torn in vec(any::<u8>(), 0..12)) {
        let folder = tempfile::tempdir().unwrap();
        let mut appender = Journal::create(folder.path(), header(), Limits { ceiling: 1 << 30 });
        let frames: Vec<Bytes> = outputs.iter().map(|(stream, payload)| frame::encode(*stream, payload)).collect();
        let joins: Vec<usize> = joins.iter().map(|at| at.index(frames.len() + 1)).collect();
        let mut cursors = Vec::new();
        appender.set_leader(7, 9);
        for (at, frame) in frames.iter().enumerate() {
            cursors.extend(joins.iter().filter(|j| **j == at).map(|_| (appender.journal().cursor(None), Vec::new())));
            appender.append(frame.clone());
            for (cursor, read) in &mut cursors {
                read.extend(drain(cursor).0);
            }
        }
        appender.append(record::exit(code, 5));
        for (cursor, mut read) in cursors {
            let mut cursor = cursor;
            let (more, lost, exit) = drain(&mut cursor);
            read.extend(more);
            prop_assert_eq!(output_only(read), frames.clone());
            prop_assert_eq!((lost, exit.map(|e| e.code)), (0, Some(code)));
        }
        let whole = bytes_of(&frames);
        prop_assert_eq!(appender.journal().output(), whole.len() as u64);
        drop(appender);

        // What a kill tore off behind the last record is cut, whatever it is.
        let newest = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).max().unwrap();
        use std::io::Write;
        std::fs::OpenOptions::new().append(true).open(&newest).unwrap().write_all(&torn).unwrap();
        let appender = Journal::reopen(folder.path(), Limits { ceiling: 1 << 30 }).unwrap();
        prop_assert_eq!(appender.header().leader, Some((7, 9)));
        let (read, lost, exit) = drain(&mut appender.journal().cursor(None));
        prop_assert_eq!(output_only(read), frames);
        prop_assert_eq!((lost, exit.map(|e| e.code)), (0, Some(code)));
        // A bounded tail is a suffix of exactly that many bytes.
        let mut cursor = appender.journal().cursor(Some(tail));
        prop_assert_eq!(cursor.start(), (whole.len() as u64).saturating_sub(tail));
        let read = bytes_of(&output_only(drain(&mut cursor).0));
        prop_assert_eq!(&read[..], &whole[whole.len() - read.len()..]);
        prop_assert_eq!(read.len() as u64, tail.min(whole.len() as u64));
    }

    /// At the ceiling the oldest bytes go, and every late reader is told how many: nothing vanishes in silence.
    #[test]
    fn journals_at_their_ceiling(count in 200usize..400) {
        let folder = tempfile::tempdir().unwrap();
        let ceiling = 512 << 10;
        let mut appender = Journal::create(folder.path(), header(), Limits { ceiling });
        let mut whole = Vec::new();
        for n in 0..count {
            let payload: Vec<u8> = n.to_le_bytes().repeat(600);
            whole.extend_from_slice(&payload);
            appender.append(frame::encode(frame::STDOUT, &payload));
        }
        let mut cursor = appender.journal().cursor(None);
        let start = cursor.start();
        let (read, lost, _) = drain(&mut cursor);
        let read = bytes_of(&output_only(read));
        prop_assert_eq!(start + lost + read.len() as u64, whole.len() as u64);
        prop_assert!(whole.ends_with(&read));
        prop_assert!(appender.journal().disk_use() <= ceiling + (128 << 10));
        prop_assert_eq!(appender.journal().output(), whole.len() as u64);
    }
}

/// Both ways of writing a command's defaults are one (exec.md §1.2, §4.4).
#[test]
fn defaults() {
    let ExecRequest::Start(command) = ExecRequest::from_query(&Query::parse(b"cmd=a")).unwrap() else { panic!() };
    let wanted = Command {
        argv: vec![b"a".to_vec()],
        path: b"a".to_vec(),
        size: (80, 24),
        max_run_after_disconnect: Some(Duration::from_secs(10)),
        ..Command::default()
    };
    assert_eq!(command, wanted);
}
