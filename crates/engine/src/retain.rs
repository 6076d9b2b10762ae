//! Retention: the token events of runs that ended long ago are pruned, in the background.
//!
//! What a range of them is, and what stands in its place, is the store's operation. Here is when: at
//! the start and from time to time, on every node that serves. Several nodes of one store may do it
//! at once; each call goes on from what is there.

use std::sync::Arc;
use std::time::Duration;

use everturn_core::Timestamp;
use everturn_store::op::PruneEvents;
use everturn_store::{OpError, execute};
use tokio::time::Instant;

use crate::engine::Shared;

/// How often is looked at most, at least, and after a failure.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(3_600);
const AGAIN: Duration = Duration::from_secs(60);

/// Prunes until the engine is closed.
pub(crate) async fn run(shared: Arc<Shared>) {
    let Some(age) = shared.config.retention else { return };
    // A fourth of the time late at most, an hour at most.
    let every = (age / 4).clamp(OFTEN, SELDOM);
    loop {
        let pause = match pass(&shared, age).await {
            Ok(()) => every,
            Err(error) => {
                metrics::counter!("everturn_prune_failures_total").increment(1);
                tracing::warn!(%error, "cannot prune token events; trying again later");
                every.min(AGAIN)
            }
        };
        if rest(&shared, pause).await {
            return;
        }
    }
}

/// Goes once through everything that is old enough.
async fn pass(shared: &Shared, age: Duration) -> Result<(), OpError> {
    let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    let before = Timestamp(shared.store.clock().now().0.saturating_sub(age_ms));
    let mut after = None;
    loop {
        let asked = Instant::now();
        let done = execute(&*shared.store, PruneEvents { before, after }).await?;
        if done.events > 0 {
            metrics::counter!("everturn_events_pruned_total").increment(done.events);
            tracing::debug!(events = done.events, snapshots = done.snapshots, "pruned");
            everturn_crash::pass(everturn_crash::Point::PruneCommitted);
        }
        after = done.after;
        // The writer has at least as much time for everything else.
        if !done.more || rest(shared, asked.elapsed()).await {
            return Ok(());
        }
    }
}

/// Waits; `true` when the engine is being closed.
async fn rest(shared: &Shared, pause: Duration) -> bool {
    tokio::select! {
        () = shared.closed.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}
