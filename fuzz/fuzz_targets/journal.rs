//! Fuzzes run journals as JSON lines; the promises are in `everturn_hermes::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| everturn_hermes::fuzz::journal(data));
