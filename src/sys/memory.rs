//! Lets go of program pages that only the start needed.
//!
//! An agent waits most of its life, and there is one for each awake sprite. What it ran to get there (parsing its
//! configuration, building its routes) stays mapped and counts to its resident set until the kernel is short of memory.

use std::fs;

/// Unmaps the resident pages of our executable mappings; what is needed again is mapped again from the page cache.
/// Only a help: a failure costs nothing but the pages.
pub fn let_go_of_startup() {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(mode)) = (fields.next(), fields.next()) else { continue };
        // Program text backed by a file, never written: nothing else may be dropped.
        if mode != "r-xp" || !line.contains(" /") {
            continue;
        }
        let bounds =
            range.split_once('-').map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        if let Some((Ok(from), Ok(to))) = bounds {
            // SAFETY: the range is one of our own read-only, file-backed mappings, as the kernel has just told. Dropping
            // its pages changes no content: the next access reads them from the file again.
            unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED) };
        }
    }
}
