//! What a command is started with: its environment, its directory, and where its program may be.
//!
//! Layers, lowest first: the sprite's create-time `environment`, the base (wire/exec.md §8.4), the request's own `env`;
//! the last of each key wins. Nothing of the daemon's own environment gets in.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::sandbox::paths::Paths;
use crate::wire::exec::Command;

/// Directories of the base PATH behind the sprite's own.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Everything but the descriptors of a start.
#[derive(Debug)]
pub struct Prepared {
    /// Candidates for the executable, in order.
    pub programs: Vec<CString>,
    /// argv.
    pub argv: Vec<CString>,
    /// Environment.
    pub env: Vec<CString>,
    /// Working directory on the host.
    pub dir: PathBuf,
    /// Working directory as the API shows it.
    pub workdir: String,
}

/// Prepares a command. `marker` is the entry by which a dead agent's processes are found.
pub fn prepare(command: &Command, paths: &Paths, created_with: &[(String, String)], marker: &str) -> Prepared {
    let workdir = paths.resolve(command.dir.as_deref().unwrap_or_default(), None);
    let dir = paths.to_host(&workdir);
    let env = environment(command, paths, created_with, marker);
    let path = env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or_default().to_vec();
    let program = paths.rewrite(&command.path);
    let programs = if program.contains(&b'/') {
        vec![program.to_vec()]
    } else {
        path.split(|byte| *byte == b':')
            .map(|dir| if dir.is_empty() { b".".as_slice() } else { dir })
            .map(|dir| [dir, b"/", &program].concat())
            .collect()
    };
    Prepared {
        programs: programs.into_iter().filter_map(c_string).collect(),
        argv: command.argv.iter().map(|arg| paths.rewrite(arg).into_owned()).filter_map(c_string).collect(),
        env: env.into_iter().filter_map(c_string).collect(),
        workdir: workdir.to_string_lossy().into_owned(),
        dir,
    }
}

/// NUL bytes were refused when the request was read; nothing is dropped here in practice.
fn c_string(bytes: Vec<u8>) -> Option<CString> {
    CString::new(bytes).ok()
}

fn environment(command: &Command, paths: &Paths, created_with: &[(String, String)], marker: &str) -> Vec<Vec<u8>> {
    let home = paths.home();
    let base = [
        ("HOME", home.as_os_str().as_bytes().to_vec()),
        ("USER", b"sprite".to_vec()),
        ("LOGNAME", b"sprite".to_vec()),
        ("SHELL", b"/bin/bash".to_vec()),
        ("PATH", [bin(home).as_os_str().as_bytes(), b":", SYSTEM_PATH.as_bytes()].concat()),
        ("LANG", b"C.UTF-8".to_vec()),
        // `npm install -g` without sudo: its programs land in ~/.local/bin (wire/fountain.md §8.1).
        ("NPM_CONFIG_PREFIX", home.join(".local").as_os_str().as_bytes().to_vec()),
    ];
    let terminal = command.tty.then(|| ("TERM", b"xterm-256color".to_vec()));
    let lower = created_with.iter().map(|(key, value)| (key.as_bytes(), paths.rewrite(value.as_bytes()).into_owned()));
    let base = base.into_iter().chain(terminal).map(|(key, value)| (key.as_bytes(), value));
    let upper = command.env.iter().filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        Some((&entry[..at], paths.rewrite(&entry[at + 1..]).into_owned()))
    });

    let mut order: Vec<&[u8]> = Vec::new();
    let mut values: HashMap<&[u8], Vec<u8>> = HashMap::new();
    for (key, value) in lower.chain(base).chain(upper).filter(|(key, _)| !key.is_empty()) {
        if values.insert(key, value).is_none() {
            order.push(key);
        }
    }
    let entries = order.iter().map(|key| [key, b"=".as_slice(), &values[key]].concat());
    entries.chain([marker.as_bytes().to_vec()]).collect()
}

/// `~/.local/bin`, the first place a program is looked for.
fn bin(home: &Path) -> PathBuf {
    home.join(".local/bin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(command: Command) -> Prepared {
        prepare(
            &command,
            &Paths::new("/s/disk".into()),
            &[("LOW".into(), "1".into()), ("HOME".into(), "/x".into())],
            "M=1",
        )
    }

    fn entries(prepared: &Prepared) -> Vec<String> {
        prepared.env.iter().map(|entry| entry.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_last_of_each_key_wins_and_the_base_lies_between() {
        let command = Command {
            argv: vec![b"env".to_vec()],
            path: b"env".to_vec(),
            env: vec![b"A=1".to_vec(), b"A=2=3".to_vec(), b"E=".to_vec(), b"P=/home/sprite/x:/home/sprites".to_vec()],
            tty: true,
            ..Command::default()
        };
        let prepared = prepared(command);
        let entries = entries(&prepared);
        for expected in
            ["LOW=1", "HOME=/s/disk/home/sprite", "A=2=3", "E=", "TERM=xterm-256color", "M=1", "USER=sprite"]
        {
            assert_eq!(entries.iter().filter(|entry| *entry == expected).count(), 1, "{expected} in {entries:?}");
        }
        assert!(entries.contains(&"P=/s/disk/home/sprite/x:/home/sprites".to_owned()));
        assert_eq!(entries.iter().filter(|entry| entry.starts_with("A=")).count(), 1);
    }

    #[test]
    fn a_program_is_looked_for_on_the_final_path() {
        let command = Command {
            argv: vec![b"x".to_vec()],
            path: b"x".to_vec(),
            env: vec![b"PATH=/a::b".to_vec()],
            ..Command::default()
        };
        let programs: Vec<_> = prepared(command).programs.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        assert_eq!(programs, ["/a/x", "./x", "b/x"]);
        let command = Command {
            argv: vec![b"x".to_vec()],
            path: b"./x".to_vec(),
            dir: Some(b"sub".to_vec()),
            ..Command::default()
        };
        let prepared = prepared(command);
        assert_eq!(prepared.programs, [CString::new("./x").unwrap()]);
        assert_eq!((prepared.dir, prepared.workdir.as_str()), ("/s/disk/home/sprite/sub".into(), "/home/sprite/sub"));
    }
}
