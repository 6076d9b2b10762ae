//! The Store in memory.
