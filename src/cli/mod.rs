//! The command line: parse, dispatch, and operator commands, which are API clients like any other.

pub mod client;
pub mod demo;
pub mod exec;
mod local;
pub mod log;
pub mod throwaway;

use std::process::ExitCode;

use clap::{Arg, ArgAction, Command};

use crate::runner::settings;

/// Exit code for a command line or setting that cannot be used.
const USAGE: u8 = 2;

fn command() -> Command {
    let state = || {
        Arg::new("state")
            .long("state")
            .value_name("DIR")
            .env("FOUNTAIN_RUNNER_STATE")
            .hide_env(true)
            .help("The runner's state folder")
    };
    let org = || Arg::new("org").long("org").value_name("ORG").default_value("default").help("Whose sprites");
    Command::new("fountain")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A self-hosted host for the Sprites API")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(settings::with_flags(Command::new("runner").about("Serve the Sprites API on this host")))
        .subcommand(Command::new("agent").about("The process inside a sprite; started by the runner").hide(true))
        .subcommand(Command::new("demo").about("Start a throw-away runner and walk through what it does"))
        .subcommand(
            Command::new("token")
                .about("API tokens of a running runner")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(
                    Command::new("create").about("Make a token and show it once").arg(state()).arg(org()).arg(
                        Arg::new("description")
                            .long("description")
                            .value_name("TEXT")
                            .default_value("")
                            .help("What it is for"),
                    ),
                )
                .subcommand(Command::new("list").about("List tokens, without their text").arg(state()))
                .subcommand(
                    Command::new("revoke")
                        .about("Revoke a token")
                        .arg(state())
                        .arg(Arg::new("id").required(true).value_name("ID")),
                ),
        )
        .subcommand(
            Command::new("stop")
                .about("Stop the runner; sprites keep running unless --all, or named ones stop and the runner stays")
                .arg(state())
                .arg(org())
                .arg(
                    Arg::new("all")
                        .long("all")
                        .action(ArgAction::SetTrue)
                        .help("End every sprite's sessions and agent first"),
                )
                .arg(
                    Arg::new("sprites")
                        .value_name("SPRITE")
                        .num_args(0..)
                        .conflicts_with("all")
                        .help("Sprites to stop"),
                ),
        )
}

/// Runs the command line and returns the exit code.
pub fn main() -> ExitCode {
    // Agents are many and small: they do not even build the tree of the command line.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "agent") {
        return report(crate::agent::main().map_err(|error| format!("the agent failed: {error}")));
    }
    let matches = command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("runner", args)) => match settings::resolve(args) {
            Ok(settings) => crate::runner::main(settings),
            Err(error) => {
                eprintln!("fountain: {error}");
                return ExitCode::from(USAGE);
            }
        },
        Some(("demo", _)) => return demo::main(),
        Some(("token", args)) => local::token(args),
        Some(("stop", args)) => local::stop(args),
        _ => Err("there is no such command".into()),
    };
    report(outcome)
}

fn report(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fountain: {error}");
            ExitCode::FAILURE
        }
    }
}
