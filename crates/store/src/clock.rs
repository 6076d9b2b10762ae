//! Time and randomness, as arguments: the real ones here, made-up ones in the simulator.

use everturn_core::{LeaseExpiry, Timestamp};
use uuid::Uuid;

/// Where a store takes time and fresh ids from.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock: for people, never for order.
    fn now(&self) -> Timestamp;
    /// This boot and this moment of it, in milliseconds, suspended time included.
    fn boot(&self) -> LeaseExpiry;
    /// A fresh UUID, version 7.
    fn uuid(&self) -> Uuid;
}

/// The machine's clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    boot_id: String,
}

impl SystemClock {
    /// Reads the boot id once.
    ///
    /// # Errors
    /// Where the kernel does not tell it (`/proc` is not mounted).
    pub fn new() -> std::io::Result<Self> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self { boot_id: boot_id.trim().to_owned() })
    }
}

/// Milliseconds since this boot, suspended time included (`CLOCK_BOOTTIME`).
#[must_use]
pub fn boot_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    secs * 1_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn boot(&self) -> LeaseExpiry {
        LeaseExpiry { boot_id: self.boot_id.clone(), boot_ms: boot_ms() }
    }

    fn uuid(&self) -> Uuid {
        Uuid::now_v7()
    }
}
