//! `GET fs/list`: the entries as one JSON object, written piece by piece.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header::CONTENT_TYPE;

use super::args::Args;
use super::ops::{self, Failure, Filter, Listing};
use super::{Files, Work, json_answer, refuse_root};
use crate::wire::error::ApiError;
use crate::wire::query::Query;

/// Entries made in one blocking step. Most directories fit into one and are answered with a Content-Length.
const ENTRIES_PER_PIECE: usize = 4096;

/// A listing on its way out.
struct Sheet {
    listing: Listing,
    count: u64,
    begun: bool,
    ended: bool,
}

pub(super) async fn list(State(files): State<Files>, request: Request) -> Result<Response, ApiError> {
    let args = Args::of_query(Query::of(request.uri()));
    let (piece, sheet) = files.list(&args).await?;
    if sheet.ended {
        return Ok(json_answer(piece));
    }
    let first = Some(Bytes::from(piece));
    let body = stream::try_unfold((first, sheet), move |(first, mut sheet)| {
        let files = files.clone();
        async move {
            if let Some(piece) = first {
                return Ok(Some((piece, (None, sheet))));
            }
            if sheet.ended {
                return Ok::<_, ApiError>(None);
            }
            let next = files.run(Work::Quick, move |_| Ok::<_, Failure>((sheet.piece(), sheet)));
            let (piece, sheet) = next.await?;
            Ok(Some((Bytes::from(piece), (None, sheet))))
        }
    });
    Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response())
}

impl Files {
    /// Begins a listing: its first piece, and what makes the rest.
    async fn list(&self, args: &Args) -> Result<(Vec<u8>, Sheet), ApiError> {
        refuse_root(args)?;
        let path = args.path_or_working_dir(&self.paths)?;
        let filter = Filter {
            recursive: args.flag("recursive")?.unwrap_or(false),
            pattern: args.bytes("pattern")?.map(<[u8]>::to_vec),
        };
        self.run(Work::Quick, move |paths| {
            let listing = ops::list(paths, &path, filter)?;
            let mut sheet = Sheet { listing, count: 0, begun: false, ended: false };
            Ok((sheet.piece(), sheet))
        })
        .await
    }
}

impl Sheet {
    /// The next piece of the JSON text.
    fn piece(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.begun {
            self.begun = true;
            let path = serde_json::Value::from(self.listing.path.to_string_lossy());
            out.extend_from_slice(format!("{{\"path\":{path},\"entries\":[").as_bytes());
        }
        for _ in 0..ENTRIES_PER_PIECE {
            let Some(entry) = self.listing.next() else {
                self.ended = true;
                out.extend_from_slice(format!("],\"count\":{}}}", self.count).as_bytes());
                break;
            };
            if self.count > 0 {
                out.push(b',');
            }
            self.count += 1;
            // An entry is strings and numbers: writing it into memory cannot fail.
            _ = serde_json::to_writer(&mut out, &entry);
        }
        out
    }
}
