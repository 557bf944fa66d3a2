//! What the demo shows: numbered steps, each request, each answer and how long it took.
//!
//! It writes to stdout and never fails: a reader that goes away must not keep the demo from cleaning up.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Column in which the times stand.
const TIMES: usize = 74;

/// The screen, or a pipe.
pub struct Screen {
    colour: bool,
    steps: usize,
    started: Instant,
    sent: Instant,
}

impl Screen {
    /// Colours only on a terminal whose user has nothing against it (<https://no-color.org>).
    pub fn new() -> Self {
        let colour =
            std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colour, steps: 0, started: Instant::now(), sent: Instant::now() }
    }

    /// Plain text.
    pub fn line(&self, text: &str) {
        // A closed stdout is nobody's fault; the exit code still tells how it went.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// Begins a step.
    pub fn step(&mut self, title: &str) {
        self.steps += 1;
        self.line(&format!("\n{:>3}  {}", self.steps, self.paint("1", title)));
    }

    /// A request, or a command of the shell.
    pub fn sent(&mut self, request: &str) {
        self.line(&format!("     {} {request}", self.paint("36", "→")));
        self.sent = Instant::now();
    }

    /// The answer, already checked.
    pub fn got(&mut self, answer: impl Display) {
        let answer = answer.to_string();
        let took = format!("{:>6.0} ms", self.sent.elapsed().as_secs_f64() * 1000.0);
        let gap = TIMES.saturating_sub(answer.chars().count()).max(1);
        self.line(&format!("     {} {answer}{:gap$}{}", self.paint("32", "←"), "", self.paint("2", &took)));
        self.sent = Instant::now();
    }

    /// Says what is off.
    pub fn failed(&self, trouble: impl Display) {
        self.line(&format!("     {} {trouble}", self.paint("31", "✗")));
    }

    /// The good end, and where to go from here.
    pub fn finished(&self) {
        let seconds = self.started.elapsed().as_secs_f64();
        let verdict = format!("All {} steps went as they should, in {seconds:.1} s.", self.steps);
        self.line(&format!("\n{}", self.paint("1;32", &verdict)));
        self.line("A runner to keep: fountain runner. It prints the two lines that point Fountain and the SDKs at it.");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
