//! The life of one sprite as the runner sees it.
//!
//! ```text
//!            wake: start agent, hold lease            agent died: kill what it left
//!    cold ─────────────────────────────────▶ awake ─────────────────────────────────▶ cold
//!      ▲                                       │
//!      └──────── stop: sessions end in order ──┘         any ── destroy ──▶ gone
//! ```
//!
//! One task owns it, so there is one wake at a time and a restore never meets a wake. Everybody else sends it messages
//! or reads the newest link.

pub mod leftovers;
pub mod link;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::agent::Config;
use crate::runner::host::Host;
use crate::sandbox;
use crate::store::files;
use crate::store::sprites::{AgentRecord, Record, now};
use crate::store::tokens::random_hex;
use crate::wire::error::ApiError;
use link::Link;

/// What a stopping agent may take beyond the grace it was given.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// A piece of blocking work done while the sprite is asleep (the swap of a restore).
pub type Work = Box<dyn FnOnce() -> Result<(), ApiError> + Send>;

enum Message {
    Wake(oneshot::Sender<Result<Arc<Link>, ApiError>>),
    Stop(Duration, oneshot::Sender<Result<bool, ApiError>>),
    Asleep(Work, oneshot::Sender<Result<(), ApiError>>),
    Destroy(oneshot::Sender<Result<(), ApiError>>),
    Died(i32),
}

/// A sprite.
#[derive(Debug)]
pub struct Sprite {
    /// Its folder.
    pub dir: PathBuf,
    record: RwLock<Record>,
    link: watch::Receiver<Option<Arc<Link>>>,
    mailbox: mpsc::Sender<Message>,
    /// Checkpoints and restores, one at a time.
    pub archive: tokio::sync::Mutex<()>,
}

impl Sprite {
    /// Takes a sprite over, with its agent if it has a living one.
    pub fn adopt(host: Arc<Host>, dir: PathBuf, record: Record) -> Arc<Self> {
        let (mailbox, messages) = mpsc::channel(64);
        let (link_sender, link) = watch::channel(None);
        let sprite = Arc::new(Self {
            dir: dir.clone(),
            record: RwLock::new(record.clone()),
            link,
            mailbox: mailbox.clone(),
            archive: tokio::sync::Mutex::new(()),
        });
        let life = Life { host, dir, id: record.id, mailbox, link: link_sender, sprite: Arc::downgrade(&sprite) };
        // Known before anybody can ask: a sprite that is awake never shows as cold after a restart of the runner.
        let agent = AgentRecord::read(&life.dir).map(|record| Link { record });
        let is_dead = agent.as_ref().is_some_and(|link| !link.is_alive());
        if let Some(link) = agent.filter(|_| !is_dead) {
            life.awake(link);
        }
        tokio::spawn(life.run(messages, is_dead));
        sprite
    }

    /// Its record, as it is now.
    pub fn record(&self) -> Record {
        self.record.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Changes its record: on disk first.
    pub fn update(&self, edit: impl FnOnce(&mut Record)) -> io::Result<Record> {
        let mut record = self.record();
        edit(&mut record);
        record.write(&self.dir)?;
        *self.record.write().unwrap_or_else(std::sync::PoisonError::into_inner) = record.clone();
        Ok(record)
    }

    /// Its agent, when it is awake.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.link.borrow().clone()
    }

    /// Its agent; wakes it when it is asleep.
    pub async fn wake(&self) -> Result<Arc<Link>, ApiError> {
        match self.link() {
            Some(link) => Ok(link),
            None => self.ask(Message::Wake).await,
        }
    }

    /// Its agent after a request to the one we knew failed: a dead one is buried first.
    pub async fn wake_again(&self) -> Result<Arc<Link>, ApiError> {
        self.ask(Message::Wake).await
    }

    /// Ends its sessions in order and puts it to sleep. False when it was asleep already.
    pub async fn stop(&self, grace: Duration) -> Result<bool, ApiError> {
        self.ask(|reply| Message::Stop(grace, reply)).await
    }

    /// Puts it to sleep, does the work, and leaves it cold.
    pub async fn asleep(&self, work: Work) -> Result<(), ApiError> {
        self.ask(|reply| Message::Asleep(work, reply)).await
    }

    /// Ends it for good. Its folder has been renamed away already; it is removed here.
    pub async fn destroy(&self) -> Result<(), ApiError> {
        self.ask(Message::Destroy).await
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T, ApiError>>) -> Message,
    ) -> Result<T, ApiError> {
        let gone = || ApiError::not_found("sprite_not_found", "sprite not found");
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(message(reply)).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The task behind a sprite.
struct Life {
    host: Arc<Host>,
    dir: PathBuf,
    id: String,
    mailbox: mpsc::Sender<Message>,
    link: watch::Sender<Option<Arc<Link>>>,
    sprite: std::sync::Weak<Sprite>,
}

impl Life {
    async fn run(self, mut messages: mpsc::Receiver<Message>, agent_is_dead: bool) {
        if agent_is_dead {
            self.bury(&self.dir).await;
        }
        // A caller that has gone does not want its answer.
        while let Some(message) = messages.recv().await {
            match message {
                Message::Wake(reply) => {
                    let _ = reply.send(self.wake().await);
                }
                Message::Stop(grace, reply) => {
                    let was_awake = self.stop(&self.dir, grace).await;
                    let _ = reply.send(Ok(was_awake));
                }
                Message::Asleep(work, reply) => {
                    self.stop(&self.dir, Duration::from_secs(2)).await;
                    let outcome = tokio::task::spawn_blocking(work).await.map_err(ApiError::internal);
                    let _ = reply.send(outcome.and_then(|outcome| outcome));
                }
                Message::Destroy(reply) => {
                    let trash = self.host.trash(&self.id);
                    self.stop(&trash, Duration::from_secs(1)).await;
                    let removed = tokio::task::spawn_blocking(move || files::remove_tree(&trash)).await;
                    let outcome = removed.map_err(io::Error::other).and_then(|outcome| outcome);
                    let _ =
                        reply.send(outcome.map_err(|error| ApiError::internal(format!("removing a sprite: {error}"))));
                    return;
                }
                Message::Died(pid) => {
                    let known = self.link.borrow().as_ref().is_some_and(|link| link.record.pid == pid);
                    if known {
                        tracing::warn!(sprite = self.id, "an agent ended unexpectedly");
                        self.bury(&self.dir).await;
                    }
                }
            }
        }
    }

    async fn wake(&self) -> Result<Arc<Link>, ApiError> {
        let current = self.link.borrow().clone();
        if let Some(link) = current {
            if link.is_alive() {
                return Ok(link);
            }
            self.bury(&self.dir).await;
        }
        let sprite =
            self.sprite.upgrade().ok_or_else(|| ApiError::not_found("sprite_not_found", "sprite not found"))?;
        let record = sprite.record();
        if record.isolation != self.host.plan.mode {
            return Err(ApiError::unavailable(
                "isolation_changed",
                format!("this sprite was made in {} mode, which this host does not give now", record.isolation),
            ));
        }
        let failed = |error: io::Error| {
            ApiError::unavailable("sprite_start_failed", "the sprite could not be started; the runner's log says why")
                .detail(error)
        };
        let config = self.configure(&record).map_err(failed)?;
        let link =
            Link::start(&config, self.dir.join("logs/agent.log"), &self.host.group(&self.id)).await.map_err(failed)?;
        link.record.write(&self.dir).map_err(failed)?;
        if let Err(error) = sprite.update(|record| record.last_running_at = Some(now())) {
            tracing::warn!(%error, "a sprite's record could not be written");
        }
        self.awake(link);
        self.link.borrow().clone().ok_or_else(|| ApiError::internal("a link vanished"))
    }

    fn configure(&self, record: &Record) -> io::Result<Config> {
        let settings = &self.host.settings;
        let runtime = self.host.runtime_of(&record.id);
        files::create_private_dir(&runtime)?;
        files::create_private_dir(&self.dir.join("logs"))?;
        Ok(Config {
            sprite_id: record.id.clone(),
            disk: self.dir.join("disk"),
            sessions: self.dir.join("sessions"),
            socket: runtime.join("agent.sock"),
            secret: random_hex(32)?,
            marker: self.host.marker(&record.id),
            environment: record.environment.clone().into_iter().collect(),
            journal_ceiling: settings.journal_max,
            grace_seconds: settings.session_grace.as_secs(),
            replay: settings.replay,
            exit_u32: settings.exit_u32,
            control: settings.control,
            max_file: settings.max_file,
            disk_floor: self.host.disk_floor(),
            log: settings.log.clone(),
        })
    }

    /// Makes a link known, and watches over it.
    fn awake(&self, link: Link) {
        let link = Arc::new(link);
        self.link.send_replace(Some(link.clone()));
        let mailbox = self.mailbox.clone();
        tokio::spawn(async move {
            link.hold_lease().await;
            // A sprite that is gone needs no news.
            let _ = mailbox.send(Message::Died(link.record.pid)).await;
        });
        self.host.changed();
    }

    /// Ends the agent in order, then whatever it may have left.
    async fn stop(&self, dir: &Path, grace: Duration) -> bool {
        let link = self.link.borrow().clone();
        let Some(link) = link else { return false };
        let path = format!("/-/stop?grace={}ms", grace.as_millis());
        let asked = async { link.call(Method::POST, &path).await?.collect().await.map_err(io::Error::other) };
        match timeout(grace + STOP_MARGIN, asked).await {
            Ok(Ok(_)) => {}
            outcome => tracing::warn!(sprite = self.id, ?outcome, "an agent did not stop when asked"),
        }
        self.bury(dir).await;
        true
    }

    /// Makes sure that neither agent nor process of the sprite lives, and forgets the agent.
    async fn bury(&self, dir: &Path) {
        let link = self.link.send_replace(None);
        let (dir, marker) = (dir.to_owned(), self.host.marker(&self.id));
        let record = link.map(|link| link.record.clone()).or_else(|| AgentRecord::read(&dir));
        let left = tokio::task::spawn_blocking(move || {
            let group = record.as_ref().and_then(|record| record.cgroup.clone());
            if let Some(record) = record {
                crate::sys::proc::kill_all(Duration::from_secs(5), || {
                    Some(record.pid).filter(|pid| crate::sys::proc::is_alive(*pid, record.start)).into_iter().collect()
                });
            }
            let left = leftovers::kill(&marker, &dir.join("sessions"), group.as_deref());
            AgentRecord::remove(&dir);
            left
        })
        .await;
        if !matches!(left, Ok(0)) {
            tracing::error!(sprite = self.id, ?left, "processes of a sprite could not be killed");
        }
        let runtime = self.host.runtime_of(&self.id);
        let _ = std::fs::remove_file(runtime.join("agent.sock"));
        let _ = std::fs::remove_dir(&runtime);
        self.host.changed();
    }
}

/// Makes the folder of a new sprite. `AlreadyExists` when the name is taken: mkdir is the uniqueness check.
pub fn create_dirs(dir: &Path, record: &Record) -> io::Result<()> {
    std::fs::create_dir(dir)?;
    let fill = || {
        files::create_private_dir(&dir.join("logs"))?;
        files::create_private_dir(&dir.join("sessions"))?;
        files::create_private_dir(&dir.join("checkpoints"))?;
        sandbox::make_disk(&dir.join("disk"))?;
        record.write(dir)
    };
    fill().inspect_err(|_| {
        // Half a sprite must not take the name; a start would clean it as well.
        let _ = files::remove_tree(dir);
    })
}
