//! Compares two trees in everything a restore must give back. Shares no code with the walk it judges.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::SeekFrom;

/// What is compared of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    links: u64,
    /// All names of the same file, so that groups of hard links are compared too.
    group: Vec<String>,
    xattrs: Vec<(String, Vec<u8>)>,
    content: Vec<u8>,
    segments: Vec<(u64, u64)>,
}

/// Every difference between two trees, in words; sockets are left out.
pub fn differences(a: &Path, b: &Path) -> Vec<String> {
    let (a, b) = (facts(a), facts(b));
    let mut found = Vec::new();
    for (name, fact) in &a {
        match b.get(name) {
            None => found.push(format!("{name} is missing")),
            Some(other) if other != fact => found.push(format!("{name} differs:\n  {}\n  {}", show(fact), show(other))),
            Some(_) => {}
        }
    }
    found.extend(b.keys().filter(|name| !a.contains_key(*name)).map(|name| format!("{name} is new")));
    found
}

fn show(facts: &Facts) -> String {
    let mut facts = facts.clone();
    facts.content.truncate(64);
    format!("{facts:?}")
}

fn facts(root: &Path) -> BTreeMap<String, Facts> {
    let mut found = BTreeMap::new();
    let mut groups: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.file_type().is_socket() {
            continue;
        }
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
        let directory = metadata.is_dir();
        if directory {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            groups.entry((metadata.dev(), metadata.ino())).or_default().push(name.clone());
            inodes.insert(name.clone(), (metadata.dev(), metadata.ino()));
        }
        let file_type = metadata.file_type();
        let device = metadata.rdev();
        let kind = match () {
            () if directory => "directory".to_owned(),
            () if file_type.is_file() => format!("file of {}", metadata.size()),
            () if file_type.is_symlink() => "symlink".to_owned(),
            () if file_type.is_fifo() => "fifo".to_owned(),
            () if file_type.is_char_device() => format!("char {device}"),
            () => format!("block {device}"),
        };
        let mut content = Vec::new();
        let mut segments = Vec::new();
        if file_type.is_symlink() {
            content = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
        } else if file_type.is_file() {
            (segments, content) = read(&path, metadata.size());
        }
        let facts = Facts {
            kind,
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            // Subdirectories count as links on some file systems and not on others.
            links: if directory { 0 } else { metadata.nlink() },
            group: Vec::new(),
            xattrs: xattrs(&path),
            content,
            segments,
        };
        found.insert(name, facts);
    }
    for (name, inode) in inodes {
        let mut group = groups[&inode].clone();
        group.sort();
        found.get_mut(&name).unwrap().group = group;
    }
    found
}

/// Where a file has data, and that data.
fn read(path: &Path, size: u64) -> (Vec<(u64, u64)>, Vec<u8>) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(path).unwrap();
    let (mut segments, mut content, mut end) = (Vec::new(), Vec::new(), 0);
    while end < size {
        let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(end)) else { break };
        end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        let at = content.len();
        content.resize(at + usize::try_from(end - start).unwrap(), 0);
        file.read_exact_at(&mut content[at..], start).unwrap();
        segments.push((start, end - start));
    }
    (segments, content)
}

fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let mut found: Vec<_> = names
        .filter(|name| *name != b"security.selinux" && *name != b"user.overlay.origin")
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(length);
            (OsStr::from_bytes(name).to_string_lossy().into_owned(), value)
        })
        .collect();
    found.sort();
    found
}
