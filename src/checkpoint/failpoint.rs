//! Named places where a test can kill the process, to see what a crash there leaves. Nothing in a release.

/// The environment variable that names the places, separated by commas.
#[cfg(test)]
pub(super) const VARIABLE: &str = "FOUNTAIN_TEST_CRASH_AT";

/// Ends the process, as `kill -9` would, if a test asked for it at this place.
#[cfg(test)]
pub(super) fn point(name: &str) {
    if forced(name) {
        std::process::abort();
    }
}

/// Whether a test asked for what `name` says.
#[cfg(test)]
pub(super) fn forced(name: &str) -> bool {
    std::env::var(VARIABLE).is_ok_and(|wanted| wanted.split(',').any(|wanted| wanted == name))
}

/// Does nothing.
#[cfg(not(test))]
pub(super) fn point(_name: &str) {}

/// Never.
#[cfg(not(test))]
pub(super) fn forced(_name: &str) -> bool {
    false
}
