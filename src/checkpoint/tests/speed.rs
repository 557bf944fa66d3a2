//! Not run by default: times against `tar c | zstd -1 -T0` and `zstd -d | tar x`, fastest of several rounds that take turns.
//!
//! `cargo test --release --lib checkpoint::tests::speed -- --ignored --nocapture`

use std::process::Command;
use std::time::{Duration, Instant};

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

fn timed(work: impl FnOnce()) -> Duration {
    // What an earlier round left to be written must not be paid by this one.
    assert!(Command::new("sync").status().unwrap().success());
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn shell(dir: &Path, line: &str) {
    let status = Command::new("sh").args(["-c", line]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{line}");
}

fn race(name: &str, build: fn(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    build(&at("tree"));
    let mut best = [Duration::MAX; 6];
    let mut keep = |index: usize, time: Duration| best[index] = best[index].min(time);
    for _ in 0..ROUNDS {
        let mut summary = Summary::default();
        keep(0, timed(|| summary = archive(&at("tree"), &at("ours"))));
        keep(1, timed(|| shell(dir.path(), "tar -C tree -c . | zstd -q -f -1 -T0 -o theirs")));
        keep(2, timed(|| shell(dir.path(), "tar -C tree -c . | zstd -q -f -1 -T0 -o theirs && sync theirs")));
        keep(3, timed(|| restore(&at("ours"), &summary, &at("out")).unwrap()));
        walk::remove_tree(&at("out")).unwrap();
        keep(4, timed(|| shell(dir.path(), "mkdir out && zstd -q -d -c theirs | tar -C out -x")));
        walk::remove_tree(&at("out")).unwrap();
        keep(5, timed(|| shell(dir.path(), "mkdir out && zstd -q -d -c theirs | tar -C out -x && sync -f out")));
        walk::remove_tree(&at("out")).unwrap();
    }
    let size = |name: &str| fs::metadata(at(name)).unwrap().len() >> 20;
    let ratio = |a: usize, b: usize| best[a].as_secs_f64() / best[b].as_secs_f64();
    println!("{name}: archive {} MiB, theirs {} MiB", size("ours"), size("theirs"));
    println!("  create  {:?}  tar|zstd {:?}  ratio {:.2}", best[0], best[1], ratio(0, 1));
    println!("          with sync         {:?}  ratio {:.2}", best[2], ratio(0, 2));
    println!("  restore {:?}  zstd|tar {:?}  ratio {:.2}", best[3], best[4], ratio(3, 4));
    println!("          with sync         {:?}  ratio {:.2}", best[5], ratio(3, 5));
}

#[test]
#[ignore = "a measurement: takes a minute and gigabytes"]
fn beside_tar_and_zstd() {
    race("30 000 small files", small);
    race("1 GiB mixed file", large);
}
