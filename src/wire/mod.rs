//! The Sprites wire, sans I/O: error bodies, frames, messages, query decoding, durations, names.
//!
//! Everything here is plain data over bytes, so that it can be unit-tested, property-tested and fuzzed. No tokio, no
//! sockets, no clock.

pub mod duration;
pub mod error;
pub mod exec;
pub mod frame;
pub mod message;
pub mod name;
pub mod query;
pub mod signal;
