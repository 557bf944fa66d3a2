//! A tree with one of everything that archives lose (isolation.md §7).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};

/// How many sockets are in the tree.
pub const SOCKETS: u64 = 2;

/// Builds the tree; `root` must not exist. Says on stderr what this machine does not let it make.
pub fn build(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir(root).unwrap();
    for name in ["links", "links/far", "sparse", "attributes", "times", "modes", "empty", "special", "names"] {
        fs::create_dir(at(name)).unwrap();
    }
    names(&at("names"));
    links(&at("links"));
    sparse(&at("sparse"));
    attributes(&at("attributes"));
    special(&at("special"));
    content(root);
    modes(&at("modes"));
    times(&at("times"));
    if rustix::process::geteuid().is_root() {
        owners(root);
    }
    // Last, because everything above touched it.
    age(root, 1_000_000_000, 1);
}

fn names(dir: &Path) {
    for name in [
        &b"new\nline"[..],
        b"-rf",
        b" spaces ",
        b"...",
        b"star*?",
        b"back\\slash",
        b"tab\t",
        b"\xff\xfe not text",
        "süß".as_bytes(),
        b"equals=sign%3D",
        &[b'n'; 255],
        &[b'h'; 100],
        &[b'i'; 99],
        &[b'j'; 101],
    ] {
        fs::write(dir.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut long = dir.to_owned();
    for depth in 0..12 {
        long.push(format!("{depth}{}", "d".repeat(200)));
        fs::create_dir(&long).unwrap();
    }
    fs::write(long.join("deep"), "deep").unwrap();
    symlink(long.join("nowhere"), dir.join("long link")).unwrap();
    symlink(OsStr::from_bytes(&[b't'; 4000]), dir.join("longest link")).unwrap();
    symlink(OsStr::from_bytes(b"\xff\n"), dir.join("odd link")).unwrap();
    symlink("/etc/passwd", dir.join("absolute")).unwrap();
    symlink("../../../../outside", dir.join("climbing")).unwrap();
    symlink(".", dir.join("self")).unwrap();
}

fn links(dir: &Path) {
    fs::write(dir.join("one"), "shared").unwrap();
    fs::hard_link(dir.join("one"), dir.join("two")).unwrap();
    fs::hard_link(dir.join("one"), dir.join("far/three")).unwrap();
    symlink("one", dir.join("symlink")).unwrap();
    rustix::fs::linkat(CWD, dir.join("symlink"), CWD, dir.join("symlink again"), AtFlags::empty()).unwrap();
    let long = dir.join("l".repeat(200));
    fs::write(&long, "a long target").unwrap();
    fs::hard_link(&long, dir.join("short")).unwrap();
    // The other name of this file lies outside the tree, so its link count is not to be had back; not compared: absent.
}

fn sparse(dir: &Path) {
    let make = |name: &str, size: u64, data: &[(u64, usize)]| {
        let file = File::create(dir.join(name)).unwrap();
        file.set_len(size).unwrap();
        for &(offset, length) in data {
            file.write_all_at(&vec![7; length], offset).unwrap();
        }
    };
    make("only a hole", 10 << 30, &[]);
    make("middle", 1 << 30, &[(512 << 20, 5000)]);
    make("start", 1 << 20, &[(0, 4096)]);
    make("end", 1 << 20, &[((1 << 20) - 4096, 4096)]);
    make("ragged end", (1 << 20) + 123, &[((1 << 20), 123)]);
    let many: Vec<_> = (0..200).map(|index| (index * 65536, 4096)).collect();
    make("many", 200 * 65536 + 1, &many);
    let long = format!("{}/file", "s".repeat(150));
    fs::create_dir(dir.join("s".repeat(150))).unwrap();
    make(&long, 1 << 20, &[(65536, 1)]);
    make(&"q".repeat(240), 1 << 20, &[(65536, 1)]);
}

fn attributes(dir: &Path) {
    let set = |path: &Path, name: &str, value: &[u8]| {
        let result = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
        if let Err(errno) = result {
            eprintln!("SKIPPED: this file system does not take {name}: {errno}");
        }
    };
    let file = dir.join("file");
    fs::write(&file, "x").unwrap();
    set(&file, "user.plain", b"value");
    set(&file, "user.binary", b"\x01\n2 a=b\n\0\xff");
    set(&file, "user.empty", b"");
    set(&file, "user.odd=name%3D\n", b"odd");
    set(&file, "user.large", &[b'v'; 2000]);
    let folder = dir.join("opaque");
    fs::create_dir(&folder).unwrap();
    set(&folder, "user.overlay.opaque", b"y");
    set(&folder, "user.overlay.origin", b"not to be kept");
    // user::rw- user:1234:r-- group::r-- mask::r-- other::r--
    let mut acl = vec![2, 0, 0, 0];
    let undefined = u32::MAX;
    for (tag, perm, id) in
        [(1u16, 6u16, undefined), (2, 4, 1234), (4, 4, undefined), (16, 4, undefined), (32, 4, undefined)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    let shared = dir.join("acl");
    fs::write(&shared, "x").unwrap();
    set(&shared, "system.posix_acl_access", &acl);
    let inherited = dir.join("default acl");
    fs::create_dir(&inherited).unwrap();
    fs::write(inherited.join("before"), "made before the default").unwrap();
    set(&inherited, "system.posix_acl_default", &acl);
    if rustix::process::geteuid().is_root() {
        let capable = dir.join("capable");
        fs::write(&capable, "x").unwrap();
        fs::set_permissions(&capable, PermissionsExt::from_mode(0o755)).unwrap();
        // cap_net_raw+ep, revision 2
        let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        set(&capable, "security.capability", &capability);
        let link = dir.join("link");
        symlink("x", &link).unwrap();
        set(&link, "trusted.on.link", b"1");
    }
}

fn special(dir: &Path) {
    let node = |name: &str, file_type, device| {
        if let Err(errno) = rustix::fs::mknodat(CWD, dir.join(name), file_type, Mode::from_raw_mode(0o640), device) {
            eprintln!("SKIPPED: {name} cannot be made here: {errno}");
        }
    };
    node("fifo", FileType::Fifo, 0);
    fs::hard_link(dir.join("fifo"), dir.join("fifo again")).unwrap();
    node("whiteout", FileType::CharacterDevice, 0);
    if dir.join("whiteout").exists() {
        for name in ["whiteout 2", "whiteout 3"] {
            fs::hard_link(dir.join("whiteout"), dir.join(name)).unwrap();
        }
    }
    node("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node("loop", FileType::BlockDevice, rustix::fs::makedev(7, 300));
    for name in ["socket", "socket 2"].into_iter().take(usize::try_from(SOCKETS).unwrap()) {
        drop(UnixListener::bind(dir.join(name)).unwrap());
    }
}

fn content(root: &Path) {
    for size in [0, 1, 511, 512, 513, 4096, 262_144, 262_145, 3 << 20] {
        let mut file = File::create(root.join(format!("{size} bytes"))).unwrap();
        let bytes: Vec<u8> = (0..size).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        file.write_all(&bytes).unwrap();
    }
}

fn modes(dir: &Path) {
    for mode in [0o000, 0o400, 0o4755, 0o2755, 0o6711, 0o777] {
        let file = dir.join(format!("file {mode:o}"));
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let folder = dir.join(format!("folder {mode:o}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("inside"), "x").unwrap();
        fs::set_permissions(&folder, PermissionsExt::from_mode(mode | 0o1000)).unwrap();
    }
}

fn times(dir: &Path) {
    for (name, secs, nanos) in [
        ("epoch", 0, 0),
        ("before", -1, 500_000_000),
        ("long before", -1_000_000_000, 1),
        ("whole before", -5, 0),
        ("precise", 1_700_000_000, 123_456_789),
        ("late", 9_000_000_000, 999_999_999),
        ("whole", 1_600_000_000, 0),
    ] {
        fs::write(dir.join(name), name).unwrap();
        age(&dir.join(name), secs, nanos);
        let folder = dir.join(format!("{name} folder"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("inside"), name).unwrap();
        age(&folder, secs, nanos);
        let link = dir.join(format!("{name} link"));
        symlink(name, &link).unwrap();
        age(&link, secs, nanos);
    }
}

fn owners(root: &Path) {
    let own = |path: PathBuf, uid, gid| {
        rustix::fs::chownat(CWD, path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
            .unwrap();
    };
    own(root.join("links/one"), 1000, 1000);
    own(root.join("links/symlink"), 1001, 1002);
    own(root.join("empty"), 12345, 54321);
    own(root.join("1 bytes"), 3_000_000_000, 4_000_000_000);
    own(root.join("special/fifo"), 7, 8);
    let setuid = root.join("modes/file 6711");
    let mode = fs::metadata(&setuid).unwrap().mode();
    own(setuid.clone(), 1000, 1000);
    fs::set_permissions(&setuid, PermissionsExt::from_mode(mode)).unwrap();
}

fn age(path: &Path, secs: i64, nanos: i64) {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: secs, tv_nsec: nanos },
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}
