//! Damage on purpose: one broken promise in the home of a server that is not running. What the harness
//! says of it shows that it can say anything but "all is well".

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use rusqlite::Connection;

use crate::server::Home;

/// The promise that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plant {
    /// An accepted input is gone.
    P1,
    /// An input says something else than what was sent.
    P2,
    /// Two messages of people change places.
    P3,
    /// A run has a second terminal event.
    P4,
    /// An interruption has no evidence.
    P5,
    /// One byte of an event is another one.
    P6,
    /// An event is gone from the middle of the feed.
    P7,
    /// A message is there twice.
    P8,
    /// A command's effect happened twice.
    P9,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 9] =
        [Self::P1, Self::P2, Self::P3, Self::P4, Self::P5, Self::P6, Self::P7, Self::P8, Self::P9];

    /// The promise's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P1 => "P1",
            Self::P2 => "P2",
            Self::P3 => "P3",
            Self::P4 => "P4",
            Self::P5 => "P5",
            Self::P6 => "P6",
            Self::P7 => "P7",
            Self::P8 => "P8",
            Self::P9 => "P9",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }

    /// Breaks the promise. Needs a history with a command, two inputs and an interruption.
    pub(super) fn damage(self, home: &Home) -> Result<()> {
        if self == Self::P9 {
            let path = home.work().join("effects");
            let line = "w1\n".repeat(2);
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(line.as_bytes())?;
            return Ok(());
        }
        let conn = Connection::open(home.database())?;
        let changed = conn.execute(self.sql(), []).context(self.sql())?;
        ensure!(changed > 0, "there is nothing to damage for {}", self.name());
        Ok(())
    }

    /// The statement that does it.
    const fn sql(self) -> &'static str {
        match self {
            Self::P1 => {
                "DELETE FROM inputs WHERE input_no = (SELECT max(input_no) FROM inputs WHERE kind = 'message')"
            }
            Self::P2 => "UPDATE inputs SET text = text || '!' WHERE kind = 'message'",
            Self::P3 => {
                "UPDATE messages SET position = (SELECT max(position) FROM messages) || '0' \
                 WHERE message_no = (SELECT min(message_no) FROM messages WHERE role = 'user')"
            }
            Self::P4 => {
                // A piece of text takes the kind and the body of a terminal event.
                "UPDATE events SET (kind, name, body) = (SELECT kind, name, body FROM events WHERE \
                 body LIKE '%\"message_id\"%' ORDER BY \"offset\" DESC LIMIT 1) WHERE run_no IS NOT NULL \
                 AND seq = 2"
            }
            Self::P5 => "UPDATE runs SET evidence = NULL WHERE terminal_state = 'interrupted'",
            Self::P6 => {
                "UPDATE events SET body = replace(body, 'write', 'wrote') WHERE run_no IS NOT NULL \
                 AND body LIKE '%write%'"
            }
            Self::P7 => {
                "DELETE FROM events WHERE \"offset\" = (SELECT max(\"offset\") - 3 FROM events)"
            }
            Self::P8 => {
                "INSERT INTO messages (session_no, id, position, role, kind, tool_call_id, generation, \
                 run_id, input_id, recovered, created_at, text, parts, reasoning) SELECT session_no, \
                 id + 1000, position || '0', role, kind, tool_call_id, generation, run_id, input_id, \
                 recovered, created_at, text, parts, reasoning FROM messages WHERE role = 'user' LIMIT 1"
            }
            Self::P9 => "",
        }
    }
}
