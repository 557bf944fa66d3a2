//! Durations as clients write them: Go text (`1h30m`, `500ms`, `2.5s`) or bare seconds (wire/platform.md §0.3).

use std::time::Duration;

/// Parses a duration. Negative, empty or overlong ones are `None`; the caller says `invalid duration`.
pub fn parse(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Duration::from_secs);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let value: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(value * seconds).ok()?)?;
        rest = tail;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clients_spelling() {
        for (text, millis) in [
            ("10s", 10_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("2.5s", 2_500),
            ("0", 0),
            ("0s", 0),
            ("10000ms", 10_000),
            ("7", 7_000),
            ("1h0m0s", 3_600_000),
            ("1000µs", 1),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1s", "s", "1x", "1.s.", "ten", "1 s", "9999999999999999999999h", "NaNs"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
