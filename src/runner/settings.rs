//! The settings: one table from which flags, environment variables, the file's keys and the README's table all come.
//!
//! Flags win over `FOUNTAIN_RUNNER_*`, which win over the file, which wins over the defaults. Every value is text until
//! it is read into `Settings`; a key that nobody knows is refused, and so is a value that cannot be read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::agent::ControlMode;
use crate::wire::duration;

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Key in the file; flag and variable follow from it.
    pub key: &'static str,
    /// What it is when nobody says otherwise, as text. Empty: decided at start.
    pub default: &'static str,
    /// What a value looks like.
    pub value: &'static str,
    /// One sentence.
    pub help: &'static str,
}

/// Every setting, in the order of the documentation.
pub const TABLE: &[Setting] = &[
    Setting {
        key: "listen",
        default: "127.0.0.1:7878",
        value: "ADDR:PORT",
        help: "Where the API is served; port 0 takes any free one",
    },
    Setting {
        key: "state",
        default: "",
        value: "DIR",
        help: "Where everything is kept: /var/lib/fountain for root, else ~/.local/share/fountain",
    },
    Setting {
        key: "isolation",
        default: "auto",
        value: "MODE",
        help: "What a sprite is: auto or plain; root, subuid and single are not in this version",
    },
    Setting {
        key: "log",
        default: "info",
        value: "FILTER",
        help: "Log level, or levels by target: info,fountain::agent=debug",
    },
    Setting {
        key: "plain_http",
        default: "false",
        value: "BOOL",
        help: "Allow a non-loopback address without TLS: tokens and data are readable on the way",
    },
    Setting {
        key: "tls_cert",
        default: "",
        value: "FILE",
        help: "Certificate chain in PEM; with tls_key the API is served over TLS",
    },
    Setting { key: "tls_key", default: "", value: "FILE", help: "Private key in PEM" },
    Setting {
        key: "url_domain",
        default: "localhost",
        value: "DOMAIN",
        help: "Domain of sprite URLs: <name>-<suffix>.DOMAIN",
    },
    Setting {
        key: "replay",
        default: "full",
        value: "full|tail:SIZE",
        help: "Output replayed on attach; current Fountain releases expect tail:16KiB for agents that serve many turns",
    },
    Setting {
        key: "exit_u32",
        default: "false",
        value: "BOOL",
        help: "Send the older contract's four-byte exit frame after the usual one",
    },
    Setting {
        key: "control",
        default: "auto",
        value: "auto|on|off",
        help: "Who is served the control channel; auto refuses the Go and JavaScript SDKs, which misbehave there",
    },
    Setting {
        key: "journal_max",
        default: "1GiB",
        value: "SIZE",
        help: "Output kept of one session; beyond it the oldest goes",
    },
    Setting {
        key: "session_grace",
        default: "10m",
        value: "DURATION",
        help: "How long a finished session can still be attached",
    },
    Setting {
        key: "max_file",
        default: "16GiB",
        value: "SIZE",
        help: "The largest file that can be written over the API",
    },
    Setting {
        key: "disk_floor",
        default: "",
        value: "SIZE",
        help: "Free space below which create, checkpoint and file writes are refused; 5 % of the disk, 2 GiB at most",
    },
    Setting {
        key: "checkpoints_max",
        default: "32",
        value: "COUNT",
        help: "Checkpoints of one sprite; at the limit, create fails",
    },
    Setting {
        key: "checkpoint_bytes_max",
        default: "0",
        value: "SIZE",
        help: "Bytes of all checkpoints of one sprite; 0 is no limit",
    },
    Setting {
        key: "pause_max",
        default: "60s",
        value: "DURATION",
        help: "The longest a checkpoint may pause a sprite's processes",
    },
];

/// How much output a client gets on attach.
pub type Replay = Option<u64>;

/// The settings, read.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the API is served.
    pub listen: SocketAddr,
    /// The state folder.
    pub state: PathBuf,
    /// The isolation asked for.
    pub isolation: String,
    /// Log filter.
    pub log: String,
    /// Whether plain HTTP is allowed off loopback.
    pub plain_http: bool,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Domain of sprite URLs.
    pub url_domain: String,
    /// Replay on attach.
    pub replay: Replay,
    /// The older exit frame.
    pub exit_u32: bool,
    /// The control channel.
    pub control: ControlMode,
    /// Bytes of journal per session.
    pub journal_max: u64,
    /// Grace of finished sessions.
    pub session_grace: Duration,
    /// Largest file.
    pub max_file: u64,
    /// Free bytes to keep; decided by the disk when absent.
    pub disk_floor: Option<u64>,
    /// Checkpoints per sprite.
    pub checkpoints_max: usize,
    /// Bytes of checkpoints per sprite.
    pub checkpoint_bytes_max: Option<u64>,
    /// The longest pause.
    pub pause_max: Duration,
}

/// Adds a flag for every setting.
pub fn with_flags(command: Command) -> Command {
    let command = TABLE.iter().fold(command, |command, setting| {
        let mut arg = Arg::new(setting.key)
            .long(setting.key.replace('_', "-"))
            .env(variable(setting.key))
            .value_name(setting.value)
            .hide_env(true)
            .help(match setting.default {
                "" => setting.help.to_owned(),
                default => format!("{} [default: {default}]", setting.help),
            });
        if setting.value == "BOOL" {
            arg = arg.num_args(0..=1).default_missing_value("true");
        }
        command.arg(arg)
    });
    command.arg(
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("FOUNTAIN_RUNNER_CONFIG")
            .hide_env(true)
            .help("Settings file [default: /etc/fountain/runner.toml for root, else ~/.config/fountain/runner.toml]"),
    )
}

/// The environment variable of a setting.
pub fn variable(key: &str) -> String {
    format!("FOUNTAIN_RUNNER_{}", key.to_uppercase())
}

/// Reads the settings from flags and environment, the file, and the defaults. The error is a sentence for the user.
pub fn resolve(matches: &ArgMatches) -> Result<Settings, String> {
    let file = read_file(matches.get_one::<String>("config").map(PathBuf::from))?;
    let text = |key: &str| -> String {
        let given =
            matches.get_one::<String>(key).filter(|_| matches.value_source(key) != Some(ValueSource::DefaultValue));
        given.cloned().or_else(|| file.get(key).cloned()).unwrap_or_else(|| {
            TABLE.iter().find(|setting| setting.key == key).map_or("", |setting| setting.default).to_owned()
        })
    };
    let wrong = |key: &str, what: &str| {
        format!("the setting {key} is {what} (flag --{}, variable {})", key.replace('_', "-"), variable(key))
    };
    let flag = |key: &str| match text(key).to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" | "" => Ok(false),
        _ => Err(wrong(key, "neither true nor false")),
    };
    let bytes = |key: &str| size(&text(key)).ok_or_else(|| wrong(key, "no size like 16KiB, 2GiB or 1048576"));
    let time = |key: &str| duration::parse(&text(key)).ok_or_else(|| wrong(key, "no duration like 10s or 5m"));
    let path = |key: &str| Some(text(key)).filter(|text| !text.is_empty()).map(PathBuf::from);

    let tls = match (path("tls_cert"), path("tls_key")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err("tls_cert and tls_key go together: give both or neither".into()),
    };
    let replay = match text("replay").as_str() {
        "full" => None,
        other => match other.strip_prefix("tail:").and_then(size) {
            Some(tail) => Some(tail),
            None => return Err(wrong("replay", "neither full nor tail:SIZE")),
        },
    };
    let control = match text("control").as_str() {
        "auto" => ControlMode::Auto,
        "on" => ControlMode::On,
        "off" => ControlMode::Off,
        _ => return Err(wrong("control", "none of auto, on, off")),
    };
    let url_domain = text("url_domain");
    if url_domain.is_empty() || !url_domain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) {
        return Err(wrong("url_domain", "no domain"));
    }
    Ok(Settings {
        listen: text("listen").parse().map_err(|_| wrong("listen", "no ADDR:PORT like 127.0.0.1:7878"))?,
        state: absolute(&path("state").unwrap_or_else(default_state))?,
        isolation: text("isolation"),
        log: text("log"),
        plain_http: flag("plain_http")?,
        tls,
        url_domain,
        replay,
        exit_u32: flag("exit_u32")?,
        control,
        journal_max: bytes("journal_max")?.max(1 << 20),
        session_grace: time("session_grace")?,
        max_file: bytes("max_file")?,
        disk_floor: match text("disk_floor").as_str() {
            "" => None,
            _ => Some(bytes("disk_floor")?),
        },
        checkpoints_max: text("checkpoints_max").parse().map_err(|_| wrong("checkpoints_max", "no count"))?,
        checkpoint_bytes_max: Some(bytes("checkpoint_bytes_max")?).filter(|bytes| *bytes > 0),
        pause_max: time("pause_max")?,
    })
}

/// The state folder of this user.
pub fn default_state() -> PathBuf {
    match nix::unistd::geteuid().is_root() {
        true => "/var/lib/fountain".into(),
        false => user_dir("XDG_DATA_HOME", ".local/share").join("fountain"),
    }
}

fn user_dir(variable: &str, below_home: &str) -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(variable).unwrap_or_else(|| set("HOME").unwrap_or_else(|| "/".into()).join(below_home))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("the state folder {} cannot be used: {error}", path.display()))
}

/// Reads the settings file: a flat table of known keys. One that was not named may be absent.
fn read_file(named: Option<PathBuf>) -> Result<std::collections::HashMap<String, String>, String> {
    let usual = match nix::unistd::geteuid().is_root() {
        true => PathBuf::from("/etc/fountain/runner.toml"),
        false => user_dir("XDG_CONFIG_HOME", ".config").join("fountain/runner.toml"),
    };
    let path = named.clone().unwrap_or(usual);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(format!("the settings file {} cannot be read: {error}", path.display())),
    };
    let table: toml::Table =
        text.parse().map_err(|error| format!("the settings file {} is no TOML: {error}", path.display()))?;
    let mut values = std::collections::HashMap::new();
    for (key, value) in table {
        if !TABLE.iter().any(|setting| setting.key == key) {
            return Err(format!("the settings file {} has an unknown key {key}", path.display()));
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(_) | toml::Value::Boolean(_) => value.to_string(),
            _ => return Err(format!("in the settings file {}, {key} is no plain value", path.display())),
        };
        values.insert(key, text);
    }
    Ok(values)
}

/// Reads a size: bytes, or a number with `KiB`, `MiB`, `GiB`, `TiB` (or `K`, `M`, `G`, `T`).
pub fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        "t" | "tib" | "tb" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The table for the README, in Markdown.
pub fn markdown() -> String {
    let mut text = String::from("| setting | flag | variable | default | what |\n|---|---|---|---|---|\n");
    for Setting { key, default, value, help } in TABLE {
        let flag = format!("--{} {value}", key.replace('_', "-")).replace('|', "\\|");
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        text += &format!("| `{key}` | `{flag}` | `{}` | {default} | {help} |\n", variable(key));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(args: &[&str]) -> ArgMatches {
        with_flags(Command::new("x")).get_matches_from(["x"].iter().chain(args))
    }

    #[test]
    fn flags_win_over_the_file_and_unknown_keys_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("runner.toml");
        std::fs::write(&file, "replay = \"tail:16KiB\"\nexit_u32 = true\ncheckpoints_max = 3\n").unwrap();
        let config = file.to_str().unwrap();
        let settings = resolve(&matches(&["--config", config, "--checkpoints-max", "5", "--plain-http"])).unwrap();
        assert_eq!((settings.replay, settings.exit_u32), (Some(16 << 10), true));
        assert_eq!((settings.checkpoints_max, settings.plain_http), (5, true));
        assert_eq!(settings.session_grace, Duration::from_secs(600));
        std::fs::write(&file, "repaly = \"full\"\n").unwrap();
        assert!(resolve(&matches(&["--config", config])).unwrap_err().contains("unknown key repaly"));
        assert!(resolve(&matches(&["--listen", "here"])).unwrap_err().contains("listen"));
        assert!(resolve(&matches(&["--tls-cert", "x"])).unwrap_err().contains("tls_key"));
    }

    /// The README's table is this one. `UPDATE=1 cargo test readme` writes it.
    #[test]
    fn the_readme_has_every_setting() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("<!-- settings:begin -->\n", "<!-- settings:end -->");
        let from = text.find(begin).unwrap() + begin.len();
        let to = text.find(end).unwrap();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{}{}{}", &text[..from], markdown(), &text[to..])).unwrap();
            return;
        }
        assert_eq!(&text[from..to], markdown());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("16KiB"), Some(16384));
        assert_eq!(size("2 GiB"), Some(2 << 30));
        assert_eq!(size("12"), Some(12));
        assert_eq!(size("12 apples"), None);
        assert_eq!(size(""), None);
    }
}
