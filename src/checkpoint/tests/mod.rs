//! Tests of the whole room: trees in, trees out, and what must not happen in between.

mod compare;
mod crash;
mod damage;
mod hostile;
mod lifecycle;
mod nasty;
mod properties;
mod round_trip;
mod speed;

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;

use super::*;

/// Archives `tree` and returns the archive's file name and summary.
fn archive(tree: &Path, to: &Path) -> Summary {
    let file = File::create(to).unwrap();
    write(tree, &file, Options::default(), &mut quiet()).unwrap()
}

/// Extracts an archive that [`archive`] wrote.
fn restore(from: &Path, summary: &Summary, staging: &Path) -> Result<(), Error> {
    let expected =
        Expected { archive_bytes: summary.archive_bytes, sha256: &summary.sha256, data_bytes: summary.data_bytes };
    extract(&File::open(from).unwrap(), expected, staging, 0, &mut quiet())
}

/// A progress that nobody watches.
fn quiet() -> impl FnMut(u64, u64) -> ControlFlow<()> {
    |_, _| ControlFlow::Continue(())
}

/// A sprite's folder with a small disk whose file `state` says `text`.
fn sprite(text: &str) -> (tempfile::TempDir, Catalog) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("disk/home/sprite")).unwrap();
    let catalog = catalog(dir.path());
    say(&catalog, text);
    (dir, catalog)
}

fn catalog(sprite: &Path) -> Catalog {
    Catalog::new(sprite.join("checkpoints"), sprite.join("disk"), Limits::default())
}

/// Changes the disk.
fn say(catalog: &Catalog, text: &str) {
    fs::write(catalog.disk.join("home/sprite/state"), text).unwrap();
}

/// What the disk says.
fn said(catalog: &Catalog) -> String {
    fs::read_to_string(catalog.disk.join("home/sprite/state")).unwrap()
}

fn create(catalog: &Catalog, comment: &str) -> Result<Checkpoint, Error> {
    catalog.create(NewCheckpoint { comment: comment.into(), ..Default::default() }, &mut quiet())
}

fn swap_to(catalog: &Catalog, id: &str) -> Result<Restored, Error> {
    catalog.stage(id, &mut quiet())?.swap()
}

/// Ids with automatic ones, newest first.
fn ids(catalog: &Catalog) -> Vec<String> {
    catalog.list(true).unwrap().into_iter().map(|checkpoint| checkpoint.manifest.id).collect()
}

/// The names in a sprite's folder, to see leftovers.
fn siblings(sprite: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(sprite).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
