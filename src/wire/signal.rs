//! Signal names as clients write them: with or without `SIG`, any case, or a number (wire/exec.md §8.1).

/// The signals a client may send, by their bare names.
const SIGNALS: [(&str, i32); 13] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ABRT", libc::SIGABRT),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("WINCH", libc::SIGWINCH),
];

/// The number of a signal, or `None` for one that is not served.
pub fn parse(text: &str) -> Option<i32> {
    let upper = text.trim().to_ascii_uppercase();
    if let Ok(number) = upper.parse::<i32>() {
        return SIGNALS.iter().any(|(_, known)| *known == number).then_some(number);
    }
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS.iter().find(|(name, _)| *name == bare).map(|(_, number)| *number)
}

/// `SIGTERM` for 15.
pub fn name(number: i32) -> String {
    match SIGNALS.iter().find(|(_, known)| *known == number) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_prefixes() {
        assert_eq!(parse("TERM"), Some(15));
        assert_eq!(parse("sigterm"), Some(15));
        assert_eq!(parse("9"), Some(9));
        assert_eq!(parse("SIGFOO"), None);
        assert_eq!(parse("0"), None);
        assert_eq!(parse("-9"), None);
        assert_eq!(name(15), "SIGTERM");
    }
}
