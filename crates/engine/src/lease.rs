//! This node's leases: how long they are good for, and renewing them all at once.

use std::collections::HashSet;
use std::time::Duration;

use everturn_core::{LeaseExpiry, RunId};
use everturn_store::clock::Clock;
use everturn_store::op::RenewLeases;
use everturn_store::{OpError, Store, execute};
use tokio::sync::watch;

use crate::engine::Shared;

/// The deadline that all leases of a node share, on the boot clock. Supervisors of commands are told
/// it, and end their command when it passes.
pub(crate) struct Leases {
    length: Duration,
    deadline: watch::Sender<u64>,
}

impl Leases {
    pub(crate) fn new(store: &dyn Store, length: Duration) -> Self {
        Self { length, deadline: watch::Sender::new(store.clock().boot().boot_ms + millis(length)) }
    }

    /// Until when a lease is good that is asked for now. Counted from before it is sent, so that
    /// the holder never believes in it longer than others do.
    pub(crate) fn expiry(&self, clock: &dyn Clock) -> LeaseExpiry {
        let now = clock.boot();
        LeaseExpiry { boot_ms: now.boot_ms + millis(self.length), ..now }
    }

    /// The deadline, for tools.
    pub(crate) fn deadline(&self) -> watch::Receiver<u64> {
        self.deadline.subscribe()
    }

    /// A lease was granted or renewed until then.
    pub(crate) fn granted(&self, expiry: &LeaseExpiry) {
        self.deadline.send_if_modified(|deadline| {
            let later = expiry.boot_ms > *deadline;
            if later {
                *deadline = expiry.boot_ms;
            }
            later
        });
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Renews every lease of this node, and obeys the stops that the store reports.
///
/// A renewal that fails is tried again at the next tick: until the deadline the leases are good. One
/// that comes after the deadline (the machine slept, the store was away) still counts if nobody took
/// the session meanwhile; turns whose session was taken are ended hard (promise P11).
pub(crate) async fn renew(shared: &Shared) -> Result<(), OpError> {
    // Whatever is registered now was claimed before the renewal is sent.
    let running = shared.controls.all();
    let expiry = shared.leases.expiry(shared.store.clock());
    let node = shared.config.node.clone();
    let renewal = RenewLeases { node, expiry: expiry.clone() };
    let held = execute(&*shared.store, renewal).await?;
    for (run, stopped) in &held {
        if *stopped {
            shared.controls.stop_run(run);
        }
    }
    let held: HashSet<&RunId> = held.iter().map(|(run, _)| run).collect();
    for (key, control) in running {
        // A turn that has just ended here is not held either; it does not hear this any more.
        if !held.contains(&control.run_id) && !control.lost.is_cancelled() {
            tracing::warn!(session = %key, run = %control.run_id, "the turn is not this node's any more");
            control.lost.cancel();
        }
    }
    shared.leases.granted(&expiry);
    Ok(())
}
