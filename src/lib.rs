//! `fountain runner`: a self-hosted host for the Sprites API.
//!
//! The binary is thin (`main.rs` parses and dispatches); everything it does lives here so that tests, benches and fuzz
//! targets can call it. See ARCHITECTURE.md for how the rooms fit together and which invariants hold.

pub mod agent;
pub mod checkpoint;
pub mod cli;
pub mod runner;
pub mod sandbox;
pub mod sprite;
pub mod store;
pub mod sys;
pub mod wire;
