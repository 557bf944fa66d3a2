//! Archives that a bad disk or a person harmed, disks that are full, work that is cancelled.

use std::os::unix::fs::FileExt;
use std::process::Command;

use super::compare::differences;
use super::*;

#[test]
fn a_cut_or_flipped_archive_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    nasty::build(&at("tree"));
    let summary = archive(&at("tree"), &at("whole"));
    let whole = fs::read(at("whole")).unwrap();
    let mut cases = Vec::new();
    for part in 0..20 {
        cases.push((format!("cut at {part}/20"), whole[..whole.len() * part / 20].to_vec()));
        let mut flipped = whole.clone();
        let at = whole.len() * part / 20 + 3;
        flipped[at] ^= 0x10;
        cases.push((format!("flipped at {at}"), flipped));
    }
    cases.push(("without its last byte".into(), whole[..whole.len() - 1].to_vec()));
    cases.push(("with a byte more".into(), [whole.clone(), vec![0]].concat()));
    cases.push(("twice".into(), [whole.clone(), whole.clone()].concat()));
    for (what, bytes) in cases {
        fs::write(at("harmed"), &bytes).unwrap();
        // A manifest that agrees in size, so that the content itself has to tell.
        let summary = Summary { archive_bytes: bytes.len() as u64, ..summary.clone() };
        let error = restore(&at("harmed"), &summary, &at("staging")).expect_err(&what);
        assert_eq!(error.code(), "checkpoint_damaged", "{what}: {error:?}");
        assert!(!at("staging").exists(), "{what}");
    }
}

#[test]
fn a_damaged_checkpoint_is_listed_as_such_and_its_restore_changes_nothing() {
    let (dir, catalog) = sprite("one");
    for text in ["one", "two", "three", "four"] {
        say(&catalog, text);
        create(&catalog, text).unwrap();
    }
    let before = dir.path().join("before");
    assert!(Command::new("cp").arg("-a").arg(&catalog.disk).arg(&before).status().unwrap().success());
    let archive = File::options().write(true).open(catalog.archive("v1")).unwrap();
    archive.set_len(archive.metadata().unwrap().len() - 1).unwrap();
    File::options().write(true).open(catalog.archive("v2")).unwrap().write_all_at(b"\xff\xff", 60).unwrap();
    fs::remove_file(catalog.archive("v3")).unwrap();
    fs::write(catalog.manifest("v4"), "{").unwrap();
    let health = |id: &str| catalog.get(id).unwrap().health;
    assert_eq!(health("v1"), Health::Failed);
    assert_eq!(health("v2"), Health::Good, "only its checksum can tell");
    assert_eq!(health("v3"), Health::Failed);
    assert_eq!(health("v4"), Health::Failed);
    assert_eq!(catalog.get("v3").unwrap().to_wire()["health"], "mount_failed");
    assert_eq!(catalog.list(false).unwrap().len(), 4);
    for id in ["v1", "v2", "v3", "v4"] {
        let error = swap_to(&catalog, id).unwrap_err();
        assert_eq!(error.code(), "checkpoint_damaged", "{id}: {error:?}");
    }
    assert_eq!(differences(&before, &catalog.disk), Vec::<String>::new());
    assert_eq!(siblings(dir.path()), ["before", "checkpoints", "disk"]);
    catalog.recover().unwrap();
    assert_eq!(catalog.list(false).unwrap().len(), 4, "a damaged manifest is no leftover");
}

#[test]
fn cancelled_work_leaves_nothing() {
    let (dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    let mut cancel = |_, _| ControlFlow::Break(());
    let error = catalog.create(NewCheckpoint::default(), &mut cancel).unwrap_err();
    assert_eq!(error.code(), "checkpoint_cancelled");
    let error = catalog.stage("v1", &mut cancel).unwrap_err();
    assert_eq!(error.code(), "checkpoint_cancelled");
    assert_eq!(siblings(&dir.path().join("checkpoints")), ["lock", "state.json", "v1.json", "v1.tar.zst"]);
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk"]);
    assert_eq!(create(&catalog, "").unwrap().manifest.id, "v2");
}

#[test]
fn below_the_free_space_floor_nothing_begins() {
    let (_dir, mut catalog) = sprite("one");
    create(&catalog, "").unwrap();
    catalog.limits.min_free = u64::MAX / 2;
    assert_eq!(create(&catalog, "").unwrap_err().code(), "disk_low");
    assert_eq!(swap_to(&catalog, "v1").unwrap_err().code(), "disk_low");
    assert_eq!(ids(&catalog), ["v1"]);
    assert_eq!(siblings(&catalog.dir), ["lock", "state.json", "v1.json", "v1.tar.zst"]);
}

/// A small file system of its own, gone at the end.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let option = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "none"]).arg(dir.path()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(dir));
        }
        eprintln!("SKIPPED: this test needs to mount a small tmpfs, so it needs root");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Bytes that no compressor makes smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_full_disk_is_a_clear_error_and_leaves_nothing() {
    let Some(disk) = Tmpfs::new("16m") else { return };
    let root = disk.0.path();
    fs::create_dir_all(root.join("disk/home/sprite")).unwrap();
    let catalog = catalog(root);
    say(&catalog, "small");
    create(&catalog, "").unwrap();
    fs::write(catalog.disk.join("large"), noise(9 << 20)).unwrap();
    let error = create(&catalog, "too much").unwrap_err();
    assert_eq!(error.code(), "disk_low", "{error:?}");
    assert_eq!(siblings(&catalog.dir), ["lock", "state.json", "v1.json", "v1.tar.zst"]);

    // A checkpoint that fits no more when it is to be restored: ten MiB of zeros are a few bytes packed.
    fs::write(catalog.disk.join("large"), vec![0; 10 << 20]).unwrap();
    create(&catalog, "zeros").unwrap();
    let error = swap_to(&catalog, "v2").unwrap_err();
    assert_eq!(error.code(), "disk_low", "{error:?}");
    assert_eq!(siblings(root), ["checkpoints", "disk"]);

    // The same, noticed only by the kernel.
    let manifest = catalog.get("v2").unwrap().manifest;
    let expected =
        Expected { archive_bytes: manifest.archive_bytes, sha256: &manifest.sha256, data_bytes: manifest.data_bytes };
    let archive = File::open(catalog.archive("v2")).unwrap();
    let error = extract(&archive, expected, &root.join("staging"), 0, &mut quiet()).unwrap_err();
    assert_eq!(error.code(), "disk_low", "{error:?}");
    assert_eq!(siblings(root), ["checkpoints", "disk"]);

    // Full to the last byte: nothing can be written, and the list still works.
    fs::remove_file(catalog.disk.join("large")).unwrap();
    let mut full = File::create(root.join("full")).unwrap();
    while std::io::Write::write(&mut full, &[1; 4096]).is_ok() {}
    assert_eq!(create(&catalog, "").unwrap_err().code(), "disk_low");
    assert_eq!(ids(&catalog), ["v2", "v1"]);
    assert_eq!(said(&catalog), "small");
}

#[test]
fn what_is_mounted_in_a_tree_is_neither_archived_nor_removed() {
    let (dir, catalog) = sprite("one");
    let Some(other) = Tmpfs::new("1m") else { return };
    fs::write(other.0.path().join("precious"), "x").unwrap();
    let inside = catalog.disk.join("mount");
    fs::create_dir(&inside).unwrap();
    assert!(Command::new("mount").arg("--bind").arg(other.0.path()).arg(&inside).status().unwrap().success());
    let checkpoint = create(&catalog, "").unwrap();
    let removed = walk::remove_tree(&catalog.disk);
    assert!(Command::new("umount").arg(&inside).status().unwrap().success());
    assert_eq!(checkpoint.manifest.mounts_skipped, 1);
    assert!(removed.is_err());
    assert_eq!(fs::read_to_string(other.0.path().join("precious")).unwrap(), "x");
    drop(dir);
}
