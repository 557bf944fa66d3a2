//! Parses the command line and dispatches; owns nothing.

fn main() {
    std::process::exit(fountain::cli::main());
}
