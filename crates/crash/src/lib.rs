//! Named places at which the process can be made to die, for the crash harness.
//!
//! `EVERTURN_CRASH=POINT[:NTH]` makes a process of the ordinary release binary abort when it passes
//! the point for the NTH time (the first, if no number is given): no destructor runs, nothing is
//! flushed, no other thread goes on. `everturn torture` starts servers so. What a point costs when
//! none is armed is one relaxed load of a byte.
//!
//! This is a crate of its own because the engine, the stores and the tools all have such places, and
//! `core` below them may not know of the environment or of processes. The list of points is closed:
//! [`points`] has them all, and docs/torture.md shows them (a test compares).
//!
//! The `fail` crate has fail points as well, and is not used: it has no action that ends the process
//! at once (a panic unwinds, and our stores and workers catch panics), it is compiled out of release
//! binaries unless a feature is on, which is exactly where users run `torture`, and each passing takes
//! a lock and looks a string up, where ours are on the path of every token.

mod points;

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

pub use points::{Point, Row};

/// The variable that arms a point.
pub const VARIABLE: &str = "EVERTURN_CRASH";

/// What the process says on stderr, before the point's name, when it dies.
pub const LAST_WORDS: &str = "everturn: dies at the crash point ";

/// The armed point, counted from 1; 0 while none is.
static ARMED: AtomicU8 = AtomicU8::new(0);
/// Passings that are left, the last one included.
static LEFT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static WITHIN: Cell<Option<Point>> = const { Cell::new(None) };
}

/// `POINT[:NTH]` cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPoint {
    /// There is no such point.
    #[error("there is no crash point {0:?}")]
    Unknown(String),
    /// What stands behind the colon is no number from 1.
    #[error("{0:?} is not how often the point is to be passed: a number from 1")]
    Number(String),
}

/// Reads `POINT[:NTH]`.
///
/// # Errors
/// The point is unknown, or the number is none.
pub fn parse(text: &str) -> Result<(Point, u32), BadPoint> {
    let (name, nth) = match text.split_once(':') {
        Some((name, nth)) => (name, nth),
        None => (text, "1"),
    };
    let point = Point::named(name).ok_or_else(|| BadPoint::Unknown(name.to_owned()))?;
    match nth.parse() {
        Ok(nth) if nth > 0 => Ok((point, nth)),
        _ => Err(BadPoint::Number(nth.to_owned())),
    }
}

/// Makes the process die when it passes this point for the `nth` time from now on.
pub fn arm(point: Point, nth: u32) {
    LEFT.store(nth.max(1), Ordering::SeqCst);
    ARMED.store(point as u8 + 1, Ordering::SeqCst);
}

/// Whether any point is armed: whoever has to look closer to know what it passes asks first.
#[inline]
#[must_use]
pub fn is_armed() -> bool {
    ARMED.load(Ordering::Relaxed) != 0
}

/// Passes a point; does not come back if it is the process's time.
#[inline]
pub fn pass(point: Point) {
    if ARMED.load(Ordering::Relaxed) == point as u8 + 1 {
        count(point);
    }
}

#[cold]
fn count(point: Point) {
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        die(point);
    }
}

/// Ends the process as a fault of the hardware would.
fn die(point: Point) -> ! {
    // Stderr has no buffer of ours.
    let _ = writeln!(std::io::stderr(), "{LAST_WORDS}{}", point.name());
    // Hundreds of these are meant to be; a picture of the memory of each would fill the disk.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    std::process::abort()
}

/// From here until the answer is dropped, each record that a store writes on this thread passes this
/// point: so a transaction is cut off between any two of its records.
#[must_use]
pub fn within(point: Point) -> Within {
    if !is_armed() {
        return Within { before: None, set: false };
    }
    Within { before: WITHIN.replace(Some(point)), set: true }
}

/// Ends what [`within`] began.
#[derive(Debug)]
pub struct Within {
    before: Option<Point>,
    set: bool,
}

impl Drop for Within {
    fn drop(&mut self) {
        if self.set {
            WITHIN.set(self.before);
        }
    }
}

/// A store is about to write one record.
#[inline]
pub fn record() {
    if is_armed()
        && let Some(point) = WITHIN.get()
    {
        pass(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_named_with_or_without_a_number() {
        assert_eq!(parse("admit.committed"), Ok((Point::AdmitCommitted, 1)));
        assert_eq!(parse("claim.record:7"), Ok((Point::ClaimRecord, 7)));
        assert_eq!(parse("claim.recrod"), Err(BadPoint::Unknown("claim.recrod".to_owned())));
        for bad in ["claim.record:", "claim.record:0", "claim.record:-1", "claim.record:x"] {
            assert!(matches!(parse(bad), Err(BadPoint::Number(_))), "{bad}");
        }
    }

    /// A point that is passed less often than asked, and any other point, does nothing. (That the
    /// process dies in the end is what the harness shows of every point.)
    #[test]
    fn only_the_armed_point_counts_and_only_within_its_scope() {
        arm(Point::ClaimRecord, 3);
        pass(Point::AdmitCommitted);
        record();
        assert_eq!(LEFT.load(Ordering::SeqCst), 3);
        {
            let _claim = within(Point::ClaimRecord);
            record();
            {
                let _other = within(Point::SettleRecord);
                record();
            }
            assert_eq!(LEFT.load(Ordering::SeqCst), 2);
            record();
        }
        record();
        assert_eq!(LEFT.load(Ordering::SeqCst), 1);
    }
}
