//! Free space: nothing new is accepted while there is little, so that what was accepted can end.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use everturn_api::Code;

use crate::problem::{Answer, Refused};

/// How long an answer of the file system counts.
const FRESH: Duration = Duration::from_secs(1);

/// Watches one file system.
pub(crate) struct Disk {
    folder: Option<PathBuf>,
    min_free_bytes: u64,
    seen: Mutex<Option<(Instant, Option<u64>)>>,
}

impl Disk {
    pub(crate) fn new(folder: Option<PathBuf>, min_free_bytes: u64) -> Self {
        Self { folder, min_free_bytes, seen: Mutex::new(None) }
    }

    /// Bytes free, as they were a second ago at most; `None` where it cannot be told.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let folder = self.folder.as_deref()?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, free)) = *seen
            && at.elapsed() < FRESH
        {
            return free;
        }
        let free = match rustix::fs::statvfs(folder) {
            Ok(system) => Some(system.f_bavail.saturating_mul(system.f_frsize)),
            Err(error) => {
                tracing::warn!(%error, "cannot tell how much space is free");
                None
            }
        };
        *seen = Some((Instant::now(), free));
        free
    }

    /// Whether there is too little.
    pub(crate) fn is_low(&self) -> bool {
        self.min_free_bytes > 0 && self.free_bytes().is_some_and(|free| free < self.min_free_bytes)
    }

    /// Refuses something new while there is too little.
    pub(crate) fn require_space(&self) -> Answer<()> {
        if !self.is_low() {
            return Ok(());
        }
        let detail = format!(
            "less than {} MiB are free where the store is, which is kept for what was accepted",
            self.min_free_bytes >> 20
        );
        Err(Refused::new(Code::StorageFull, detail).retry_after(30))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_space_is_refused_and_unknown_space_is_not() {
        let here = Some(std::env::temp_dir());
        assert!(Disk::new(here.clone(), u64::MAX).is_low());
        assert!(Disk::new(here.clone(), u64::MAX).require_space().is_err());
        assert!(!Disk::new(here.clone(), 1).is_low());
        assert!(!Disk::new(here, 0).is_low());
        assert!(!Disk::new(None, u64::MAX).is_low());
        assert!(!Disk::new(Some(PathBuf::from("/no/such/folder")), u64::MAX).is_low());
    }
}
