//! Reading and writing.

use super::*;
use axum::body::Bytes;
use futures_util::stream;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn what_is_written_is_read_back() {
    let sprite = Box::new();
    let json =
        sprite.write("path=%2Fhome%2Fsprite%2Fa%2Fb.txt&workingDir=%2F&mode=600&mkdirParents=true", "hello").await;
    assert_eq!(json.ok(), serde_json::json!({"path": "/home/sprite/a/b.txt", "size": 5, "mode": "0600"}));
    assert_eq!(mode(&sprite.host("a/b.txt")), 0o600);
    assert_eq!(mode(&sprite.host("a")), 0o755);
    let answer = sprite.get("/fs/read?path=a/b.txt").await;
    assert_eq!((answer.status, answer.body.as_slice()), (StatusCode::OK, &b"hello"[..]));
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    assert_eq!(answer.header("content-length"), "5");
    assert_eq!(sprite.get("/fs/read?path=../b.txt&workingDir=a/x").await.body, b"hello");
}

#[tokio::test]
async fn names_are_bytes_and_plus_is_a_space() {
    let sprite = Box::new();
    sprite.write("path=a+b%20c%2Bd", "1").await.ok();
    sprite.write("path=%FF%FE", "2").await.ok();
    sprite.write("path=~", "3").await.ok();
    assert_eq!(sprite.names("").len(), 3);
    assert!(sprite.host("a b c+d").exists() && sprite.host("~").exists());
    assert_eq!(sprite.get("/fs/read?path=%FF%FE").await.body, b"2");
    sprite.delete("path=%FF%FE", "").await.ok();
    assert_eq!(sprite.names("").len(), 2);
}

#[tokio::test]
async fn sizes_around_every_boundary_come_back_byte_for_byte() {
    let sprite = Box::new();
    for size in [0, 1, 18 << 10, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3_000_000, 20 << 20] {
        let content: Vec<u8> = (0..size).map(|at: usize| (at * 7 % 251) as u8).collect();
        let pieces: Vec<_> =
            content.chunks(65_537).map(|piece| Ok::<_, io::Error>(Bytes::copy_from_slice(piece))).collect();
        let json = sprite.write("path=f", Body::from_stream(stream::iter(pieces))).await.ok();
        assert_eq!(json["size"], size);
        let answer = sprite.get("/fs/read?path=f").await;
        assert_eq!(answer.header("content-length"), size.to_string());
        assert!(answer.body == content, "{size}");
    }
    assert_eq!(sprite.names(""), ["f"]);
}

#[tokio::test]
async fn a_range_is_answered_only_when_asked_for() {
    let sprite = Box::new();
    let content: Vec<u8> = (0..600_000_usize).map(|at| (at % 253) as u8).collect();
    sprite.put("big", &content);
    sprite.put("small", "0123456789");
    let ask = |path: &str, range: &str| {
        Request::get(format!("/fs/read?path={path}")).header("range", range).body(Body::empty()).unwrap()
    };
    let answer = sprite.send(ask("big", "bytes=300000-599998")).await;
    assert_eq!(answer.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(answer.header("content-range"), "bytes 300000-599998/600000");
    assert!(answer.body == content[300_000..599_999]);
    let answer = sprite.send(ask("small", "bytes=-4")).await;
    assert_eq!((answer.header("content-range"), answer.body.as_slice()), ("bytes 6-9/10", &b"6789"[..]));
    let answer = sprite.send(ask("small", "bytes=10-")).await;
    answer.refuses(416, "EINVAL", "range");
    assert_eq!(answer.header("content-range"), "bytes */10");
    let answer = sprite.send(ask("small", "bytes=0-1,4-5")).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::OK, 10));
    assert_eq!(sprite.get("/fs/read?path=small").await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let sprite = Box::new();
    sprite.put("file", "");
    mkfifo(&sprite.host("fifo"));
    symlink("loop", sprite.host("loop")).unwrap();
    symlink("nothing", sprite.host("dangling")).unwrap();
    sprite.get("/fs/read?path=missing").await.refuses(404, "ENOENT", "open /home/sprite/missing: no such file");
    sprite.get("/fs/read?path=dangling").await.refuses(404, "ENOENT", "no such file");
    sprite.get("/fs/read?path=/home/sprite").await.refuses(400, "EISDIR", "is a directory");
    sprite.get("/fs/read?path=file/x").await.refuses(400, "ENOTDIR", "not a directory");
    sprite.get("/fs/read?path=fifo").await.refuses(400, "EINVAL", "not a regular file");
    sprite.get("/fs/read?path=/dev/zero").await.refuses(400, "EINVAL", "not a regular file");
    sprite.get("/fs/read?path=/dev/tty").await.refuses(400, "EINVAL", "not a regular file");
    sprite.get("/fs/read?path=loop").await.refuses(400, "EINVAL", "symbolic links");
    sprite.get(&format!("/fs/read?path={}", "x".repeat(300))).await.refuses(400, "EINVAL", "too long");
    let control = "%01".repeat(3000);
    sprite.get(&format!("/fs/read?path={control}")).await.refuses(400, "EINVAL", "");
    assert_eq!(sprite.get("/fs/read?path=file").await.body, b"");
    let answer = sprite.get("/fs/read?path=/proc/self/status").await;
    assert!(answer.body.starts_with(b"Name:"), "files without a true size are read to their end");
    assert_eq!(answer.header("content-length"), answer.body.len().to_string());
    if !is_root() {
        std::fs::set_permissions(sprite.host("file"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        sprite.get("/fs/read?path=file").await.refuses(403, "EACCES", "permission denied");
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_off_leaves_the_old_file_and_nothing_else() {
    let sprite = Box::new();
    sprite.put("old", "old");
    let cut = || {
        let pieces = [Ok(Bytes::from(vec![b'x'; 1 << 20])), Err(io::Error::other("reset"))];
        Body::from_stream(stream::iter(pieces))
    };
    sprite.write("path=old", cut()).await.refuses(400, "EINVAL", "cut off");
    sprite.write("path=a/b/c/new", cut()).await.refuses(400, "EINVAL", "cut off");
    let request = Request::put("/fs/write?path=old").header("content-length", "10").body(Body::from("short")).unwrap();
    sprite.send(request).await.refuses(400, "EINVAL", "5 of 10 bytes");
    assert_eq!(std::fs::read(sprite.host("old")).unwrap(), b"old");
    assert_eq!(sprite.names(""), ["old"]);
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing() {
    let sprite = Box::new();
    let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(1);
    let body = Body::from_stream(stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    }));
    let upload = tokio::spawn({
        let router = sprite.router.clone();
        router.oneshot(Request::put("/fs/write?path=a/b/c").body(body).unwrap())
    });
    // The second piece is accepted only after the first was taken, and so after the folders were made.
    for _ in 0..3 {
        sender.send(Ok(Bytes::from(vec![0; 300 << 10]))).await.unwrap();
    }
    assert!(sprite.host("a/b").exists());
    upload.abort();
    _ = upload.await;
    // A write that was under way still ends on its own thread, and removes what it had made.
    let gone = async {
        while sprite.host("a").exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), gone).await.expect("nothing is left");
    assert!(sprite.names("").is_empty());
}

#[tokio::test]
async fn modes_are_kept_unless_they_are_given() {
    let sprite = Box::new();
    sprite.write("path=f", "1").await.ok();
    assert_eq!(mode(&sprite.host("f")), 0o644);
    sprite.write("path=f&mode=0755", "22").await.ok();
    assert_eq!(mode(&sprite.host("f")), 0o755);
    assert_eq!(sprite.write("path=f", "333").await.ok()["mode"], "0755");
    assert_eq!(mode(&sprite.host("f")), 0o755);
    assert_eq!(sprite.write("path=f&mode=020000000700", "").await.ok()["mode"], "0700");
    sprite.write("path=f&mode=9", "4").await.refuses(400, "EINVAL", "octal");
    assert_eq!(std::fs::read(sprite.host("f")).unwrap(), b"");
}

#[tokio::test]
async fn links_are_written_through() {
    let sprite = Box::new();
    sprite.put("target", "old");
    symlink("target", sprite.host("link")).unwrap();
    symlink("later", sprite.host("dangling")).unwrap();
    sprite.write("path=link", "new").await.ok();
    sprite.write("path=dangling", "made").await.ok();
    assert_eq!(std::fs::read(sprite.host("target")).unwrap(), b"new");
    assert_eq!(std::fs::read(sprite.host("later")).unwrap(), b"made");
    for link in ["link", "dangling"] {
        assert!(sprite.host(link).is_symlink());
    }
}

#[tokio::test]
async fn what_cannot_be_written_says_why() {
    let sprite = Box::within(Limits { max_write: 1000, floor: 0 });
    sprite.put("file", "");
    sprite.put("dir/x", "");
    mkfifo(&sprite.host("fifo"));
    sprite.write("path=dir", "x").await.refuses(400, "EISDIR", "is a directory");
    sprite.write("path=/home/sprite", "x").await.refuses(400, "EISDIR", "is a directory");
    sprite.write("path=file/x", "x").await.refuses(400, "ENOTDIR", "not a directory");
    sprite.write("path=file/x/y", "x").await.refuses(400, "ENOTDIR", "not a directory");
    sprite.write("path=fifo", "x").await.refuses(400, "EINVAL", "not a regular file");
    sprite.write("path=a/b&mkdirParents=false", "x").await.refuses(404, "ENOENT", "no such file");
    sprite.write("path=a/b&mkdir=perhaps", "x").await.refuses(400, "EINVAL", "mkdir must be");
    sprite.write(&format!("path=new/{}", "x".repeat(256)), "x").await.refuses(400, "EINVAL", "too long");
    sprite.write("path=big", vec![0; 1001]).await.refuses(413, "EINVAL", "limit");
    let chunked = Body::from_stream(stream::iter((0..11).map(|_| Ok::<_, io::Error>(Bytes::from_static(&[0; 100])))));
    sprite.write("path=new/big", chunked).await.refuses(413, "EINVAL", "limit");
    sprite.write("path=fits", vec![0; 1000]).await.ok();
    assert_eq!(sprite.names(""), ["dir", "fifo", "file", "fits"]);
}

#[tokio::test]
async fn either_name_of_the_parents_switch_counts() {
    let sprite = Box::new();
    for (query, made) in [
        ("mkdirParents=false", false),
        ("mkdir=false", false),
        ("mkdirParents=false&mkdir=false", false),
        ("mkdirParents=false&mkdir=true", true),
        ("mkdirParents=true&mkdir=false", true),
        ("mkdir=1", true),
        ("", true),
    ] {
        let answer = sprite.write(&format!("path=dir/f&{query}"), "x").await;
        assert_eq!(answer.status.is_success(), made, "{query}");
        _ = std::fs::remove_dir_all(sprite.host("dir"));
    }
}

#[tokio::test]
async fn directories_are_made_by_markers() {
    let sprite = Box::new();
    // Python's mkdir() with defaults.
    sprite.write("path=py/.keep&mode=0644&mkdirParents=false", "").await.ok();
    sprite.delete("path=py/.keep", "").await.ok();
    assert!(sprite.host("py").is_dir() && sprite.names("py").is_empty());
    sprite.write("path=py2/deep/.keep&mkdirParents=false", "").await.refuses(404, "ENOENT", "no such file");
    sprite.write("path=py3/.keep&mkdirParents=false", "not empty").await.refuses(404, "ENOENT", "no such file");
    let empty = Body::from_stream(stream::iter([Ok::<_, io::Error>(Bytes::new())]));
    sprite.write("path=py4/.keep&mkdirParents=false", empty).await.ok();
    // Elixir's mkdir_p.
    sprite.write("path=/home/sprite/ex/a/b/.mkdir_placeholder&workingDir=/", "").await.ok();
    sprite.delete("path=/home/sprite/ex/a/b/.mkdir_placeholder&recursive=false", "").await.ok();
    assert!(sprite.host("ex/a/b").is_dir());
    // Go's MkdirAll, which leaves the marker.
    sprite.write("path=go/a/.keep&mode=0755&mkdirParents=true", "").await.ok();
    assert_eq!(sprite.names("go/a"), [".keep"]);
    assert_eq!(sprite.names(""), ["ex", "go", "py", "py4"]);
}

#[tokio::test]
async fn a_full_host_is_refused_before_it_is_full() {
    let sprite = Box::within(Limits { max_write: 1 << 30, floor: u64::MAX / 2 });
    sprite.put("old", "old");
    sprite.write("path=a/new", "x").await.refuses(507, "disk_low", "nearly full");
    sprite.write("path=old", "x").await.refuses(507, "disk_low", "nearly full");
    sprite.post("copy", r#"{"source":"old","dest":"new"}"#).await.refuses(507, "disk_low", "nearly full");
    assert_eq!(sprite.names(""), ["old"]);
    assert_eq!(sprite.get("/fs/read?path=old").await.body, b"old");
    sprite.delete("path=old", "").await.ok();
}

#[tokio::test]
async fn twenty_writers_of_one_file_leave_one_whole_file() {
    let sprite = Box::new();
    let writers = (0..20_u8).map(|number| {
        let router = sprite.router.clone();
        let request = Request::put("/fs/write?path=a/b/f").body(Body::from(vec![number; 100_000])).unwrap();
        tokio::spawn(router.oneshot(request))
    });
    for writer in writers.collect::<Vec<_>>() {
        assert_eq!(writer.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    let content = std::fs::read(sprite.host("a/b/f")).unwrap();
    assert!(content.len() == 100_000 && content.iter().all(|byte| *byte == content[0]));
    assert_eq!(sprite.names("a/b"), ["f"]);
}

#[tokio::test]
async fn a_replaced_file_keeps_its_owner() {
    if !is_root() {
        return;
    }
    let sprite = Box::new();
    sprite.put("f", "old");
    std::os::unix::fs::chown(sprite.host("f"), Some(1234), Some(1235)).unwrap();
    sprite.write("path=f", "new").await.ok();
    let meta = std::fs::metadata(sprite.host("f")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.len()), (1234, 1235, 3));
}

/// A connection to a real server of the sprite's files.
async fn connect(sprite: &Box) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = sprite.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn a_client_that_sends_all_before_it_reads_still_sees_why_it_is_refused() {
    let sprite = Box::new();
    for path in [sprite.outside("x").to_str().unwrap(), "dir/missing&mkdir=false"] {
        let mut socket = connect(&sprite).await;
        let length = 20 << 20;
        let head = format!("PUT /fs/write?path={path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(&vec![0; length]).await.unwrap();
        let mut answer = vec![0; 1024];
        let count = socket.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_middle_leaves_the_old_file() {
    let sprite = Box::new();
    sprite.put("f", "old");
    let mut socket = connect(&sprite).await;
    let head = "PUT /fs/write?path=f HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\nexpect: 100-continue\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 25];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(&vec![0; 1 << 20]).await.unwrap();
    socket.shutdown().await.unwrap();
    // The server ends the connection only after it has given the upload up.
    let mut rest = Vec::new();
    _ = socket.read_to_end(&mut rest).await;
    assert_eq!(std::fs::read(sprite.host("f")).unwrap(), b"old");
    assert_eq!(sprite.names(""), ["f"]);
}
