//! Opens a terminal for a session.
//!
//! `portable-pty` makes and sizes it; nothing else of that crate is used, because its spawn, writer and child handle
//! lose errors, type into the terminal and flatten signals (CRATES.md §5, P1–P5). The slave is opened from the master
//! (TIOCGPTPEER), so no path of the sprite is ever resolved.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use portable_pty::{MasterPty, PtySize, native_pty_system};
use tokio::io::unix::AsyncFd;

/// A terminal: the master for life, and the slave for the child.
pub struct Pty {
    /// Sizes the terminal and knows its foreground group. Never asked for its reader or writer.
    pub master: Box<dyn MasterPty + Send>,
    /// The master as a descriptor of our own: non-blocking, close-on-exec.
    pub io: OwnedFd,
    /// The child's side.
    pub slave: OwnedFd,
}

/// A terminal size for `portable-pty`.
pub fn size((cols, rows): (u16, u16)) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

/// Opens a terminal of this size, ready before the child can run.
pub fn open(cols_rows: (u16, u16)) -> io::Result<Pty> {
    let pair = native_pty_system().openpty(size(cols_rows)).map_err(io::Error::other)?;
    let master_fd = pair.master.as_raw_fd().ok_or_else(|| io::Error::other("this PTY has no descriptor"))?;
    let slave = peer(master_fd)?;
    drop(pair.slave);

    // SAFETY: F_DUPFD_CLOEXEC returns a new descriptor that nobody else owns, or an error.
    let io = unsafe {
        let fd = libc::fcntl(master_fd, libc::F_DUPFD_CLOEXEC, 3);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    rustix::io::ioctl_fionbio(&io, true)?;
    let mut modes = rustix::termios::tcgetattr(&slave)?;
    modes.input_modes |= rustix::termios::InputModes::IUTF8;
    rustix::termios::tcsetattr(&slave, rustix::termios::OptionalActions::Now, &modes)?;
    Ok(Pty { master: pair.master, io, slave })
}

fn peer(master: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: an ioctl on a live master; it returns a fresh descriptor or an error. Numbers below 3 cannot come back,
    // since the daemon keeps 0, 1 and 2 open for life.
    unsafe {
        let fd = libc::ioctl(master, libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Watches a descriptor of ours for readiness. It must be non-blocking.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps its descriptor open, and always the same one, until the `AsyncFd` that owns it is dropped.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}
