//! The files API through its router, over a folder that stands for a sprite's disk.

mod change;
mod content;
mod listing;
mod watching;

use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::{Limits, router};
use crate::sandbox::paths::Paths;

/// A sprite's files outside of /tmp, so that leaving them is noticed.
struct Box {
    state: tempfile::TempDir,
    paths: Paths,
    router: Router,
}

/// An answer, read to its end.
struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: Vec<u8>,
}

impl Box {
    fn new() -> Self {
        Self::within(Limits { max_write: 1 << 30, floor: 0 })
    }

    fn within(limits: Limits) -> Self {
        Self::at("/var/tmp", limits)
    }

    fn at(place: &str, limits: Limits) -> Self {
        let state = tempfile::tempdir_in(place).unwrap();
        let paths = Paths::new(state.path().join("disk"));
        std::fs::create_dir_all(paths.home()).unwrap();
        let router = router(paths.clone(), limits);
        Self { state, paths, router }
    }

    /// A host path below the sprite's home.
    fn host(&self, name: &str) -> PathBuf {
        self.paths.home().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.host(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// A host path that is the sprite's neighbour, and not its own.
    fn outside(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.host(folder)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        Answer::read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    async fn get(&self, target: &str) -> Answer {
        self.send(Request::get(target).body(Body::empty()).unwrap()).await
    }

    async fn write(&self, query: &str, body: impl Into<Body>) -> Answer {
        self.send(Request::put(format!("/fs/write?{query}")).body(body.into()).unwrap()).await
    }

    async fn delete(&self, query: &str, body: &str) -> Answer {
        let target = format!("/fs/delete?{query}");
        self.send(Request::delete(target).body(Body::from(body.to_owned())).unwrap()).await
    }

    async fn post(&self, operation: &str, body: &str) -> Answer {
        let request = Request::builder().method(Method::POST).uri(format!("/fs/{operation}"));
        self.send(request.header("content-type", "text/plain").body(Body::from(body.to_owned())).unwrap()).await
    }
}

impl Answer {
    async fn read(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Self { status: parts.status, headers: parts.headers, body }
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The answer is an error of this status and code whose text has `part` in it, in the form that every SDK reads.
    #[track_caller]
    fn refuses(&self, status: u16, code: &str, part: &str) {
        let json = self.json();
        assert_eq!((self.status.as_u16(), json["code"].as_str().unwrap_or_default()), (status, code), "{json}");
        assert!(json["error"].as_str().unwrap().contains(part), "{json}");
        assert!(self.body.len() < 1024);
        assert_eq!(self.header("content-type"), "application/json");
    }

    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), "application/json");
        self.json()
    }
}

fn mode(path: &std::path::Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn mkfifo(path: &std::path::Path) {
    use rustix::fs::{CWD, FileType, Mode};
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// Whether the tests run as a user whom modes do not stop.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn wrong_methods_and_missing_arguments_are_json_errors() {
    let sprite = Box::new();
    let answer = sprite.send(Request::post("/fs/read").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.json()["error"], "method_not_allowed");
    sprite.get("/fs/read").await.refuses(400, "EINVAL", "path is required");
    sprite.get("/fs/read?path=a%00b").await.refuses(400, "EINVAL", "NUL");
    sprite.write("mode=0644", "").await.refuses(400, "EINVAL", "path is required");
    sprite.delete("", "").await.refuses(400, "EINVAL", "path is required");
    sprite.post("rename", r#"{"source":"a"}"#).await.refuses(400, "EINVAL", "dest is required");
    sprite.post("copy", "not json").await.refuses(400, "EINVAL", "not JSON");
    sprite.post("chmod", r#"{"path":"a"}"#).await.refuses(400, "EINVAL", "mode is required");
    sprite.post("chmod", &"x".repeat(300 << 10)).await.refuses(400, "EINVAL", "256 KiB");
    let answer = sprite.get("/fs/watch").await;
    assert_eq!(answer.status, StatusCode::UPGRADE_REQUIRED);
}

#[tokio::test]
async fn there_is_no_root_without_a_sandbox() {
    let sprite = Box::new();
    sprite.put("a", "");
    sprite.get("/fs/read?path=a&asRoot=true").await.refuses(403, "EPERM", "asRoot");
    sprite.get("/fs/list?path=a&asRoot=1").await.refuses(403, "EPERM", "asRoot");
    sprite.write("path=a&asRoot=true", "x").await.refuses(403, "EPERM", "asRoot");
    sprite.delete("path=a&asRoot=true", "").await.refuses(403, "EPERM", "asRoot");
    sprite.post("rename", r#"{"source":"a","dest":"b","asRoot":true}"#).await.refuses(403, "EPERM", "asRoot");
    sprite.post("rename", r#"{"source":"a","dest":"b","asRoot":false}"#).await.ok();
}

#[tokio::test]
async fn nothing_outside_of_the_sprite_is_changed() {
    let sprite = Box::new();
    sprite.put("mine", "mine");
    let outside = sprite.outside("theirs");
    std::fs::write(&outside, "theirs").unwrap();
    std::os::unix::fs::symlink(sprite.state.path(), sprite.host("out")).unwrap();
    std::os::unix::fs::symlink(sprite.outside("new"), sprite.host("dangling")).unwrap();
    let theirs = outside.to_str().unwrap();
    for path in [theirs, "out/theirs", "dangling", "out/new/deep"] {
        sprite.write(&format!("path={path}"), "x").await.refuses(403, "EACCES", "permission denied");
        let body = format!(r#"{{"source":"mine","dest":"{path}"}}"#);
        sprite.post("copy", &body).await.refuses(403, "EACCES", "permission denied");
    }
    for path in [theirs, "out/theirs"] {
        sprite.delete(&format!("path={path}"), "").await.refuses(403, "EACCES", "permission denied");
        let body = format!(r#"{{"source":"{path}","dest":"mine"}}"#);
        sprite.post("rename", &body).await.refuses(403, "EACCES", "permission denied");
        let body = format!(r#"{{"source":"mine","dest":"{path}"}}"#);
        sprite.post("rename", &body).await.refuses(403, "EACCES", "permission denied");
        let body = format!(r#"{{"path":"{path}","mode":"0777"}}"#);
        sprite.post("chmod", &body).await.refuses(403, "EACCES", "permission denied");
        let body = format!(r#"{{"path":"{path}","uid":0}}"#);
        sprite.post("chown", &body).await.refuses(403, "EACCES", "permission denied");
    }
    for path in ["/tmp", "/", "/home/sprite", sprite.paths.disk().to_str().unwrap()] {
        let answer = sprite.delete(&format!("path={path}&recursive=true"), "").await;
        answer.refuses(403, "EACCES", "permission denied");
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"theirs");
    assert_eq!(std::fs::read_dir(sprite.state.path()).unwrap().count(), 2);
    assert_eq!(sprite.get(&format!("/fs/read?path={theirs}")).await.body, b"theirs", "reading is free");
}
