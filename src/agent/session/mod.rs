//! Sessions: commands that outlive their clients.

pub mod journal;
pub mod record;
mod segment;
