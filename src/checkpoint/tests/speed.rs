//! Not run by default: times against `tar c | zstd -1 -T0` and `zstd -d | tar x`, fastest of several rounds that take turns.
//!
//! `cargo test --release --lib checkpoint::tests::speed -- --ignored --nocapture`, and with `TMPDIR=/dev/shm` without the
//! disk. (On a disk our times hold what tar's do not: everything is synced when they end.)

use std::process::Command;
use std::time::Instant;

use super::*;

/// Rounds of each pair.
const ROUNDS: usize = 5;

/// 30 000 files of 0 to 8 KiB in 600 folders, as a project with its dependencies has.
fn small(root: &Path) {
    let text = b"export function wrap(value, index) { return { value, index, done: false }; }\n".repeat(120);
    for folder in 0..600_usize {
        let dir = root.join(format!("pkg{}/lib{folder}", folder % 40));
        fs::create_dir_all(&dir).unwrap();
        for index in 0..50_usize {
            let from = (folder * 31 + index * 7) % 1000;
            let length = (folder * 50 + index) * 2_654_435 % 8192;
            fs::write(dir.join(format!("file{index}.js")), &text[from..(from + length).min(text.len())]).unwrap();
        }
    }
}

/// One GiB, half of it noise and half of it text.
fn large(root: &Path) {
    fs::create_dir_all(root).unwrap();
    let mut file = File::create(root.join("mixed")).unwrap();
    let text = b"2026-01-01T00:00:00Z INFO request served in 12 ms path=/index.html status=200\n".repeat(14_000);
    let mut noise = vec![0; 1 << 20];
    for _ in 0..512 {
        getrandom::fill(&mut noise).unwrap();
        std::io::Write::write_all(&mut file, &noise).unwrap();
        std::io::Write::write_all(&mut file, &text[..1 << 20]).unwrap();
    }
}

/// Wall time and CPU time of `work`, its children's included. CPU time tells the truth on a busy machine too.
fn timed(work: impl FnOnce()) -> [f64; 2] {
    // What an earlier round left to be written must not be paid by this one.
    assert!(Command::new("sync").status().unwrap().success());
    let (begun, before) = (Instant::now(), cpu());
    work();
    [begun.elapsed().as_secs_f64(), cpu() - before]
}

fn cpu() -> f64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let usages = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].map(|who| getrusage(who).unwrap());
    let times = usages.iter().flat_map(|usage| [usage.user_time(), usage.system_time()]);
    times.map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum()
}

fn shell(dir: &Path, line: &str) {
    let status = Command::new("sh").args(["-c", line]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{line}");
}

fn race(name: &str, build: fn(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    build(&at("tree"));
    let mut best = [[f64::MAX; 2]; 6];
    let mut keep = |index: usize, times: [f64; 2]| {
        for (best, time) in best[index].iter_mut().zip(times) {
            *best = best.min(time);
        }
    };
    let clear = || walk::remove_tree(&at("out")).unwrap();
    for _ in 0..ROUNDS {
        let mut summary = Summary::default();
        keep(0, timed(|| summary = archive(&at("tree"), &at("ours"))));
        keep(1, timed(|| shell(dir.path(), "tar -C tree -c . | zstd -q -f -1 -T0 -o theirs")));
        keep(2, timed(|| shell(dir.path(), "tar -C tree -c . | zstd -q -f -1 -T0 -o theirs && sync theirs")));
        keep(3, timed(|| restore(&at("ours"), &summary, &at("out")).unwrap()));
        clear();
        keep(4, timed(|| shell(dir.path(), "mkdir out && zstd -q -d -c theirs | tar -C out -x")));
        clear();
        keep(5, timed(|| shell(dir.path(), "mkdir out && zstd -q -d -c theirs | tar -C out -x && sync -f out")));
        clear();
    }
    let size = |name: &str| fs::metadata(at(name)).unwrap().len() >> 20;
    println!("{name}: archive {} MiB, theirs {} MiB", size("ours"), size("theirs"));
    for (what, ours, theirs) in [
        ("create beside tar|zstd", 0, 1),
        ("create beside tar|zstd, sync", 0, 2),
        ("restore beside zstd|tar", 3, 4),
        ("restore beside zstd|tar, sync", 3, 5),
    ] {
        let ([wall, cpu], [their_wall, their_cpu]) = (best[ours], best[theirs]);
        println!(
            "  {what:30} wall {wall:.2} s / {their_wall:.2} s = {:.2}   cpu {cpu:.2} s / {their_cpu:.2} s = {:.2}",
            wall / their_wall,
            cpu / their_cpu
        );
    }
}

#[test]
#[ignore = "a measurement: takes a minute and gigabytes"]
fn beside_tar_and_zstd() {
    race("30 000 small files", small);
    race("1 GiB mixed file", large);
}
