//! Any text as a duration or a signal.
#![no_main]

use fountain::wire::{duration, name, signal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    _ = duration::parse(text);
    if let Some(number) = signal::parse(text) {
        assert_eq!(signal::parse(&signal::name(number)), Some(number));
    }
    assert_eq!(name::is_valid(text), name::check(text).is_ok());
});
