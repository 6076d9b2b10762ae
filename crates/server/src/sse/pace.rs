//! How often a live viewer is written to, when many are.
//!
//! A write to one viewer costs a system call here and a wake-up there, however small it is. With a
//! thousand viewers of quick turns that is all that a small machine does, and everybody falls behind.
//! So the more streams are busy, the longer each one gathers before it is written to again. The first
//! event after a silence never waits, nor does whoever has a lot to catch up with.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Streams that may be busy before any of them waits.
const FREE: usize = 50;
/// What each busy stream beyond these adds to the wait of all.
const EACH: Duration = Duration::from_micros(100);
/// The longest wait.
pub(super) const LONGEST: Duration = Duration::from_millis(100);
/// Writes of so many bytes are followed by the next one at once: somebody catches up.
const LARGE_BYTES: usize = 4 << 10;

/// How many streams were written to, second by second.
#[derive(Debug)]
pub(crate) struct Pace {
    begun: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    second: u64,
    now: usize,
    before: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { begun: Instant::now(), counts: Mutex::default() }
    }
}

/// One stream's part.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// The second in which it was counted last, and one more, so that 0 is never.
    counted: u64,
}

impl Pace {
    /// A stream is written to. Returns how long it gathers before the next time.
    pub(super) fn wrote(&self, step: &mut Step, bytes: usize) -> Duration {
        self.wrote_at(self.begun.elapsed().as_secs(), step, bytes)
    }

    fn wrote_at(&self, second: u64, step: &mut Step, bytes: usize) -> Duration {
        // Nothing below panics with the counts half changed.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if second != counts.second {
            counts.before = if second == counts.second + 1 { counts.now } else { 0 };
            counts.now = 0;
            counts.second = second;
        }
        if step.counted != second + 1 {
            step.counted = second + 1;
            counts.now += 1;
        }
        if bytes >= LARGE_BYTES {
            return Duration::ZERO;
        }
        let busy = counts.now.max(counts.before).saturating_sub(FREE);
        EACH.saturating_mul(u32::try_from(busy).unwrap_or(u32::MAX)).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_streams_never_wait_and_many_wait_no_longer_than_the_longest() {
        let pace = Pace::default();
        let mut few: Vec<Step> = (0..FREE).map(|_| Step::default()).collect();
        for second in 0..3 {
            for step in &mut few {
                // Each counts once a second, however often it is written to.
                for _ in 0..9 {
                    assert_eq!(pace.wrote_at(second, step, 200), Duration::ZERO);
                }
            }
        }
        let mut many: Vec<Step> = (0..2_000).map(|_| Step::default()).collect();
        let mut last = Duration::ZERO;
        for step in &mut many {
            let wait = pace.wrote_at(3, step, 200);
            assert!(wait >= last && wait <= LONGEST);
            last = wait;
        }
        assert_eq!(last, LONGEST);
        // Whoever catches up does not wait, and silence is forgotten.
        assert_eq!(pace.wrote_at(4, &mut many[0], LARGE_BYTES), Duration::ZERO);
        assert_eq!(pace.wrote_at(4, &mut many[1], 200), LONGEST);
        assert_eq!(pace.wrote_at(9, &mut many[0], 200), Duration::ZERO);
    }
}
