//! The crash harness and the history checker; end-to-end tests of the real binary.

pub mod openai;
