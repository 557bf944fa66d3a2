//! Starts one process: `clone(CLONE_VM | CLONE_VFORK)` and raw system calls until `execve`.
//!
//! The child shares the agent's memory until it execs, so it copies no page tables (0.09 ms at any heap size, where a
//! fork takes 84 ms with 1 GiB of heap: CRATES.md §1.5) and reports its failure by writing to our stack. In exchange it
//! may touch nothing but its own stack and what it was given: no allocation, no lock, no glibc wrapper that would act
//! on the parent's threads. Every child starts with default signal dispositions, an empty mask, its own session, and
//! no descriptor beyond 0, 1 and 2, whatever the daemon itself was started with.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

/// Everything a child needs, prepared before the clone.
pub struct Plan<'a> {
    /// Paths to try in order, as `execvp` would; looked up in the child, behind its `chdir`.
    pub programs: &'a [CString],
    /// argv, as sent.
    pub argv: &'a [CString],
    /// `KEY=VALUE` entries.
    pub env: &'a [CString],
    /// Working directory.
    pub dir: &'a CStr,
    /// Descriptors that become 0, 1 and 2. None of them may itself be 0, 1 or 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether descriptor 0 is a terminal to be made the controlling one.
    pub terminal: bool,
    /// Soft and hard limit of open files for the child; the daemon's own is raised.
    pub open_files: (u64, u64),
}

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    /// The clone itself.
    Clone = 0,
    /// Session, terminal or descriptors.
    Prepare = 1,
    /// The working directory.
    Chdir = 2,
    /// Every candidate of the program.
    Exec = 3,
}

/// A start that failed, and why.
#[derive(Debug, Clone, Copy)]
pub struct SpawnError {
    /// The step.
    pub step: Step,
    /// The error of the kernel.
    pub errno: i32,
}

/// Size of the child's stack. It calls nothing deep; the kernel adds a signal frame at worst.
const STACK: usize = 64 * 1024;

/// What the child may read, as raw pointers, and the two words it may write.
struct Child {
    programs: *const *const libc::c_char,
    argv: *const *const libc::c_char,
    env: *const *const libc::c_char,
    dir: *const libc::c_char,
    stdio: [RawFd; 3],
    terminal: bool,
    open_files: [u64; 2],
    step: i32,
    errno: i32,
}

/// Starts a process and returns its pid. Blocks until it has exec'd or failed.
pub fn spawn(plan: &Plan) -> Result<i32, SpawnError> {
    let programs = pointers(plan.programs);
    let argv = pointers(plan.argv);
    let env = pointers(plan.env);
    let mut child = Child {
        programs: programs.as_ptr(),
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        dir: plan.dir.as_ptr(),
        stdio: plan.stdio.each_ref().map(AsRawFd::as_raw_fd),
        terminal: plan.terminal,
        open_files: [plan.open_files.0, plan.open_files.1],
        step: Step::Clone as i32,
        errno: 0,
    };
    let mut stack = vec![0u128; STACK / 16];

    // SAFETY: the signal sets are plain data that the calls initialise; blocking every signal of this thread keeps a
    // handler of ours from running in the child while it shares our memory.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    // SAFETY: the stack pointer is the 16-byte aligned end of a live buffer that outlives the child's use of it, since
    // CLONE_VFORK stops this thread until the child has exec'd or exited; `child` and all it points to live as long.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(run_child, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, (&raw mut child).cast())
    };
    let clone_errno = errno();
    // SAFETY: restores the mask that the first call stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };

    if pid < 0 {
        return Err(SpawnError { step: Step::Clone, errno: clone_errno });
    }
    // SAFETY: a read of our own field that the child, gone or exec'd by now, may have written.
    let failed = unsafe { (&raw const child.errno).read_volatile() };
    if failed == 0 {
        return Ok(pid);
    }
    // The child never became a program; nobody else knows its pid, so it is collected here.
    // SAFETY: waits for a child of this process by pid; the status is not wanted.
    unsafe { while libc::waitpid(pid, ptr::null_mut(), 0) < 0 && errno() == libc::EINTR {} }
    let step = match child.step {
        1 => Step::Prepare,
        2 => Step::Chdir,
        3 => Step::Exec,
        _ => Step::Clone,
    };
    Err(SpawnError { step, errno: failed })
}

/// Collects any one child that has ended: its pid and exit code, 128+n for signal n. `None` when none has.
///
/// The status word is read here rather than by nix, which knows no name for real-time signals and would report an
/// error for a child it has just collected: an exit code lost.
pub fn wait_any() -> std::io::Result<Option<(i32, u8)>> {
    loop {
        let mut status = 0;
        // SAFETY: waits without blocking for any child, into a word of our own.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        if pid == 0 {
            return Ok(None);
        }
        if pid > 0 {
            if libc::WIFEXITED(status) {
                return Ok(Some((pid, libc::WEXITSTATUS(status) as u8)));
            }
            if libc::WIFSIGNALED(status) {
                return Ok(Some((pid, 128u8.wrapping_add(libc::WTERMSIG(status) as u8))));
            }
            continue;
        }
        match errno() {
            libc::EINTR => {}
            libc::ECHILD => return Ok(None),
            other => return Err(std::io::Error::from_raw_os_error(other)),
        }
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The child, from clone to exec. Raw system calls only.
extern "C" fn run_child(arg: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `arg` is the `Child` of the stopped parent. Each call below is a plain system call on descriptors and
    // strings that the parent keeps alive; nothing allocates, locks or unwinds. `SYS_exit` ends only this process.
    unsafe {
        let child = arg.cast::<Child>();
        let fail = |step: Step, errno: i32| -> ! {
            (&raw mut (*child).step).write_volatile(step as i32);
            (&raw mut (*child).errno).write_volatile(errno);
            loop {
                libc::syscall(libc::SYS_exit, 127);
            }
        };

        // A zeroed kernel sigaction is SIG_DFL on every architecture. KILL and STOP refuse, which is fine.
        let default = [0u64; 8];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null_mut::<u64>(), 8usize);
        }
        if libc::syscall(libc::SYS_setsid) < 0 {
            fail(Step::Prepare, errno());
        }
        for (target, source) in (*child).stdio.iter().enumerate() {
            if libc::syscall(libc::SYS_dup3, *source, target, 0) < 0 {
                fail(Step::Prepare, errno());
            }
        }
        if (*child).terminal && libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY as usize, 0) < 0 {
            fail(Step::Prepare, errno());
        }
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_NOFILE,
            (*child).open_files.as_ptr(),
            ptr::null_mut::<u64>(),
        );
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) < 0 {
            // Kernels before 5.11 lack it. Every descriptor of ours is close-on-exec by itself; this was the second net.
            let _ = errno();
        }
        if libc::syscall(libc::SYS_chdir, (*child).dir) < 0 {
            fail(Step::Chdir, errno());
        }
        let empty = 0u64;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const empty, ptr::null_mut::<u64>(), 8usize);

        let mut worst = libc::ENOENT;
        let mut program = (*child).programs;
        while !(*program).is_null() {
            libc::syscall(libc::SYS_execve, *program, (*child).argv, (*child).env);
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                // Found, but not for us: keep looking, and say so if nothing better comes (as execvp does).
                libc::EACCES => worst = libc::EACCES,
                other => fail(Step::Exec, other),
            }
            program = program.add(1);
        }
        fail(Step::Exec, worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    fn c(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    fn run(programs: &[&str], argv: &[&str], dir: &str) -> Result<(i32, String), SpawnError> {
        let null = File::open("/dev/null").unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let programs: Vec<_> = programs.iter().map(|p| c(p)).collect();
        let argv: Vec<_> = argv.iter().map(|a| c(a)).collect();
        let dir = c(dir);
        let plan = Plan {
            programs: &programs,
            argv: &argv,
            env: &[c("A=b")],
            dir: &dir,
            stdio: [null.as_fd(), writer.as_fd(), null.as_fd()],
            terminal: false,
            open_files: (100, 200),
        };
        let pid = spawn(&plan)?;
        drop(writer);
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        let nix::sys::wait::WaitStatus::Exited(_, code) = status else { panic!("{status:?}") };
        Ok((code, out))
    }

    #[test]
    fn a_child_has_what_it_was_given_and_nothing_else() {
        let script =
            "echo $A; pwd; ulimit -n; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status; exit 3";
        let (code, out) = run(&["/nope/sh", "/bin/sh"], &["sh", "-c", script], "/usr").unwrap();
        assert_eq!(code, 3);
        // ls itself opens the folder: four names.
        assert_eq!(out, "b\n/usr\n100\n4\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    }

    #[test]
    fn failures_name_their_step() {
        let missing = run(&["/nope/a", "/nope/b"], &["a"], "/").unwrap_err();
        assert_eq!((missing.step, missing.errno), (Step::Exec, libc::ENOENT));
        let directory = run(&["/usr", "/nope/b"], &["a"], "/").unwrap_err();
        assert_eq!((directory.step, directory.errno), (Step::Exec, libc::EACCES));
        let chdir = run(&["/bin/sh"], &["a"], "/nope").unwrap_err();
        assert_eq!((chdir.step, chdir.errno), (Step::Chdir, libc::ENOENT));
    }
}
