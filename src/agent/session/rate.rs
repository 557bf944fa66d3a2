//! How much output a session had of late: two windows of counts, no timer.

/// Two windows of output counts: the running one and the one before.
#[derive(Debug, Default)]
pub struct Rate {
    /// Unix milliseconds of the newest output; 0 when there was none.
    last: i64,
    window: i64,
    current: u64,
    previous: u64,
}

/// Length of a window, in milliseconds.
const RATE_WINDOW: i64 = 5_000;

impl Rate {
    fn turn(&mut self, now: i64) {
        match now / RATE_WINDOW - self.window {
            0 => return,
            1 => self.previous = self.current,
            _ => self.previous = 0,
        }
        self.current = 0;
        self.window = now / RATE_WINDOW;
    }

    /// Counts output.
    pub fn add(&mut self, now: i64, bytes: u64) {
        self.turn(now);
        self.last = now;
        self.current += bytes;
    }

    /// How busy it is at `now`.
    pub fn activity(&mut self, now: i64) -> Activity {
        self.turn(now);
        let span = (RATE_WINDOW + now % RATE_WINDOW) as f64 / 1000.0;
        Activity {
            last_output: Some(self.last).filter(|at| *at > 0),
            bytes_per_second: (self.current + self.previous) as f64 / span,
            is_recent: self.last > now - RATE_WINDOW,
        }
    }
}

/// What lists say of a session's output.
#[derive(Debug, Clone, Copy)]
pub struct Activity {
    /// Unix milliseconds of the newest output.
    pub last_output: Option<i64>,
    /// Output of the last seconds.
    pub bytes_per_second: f64,
    /// Whether there was output in the last 5 s.
    pub is_recent: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_falls_to_nothing() {
        let mut rate = Rate::default();
        assert_eq!(rate.activity(100_000).last_output, None);
        rate.add(100_000, 5_000);
        let busy = rate.activity(101_000);
        assert!(busy.is_recent && busy.last_output == Some(100_000));
        assert_eq!(busy.bytes_per_second, 5_000.0 / 6.0);
        let quiet = rate.activity(120_000);
        assert!(!quiet.is_recent && quiet.bytes_per_second == 0.0);
    }
}
