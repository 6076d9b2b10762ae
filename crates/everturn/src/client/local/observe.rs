//! What can be seen of a turn that nobody works on, before anybody has recorded its interruption.
//! Shown to whoever reads, stored nowhere.

use everturn_api::run::{Evidence as WireEvidence, Run as WireRun};
use everturn_api::session::{Interrupted, Session as WireSession};
use everturn_core::{Cause, Evidence, Lease, Run, RunState, SessionState, recovery};
use everturn_sqlite::SqliteStore;
use everturn_store::{Read as _, StorageError, Store as _};

/// A lease, if it is another living process's.
pub(super) async fn held_elsewhere<'l>(
    store: &SqliteStore,
    lease: Option<&'l Lease>,
) -> Option<&'l Lease> {
    let lease = lease.filter(|lease| lease.holder != *store.node_id())?;
    if lease.expiry.passed(&store.clock().boot()) {
        return None;
    }
    (store.node_gone(&lease.holder).await != Some(true)).then_some(lease)
}

/// Whether a run has no end and nobody who works on it.
pub(super) async fn nobody_works(store: &SqliteStore, run: &Run, lease: Option<&Lease>) -> bool {
    if matches!(run.state, RunState::Ended | RunState::HandedOver) {
        return false;
    }
    let own = lease.is_some_and(|lease| lease.holder == *store.node_id());
    !own && held_elsewhere(store, lease).await.is_none()
}

/// Shows a session whose turn nobody works on as what it is.
pub(super) async fn session(
    store: &SqliteStore,
    run: &Run,
    wire: &mut WireSession,
) -> Result<(), StorageError> {
    let (cause, evidence) = evidence(store, run).await?;
    wire.state = SessionState::Interrupted.to_string();
    wire.running = None;
    wire.interrupted = Some(Interrupted {
        run_id: run.id.to_string(),
        generation: run.generation,
        cause: cause.to_string(),
        evidence: Some(evidence),
        reason: None,
        pending: false,
        in_flight: None,
    });
    Ok(())
}

/// Shows a run that nobody works on as what it is.
pub(super) async fn run(
    store: &SqliteStore,
    run: &Run,
    wire: &mut WireRun,
) -> Result<(), StorageError> {
    let (cause, evidence) = evidence(store, run).await?;
    wire.interrupted_virtually = true;
    wire.cause = Some(cause.to_string());
    wire.evidence = Some(evidence);
    Ok(())
}

/// What speaks for the interruption of a run that nobody works on.
pub(super) async fn evidence(
    store: &SqliteStore,
    run: &Run,
) -> Result<(Cause, WireEvidence), StorageError> {
    let holder = store.node(&run.node).await?;
    let clock = store.clock();
    let boot = clock.boot().boot_id;
    let seen = Evidence {
        holder: run.node.clone(),
        holder_started_at: holder.as_ref().map(|node| node.started_at),
        holder_gone: store.node_gone(&run.node).await,
        rebooted: holder.as_ref().is_some_and(|node| node.boot_id != boot),
        observer: store.node_id().clone(),
        observer_started_at: clock.now(),
        // A process that only reads is no successor of the one that is gone.
        newer_process: false,
        drain_timeout_s: None,
        store_silent_s: None,
        last_seq: run.last_seq,
        last_event: run.last_event.clone(),
        last_event_at: run.last_event_at,
    };
    // A holder that still lives has lost nothing to anybody yet.
    let cause = match recovery::cause(&seen) {
        Cause::SplitBrain => Cause::Unknown,
        cause => cause,
    };
    Ok((cause, WireEvidence::new(&seen, cause)))
}
