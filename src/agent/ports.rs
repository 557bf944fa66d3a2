//! Tells attached clients when a process of their session begins or ends to listen (wire/platform.md §6.1).
//!
//! The kernel's table of listening sockets is read once a second, and only while somebody is attached; owners are looked
//! up only when a socket is new. A daemon that has left its session's process tree belongs to no session.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use super::session::{Session, Sessions};
use crate::sys::proc;

/// How often the table is read.
const EVERY: Duration = Duration::from_secs(1);
/// State of a listening socket in the kernel's table.
const LISTEN: &str = "0A";

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listener {
    /// The socket's own number.
    pub inode: u64,
    /// Where it listens; a wildcard shows as loopback, which a client can dial.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// Watches for as long as the agent lives.
pub async fn watch(sessions: Arc<Sessions>) {
    let mut known: HashMap<Listener, Option<(i32, Arc<Session>)>> = HashMap::new();
    loop {
        if !sessions.any_attached() {
            sessions.somebody_attached().await;
        }
        let found = tokio::task::spawn_blocking(listeners).await.unwrap_or_default();
        if known.len() != found.len() || found.iter().any(|listener| !known.contains_key(listener)) {
            known = compare(known, found, &sessions).await;
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn compare(
    mut known: HashMap<Listener, Option<(i32, Arc<Session>)>>,
    found: HashSet<Listener>,
    sessions: &Sessions,
) -> HashMap<Listener, Option<(i32, Arc<Session>)>> {
    known.retain(|listener, owner| {
        if found.contains(listener) {
            return true;
        }
        if let Some((pid, session)) = owner {
            session.port_closed(listener, *pid);
        }
        false
    });
    let fresh: Vec<Listener> = found.into_iter().filter(|listener| !known.contains_key(listener)).collect();
    let wanted: HashSet<u64> = fresh.iter().map(|listener| listener.inode).collect();
    let owners = tokio::task::spawn_blocking(move || owners(&wanted)).await.unwrap_or_default();
    let running = sessions.running();
    for listener in fresh {
        let owner = owners.get(&listener.inode).and_then(|(pid, line)| {
            let session = running.iter().find(|session| line.contains(&session.pid))?;
            session.port_opened(&listener, *pid);
            Some((*pid, session.clone()))
        });
        known.insert(listener, owner);
    }
    known
}

/// Every listening TCP socket of this network namespace.
fn listeners() -> HashSet<Listener> {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|text| text.lines().skip(1).filter_map(parse_line).collect::<Vec<_>>())
        .collect()
}

fn parse_line(line: &str) -> Option<Listener> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if *fields.get(3)? != LISTEN {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    Some(Listener {
        inode: fields.get(9)?.parse().ok()?,
        address: parse_address(address)?,
        port: u16::from_str_radix(port, 16).ok()?,
    })
}

/// The table writes addresses as words in the machine's byte order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address: IpAddr = match text.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at * 8)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(if address.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { address })
}

/// For each of these sockets that one of our processes holds: its pid, and the pids it descends from or is in session of.
fn owners(wanted: &HashSet<u64>) -> HashMap<u64, (i32, Vec<i32>)> {
    let me = std::process::id() as i32;
    let mut owners = HashMap::new();
    for pid in proc::descendants(me) {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for entry in entries.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| wanted.contains(inode)) {
                owners.entry(inode).or_insert_with(|| (pid, lineage(pid)));
            }
        }
    }
    owners
}

fn lineage(pid: i32) -> Vec<i32> {
    let mut line = vec![pid];
    let mut at = pid;
    while let Some(stat) = proc::stat(at) {
        line.push(stat.session);
        if stat.parent <= 1 || line.len() > 256 {
            break;
        }
        line.push(stat.parent);
        at = stat.parent;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1";
        let expected = Listener { inode: 4242, address: Ipv4Addr::LOCALHOST.into(), port: 8080 };
        assert_eq!(parse_line(line), Some(expected));
        assert_eq!(parse_line(&line.replace("0100007F", "00000000")), Some(expected));
        assert_eq!(parse_line(&line.replace(" 0A ", " 01 ")), None);
        let six = line.replace("0100007F", "00000000000000000000000001000000");
        assert_eq!(parse_line(&six).map(|l| l.address), Some(Ipv6Addr::LOCALHOST.into()));
    }
}
