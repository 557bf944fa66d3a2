//! Sessions: commands that outlive their clients.
//!
//! A session is an actor (input, signals, timer), an output task, and a journal that anyone may read. This file holds
//! what the rest of the agent sees of one, and the table of all.

mod actor;
mod cursor;
pub mod environment;
pub mod journal;
mod output;
mod rate;
pub mod record;
mod segment;
mod start;
mod stdin;
mod table;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, broadcast, mpsc, watch};

use super::ports::Listener;
use crate::wire::message;

pub use actor::{Control, Input};
pub use cursor::{Cursor, Next};
pub use journal::{Exit, Header, Journal};
pub use table::{Config, Sessions};

/// One session, running or finished.
#[derive(Debug)]
pub struct Session {
    /// Id, command, folder, terminal, creation time.
    pub header: Header,
    /// Its output and exit.
    pub journal: Arc<Journal>,
    /// The leader's pid; 0 when it never ran or belongs to an earlier agent.
    pub pid: i32,
    inputs: mpsc::Sender<Input>,
    controls: mpsc::Sender<Control>,
    /// The leader's exit code as soon as it is collected; the journal's exit may come later.
    exited: watch::Receiver<Option<u8>>,
    attached: watch::Sender<usize>,
    /// Columns in the upper half, rows in the lower.
    size: AtomicU32,
    /// Told when anything is attached to any session of the sprite.
    arrivals: Arc<Notify>,
    ports: Ports,
}

/// Listening sockets of a session's processes, and the news of them.
#[derive(Debug)]
struct Ports {
    open: Mutex<BTreeMap<u64, String>>,
    news: broadcast::Sender<String>,
}

impl Default for Ports {
    fn default() -> Self {
        Self { open: Mutex::default(), news: broadcast::Sender::new(NEWS) }
    }
}

/// Port messages that a client may be behind; older ones are left out, as clients use them as hints only.
const NEWS: usize = 16;

impl Session {
    /// Whether it is still listed: its leader has not ended.
    pub fn is_running(&self) -> bool {
        self.exited.borrow().is_none() && self.journal.exit().is_none()
    }

    /// Sends input; waits while the process takes none and the queue is full.
    pub async fn input(&self, input: Input) {
        // A finished session takes no input: dropped, as a closed pipe would.
        let _ = self.inputs.send(input).await;
    }

    /// Sends a client's request, in order with its input.
    pub async fn request(&self, control: Control) {
        if let Control::Resize(cols, rows) = control {
            self.size.store(u32::from(cols) << 16 | u32::from(rows), Ordering::Relaxed);
        }
        self.input(Input::Request(control)).await;
    }

    /// Sends a request that waits for nobody's input.
    pub async fn control(&self, control: Control) {
        let _ = self.controls.send(control).await;
    }

    /// Terminal columns and rows; zeros without a terminal.
    pub fn size(&self) -> (u16, u16) {
        let size = self.size.load(Ordering::Relaxed);
        ((size >> 16) as u16, size as u16)
    }

    /// Waits for the leader's exit code.
    pub async fn leader_exit(&self) -> u8 {
        let mut exited = self.exited.clone();
        match exited.wait_for(Option::is_some).await.map(|code| *code) {
            Ok(Some(code)) => code,
            _ => match self.journal.exit() {
                Some(exit) => exit.code,
                None => std::future::pending().await,
            },
        }
    }

    /// Counts a client for as long as the guard lives.
    pub fn attach(self: &Arc<Self>) -> Attachment {
        self.attached.send_modify(|count| *count += 1);
        self.arrivals.notify_one();
        Attachment(self.clone())
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, String>> {
        self.ports.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells every client that a process of the session listens.
    pub fn port_opened(&self, listener: &Listener, pid: i32) {
        let text = message::port(true, listener.port, &listener.address.to_string(), pid);
        self.opened().insert(listener.inode, text.clone());
        // Nobody attached: the next client is told when it comes.
        let _ = self.ports.news.send(text);
    }

    /// Tells every client that it does so no more.
    pub fn port_closed(&self, listener: &Listener, pid: i32) {
        self.opened().remove(&listener.inode);
        let _ = self.ports.news.send(message::port(false, listener.port, &listener.address.to_string(), pid));
    }

    /// What listens now, and what will.
    pub fn port_news(&self) -> (Vec<String>, broadcast::Receiver<String>) {
        let news = self.ports.news.subscribe();
        (self.opened().values().cloned().collect(), news)
    }

    /// Waits until no client is attached.
    pub async fn detached(&self) {
        // The sender is our own, so this cannot fail.
        let _ = self.attached.subscribe().wait_for(|count| *count == 0).await;
    }

    /// How many clients are attached.
    pub fn attached(&self) -> usize {
        *self.attached.borrow()
    }
}

/// A client of a session.
#[derive(Debug)]
pub struct Attachment(Arc<Session>);

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.attached.send_modify(|count| *count -= 1);
    }
}
