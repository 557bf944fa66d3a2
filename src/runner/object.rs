//! The sprite object and its lists as JSON (wire/rest.md §1.1, §1.6).

use serde_json::{Value, json};

use super::host::Host;
use crate::sprite::Sprite;

/// What `Sprite-Version` and `version` say. A plain release: the Go SDK then attaches by path (wire/rest.md §6).
pub const SPRITE_VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// One sprite, always in full.
pub fn sprite(host: &Host, sprite: &Sprite) -> Value {
    let record = sprite.record();
    let mut object = json!({
        "id": record.id,
        "name": record.name,
        "organization": record.org,
        "org_slug": record.org,
        "url": url(host, &record.name, &record.url_suffix),
        "url_settings": record.url_settings,
        "status": status(sprite),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "version": SPRITE_VERSION,
        "environment_version": record.isolation,
        "last_running_at": record.last_running_at,
        "last_warming_at": null,
    });
    if !record.labels.is_empty() {
        object["labels"] = json!(record.labels);
    }
    if let Some(config) = &record.config {
        object["config"] = config.clone();
    }
    object
}

/// `running` while its agent lives, else `cold`.
pub fn status(sprite: &Sprite) -> &'static str {
    if sprite.link().is_some() { "running" } else { "cold" }
}

/// The sprite's own URL.
fn url(host: &Host, name: &str, suffix: &str) -> String {
    let scheme = if host.settings.tls.is_some() { "https" } else { "http" };
    let port = host.port.get().copied().unwrap_or_default();
    format!("{scheme}://{name}-{suffix}.{}:{port}", host.settings.url_domain)
}

/// How many sprites are in each state.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    running: usize,
    cold: usize,
}

impl Counts {
    /// Counts them.
    pub fn of<'a>(sprites: impl IntoIterator<Item = &'a std::sync::Arc<Sprite>>) -> Self {
        sprites.into_iter().fold(Self::default(), |mut counts, sprite| {
            match sprite.link() {
                Some(_) => counts.running += 1,
                None => counts.cold += 1,
            }
            counts
        })
    }

    /// As the `org` block of lists.
    pub fn org(self, name: &str) -> Value {
        json!({"name": name, "running": self.running, "warm": 0, "cold": self.cold, "running_limit": LIMIT, "warm_limit": LIMIT})
    }

    /// As the list's own fields.
    pub fn page(self, mut list: Value, name: &str) -> Value {
        if let (Some(list), Value::Object(counts)) = (list.as_object_mut(), self.org(name)) {
            list.extend(counts);
        }
        list
    }
}

/// This host limits neither state; clients want a number.
const LIMIT: u32 = 1_000_000;
