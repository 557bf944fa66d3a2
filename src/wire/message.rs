//! JSON text messages of a session (wire/exec.md §2.5, §7.1), in both directions.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// First text message on every socket of a session.
#[derive(Debug, Clone, Serialize)]
pub struct SessionInfo<'a> {
    /// Always `session_info`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Contains a letter (`s17`), so that no client takes it for a pid (wire/fountain.md §4.3).
    pub session_id: &'a str,
    /// The argv as sent, joined by spaces.
    pub command: &'a str,
    /// Unix seconds.
    pub created: i64,
    /// Terminal columns; 0 without a TTY.
    pub cols: u16,
    /// Terminal rows; 0 without a TTY.
    pub rows: u16,
    /// Whether this socket made the session, or is alone on it.
    pub is_owner: bool,
    /// Whether frames are raw terminal bytes.
    pub tty: bool,
    /// Bytes of output that were dropped before the first replayed one. Absent when nothing was.
    #[serde(skip_serializing_if = "is_zero")]
    pub replay_from: u64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Serializes a message. These types hold only strings and numbers, so it cannot fail; an empty object would be harmless.
pub fn to_text(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_else(|_| "{}".into())
}

/// The exit as text: `exit_code` for current readers, `code` for old Elixir ones (wire/exec.md §3.3).
pub fn exit(code: u8) -> String {
    format!(r#"{{"type":"exit","exit_code":{code},"code":{code}}}"#)
}

/// The only keep-alive that every client takes: a text message of a known kind (wire/exec.md §2.7).
pub const KEEPALIVE: &str = r#"{"type":"debug","msg":"keepalive"}"#;

/// A listener of the session's processes came or went.
pub fn port(opened: bool, port: u16, address: &str, pid: i32) -> String {
    let kind = if opened { "port_opened" } else { "port_closed" };
    to_text(&serde_json::json!({"type": kind, "port": port, "address": address, "pid": pid}))
}

/// What a client's text message asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// New terminal size: columns, rows.
    Resize(u16, u16),
    /// A signal for the session's processes.
    Signal(i32),
    /// Anything else: ignored, never an error.
    Other,
}

#[derive(Deserialize)]
struct RawRequest {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    cols: Value,
    #[serde(default)]
    rows: Value,
    #[serde(default)]
    signal: Value,
}

/// Reads a client's text message.
pub fn parse_request(text: &str) -> Request {
    let Ok(raw) = serde_json::from_str::<RawRequest>(text) else { return Request::Other };
    let size = |value: &Value| value.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    match raw.kind.as_str() {
        "resize" => match (size(&raw.cols), size(&raw.rows)) {
            (Some(cols), Some(rows)) => Request::Resize(cols, rows),
            _ => Request::Other,
        },
        "signal" => {
            let text = match &raw.signal {
                Value::String(name) => name.clone(),
                other => other.to_string(),
            };
            crate::wire::signal::parse(&text).map_or(Request::Other, Request::Signal)
        }
        _ => Request::Other,
    }
}

/// Prefix of the control channel's own messages.
pub const CONTROL_PREFIX: &str = "control:";

/// The end of an operation on the control channel.
pub fn op_complete(code: u8) -> String {
    format!(r#"{CONTROL_PREFIX}{{"type":"op.complete","op":"exec","args":{{"exitCode":{code},"ok":{}}}}}"#, code == 0)
}

/// An operation that the control channel refuses.
pub fn op_error(text: &str) -> String {
    format!("{CONTROL_PREFIX}{}", serde_json::json!({"type": "op.error", "args": {"error": text}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_messages() {
        assert_eq!(exit(7), r#"{"type":"exit","exit_code":7,"code":7}"#);
        assert_eq!(op_complete(0), r#"control:{"type":"op.complete","op":"exec","args":{"exitCode":0,"ok":true}}"#);
        let info = SessionInfo {
            kind: "session_info",
            session_id: "s12",
            command: "sh -c true",
            created: 1785904678,
            cols: 0,
            rows: 0,
            is_owner: true,
            tty: false,
            replay_from: 0,
        };
        assert_eq!(
            to_text(&info),
            r#"{"type":"session_info","session_id":"s12","command":"sh -c true","created":1785904678,"cols":0,"rows":0,"is_owner":true,"tty":false}"#
        );
    }

    #[test]
    fn requests_and_what_is_ignored() {
        assert_eq!(parse_request(r#"{"type":"resize","cols":180,"rows":50}"#), Request::Resize(180, 50));
        assert_eq!(parse_request(r#"{"type":"signal","signal":"SIGTERM"}"#), Request::Signal(15));
        assert_eq!(parse_request(r#"{"type":"signal","signal":2}"#), Request::Signal(2));
        for ignored in ["", "[]", "null", "{}", r#"{"type":"resize","cols":0,"rows":5}"#, r#"{"type":"x"}"#] {
            assert_eq!(parse_request(ignored), Request::Other, "{ignored}");
        }
    }
}
