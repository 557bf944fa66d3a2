//! What a sprite is on this host. Plain mode only, so far: a folder, and processes of the daemon's own user.

pub mod paths;
