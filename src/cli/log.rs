//! Where log lines go: stderr, filtered by text like `info,fountain::runner=debug`.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging. A filter that cannot be read becomes `info`.
pub fn init(filter: &str, ansi: bool) {
    let targets: Targets = filter.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi);
    // A second call (tests) keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(targets).with(lines).try_init();
}
