//! One sprite's record, `sprite.json`, and where everything of a sprite lies.
//!
//! ```text
//! <state>/sprites/<org>/<name>/  sprite.json  agent.json  checkpoints/  sessions/  disk/  logs/
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files;

/// What is stored of a sprite.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// A UUID, new at every create, stable over sleep and restore.
    pub id: String,
    /// Unique in its org.
    pub name: String,
    /// The org of the token that made it.
    pub org: String,
    /// Eight characters that make its URL unguessable.
    pub url_suffix: String,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub updated_at: String,
    /// `auth`, and `private_access` when it was given.
    pub url_settings: Map<String, Value>,
    /// Labels, in the order given.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Environment below the base of every command.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Sizes, as asked for; advisory.
    #[serde(default)]
    pub config: Option<Value>,
    /// The isolation mode, for life.
    pub isolation: String,
    /// When it last became running.
    #[serde(default)]
    pub last_running_at: Option<String>,
}

impl Record {
    /// Reads the record in a sprite's folder.
    pub fn read(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join("sprite.json"))?)?)
    }

    /// Writes it.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        files::write_atomic(&dir.join("sprite.json"), &serde_json::to_vec_pretty(self)?)
    }
}

/// The agent of an awake sprite, `agent.json`: how a restarted runner finds it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Its pid.
    pub pid: i32,
    /// Its start time, so that a recycled pid is not taken for it.
    pub start: u64,
    /// Its socket.
    pub socket: PathBuf,
    /// What its socket asks for.
    pub secret: String,
    /// The control group that it and its processes are in, where the host gives one.
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
}

impl AgentRecord {
    /// Reads the record; `None` when there is none.
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.join("agent.json")).ok()?).ok()
    }

    /// Writes it.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        files::write_atomic(&dir.join("agent.json"), &serde_json::to_vec(self)?)
    }

    /// Removes it.
    pub fn remove(dir: &Path) {
        if let Err(error) = std::fs::remove_file(dir.join("agent.json"))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "an agent's record could not be removed");
        }
    }
}

/// Now, as every record and answer writes it.
pub fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}
