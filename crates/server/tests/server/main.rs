//! The server from outside: a real engine behind real sockets, with a store in memory or
//! on SQLite, and a model that does as it is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

/// Runs tests that take a world on both stores.
macro_rules! on_both_stores {
    ($($name:ident)*) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::world::World::new().await).await;
                }
            )*
        }
        mod on_sqlite {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::world::World::sqlite().await).await;
                }
            )*
        }
    };
}

mod access;
mod bad_input;
mod connection;
mod door;
mod edges;
mod events;
mod fleet;
mod histories;
mod in_flight;
mod inputs;
mod later;
mod limits;
mod line;
mod many;
mod operation;
mod page;
mod prompts;
mod puppet;
mod reader;
mod retention;
mod sessions;
mod sse;
mod virtually;
mod world;
