//! Fuzzes rows of events that are damaged; the promises are in `everturn_sqlite::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| everturn_sqlite::fuzz::stored_event(data));
