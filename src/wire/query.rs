//! Form-encoded query strings, decoded to bytes.
//!
//! argv and environments travel here, so nothing is decoded lossily: `+` is a space, `%XX` any byte, and a `%` that is
//! not followed by two hex digits stands for itself, as in every SDK's own decoder (wire/exec.md §1.2).

use crate::wire::error::ApiError;

/// The decoded pairs of a query, in the order they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Query {
    /// Decodes the part of a request target behind the `?`.
    pub fn parse(text: &[u8]) -> Self {
        let pairs = text
            .split(|byte| *byte == b'&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| match pair.iter().position(|byte| *byte == b'=') {
                Some(at) => (decode(&pair[..at]), decode(&pair[at + 1..])),
                None => (decode(pair), Vec::new()),
            })
            .collect();
        Self { pairs }
    }

    /// The query of a request's URI; empty when it has none.
    pub fn of(uri: &http::Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default().as_bytes())
    }

    /// Adds a pair, for the other places that carry the same arguments (the control channel's JSON).
    pub fn push(&mut self, key: &str, value: impl Into<Vec<u8>>) {
        self.pairs.push((key.as_bytes().to_vec(), value.into()));
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.all(key).next()
    }

    /// Every value of `key`, in order.
    pub fn all<'a, 'k>(&'a self, key: &'k str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'k> {
        self.pairs.iter().filter(move |(name, _)| name == key.as_bytes()).map(|(_, value)| value.as_slice())
    }

    /// The first value of `key` as text, when it is there and not empty.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ApiError> {
        match self.get(key) {
            None | Some([]) => Ok(None),
            Some(value) => std::str::from_utf8(value)
                .map(Some)
                .map_err(|_| ApiError::invalid(format!("the value of {key} is not UTF-8 text"))),
        }
    }

    /// The first value of `key` as a boolean: `true/false/1/0/t/f` in any case.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "t" => Ok(Some(true)),
            "false" | "0" | "f" => Ok(Some(false)),
            _ => Err(ApiError::invalid(format!("{key} must be true or false"))),
        }
    }
}

/// Decodes one form-encoded component.
pub fn decode(text: &[u8]) -> Vec<u8> {
    unescape(text, true)
}

/// Decodes one path segment: `%XX` only, `+` is an ordinary character.
pub fn decode_segment(text: &[u8]) -> Vec<u8> {
    unescape(text, false)
}

fn unescape(text: &[u8], plus_is_space: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'+' if plus_is_space => out.push(b' '),
            b'%' => match (tail.first().and_then(hex), tail.get(1).and_then(hex)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    rest = &tail[2..];
                }
                _ => out.push(b'%'),
            },
            _ => out.push(byte),
        }
    }
    out
}

fn hex(byte: &u8) -> Option<u8> {
    (*byte as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plus_is_a_space_and_percent_any_byte() {
        let query = Query::parse(b"cmd=a+b&cmd=%2B%00%ff&x&=&bad=%2&bad=%zz");
        assert_eq!(query.all("cmd").collect::<Vec<_>>(), [b"a b".as_slice(), b"+\0\xff"]);
        assert_eq!(query.get("x"), Some(b"".as_slice()));
        assert_eq!(query.all("bad").collect::<Vec<_>>(), [b"%2".as_slice(), b"%zz"]);
        assert_eq!(decode_segment(b"a+b%20c"), b"a+b c");
    }

    #[test]
    fn flags_take_the_spellings_of_every_client() {
        let query = Query::parse(b"a=TRUE&b=0&c=t&d=&e=maybe");
        assert_eq!(query.flag("a").unwrap(), Some(true));
        assert_eq!(query.flag("b").unwrap(), Some(false));
        assert_eq!(query.flag("c").unwrap(), Some(true));
        assert_eq!(query.flag("d").unwrap(), None);
        assert_eq!(query.flag("none").unwrap(), None);
        assert!(query.flag("e").is_err());
    }
}
