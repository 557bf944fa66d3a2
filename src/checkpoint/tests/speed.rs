//! Not run by default: times against `tar c | zstd -1 -T0` and `zstd -d | tar x`.
//!
//! `cargo test --release --lib checkpoint::tests::speed -- --ignored --nocapture`
