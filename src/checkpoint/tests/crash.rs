//! The process dies between any two steps; afterwards the sprite has its old tree or its new one, whole.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;
use crate::checkpoint::failpoint::VARIABLE;

const TASK: &str = "FOUNTAIN_TEST_CRASH_TASK";
const SPRITE: &str = "FOUNTAIN_TEST_CRASH_SPRITE";
/// Where the process is killed during a restore, in order.
const RESTORE: [&str; 10] = [
    "restore: before staging",
    "restore: staged",
    "restore: intent written",
    "restore: exchanged",
    "restore: older tree put away",
    "restore: old tree kept",
    "restore: kept tree listed",
    "restore: state written",
    "restore: entered",
    "restore: no such place",
];

/// Not a test: what the child of [`crash`] does. Does nothing when it is run with all others.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let catalog = catalog(Path::new(&std::env::var(SPRITE).unwrap()));
    let (verb, id) = task.split_once(' ').unwrap();
    match verb {
        "create" => drop(create(&catalog, id).unwrap()),
        "restore" => drop(swap_to(&catalog, id).unwrap()),
        "delete" => catalog.delete(id).unwrap(),
        "recover" => drop(catalog.recover().unwrap()),
        _ => unreachable!(),
    }
}

/// Does `task` in another process that dies at `place`; says whether it came there.
fn crash(sprite: &Path, task: &str, place: &str) -> bool {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "checkpoint::tests::crash::child", "--nocapture"])
        .envs([(TASK, task), (VARIABLE, place)])
        .env(SPRITE, sprite)
        .output()
        .unwrap();
    match output.status.signal() {
        Some(signal) => assert_eq!(signal, rustix::process::Signal::ABORT.as_raw()),
        None => assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stdout)),
    }
    !output.status.success()
}

#[test]
fn a_killed_create_is_listed_whole_or_not_at_all() {
    for (place, listed) in [
        ("create: begun", false),
        ("create: archive written", false),
        ("create: archive named", false),
        ("create: manifest written", true),
    ] {
        let (dir, catalog) = sprite("one");
        create(&catalog, "").unwrap();
        say(&catalog, "two");
        assert!(crash(dir.path(), "create second", place), "{place}");
        let expected: &[&str] = if listed { &["v2", "v1"] } else { &["v1"] };
        assert_eq!(ids(&catalog), expected, "{place}");
        let recovered = catalog.recover().unwrap();
        assert_eq!(recovered.removed, usize::from(!listed), "{place}");
        assert_eq!(ids(&catalog), expected, "{place}");
        let archives = siblings(&catalog.dir).iter().filter(|name| name.starts_with('v')).count();
        assert_eq!(archives, 2 * expected.len(), "{place}: {:?}", siblings(&catalog.dir));
        assert_eq!(catalog.source_id().as_deref(), Some(expected[0]), "{place}");
        let next = create(&catalog, "").unwrap().manifest;
        assert_eq!(next.id, if listed { "v3" } else { "v2" }, "{place}");
        swap_to(&catalog, expected[0]).unwrap();
        assert_eq!(said(&catalog), if listed { "two" } else { "one" }, "{place}");
    }
}

#[test]
fn a_killed_delete_is_listed_whole_or_not_at_all_and_keeps_its_number() {
    for (place, listed) in [("delete: state written", true), ("delete: manifest removed", false)] {
        let (dir, catalog) = sprite("one");
        create(&catalog, "").unwrap();
        create(&catalog, "").unwrap();
        swap_to(&catalog, "v1").unwrap();
        assert!(crash(dir.path(), "delete v2", place), "{place}");
        catalog.recover().unwrap();
        assert_eq!(catalog.get("v2").is_ok(), listed, "{place}");
        assert_eq!(catalog.archive("v2").exists(), listed, "{place}");
        assert_eq!(create(&catalog, "").unwrap().manifest.id, "v3", "{place}");
    }
    let (dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    swap_to(&catalog, "v1").unwrap();
    assert!(crash(dir.path(), "delete auto-1", "delete: kept tree unlisted"));
    assert_eq!(ids(&catalog), ["v1"]);
    catalog.recover().unwrap();
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk"]);
}

/// A sprite whose disk says "four", with v1 "one", v2 "two", and the kept tree auto-1 "three".
fn with_kept_tree() -> (tempfile::TempDir, Catalog) {
    let (dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    say(&catalog, "two");
    create(&catalog, "").unwrap();
    say(&catalog, "three");
    swap_to(&catalog, "v2").unwrap();
    say(&catalog, "four");
    (dir, catalog)
}

/// Kills a restore of `id`, which says `new`, at `place`, recovers (dying there too, if told), and looks at all of it.
fn killed_restore(id: &str, new: &str, place: &str, also: Option<&str>) -> bool {
    let (dir, catalog) = with_kept_tree();
    let reached = crash(dir.path(), &format!("restore {id}"), place);
    // Before anything is put right: what is listed can be read, and the numbers are there.
    assert!(catalog.list(true).unwrap().iter().all(|checkpoint| !checkpoint.manifest.create_time.is_empty()));
    if let Some(also) = also {
        crash(dir.path(), "recover x", also);
    }
    let recovered = catalog.recover().unwrap();
    assert!(!(recovered.finished_restore && recovered.undone_restore));
    let now = said(&catalog);
    assert!(now == "four" || now == new, "{place}: {now}");
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk", "disk.undo"], "{place}");
    let expected = match now == new {
        true => ["auto-2", "v2", "v1"],
        false => ["auto-1", "v2", "v1"],
    };
    assert_eq!(ids(&catalog), expected, "{place}");
    let source = if now == new && id == "v1" { "v1" } else { "v2" };
    assert_eq!(catalog.source_id().as_deref(), Some(source), "{place}");
    assert!(catalog.list(true).unwrap().iter().all(|checkpoint| checkpoint.health == Health::Good), "{place}");
    let leftovers = siblings(&catalog.dir);
    assert_eq!(leftovers.len(), 7, "{place}: {leftovers:?}");
    // The undo entry is what it says it is, and everything goes on.
    swap_to(&catalog, expected[0]).unwrap();
    assert_eq!(said(&catalog), if now == new { "four" } else { "three" }, "{place}");
    assert_eq!(create(&catalog, "").unwrap().manifest.id, "v3", "{place}");
    reached
}

#[test]
fn a_restore_killed_at_any_step_leaves_the_old_tree_or_the_new_one() {
    for place in RESTORE {
        let reached = killed_restore("v1", "one", place, None);
        assert_eq!(reached, place != "restore: no such place", "{place}");
    }
}

#[test]
fn an_undo_killed_at_any_step_leaves_the_old_tree_or_the_new_one() {
    for place in RESTORE {
        let reached = killed_restore("auto-1", "three", place, None);
        let passed_by =
            ["restore: before staging", "restore: older tree put away", "restore: entered", "restore: no such place"];
        assert_eq!(reached, !passed_by.contains(&place), "{place}");
    }
}

#[test]
fn a_file_system_that_cannot_exchange_two_names_is_as_safe() {
    for (id, new) in [("v1", "one"), ("auto-1", "three")] {
        for place in
            ["restore: disk put aside", "restore: exchanged", "restore: old tree kept", "restore: no such place"]
        {
            killed_restore(id, new, &format!("restore: no exchange,{place}"), None);
        }
    }
}

#[test]
fn a_recovery_that_is_killed_too_can_be_done_again() {
    for also in [
        "restore: older tree put away",
        "restore: old tree kept",
        "restore: kept tree listed",
        "restore: state written",
    ] {
        killed_restore("v1", "one", "restore: exchanged", Some(also));
        killed_restore("auto-1", "three", "restore: exchanged", Some(also));
        killed_restore("v1", "one", "restore: no exchange,restore: disk put aside", Some(also));
    }
}

/// Makes the intent of a restore one of an earlier boot, and harms the tree as a power failure does.
fn lose_power(catalog: &Catalog) {
    let intent = catalog.dir.join("restore.json");
    let text = fs::read_to_string(&intent).unwrap();
    let boot = super::super::settle::boot();
    assert!(text.contains(&boot), "{text}");
    fs::write(&intent, text.replace(&boot, "an earlier boot")).unwrap();
    say(catalog, "");
}

#[test]
fn a_restored_tree_that_a_power_failure_may_have_harmed_is_made_again() {
    for place in ["restore: exchanged", "restore: old tree kept", "restore: entered"] {
        for also in ["redo: staged", "redo: disk put away", "redo: disk in place", "nowhere"] {
            let (dir, catalog) = with_kept_tree();
            assert!(crash(dir.path(), "restore v1", place), "{place}");
            lose_power(&catalog);
            assert_eq!(crash(dir.path(), "recover x", also), also != "nowhere", "{also}");
            catalog.recover().unwrap();
            assert_eq!(said(&catalog), "one", "{place}, {also}");
            assert_eq!(siblings(dir.path()), ["checkpoints", "disk", "disk.undo"], "{place}, {also}");
            assert_eq!(ids(&catalog), ["auto-2", "v2", "v1"]);
            assert_eq!(siblings(&catalog.dir).len(), 7);
            swap_to(&catalog, "auto-2").unwrap();
            assert_eq!(said(&catalog), "four", "{place}, {also}");
        }
    }
}

#[test]
fn a_tree_that_cannot_be_made_again_is_left_as_it_is_and_the_undo_stays() {
    let (dir, catalog) = with_kept_tree();
    assert!(crash(dir.path(), "restore v1", "restore: exchanged"));
    lose_power(&catalog);
    fs::remove_file(catalog.archive("v1")).unwrap();
    assert!(catalog.recover().unwrap().redone_restore);
    assert_eq!(said(&catalog), "");
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk", "disk.undo"]);
    swap_to(&catalog, "auto-2").unwrap();
    assert_eq!(said(&catalog), "four");
}
