//! What ends a run, and how it ended: one table, in the words of the earlier tools.

use everturn_core::run::{Cause, TerminalState};

/// How a run ended, in the earlier tools' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// `completed`
    Completed,
    /// `tool_limit_reached`
    ToolLimitReached,
    /// `interrupted-by-user`
    InterruptedByUser,
    /// `interrupted-by-crash`
    InterruptedByCrash,
    /// `errored`
    Errored,
    /// `lost-worker-bookkeeping`: nobody works on it, and nothing tells of a crash.
    LostWorkerBookkeeping,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Completed,
        Self::ToolLimitReached,
        Self::InterruptedByUser,
        Self::InterruptedByCrash,
        Self::Errored,
        Self::LostWorkerBookkeeping,
    ];

    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ToolLimitReached => "tool_limit_reached",
            Self::InterruptedByUser => "interrupted-by-user",
            Self::InterruptedByCrash => "interrupted-by-crash",
            Self::Errored => "errored",
            Self::LostWorkerBookkeeping => "lost-worker-bookkeeping",
        }
    }

    /// The state of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// How an event ends its run; `None` for one that does not.
    ///
    /// `kind` and `declared` are the payload's `type` and `terminal_state`, where it has them; case
    /// and surrounding space do not matter. `stored` is the record's own `terminal_state`: it can
    /// make the row of a crash more precise and is otherwise not believed.
    ///
    /// | event | condition | state |
    /// | --- | --- | --- |
    /// | `done`, `stream_end` | declared `tool_limit_reached` | tool limit reached |
    /// | `done`, `stream_end` | otherwise | completed |
    /// | `cancel` | any | interrupted by user |
    /// | `apperror`, `error` | type `tool_limit_reached` | tool limit reached |
    /// | `apperror`, `error` | type `cancelled`, `canceled` | interrupted by user |
    /// | `apperror`, `error` | type `interrupted`, stored `lost-worker-bookkeeping` | lost worker bookkeeping |
    /// | `apperror`, `error` | type `interrupted` | interrupted by crash |
    /// | `apperror`, `error` | otherwise | errored |
    /// | any other | | not terminal |
    #[must_use]
    pub fn of_event(
        event: &str,
        kind: Option<&str>,
        declared: Option<&str>,
        stored: Option<&str>,
    ) -> Option<Self> {
        let is = |word: Option<&str>, name: &str| {
            word.is_some_and(|word| word.trim().eq_ignore_ascii_case(name))
        };
        let state = match event {
            "done" | "stream_end" if is(declared, "tool_limit_reached") => Self::ToolLimitReached,
            "done" | "stream_end" => Self::Completed,
            "cancel" => Self::InterruptedByUser,
            "apperror" | "error" if is(kind, "tool_limit_reached") => Self::ToolLimitReached,
            "apperror" | "error" if is(kind, "cancelled") || is(kind, "canceled") => {
                Self::InterruptedByUser
            }
            "apperror" | "error" if is(kind, "interrupted") => {
                if is(stored, Self::LostWorkerBookkeeping.as_str()) {
                    Self::LostWorkerBookkeeping
                } else {
                    Self::InterruptedByCrash
                }
            }
            "apperror" | "error" => Self::Errored,
            _ => return None,
        };
        Some(state)
    }

    /// The earlier word for how one of our runs ended.
    ///
    /// | ours | cause | earlier |
    /// | --- | --- | --- |
    /// | `completed` | | `completed` |
    /// | `failed` | | `errored` |
    /// | `cancelled-by-user` | | `interrupted-by-user` |
    /// | `interrupted` | `process_restart` | `interrupted-by-crash` |
    /// | `interrupted` | any other, or none | `lost-worker-bookkeeping` |
    ///
    /// Only where a newer process of the same home proves that the old one is gone is it called a
    /// crash.
    #[must_use]
    pub const fn from_ours(state: TerminalState, cause: Option<Cause>) -> Self {
        match (state, cause) {
            (TerminalState::Completed, _) => Self::Completed,
            (TerminalState::Failed, _) => Self::Errored,
            (TerminalState::Cancelled, _) => Self::InterruptedByUser,
            (TerminalState::Interrupted, Some(Cause::ProcessRestart)) => Self::InterruptedByCrash,
            (TerminalState::Interrupted, _) => Self::LostWorkerBookkeeping,
        }
    }

    /// How we call it, with the cause where it is an interruption.
    ///
    /// | earlier | ours | cause |
    /// | --- | --- | --- |
    /// | `completed` | `completed` | |
    /// | `errored`, `tool_limit_reached` | `failed` | |
    /// | `interrupted-by-user` | `cancelled-by-user` | |
    /// | `interrupted-by-crash` | `interrupted` | `unknown`: the word is no evidence of a restart |
    /// | `lost-worker-bookkeeping` | `interrupted` | `lost_worker` |
    #[must_use]
    pub const fn to_ours(self) -> (TerminalState, Option<Cause>) {
        match self {
            Self::Completed => (TerminalState::Completed, None),
            Self::Errored | Self::ToolLimitReached => (TerminalState::Failed, None),
            Self::InterruptedByUser => (TerminalState::Cancelled, None),
            Self::InterruptedByCrash => (TerminalState::Interrupted, Some(Cause::Unknown)),
            Self::LostWorkerBookkeeping => (TerminalState::Interrupted, Some(Cause::LostWorker)),
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for State {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

/// Whether a record of this name marks the end of its run.
#[must_use]
pub fn is_terminal(event: &str) -> bool {
    State::of_event(event, None, None, None).is_some()
}

/// Whether it only says that the connection may close: it tells nothing if something else told how
/// the run ended.
pub(crate) fn is_bookkeeping(event: &str) -> bool {
    event == "stream_end"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole product of events, types, declared and stored states, against the table of the
    /// reference written as rows.
    #[test]
    fn the_table_of_events_holds_for_every_combination() {
        let events = ["done", "stream_end", "cancel", "apperror", "error", "token", "Done", ""];
        let types = [
            None,
            Some("tool_limit_reached"),
            Some("cancelled"),
            Some("canceled"),
            Some(" Interrupted "),
            Some("auth_mismatch"),
            Some(""),
        ];
        let words = [None, Some("Tool_Limit_Reached"), Some("completed"), Some("no such state")];
        let stored = [None, Some("lost-worker-bookkeeping"), Some("completed"), Some("errored")];
        for event in events {
            for kind in types {
                for declared in words {
                    for stored in stored {
                        let normal = kind.map(|kind| kind.trim().to_lowercase());
                        let rows = [
                            (["done", "stream_end"].contains(&event), {
                                let limit = declared == Some("Tool_Limit_Reached");
                                if limit { "tool_limit_reached" } else { "completed" }
                            }),
                            (event == "cancel", "interrupted-by-user"),
                            (
                                ["apperror", "error"].contains(&event),
                                match normal.as_deref() {
                                    Some("tool_limit_reached") => "tool_limit_reached",
                                    Some("cancelled" | "canceled") => "interrupted-by-user",
                                    Some("interrupted") => match stored {
                                        Some("lost-worker-bookkeeping") => {
                                            "lost-worker-bookkeeping"
                                        }
                                        _ => "interrupted-by-crash",
                                    },
                                    _ => "errored",
                                },
                            ),
                        ];
                        let wanted = rows.iter().find(|(is, _)| *is).map(|(_, word)| *word);
                        let got = State::of_event(event, kind, declared, stored);
                        assert_eq!(got.map(State::as_str), wanted, "{event} {kind:?} {declared:?}");
                        assert_eq!(is_terminal(event), wanted.is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn our_states_have_the_earlier_names() {
        use TerminalState as T;
        let rows = [
            (T::Completed, None, "completed"),
            (T::Failed, None, "errored"),
            (T::Cancelled, None, "interrupted-by-user"),
            (T::Interrupted, Some(Cause::ProcessRestart), "interrupted-by-crash"),
            (T::Interrupted, Some(Cause::SplitBrain), "lost-worker-bookkeeping"),
            (T::Interrupted, Some(Cause::LostWorker), "lost-worker-bookkeeping"),
            (T::Interrupted, Some(Cause::LeaseLost), "lost-worker-bookkeeping"),
            (T::Interrupted, Some(Cause::Unknown), "lost-worker-bookkeeping"),
            (T::Interrupted, None, "lost-worker-bookkeeping"),
        ];
        for (state, cause, word) in rows {
            assert_eq!(State::from_ours(state, cause).as_str(), word, "{state} {cause:?}");
        }
        for cause in Cause::ALL {
            assert!(rows.iter().any(|row| row.1 == Some(*cause)), "a cause without a row: {cause}");
        }
    }

    #[test]
    fn the_earlier_names_have_our_states() {
        let rows = [
            ("completed", "completed", None),
            ("tool_limit_reached", "failed", None),
            ("interrupted-by-user", "cancelled-by-user", None),
            ("interrupted-by-crash", "interrupted", Some("unknown")),
            ("errored", "failed", None),
            ("lost-worker-bookkeeping", "interrupted", Some("lost_worker")),
        ];
        assert_eq!(rows.len(), State::ALL.len());
        for (word, ours, cause) in rows {
            let (state, found) = State::parse(word).unwrap().to_ours();
            assert_eq!((state.as_str(), found.map(Cause::as_str)), (ours, cause), "{word}");
        }
        assert_eq!(State::parse("running"), None);
    }

    #[test]
    fn there_and_back_is_the_same_ending() {
        for state in TerminalState::ALL {
            for cause in Cause::ALL {
                let (back, _) = State::from_ours(*state, Some(*cause)).to_ours();
                assert_eq!(back, *state);
            }
        }
    }
}
