//! Parses the command line and dispatches; owns nothing.
fn main() {}
