//! Waiting for a store that fails: how long, and how loudly.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use everturn_store::{StorageError, StorageErrorKind};
use tokio::time::Instant;

/// The first pause between two tries; each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause while the store is away: it may be back at any moment.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest pause while the store is damaged: only a person can mend that.
const DAMAGED_PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often the same kind of failure is said again.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The pauses of one who waits.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Patience {
    /// How long to wait before the next try.
    pub(crate) fn pause(&mut self, kind: Option<StorageErrorKind>) -> Duration {
        let max = match kind {
            Some(StorageErrorKind::Corrupt) => DAMAGED_PAUSE_MAX,
            _ => PAUSE_MAX,
        };
        let pause = self.0.min(max);
        self.0 = (pause * 2).min(max);
        pause
    }
}

/// Who waits is many, and the log is one: of the same wait for the same kind of failure the first is
/// said aloud, and then one a minute.
#[derive(Debug, Default)]
pub(crate) struct Noise(Mutex<HashMap<(&'static str, StorageErrorKind), Instant>>);

impl Noise {
    /// Whether a failure is to be said aloud.
    fn is_news(&self, what: &'static str, kind: StorageErrorKind) -> bool {
        let now = Instant::now();
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = said.get(&(what, kind)).is_some_and(|at| now.duration_since(*at) < SAID_EVERY);
        if !old {
            said.insert((what, kind), now);
        }
        !old
    }

    /// Says in the log that something waits for the store.
    pub(crate) fn say(&self, what: &'static str, error: &StorageError) {
        if self.is_news(what, error.kind) {
            tracing::warn!(%error, kind = ?error.kind, "{what}");
        } else {
            tracing::debug!(%error, kind = ?error.kind, "{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(kind: StorageErrorKind) -> Vec<Duration> {
        let mut patience = Patience::default();
        (0..20).map(|_| patience.pause(Some(kind))).collect()
    }

    #[test]
    fn pauses_double_up_to_a_limit_that_is_longer_for_a_damaged_store() {
        let away = pauses(StorageErrorKind::Unavailable);
        assert_eq!(away[..3], [50, 100, 200].map(Duration::from_millis));
        assert_eq!(away.iter().max(), Some(&Duration::from_secs(2)));
        let damaged = pauses(StorageErrorKind::Corrupt);
        assert_eq!(damaged[..3], away[..3]);
        assert_eq!(damaged.iter().max(), Some(&Duration::from_secs(60)));
        // One that turns out to be away only is tried as often as any other.
        let mut patience = Patience::default();
        for _ in 0..20 {
            patience.pause(Some(StorageErrorKind::Corrupt));
        }
        assert_eq!(patience.pause(Some(StorageErrorKind::Full)), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_of_failure_is_said_once_a_minute() {
        let noise = Noise::default();
        let mut said = 0;
        // Many workers, for ten minutes.
        for _ in 0..600 {
            for _ in 0..10 {
                said += u32::from(noise.is_news("x", StorageErrorKind::Corrupt));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(said, 10);
        assert!(noise.is_news("x", StorageErrorKind::Full), "another kind is news");
        assert!(noise.is_news("y", StorageErrorKind::Corrupt), "and so is another wait");
    }
}
