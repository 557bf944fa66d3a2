//! Records on disk: written whole, fsynced, renamed; readable and repairable by a person.

pub mod files;
pub mod sprites;
pub mod tokens;
