//! Routes of sprites themselves: create, get, list, update, delete, and what surrounds them (wire/rest.md §1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value, json};

use super::auth::Org;
use super::body;
use super::host::Host;
use super::object::{self, Counts};
use crate::sprite::{self, Sprite};
use crate::store::sprites::{Record, now};
use crate::store::{files, tokens};
use crate::wire::error::ApiError;
use crate::wire::name;
use crate::wire::query::Query;

/// Sprites of a page when the client names no number.
const PAGE: usize = 50;
/// The largest page.
const LARGEST_PAGE: usize = 500;
/// Labels and environment entries that one sprite may have.
const MAX_ENTRIES: usize = 256;
/// How often an open list stream gives a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// `POST /v1/sprites`.
pub async fn create(State(host): State<Arc<Host>>, Org(org): Org, request: Request) -> Result<Response, ApiError> {
    let body = body::object(request).await?;
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    name::check(&name)?;
    if body.get("wait_for_capacity").is_some_and(|value| !value.is_boolean()) {
        return Err(ApiError::invalid("invalid wait_for_capacity parameter"));
    }
    host.check_disk()?;
    let now = now();
    let record = Record {
        id: new_id()?,
        name: name.clone(),
        org: org.clone(),
        url_suffix: tokens::random_hex(4).map_err(ApiError::internal)?,
        created_at: now.clone(),
        updated_at: now,
        url_settings: url_settings(Map::from_iter([("auth".to_owned(), "sprite".into())]), body.get("url_settings"))?,
        labels: labels(body.get("labels"))?.unwrap_or_default(),
        environment: environment(body.get("environment"))?,
        config: body.get("config").map(config).transpose()?,
        isolation: host.plan.mode.to_owned(),
        last_running_at: None,
    };
    let task = create_sprite(host.clone(), record);
    // A task of its own: a client that leaves gets a whole sprite or none.
    let sprite = tokio::spawn(task).await.map_err(ApiError::internal)??;
    Ok((StatusCode::CREATED, Json(object::sprite(&host, &sprite))).into_response())
}

async fn create_sprite(host: Arc<Host>, record: Record) -> Result<Arc<Sprite>, ApiError> {
    let taken =
        || ApiError::new(StatusCode::CONFLICT, "already_exists", format!("sprite {} already exists", record.name));
    let dir = host.org_dir(&record.org).join(&record.name);
    let made = {
        let (org_dir, dir, record) = (host.org_dir(&record.org), dir.clone(), record.clone());
        tokio::task::spawn_blocking(move || {
            files::create_private_dir(&org_dir)?;
            sprite::create_dirs(&dir, &record)
        })
    };
    match made.await.map_err(ApiError::internal)? {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(taken()),
        Err(error) => return Err(ApiError::internal(format!("creating a sprite's folder: {error}"))),
    }
    let sprite = Sprite::adopt(host.clone(), dir.clone(), record.clone());
    host.insert(sprite.clone());
    if let Err(error) = sprite.wake().await {
        // A create that failed leaves no sprite.
        let _ = destroy(&host, &sprite, &record).await;
        return Err(error);
    }
    tracing::info!(sprite = record.name, org = record.org, "created");
    Ok(sprite)
}

/// `GET /v1/sprites/{name}`. Never wakes.
pub async fn get(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let sprite = host.find(&org, &name)?;
    Ok(Json(object::sprite(&host, &sprite)))
}

/// `GET /v1/sprites`, as a page or as a stream.
pub async fn list(State(host): State<Arc<Host>>, Org(org): Org, request: Request) -> Result<Response, ApiError> {
    let query = Query::of(request.uri());
    let prefix = query.text("prefix")?.unwrap_or_default().to_owned();
    let count = match query.text("max_results")? {
        None => PAGE,
        Some(text) => text
            .parse::<i64>()
            .map_err(|_| ApiError::invalid("max_results must be a number"))?
            .clamp(1, LARGEST_PAGE as i64) as usize,
    };
    if wants_stream(request.headers()) {
        return Ok(list_stream(host, org, prefix));
    }
    let after = query.text("continuation_token")?.map(decode_token).transpose()?;
    let mut sprites = host.list(&org, &prefix, after.as_deref());
    let has_more = sprites.len() > count;
    sprites.truncate(count);
    let token = has_more.then(|| sprites.last().map(|last| encode_token(&last.record().name))).flatten();
    let counts = Counts::of(&host.list(&org, "", None));
    let entries: Vec<Value> = sprites.iter().map(|sprite| object::sprite(&host, sprite)).collect();
    let page = json!({
        "sprites": entries,
        "has_more": has_more,
        "next_continuation_token": token,
        "org": counts.org(&org),
    });
    Ok(Json(Counts::of(&sprites).page(page, &org)).into_response())
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.contains("application/x-ndjson")
}

/// The list as NDJSON: every sprite once, then each one again when what it shows has changed, and heartbeats.
fn list_stream(host: Arc<Host>, org: String, prefix: String) -> Response {
    struct Watch {
        host: Arc<Host>,
        org: String,
        prefix: String,
        changes: tokio::sync::watch::Receiver<u64>,
        seen: BTreeMap<String, Value>,
        first: bool,
    }
    let watch = Watch { changes: host.changes(), host, org, prefix, seen: BTreeMap::new(), first: true };
    let lines = stream::unfold(watch, |mut watch| async move {
        let mut heartbeat = false;
        if !std::mem::take(&mut watch.first) {
            heartbeat = tokio::time::timeout(HEARTBEAT, watch.changes.changed()).await.is_err();
        }
        watch.changes.mark_unchanged();
        let org = Counts::of(&watch.host.list(&watch.org, "", None)).org(&watch.org);
        let mut text = String::new();
        let mut now_there = BTreeMap::new();
        for sprite in watch.host.list(&watch.org, &watch.prefix, None) {
            let record = sprite.record();
            let line = json!({
                "name": record.name,
                "status": object::status(&sprite),
                "running_version": object::SPRITE_VERSION,
                "last_running_at": record.last_running_at,
                "last_warming_at": null,
            });
            if watch.seen.get(&record.name) != Some(&line) {
                let mut full = line.clone();
                full["timestamp"] = now().into();
                full["org"] = org.clone();
                text += &format!("{full}\n");
            }
            now_there.insert(record.name, line);
        }
        watch.seen = now_there;
        if heartbeat {
            text += &format!("{}\n", json!({"type": "heartbeat", "timestamp": now(), "org": org}));
        }
        Some((Ok::<_, std::io::Error>(text), watch))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-cache")], Body::from_stream(lines))
        .into_response()
}

/// `PUT /v1/sprites/{name}`: changes what is given.
pub async fn update(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let sprite = host.find(&org, &name)?;
    let body = body::object(request).await?;
    let settings = url_settings(sprite.record().url_settings, body.get("url_settings"))?;
    let mut new_labels = labels(body.get("labels"))?;
    if body.get("clear_labels") == Some(&Value::Bool(true)) {
        new_labels = Some(Vec::new());
    }
    sprite
        .update(|record| {
            record.updated_at = now();
            record.url_settings = settings;
            if let Some(labels) = new_labels {
                record.labels = labels;
            }
        })
        .map_err(|error| ApiError::internal(format!("writing a sprite's record: {error}")))?;
    host.changed();
    Ok(Json(object::sprite(&host, &sprite)))
}

/// `DELETE /v1/sprites/{name}`: 404 for everybody from the first moment; the answer comes when nothing is left.
pub async fn delete(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let sprite = host.find(&org, &name)?;
    let record = sprite.record();
    let (task_host, task_sprite, task_record) = (host.clone(), sprite, record.clone());
    tokio::spawn(async move { destroy(&task_host, &task_sprite, &task_record).await })
        .await
        .map_err(ApiError::internal)??;
    tracing::info!(sprite = record.name, org = record.org, "deleted");
    Ok(StatusCode::NO_CONTENT)
}

async fn destroy(host: &Host, sprite: &Sprite, record: &Record) -> Result<(), ApiError> {
    if host.remove(&record.org, &record.name).is_none() {
        return Err(ApiError::not_found("sprite_not_found", "sprite not found"));
    }
    // From here on the name is free, whatever happens to the rest: a start finishes what is left.
    std::fs::rename(&sprite.dir, host.trash(&record.id))
        .map_err(|error| ApiError::internal(format!("moving a sprite's folder away: {error}")))?;
    sprite.destroy().await
}

/// `POST …/upgrade`: there is nothing newer than the host's own tools.
pub async fn upgrade(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    host.find(&org, &name)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST …/restart`: sessions end in order, then the sprite is awake again.
pub async fn restart(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let sprite = host.find(&org, &name)?;
    sprite.stop(Duration::from_secs(5)).await?;
    sprite.wake().await?;
    Ok(Json(json!({"sprite_name": name, "machine_id": sprite.record().id, "message": "Sprite restarted"})))
}

/// `GET …/check`: whether it is well, without waking it.
pub async fn check(
    State(host): State<Arc<Host>>,
    Org(org): Org,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let sprite = host.find(&org, &name)?;
    // A vocabulary of its own: healthy, hibernated, unhealthy, error (wire/platform.md, end of §5).
    let health = if sprite.link().is_some() { "healthy" } else { "hibernated" };
    Ok(Json(json!({
        "sprite_name": name,
        "sprite_id": sprite.record().id,
        "status": health,
        "reason": null,
        "checked_at": now(),
        "elapsed": null,
    })))
}

/// `GET /v1/organization`.
pub async fn organization(State(host): State<Arc<Host>>, Org(org): Org) -> Json<Value> {
    let counts = Counts::of(&host.list(&org, "", None));
    let mut object = counts.org(&org);
    object["slug"] = org.as_str().into();
    object["id"] = org.into();
    Json(object)
}

fn new_id() -> Result<String, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(ApiError::internal)?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
}

fn url_settings(mut current: Map<String, Value>, given: Option<&Value>) -> Result<Map<String, Value>, ApiError> {
    let Some(given) = given.filter(|value| !value.is_null()) else { return Ok(current) };
    let given = given.as_object().ok_or_else(|| ApiError::invalid("url_settings must be an object"))?;
    match given.get("auth") {
        None | Some(Value::Null) => {}
        Some(Value::String(auth)) if auth == "sprite" || auth == "public" => {
            current.insert("auth".into(), auth.as_str().into());
        }
        Some(_) => return Err(ApiError::invalid("url_settings.auth must be sprite or public")),
    }
    match given.get("private_access") {
        None | Some(Value::Null) => {}
        Some(Value::String(access)) if ["admins", "organization", "org_users"].contains(&access.as_str()) => {
            current.insert("private_access".into(), access.as_str().into());
        }
        Some(_) => {
            return Err(ApiError::invalid("url_settings.private_access must be admins, organization or org_users"));
        }
    }
    Ok(current)
}

fn labels(given: Option<&Value>) -> Result<Option<Vec<String>>, ApiError> {
    let wrong = || ApiError::invalid("labels must be an array of at most 256 strings");
    match given {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) if items.len() <= MAX_ENTRIES => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()
            .map(Some),
        Some(_) => Err(wrong()),
    }
}

fn environment(given: Option<&Value>) -> Result<BTreeMap<String, String>, ApiError> {
    let wrong = || ApiError::invalid("environment must be an object of at most 256 strings, without NUL or = in names");
    match given {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(map)) if map.len() <= MAX_ENTRIES => map
            .iter()
            .map(|(key, value)| {
                let value = value.as_str().ok_or_else(wrong)?;
                let usable = !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0');
                usable.then(|| (key.clone(), value.to_owned())).ok_or_else(wrong)
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

/// Keeps the advisory sizes; older JS clients write `ramMB` and `storageGB`.
fn config(given: &Value) -> Result<Value, ApiError> {
    let given = given.as_object().ok_or_else(|| ApiError::invalid("config must be an object"))?;
    let mut kept = Map::new();
    for (names, text) in [
        (["ram_mb", "ramMB"], false),
        (["cpus", "cpus"], false),
        (["storage_gb", "storageGB"], false),
        (["region", "region"], true),
    ] {
        let value = names.iter().find_map(|name| given.get(*name)).filter(|value| !value.is_null());
        match value {
            None => {}
            Some(value) if (text && value.is_string()) || (!text && value.is_u64()) => {
                kept.insert(names[0].into(), value.clone());
            }
            Some(_) => return Err(ApiError::invalid(format!("config.{} has the wrong type", names[0]))),
        }
    }
    Ok(Value::Object(kept))
}

/// A page token: the last name, in hex, because one client does not encode it for the URL. It survives any delete.
fn encode_token(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn decode_token(token: &str) -> Result<String, ApiError> {
    let byte = |at: usize| u8::from_str_radix(token.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..token.len()).step_by(2).map(byte).collect();
    let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|name| name::is_valid(name));
    name.ok_or_else(|| ApiError::invalid("continuation_token is not one of this runner's"))
}
