//! Any API path: absolute, without `..`, and the way to the host and back is the identity; rewriting is idempotent.
#![no_main]

use std::path::{Component, PathBuf};

use fountain::sandbox::paths::Paths;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|parts: (Vec<u8>, Option<Vec<u8>>)| {
    let (path, dir) = parts;
    if path.contains(&0) || dir.as_ref().is_some_and(|dir| dir.contains(&0)) {
        return;
    }
    let paths = Paths::new(PathBuf::from("/state/sprites/org/name/disk"));
    let api = paths.resolve(&path, dir.as_deref());
    assert!(api.is_absolute() && !api.components().any(|part| part == Component::ParentDir));
    let host = paths.to_host(&api);
    if !api.starts_with(paths.disk()) {
        assert_eq!(paths.to_api(&host), api);
    }
    let once = paths.rewrite(&path).into_owned();
    assert_eq!(paths.rewrite(&once), once);
});
