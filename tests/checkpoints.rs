//! Checkpoints when things go wrong: damage, a full disk, the limit, two at once, a kill in the middle. The sprite is then
//! as it was, and says so.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Options, Query, Reply, Runner, until};
use serde_json::{Value, json};

fn disk(runner: &Runner) -> PathBuf {
    runner.state().join("sprites/default/s")
}

async fn create(runner: &Runner, comment: &str) -> Reply {
    runner.post("/v1/sprites/s/checkpoint", json!({"comment": comment})).await
}

async fn restore(runner: &Runner, id: &str) -> Vec<Value> {
    runner.post(&format!("/v1/sprites/s/checkpoints/{id}/restore"), Value::Null).await.expect(200).lines()
}

/// The strictest reader: only `info`, then one last `complete` without an error key.
fn assert_complete(lines: &[Value]) {
    let (last, before) = lines.split_last().unwrap();
    assert_eq!(last["type"], "complete", "{lines:?}");
    for line in before {
        assert_eq!(line["type"], "info", "{lines:?}");
    }
    for line in lines {
        assert!(line["data"].is_string() && line.get("error").is_none() && line["time"].is_string(), "{line}");
    }
}

fn assert_failed(lines: &[Value], code: &str) {
    let last = lines.last().unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!(code)), "{lines:?}");
    assert!(last["error"].as_str().is_some_and(|text| text.contains("unchanged") || text.contains("space")), "{last}");
    assert!(lines.iter().all(|line| line["type"] != "complete"));
}

async fn content(runner: &Runner) -> String {
    runner.run("s", &Query::of(&["cat", "f"])).await.expect(0).out()
}

async fn write(runner: &Runner, text: &str) {
    runner.call("PUT", "/v1/sprites/s/fs/write?path=f").body(text.to_owned()).send().await.expect(200);
}

async fn ids(runner: &Runner) -> Vec<String> {
    let list = runner.get("/v1/sprites/s/checkpoints").await.expect(200).json();
    list.as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_archive_is_refused_and_the_sprite_is_as_it_was() {
    let runner = Runner::start();
    runner.create("s").await;
    write(&runner, "first").await;
    assert_complete(&create(&runner, "c").await.expect(200).lines());
    write(&runner, "second").await;
    let mut session = runner.exec("s", &Query::sh("echo here; cat").stdin()).await;
    session.until_stdout("here\n").await;

    let archive = disk(&runner).join("checkpoints/v1.tar.zst");
    let whole = fs::read(&archive).unwrap();
    let mut bent = whole.clone();
    let middle = bent.len() / 2;
    bent[middle] ^= 0x40;
    fs::write(&archive, &bent).unwrap();
    assert_failed(&restore(&runner, "v1").await, "checkpoint_damaged");
    fs::write(&archive, &whole[..whole.len() - 1]).unwrap();
    assert_failed(&restore(&runner, "v1").await, "checkpoint_damaged");
    let list = runner.get("/v1/sprites/s/checkpoints").await.expect(200).json();
    assert_eq!((&list[1]["id"], &list[1]["health"]), (&json!("v1"), &json!("mount_failed")));
    runner.post("/v1/sprites/s/checkpoints/v99/restore", Value::Null).await.expect(404);

    // Nothing happened to the sprite, its sessions included.
    assert_eq!(content(&runner).await, "second");
    session.eof().await;
    session.finish().await.expect(0);
    fs::write(&archive, &whole).unwrap();
    assert_complete(&restore(&runner, "v1").await);
    assert_eq!(content(&runner).await, "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_fails_a_checkpoint_and_leaves_nothing_of_it() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount a small file system");
        return;
    }
    let mut runner = Runner::start_with(Options::args(&["--disk-floor", "0"]));
    runner.create("s").await;
    write(&runner, "kept").await;
    runner.run("s", &Query::sh("head -c 8000000 /dev/urandom >big")).await.expect(0);
    let checkpoints = disk(&runner).join("checkpoints");
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&checkpoints).status().unwrap();
    assert!(mount.success());
    let lines = create(&runner, "too big").await.expect(200).lines();
    let listed = ids(&runner).await;
    let left = fs::read_dir(&checkpoints).unwrap().flatten().map(|entry| entry.path()).filter(|path| {
        path.extension().is_some_and(|end| end != "json" && end != "lock") && fs::metadata(path).unwrap().len() > 0
    });
    let left: Vec<PathBuf> = left.collect();
    assert!(Command::new("umount").arg("-l").arg(&checkpoints).status().unwrap().success());
    assert_failed(&lines, "disk_low");
    assert_eq!(listed, ["Current"]);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(content(&runner).await, "kept");
    runner.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_refuses_and_deletes_nothing() {
    let runner = Runner::start_with(Options::args(&["--checkpoints-max", "2"]));
    runner.create("s").await;
    for comment in ["a", "b"] {
        assert_complete(&create(&runner, comment).await.expect(200).lines());
    }
    let refused = create(&runner, "c").await.expect(409);
    assert_eq!(refused.code(), "checkpoint_limit");
    assert_eq!(ids(&runner).await, ["Current", "v2", "v1"]);
    runner.delete("/v1/sprites/s/checkpoints/v1").await.expect(204);
    assert_complete(&create(&runner, "c").await.expect(200).lines());
    assert_eq!(ids(&runner).await, ["Current", "v3", "v2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_are_done_one_after_another() {
    let runner = Runner::start();
    runner.create("s").await;
    write(&runner, "x").await;
    let comments: Vec<String> = (0..6).map(|n| format!("sandbox-operation:{n}")).collect();
    let all = futures_util::future::join_all(comments.iter().map(|comment| create(&runner, comment))).await;
    for reply in all {
        assert_complete(&reply.expect(200).lines());
    }
    let list = runner.get("/v1/sprites/s/checkpoints").await.expect(200).json();
    let mut seen: Vec<&str> =
        list.as_array().unwrap()[1..].iter().map(|entry| entry["comment"].as_str().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, comments);
    assert_eq!(ids(&runner).await, ["Current", "v6", "v5", "v4", "v3", "v2", "v1"]);
    let both = futures_util::future::join_all(["v1", "v2"].map(|id| restore(&runner, id))).await;
    both.iter().for_each(|lines| assert_complete(lines));
    assert_eq!(content(&runner).await, "x");
}

/// A writer that counts in two files, one after the other: a checkpoint taken while it stands still has them at most one
/// apart, and it never notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_of_one_moment_and_the_sprite_does_not_notice() {
    let runner = Runner::start();
    runner.create("s").await;
    runner.run("s", &Query::sh("mkdir d; for n in $(seq 1 3000); do echo $n >d/$n; done")).await.expect(0);
    let script = "n=0; until [ -e stop ]; do n=$((n+1)); echo $n >t; mv t aa; echo $n >t; mv t zz; [ $n != 50 ] || echo going; done; echo $n";
    let mut writer = runner.exec("s", &Query::sh(script).detachable()).await;
    writer.until_stdout("going\n").await;
    assert_complete(&create(&runner, "moment").await.expect(200).lines());
    runner.call("PUT", "/v1/sprites/s/fs/write?path=stop").body("").send().await.expect(200);
    let last: u64 = writer.finish().await.expect(0).out().lines().last().unwrap().parse().unwrap();
    assert_complete(&restore(&runner, "v1").await);
    let then = runner.run("s", &Query::of(&["cat", "aa", "zz"])).await.expect(0).out();
    let then: Vec<u64> = then.lines().map(|line| line.parse().unwrap()).collect();
    assert!(then.len() == 2 && then[0] - then[1] <= 1 && then[0] >= 50 && then[0] <= last, "{then:?}, {last}");
}

/// The runner dies while a checkpoint is being written: nobody stays frozen, and no half checkpoint is listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_dies_in_the_middle_freezes_nobody() {
    let mut runner = Runner::start();
    runner.create("s").await;
    runner.run("s", &Query::sh("head -c 300000000 /dev/urandom >big")).await.expect(0);
    let script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done";
    let mut ticker = runner.exec("s", &Query::sh(script).detachable()).await;
    let id = ticker.id().await;
    ticker.number().await;
    let partial = disk(&runner).join("checkpoints");
    {
        let working = create(&runner, "never");
        tokio::pin!(working);
        let begun = until("the archive to grow", || async {
            let sizes =
                fs::read_dir(&partial).ok()?.flatten().map(|entry| entry.metadata().map_or(0, |meta| meta.len()));
            (sizes.max()? > 1 << 20).then_some(())
        });
        tokio::select! {
            reply = &mut working => panic!("too fast to be killed: {reply:?}"),
            () = begun => {}
        }
        let killed = Command::new("kill").args(["-9", &runner.pid().to_string()]).status().unwrap();
        assert!(killed.success());
    }
    runner.kill9();
    runner.restart();
    assert_eq!(ids(&runner).await, ["Current"]);
    // The ticker goes on, and not only because the longest pause (a minute) is over.
    let back = Instant::now();
    let mut again = runner.attach("s", &id).await;
    let first = again.number().await;
    let mut now = first;
    while now < first + 300 {
        now = again.number().await;
    }
    assert!(back.elapsed() < Duration::from_secs(30), "{:?}", back.elapsed());
    assert_complete(&create(&runner, "now").await.expect(200).lines());
    assert_eq!(ids(&runner).await, ["Current", "v1"]);
}
