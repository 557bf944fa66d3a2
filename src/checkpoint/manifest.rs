//! `vN.json`: what is known of a checkpoint without opening its archive, and what the catalogue remembers between two.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The version of archive and manifest that this program writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// How many ancestors a manifest names. A list of checkpoints must stay compact (wire/rest.md §3.4).
const MAX_HISTORY: usize = 32;

/// A checkpoint's manifest. An automatic one describes a kept tree, so what concerns an archive is empty there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`] of whoever wrote it.
    pub format: u32,
    /// `vN`, or `auto-N` for a tree that a restore replaced.
    pub id: String,
    /// As the client sent it, byte for byte.
    #[serde(default)]
    pub comment: String,
    /// RFC 3339 in UTC with six digits; rises from one checkpoint of a sprite to the next.
    pub create_time: String,
    /// The checkpoint that was created or restored last before this one.
    #[serde(default)]
    pub source_id: Option<String>,
    /// Ancestors, oldest first, `source_id` last.
    #[serde(default)]
    pub history: Vec<String>,
    /// Made by a restore, not by a client.
    #[serde(default)]
    pub is_auto: bool,
    /// Entries of the archive.
    #[serde(default)]
    pub file_count: u64,
    /// Content in it, holes not counted.
    #[serde(default)]
    pub data_bytes: u64,
    /// Size of the archive.
    #[serde(default)]
    pub archive_bytes: u64,
    /// SHA-256 of the archive in hex.
    #[serde(default)]
    pub sha256: String,
    /// Sockets that were left out.
    #[serde(default)]
    pub sockets_skipped: u64,
    /// Files that vanished while the tree was walked.
    #[serde(default)]
    pub files_vanished: u64,
    /// Files that changed their size while they were read.
    #[serde(default)]
    pub files_changed: u64,
    /// Directories on other file systems, whose content was left out.
    #[serde(default)]
    pub mounts_skipped: u64,
    /// The sprite's service definitions at that moment; the caller's to write and read.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub services: Value,
    /// The base that the tree lies over, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_id: Option<String>,
}

/// Whether a checkpoint looks restorable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Archive and manifest agree in size. The checksum is compared when it is restored.
    Good,
    /// The archive is missing, has another size, or the manifest cannot be read: `mount_failed` on the wire.
    Failed,
}

/// An entry of the catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// What its manifest says.
    pub manifest: Manifest,
    /// Whether it looks restorable.
    pub health: Health,
}

impl Checkpoint {
    /// The object of wire/rest.md §3.1: what is empty, false or good is left out.
    pub fn to_wire(&self) -> Value {
        let manifest = &self.manifest;
        let mut object = json!({"id": manifest.id, "create_time": manifest.create_time, "history": manifest.history});
        if !manifest.comment.is_empty() {
            object["comment"] = manifest.comment.as_str().into();
        }
        if let Some(source) = &manifest.source_id {
            object["source_id"] = source.as_str().into();
        }
        if manifest.is_auto {
            object["is_auto"] = true.into();
        }
        if self.health == Health::Failed {
            object["health"] = "mount_failed".into();
        }
        object
    }
}

/// `state.json`: what must not be forgotten when checkpoints are deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The number of the next checkpoint.
    pub next: u64,
    /// The number of the next automatic entry.
    pub next_auto: u64,
    /// The checkpoint last created or restored.
    pub current: Option<String>,
    /// Its ancestors.
    pub history: Vec<String>,
    /// The last `create_time` given.
    pub last_time: String,
}

impl Default for State {
    fn default() -> Self {
        Self { next: 1, next_auto: 1, current: None, history: Vec::new(), last_time: String::new() }
    }
}

impl State {
    /// The ancestors of what is made from the current tree now.
    pub(super) fn lineage(&self) -> Vec<String> {
        let mut lineage = self.history.clone();
        lineage.extend(self.current.clone());
        lineage.drain(..lineage.len().saturating_sub(MAX_HISTORY));
        lineage
    }

    /// A moment later than any given before, as text; the wall clock unless that went back.
    pub(super) fn stamp(&mut self) -> String {
        let now = Timestamp::now();
        let last = self.last_time.parse::<Timestamp>().ok();
        let step = jiff::SignedDuration::from_micros(1);
        let least = last.and_then(|last| last.checked_add(step).ok());
        let time = least.map_or(now, |least| least.max(now));
        self.last_time = format!("{time:.6}");
        self.last_time.clone()
    }

    /// Takes note of a manifest that was written just before a crash, and so is not in the state.
    pub(super) fn catch_up(&mut self, manifest: &Manifest) {
        let number = number(&manifest.id);
        if manifest.is_auto || number < Some(self.next) {
            return;
        }
        self.next = number.unwrap_or(0).saturating_add(1);
        self.current = Some(manifest.id.clone());
        self.history.clone_from(&manifest.history);
        if manifest.create_time > self.last_time {
            self.last_time.clone_from(&manifest.create_time);
        }
    }
}

/// The canonical id for what a client may write: `v3`, `3` and `checkpoints/v3` are one. `None` if it can be no id at
/// all, and so never a file name either.
pub fn canonical_id(text: &str) -> Option<String> {
    let text = text.strip_prefix("checkpoints/").unwrap_or(text);
    let (prefix, digits) = match text.strip_prefix("auto-") {
        Some(digits) => ("auto-", digits),
        None => ("v", text.strip_prefix('v').unwrap_or(text)),
    };
    let canonical = digits.parse::<u64>().is_ok_and(|number| number.to_string() == digits);
    canonical.then(|| format!("{prefix}{digits}"))
}

/// The number of `vN` or `auto-N`.
pub(super) fn number(id: &str) -> Option<u64> {
    id.strip_prefix("auto-").or_else(|| id.strip_prefix('v'))?.parse().ok()
}
