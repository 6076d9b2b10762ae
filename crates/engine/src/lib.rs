//! The loop: admit, claim, run, journal, publish, settle, recover.
