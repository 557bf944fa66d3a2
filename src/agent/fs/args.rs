//! The arguments of a file request, from its query and its JSON body alike.
//!
//! SDKs disagree about the place (wire/rest.md §2.7), so both are read: the query first, then the body, whatever the
//! Content-Type says. JSON `null` is the same as absent. Nothing here touches the file system.

use std::path::PathBuf;

use http::StatusCode;
use serde_json::{Map, Value};

use super::ops::Owner;
use crate::sandbox::paths::Paths;
use crate::wire::error::ApiError;
use crate::wire::query::Query;

/// Permission bits that a client can set.
const MODE_BITS: u64 = 0o7777;

/// What a request asks for, not yet checked.
#[derive(Debug, Default)]
pub struct Args {
    query: Query,
    body: Map<String, Value>,
}

impl Args {
    /// Arguments that come in a query alone.
    pub fn of_query(query: Query) -> Self {
        Self { query, body: Map::new() }
    }

    /// Adds the JSON body; an empty one has no arguments.
    pub fn with_body(mut self, body: &[u8]) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(self);
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => self.body = map,
            Ok(_) => return Err(invalid("the body must be a JSON object")),
            Err(error) => {
                return Err(invalid(format!(
                    "the body is not JSON (line {}, column {})",
                    error.line(),
                    error.column()
                )));
            }
        }
        Ok(self)
    }

    /// Whether the query holds `key`.
    pub fn query_has(&self, key: &str) -> bool {
        self.query.get(key).is_some_and(|value| !value.is_empty())
    }

    /// The API path under `key`, resolved (wire/rest.md §2.2); an error when there is none.
    pub fn path(&self, paths: &Paths, key: &str) -> Result<PathBuf, ApiError> {
        match self.bytes(key)? {
            Some(path) => Ok(paths.resolve(path, self.bytes("workingDir")?)),
            None => Err(invalid(format!("{key} is required"))),
        }
    }

    /// The same, where an absent `path` is the working directory itself.
    pub fn path_or_working_dir(&self, paths: &Paths) -> Result<PathBuf, ApiError> {
        Ok(paths.resolve(self.bytes("path")?.unwrap_or(b"."), self.bytes("workingDir")?))
    }

    /// A boolean: `true/1` and `false/0` in queries, those and JSON's own in bodies.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        let wrong = || invalid(format!("{key} must be true or false"));
        let text = match (self.query.get(key), self.value(key)) {
            (Some([]), _) | (None, None) => return Ok(None),
            (Some(text), _) => text,
            (None, Some(Value::Bool(flag))) => return Ok(Some(*flag)),
            (None, Some(Value::Number(number))) if number.as_u64() == Some(1) => b"1",
            (None, Some(Value::Number(number))) if number.as_u64() == Some(0) => b"0",
            (None, Some(Value::String(text))) => text.as_bytes(),
            (None, Some(_)) => return Err(wrong()),
        };
        match text.to_ascii_lowercase().as_slice() {
            b"true" | b"t" | b"1" => Ok(Some(true)),
            b"false" | b"f" | b"0" => Ok(Some(false)),
            _ => Err(wrong()),
        }
    }

    /// A file mode: text is octal, a JSON number is the bits themselves (wire/rest.md §2.8). Type bits are dropped.
    pub fn mode(&self, key: &str) -> Result<Option<u32>, ApiError> {
        let wrong = || invalid(format!("{key} must be octal text such as \"0644\""));
        let bits = match (self.query.get(key), self.value(key)) {
            (Some([]), _) | (None, None) => return Ok(None),
            (Some(text), _) => octal(text),
            (None, Some(Value::String(text))) => octal(text.as_bytes()),
            (None, Some(Value::Number(number))) => number.as_u64(),
            (None, Some(_)) => None,
        };
        let bits = bits.ok_or_else(wrong)? & MODE_BITS;
        u32::try_from(bits).map(Some).map_err(|_| wrong())
    }

    /// A user or group: a number or a name; absent, empty and -1 mean "leave it".
    pub fn owner(&self, key: &str) -> Result<Option<Owner>, ApiError> {
        let wrong = || invalid(format!("{key} must be a number or a name"));
        let text = match (self.query.get(key), self.value(key)) {
            (Some(text), _) => String::from_utf8(text.to_vec()).map_err(|_| wrong())?,
            (None, None) => return Ok(None),
            (None, Some(Value::String(text))) => text.clone(),
            (None, Some(Value::Number(number))) => number.to_string(),
            (None, Some(_)) => return Err(wrong()),
        };
        if text.is_empty() || text == "-1" {
            return Ok(None);
        }
        if text.bytes().any(|byte| !(byte.is_ascii_digit() || byte == b'-' || byte == b'.')) {
            return Ok(Some(Owner::Name(text)));
        }
        // 4294967295 is -1 for the kernel: it would silently change nothing.
        match text.parse() {
            Ok(id) if id != u32::MAX => Ok(Some(Owner::Id(id))),
            _ => Err(wrong()),
        }
    }

    /// The bytes under `key`; NUL cannot be part of any path.
    pub fn bytes(&self, key: &str) -> Result<Option<&[u8]>, ApiError> {
        let bytes = match (self.query.get(key), self.value(key)) {
            (Some([]), _) | (None, None) => return Ok(None),
            (Some(bytes), _) => bytes,
            (None, Some(Value::String(text))) => text.as_bytes(),
            (None, Some(_)) => return Err(invalid(format!("{key} must be a string"))),
        };
        if bytes.contains(&0) {
            return Err(invalid(format!("{key} must not contain a NUL byte")));
        }
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.body.get(key).filter(|value| !value.is_null())
    }
}

/// 400 `EINVAL` in the form of the files API.
pub fn invalid(text: impl AsRef<str>) -> ApiError {
    ApiError::fs(StatusCode::BAD_REQUEST, "EINVAL", text, "")
}

fn octal(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0o").unwrap_or(text);
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u64::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Args {
        Args::of_query(Query::parse(text.as_bytes()))
    }

    fn body(text: &str) -> Args {
        Args::default().with_body(text.as_bytes()).unwrap()
    }

    #[test]
    fn modes_are_octal_text_or_the_bits_as_a_number() {
        assert_eq!(query("mode=0644").mode("mode").unwrap(), Some(0o644));
        assert_eq!(query("mode=600").mode("mode").unwrap(), Some(0o600));
        assert_eq!(query("mode=020000000755").mode("mode").unwrap(), Some(0o755));
        assert_eq!(query("mode=").mode("mode").unwrap(), None);
        assert_eq!(body(r#"{"mode":"0755"}"#).mode("mode").unwrap(), Some(0o755));
        assert_eq!(body(r#"{"mode":493}"#).mode("mode").unwrap(), Some(0o755));
        assert_eq!(body(r#"{"mode":null}"#).mode("mode").unwrap(), None);
        for bad in [r#"{"mode":"0855"}"#, r#"{"mode":-1}"#, r#"{"mode":1.5}"#, r#"{"mode":"rwx"}"#, r#"{"mode":[]}"#] {
            assert!(body(bad).mode("mode").is_err(), "{bad}");
        }
        assert!(query("mode=%2B7").mode("mode").is_err());
    }

    #[test]
    fn booleans_come_in_many_spellings() {
        for yes in ["r=true", "r=1", "r=True"] {
            assert_eq!(query(yes).flag("r").unwrap(), Some(true));
        }
        assert_eq!(query("r=false").flag("r").unwrap(), Some(false));
        assert_eq!(query("").flag("r").unwrap(), None);
        assert!(query("r=yes").flag("r").is_err());
        for yes in [r#"{"r":true}"#, r#"{"r":"true"}"#, r#"{"r":1}"#] {
            assert_eq!(body(yes).flag("r").unwrap(), Some(true));
        }
        assert_eq!(body(r#"{"r":null}"#).flag("r").unwrap(), None);
        assert!(body(r#"{"r":{}}"#).flag("r").is_err());
    }

    #[test]
    fn owners_are_numbers_or_names() {
        assert_eq!(body(r#"{"uid":1000}"#).owner("uid").unwrap(), Some(Owner::Id(1000)));
        assert_eq!(body(r#"{"uid":"1000"}"#).owner("uid").unwrap(), Some(Owner::Id(1000)));
        assert_eq!(body(r#"{"uid":"sprite"}"#).owner("uid").unwrap(), Some(Owner::Name("sprite".into())));
        for none in [r#"{"uid":-1}"#, r#"{"uid":null}"#, "{}", r#"{"uid":""}"#] {
            assert_eq!(body(none).owner("uid").unwrap(), None);
        }
        for bad in [r#"{"uid":-2}"#, r#"{"uid":1.5}"#, r#"{"uid":4294967295}"#, r#"{"uid":[1]}"#] {
            assert!(body(bad).owner("uid").is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_bytes_without_nul() {
        let paths = Paths::new("/disk".into());
        assert_eq!(query("path=a+b%FF").bytes("path").unwrap(), Some(&b"a b\xff"[..]));
        assert!(query("path=a%00b").path(&paths, "path").is_err());
        assert!(query("path=").path(&paths, "path").is_err());
        assert!(body(r#"{"path":7}"#).path(&paths, "path").is_err());
        assert!(body("{\"path\":\"a\\u0000\"}").path(&paths, "path").is_err());
        let path = body(r#"{"path":"b","workingDir":null}"#).path(&paths, "path").unwrap();
        assert_eq!(path, PathBuf::from("/home/sprite/b"));
    }

    #[test]
    fn bodies_are_objects() {
        for bad in ["[]", "7", "{", "nonsense"] {
            assert!(Args::default().with_body(bad.as_bytes()).is_err());
        }
        assert!(Args::default().with_body(b" \n").is_ok());
    }
}
