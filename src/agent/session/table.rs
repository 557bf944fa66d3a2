//! The table of a sprite's sessions: ids that never recycle, what an earlier agent left, and the grace of the finished.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};

use super::journal::{Exit, Journal, Limits};
use super::{Ports, Session, record, start};
use crate::agent::lease::Lease;
use crate::agent::processes::Processes;
use crate::sandbox::paths::Paths;
use crate::store::files;
use crate::wire::error::ApiError;
use crate::wire::exec::Command;

/// Ids are reserved on disk this many at a time, so that a killed agent's are never given out again.
const RESERVE: u64 = 64;

/// What sessions need to know of their sprite.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder of session folders.
    pub dir: PathBuf,
    /// Where API paths lie.
    pub paths: Paths,
    /// The sprite's create-time environment.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` by which this sprite's processes are found.
    pub marker: String,
    /// Size rules of journals.
    pub limits: Limits,
    /// How long finished sessions can still be attached.
    pub grace: Duration,
    /// Told when a client is attached.
    pub arrivals: Arc<Notify>,
}

/// All sessions of the sprite.
#[derive(Debug)]
pub struct Sessions {
    config: Config,
    processes: Processes,
    lease: watch::Receiver<Lease>,
    /// Sessions of an earlier agent by the requests that started them.
    earlier: HashMap<String, Weak<Session>>,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    sessions: BTreeMap<u64, Arc<Session>>,
    next: u64,
    reserved: u64,
    /// Set once the agent is going: nothing starts any more.
    closed: bool,
}

impl Sessions {
    /// Opens the folder, and ends in 137 whatever an earlier agent left open.
    pub fn open(config: Config, processes: Processes, lease: watch::Receiver<Lease>) -> std::io::Result<Arc<Self>> {
        files::create_private_dir(&config.dir)?;
        let mut sessions = BTreeMap::new();
        let mut highest = 0;
        for entry in std::fs::read_dir(&config.dir)?.flatten() {
            let Some(number) = entry.file_name().to_str().and_then(parse_id) else { continue };
            highest = highest.max(number);
            match reopen(&entry.path(), &config) {
                Some(session) => {
                    sessions.insert(number, session);
                }
                None => remove(&entry.path()),
            }
        }
        let next = std::fs::read_to_string(config.dir.join("next")).ok().and_then(|text| text.trim().parse().ok());
        let next = next.unwrap_or(0).max(highest + 1).max(1);
        let named = |session: &Arc<Session>| Some((session.header.request.clone()?, Arc::downgrade(session)));
        let earlier = sessions.values().filter_map(named).collect();
        let table = Mutex::new(Table { sessions, next, reserved: next, closed: false });
        let this = Arc::new(Self { config, processes, lease, earlier, table });
        for (number, session) in this.lock().sessions.iter() {
            this.forget_later(*number, session.clone());
        }
        Ok(this)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts a command. `request` is the runner's name for the request that asks for it, if it has one.
    pub async fn start(self: &Arc<Self>, command: Command, request: Option<String>) -> Result<Arc<Session>, ApiError> {
        let this = self.clone();
        // A task of its own: a client that leaves meanwhile must not leave half a session behind.
        let started = tokio::spawn(async move {
            let number = this.next_id()?;
            let session = start::start(
                format!("s{number}"),
                &command,
                request,
                &this.config,
                &this.processes,
                this.lease.clone(),
            )
            .await;
            let closed = {
                let mut table = this.lock();
                table.sessions.insert(number, session.clone());
                table.closed
            };
            if closed {
                this.processes.signal_group(session.pid, nix::sys::signal::Signal::SIGKILL);
            }
            this.forget_later(number, session.clone());
            Ok(session)
        });
        started.await.unwrap_or_else(|error| Err(ApiError::internal(error)))
    }

    fn next_id(&self) -> Result<u64, ApiError> {
        let (number, reserve) = {
            let mut table = self.lock();
            if table.closed {
                return Err(ApiError::unavailable("sprite_stopping", "the sprite is stopping; try again in a moment"));
            }
            let number = table.next;
            table.next += 1;
            let reserve = (number >= table.reserved).then(|| {
                table.reserved = number + RESERVE;
                table.reserved
            });
            (number, reserve)
        };
        if let Some(reserved) = reserve {
            files::write_atomic(&self.config.dir.join("next"), reserved.to_string().as_bytes())
                .map_err(|error| ApiError::internal(format!("session ids cannot be reserved: {error}")))?;
        }
        Ok(number)
    }

    /// Finds a session, running or in its grace.
    pub fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.lock().sessions.get(&parse_id(id)?).cloned()
    }

    /// The session that this request of the runner's had started when the earlier agent died.
    pub fn started_by(&self, request: &str) -> Option<Arc<Session>> {
        self.earlier.get(request)?.upgrade()
    }

    /// The running ones, oldest first.
    pub fn running(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().filter(|session| session.is_running()).cloned().collect()
    }

    /// Whether any session has a client.
    pub fn any_attached(&self) -> bool {
        self.lock().sessions.values().any(|session| session.attached() > 0)
    }

    /// Waits until one has.
    pub async fn somebody_attached(&self) {
        self.config.arrivals.notified().await;
    }

    /// Every session, finished ones included.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().cloned().collect()
    }

    /// Refuses new sessions from now on, and gives back the unused ids.
    pub fn close(&self) {
        let next = {
            let mut table = self.lock();
            table.closed = true;
            table.next
        };
        if let Err(error) = files::write_atomic(&self.config.dir.join("next"), next.to_string().as_bytes()) {
            tracing::warn!(%error, "the next session id could not be stored");
        }
    }

    /// Forgets a session when its grace is over, and removes its folder.
    fn forget_later(self: &Arc<Self>, number: u64, session: Arc<Session>) {
        let this = Arc::downgrade(self);
        let (dir, grace) = (self.config.dir.clone(), self.config.grace);
        tokio::spawn(async move {
            let mut cursor = session.journal.ended();
            let exit = cursor.wait().await;
            drop(session);
            tokio::time::sleep(left(exit, grace)).await;
            if let Some(this) = this.upgrade() {
                this.lock().sessions.remove(&number);
            }
            let path = dir.join(format!("s{number}"));
            // Removing a large journal takes the disk a while; nobody waits for it.
            tokio::task::spawn_blocking(move || remove(&path));
        });
    }
}

/// `s17` is 17. Other spellings name nothing.
fn parse_id(id: &str) -> Option<u64> {
    let number = id.strip_prefix('s')?.parse().ok()?;
    (format!("s{number}") == id).then_some(number)
}

fn left(exit: Exit, grace: Duration) -> Duration {
    let passed = jiff::Timestamp::now().as_millisecond().saturating_sub(exit.at).max(0);
    grace.saturating_sub(Duration::from_millis(passed as u64))
}

/// A session of an earlier agent: finished, or finished now. `None` when its grace is over or it cannot be read.
fn reopen(dir: &Path, config: &Config) -> Option<Arc<Session>> {
    let mut appender = match Journal::reopen(dir, config.limits) {
        Ok(appender) => appender,
        Err(error) => {
            tracing::warn!(%error, "a session's journal could not be opened");
            return None;
        }
    };
    let exit = appender.journal().exit().unwrap_or_else(|| {
        let at = jiff::Timestamp::now().as_millisecond();
        appender.append(start::died(appender.header().tty));
        appender.append(record::exit(137, at));
        Exit { code: 137, at }
    });
    if left(exit, config.grace).is_zero() {
        return None;
    }
    let closed = mpsc::channel(1).0;
    Some(Arc::new(Session {
        header: appender.header().clone(),
        journal: appender.journal().clone(),
        pid: 0,
        inputs: closed,
        controls: mpsc::channel(1).0,
        exited: watch::channel(Some(exit.code)).1,
        attached: watch::Sender::new(0),
        size: AtomicU32::new(0),
        arrivals: config.arrivals.clone(),
        ports: Ports::default(),
    }))
}

fn remove(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "a session's folder could not be removed");
    }
}
