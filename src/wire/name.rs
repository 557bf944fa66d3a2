//! Sprite names: lowercase DNS labels short enough that `<name>-<8 random>` is one label too (DESIGN.md §11).

use crate::wire::error::ApiError;

/// The longest name.
pub const MAX_NAME: usize = 54;

/// Whether `name` can name a sprite.
pub fn is_valid(name: &str) -> bool {
    let bytes = name.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    bytes.len() <= MAX_NAME
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// Refuses what cannot name a sprite.
pub fn check(name: &str) -> Result<(), ApiError> {
    if is_valid(name) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "name must be lowercase alphanumeric, with hyphens only inside, and at most {MAX_NAME} characters"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_dns_labels() {
        for good in ["a", "0", "fountain-ab12-cd34", &"x".repeat(54)] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "..", "é", &"x".repeat(55), "a b"] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
