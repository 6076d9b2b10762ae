//! One face for both ways to work with sessions: through a running server, or with the engine in this
//! process. Everything above this module cannot tell which it is.

pub(crate) mod event;
pub(crate) mod http;
pub(crate) mod join;
pub(crate) mod local;
mod problems;

use std::time::Duration;

use async_trait::async_trait;
use everturn_api::input::{Input, Receipt};
use everturn_api::message::Message;
use everturn_api::page::{CursorPage, Page};
use everturn_api::prompt::Prompt;
use everturn_api::request::SubmitInput;
use everturn_api::run::{Run, RunEvents};
use everturn_api::session::Session;

pub(crate) use event::Event;

use crate::error::Result;

/// What a feed gives, in order.
#[derive(Debug)]
pub(crate) enum Item {
    /// First of all.
    Opened,
    /// One event. Boxed: it is much larger than its neighbours.
    Event(Box<Event>),
    /// The cursor could not be used; the feed goes on live from there.
    Reset {
        /// Why.
        reason: String,
        /// Where it goes on.
        latest: u64,
    },
    /// History is over.
    CaughtUp,
    /// The session was deleted.
    End,
}

/// A session's feed. Asking can be dropped and repeated without losing anything.
#[async_trait]
pub(crate) trait Feed: Send {
    /// The next item.
    ///
    /// # Errors
    /// A passing one when the other side went away: open the feed again behind the last offset.
    async fn next(&mut self) -> Result<Item>;
}

/// Who works on the sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A server, at this address.
    Server(String),
    /// This process.
    Here,
}

/// Which messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// The last ones.
    Last,
    /// The ones before this message.
    Before(u64),
    /// The ones after this message; 0 is the beginning.
    After(u64),
}

/// Which sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    pub(crate) state: Option<String>,
    pub(crate) query: Option<String>,
    pub(crate) cursor: Option<String>,
    pub(crate) limit: u32,
}

/// A person's decision about an interrupted turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decide {
    Continue,
    Discard,
    /// With another text, if there is one.
    Resend(Option<String>),
}

/// Everything that the commands need.
#[async_trait]
pub(crate) trait Client: Send + Sync {
    /// Who works on the sessions.
    fn place(&self) -> Place;

    /// Looks for the other side again after it went away, on another port perhaps.
    ///
    /// # Errors
    /// A passing one while it is not there.
    async fn find_again(&self) -> Result<()>;

    /// One session; `None` if there is none.
    async fn session(&self, id: &str) -> Result<Option<Session>>;

    /// Accepts an input. The request id makes repeating it safe.
    async fn submit(&self, session: &str, input: &SubmitInput) -> Result<Receipt>;

    /// One input, after it ended or after `wait`.
    async fn input(&self, id: &str, wait: Duration) -> Result<Input>;

    /// Withdraws an input that still waits.
    async fn cancel_input(&self, id: &str) -> Result<()>;

    /// A session's inputs.
    async fn inputs(&self, session: &str, status: Option<&str>) -> Result<Vec<Input>>;

    /// A session's feed behind `after`; without it, live from now.
    async fn feed(&self, session: &str, after: Option<u64>, viewer: bool) -> Result<Box<dyn Feed>>;

    /// Stops the running turn.
    async fn stop(&self, session: &str, generation: Option<u64>, keep_queue: bool) -> Result<()>;

    /// Answers a prompt.
    async fn answer(&self, prompt: &Prompt, choice: Option<&str>, text: Option<&str>)
    -> Result<()>;

    /// Decides about an interrupted turn.
    async fn decide(&self, session: &str, generation: u64, decision: Decide) -> Result<()>;

    /// One run.
    async fn run(&self, id: &str) -> Result<Run>;

    /// A session's runs, newest first, below a generation.
    async fn runs(&self, session: &str, before: Option<u64>, limit: u32) -> Result<Page<Run>>;

    /// A window of a run's journal.
    async fn run_events(&self, run: &str, after: u64, limit: u32) -> Result<RunEvents>;

    /// Sessions, newest change first.
    async fn sessions(&self, listing: &Listing) -> Result<CursorPage<Session>>;

    /// A window of a transcript.
    async fn messages(&self, session: &str, window: Window, limit: u32) -> Result<Page<Message>>;

    /// Closes a session.
    async fn end_session(&self, session: &str, reason: &str) -> Result<Session>;

    /// Deletes a session.
    async fn delete_session(&self, session: &str, force: bool) -> Result<()>;

    /// Leaves: nothing is claimed any more, what runs here ends or is handed over.
    async fn close(&self);
}

/// Rows asked for at a time.
pub(crate) const PAGE: u32 = everturn_core::limits::PAGE_ROWS_MAX;
