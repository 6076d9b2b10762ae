//! The Store contract, the operations behind it, stored record types, an in-memory store and the conformance suite.
