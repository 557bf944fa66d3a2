//! The command line: parse, dispatch, and operator commands, which are API clients like any other.

pub mod log;
