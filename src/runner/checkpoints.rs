//! Routes of checkpoints (wire/rest.md §3): NDJSON while the work goes on, under the rules of the strictest client.
//!
//! Only `info` lines and one last `complete`, or one last `error`; no line repeats a key of another kind; everything
//! stays far below the 64 KiB that Fountain reads. The work goes on when the client leaves.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use futures_util::stream;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::auth::Org;
use super::body;
use super::host::Host;
use crate::checkpoint::{Catalog, Checkpoint, Error, NewCheckpoint};
use crate::sprite::Sprite;
use crate::store::sprites::now;
use crate::wire::error::ApiError;
use crate::wire::query::Query;

/// Id of the pseudo-entry for the disk as it is.
const CURRENT: &str = "Current";
/// How often progress is told at first; each line makes the next wait longer, so that no stream grows large.
const PROGRESS: Duration = Duration::from_secs(1);
/// The longest comment. Clients keep JSON in it.
const MAX_COMMENT: usize = 16 << 10;
/// Lines that may wait for the client.
const LINES: usize = 64;

/// `POST …/checkpoint`.
pub async fn create(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let sprite = host.find(&org, &name)?;
    let body = body::object(request).await?;
    let comment = match body.get("comment") {
        None => String::new(),
        Some(Value::String(comment)) if comment.len() <= MAX_COMMENT => comment.clone(),
        Some(_) => return Err(ApiError::invalid("comment must be a string of at most 16 KiB")),
    };
    host.check_disk()?;
    let catalog = host.catalog(&sprite.dir);
    if blocking({
        let catalog = catalog.clone();
        move || catalog.list(false)
    })
    .await?
    .len()
        >= host.settings.checkpoints_max
    {
        return Err(refusal(&Error::TooMany(host.settings.checkpoints_max)));
    }
    let (lines, response) = ndjson();
    tokio::spawn(async move {
        lines.info("Creating checkpoint...").await;
        match create_one(&host, &sprite, catalog, comment, &lines).await {
            Ok(made) => {
                tracing::info!(sprite = name, checkpoint = made.manifest.id, "checkpoint created");
                lines.created(&made).await;
            }
            Err(error) => lines.error(error).await,
        }
    });
    Ok(response)
}

async fn create_one(
    host: &Host,
    sprite: &Sprite,
    catalog: Catalog,
    comment: String,
    lines: &Lines,
) -> Result<Checkpoint, ApiError> {
    let _turn = sprite.archive.lock().await;
    let pause = pause(host, sprite).await?;
    let progress = lines.progress();
    let made = blocking(move || {
        let mut progress = progress;
        let new = NewCheckpoint { comment, ..NewCheckpoint::default() };
        catalog.create(new, &mut |files, bytes| progress.tell("archived", files, bytes))
    })
    .await;
    drop(pause);
    made
}

/// Everything in the sprite stands still while the returned body is held.
async fn pause(host: &Host, sprite: &Sprite) -> Result<Incoming, ApiError> {
    let failed = |error: std::io::Error| {
        ApiError::unavailable("pause_failed", "the sprite could not be paused for its checkpoint; try again")
            .detail(error)
    };
    let link = sprite.wake().await?;
    let path = format!("/-/pause?max={}ms", host.settings.pause_max.as_millis());
    let response = link.call(Method::POST, &path).await.map_err(failed)?;
    if response.status() != StatusCode::OK {
        return Err(failed(std::io::Error::other(format!("the agent answered {}", response.status()))));
    }
    let mut body = response.into_body();
    match body.frame().await {
        Some(Ok(_)) => Ok(body),
        _ => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
    }
}

/// `GET …/checkpoints`: newest first, behind the entry for the disk as it is.
pub async fn list(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let sprite = host.find(&org, &name)?;
    let query = Query::of(request.uri());
    let auto = query.flag("includeAuto")?.or(query.flag("include_auto")?).unwrap_or(false);
    let history = query.text("history")?.map(str::to_owned);
    let catalog = host.catalog(&sprite.dir);
    let entries = blocking(move || {
        let Some(id) = history else {
            let listed = catalog.list(auto)?;
            let current = current(&catalog);
            return Ok(std::iter::once(current).chain(listed.iter().map(Checkpoint::to_wire)).collect());
        };
        let of = catalog.get(&id)?;
        let family: Vec<&String> = of.manifest.history.iter().chain([&of.manifest.id]).collect();
        let listed = catalog.list(true)?;
        Ok(listed.iter().filter(|entry| family.contains(&&entry.manifest.id)).map(Checkpoint::to_wire).collect())
    })
    .await?;
    Ok(Json(Value::Array(entries)))
}

fn current(catalog: &Catalog) -> Value {
    let mut entry = json!({"id": CURRENT, "create_time": now()});
    if let Some(source) = catalog.source_id() {
        entry["source_id"] = source.into();
    }
    entry
}

fn is_current(id: &str) -> bool {
    id == CURRENT || id == "active"
}

/// `GET …/checkpoints/{id}`.
pub async fn get(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path((name, id)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let catalog = host.catalog(&host.find(&org, &name)?.dir);
    let entry = blocking(move || match is_current(&id) {
        true => Ok(current(&catalog)),
        false => catalog.get(&id).map(|entry| entry.to_wire()),
    });
    Ok(Json(entry.await?))
}

/// `DELETE …/checkpoints/{id}`.
pub async fn delete(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let sprite = host.find(&org, &name)?;
    if is_current(&id) {
        return Err(refusal(&Error::Active));
    }
    let catalog = host.catalog(&sprite.dir);
    let _turn = sprite.archive.lock().await;
    blocking(move || catalog.delete(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST …/checkpoints/{id}/restore`. What the body holds does not matter; clients send none, or an empty one.
pub async fn restore(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let sprite = host.find(&org, &name)?;
    let catalog = host.catalog(&sprite.dir);
    let id = match is_current(&id) {
        true => None,
        false => {
            let catalog = catalog.clone();
            Some(blocking(move || catalog.get(&id)).await?.manifest.id)
        }
    };
    let (lines, response) = ndjson();
    tokio::spawn(async move {
        let shown = id.clone().unwrap_or_else(|| CURRENT.to_owned());
        lines.info(&format!("Restoring from checkpoint {shown}...")).await;
        match restore_one(&sprite, catalog, id, &lines).await {
            Ok(()) => {
                tracing::info!(sprite = name, checkpoint = shown, "checkpoint restored");
                lines.info("Container components started successfully").await;
                lines.complete(&format!("Restore from {shown} complete")).await;
            }
            Err(mut error) => {
                tracing::warn!(sprite = name, checkpoint = shown, %error, "a restore failed");
                error = ApiError::new(
                    error.status,
                    error.code(),
                    format!("Failed to restore checkpoint: {}", error.message()),
                );
                lines.error(error).await;
            }
        }
    });
    Ok(response)
}

/// Stages beside the living disk, then ends the sessions, swaps, and starts again. A failure before the swap leaves the
/// sprite as it was. `None` restores nothing and only starts the sprite's processes afresh.
async fn restore_one(sprite: &Sprite, catalog: Catalog, id: Option<String>, lines: &Lines) -> Result<(), ApiError> {
    let _turn = sprite.archive.lock().await;
    let trash = catalog.clone();
    match id {
        None => {
            sprite.stop(Duration::from_secs(2)).await?;
        }
        Some(id) => {
            let progress = lines.progress();
            let staged = blocking(move || {
                let mut progress = progress;
                catalog.stage(&id, &mut |files, bytes| progress.tell("extracted", files, bytes))
            })
            .await?;
            let swap = move || staged.swap().map(|_| ()).map_err(|error| refusal(&error));
            sprite.asleep(Box::new(swap)).await?;
        }
    }
    // To sync the new tree and to remove the one before the replaced: nobody waits for that.
    tokio::task::spawn_blocking(move || trash.tidy());
    // It listens, so files and commands answer from here on.
    sprite.wake().await?;
    Ok(())
}

/// Runs a blocking piece of the catalogue.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, ApiError> {
    let outcome = tokio::task::spawn_blocking(work).await.map_err(ApiError::internal)?;
    outcome.map_err(|error| refusal(&error))
}

/// The HTTP form of a failure.
fn refusal(error: &Error) -> ApiError {
    let status = match error {
        Error::NotFound => StatusCode::NOT_FOUND,
        Error::TooMany(_) | Error::TooLarge(_) | Error::Active => StatusCode::CONFLICT,
        Error::DiskLow(_) => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let refusal = ApiError::new(status, error.code(), error.to_string());
    match error.detail() {
        Some(detail) => refusal.detail(detail),
        None => refusal,
    }
}

/// The sending side of a stream of lines.
struct Lines(mpsc::Sender<Bytes>);

/// A stream and its response. The head goes out at once, before any work.
fn ndjson() -> (Lines, Response) {
    let (sender, receiver) = mpsc::channel::<Bytes>(LINES);
    let lines = stream::unfold(receiver, |mut receiver| async {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::io::Error>(line), receiver))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    (Lines(sender), response)
}

fn line(mut object: Value) -> Bytes {
    object["time"] = now().into();
    Bytes::from(format!("{object}\n"))
}

impl Lines {
    /// A client that has left need not be told; the work goes on.
    async fn send(&self, object: Value) {
        let _ = self.0.send(line(object)).await;
    }

    async fn info(&self, data: &str) {
        self.send(json!({"type": "info", "data": data})).await;
    }

    async fn complete(&self, data: &str) {
        self.send(json!({"type": "complete", "data": data})).await;
    }

    /// The last line of a failure. The text stands in three places, for three kinds of readers.
    async fn error(&self, error: ApiError) {
        if let Some(detail) = &error.detail {
            tracing::warn!(code = error.code(), detail, "a checkpoint operation failed");
        }
        let text = error.message();
        self.send(json!({"type": "error", "error": text, "message": text, "data": text, "code": error.code()})).await;
    }

    /// What clients find the id in (wire/rest.md §3.3).
    async fn created(&self, made: &Checkpoint) {
        let id = &made.manifest.id;
        let time = made.manifest.create_time.replace('T', " ");
        self.info("Checkpoint created successfully").await;
        self.info("\nCheckpoint Details:").await;
        self.info(&format!("  ID: {id}")).await;
        self.info(&format!("  Created: {}", time.get(..19).unwrap_or(&time))).await;
        self.info(&format!("  Path: checkpoints/{id}")).await;
        self.info("\nTo restore this checkpoint:").await;
        self.info(&format!("  sprite checkpoint restore {id}")).await;
        self.info(&format!("  curl -X POST /checkpoints/{id}/restore")).await;
        self.complete(&format!("Checkpoint {id} created successfully")).await;
    }

    fn progress(&self) -> Progress {
        Progress { lines: self.0.clone(), next: Instant::now() + PROGRESS, pause: PROGRESS }
    }
}

/// Tells how far the work is, less and less often.
struct Progress {
    lines: mpsc::Sender<Bytes>,
    next: Instant,
    pause: Duration,
}

impl Progress {
    fn tell(&mut self, what: &str, files: u64, bytes: u64) -> ControlFlow<()> {
        if Instant::now() >= self.next {
            self.pause = (self.pause * 5 / 4).min(Duration::from_secs(20));
            self.next = Instant::now() + self.pause;
            let text = format!("  {what} {files} entries, {} MiB", bytes >> 20);
            // A client that does not read gets fewer lines; the work does not wait for it.
            let _ = self.lines.try_send(line(json!({"type": "info", "data": text})));
        }
        ControlFlow::Continue(())
    }
}
