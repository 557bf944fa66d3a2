//! The command line: parse, dispatch, and operator commands, which are API clients like any other.

pub mod client;
pub mod demo;
pub mod exec;
pub mod log;
pub mod throwaway;
