//! `/exec` and `/exec/{id}`: start, list and attach (wire/exec.md §1, §4).

use std::sync::Arc;

use axum::Json;
use axum::extract::ws::WebSocket;
use axum::extract::{FromRequestParts, Path, Request, State, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::{REQUEST_HEADER, user_agent};
use crate::agent::Agent;
use crate::agent::relay::{self, Outcome, Plan};
use crate::agent::session::{Control, Session};
use crate::wire::error::ApiError;
use crate::wire::exec::{Attach, ExecRequest};
use crate::wire::frame::InputMode;
use crate::wire::query::Query;

/// The largest message a client may send. Clients write whatever their caller wrote in one piece.
pub const MAX_MESSAGE: usize = 256 << 20;

/// Small frames are collected up to this size; a full one goes out at once, so that little has to be moved up when the
/// socket takes a part only.
const WRITE_BUFFER: usize = 64 << 10;

/// Whether a request wants to become a WebSocket.
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(http::header::UPGRADE).map(HeaderValue::as_bytes).unwrap_or_default();
    upgrade.eq_ignore_ascii_case(b"websocket")
}

/// Takes the upgrade out of a request, or says what is wrong with it.
pub async fn upgrade(request: Request) -> Result<WebSocketUpgrade, ApiError> {
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| ApiError::invalid(format!("this is no WebSocket handshake: {rejection}")))?;
    Ok(upgrade
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .read_buffer_size(16 << 10)
        .write_buffer_size(WRITE_BUFFER))
}

/// `GET /exec`: a WebSocket starts or attaches, anything else lists.
pub async fn list_or_start(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, ApiError> {
    if !wants_upgrade(request.headers()) {
        return Ok(list(&agent).into_response());
    }
    let headers = request.headers().clone();
    let wanted = ExecRequest::from_query(&Query::of(request.uri()))?;
    match wanted {
        ExecRequest::Attach(wanted) => attach_socket(&agent, wanted, &headers, request).await,
        ExecRequest::Start(command) => {
            let name = headers.get(REQUEST_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let upgrade = upgrade(request).await?;
            let input = if command.tty { InputMode::Raw } else { InputMode::Framed };
            let join = Join { is_owner: true, input, framed: None, drop_stray_eof: false, replay: None };
            if !agent.pause.is_frozen() {
                let session = agent.start(command, name).await?;
                return Ok(serve(&agent, upgrade, session, join));
            }
            // A checkpoint is being taken, which may take longer than a client waits for its handshake.
            Ok(with_capabilities(upgrade.on_upgrade(move |socket| async move {
                match agent.start(command, name).await {
                    Ok(session) => run(socket, plan(&agent, session, join)).await,
                    Err(error) => tracing::info!(%error, "a command could not be started after a pause"),
                }
            })))
        }
    }
}

/// `GET /exec/{id}`: attach; without an upgrade only its errors.
pub async fn attach(
    State(agent): State<Arc<Agent>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    if !wants_upgrade(&headers) {
        find(&agent, &id)?;
        return Err(ApiError::invalid("a session is attached to by a WebSocket; list sessions with GET …/exec"));
    }
    let query = Query::of(request.uri());
    let size = match (query.text("cols")?, query.text("rows")?) {
        (Some(cols), Some(rows)) => cols.parse().ok().zip(rows.parse().ok()),
        _ => None,
    };
    let wanted =
        Attach { id, size, tty: query.flag("tty")?.unwrap_or(false), stdin_false: query.flag("stdin")? == Some(false) };
    attach_socket(&agent, wanted, &headers, request).await
}

/// A session by id, or 404.
pub fn find(agent: &Agent, id: &str) -> Result<Arc<Session>, ApiError> {
    let shown: String = id.chars().take(64).collect();
    agent
        .sessions
        .get(id)
        .ok_or_else(|| ApiError::not_found("session_not_found", format!("session not found: {shown}")))
}

async fn attach_socket(
    agent: &Arc<Agent>,
    wanted: Attach,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let session = find(agent, &wanted.id)?;
    let upgrade = upgrade(request).await?;
    let agent_name = user_agent(headers);
    let go = agent_name.starts_with("Go-http-client/");
    let drop_stray_eof = agent_name.starts_with("sprites-py/") || (go && wanted.stdin_false);
    let tty = session.header.tty;
    // The Go SDK believes its caller's flag rather than `session_info`: it gets frames when it expects them.
    let framed = (go && tty && !wanted.tty).then_some(true);
    let input = if tty && framed.is_none() { InputMode::Raw } else { InputMode::Framed };
    if let Some((cols, rows)) = wanted.size.filter(|(cols, rows)| tty && *cols > 0 && *rows > 0) {
        session.request(Control::Resize(cols, rows)).await;
    }
    let is_owner = session.attached() == 0;
    let replay = agent.config.replay;
    Ok(serve(agent, upgrade, session, Join { is_owner, input, framed, drop_stray_eof, replay }))
}

/// How a client joins a session.
struct Join {
    is_owner: bool,
    input: InputMode,
    /// Whether output carries stream bytes; by default it does without a terminal.
    framed: Option<bool>,
    drop_stray_eof: bool,
    /// Bytes of output to replay; all of it when `None`.
    replay: Option<u64>,
}

fn serve(agent: &Agent, upgrade: WebSocketUpgrade, session: Arc<Session>, join: Join) -> Response {
    // Counted from here on, so that the disconnect timer sees no gap between the start and the socket.
    let attachment = session.attach();
    let plan = plan(agent, session, join);
    with_capabilities(upgrade.on_upgrade(move |socket| async move {
        run(socket, plan).await;
        drop(attachment);
    }))
}

fn plan(agent: &Agent, session: Arc<Session>, join: Join) -> Plan {
    Plan {
        cursor: session.journal.cursor(join.replay),
        is_owner: join.is_owner,
        input: join.input,
        framed: join.framed.unwrap_or(!session.header.tty),
        drop_stray_eof: join.drop_stray_eof,
        control: false,
        exit_u32: agent.config.exit_u32,
        session,
    }
}

async fn run(socket: WebSocket, plan: Plan) {
    let (mut sender, mut receiver) = socket.split();
    let tty = plan.session.header.tty;
    if let Outcome::Finished(code) = relay::relay(&mut sender, &mut receiver, plan).await {
        relay::close(sender, receiver, relay::close_code(tty, code)).await;
    }
}

/// The headers that say what a socket can do (wire/exec.md §1.4).
pub fn with_capabilities(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert("x-sprite-capabilities", HeaderValue::from_static("signal"));
    headers.insert("sprite-capabilities", HeaderValue::from_static("control-ws"));
    response
}

fn list(agent: &Agent) -> Json<Value> {
    let sessions: Vec<Value> = agent.sessions.running().iter().map(|session| describe(session)).collect();
    Json(json!({"count": sessions.len(), "sessions": sessions}))
}

fn describe(session: &Session) -> Value {
    let header = &session.header;
    let activity = session.journal.activity();
    let mut entry = json!({
        "id": header.id,
        "command": header.command,
        "workdir": header.workdir,
        "created": timestamp(header.created),
        "tty": header.tty,
        "bytes_per_second": activity.bytes_per_second,
        "is_active": session.attached() > 0 || activity.is_recent,
    });
    if let Some(at) = activity.last_output {
        entry["last_activity"] = timestamp(at).into();
    }
    entry
}

/// RFC 3339 with three digits, from Unix milliseconds.
fn timestamp(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map(|at| format!("{at:.3}")).unwrap_or_default()
}
