//! Creating, listing, restoring and deleting, as clients see it.

use serde_json::json;

use super::*;

#[test]
fn checkpoints_are_listed_newest_first_with_their_comments_and_ancestors() {
    let (_dir, catalog) = sprite("one");
    assert_eq!(catalog.list(true).unwrap(), []);
    assert_eq!(catalog.source_id(), None);
    let comment = "home park \u{0}\n\"é\" sandbox-operation:1 ".repeat(30);
    let first = create(&catalog, &comment).unwrap();
    let second = create(&catalog, "").unwrap();
    let listed = catalog.list(false).unwrap();
    assert_eq!(listed, [second.clone(), first.clone()]);
    assert_eq!(first.manifest.comment, comment);
    assert_eq!(second.manifest.source_id.as_deref(), Some("v1"));
    assert_eq!(second.manifest.history, ["v1"]);
    assert!(second.manifest.create_time > first.manifest.create_time);
    let time = &first.manifest.create_time;
    assert!(time.len() == 27 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
    assert_eq!(catalog.source_id().as_deref(), Some("v2"));
    assert_eq!(first.to_wire(), json!({"id": "v1", "create_time": time, "history": [], "comment": comment}));
    assert_eq!(catalog.archive_bytes().unwrap(), first.manifest.archive_bytes + second.manifest.archive_bytes);
}

#[test]
fn an_id_may_be_written_in_three_ways_and_nothing_else_is_looked_up() {
    let (_dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    for id in ["v1", "1", "checkpoints/v1", "checkpoints/1"] {
        assert_eq!(catalog.get(id).unwrap().manifest.id, "v1", "{id}");
    }
    for id in [
        "",
        "v",
        "v2",
        "v01",
        "V1",
        "+1",
        "-1",
        "../v1",
        "state",
        "lock",
        "auto-1",
        "auto-",
        "vv1",
        "v1.json",
        "checkpoints/checkpoints/v1",
        "Current",
        "v99999999999999999999",
    ] {
        assert_eq!(catalog.get(id).unwrap_err().code(), "checkpoint_not_found", "{id}");
        assert_eq!(catalog.delete(id).unwrap_err().code(), "checkpoint_not_found", "{id}");
        assert_eq!(swap_to(&catalog, id).unwrap_err().code(), "checkpoint_not_found", "{id}");
    }
}

#[test]
fn times_rise_though_the_clock_does_not() {
    let (_dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    let mut state = catalog.state();
    state.last_time = "2999-01-01T00:00:00.000000Z".into();
    catalog.write_state(&state).unwrap();
    let times = [create(&catalog, "").unwrap(), create(&catalog, "").unwrap()].map(|c| c.manifest.create_time);
    assert_eq!(times, ["2999-01-01T00:00:00.000001Z", "2999-01-01T00:00:00.000002Z"]);
}

#[test]
fn numbers_never_repeat_and_the_active_checkpoint_stays() {
    let (_dir, catalog) = sprite("one");
    for _ in 0..3 {
        create(&catalog, "").unwrap();
    }
    assert_eq!(catalog.delete("v3").unwrap_err().code(), "checkpoint_active");
    swap_to(&catalog, "v1").unwrap();
    catalog.delete("3").unwrap();
    catalog.delete("checkpoints/v2").unwrap();
    assert_eq!(ids(&catalog), ["auto-1", "v1"]);
    assert!(!catalog.archive("v3").exists());
    let next = create(&catalog, "").unwrap();
    assert_eq!(next.manifest.id, "v4");
    assert_eq!(next.manifest.source_id.as_deref(), Some("v1"));
    // Also when the state is lost, as long as a manifest tells.
    fs::remove_file(catalog.dir.join("state.json")).unwrap();
    assert_eq!(create(&catalog, "").unwrap().manifest.id, "v5");
}

#[test]
fn limits_of_count_and_bytes_refuse_and_delete_makes_room() {
    let (_dir, mut catalog) = sprite("one");
    catalog.limits.count = 2;
    let first = create(&catalog, "").unwrap();
    create(&catalog, "").unwrap();
    let error = create(&catalog, "").unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("2 checkpoints")), ("checkpoint_limit", true));
    catalog.delete("v1").unwrap();
    create(&catalog, "").unwrap();
    // The kept tree of a restore counts for nothing.
    swap_to(&catalog, "v2").unwrap();
    catalog.delete("v3").unwrap();
    create(&catalog, "").unwrap();
    catalog.limits = Limits { count: 32, bytes: 2 * first.manifest.archive_bytes + 10, min_free: 0 };
    let error = create(&catalog, "").unwrap_err();
    assert_eq!(error.code(), "checkpoint_limit", "{error:?}");
    assert_eq!(catalog.list(false).unwrap().len(), 2);
    catalog.recover().unwrap();
    assert_eq!(siblings(&catalog.dir).iter().filter(|name| name.starts_with('v')).count(), 4);
}

#[test]
fn a_restore_brings_the_tree_back_and_keeps_the_other_one() {
    let (dir, catalog) = sprite("one");
    let services = json!([{"name": "web", "cmd": "serve"}]);
    let new = NewCheckpoint { comment: "c".into(), services: services.clone(), base_id: Some("b".into()) };
    catalog.create(new, &mut quiet()).unwrap();
    say(&catalog, "two");
    let staged = catalog.stage("v1", &mut quiet()).unwrap();
    assert_eq!(said(&catalog), "two");
    assert_eq!(staged.checkpoint().manifest.id, "v1");
    let restored = staged.swap().unwrap();
    assert_eq!(said(&catalog), "one");
    assert_eq!(restored.manifest.services, services);
    assert_eq!(restored.manifest.base_id.as_deref(), Some("b"));
    assert_eq!(restored.kept_as, "auto-1");
    assert_eq!(ids(&catalog), ["auto-1", "v1"]);
    assert_eq!(catalog.list(false).unwrap().len(), 1);
    let kept = catalog.get("auto-1").unwrap();
    assert_eq!(kept.to_wire()["is_auto"], true);
    assert_eq!(kept.manifest.comment, "");

    // The undo: the trees change back, and again.
    swap_to(&catalog, "auto-1").unwrap();
    assert_eq!(said(&catalog), "two");
    assert_eq!(ids(&catalog), ["auto-2", "v1"]);
    assert_eq!(swap_to(&catalog, "auto-1").unwrap_err().code(), "checkpoint_not_found");
    swap_to(&catalog, "auto-2").unwrap();
    assert_eq!(said(&catalog), "one");
    assert_eq!(catalog.source_id().as_deref(), Some("v1"));

    // The next restore replaces what was kept.
    say(&catalog, "three");
    swap_to(&catalog, "v1").unwrap();
    assert_eq!((said(&catalog), ids(&catalog)), ("one".into(), vec!["auto-4".into(), "v1".into()]));
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk", "disk.trash-auto-4", "disk.undo"]);
    catalog.tidy();
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk", "disk.undo"]);
    assert!(!siblings(&catalog.dir).contains(&"restore.json".into()), "the restored tree was not synced");
    swap_to(&catalog, "auto-4").unwrap();
    assert_eq!(said(&catalog), "three");

    // A kept tree that somebody removed is told; one that is deleted is gone.
    fs::rename(dir.path().join("disk.undo"), dir.path().join("elsewhere")).unwrap();
    assert_eq!(catalog.get("auto-5").unwrap().health, Health::Failed);
    assert_eq!(swap_to(&catalog, "auto-5").unwrap_err().code(), "checkpoint_damaged");
    fs::rename(dir.path().join("elsewhere"), dir.path().join("disk.undo")).unwrap();
    catalog.delete("auto-5").unwrap();
    assert_eq!(siblings(dir.path()), ["checkpoints", "disk"]);
    assert_eq!(ids(&catalog), ["v1"]);
}

#[test]
fn a_staged_tree_that_is_dropped_leaves_the_sprite_as_it_was() {
    let (dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    say(&catalog, "two");
    drop(catalog.stage("v1", &mut quiet()).unwrap());
    assert_eq!((said(&catalog), siblings(dir.path())), ("two".into(), vec!["checkpoints".into(), "disk".into()]));
}

#[test]
fn two_changes_at_once_wait_for_each_other() {
    let (_dir, catalog) = sprite("one");
    create(&catalog, "").unwrap();
    let staged = catalog.stage("v1", &mut quiet()).unwrap();
    let (begun, started) = std::sync::mpsc::channel();
    let other = catalog.clone();
    let creator = std::thread::spawn(move || {
        begun.send(()).unwrap();
        create(&other, "waited").unwrap()
    });
    started.recv().unwrap();
    let kept = staged.swap().unwrap().kept_as;
    let created = creator.join().unwrap().manifest;
    // It came after the restore, so it descends from it and is later than the kept tree.
    assert_eq!(created.source_id.as_deref(), Some("v1"));
    assert!(created.create_time > catalog.get(&kept).unwrap().manifest.create_time);
}

#[test]
fn a_long_line_of_checkpoints_names_only_the_nearest_ancestors() {
    let (_dir, mut catalog) = sprite("one");
    catalog.limits.count = 100;
    for _ in 0..40 {
        create(&catalog, "").unwrap();
    }
    let newest = create(&catalog, "").unwrap().manifest;
    assert_eq!((newest.history.len(), newest.history[0].as_str()), (32, "v9"));
    assert_eq!(newest.history.last(), newest.source_id.as_ref());
}

#[test]
fn a_manifest_of_a_newer_program_is_listed_and_not_restored() {
    let (_dir, catalog) = sprite("one");
    let mut manifest = create(&catalog, "").unwrap().manifest;
    manifest.format = 2;
    catalog.write_manifest(&manifest).unwrap();
    assert_eq!(catalog.get("v1").unwrap().health, Health::Failed);
    assert_eq!(swap_to(&catalog, "v1").unwrap_err().code(), "checkpoint_damaged");
}

#[test]
fn progress_is_told_at_once_and_then_at_most_every_tenth_of_a_second() {
    let (_dir, catalog) = sprite("one");
    for index in 0..2000 {
        fs::write(catalog.disk.join(index.to_string()), "x").unwrap();
    }
    let begun = std::time::Instant::now();
    let mut calls = Vec::new();
    catalog
        .create(NewCheckpoint::default(), &mut |files, bytes| {
            calls.push((files, bytes));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(!calls.is_empty());
    assert!(calls.len() as u128 <= 1 + begun.elapsed().as_millis() / 100, "{calls:?}");
}
