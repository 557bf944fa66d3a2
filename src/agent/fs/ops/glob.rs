//! Shell globs on one file name: `*`, `?`, `[a-z]`, `[!x]` and `\` before a literal. Bytes, not text; never recursive.

/// Whether `name` as a whole matches `pattern`. Takes at most `pattern × name` steps, whatever the pattern.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last `*` did not fit: one more byte for that star.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(length) = one(&pattern[p..], name[n]) {
            p += length;
            n += 1;
        } else if let Some((at, eaten)) = star {
            star = Some((at, eaten + 1));
            p = at + 1;
            n = eaten + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The length of the pattern's first element when it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => match class(rest, byte) {
            Some((length, true)) => Some(1 + length),
            Some((_, false)) => None,
            // Without its closing bracket it is an ordinary character.
            None => (byte == b'[').then_some(1),
        },
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// The length of a bracket expression behind its `[`, and whether `byte` is in it; none when it is never closed.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    let mut at = start;
    let mut found = false;
    loop {
        let low = *pattern.get(at)?;
        if low == b']' && at > start {
            return Some((at + 1, found != negated));
        }
        let high = match (pattern.get(at + 1), pattern.get(at + 2)) {
            (Some(b'-'), Some(high)) if *high != b']' => {
                at += 2;
                *high
            }
            _ => low,
        };
        found |= (low..=high).contains(&byte);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_usual_patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rs.bak", false),
            ("*a*b", "xaxxb", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("[", "[", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
            ("", "a", false),
            (".*", ".keep", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_is_still_quick() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 4000]));
    }

    proptest! {
        #[test]
        fn never_panics_and_a_star_matches_all(pattern in prop::collection::vec(any::<u8>(), 0..16),
                                               name in prop::collection::vec(any::<u8>(), 0..16)) {
            matches(&pattern, &name);
            prop_assert!(matches(b"*", &name));
        }
    }
}
