//! Wire types of every protocol that Everturn speaks; schemas; no logic.
