//! Archives that somebody made to do harm: each is refused as a whole, and nothing outside the staging folder changes.

use std::io::Write;

use sha2::{Digest, Sha256};

use super::compare::differences;
use super::*;
use crate::checkpoint::pax::{self, Segment};
use crate::checkpoint::plan::{self, END, Entry, Kind};

fn entry(path: &str, kind: Kind) -> Entry {
    let mtime = pax::Time { secs: 1_700_000_000, nanos: 0 };
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Entry { path: path.into(), kind, mode: 0o755, uid, gid, mtime, xattrs: Vec::new() }
}

fn directory(path: &str) -> Vec<u8> {
    bytes(&entry(path, Kind::Directory), b"")
}

fn file(path: &str) -> Vec<u8> {
    bytes(&entry(path, Kind::File { size: 4, sparse: None }), b"evil")
}

fn symlink(path: &str, target: &str) -> Vec<u8> {
    bytes(&entry(path, Kind::Symlink(target.into())), b"")
}

fn hard_link(path: &str, target: &str) -> Vec<u8> {
    bytes(&entry(path, Kind::HardLink(target.into())), b"")
}

fn bytes(entry: &Entry, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    plan::encode(entry, &mut out);
    out.extend_from_slice(content);
    out.resize(out.len() + plan::padding(content.len() as u64), 0);
    out
}

/// Changes bytes of a header and mends its checksum.
fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    let sum: u32 = (0..512).map(|i| if (148..156).contains(&i) { 32 } else { u32::from(bytes[i]) }).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes
}

/// Restores a hand-made archive with a manifest that fits it, in a folder that also holds a tree to protect.
fn attempt(parts: &[Vec<u8>], data_bytes: u64) -> (Result<(), Error>, Vec<String>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for tree in ["outside", "expected"] {
        fs::create_dir(at(tree)).unwrap();
        fs::write(at(tree).join("secret"), "untouched").unwrap();
        for name in [at(tree), at(tree).join("secret")] {
            File::open(name).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
    }
    let plain = [parts.concat(), END.to_vec()].concat();
    let packed = zstd::encode_all(&plain[..], 1).unwrap();
    File::create(at("archive")).unwrap().write_all(&packed).unwrap();
    let sha256 = format!("{:x}", Sha256::digest(&packed));
    let expected = Expected { archive_bytes: packed.len() as u64, sha256: &sha256, data_bytes };
    let result = extract(&File::open(at("archive")).unwrap(), expected, &at("staging"), 0, &mut quiet());
    let left = at("staging").exists();
    (result, differences(&at("expected"), &at("outside")), left)
}

#[test]
fn a_hand_made_archive_of_harmless_entries_is_restored() {
    let parts = [directory("."), directory("a"), file("a/f"), hard_link("a/g", "a/f"), symlink("s", "/etc/passwd")];
    let (result, outside, left) = attempt(&parts, 4);
    result.unwrap();
    assert!(outside.is_empty() && left);
}

#[test]
fn hostile_archives_are_refused_as_a_whole() {
    let overlapping =
        Kind::File { size: 100, sparse: Some(vec![Segment { offset: 0, len: 3 }, Segment { offset: 2, len: 1 }]) };
    let beyond = Kind::File { size: 3, sparse: Some(vec![Segment { offset: 1 << 40, len: 4 }]) };
    let mut nul = Vec::new();
    pax::push_record(&mut nul, b"path", b"a\0b");
    let extended = |records: &[u8]| {
        let mut header = patched(file("x"), 156, b"x");
        header.truncate(512);
        header = patched(header, 124, format!("{:011o}\0", records.len()).as_bytes());
        header.extend_from_slice(records);
        header.resize(header.len() + plan::padding(records.len() as u64), 0);
        header
    };
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("an absolute name", vec![file("/tmp/fountain-evil")]),
        ("a name above", vec![file("../outside/evil")]),
        ("a name that climbs and returns", vec![directory("a"), file("a/../../outside/evil")]),
        ("a name of two dots", vec![directory("..")]),
        ("a directory above", vec![directory("../evil")]),
        ("a write through a link", vec![symlink("d", "../outside"), file("d/evil")]),
        ("a write through an absolute link", vec![symlink("d", "/tmp"), file("d/fountain-evil")]),
        ("a write through a link to here", vec![symlink("d", "."), file("d/evil")]),
        ("a file over a link", vec![symlink("secret", "../outside/secret"), file("secret")]),
        ("a directory over a link", vec![symlink("d", "../outside"), directory("d")]),
        ("a link over a directory", vec![directory("d"), symlink("d", "../outside")]),
        ("a hard link to an absolute name", vec![hard_link("h", "/etc/passwd")]),
        ("a hard link above", vec![hard_link("h", "../outside/secret")]),
        ("a hard link through a link", vec![symlink("d", "../outside"), hard_link("h", "d/secret")]),
        ("a hard link to nothing", vec![hard_link("h", "nothing")]),
        ("a hard link to a directory", vec![directory("d"), hard_link("h", "d")]),
        ("a hard link to the root", vec![hard_link("h", ".")]),
        ("a name twice", vec![file("f"), file("f")]),
        ("a file as a directory", vec![file("f"), file("f/g")]),
        ("a directory that is not there", vec![file("d/f")]),
        ("a root that is a file", vec![file(".")]),
        ("an empty name", vec![patched(file("f"), 0, b"\0")]),
        ("a NUL in a name", vec![extended(&nul), file("f")]),
        ("an extended header of no records", vec![extended(b"nonsense"), file("f")]),
        ("an extended header whose record is too long", vec![extended(b"99 path=f\n"), file("f")]),
        ("an extended header and no entry", vec![extended(&nul)]),
        ("a kind that is unknown", vec![patched(file("f"), 156, b"7")]),
        ("a global header", vec![patched(file("f"), 156, b"g")]),
        ("an old long name", vec![patched(file("f"), 156, b"L")]),
        ("an old sparse file", vec![patched(file("f"), 156, b"S")]),
        (
            "a header that is damaged",
            vec![{
                let mut damaged = file("f");
                damaged[0] = b'g';
                damaged
            }],
        ),
        ("a size beyond the end", vec![patched(file("f"), 124, b"00000007777\0")]),
        ("a zero block inside", vec![directory("."), vec![0; 512], file("f")]),
        ("entries after the end", vec![file("f"), END.to_vec(), vec![1; 2 << 20]]),
        ("segments that overlap", vec![bytes(&entry("f", overlapping), b"evil")]),
        ("segments beyond the end", vec![bytes(&entry("f", beyond), b"evil")]),
        ("more content than was said", vec![file("f"), file("g"), file("h"), file("i")]),
    ];
    for (what, parts) in cases {
        // Whatever precedes the attack must not survive it either.
        let parts = [vec![directory("."), file("first")], parts].concat();
        let (result, outside, left) = attempt(&parts, 12);
        let error = result.expect_err(what);
        assert_eq!(error.code(), "checkpoint_damaged", "{what}: {error:?}");
        assert!(outside.is_empty(), "{what}: {outside:?}");
        assert!(!left, "{what}: the staging folder is still there");
        assert!(!Path::new("/tmp/fountain-evil").exists(), "{what}");
    }
}
