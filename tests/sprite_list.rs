//! The list at the size where Fountain stops paging: a file of its own, so that nothing else runs while it is timed.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::Runner;
use common::runner::walk;
use serde_json::{Value, json};

/// Time that the runner has had a processor for, of all its threads: what other work on the machine cannot lengthen.
fn processor(runner: &Runner) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{}/task", runner.pid())).unwrap().flatten();
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// All 2,000 in pages of 50: how long the pages took, by the clock and of the runner's processor time.
async fn read_all(runner: &Runner) -> (Duration, Duration) {
    let (began, used) = (Instant::now(), processor(runner));
    let (mut seen, mut pages) = (Vec::new(), 0);
    let mut path = "/v1/sprites?max_results=50&prefix=many-".to_owned();
    loop {
        let page = runner.get(&path).await.expect(200).json();
        pages += 1;
        let sprites = page["sprites"].as_array().unwrap();
        seen.extend(sprites.iter().map(|s| s["name"].as_str().unwrap().to_owned()));
        assert_eq!(page["org"]["cold"], 2001, "{page}");
        let Some(token) = page["next_continuation_token"].as_str() else { break };
        path = format!("/v1/sprites?max_results=50&prefix=many-&continuation_token={token}");
    }
    let took = (began.elapsed(), processor(runner).saturating_sub(used));
    assert_eq!((pages, seen.len()), (40, 2000));
    assert!(seen.is_sorted_by(|a, b| a < b));
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_in_pages_of_fifty() {
    let mut runner = Runner::start();
    runner.create("seed").await;
    runner.stop_all();
    // The records alone, made from a real one: 2,000 agents would measure this machine's memory instead.
    let sprites = runner.state().join("sprites");
    let seed = walk(&sprites).into_iter().find(|p| p.ends_with("seed/sprite.json")).expect("a record");
    let org = seed.parent().unwrap().parent().unwrap();
    let record: Value = serde_json::from_slice(&fs::read(&seed).unwrap()).unwrap();
    for n in 0..2000 {
        let name = format!("many-{n:04}");
        let mut record = record.clone();
        record["name"] = json!(name);
        record["id"] = json!(format!("00000000-0000-4000-8000-{n:012}"));
        fs::create_dir(org.join(&name)).unwrap();
        fs::write(org.join(&name).join("sprite.json"), record.to_string()).unwrap();
    }
    runner.restart();
    // The best of three, and on a machine that is busy with other things the runner's own share.
    let (mut clock, mut own) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        let (took, used) = read_all(&runner).await;
        (clock, own) = (clock.min(took), own.min(used));
    }
    println!("2,000 sprites in 40 pages: {clock:?}, of which the runner worked {own:?}");
    assert!(clock < Duration::from_secs(1) || own < Duration::from_millis(500), "{clock:?}, {own:?}");
}
