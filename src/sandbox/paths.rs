//! Plain mode's view of paths: where `/home/sprite` and relative paths of the API lie on the host.
