//! The Sprites wire, sans I/O: error bodies, frames, messages, query decoding, durations.
//!
//! Everything here is plain data over bytes, so that it can be unit-tested, property-tested and fuzzed. No tokio, no
//! sockets, no clock.

pub mod error;
