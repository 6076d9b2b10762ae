//! Whether the store answers: what requests found out, and a probe of its own for `/readyz`.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use everturn_core::TokenId;
use everturn_engine::{Engine, EngineError};
use everturn_store::{OpError, StorageErrorKind};

/// How long a probe's answer counts.
const FRESH: Duration = Duration::from_secs(1);
/// How long a store may take to answer one.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of the store.
#[derive(Default)]
pub(crate) struct Health {
    seen: Mutex<Option<(Instant, Option<StorageErrorKind>)>>,
}

impl Health {
    fn see(&self, failure: Option<StorageErrorKind>) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), failure));
    }

    /// A request was answered with a failure of the store.
    pub(crate) fn store_failed(&self, kind: StorageErrorKind) {
        metrics::counter!("everturn_storage_failures_total", "kind" => word(kind)).increment(1);
        self.see(Some(kind));
    }

    /// Whether the store reads and writes, as it was a second ago at most.
    pub(crate) async fn store(&self, engine: &Engine) -> Result<(), StorageErrorKind> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, failure)) = seen
            && at.elapsed() < FRESH
        {
            return failure.map_or(Ok(()), Err);
        }
        let failure = match tokio::time::timeout(PATIENCE, probe(engine)).await {
            Ok(Ok(())) => None,
            Ok(Err(kind)) => Some(kind),
            Err(_) => Some(StorageErrorKind::Unavailable),
        };
        self.see(failure);
        failure.map_or(Ok(()), Err)
    }
}

/// Reads something, and takes a write that changes nothing all the way through the writer.
async fn probe(engine: &Engine) -> Result<(), StorageErrorKind> {
    engine.read().nodes(1).await.map_err(|error| error.kind)?;
    let nobody = TokenId::new("probe").map_err(|_| StorageErrorKind::Unavailable)?;
    match engine.touch_token(nobody).await {
        Err(EngineError::Op(OpError::Storage(error))) => Err(error.kind),
        _ => Ok(()),
    }
}

fn word(kind: StorageErrorKind) -> &'static str {
    match kind {
        StorageErrorKind::Full => "full",
        StorageErrorKind::Unavailable => "unavailable",
        StorageErrorKind::Corrupt => "corrupt",
        StorageErrorKind::TooNew => "too_new",
        StorageErrorKind::Replaced => "replaced",
        StorageErrorKind::Closed => "closed",
    }
}
