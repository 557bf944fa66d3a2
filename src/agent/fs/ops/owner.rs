//! Users and groups by name, read from the files themselves: the agent makes no NSS calls (DESIGN.md §5).

use std::path::Path;

use super::failure::Failure;

/// The user that clients believe they are.
const SPRITE: &str = "sprite";

/// Whom a file shall belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A number.
    Id(u32),
    /// A name of the passwd or group file.
    Name(String),
}

/// Where names are looked up.
#[derive(Debug, Clone, Copy)]
pub enum Names {
    /// `/etc/passwd`
    Users,
    /// `/etc/group`
    Groups,
}

impl Owner {
    /// The number of this owner. Without a passwd entry `sprite` is who the daemon runs as.
    pub fn id(&self, names: Names, api: &Path) -> Result<u32, Failure> {
        let name = match self {
            Self::Id(id) => return Ok(*id),
            Self::Name(name) => name,
        };
        let (file, kind, own) = match names {
            Names::Users => ("/etc/passwd", "user", rustix::process::geteuid().as_raw()),
            Names::Groups => ("/etc/group", "group", rustix::process::getegid().as_raw()),
        };
        // The names of a host are public, and what is not readable is not known.
        let text = std::fs::read(file).unwrap_or_default();
        match lookup(&String::from_utf8_lossy(&text), name) {
            Some(id) => Ok(id),
            None if name == SPRITE => Ok(own),
            None => Err(Failure::invalid("chown", api, &format!("there is no {kind} with this name"))),
        }
    }
}

/// The third field of the line whose first is `name`.
fn lookup(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (found, id) = (fields.next()?, fields.nth(1)?);
        if found == name { id.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_lines_of_fields() {
        let text = "root:x:0:0:root:/root:/bin/bash\nbroken\nsync:x:4:65534::/bin:/bin/sync\n";
        assert_eq!(lookup(text, "sync"), Some(4));
        assert_eq!(lookup(text, "syn"), None);
        assert_eq!(lookup(text, "broken"), None);
        assert_eq!(Owner::Name("root".into()).id(Names::Users, Path::new("/")), Ok(0));
        assert_eq!(Owner::Id(7).id(Names::Groups, Path::new("/")), Ok(7));
        assert!(Owner::Name("no such user".into()).id(Names::Users, Path::new("/")).is_err());
    }
}
