//! delete, rename, copy, chmod, chown.

use super::*;
use serde_json::json;
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn deletes_take_their_arguments_from_query_or_body() {
    let sprite = Box::new();
    for name in ["a", "b", "dir/x", "dir2/x", "c"] {
        sprite.put(name, "");
    }
    assert_eq!(
        sprite.delete("path=a&workingDir=/home/sprite", "").await.ok(),
        json!({"deleted": ["/home/sprite/a"], "count": 1})
    );
    sprite.delete("", r#"{"path":"b","workingDir":null,"recursive":null,"asRoot":false,"more":7}"#).await.ok();
    sprite.delete("path=dir", "").await.refuses(409, "ENOTEMPTY", "not empty");
    sprite.delete("path=dir&recursive=false", "").await.refuses(409, "ENOTEMPTY", "not empty");
    sprite.delete("path=dir&recursive=true", "ignored, even as garbage").await.ok();
    sprite.delete("", r#"{"path":"dir2","recursive":true}"#).await.ok();
    for query in ["path=missing", "path=missing&recursive=true", "path=missing/deep"] {
        sprite.delete(query, "").await.refuses(404, "ENOENT", "no such file");
    }
    sprite.delete("path=c/x", "").await.refuses(400, "ENOTDIR", "not a directory");
    assert_eq!(sprite.names(""), ["c"]);
}

#[tokio::test]
async fn deleting_a_link_leaves_its_target() {
    let sprite = Box::new();
    sprite.put("dir/x", "");
    symlink("dir", sprite.host("link")).unwrap();
    symlink("nothing", sprite.host("dangling")).unwrap();
    mkfifo(&sprite.host("fifo"));
    sprite.delete("path=link&recursive=true", "").await.ok();
    sprite.delete("path=dangling", "").await.ok();
    sprite.delete("path=fifo", "").await.ok();
    std::fs::create_dir(sprite.host("empty")).unwrap();
    sprite.delete("path=empty", "").await.ok();
    assert_eq!(sprite.names("dir"), ["x"]);
    assert_eq!(sprite.names(""), ["dir"]);
}

#[tokio::test]
async fn renames_replace_files_and_nothing_else() {
    let sprite = Box::new();
    for name in ["a", "b", "dir/x", "full/x"] {
        sprite.put(name, name);
    }
    let answer = sprite.post("rename", r#"{"source":"a","dest":"b","workingDir":"/home/sprite"}"#).await;
    assert_eq!(answer.ok(), json!({"source": "/home/sprite/a", "dest": "/home/sprite/b"}));
    assert_eq!(std::fs::read(sprite.host("b")).unwrap(), b"a");
    sprite.post("rename", r#"{"source":"a","dest":"c"}"#).await.refuses(404, "ENOENT", "rename /home/sprite/a:");
    sprite.post("rename", r#"{"source":"b","dest":"no/c"}"#).await.refuses(404, "ENOENT", "no/c");
    sprite.post("rename", r#"{"source":"b","dest":"dir"}"#).await.refuses(400, "EISDIR", "is a directory");
    sprite.post("rename", r#"{"source":"dir","dest":"b"}"#).await.refuses(400, "ENOTDIR", "not a directory");
    sprite.post("rename", r#"{"source":"dir","dest":"full"}"#).await.refuses(409, "ENOTEMPTY", "not empty");
    sprite.post("rename", r#"{"source":"dir","dest":"dir/in"}"#).await.refuses(400, "EINVAL", "into itself");
    sprite.post("rename", r#"{"source":"dir","dest":"moved"}"#).await.ok();
    assert_eq!(sprite.names(""), ["b", "full", "moved"]);
}

#[tokio::test]
async fn renames_work_between_file_systems() {
    if std::fs::metadata("/dev/shm").map_or(0, |meta| meta.dev()) == std::fs::metadata("/tmp").unwrap().dev() {
        return;
    }
    let sprite = Box::at("/dev/shm", Limits { max_write: 1 << 20, floor: 0 });
    let tmp = tempfile::tempdir_in("/tmp").unwrap();
    sprite.put("dir/sub/x", "content");
    sprite.put("file", "content");
    sprite.put("full/x", "");
    set_mode(&sprite.host("file"), 0o640);
    set_mode(&sprite.host("dir/sub"), 0o500);
    symlink("nothing", sprite.host("dir/link")).unwrap();
    mkfifo(&sprite.host("dir/fifo"));
    let inode = std::fs::metadata(sprite.host("file")).unwrap().mtime_nsec();
    let rename = |source: &str, dest: &str| {
        let body = json!({"source": source, "dest": dest}).to_string();
        let sprite = &sprite;
        async move { sprite.post("rename", &body).await }
    };
    let at = |name: &str| tmp.path().join(name);
    rename("file", at("file").to_str().unwrap()).await.ok();
    rename("dir", at("dir").to_str().unwrap()).await.ok();
    assert_eq!(sprite.names(""), ["full"]);
    assert_eq!(std::fs::read(at("file")).unwrap(), b"content");
    let meta = std::fs::metadata(at("file")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime_nsec()), (0o640, inode));
    assert_eq!(std::fs::read(at("dir/sub/x")).unwrap(), b"content");
    assert_eq!(mode(&at("dir/sub")), 0o500);
    assert_eq!(std::fs::read_link(at("dir/link")).unwrap(), Path::new("nothing"));
    set_mode(&at("dir/sub"), 0o700);

    rename(at("dir").to_str().unwrap(), "full").await.refuses(409, "ENOTEMPTY", "not empty");
    assert_eq!(sprite.names(""), ["full"], "a move that fails leaves no copy");
    assert!(at("dir/sub/x").exists());
    rename(at("file").to_str().unwrap(), "full/x").await.ok();
    assert!(!at("file").exists());
    assert_eq!(std::fs::read(sprite.host("full/x")).unwrap(), b"content");
}

#[tokio::test]
async fn copies_of_files() {
    let sprite = Box::new();
    sprite.put("a", "12345");
    sprite.put("old", "to be replaced");
    sprite.put("dir/x", "");
    set_mode(&sprite.host("a"), 0o4751);
    set_mode(&sprite.host("old"), 0o600);
    symlink("a", sprite.host("link")).unwrap();
    let json = sprite.post("copy", r#"{"source":"a","dest":"b","recursive":true}"#).await.ok();
    assert_eq!(
        (&json["count"], &json["totalBytes"], &json["source"]),
        (&1.into(), &5.into(), &"/home/sprite/a".into())
    );
    assert_eq!(json["copied"], json!([{"source": "/home/sprite/a", "dest": "/home/sprite/b"}]));
    assert_eq!(mode(&sprite.host("b")), 0o751);
    sprite.post("copy", r#"{"source":"link","dest":"old"}"#).await.ok();
    assert_eq!((std::fs::read(sprite.host("old")).unwrap(), mode(&sprite.host("old"))), (b"12345".to_vec(), 0o600));

    let stamp =
        std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000));
    std::fs::File::options().write(true).open(sprite.host("a")).unwrap().set_times(stamp).unwrap();
    sprite.post("copy", r#"{"source":"a","dest":"kept","preserveAttrs":true}"#).await.ok();
    let meta = std::fs::metadata(sprite.host("kept")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o4751, 1_000_000));

    sprite.post("copy", r#"{"source":"a","dest":"dir"}"#).await.refuses(400, "EISDIR", "is a directory");
    sprite.post("copy", r#"{"source":"dir","dest":"d2"}"#).await.refuses(400, "EISDIR", "is a directory");
    sprite.post("copy", r#"{"source":"a","dest":"no/b"}"#).await.refuses(404, "ENOENT", "no/b");
    sprite.post("copy", r#"{"source":"no","dest":"b"}"#).await.refuses(404, "ENOENT", "/no:");
    sprite.post("copy", r#"{"source":"a","dest":"a"}"#).await.refuses(400, "EINVAL", "same file");
    sprite.post("copy", r#"{"source":"a","dest":"link"}"#).await.refuses(400, "EINVAL", "same file");
    sprite.post("copy", r#"{"source":"/dev/zero","dest":"z"}"#).await.refuses(400, "EINVAL", "device");
    assert_eq!(std::fs::read(sprite.host("a")).unwrap(), b"12345");
    sprite.post("copy", r#"{"source":"/proc/self/status","dest":"status"}"#).await.ok();
    assert!(std::fs::read(sprite.host("status")).unwrap().starts_with(b"Name:"));
}

#[tokio::test]
async fn copies_of_trees_merge() {
    let sprite = Box::new();
    for name in ["src/a", "src/sub/b", "src/ro/c", "dst/a", "dst/kept", "dst/sub/kept"] {
        sprite.put(name, name);
    }
    set_mode(&sprite.host("src/ro"), 0o555);
    symlink("../a", sprite.host("src/sub/link")).unwrap();
    symlink("elsewhere", sprite.host("dst/sub/link")).unwrap();
    mkfifo(&sprite.host("src/fifo"));
    let json = sprite.post("copy", r#"{"source":"src","dest":"dst","recursive":true}"#).await.ok();
    assert_eq!((&json["count"], &json["totalBytes"]), (&8.into(), &(5 + 9 + 8).into()));
    for (name, content) in [("a", "src/a"), ("sub/b", "src/sub/b"), ("ro/c", "src/ro/c"), ("kept", "dst/kept")] {
        assert_eq!(std::fs::read(sprite.host("dst").join(name)).unwrap(), content.as_bytes());
    }
    assert_eq!(std::fs::read_link(sprite.host("dst/sub/link")).unwrap(), Path::new("../a"));
    assert_eq!(mode(&sprite.host("dst/ro")), 0o555);
    set_mode(&sprite.host("dst/ro"), 0o755);
    sprite
        .post("copy", r#"{"source":"src","dest":"src/sub/again","recursive":true}"#)
        .await
        .refuses(400, "EINVAL", "itself");
    sprite.post("copy", r#"{"source":"src","dest":"src","recursive":true}"#).await.refuses(400, "EINVAL", "itself");
    symlink("src", sprite.host("alias")).unwrap();
    sprite.post("copy", r#"{"source":"src","dest":"alias/x","recursive":true}"#).await.refuses(400, "EINVAL", "itself");
    sprite.put("blocked/sub", "a file where the source has a folder");
    sprite.post("copy", r#"{"source":"src","dest":"blocked","recursive":true}"#).await.refuses(
        400,
        "ENOTDIR",
        "not a directory",
    );
    for folder in ["src/ro", "blocked/ro"] {
        set_mode(&sprite.host(folder), 0o755);
    }
}

#[tokio::test]
async fn a_copy_does_not_follow_links_of_the_destination_out_of_the_sprite() {
    let sprite = Box::new();
    sprite.put("src/sub/x", "new");
    std::fs::create_dir(sprite.outside("theirs")).unwrap();
    std::fs::write(sprite.outside("theirs/x"), "theirs").unwrap();
    sprite.put("dst/keep", "");
    symlink(sprite.outside("theirs"), sprite.host("dst/sub")).unwrap();
    sprite.post("copy", r#"{"source":"src","dest":"dst","recursive":true}"#).await.refuses(400, "ENOTDIR", "dst/sub");
    sprite.put("dst2/sub/keep", "");
    symlink(sprite.outside("theirs/x"), sprite.host("dst2/sub/x")).unwrap();
    sprite.post("copy", r#"{"source":"src","dest":"dst2","recursive":true}"#).await.refuses(
        403,
        "EACCES",
        "permission denied",
    );
    assert_eq!(std::fs::read(sprite.outside("theirs/x")).unwrap(), b"theirs");
}

#[tokio::test]
async fn holes_stay_holes() {
    let sprite = Box::new();
    let mut file = std::fs::File::create(sprite.host("sparse")).unwrap();
    file.seek(std::io::SeekFrom::Start(100 << 20)).unwrap();
    file.write_all(b"in the middle").unwrap();
    file.set_len(10 << 30).unwrap();
    let json = sprite.post("copy", r#"{"source":"sparse","dest":"copy"}"#).await.ok();
    assert_eq!(json["totalBytes"], 10_u64 << 30);
    let meta = std::fs::metadata(sprite.host("copy")).unwrap();
    assert_eq!(meta.len(), 10 << 30);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
    let mut found = [0; 13];
    std::os::unix::fs::FileExt::read_exact_at(
        &std::fs::File::open(sprite.host("copy")).unwrap(),
        &mut found,
        100 << 20,
    )
    .unwrap();
    assert_eq!(&found, b"in the middle");
}

#[tokio::test]
async fn chmod_takes_octal_text_and_bits() {
    let sprite = Box::new();
    sprite.put("f", "");
    let json = sprite.post("chmod", r#"{"path":"f","mode":"0755"}"#).await.ok();
    assert_eq!(json, json!({"affected": [{"path": "/home/sprite/f", "mode": "0755"}], "count": 1}));
    sprite.post("chmod", r#"{"path":"f","mode":416}"#).await.ok();
    assert_eq!(mode(&sprite.host("f")), 0o640);
    sprite.post("chmod", r#"{"path":"f","mode":"9"}"#).await.refuses(400, "EINVAL", "octal");
    sprite.post("chmod", r#"{"path":"missing","mode":"0755"}"#).await.refuses(404, "ENOENT", "no such file");
    symlink("f", sprite.host("link")).unwrap();
    sprite.post("chmod", r#"{"path":"link","mode":"0600"}"#).await.ok();
    assert_eq!(mode(&sprite.host("f")), 0o600);
}

#[tokio::test]
async fn recursive_chmod_reaches_everything_but_what_links_point_at() {
    let sprite = Box::new();
    for name in ["dir/a", "dir/sub/b", "other"] {
        sprite.put(name, "");
    }
    symlink("../other", sprite.host("dir/link")).unwrap();
    set_mode(&sprite.host("dir/sub"), 0o000);
    let json = sprite.post("chmod", r#"{"path":"dir","mode":"0500","recursive":true}"#).await.ok();
    assert_eq!(json["count"], 4);
    for name in ["dir", "dir/a", "dir/sub", "dir/sub/b"] {
        assert_eq!(mode(&sprite.host(name)), 0o500, "{name}");
    }
    assert_eq!(mode(&sprite.host("other")), 0o644);
    sprite.post("chmod", r#"{"path":"dir","mode":"0755","recursive":"true"}"#).await.ok();
}

#[tokio::test]
async fn chown_takes_numbers_and_names() {
    let sprite = Box::new();
    sprite.put("dir/f", "");
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let json = sprite.post("chown", r#"{"path":"dir/f","uid":"sprite"}"#).await.ok();
    assert_eq!(json, json!({"affected": [{"path": "/home/sprite/dir/f", "uid": uid, "gid": gid}], "count": 1}));
    sprite.post("chown", r#"{"path":"dir","uid":-1,"gid":null,"recursive":true}"#).await.ok();
    sprite.post("chown", r#"{"path":"dir","uid":"nobody at all"}"#).await.refuses(400, "EINVAL", "no user");
    sprite.post("chown", r#"{"path":"dir","gid":"nobody at all"}"#).await.refuses(400, "EINVAL", "no group");
    sprite.post("chown", r#"{"path":"missing","uid":0}"#).await.refuses(404, "ENOENT", "no such file");
    if !is_root() {
        sprite.post("chown", r#"{"path":"dir","uid":0}"#).await.refuses(403, "EPERM", "permission denied");
        return;
    }
    let json = sprite.post("chown", r#"{"path":"dir","uid":1234,"recursive":true}"#).await.ok();
    assert_eq!(json["count"], 2);
    let meta = std::fs::metadata(sprite.host("dir/f")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (1234, gid));
}
