//! Measures a runner as its clients see it, each figure beside a plain tool that does the same work in the same run.
//!
//! `benches/run.sh` builds both and starts this. Progress goes to stderr, the table (Markdown) to stdout. The exit code
//! is 1 when a bound of the product is missed, 2 when something could not be measured.

mod archive;
mod idle;
mod latency;
mod machine;
mod report;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use fountain::cli::client::Client;
use fountain::cli::throwaway::Throwaway;
use http::Method;
use report::Report;
use serde_json::json;

/// What a section returns; the text of the error is for a person.
type Measured<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measures and prints.
    Run(Run),
    /// Forks, execs and waits once for each line of stdin: the peer of the latency section.
    Bare,
    /// Fills a folder with files; this runs inside the sprite.
    Fill { what: archive::Filling, folder: PathBuf, percent: u64 },
}

#[derive(clap::Args)]
struct Run {
    /// The `fountain` binary to measure.
    #[arg(long)]
    binary: PathBuf,
    /// Sections to measure; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Section>,
    /// A command line that runs its last argument on this host over ssh.
    #[arg(long)]
    ssh: Option<String>,
    /// How much of the full work to do, in percent. The bounds are meant for 100.
    #[arg(long, default_value_t = 100)]
    percent: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Section {
    Idle,
    Latency,
    Stdout,
    Replay,
    Checkpoint,
}

impl Run {
    fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Bare => match latency::bare() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("bare: {error}");
                ExitCode::FAILURE
            }
        },
        Task::Fill { what, folder, percent } => match archive::fill(what, &folder, percent) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("fill: {error}");
                ExitCode::FAILURE
            }
        },
        Task::Run(run) => match tokio::runtime::Runtime::new() {
            Ok(runtime) => runtime.block_on(measure(run)),
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(2)
            }
        },
    }
}

async fn measure(run: Run) -> ExitCode {
    let mut report = Report::default();
    let outcome = tokio::select! {
        outcome = sections(&run, &mut report) => outcome,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    report.print(run.percent);
    match outcome {
        Ok(()) if report.all_met() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("not measured to the end: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs each section against a runner of its own, so that none feels what another one left.
async fn sections(run: &Run, report: &mut Report) -> Measured {
    for section in [Section::Idle, Section::Latency, Section::Stdout, Section::Replay, Section::Checkpoint] {
        if !run.wants(section) {
            continue;
        }
        let mut host = Throwaway::new(run.binary.clone(), "bench")?;
        let client = host.start().await?;
        let measured = match section {
            Section::Idle => idle::measure(&host, &client, run.percent, report).await,
            Section::Latency => latency::measure(&client, run.percent, report).await,
            Section::Stdout => throughput::stdout(&client, run.ssh.as_deref(), run.percent, report).await,
            Section::Replay => throughput::replay(&client, run.percent, report).await,
            Section::Checkpoint => archive::measure(&host, &client, run.percent, report).await,
        };
        let log = std::fs::read_to_string(host.log()).unwrap_or_default();
        let stopped = host.stop().await;
        if let Err(error) = measured {
            let log = fountain::cli::throwaway::tail(&log).to_owned();
            return Err(format!("{error}\nthe runner's log ends with:\n{log}").into());
        }
        stopped?;
    }
    Ok(())
}

/// Makes a sprite.
async fn create(client: &Client, name: &str) -> Measured {
    client.send_json(Method::POST, "/v1/sprites", &json!({"name": name})).await?.success().await?;
    Ok(())
}

/// Removes a sprite and what it wrote.
async fn delete(client: &Client, name: &str) -> Measured {
    client.send(Method::DELETE, &format!("/v1/sprites/{name}"), "").await?.success().await?;
    Ok(())
}
