//! The arguments of an exec, from a query string or from the control channel's JSON (wire/exec.md §1.2, §7.2).

use std::time::Duration;

use serde_json::Value;

use crate::wire::duration;
use crate::wire::error::ApiError;
use crate::wire::query::Query;

/// The longest disconnect timer that is taken literally; longer ones are the same as never.
const LONGEST_RUN: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A validated request to start a command or to join one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecRequest {
    /// Join session `id`. Spawn-only arguments that came along are ignored.
    Attach(Attach),
    /// Start a command.
    Start(Command),
}

/// A request to join a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attach {
    /// The session.
    pub id: String,
    /// Columns and rows, when the client gave both.
    pub size: Option<(u16, u16)>,
    /// The client's own idea of the session: only the Go shim of wire/exec.md §4.3 looks at it.
    pub tty: bool,
    /// Whether the query said `stdin=false` (the stray end-of-input rule, wire/exec.md §2.4).
    pub stdin_false: bool,
}

/// A command to start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    /// argv; never empty.
    pub argv: Vec<Vec<u8>>,
    /// The executable, looked up on PATH when it has no slash.
    pub path: Vec<u8>,
    /// `KEY=VALUE` entries as sent; later ones win.
    pub env: Vec<Vec<u8>>,
    /// Working directory, when given.
    pub dir: Option<Vec<u8>>,
    /// Whether stdin is a pipe; otherwise it is the null device. A TTY always has input.
    pub stdin: bool,
    /// Whether it gets a terminal.
    pub tty: bool,
    /// Terminal columns and rows.
    pub size: (u16, u16),
    /// How long it may run after its last client has gone; `None` is for ever.
    pub max_run_after_disconnect: Option<Duration>,
}

impl ExecRequest {
    /// Reads the arguments of `/exec`, `POST /exec` and of a control operation.
    pub fn from_query(query: &Query) -> Result<Self, ApiError> {
        let tty = query.flag("tty")?.unwrap_or(false);
        let stdin = query.flag("stdin")?;
        let size = (number(query, "cols")?, number(query, "rows")?);
        for key in ["id", "session_id"] {
            if let Some(id) = query.text(key)? {
                let size = size.0.zip(size.1);
                return Ok(Self::Attach(Attach { id: id.into(), size, tty, stdin_false: stdin == Some(false) }));
            }
        }

        let mut argv: Vec<Vec<u8>> = query.all("cmd").map(<[u8]>::to_vec).collect();
        let path = query.get("path").filter(|path| !path.is_empty()).map(<[u8]>::to_vec);
        if argv.is_empty() {
            argv.push(path.clone().unwrap_or_else(|| b"bash".to_vec()));
        }
        let path = path.unwrap_or_else(|| argv[0].clone());
        if path.is_empty() {
            return Err(ApiError::invalid("the command is empty: send cmd, once for each element of argv")
                .with("error", "empty_command".into()));
        }
        let env: Vec<Vec<u8>> = query.all("env").filter(|entry| entry.contains(&b'=')).map(<[u8]>::to_vec).collect();
        let dir = query.get("dir").filter(|dir| !dir.is_empty()).map(<[u8]>::to_vec);
        for (what, value) in argv
            .iter()
            .map(|value| ("cmd", value))
            .chain([("path", &path)])
            .chain(env.iter().map(|value| ("env", value)))
            .chain(dir.iter().map(|value| ("dir", value)))
        {
            if value.contains(&0) {
                return Err(ApiError::invalid(format!("{what} holds a NUL byte, which no process can be given")));
            }
        }

        let detachable = query.flag("detachable")?.unwrap_or(false);
        let limit = match query.text("max_run_after_disconnect")? {
            None if detachable || tty => None,
            None => Some(Duration::from_secs(10)),
            Some(text) => match duration::parse(text) {
                None => return Err(ApiError::invalid("invalid duration in max_run_after_disconnect")),
                Some(limit) if limit.is_zero() || limit > LONGEST_RUN => None,
                Some(limit) => Some(limit),
            },
        };
        Ok(Self::Start(Command {
            argv,
            path,
            env,
            dir,
            stdin: stdin.unwrap_or(tty),
            tty,
            size: (size.0.unwrap_or(80), size.1.unwrap_or(24)),
            max_run_after_disconnect: limit,
        }))
    }

    /// Reads the `args` of `op.start`: an object of strings, arrays, booleans and numbers, or one URL-encoded string.
    pub fn from_control_args(args: &Value) -> Result<Self, ApiError> {
        let query = match args {
            Value::String(text) => Query::parse(text.as_bytes()),
            Value::Object(map) => {
                let mut query = Query::default();
                for (key, value) in map {
                    match value {
                        Value::Array(items) => items.iter().for_each(|item| push(&mut query, key, item)),
                        other => push(&mut query, key, other),
                    }
                }
                query
            }
            _ => Query::default(),
        };
        Self::from_query(&query)
    }
}

/// Adds a JSON scalar to a query; `null` and nested values are absent.
fn push(query: &mut Query, key: &str, value: &Value) {
    match value {
        Value::String(text) => query.push(key, text.as_bytes()),
        Value::Bool(_) | Value::Number(_) => query.push(key, value.to_string()),
        _ => {}
    }
}

fn number(query: &Query, key: &str) -> Result<Option<u16>, ApiError> {
    match query.text(key)? {
        None => Ok(None),
        Some(text) => text
            .parse::<u16>()
            .map(|value| Some(value).filter(|value| *value > 0))
            .map_err(|_| ApiError::invalid(format!("{key} must be a number from 1 to 65535"))),
    }
}

impl Command {
    /// The argv as sent, joined by single spaces: what lists and `session_info` show.
    pub fn display(&self) -> String {
        let parts: Vec<_> = self.argv.iter().map(|part| String::from_utf8_lossy(part)).collect();
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> ExecRequest {
        ExecRequest::from_query(&Query::parse(query.as_bytes())).expect(query)
    }

    #[test]
    fn attach_forms_win_over_a_command() {
        let js = "cmd=tmux&cmd=attach&cmd=-t&cmd=s12&path=tmux&stdin=true&tty=true&id=s12";
        for query in [js, "session_id=s12&stdin=false&path=&cmd="] {
            assert!(matches!(parse(query), ExecRequest::Attach(attach) if attach.id == "s12"), "{query}");
        }
    }

    #[test]
    fn an_empty_command_is_refused_and_no_command_is_bash() {
        assert!(ExecRequest::from_query(&Query::parse(b"path=&cmd=")).is_err());
        let ExecRequest::Start(command) = parse("") else { panic!() };
        assert_eq!(command.argv, [b"bash"]);
        let ExecRequest::Start(command) = parse("path=/bin/bash&tty=true") else { panic!() };
        assert_eq!((command.argv, command.stdin), (vec![b"/bin/bash".to_vec()], true));
    }

    #[test]
    fn disconnect_rules() {
        let limit = |query: &str| match parse(query) {
            ExecRequest::Start(command) => command.max_run_after_disconnect,
            ExecRequest::Attach(_) => panic!(),
        };
        assert_eq!(limit("cmd=a"), Some(Duration::from_secs(10)));
        assert_eq!(limit("cmd=a&tty=true"), None);
        assert_eq!(limit("cmd=a&detachable=true"), None);
        assert_eq!(limit("cmd=a&detachable=true&max_run_after_disconnect=5m"), Some(Duration::from_secs(300)));
        assert_eq!(limit("cmd=a&max_run_after_disconnect=0"), None);
        assert!(ExecRequest::from_query(&Query::parse(b"cmd=a&max_run_after_disconnect=soon")).is_err());
    }

    #[test]
    fn nul_is_refused_and_other_bytes_pass() {
        assert!(ExecRequest::from_query(&Query::parse(b"cmd=a%00b")).is_err());
        assert!(ExecRequest::from_query(&Query::parse(b"cmd=a&env=A%00=b")).is_err());
        let ExecRequest::Start(command) = parse("cmd=a&cmd=%ff%fe&cmd=") else { panic!() };
        assert_eq!(command.argv, [b"a".to_vec(), b"\xff\xfe".to_vec(), Vec::new()]);
    }

    #[test]
    fn control_arguments_in_every_sdks_shape() {
        let args =
            serde_json::json!({"cmd": ["cat"], "path": "cat", "stdin": "true", "tty": true, "rows": 24, "cols": "80"});
        let Ok(ExecRequest::Start(command)) = ExecRequest::from_control_args(&args) else { panic!() };
        assert!(command.stdin && command.tty);
        assert_eq!(command.size, (80, 24));
        let go_attach = serde_json::json!({"cmd": [""], "id": "s3", "path": ""});
        assert!(matches!(ExecRequest::from_control_args(&go_attach), Ok(ExecRequest::Attach(a)) if a.id == "s3"));
        let text = serde_json::json!("cmd=echo&cmd=a+b");
        let Ok(ExecRequest::Start(command)) = ExecRequest::from_control_args(&text) else { panic!() };
        assert_eq!(command.argv, [b"echo".to_vec(), b"a b".to_vec()]);
    }
}
