//! The tier of a test run: fixed counts by default, the full ones with `cargo xtask test --long`.

/// Whether the full counts are wanted (`EVERTURN_LONG=1`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os("EVERTURN_LONG").is_some_and(|value| value == "1")
}

/// The count of this tier, for a test whose two counts stand side by side in its source.
#[must_use]
pub fn count(default: usize, full: usize) -> usize {
    if long() { full } else { default }
}
