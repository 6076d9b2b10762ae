//! This node's leases: how long they are good for, and renewing them all at once.

use std::time::Duration;

use everturn_core::LeaseExpiry;
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

    /// Whether the deadline has passed.
    pub(crate) fn passed(&self, clock: &dyn Clock) -> bool {
        *self.deadline.borrow() <= clock.boot().boot_ms
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
    let late = shared.leases.passed(shared.store.clock());
    let expiry = shared.leases.expiry(shared.store.clock());
    let node = shared.config.node.clone();
    let renewal = RenewLeases { node, expiry: expiry.clone() };
    let stopped = execute(&*shared.store, renewal).await?;
    for run in &stopped {
        shared.controls.stop_run(run);
    }
    if late {
        for (key, control) in shared.controls.all() {
            let view = shared.store.session(&key).await?;
            let ours = view.is_some_and(|view| {
                view.session.running.as_ref() == Some(&control.run_id)
                    && view
                        .session
                        .lease
                        .as_ref()
                        .is_some_and(|lease| lease.holder == shared.config.node)
            });
            if !ours {
                tracing::warn!(session = %key, run = %control.run_id, "another node took the session over");
                control.lost.cancel();
            }
        }
    }
    shared.leases.granted(&expiry);
    Ok(())
}
