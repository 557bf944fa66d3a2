//! The files API of one sprite (wire/rest.md §2).

use axum::Router;

use crate::sandbox::paths::Paths;

/// Sizes that writes are held to.
pub struct Limits {
    /// Largest file.
    pub max_write: u64,
    /// Free bytes.
    pub floor: u64,
}

/// Routes.
pub fn router(_paths: Paths, _limits: Limits) -> Router {
    Router::new()
}
