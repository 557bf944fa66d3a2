//! The files API of one sprite (wire/rest.md §2): routes, arguments and answers.
//!
//! Requests come in with a query, a JSON body or raw bytes; [`ops`] does the work on a thread that may block; answers go
//! out as JSON, or as a stream where they can be large. Two pools bound how much of it runs at once, so that a disk
//! that hangs, or a copy that takes an hour, leaves the sessions of the agent alone. File bodies and paths are never
//! logged.

mod args;
mod list;
pub mod ops;
mod read;
#[cfg(test)]
mod tests;
mod watch;
mod watcher;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;

pub use args::Args;
use args::invalid;
use ops::{Failure, How, Names};

use crate::sandbox::paths::Paths;
use crate::wire::error::ApiError;
use crate::wire::query::Query;

/// Blocking steps that run at the same time.
const QUICK_WORKERS: usize = 32;

/// Operations on whole trees that run at the same time; they have their own pool because each may take minutes.
const TREE_WORKERS: usize = 8;

/// The largest JSON body, far above what two paths of `PATH_MAX` need.
const MAX_JSON: usize = 256 << 10;

/// What one sprite's files API is allowed.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest file that can be written, in bytes.
    pub max_write: u64,
    /// Free space, in bytes, that writes must leave on the host.
    pub floor: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_write: 16 << 30, floor: 2 << 30 }
    }
}

/// The files API of one sprite; cheap to clone.
#[derive(Debug, Clone)]
pub struct Files {
    paths: Paths,
    limits: Limits,
    quick: Arc<Semaphore>,
    trees: Arc<Semaphore>,
}

/// How long a piece of blocking work may take, and which pool it runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// A step that a healthy disk does in milliseconds.
    Quick,
    /// A step that a slow disk or a large folder may draw out.
    Long,
    /// A whole tree.
    Tree,
}

impl Work {
    fn deadline(self) -> Duration {
        match self {
            Self::Quick => Duration::from_secs(30),
            Self::Long | Self::Tree => Duration::from_secs(15 * 60),
        }
    }
}

/// The routes `/fs/…` of one sprite.
pub fn router(paths: Paths, limits: Limits) -> Router {
    Files::new(paths, limits).router()
}

impl Files {
    /// The files that `paths` shows, within `limits`.
    pub fn new(paths: Paths, limits: Limits) -> Self {
        let pool = |workers| Arc::new(Semaphore::new(workers));
        Self { paths, limits, quick: pool(QUICK_WORKERS), trees: pool(TREE_WORKERS) }
    }

    /// The routes `/fs/…`.
    pub fn router(self) -> Router {
        Router::new()
            .route("/fs/read", get(read::read))
            .route("/fs/write", put(write::write))
            .route("/fs/list", get(list::list))
            .route("/fs/delete", delete(json_route))
            .route("/fs/rename", post(json_route))
            .route("/fs/copy", post(json_route))
            .route("/fs/chmod", post(json_route))
            .route("/fs/chown", post(json_route))
            .route("/fs/watch", get(watch::watch))
            .method_not_allowed_fallback(wrong_method)
            .with_state(self)
    }

    /// Does one of the operations whose arguments and answer are small: `delete`, `rename`, `copy`, `chmod`, `chown`.
    /// The answer is JSON as bytes.
    pub async fn call(&self, operation: &str, args: &Args) -> Result<Vec<u8>, ApiError> {
        refuse_root(args)?;
        match operation {
            "delete" => self.delete(args).await,
            "rename" => self.rename(args).await,
            "copy" => self.copy(args).await,
            "chmod" => self.chmod(args).await,
            "chown" => self.chown(args).await,
            _ => Err(invalid("there is no such file operation")),
        }
    }

    async fn delete(&self, args: &Args) -> Result<Vec<u8>, ApiError> {
        let path = args.path(&self.paths, "path")?;
        let recursive = args.flag("recursive")?.unwrap_or(false);
        let answer = json!({"deleted": [path.to_string_lossy()], "count": 1});
        self.run(kind(recursive), move |paths| ops::delete(paths, &path, recursive)).await?;
        encode(&answer)
    }

    async fn rename(&self, args: &Args) -> Result<Vec<u8>, ApiError> {
        let (source, dest) = (args.path(&self.paths, "source")?, args.path(&self.paths, "dest")?);
        let answer = json!({"source": source.to_string_lossy(), "dest": dest.to_string_lossy()});
        let floor = self.limits.floor;
        self.run(Work::Tree, move |paths| ops::rename(paths, &source, &dest, floor)).await?;
        encode(&answer)
    }

    async fn copy(&self, args: &Args) -> Result<Vec<u8>, ApiError> {
        let (source, dest) = (args.path(&self.paths, "source")?, args.path(&self.paths, "dest")?);
        let how = How {
            recursive: args.flag("recursive")?.unwrap_or(false),
            preserve: args.flag("preserveAttrs")?.unwrap_or(false),
            floor: self.limits.floor,
        };
        encode(&self.run(Work::Tree, move |paths| ops::copy(paths, &source, &dest, how)).await?)
    }

    async fn chmod(&self, args: &Args) -> Result<Vec<u8>, ApiError> {
        let path = args.path(&self.paths, "path")?;
        let mode = args.mode("mode")?.ok_or_else(|| invalid("mode is required"))?;
        let recursive = args.flag("recursive")?.unwrap_or(false);
        encode(&self.run(kind(recursive), move |paths| ops::chmod(paths, &path, mode, recursive)).await?)
    }

    async fn chown(&self, args: &Args) -> Result<Vec<u8>, ApiError> {
        let path = args.path(&self.paths, "path")?;
        let (uid, gid) = (args.owner("uid")?, args.owner("gid")?);
        let recursive = args.flag("recursive")?.unwrap_or(false);
        let done = self.run(kind(recursive), move |paths| {
            let uid = uid.map(|owner| owner.id(Names::Users, &path)).transpose()?;
            let gid = gid.map(|owner| owner.id(Names::Groups, &path)).transpose()?;
            ops::chown(paths, &path, uid, gid, recursive)
        });
        encode(&done.await?)
    }

    /// Runs blocking work within the bounds of its pool and its deadline. Work that is late goes on by itself and keeps
    /// its place in the pool, for there is no way to end a thread that waits for a disk.
    async fn run<T, W>(&self, kind: Work, work: W) -> Result<T, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(&Paths) -> Result<T, Failure> + Send + 'static,
    {
        let pool = if kind == Work::Tree { &self.trees } else { &self.quick };
        let permit = tokio::time::timeout(Work::Quick.deadline(), Arc::clone(pool).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(ApiError::unavailable(
                "fs_busy",
                "too many file operations are waiting for the disk; try again",
            ));
        };
        let paths = self.paths.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&paths)
        });
        match tokio::time::timeout(kind.deadline(), task).await {
            Ok(Ok(result)) => result.map_err(ApiError::from),
            Ok(Err(panic)) => Err(ApiError::internal(panic)),
            Err(_) => Err(ApiError::new(
                StatusCode::GATEWAY_TIMEOUT,
                "fs_timeout",
                "the disk did not answer in time; the operation may still be going on",
            )),
        }
    }
}

fn kind(recursive: bool) -> Work {
    if recursive { Work::Tree } else { Work::Quick }
}

/// Plain mode has one user only.
fn refuse_root(args: &Args) -> Result<(), ApiError> {
    if args.flag("asRoot")? != Some(true) {
        return Ok(());
    }
    let text = "permission denied: this sprite has no root user, because it runs without a sandbox; leave out asRoot";
    Err(ApiError::fs(StatusCode::FORBIDDEN, "EPERM", text, ""))
}

/// The routes that answer small JSON; the last segment of the path is the operation.
async fn json_route(State(files): State<Files>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let operation = parts.uri.path().rsplit('/').next().unwrap_or_default();
    let mut args = Args::of_query(Query::of(&parts.uri));
    // A delete whose query is complete has no body, whatever was sent as one.
    if !(operation == "delete" && args.query_has("path")) {
        let body = axum::body::to_bytes(body, MAX_JSON).await;
        args = args.with_body(&body.map_err(|_| invalid("the body is incomplete or over 256 KiB"))?)?;
    }
    Ok(json_answer(files.call(operation, &args).await?))
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "use GET for read, list and watch, PUT for write, DELETE for delete, POST for the rest",
    )
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(ApiError::internal)
}

fn json_answer(bytes: Vec<u8>) -> Response {
    ([(http::header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

/// An answer from a value that is small.
fn json_value(value: serde_json::Value) -> Response {
    Json(value).into_response()
}
