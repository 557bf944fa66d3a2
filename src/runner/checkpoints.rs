//! Routes of checkpoints (wire/rest.md §3).

use crate::wire::error::ApiError;

fn soon() -> ApiError {
    ApiError::unavailable("not_yet", "checkpoints are being built")
}

/// Create.
pub async fn create() -> ApiError {
    soon()
}
/// List.
pub async fn list() -> ApiError {
    soon()
}
/// Get.
pub async fn get() -> ApiError {
    soon()
}
/// Delete.
pub async fn delete() -> ApiError {
    soon()
}
/// Restore.
pub async fn restore() -> ApiError {
    soon()
}
