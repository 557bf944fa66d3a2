//! Listing, the stat call of every SDK.

use super::*;
use std::os::unix::fs::symlink;

fn names(json: &Value) -> Vec<&str> {
    json["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_directory_lists_its_children_and_a_file_itself() {
    let sprite = Box::new();
    for name in ["b", "a.txt", ".hidden", "dir/x", "B"] {
        sprite.put(name, "12345");
    }
    symlink("dir", sprite.host("link")).unwrap();
    symlink("a.txt", sprite.host("alias")).unwrap();
    symlink("nothing", sprite.host("dangling")).unwrap();
    mkfifo(&sprite.host("fifo"));
    let json = sprite.get("/fs/list?path=/home/sprite&workingDir=/").await.ok();
    assert_eq!(json["path"], "/home/sprite");
    assert_eq!(json["count"], 9);
    assert_eq!(names(&json), [".hidden", "B", "a.txt", "alias", "b", "dangling", "dir", "fifo", "link"]);
    let entry = |name: &str| {
        let mut entries = json["entries"].as_array().unwrap().iter();
        entries.find(|entry| entry["name"] == name).unwrap().clone()
    };
    let file = entry("a.txt");
    assert_eq!(file["path"], "/home/sprite/a.txt");
    assert_eq!((&file["type"], &file["isDir"], &file["size"]), (&"file".into(), &false.into(), &5.into()));
    assert_eq!(file["mode"], "0644");
    file["modTime"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!((&entry("dir")["type"], &entry("dir")["isDir"]), (&"directory".into(), &true.into()));
    assert_eq!((&entry("link")["type"], &entry("link")["isDir"]), (&"symlink".into(), &false.into()));
    assert_eq!((&entry("fifo")["type"], &entry("fifo")["isDir"]), (&"other".into(), &false.into()));

    let json = sprite.get("/fs/list?path=a.txt").await.ok();
    assert_eq!((json["path"].as_str(), json["count"].as_u64()), (Some("/home/sprite/a.txt"), Some(1)));
    assert_eq!(json["entries"][0], file);
    assert_eq!(names(&sprite.get("/fs/list?path=link").await.ok()), ["x"]);
    let alias = sprite.get("/fs/list?path=alias").await.ok()["entries"][0].clone();
    assert_eq!((&alias["type"], &alias["size"]), (&"symlink".into(), &5.into()));
    assert_eq!(sprite.get("/fs/list?path=dangling").await.ok()["entries"][0]["type"], "symlink");
    assert_eq!(names(&sprite.get("/fs/list?workingDir=dir").await.ok()), ["x"]);
}

#[tokio::test]
async fn an_empty_directory_has_an_empty_array() {
    let sprite = Box::new();
    let answer = sprite.get("/fs/list?path=.").await;
    assert_eq!(answer.ok(), serde_json::json!({"path": "/home/sprite", "entries": [], "count": 0}));
}

#[tokio::test]
async fn what_cannot_be_listed_says_why() {
    let sprite = Box::new();
    sprite.put("file", "");
    sprite.get("/fs/list?path=missing").await.refuses(404, "ENOENT", "no such file");
    sprite.get("/fs/list?path=file/x").await.refuses(400, "ENOTDIR", "not a directory");
    assert!(sprite.get("/fs/list?path=/").await.ok()["count"].as_u64().unwrap() > 5);
}

#[tokio::test]
async fn recursion_is_depth_first_and_patterns_are_globs_on_names() {
    let sprite = Box::new();
    for name in ["a/deep/one.rs", "a/two.rs", "b.rs", "c.txt"] {
        sprite.put(name, "");
    }
    symlink("..", sprite.host("a/up")).unwrap();
    let paths = |json: Value| -> Vec<String> {
        let entries = json["entries"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["path"].as_str().unwrap()["/home/sprite/".len()..].to_owned()).collect()
    };
    let all = paths(sprite.get("/fs/list?path=.&recursive=true").await.ok());
    assert_eq!(all, ["a", "a/deep", "a/deep/one.rs", "a/two.rs", "a/up", "b.rs", "c.txt"]);
    let some = paths(sprite.get("/fs/list?path=.&recursive=true&pattern=*.rs").await.ok());
    assert_eq!(some, ["a/deep/one.rs", "a/two.rs", "b.rs"]);
    assert_eq!(paths(sprite.get("/fs/list?path=.&pattern=[bc].*").await.ok()), ["b.rs", "c.txt"]);
}

#[tokio::test]
async fn names_that_are_not_text_are_listed_all_the_same() {
    use std::os::unix::ffi::OsStrExt;
    let sprite = Box::new();
    std::fs::write(sprite.paths.home().join(std::ffi::OsStr::from_bytes(b"\xff\xfe\n\"")), "").unwrap();
    let json = sprite.get("/fs/list?path=.").await.ok();
    assert_eq!(names(&json), ["\u{fffd}\u{fffd}\n\""]);
}

#[tokio::test]
async fn a_huge_directory_is_listed_in_pieces() {
    let sprite = Box::new();
    std::fs::create_dir(sprite.host("many")).unwrap();
    for number in 0..10_000 {
        std::fs::write(sprite.host(&format!("many/{number:05}")), "").unwrap();
    }
    let json = sprite.get("/fs/list?path=many").await.ok();
    assert_eq!(json["count"], 10_000);
    let names = names(&json);
    assert_eq!((names.len(), names[0], names[9_999]), (10_000, "00000", "09999"));
}

#[tokio::test]
async fn the_disk_by_its_host_path_answers_with_api_paths() {
    let sprite = Box::new();
    sprite.put("dir/x", "");
    let host = sprite.host("dir");
    let json = sprite.get(&format!("/fs/list?path={}", host.display())).await.ok();
    assert_eq!(json["path"], "/home/sprite/dir");
    assert_eq!(json["entries"][0]["path"], "/home/sprite/dir/x");
}
