//! Parses the command line and dispatches; owns nothing.

fn main() -> std::process::ExitCode {
    fountain::cli::main()
}
