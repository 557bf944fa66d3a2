//! A depth-first walk over a tree that never follows links, never recurses and holds no directory open.
//!
//! Children come bytewise by name. A directory is opened only when the walk is asked for the step behind it, so that
//! whoever walks may change its mode first. It reads the tree and must never change it.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One step of a walk.
#[derive(Debug)]
pub enum Step {
    /// Something is there; a directory's children follow.
    Found(PathBuf, Metadata),
    /// The children of a directory are done.
    Left(PathBuf),
    /// A directory that could not be read; its children are left out.
    Failed(PathBuf, io::Error),
}

/// The walk over everything below one directory.
#[derive(Debug)]
pub struct Walk {
    /// The directory whose children are being handed out.
    at: PathBuf,
    /// What is still to be handed out of each directory on the way, the next name last.
    levels: Vec<Vec<Box<[u8]>>>,
    /// A directory that was found and is not yet opened.
    entering: Option<PathBuf>,
    recursive: bool,
}

impl Walk {
    /// Reads the names in `root`; with `recursive` everything below them is walked too.
    pub fn new(root: &Path, recursive: bool) -> io::Result<Self> {
        let names = names_backwards(root)?;
        Ok(Self { at: root.to_path_buf(), levels: vec![names], entering: None, recursive })
    }
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if let Some(path) = self.entering.take() {
            match names_backwards(&path) {
                Ok(names) => {
                    self.levels.push(names);
                    self.at = path;
                }
                Err(error) => return Some(Step::Failed(path, error)),
            }
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some(name) = level.pop() else {
                self.levels.pop();
                let left = self.at.clone();
                self.at.pop();
                return (!self.levels.is_empty()).then_some(Step::Left(left));
            };
            let path = self.at.join(OsStr::from_bytes(&name));
            // What vanished since its name was read is no longer part of the tree.
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() && self.recursive {
                self.entering = Some(path.clone());
            }
            return Some(Step::Found(path, meta));
        }
    }
}

/// The names in a directory, the first one last.
fn names_backwards(path: &Path) -> io::Result<Vec<Box<[u8]>>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        names.push(OsString::into_encoded_bytes(entry?.file_name()).into_boxed_slice());
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn told(walk: Walk, root: &Path) -> Vec<String> {
        let short = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
        walk.map(|step| match step {
            Step::Found(path, _) => short(&path),
            Step::Left(path) => format!("<{}", short(&path)),
            Step::Failed(path, _) => format!("!{}", short(&path)),
        })
        .collect()
    }

    #[test]
    fn children_come_by_name_and_directories_are_left_after_their_children() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        fs::create_dir_all(path.join("b/c")).unwrap();
        fs::create_dir_all(path.join("b.d")).unwrap();
        for name in ["z", ".a", "b/c/x", "b/y"] {
            fs::write(path.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("b", path.join("link")).unwrap();
        assert_eq!(
            told(Walk::new(path, true).unwrap(), path),
            [".a", "b", "b/c", "b/c/x", "<b/c", "b/y", "<b", "b.d", "<b.d", "link", "z"]
        );
        assert_eq!(told(Walk::new(path, false).unwrap(), path), [".a", "b", "b.d", "link", "z"]);
        assert!(Walk::new(&path.join("z"), true).is_err());
    }

    #[test]
    fn a_deep_tree_needs_no_deep_stack() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d/".repeat(1500));
        fs::create_dir_all(&deep).unwrap();
        let steps = Walk::new(root.path(), true).unwrap().count();
        assert_eq!(steps, 3000);
    }
}
