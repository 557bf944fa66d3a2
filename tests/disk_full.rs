//! A full disk under the journals: clients that keep up lose nothing, and whoever comes later is told what is missing.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Query, Runner};

/// A file system of two MiB, for as long as this lives.
struct Small(PathBuf);

impl Small {
    fn mount(dir: &Path) -> Self {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(dir).status().unwrap();
        assert!(status.success());
        Self(dir.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing_for_a_client_that_keeps_up() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: only root can mount a small file system");
        return;
    }
    let runner = Runner::start();
    runner.create("s").await;
    let _small = Small::mount(&runner.state().join("sprites/default/s/sessions"));
    let expected: String = (1..=2_000_000).map(|n| format!("{n}\n")).collect();
    let live = runner.run("s", &Query::sh("seq 1 2000000; exit 9")).await.expect(9);
    assert!(live.out() == expected, "{} of {} bytes", live.stdout().len(), expected.len());
    assert_eq!(live.err(), "");

    let id = live.info()["session_id"].as_str().unwrap().to_owned();
    let late = runner.attach("s", &id).await.finish().await.expect(9);
    let (out, err) = (late.out(), late.err());
    let missing = expected.len() - out.len();
    assert!(missing > 0);
    assert!(err.contains(&format!("{missing} bytes of output are missing here")), "{err}");
    // What is left is the beginning and the end, unharmed.
    let head = expected.bytes().zip(out.bytes()).take_while(|(a, b)| a == b).count();
    assert!(head > 1 << 20 && expected.ends_with(&out[head..]), "{head} of {}", out.len());
    // Small commands go on working, with their codes.
    runner.run("s", &Query::sh("exit 3")).await.expect(3);
}
