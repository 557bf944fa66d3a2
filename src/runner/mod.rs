//! The daemon: the front door, the sprites' records, waking, and passing through to the agents.
//!
//! It keeps nothing in memory that it cannot read again: a `kill -9` of it loses no session, no byte and no exit code.

pub mod admin;
mod auth;
mod body;
mod checkpoints;
mod forward;
pub mod host;
mod listener;
mod object;
mod policy;
mod router;
pub mod settings;
mod sprites;
mod unread;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::sandbox;
use crate::store::files;
use crate::store::tokens::{DEFAULT_ORG, Tokens, random_hex};
use crate::sys::{proc, spawn};
use admin::Contact;
use host::Host;
use settings::Settings;

/// A fixed token that is shorter could be guessed by trying.
const SHORTEST_TOKEN: usize = 8;

/// Runs the daemon until it is told to end. The error is a sentence for the user.
pub fn main(settings: Settings) -> Result<(), String> {
    crate::cli::log::init(&settings.log, std::io::stderr().is_terminal());
    let plan = sandbox::plan(&settings.isolation)?;
    sandbox::check_state_path(&settings.state)?;
    check_listen(&settings)?;
    let tls = settings.tls.as_ref().map(|(cert, key)| listener::tls(cert, key)).transpose()?;
    files::create_private_dir(&settings.state).map_err(at("the state folder cannot be made"))?;
    let _lock = lock(&settings.state)?;
    let runtime = host::runtime_dir(&settings.state).map_err(at("the folder for sockets cannot be made"))?;
    files::create_private_dir(&runtime).map_err(at("the folder for sockets cannot be made"))?;
    let _removed = RemovedWhenEmpty(runtime.clone());
    raise_open_files();
    proc::become_subreaper().map_err(at("the runner cannot become a subreaper"))?;
    let fixed = std::env::var("FOUNTAIN_RUNNER_TOKEN").ok().filter(|token| !token.is_empty());
    if fixed.as_ref().is_some_and(|token| token.len() < SHORTEST_TOKEN) {
        return Err(format!("the token in FOUNTAIN_RUNNER_TOKEN must have at least {SHORTEST_TOKEN} characters"));
    }
    let tokens = Tokens::open(settings.state.join("tokens.json"), fixed).map_err(at("the tokens cannot be read"))?;
    tracing::info!(mode = plan.mode, reason = plan.reason, "isolation");

    let runtime_threads = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()
        .map_err(at("the runtime cannot be started"))?;
    runtime_threads.block_on(async move {
        let host = Arc::new(Host::new(settings, plan, tokens, runtime));
        serve(host, tls).await
    })
}

/// Ends every agent of a state folder that no runner has. Returns how many were ended.
pub fn stop_agents(state: std::path::PathBuf) -> Result<usize, String> {
    let matches = settings::with_flags(clap::Command::new("fountain")).get_matches_from([
        "fountain".into(),
        "--state".into(),
        state.clone().into_os_string(),
    ]);
    let settings = settings::resolve(&matches)?;
    let _lock = lock(&state)?;
    let what = "the agents cannot be found";
    let runtime = host::runtime_dir(&state).map_err(at(what))?;
    let tokens = Tokens::open(state.join("tokens.json"), None).map_err(at(what))?;
    proc::become_subreaper().map_err(at(what))?;
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(at(what))?;
    threads.block_on(async move {
        let host = Arc::new(Host::new(settings, sandbox::plan("plain")?, tokens, runtime));
        let loading = host.clone();
        tokio::task::spawn_blocking(move || loading.load())
            .await
            .map_err(|error| error.to_string())?
            .map_err(at(what))?;
        let mut ended = 0;
        for sprite in host.all() {
            // Only those with an agent's record can have anything running.
            if crate::store::sprites::AgentRecord::read(&sprite.dir).is_some() {
                sprite.stop(std::time::Duration::from_secs(5)).await.map_err(|error| error.to_string())?;
                ended += 1;
            }
        }
        // The lock is held and no agent is left: whatever a killed runner forgot here is nobody's.
        let _ = std::fs::remove_dir_all(&host.runtime);
        Ok(ended)
    })
}

/// The folder for sockets goes with the runner, unless agents that stay behind have theirs in it.
struct RemovedWhenEmpty(std::path::PathBuf);

impl Drop for RemovedWhenEmpty {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Puts what was tried in front of an error.
fn at(what: &str) -> impl FnOnce(std::io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// A non-loopback address needs TLS, or the word of the user that it does not.
fn check_listen(settings: &Settings) -> Result<(), String> {
    if settings.listen.ip().is_loopback() || settings.tls.is_some() || settings.plain_http {
        return Ok(());
    }
    Err(format!(
        "{} can be reached from other machines, where plain HTTP would show every token and file; \
         give --tls-cert and --tls-key, or say --plain-http if the way is safe",
        settings.listen
    ))
}

/// One runner per state folder. The lock goes with the process, however it ends.
fn lock(state: &Path) -> Result<OwnedFd, String> {
    let file = std::fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(state.join("lock"))
        .map_err(|error| format!("the state folder {} cannot be locked: {error}", state.display()))?;
    let file = OwnedFd::from(file);
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(format!(
            "another runner uses the state folder {}; stop it with `fountain stop`, or give --state another folder",
            state.display()
        )),
        Err(error) => Err(format!("the state folder {} cannot be locked: {error}", state.display())),
    }
}

fn raise_open_files() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

async fn serve(host: Arc<Host>, tls: Option<tokio_rustls::TlsAcceptor>) -> Result<(), String> {
    let listen = host.settings.listen;
    let tcp = TcpListener::bind(listen).await.map_err(at(&format!("cannot listen on {listen}")))?;
    let address = tcp.local_addr().map_err(at("the address is unknown"))?;
    // Set once, here.
    let _ = host.port.set(address.port());
    reap_children().map_err(at("children cannot be collected"))?;
    let loading = host.clone();
    // A runtime handle is needed to start the sprites' tasks, and the disk may be slow.
    tokio::task::spawn_blocking(move || loading.load())
        .await
        .map_err(|error| error.to_string())?
        .map_err(at("the sprites cannot be read"))?;

    let url = format!("{}://{}", if tls.is_some() { "https" } else { "http" }, shown(address));
    let secret = random_hex(32).map_err(at("no random numbers"))?;
    let socket = host.runtime.join("admin.sock");
    let _ = std::fs::remove_file(&socket);
    let unix = UnixListener::bind(&socket).map_err(at("the admin socket cannot be made"))?;
    let contact = Contact { socket: socket.clone(), secret: secret.clone(), pid: std::process::id(), url: url.clone() };
    contact.write(&host.settings.state).map_err(at("the state folder cannot be written"))?;
    let (quit, mut quitting) = mpsc::channel(1);
    let admin = tokio::spawn(listener::serve_unix(unix, admin::router(host.clone(), &secret, quit)));
    let api = tokio::spawn(listener::serve_tcp(tcp, tls, router::router(host.clone())));
    announce(&host, &url);

    let mut interrupt = signal(SignalKind::interrupt()).map_err(at("signals cannot be caught"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(at("signals cannot be caught"))?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = quitting.recv() => {}
    }
    farewell(&host).await;
    api.abort();
    // The answer to `fountain stop` is on its way; a moment for it to leave.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    admin.abort();
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_file(Contact::path(&host.settings.state));
    Ok(())
}

/// Says where it listens, and, the first time and to a terminal only, a token.
fn announce(host: &Host, url: &str) {
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| {
        // A closed stdout must not end the daemon.
        let _ = writeln!(out, "{line}");
    };
    say(format!("fountain runner listening on {url}"));
    if host.tokens.is_empty() {
        match std::io::stdout().is_terminal() {
            true => match host.tokens.create(DEFAULT_ORG, "made at the first start") {
                Ok((token, _)) => {
                    say("\nA token for your clients, shown this once:\n".into());
                    say(format!("  export SPRITES_BASE_URL={url}"));
                    say(format!("  export SPRITES_TOKEN={token}\n"));
                }
                Err(error) => tracing::error!(%error, "the first token could not be stored"),
            },
            false => say("no token exists yet: make one with `fountain token create`".into()),
        }
    }
    if host.settings.plain_http && !host.settings.listen.ip().is_loopback() {
        tracing::warn!("plain HTTP on a non-loopback address: tokens, files and output are readable on the way");
    }
}

/// Says what goes on without the runner.
async fn farewell(host: &Host) {
    let (sprites, sessions) = admin::awake(host).await;
    let text = match sprites {
        0 => "nothing keeps running".to_owned(),
        _ => format!(
            "{sprites} sprites with {sessions} sessions keep running, and their output is kept; \
             `fountain runner` finds them again, `fountain stop --all` ends them"
        ),
    };
    let _ = writeln!(std::io::stdout(), "fountain runner stopped: {text}");
}

/// Collects agents that have ended, and orphans that a dead agent left to us.
fn reap_children() -> std::io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    tokio::spawn(async move {
        loop {
            while let Ok(Some((pid, code))) = spawn::wait_any() {
                tracing::debug!(pid, code, "a child ended");
            }
            if children.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(())
}

/// The address as a URL has it; a wildcard is shown as loopback, where this host's own clients find it.
fn shown(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("127.0.0.1:{}", address.port()),
        false => address.to_string(),
    }
}
