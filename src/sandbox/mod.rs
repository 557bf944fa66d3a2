//! What a sprite is on this host. Plain mode only, so far: a folder, and processes of the daemon's own user.
//!
//! The mode is chosen once, written into each sprite's record at create, and holds for its life (DESIGN.md §4).

pub mod paths;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name of the plain mode in records and settings.
pub const PLAIN: &str = "plain";

/// What this host gives its sprites.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The mode's name.
    pub mode: &'static str,
    /// Why, in one line for the log.
    pub reason: &'static str,
}

/// Chooses the mode. The error is a sentence with the fix in it.
pub fn plan(asked: &str) -> Result<Plan, String> {
    match asked {
        "auto" => Ok(Plan { mode: PLAIN, reason: "the only mode of this version; it does not isolate sprites" }),
        PLAIN => Ok(Plan { mode: PLAIN, reason: "asked for; it does not isolate sprites" }),
        "root" | "subuid" | "single" => Err(format!(
            "isolation {asked} is not in this version; start with --isolation plain to run sprites as folders of this user"
        )),
        other => Err(format!("isolation {other} is unknown; say auto or plain")),
    }
}

/// Refuses a state folder whose path cannot be put into commands: plain mode writes it where `/home/sprite` stands, also
/// inside shell scripts.
pub fn check_state_path(state: &Path) -> Result<(), String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    match state.as_os_str().as_bytes().iter().all(plain) {
        true => Ok(()),
        false => Err(format!(
            "the state folder {} has characters that plain mode cannot put into commands; use letters, digits and /._- only",
            state.display()
        )),
    }
}

/// Makes the empty disk of a new sprite: its home, with its own programs first on PATH, also in login shells.
pub fn make_disk(disk: &Path) -> io::Result<()> {
    let home = paths::Paths::new(disk.to_owned()).home().to_owned();
    std::fs::create_dir_all(home.join(".local/bin"))?;
    // /etc/profile of most systems replaces PATH. There is no .bash_logout: a stock one turns success into failure.
    let profile = "# This sprite's own programs come first.\nPATH=\"$HOME/.local/bin:$PATH\"\n";
    std::fs::write(home.join(".profile"), profile)
}
