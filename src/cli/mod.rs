//! The commands of a person at a terminal. They are clients of the API like any other program.

pub mod client;
pub mod demo;
pub mod exec;
pub mod throwaway;
