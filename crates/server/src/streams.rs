//! How many streams may be open, and who has them (promise P12).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use everturn_api::Code;
use everturn_core::Principal;

use crate::problem::{Answer, Refused};

/// The open streams.
pub(crate) struct Streams {
    max: usize,
    max_per_principal: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_principal: HashMap<Principal, usize>,
}

/// One stream's place; dropping it gives it back.
pub(crate) struct Slot {
    streams: Arc<Streams>,
    principal: Principal,
}

impl Streams {
    pub(crate) fn new(max: usize, max_per_principal: usize) -> Arc<Self> {
        Arc::new(Self { max, max_per_principal, open: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Nothing below panics with the counts half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more stream.
    pub(crate) fn open(self: &Arc<Self>, principal: &Principal) -> Answer<Slot> {
        let mut open = self.lock();
        let own = open.by_principal.get(principal).copied().unwrap_or(0);
        let reached = if own >= self.max_per_principal {
            Some(format!("{own} streams of this principal are open"))
        } else if open.all >= self.max {
            Some(format!("{} streams are open", open.all))
        } else {
            None
        };
        if let Some(detail) = reached {
            return Err(Refused::new(Code::TooManyViewers, detail).retry_after(5));
        }
        open.all += 1;
        open.by_principal.insert(principal.clone(), own + 1);
        Ok(Slot { streams: Arc::clone(self), principal: principal.clone() })
    }

    /// Streams that are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().all
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        open.all = open.all.saturating_sub(1);
        if let Some(own) = open.by_principal.get_mut(&self.principal) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                open.by_principal.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let streams = Streams::new(3, 2);
        let who = |name: &str| Principal::new(name).unwrap();
        let refused = |principal: &Principal| match streams.open(principal) {
            Err(refused) => refused.problem().code.clone(),
            Ok(_) => "opened".to_owned(),
        };
        let first = streams.open(&who("a")).unwrap();
        let _second = streams.open(&who("a")).unwrap();
        assert_eq!(refused(&who("a")), "too_many_viewers");
        let _third = streams.open(&who("b")).unwrap();
        assert_eq!(refused(&who("c")), "too_many_viewers");
        assert_eq!(streams.count(), 3);
        drop(first);
        assert_eq!(streams.count(), 2);
        assert!(streams.open(&who("a")).is_ok());
    }
}
