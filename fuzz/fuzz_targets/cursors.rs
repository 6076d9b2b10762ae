//! Fuzzes cursors of every kind; the promises are in `everturn_server::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| everturn_server::fuzz::cursors(data));
