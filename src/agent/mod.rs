//! The process inside a sprite: it owns the sprite's processes, their sessions and journals, and its files.

pub mod fs;
pub mod session;
