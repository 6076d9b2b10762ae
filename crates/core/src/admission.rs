//! Whether an input is accepted, known already, or refused (promises P2 and P3).

use crate::digest::Digest;
use crate::input::{Delivery, Mode};

/// What the store knows when an input arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Digest of the input that has this identity already.
    pub known: Option<Digest>,
    /// The session was deleted.
    pub deleted: bool,
    /// A turn runs or an input waits.
    pub busy: bool,
    /// A turn runs.
    pub running: bool,
    /// A person has stopped that turn already.
    pub stopping: bool,
    /// Inputs that wait.
    pub queue_length: u32,
}

/// What to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The same identity said the same thing: give its receipt again and change nothing.
    Duplicate,
    /// The same identity said something else.
    Conflict,
    /// The session was deleted.
    Deleted,
    /// The sender wanted it only if nothing runs.
    Busy,
    /// There is no turn to steer.
    NotRunning,
    /// The queue is full.
    QueueFull,
    /// Take it, and put it there.
    Accept {
        /// How it is delivered.
        delivery: Delivery,
        /// Ahead of everything that waits.
        first: bool,
        /// Stop the running turn.
        stop: bool,
    },
}

/// Decides. The first row that applies wins.
///
/// | fact | decision |
/// | --- | --- |
/// | identity known, same digest | duplicate, even if the session was deleted |
/// | identity known, other digest | conflict |
/// | session deleted | deleted |
/// | `reject` and busy | busy |
/// | `steer` and nothing runs | not running |
/// | queue at its limit | queue full |
/// | `interrupt` | accept first; stop what runs |
/// | otherwise | accept last |
#[must_use]
pub fn decide(mode: Mode, digest: Digest, facts: &Facts, queue_max: u32) -> Decision {
    match facts.known {
        Some(known) if known == digest => return Decision::Duplicate,
        Some(_) => return Decision::Conflict,
        None => {}
    }
    if facts.deleted {
        return Decision::Deleted;
    }
    if mode == Mode::Reject && facts.busy {
        return Decision::Busy;
    }
    if mode == Mode::Steer && !facts.running {
        return Decision::NotRunning;
    }
    if facts.queue_length >= queue_max {
        return Decision::QueueFull;
    }
    if mode == Mode::Interrupt {
        // Only one input stops a turn; those that find it stopping run ahead of the queue as well.
        let stop = facts.running && !facts.stopping;
        let delivery = if stop { Delivery::Interrupted } else { Delivery::Queued };
        return Decision::Accept { delivery, first: true, stop };
    }
    Decision::Accept { delivery: Delivery::Queued, first: false, stop: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: Digest = Digest([1; 32]);
    const OTHER: Digest = Digest([2; 32]);

    fn facts() -> Facts {
        Facts {
            known: None,
            deleted: false,
            busy: false,
            running: false,
            stopping: false,
            queue_length: 0,
        }
    }

    #[test]
    fn identity_comes_before_everything_else() {
        let deleted = Facts {
            known: Some(SAME),
            deleted: true,
            busy: true,
            running: true,
            stopping: false,
            queue_length: 9,
        };
        for mode in Mode::ALL {
            assert_eq!(decide(*mode, SAME, &deleted, 1), Decision::Duplicate);
            assert_eq!(decide(*mode, OTHER, &deleted, 1), Decision::Conflict);
            let unknown = Facts { known: None, ..deleted };
            assert_eq!(decide(*mode, SAME, &unknown, 1), Decision::Deleted);
        }
    }

    #[test]
    fn modes_do_what_they_say() {
        let running = Facts { busy: true, running: true, ..facts() };
        assert_eq!(decide(Mode::Reject, SAME, &running, 9), Decision::Busy);
        assert_eq!(decide(Mode::Steer, SAME, &facts(), 9), Decision::NotRunning);
        assert_eq!(
            decide(Mode::Interrupt, SAME, &running, 9),
            Decision::Accept { delivery: Delivery::Interrupted, first: true, stop: true }
        );
        assert_eq!(
            decide(Mode::Interrupt, SAME, &Facts { stopping: true, ..running }, 9),
            Decision::Accept { delivery: Delivery::Queued, first: true, stop: false }
        );
        assert_eq!(
            decide(Mode::Interrupt, SAME, &facts(), 9),
            Decision::Accept { delivery: Delivery::Queued, first: true, stop: false }
        );
        assert_eq!(
            decide(Mode::Queue, SAME, &Facts { queue_length: 9, ..facts() }, 9),
            Decision::QueueFull
        );
    }
}
