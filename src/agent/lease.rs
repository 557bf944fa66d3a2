//! Whether a runner is there. The runner holds one connection for life; timers of sessions run only while it does.

use tokio::sync::watch;

/// The lease as everyone sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lease {
    /// Whether a runner holds it now.
    pub held: bool,
    /// Counts the takers, so that a new one starts timers afresh.
    pub epoch: u64,
}

/// Takes the lease; dropping the guard gives it back, unless a newer taker has it.
pub fn take(lease: &watch::Sender<Lease>) -> Held {
    let mut epoch = 0;
    lease.send_modify(|lease| {
        lease.held = true;
        lease.epoch += 1;
        epoch = lease.epoch;
    });
    Held { lease: lease.clone(), epoch }
}

/// The lease while it is held.
#[derive(Debug)]
pub struct Held {
    lease: watch::Sender<Lease>,
    epoch: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.lease.send_modify(|lease| {
            if lease.epoch == self.epoch {
                lease.held = false;
            }
        });
    }
}
