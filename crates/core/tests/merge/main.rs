//! Merging two records of one conversation, from outside.
//!
//! `seeds` has the cases that an earlier system pinned, `cases` every way in which it went wrong and
//! each line of the tables in the module's documentation, `properties` random conversations with
//! random distortions, beside `oracle`, a slow statement of the same rules, and `work` the cost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod cases;
mod line;
mod oracle;
mod properties;
mod seeds;
mod work;
