//! The free-space floor of the host (DESIGN.md §4).

use std::path::Path;

use super::failure::{At, Failure};

/// How many bytes may be written between two looks at the free space.
pub const STRIDE: u64 = 64 << 20;

/// Refuses when `more` bytes in `folder` (a host path) would leave less than `floor` bytes free.
pub fn check(folder: &Path, more: u64, floor: u64, verb: &str, api: &Path) -> Result<(), Failure> {
    if floor == 0 {
        return Ok(());
    }
    let stat = rustix::fs::statvfs(folder).at(verb, api)?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free.saturating_sub(more) < floor { Err(Failure::disk_low(verb, api)) } else { Ok(()) }
}
