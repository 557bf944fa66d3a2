//! What changed below some paths, told in the words of `fs/watch` (wire/rest.md §2.10).
//!
//! Owns one inotify instance and turns its events into messages. Events mean what they mean to the Go library whose words
//! the wire uses: `rename` is the old name, and the new name is a `create`. Recursive subscriptions grow: a new folder is
//! watched first and then looked into, so that what was made in it before the watch is told all the same. Sans socket and
//! sans runtime; blocking, but only on the file system. Bounded: so many watches, so many messages at once, and whatever
//! is left out is said in an `error` message.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::ops::failure::{At, Failure};
use super::ops::{staged, timestamp};
use crate::sandbox::paths::Paths;

/// Folders and files that one socket may watch; each costs the kernel about 1 KiB.
const MAX_WATCHES: usize = 32_768;

/// Paths that one socket may be subscribed to.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// Messages made of one batch of events and the folders that it brought.
const MAX_MESSAGES: usize = 16_384;

/// Bytes of events that are read at once, about two thousand events.
const BATCH: usize = 64 << 10;

const VERB: &str = "watch";

/// A message to the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Message {
    /// The answer to every `subscribe`; `paths` are those that are watched now, as they were sent.
    Subscribed { paths: Vec<String> },
    /// The answer to every `unsubscribe`.
    Unsubscribed { paths: Vec<String> },
    /// Something changed.
    #[serde(rename_all = "camelCase")]
    Event {
        path: String,
        event: &'static str,
        timestamp: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        is_dir: bool,
    },
    /// Something could not be done or was left out; the socket stays open.
    Error { message: String },
}

impl Message {
    /// An error in one sentence.
    pub fn error(message: impl Into<String>) -> Self {
        Self::Error { message: message.into() }
    }
}

/// The watches of one socket.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
    paths: Paths,
    watches: HashMap<i32, Vec<Origin>>,
    subscriptions: Vec<Subscription>,
    next_id: u64,
    /// Cookies of our own temporary files, whose new name is a `write` to whoever watches.
    temps: HashSet<u32>,
    /// What was told from looking into new folders; its `create` may still wait in the kernel's queue.
    announced: HashSet<PathBuf>,
}

#[derive(Debug, Clone)]
struct Subscription {
    id: u64,
    api: PathBuf,
    host: PathBuf,
    recursive: bool,
}

/// Why a folder is watched. One inode has one watch, but it may be reached by several paths and subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    subscription: u64,
    /// The folder's path on the host, as the subscription reached it.
    path: PathBuf,
    /// The one name in the folder that is meant: files are watched by their folder, for an editor that replaces the file
    /// would leave a watch on the old one.
    only: Option<OsString>,
    /// The subscribed folder itself, not one below it.
    is_root: bool,
    recursive: bool,
}

/// Messages that are being gathered.
#[derive(Debug, Default)]
struct Out {
    messages: Vec<Message>,
    /// The last event told of each path, so that a thousand writes of one file are one message.
    last: HashMap<PathBuf, &'static str>,
    left_out: bool,
    unwatched: Option<Failure>,
}

/// One event as it was read, without its borrow of the buffer.
struct Raw {
    wd: i32,
    events: ReadFlags,
    cookie: u32,
    name: Option<OsString>,
}

impl Watcher {
    /// A watcher of nothing. Fails when the user has too many of them.
    pub fn new(paths: Paths) -> rustix::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self {
            inotify,
            paths,
            watches: HashMap::new(),
            subscriptions: Vec::new(),
            next_id: 0,
            temps: HashSet::new(),
            announced: HashSet::new(),
        })
    }

    /// A descriptor that is readable when [`Watcher::drain`] has something to tell.
    pub fn readiness(&self) -> rustix::io::Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.inotify, 0)
    }

    /// Watches `api` from now on. Messages say what could not be watched below it.
    pub fn subscribe(&mut self, api: &Path, recursive: bool) -> Result<Vec<Message>, Failure> {
        let host = self.paths.to_host(api);
        let meta = std::fs::metadata(&host).at(VERB, api)?;
        if let Some(old) = self.subscriptions.iter().position(|old| old.api == api) {
            if self.subscriptions[old].recursive == recursive {
                return Ok(Vec::new());
            }
            self.drop_subscription(old);
        }
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(Failure::invalid(VERB, api, "too many paths are watched; use a recursive subscription"));
        }
        let id = self.next_id;
        self.next_id += 1;
        let recursive = recursive && meta.is_dir();
        let subscription = Subscription { id, api: api.to_path_buf(), host: host.clone(), recursive };
        let origin = if meta.is_dir() {
            Origin { subscription: id, path: host.clone(), only: None, is_root: true, recursive }
        } else {
            let (Some(folder), Some(name)) = (host.parent(), host.file_name()) else {
                return Err(Failure::os(VERB, api, Errno::INVAL));
            };
            let only = Some(name.to_owned());
            Origin { subscription: id, path: folder.to_path_buf(), only, is_root: false, recursive }
        };
        self.add(origin).map_err(|errno| unwatched(api, errno))?;
        self.subscriptions.push(subscription);
        let mut out = Out::default();
        if recursive {
            self.grow(&host, id, &mut out, false);
        }
        Ok(out.finish())
    }

    /// Stops watching `api`.
    pub fn unsubscribe(&mut self, api: &Path) {
        if let Some(at) = self.subscriptions.iter().position(|subscription| subscription.api == api) {
            self.drop_subscription(at);
        }
    }

    /// Reads one batch of events; none when there are no more for now.
    pub fn drain(&mut self) -> rustix::io::Result<Option<Vec<Message>>> {
        let raws = self.read_batch()?;
        if raws.is_empty() {
            // Everything that was queued when a folder was looked into has been read.
            self.announced.clear();
            self.temps.clear();
            return Ok(None);
        }
        let mut out = Out::default();
        for raw in raws {
            self.take(&raw, &mut out);
        }
        Ok(Some(out.finish()))
    }

    fn read_batch(&self) -> rustix::io::Result<Vec<Raw>> {
        let mut buffer = vec![MaybeUninit::uninit(); BATCH];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut raws = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => raws.push(Raw {
                    wd: event.wd(),
                    events: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                }),
                Err(Errno::AGAIN) => return Ok(raws),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                return Ok(raws);
            }
        }
    }

    fn take(&mut self, raw: &Raw, out: &mut Out) {
        if raw.events.contains(ReadFlags::QUEUE_OVERFLOW) {
            out.error("events came faster than they were read and some were lost; list the folders again");
            self.look_again(out);
            return;
        }
        if raw.events.contains(ReadFlags::IGNORED) {
            self.watches.remove(&raw.wd);
            return;
        }
        let Some(origins) = self.watches.get(&raw.wd).cloned() else { return };
        match &raw.name {
            Some(name) => self.take_child(raw, name, &origins, out),
            None => take_self(&self.paths, raw, &origins, out),
        }
    }

    fn take_child(&mut self, raw: &Raw, name: &OsStr, origins: &[Origin], out: &mut Out) {
        if staged::is_temp(name.as_bytes()) {
            if raw.events.contains(ReadFlags::MOVED_FROM) {
                self.temps.insert(raw.cookie);
            }
            return;
        }
        let is_dir = raw.events.contains(ReadFlags::ISDIR);
        let replaced = raw.events.contains(ReadFlags::MOVED_TO) && self.temps.remove(&raw.cookie);
        let event = if replaced { Some("write") } else { child_event(raw.events) };
        let Some(event) = event else { return };
        let mut told: Vec<PathBuf> = Vec::new();
        for origin in origins.iter().filter(|origin| origin.only.as_deref().is_none_or(|only| only == name)) {
            let path = origin.path.join(name);
            if matches!(event, "chmod" | "write") && staged::is_nameless(&path) {
                continue;
            }
            let known = event == "create" && self.announced.contains(&path);
            if !known && !told.contains(&path) {
                out.event(&self.paths, &path, event, is_dir);
                told.push(path.clone());
            }
            if !(is_dir && origin.recursive) {
                continue;
            }
            match event {
                "create" if !known => self.grow(&path, origin.subscription, out, true),
                "rename" => self.forget(&path, origin.subscription),
                _ => {}
            }
        }
        if event != "create" {
            return;
        }
        for origin in origins {
            self.announced.remove(&origin.path.join(name));
        }
    }

    /// Watches the folder `root` and all below it for `subscription`; with `tell`, everything found in it is new.
    fn grow(&mut self, root: &Path, subscription: u64, out: &mut Out, tell: bool) {
        let mut todo = vec![root.to_path_buf()];
        while let Some(path) = todo.pop() {
            let is_root = self.subscriptions.iter().any(|known| known.id == subscription && known.host == path);
            let origin = Origin { subscription, path: path.clone(), only: None, is_root, recursive: true };
            match self.add(origin) {
                Ok(()) => {}
                // It went, or became something else, before it could be watched; that is told elsewhere.
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(errno) => {
                    out.unwatched.get_or_insert_with(|| unwatched(&self.paths.to_api(&path), errno));
                    if errno == Errno::NOSPC {
                        return;
                    }
                    continue;
                }
            }
            let Ok(entries) = std::fs::read_dir(&path) else { continue };
            for entry in entries.flatten() {
                if staged::is_temp(entry.file_name().as_bytes()) {
                    continue;
                }
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if tell && !out.is_full() {
                    out.event(&self.paths, &entry.path(), "create", is_dir);
                    self.announced.insert(entry.path());
                } else if tell {
                    out.left_out = true;
                }
                if is_dir {
                    todo.push(entry.path());
                }
            }
        }
    }

    fn add(&mut self, origin: Origin) -> rustix::io::Result<()> {
        if self.watches.len() >= MAX_WATCHES {
            return Err(Errno::NOSPC);
        }
        let mut flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE
            | WatchFlags::MOVE_SELF
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        if !origin.is_root && origin.only.is_none() {
            flags |= WatchFlags::DONT_FOLLOW;
        }
        let wd = inotify::add_watch(&self.inotify, &origin.path, flags)?;
        let origins = self.watches.entry(wd).or_default();
        if !origins.contains(&origin) {
            origins.push(origin);
        }
        Ok(())
    }

    /// Ends the watches at and below `path` that `subscription` has.
    fn forget(&mut self, path: &Path, subscription: u64) {
        self.retain(|origin| origin.subscription != subscription || !origin.path.starts_with(path));
    }

    fn drop_subscription(&mut self, at: usize) {
        let id = self.subscriptions.swap_remove(at).id;
        self.retain(|origin| origin.subscription != id);
    }

    fn retain(&mut self, keep: impl Fn(&Origin) -> bool) {
        let inotify = &self.inotify;
        self.watches.retain(|wd, origins| {
            origins.retain(&keep);
            if origins.is_empty() {
                // It fails when the folder is gone, and with it the watch.
                _ = inotify::remove_watch(inotify, *wd);
            }
            !origins.is_empty()
        });
    }

    /// After lost events: watches the folders that may have come meanwhile.
    fn look_again(&mut self, out: &mut Out) {
        for subscription in self.subscriptions.clone() {
            if subscription.recursive {
                self.grow(&subscription.host, subscription.id, out, false);
            }
        }
    }
}

/// What happened to an entry of a watched folder.
fn child_event(events: ReadFlags) -> Option<&'static str> {
    let table = [
        (ReadFlags::CREATE, "create"),
        (ReadFlags::MOVED_TO, "create"),
        (ReadFlags::MODIFY, "write"),
        (ReadFlags::DELETE, "remove"),
        (ReadFlags::MOVED_FROM, "rename"),
        (ReadFlags::ATTRIB, "chmod"),
    ];
    table.into_iter().find(|(flag, _)| events.contains(*flag)).map(|(_, event)| event)
}

/// What happened to a watched folder itself; the folders below a subscribed one are told of by their parents.
fn take_self(paths: &Paths, raw: &Raw, origins: &[Origin], out: &mut Out) {
    let event = if raw.events.intersects(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT) {
        "remove"
    } else if raw.events.contains(ReadFlags::MOVE_SELF) {
        "rename"
    } else if raw.events.contains(ReadFlags::ATTRIB) {
        "chmod"
    } else {
        return;
    };
    for origin in origins.iter().filter(|origin| origin.is_root) {
        out.event(paths, &origin.path, event, true);
    }
}

fn unwatched(api: &Path, errno: Errno) -> Failure {
    if errno == Errno::NOSPC {
        return Failure::invalid(VERB, api, "too many folders are watched (fs.inotify.max_user_watches); watch less");
    }
    Failure::os(VERB, api, errno)
}

impl Out {
    fn is_full(&self) -> bool {
        self.messages.len() >= MAX_MESSAGES
    }

    fn event(&mut self, paths: &Paths, host: &Path, event: &'static str, is_dir: bool) {
        if self.is_full() {
            self.left_out = true;
            return;
        }
        let before = self.last.insert(host.to_path_buf(), event);
        if before == Some(event) && matches!(event, "write" | "chmod") {
            return;
        }
        let meta = match event {
            "remove" | "rename" => None,
            _ => std::fs::symlink_metadata(host).ok(),
        };
        let now = jiff::Timestamp::now();
        self.messages.push(Message::Event {
            path: paths.to_api(host).to_string_lossy().into_owned(),
            event,
            timestamp: timestamp(now.as_second(), now.subsec_nanosecond().into()),
            size: meta.as_ref().map(std::fs::Metadata::len),
            is_dir: meta.as_ref().map_or(is_dir, std::fs::Metadata::is_dir),
        });
    }

    fn error(&mut self, message: &str) {
        self.messages.push(Message::error(message));
    }

    fn finish(mut self) -> Vec<Message> {
        if self.left_out {
            self.error("too much changed at once and some of it was left out; list the folders again");
        }
        if let Some(failure) = self.unwatched.take() {
            self.messages.push(Message::error(failure.text));
        }
        self.messages
    }
}
