//! Builds exec queries the way the SDKs encode them: `application/x-www-form-urlencoded`, space as `+` (exec.md §1.2).

/// A query string under construction.
#[derive(Clone, Default, Debug)]
pub struct Query(String);

impl Query {
    /// A fresh command: `cmd` repeated for each element, then `path=argv[0]`.
    pub fn of(argv: &[&str]) -> Self {
        let mut query = Self::default();
        for element in argv {
            query = query.with("cmd", element);
        }
        query.with("path", argv[0])
    }

    /// A shell script, run by `sh -c`.
    pub fn sh(script: &str) -> Self {
        Self::of(&["sh", "-c", script])
    }

    /// Exactly this text, already encoded.
    pub fn raw(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Adds one pair.
    pub fn with(self, key: &str, value: &str) -> Self {
        self.bytes(key, value.as_bytes())
    }

    /// Adds one pair whose value need not be UTF-8.
    pub fn bytes(mut self, key: &str, value: &[u8]) -> Self {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(key);
        self.0.push('=');
        self.0.push_str(&encode(value));
        self
    }

    pub fn stdin(self) -> Self {
        self.with("stdin", "true")
    }

    pub fn no_stdin(self) -> Self {
        self.with("stdin", "false")
    }

    pub fn detachable(self) -> Self {
        self.with("detachable", "true")
    }

    pub fn tty(self, rows: u16, cols: u16) -> Self {
        self.with("tty", "true").with("rows", &rows.to_string()).with("cols", &cols.to_string())
    }

    pub fn env(self, pair: &str) -> Self {
        self.with("env", pair)
    }

    pub fn dir(self, dir: &str) -> Self {
        self.with("dir", dir)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Form-encodes bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => text.push(byte as char),
            b' ' => text.push('+'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
