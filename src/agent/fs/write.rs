//! `PUT fs/write`: a body of any size becomes a file, whole or not at all (wire/rest.md §2.5).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::json;

use super::args::{Args, invalid};
use super::ops::failure::{At, Failure};
use super::ops::staged::{Attributes, Parents, Staged};
use super::ops::{self, space};
use super::{Files, Work, json_value, refuse_root};
use crate::wire::error::ApiError;
use crate::wire::query::Query;

const VERB: &str = "open";

/// A sender that is silent for this long has gone.
const STALL: Duration = Duration::from_secs(120);

/// How long a refused body is still taken after its answer. The connection would be reset otherwise, and clients that
/// send all before they read, the runner in front of us among them, would see that in the place of the error.
const LINGER: Duration = Duration::from_secs(10);

/// Names under which SDKs make a directory (wire/rest.md §2.9).
const MARKERS: [&str; 2] = [".keep", ".mkdir_placeholder"];

pub(super) async fn write(State(files): State<Files>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let mut upload = Upload { body, ahead: None, over: false };
    let result = receive(&files, &parts, &mut upload).await;
    if result.is_err() {
        tokio::spawn(upload.linger());
    }
    result
}

async fn receive(files: &Files, parts: &Parts, upload: &mut Upload) -> Result<Response, ApiError> {
    let args = Args::of_query(Query::of(&parts.uri));
    refuse_root(&args)?;
    let path = args.path(&files.paths, "path")?;
    let mode = args.mode("mode")?;
    let limit = files.limits.max_write;
    let promised = promised(parts)?;
    if promised.is_some_and(|length| length > limit) {
        return Err(Failure::too_large(VERB, &path, limit).into());
    }
    let parents = match parents(&args)? {
        Parents::Exist if is_marker(&path) && upload.is_empty().await? => Parents::MakeOne,
        parents => parents,
    };
    let mut staged = begin(files, &path, parents, promised.unwrap_or_default()).await?;

    let mut size = 0;
    let mut checked = space::STRIDE;
    let mut waiting: Vec<Bytes> = Vec::new();
    let mut waiting_bytes = 0;
    while let Some(piece) = upload.next().await? {
        size += piece.len() as u64;
        if size > limit {
            return Err(Failure::too_large(VERB, &path, limit).into());
        }
        waiting_bytes += piece.len();
        waiting.push(piece);
        if waiting_bytes < ops::CHUNK {
            continue;
        }
        let floor = (size >= checked).then_some(files.limits.floor);
        if floor.is_some() {
            checked = size + space::STRIDE;
        }
        let (pieces, api) = (std::mem::take(&mut waiting), path.clone());
        waiting_bytes = 0;
        let next = files.run(Work::Long, move |_| {
            space::check(staged.folder(), 0, floor.unwrap_or_default(), VERB, &api)?;
            append(&staged, &pieces, &api)?;
            Ok(staged)
        });
        staged = next.await?;
    }
    if let Some(length) = promised.filter(|length| *length != size) {
        return Err(invalid(format!("the body ended after {size} of {length} bytes; nothing was written")));
    }
    let api = path.clone();
    let last = files.run(Work::Long, move |_| {
        append(&staged, &waiting, &api)?;
        staged.finish(&Attributes { mode, durable: true, ..Attributes::default() })
    });
    let mode = last.await?;
    Ok(json_value(json!({"path": path.to_string_lossy(), "size": size, "mode": ops::mode_text(mode)})))
}

async fn begin(files: &Files, path: &Path, parents: Parents, length: u64) -> Result<Staged, ApiError> {
    let (api, floor): (PathBuf, u64) = (path.to_path_buf(), files.limits.floor);
    let staged = files.run(Work::Quick, move |paths| {
        let staged = Staged::create(paths, &api, VERB, parents)?;
        space::check(staged.folder(), length, floor, VERB, &api)?;
        Ok(staged)
    });
    staged.await
}

fn append(staged: &Staged, pieces: &[Bytes], api: &Path) -> Result<(), Failure> {
    let mut file = staged.file();
    pieces.iter().try_for_each(|piece| file.write_all(piece)).at("write", api)
}

/// `mkdirParents` and its documented name `mkdir` are one switch: true when either says so or neither says anything.
fn parents(args: &Args) -> Result<Parents, ApiError> {
    let wanted = match (args.flag("mkdirParents")?, args.flag("mkdir")?) {
        (None, None) => true,
        (one, other) => one == Some(true) || other == Some(true),
    };
    Ok(if wanted { Parents::MakeAll } else { Parents::Exist })
}

fn is_marker(path: &Path) -> bool {
    path.file_name().is_some_and(|name| MARKERS.iter().any(|marker| name == *marker))
}

/// The length that the request's head promises. A chunked body promises none.
fn promised(parts: &Parts) -> Result<Option<u64>, ApiError> {
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(None);
    }
    let length = parts.headers.get(header::CONTENT_LENGTH).map(|length| length.to_str().ok()?.parse().ok());
    length.map(|length| length.ok_or_else(|| invalid("Content-Length must be a number"))).transpose()
}

/// A body on its way in.
struct Upload {
    body: Body,
    /// A piece that was taken to see whether there is any.
    ahead: Option<Bytes>,
    over: bool,
}

impl Upload {
    /// The next bytes, or none at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if let Some(piece) = self.ahead.take() {
            return Ok(Some(piece));
        }
        while !self.over {
            let frame = tokio::time::timeout(STALL, self.body.frame()).await;
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data(),
                Ok(None) => {
                    self.over = true;
                    break;
                }
                Ok(Some(Err(_))) => {
                    self.over = true;
                    return Err(invalid("the body was cut off; nothing was written"));
                }
                Err(_) => {
                    self.over = true;
                    let text = "no byte of the body came for two minutes; nothing was written";
                    return Err(ApiError::fs(StatusCode::REQUEST_TIMEOUT, "EIO", text, ""));
                }
            };
            // Trailers and empty pieces say nothing.
            if let Ok(piece) = data
                && !piece.is_empty()
            {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// Whether the body has no bytes at all.
    async fn is_empty(&mut self) -> Result<bool, ApiError> {
        if self.body.size_hint().exact() == Some(0) {
            return Ok(true);
        }
        self.ahead = self.next().await?;
        Ok(self.ahead.is_none())
    }

    /// Takes and forgets the rest of a refused body.
    async fn linger(mut self) {
        let rest = async { while let Ok(Some(_)) = self.next().await {} };
        _ = tokio::time::timeout(LINGER, rest).await;
    }
}
