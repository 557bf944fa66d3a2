//! What goes into an archive comes out again, by our reader and by GNU tar's.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::compare::differences;
use super::*;

#[test]
fn a_nasty_tree_comes_back_without_one_difference() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    nasty::build(&at("tree"));
    let summary = archive(&at("tree"), &at("v1.tar.zst"));
    assert_eq!(summary.sockets, nasty::SOCKETS);
    assert_eq!((summary.vanished, summary.changed, summary.mounts), (0, 0, 0));
    assert!(summary.archive_bytes < 8 << 20, "holes were written: {summary:?}");
    restore(&at("v1.tar.zst"), &summary, &at("staging")).unwrap();
    assert_eq!(differences(&at("tree"), &at("staging")), Vec::<String>::new());

    // The same tree makes the same archive, so nothing in it hangs on chance.
    let again = archive(&at("staging"), &at("again"));
    assert_eq!(again.files, summary.files);
    assert_eq!(again.sha256, summary.sha256);
}

#[test]
fn gnu_tar_lists_and_extracts_an_archive_without_one_difference() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    nasty::build(&at("tree"));
    let summary = archive(&at("tree"), &at("v1.tar.zst"));
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar").args(arguments).arg("-f").arg(at("v1.tar.zst")).env("LC_ALL", "C").output();
        let Ok(output) = output else {
            eprintln!("SKIPPED: there is no tar here");
            return None;
        };
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        if complaint.contains("zstd: Cannot exec") {
            eprintln!("SKIPPED: there is no zstd here");
            return None;
        }
        assert!(output.status.success(), "{complaint}");
        // It finds times before 1970 implausible, and says so.
        let complaints: Vec<_> = complaint.lines().filter(|line| !line.contains("time stamp")).collect();
        assert_eq!(complaints, Vec::<&str>::new());
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(listing) = tar(&["--zstd", "-t"]) else { return };
    assert_eq!(listing.lines().count() as u64, summary.files);
    assert!(listing.starts_with("./\n0 bytes\n"), "{listing}");
    fs::create_dir(at("out")).unwrap();
    let out = at("out").into_os_string().into_string().unwrap();
    tar(&["--zstd", "-xp", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", &out]);
    assert_eq!(differences(&at("tree"), &at("out")), Vec::<String>::new());
}

#[test]
fn a_tree_deeper_than_path_max_is_archived_restored_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let deep = |root: &Path| {
        let mut fd = rustix::fs::open(root, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let name = "d".repeat(50);
        let mut depth = 0;
        while let Ok(next) = rustix::fs::openat(&fd, &name, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()) {
            fd = next;
            depth += 1;
        }
        (fd, depth)
    };
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    fs::create_dir(&tree).unwrap();
    for _ in 0..300 {
        let (fd, _) = deep(&tree);
        rustix::fs::mkdirat(&fd, "d".repeat(50), rustix::fs::Mode::RWXU).unwrap();
        // A name behind each directory makes the walk come back to it.
        rustix::fs::mkdirat(&fd, "e", rustix::fs::Mode::RWXU).unwrap();
    }
    let summary = archive(&tree, &dir.path().join("v1"));
    assert_eq!(summary.files, 601);
    restore(&dir.path().join("v1"), &summary, &out).unwrap();
    assert_eq!(deep(&out).1, 300);
    walk::remove_tree(&out).unwrap();
    walk::remove_tree(&tree).unwrap();
    assert_eq!(siblings(dir.path()), ["v1"]);
}

#[test]
fn a_file_that_shrinks_or_vanishes_while_it_is_read_does_not_harm_the_archive() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/a"), vec![1; 1 << 20]).unwrap();
    fs::write(at("tree/b"), "gone").unwrap();
    fs::write(at("tree/c"), "stays").unwrap();
    let mut calls = 0;
    // The first call comes after the first piece of `a`.
    let mut meddle = |_, _| {
        calls += 1;
        if calls == 1 {
            File::options().write(true).open(at("tree/a")).unwrap().set_len(300_000).unwrap();
            fs::remove_file(at("tree/b")).unwrap();
        }
        ControlFlow::Continue(())
    };
    let file = File::create(at("v1")).unwrap();
    let summary = write(&at("tree"), &file, Options::default(), &mut meddle).unwrap();
    assert_eq!((summary.vanished, summary.changed, summary.files), (1, 1, 3));
    restore(&at("v1"), &summary, &at("out")).unwrap();
    let a = fs::read(at("out/a")).unwrap();
    assert_eq!((a.len(), a[299_999], a[300_000]), (1 << 20, 1, 0));
    assert_eq!(fs::read_to_string(at("out/c")).unwrap(), "stays");
}

#[test]
fn a_file_that_grows_while_it_is_read_is_cut_at_the_size_in_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/a"), vec![1; 1 << 20]).unwrap();
    let mut grow = |_, _| {
        File::options().write(true).open(at("tree/a")).unwrap().set_len(2 << 20).unwrap();
        ControlFlow::Continue(())
    };
    let file = File::create(at("v1")).unwrap();
    let summary = write(&at("tree"), &file, Options::default(), &mut grow).unwrap();
    restore(&at("v1"), &summary, &at("out")).unwrap();
    assert_eq!(fs::metadata(at("out/a")).unwrap().size(), 1 << 20);
}

/// Where the child of the next test works.
const UNPRIVILEGED: &str = "FOUNTAIN_TEST_UNPRIVILEGED";

/// Not a test: what nobody does below. Does nothing when it is run with all others.
#[test]
fn unprivileged_child() {
    let Ok(dir) = std::env::var(UNPRIVILEGED) else { return };
    let dir = Path::new(&dir);
    nasty::build(&dir.join("tree"));
    let summary = archive(&dir.join("tree"), &dir.join("v1"));
    restore(&dir.join("v1"), &summary, &dir.join("out")).unwrap();
    restore(&dir.join("v1"), &summary, &dir.join("removed")).unwrap();
    walk::remove_tree(&dir.join("removed")).unwrap();
}

#[test]
fn without_root_files_that_are_closed_to_their_owner_come_back_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: this test needs root, to look at what nobody has made");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let program = dir.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .uid(65534)
        .gid(65534)
        .args(["--exact", "checkpoint::tests::round_trip::unprivileged_child", "--nocapture"])
        .env(UNPRIVILEGED, dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(siblings(dir.path()), ["out", "tests", "tree", "v1"]);
    assert_eq!(differences(&dir.path().join("tree"), &dir.path().join("out")), Vec::<String>::new());
}
