//! A control group for a sprite's processes, where this user may make one: the one sign that no process can shed.
//!
//! It limits nothing (yet); it only answers "who is left?" when an agent is dead. Where the host gives none, the other
//! signs have to do (`sprite::leftovers`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Makes a group below our own and puts a process into it. Its future children are born there.
pub fn adopt(name: &str, pid: i32) -> io::Result<PathBuf> {
    let group = own_group()?.join(name);
    match fs::create_dir(&group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match fs::write(group.join("cgroup.procs"), pid.to_string()) {
        Ok(()) => Ok(group),
        Err(error) => {
            remove(&group);
            Err(error)
        }
    }
}

/// Who is in it. A group that is gone has nobody.
pub fn members(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Removes an empty group. A process that has just died is counted for a moment longer. Blocks for 100 ms at most.
pub fn remove(group: &Path) {
    for _ in 0..20 {
        match fs::remove_dir(group) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(%error, "a control group stays");
                return;
            }
            _ => return,
        }
    }
    tracing::debug!("a control group stays: it is not empty");
}

/// Our own group in the unified hierarchy, wherever that is mounted.
fn own_group() -> io::Result<PathBuf> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "no unified control groups");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // Fields of a line: … root mount-point options … - type source options.
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        (after.starts_with("cgroup2 ") && fields.get(3) == Some(&"/")).then(|| fields.get(4).copied()).flatten()
    });
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new(mount.ok_or_else(none)?).join(path.ok_or_else(none)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_and_its_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        // Where the host gives no group there is nothing to test.
        if let Ok(group) = adopt(&format!("fountain-test-{pid}"), pid) {
            assert_eq!(members(&group), [pid]);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(members(&group).is_empty());
            remove(&group);
            assert!(!group.exists());
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
