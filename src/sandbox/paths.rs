//! Plain mode's view of paths: where `/home/sprite` and relative paths of the API lie on the host.
//!
//! Plain mode has no root of its own, so one rule stands in for it: the API's `/home/sprite` is the folder
//! `disk/home/sprite` of the sprite, and every other path is the host's. This module owns that rule in both directions
//! (requests, answers, argv and environment) and the answer to "may this be changed": only inside the sprite's disk and
//! the host's `/tmp`. It is no security boundary, for the sprite's own processes run as the daemon's user; it keeps a
//! client's slip from reaching the host. It must never be used where a sprite has a root of its own.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

/// The home of user `sprite` as clients name it.
pub const HOME: &str = "/home/sprite";

/// The host's folder for temporary files, which plain mode shares with the host.
const TMP: &str = "/tmp";

/// As many symbolic links as the kernel follows in one path.
const MAX_LINKS: u32 = 40;

/// The view of one sprite; cheap to clone.
#[derive(Debug, Clone)]
pub struct Paths {
    places: Arc<Places>,
}

#[derive(Debug)]
struct Places {
    disk: PathBuf,
    home: PathBuf,
}

impl Paths {
    /// The view of the sprite whose files lie in `disk`, an absolute path of the host.
    pub fn new(disk: PathBuf) -> Self {
        let home = disk.join(&HOME[1..]);
        Self { places: Arc::new(Places { disk, home }) }
    }

    /// The folder that holds the sprite's files.
    pub fn disk(&self) -> &Path {
        &self.places.disk
    }

    /// The home of user `sprite` on the host.
    pub fn home(&self) -> &Path {
        &self.places.home
    }

    /// The absolute API path that `path` names (wire/rest.md §2.2): relative to `working_dir`, which itself is relative
    /// to the home and is the home when absent. `.` and `..` are resolved lexically and `..` of the root is the root.
    /// Callers refuse NUL.
    pub fn resolve(&self, path: &[u8], working_dir: Option<&[u8]>) -> PathBuf {
        let mut out = OsString::from(HOME).into_vec();
        for part in [working_dir.unwrap_or_default(), path] {
            if part.starts_with(b"/") {
                out.clear();
            }
            out.push(b'/');
            out.extend_from_slice(part);
        }
        normal(Path::new(OsStr::from_bytes(&out)))
    }

    /// Where an absolute API path lies on the host. A path that is already inside the disk stays.
    pub fn to_host(&self, api: &Path) -> PathBuf {
        if api.starts_with(&self.places.disk) {
            return api.to_path_buf();
        }
        match api.strip_prefix(HOME) {
            Ok(rest) => below(&self.places.home, rest),
            Err(_) => api.to_path_buf(),
        }
    }

    /// How clients name a path of the host: the inverse of [`Paths::to_host`].
    pub fn to_api(&self, host: &Path) -> PathBuf {
        match host.strip_prefix(&self.places.home) {
            Ok(rest) => below(Path::new(HOME), rest),
            Err(_) => host.to_path_buf(),
        }
    }

    /// Puts the host's path of the home in the place of every `/home/sprite` that is a path of its own, for argv and
    /// values of the environment. Paths of the host's disk are left alone, so that a second pass changes nothing.
    pub fn rewrite<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        let home = self.places.home.as_os_str().as_bytes();
        let disk = self.places.disk.as_os_str().as_bytes();
        let mut out = Vec::new();
        let mut copied = 0;
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            if rest.starts_with(disk) && ends_name(rest, disk.len()) {
                // When the disk itself lies below a `/home/sprite` of the host, this keeps its path whole.
                at += if rest.starts_with(home) { home.len() } else { disk.len() };
            } else if rest.starts_with(HOME.as_bytes()) && ends_name(rest, HOME.len()) && begins_path(&text[..at]) {
                out.extend_from_slice(&text[copied..at]);
                out.extend_from_slice(home);
                at += HOME.len();
                copied = at;
            } else {
                at += 1;
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.extend_from_slice(&text[copied..]);
        Cow::Owned(out)
    }

    /// Whether what `host` names, after following every link, lies inside the disk or `/tmp`. The two folders themselves
    /// do not count: nobody may change the mode of the host's `/tmp`.
    pub fn may_write(&self, host: &Path) -> bool {
        follow(host).is_ok_and(|real| self.is_inside(&real))
    }

    /// Whether the directory entry `host` itself, not what a link there points at, may be removed or renamed. The
    /// sprite's home and the folders above it may not.
    pub fn may_remove(&self, host: &Path) -> bool {
        let (Some(parent), Some(name)) = (host.parent(), host.file_name()) else { return false };
        let Ok(real) = follow(parent).map(|parent| parent.join(name)) else { return false };
        self.is_inside(&real) && !follow(&self.places.home).is_ok_and(|home| home.starts_with(&real))
    }

    /// Whether a path without links lies strictly inside the disk or `/tmp`.
    fn is_inside(&self, real: &Path) -> bool {
        [self.places.disk.as_path(), Path::new(TMP)]
            .into_iter()
            .filter_map(|place| follow(place).ok())
            .any(|place| real != place && real.starts_with(&place))
    }
}

/// `base` with `rest` below it; `base` itself when `rest` is empty, without the slash that `join` would leave.
fn below(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_path_buf() } else { base.join(rest) }
}

/// Resolves `.` and `..` of an absolute path without asking the file system.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => drop(out.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// Whether a path of `length` bytes at the start of `rest` ends there, so that no longer name goes on behind it.
fn ends_name(rest: &[u8], length: usize) -> bool {
    rest.get(length).is_none_or(|next| !is_name(*next))
}

/// Whether an absolute path may begin behind `before`: not in the middle of a longer path or name. `://` is the start of
/// a URL's path (`file:///home/sprite/x`).
fn begins_path(before: &[u8]) -> bool {
    match before.last() {
        None => true,
        Some(b'/') => before.ends_with(b"://"),
        Some(last) => *last != b'~' && !is_name(*last),
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

/// The path that the kernel would reach from the absolute `path`, every link followed, the last one and dangling ones
/// too. What does not exist yet is taken as it is written.
pub fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut links = 0;
    let mut todo: Vec<OsString> = names_backwards(path);
    while let Some(name) = todo.pop() {
        if name == ".." {
            real.pop();
            continue;
        }
        real.push(&name);
        match std::fs::symlink_metadata(&real) {
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = std::fs::read_link(&real)?;
                real.pop();
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                todo.extend(names_backwards(&target));
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(real)
}

/// The names of a path, the last one first, as a stack of what is still to be walked.
fn names_backwards(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    fn paths() -> Paths {
        Paths::new("/state/sprites/org/box/disk".into())
    }

    fn resolved(path: &str, working_dir: Option<&str>) -> String {
        paths().resolve(path.as_bytes(), working_dir.map(str::as_bytes)).to_str().unwrap().to_owned()
    }

    #[test]
    fn paths_resolve_as_the_wire_says() {
        assert_eq!(resolved("/app/a.txt", None), "/app/a.txt");
        assert_eq!(resolved("a.txt", None), "/home/sprite/a.txt");
        assert_eq!(resolved("a.txt", Some("/app")), "/app/a.txt");
        assert_eq!(resolved("a.txt", Some("work")), "/home/sprite/work/a.txt");
        assert_eq!(resolved("../a.txt", Some("/")), "/a.txt");
        assert_eq!(resolved("/a/./b/../../..", None), "/");
        assert_eq!(resolved("~/a", None), "/home/sprite/~/a");
        assert_eq!(resolved(".", None), "/home/sprite");
        assert_eq!(resolved("dir//x/", Some("/app/")), "/app/dir/x");
    }

    #[test]
    fn bytes_that_are_not_text_stay_as_they_are() {
        let path = paths().resolve(b"\xff\xfe/x", None);
        assert_eq!(path.as_os_str().as_bytes(), b"/home/sprite/\xff\xfe/x");
    }

    #[test]
    fn only_the_home_is_elsewhere_on_the_host() {
        let paths = paths();
        for (api, host) in [
            ("/home/sprite", "/state/sprites/org/box/disk/home/sprite"),
            ("/home/sprite/a/b", "/state/sprites/org/box/disk/home/sprite/a/b"),
            ("/home/sprites/a", "/home/sprites/a"),
            ("/etc/hosts", "/etc/hosts"),
            ("/", "/"),
        ] {
            assert_eq!(paths.to_host(Path::new(api)), Path::new(host));
            assert_eq!(paths.to_api(Path::new(host)), Path::new(api));
        }
        let host = paths.home().join("x");
        assert_eq!(paths.to_host(&host), host);
        assert_eq!(paths.to_host(&paths.home().join("..")).as_os_str(), paths.home().join("..").as_os_str());
    }

    fn rewritten(text: &str) -> String {
        String::from_utf8(paths().rewrite(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn the_home_is_rewritten_at_path_boundaries_only() {
        let home = "/state/sprites/org/box/disk/home/sprite";
        for (text, expected) in [
            ("/home/sprite", home.to_owned()),
            ("/home/sprite/x", format!("{home}/x")),
            ("cd /home/sprite && ls", format!("cd {home} && ls")),
            ("PATH=/home/sprite/bin:/home/sprite/b2", format!("PATH={home}/bin:{home}/b2")),
            ("file:///home/sprite/x", format!("file://{home}/x")),
            ("'/home/sprite'", format!("'{home}'")),
            ("--root=/home/sprite,/home/sprite", format!("--root={home},{home}")),
            ("/home/sprites", "/home/sprites".into()),
            ("/home/sprite-2/x", "/home/sprite-2/x".into()),
            ("/home/sprite.bak", "/home/sprite.bak".into()),
            ("/mnt/home/sprite", "/mnt/home/sprite".into()),
            ("//home/sprite", "//home/sprite".into()),
            ("~/home/sprite", "~/home/sprite".into()),
            ("https://host/home/sprite", "https://host/home/sprite".into()),
        ] {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }

    #[test]
    fn a_disk_below_a_home_of_the_same_name_is_not_nested() {
        let paths = Paths::new("/home/sprite/.local/share/fountain/sprites/o/n/disk".into());
        let once = paths.rewrite(b"ls /home/sprite /home/sprite/.ssh").into_owned();
        assert_eq!(
            String::from_utf8(once.clone()).unwrap(),
            "ls /home/sprite/.local/share/fountain/sprites/o/n/disk/home/sprite \
             /home/sprite/.local/share/fountain/sprites/o/n/disk/home/sprite/.ssh"
        );
        assert_eq!(paths.rewrite(&once), once.as_slice());
        assert_eq!(paths.to_host(paths.home()), paths.home());
    }

    #[test]
    fn links_do_not_lead_out_of_the_disk() {
        let state = tempfile::tempdir_in("/var/tmp").unwrap();
        let paths = Paths::new(state.path().join("disk"));
        let home = paths.home().to_path_buf();
        std::fs::create_dir_all(&home).unwrap();
        symlink(state.path(), home.join("out")).unwrap();
        symlink(state.path().join("new"), home.join("dangling")).unwrap();
        symlink("loop", home.join("loop")).unwrap();
        symlink("a/../../sprite/inside", home.join("in")).unwrap();

        assert!(paths.may_write(&home));
        assert!(paths.may_write(&home.join("a/b/c")));
        assert!(paths.may_write(&home.join("in")));
        assert!(paths.may_write(Path::new("/tmp/x")));
        assert!(!paths.may_write(Path::new("/tmp")));
        assert!(!paths.may_write(paths.disk()));
        assert!(!paths.may_write(&state.path().join("x")));
        assert!(!paths.may_write(&home.join("out/x")));
        assert!(!paths.may_write(&home.join("dangling")));
        assert!(!paths.may_write(&home.join("loop")));
        assert!(!paths.may_write(&home.join("nothing/../../../../x")));
        assert!(!paths.may_write(Path::new("/etc/passwd")));

        assert!(paths.may_remove(&home.join("out")), "the link itself is the sprite's");
        assert!(!paths.may_remove(&home.join("out/disk")));
        assert!(!paths.may_remove(&home));
        assert!(!paths.may_remove(home.parent().unwrap()));
        assert!(!paths.may_remove(paths.disk()));
        assert!(!paths.may_remove(Path::new("/")));
        assert!(!paths.may_remove(Path::new("/tmp")));
    }

    /// Texts made of the pieces that matter, so that boundaries of all kinds meet.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            3 => Just("/home/sprite".as_bytes().to_vec()),
            1 => Just("/state/disk".as_bytes().to_vec()),
            1 => Just("/home/sprite/s/disk".as_bytes().to_vec()),
            1 => Just("://".as_bytes().to_vec()),
            3 => prop::sample::select(b"/:=~.-_ a9'\"\xff".to_vec()).prop_map(|byte| vec![byte]),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn rewriting_twice_is_rewriting_once(text in texts(), nested in any::<bool>()) {
            let disk = if nested { "/home/sprite/s/disk" } else { "/state/disk" };
            let paths = Paths::new(disk.into());
            let once = paths.rewrite(&text).into_owned();
            prop_assert_eq!(paths.rewrite(&once).into_owned(), once);
        }

        #[test]
        fn text_without_the_home_is_not_even_copied(text in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assume!(!text.windows(HOME.len()).any(|part| part == HOME.as_bytes()));
            let paths = paths();
            let same = matches!(paths.rewrite(&text), Cow::Borrowed(same) if same == text);
            prop_assert!(same);
        }

        #[test]
        fn resolved_paths_are_absolute_and_plain(path in prop::collection::vec(any::<u8>(), 0..40),
                                                 dir in proptest::option::of(prop::collection::vec(any::<u8>(), 0..20))) {
            let out = paths().resolve(&path, dir.as_deref());
            prop_assert!(out.is_absolute());
            prop_assert_eq!(normal(&out).into_os_string(), out.clone().into_os_string());
            prop_assert!(!out.components().any(|part| part == Component::ParentDir));
        }

        #[test]
        fn answers_name_what_requests_named(tail in "[a-z./]{0,20}") {
            let paths = paths();
            let api = paths.resolve(tail.as_bytes(), None);
            prop_assert_eq!(paths.to_api(&paths.to_host(&api)), api);
        }
    }
}
