//! The feed of one session, or the journal of one run.

use bytes::BytesMut;
use everturn_core::{RunId, SessionId};
use everturn_engine::live::{Item, Stream};
use everturn_store::StorageError;
use serde_json::json;

use super::{CHUNK_BYTES, Feed, frame};
use crate::state::Server;
use crate::wire;

/// What is streamed.
enum Kind {
    Session,
    Run {
        id: RunId,
        /// The stream ends behind this seq.
        max: Option<u64>,
    },
}

/// One session or one run.
pub(crate) struct One {
    stream: Stream,
    session: SessionId,
    kind: Kind,
    /// Up to where a run's stream has caught up, until that is said: whether anybody works on the
    /// run is said with it, and takes reads of its own.
    caught_up: Option<u64>,
    server: Server,
}

impl One {
    /// A session's feed.
    pub(crate) fn session(server: &Server, stream: Stream, session: SessionId) -> Self {
        Self { stream, session, kind: Kind::Session, caught_up: None, server: server.clone() }
    }

    /// A run's journal, up to `max`.
    pub(crate) fn run(
        server: &Server,
        stream: Stream,
        session: SessionId,
        id: RunId,
        max: Option<u64>,
    ) -> Self {
        let kind = Kind::Run { id, max };
        Self { stream, session, kind, caught_up: None, server: server.clone() }
    }

    /// Writes what a fresh stream says at once. Only here a snapshot is made, which takes reads of
    /// its own.
    pub(crate) async fn prelude(&mut self) -> Result<BytesMut, StorageError> {
        let mut out = BytesMut::new();
        while let Some(item) = self.stream.ready() {
            if let Item::Snapshot(view) = item {
                let data = wire::snapshot(&self.server, *view).await?;
                frame::event(&mut out, None, "session.updated", data.as_bytes());
            } else if !self.write(&mut out, &item) {
                break;
            }
        }
        Ok(out)
    }

    /// `false`: nothing follows.
    fn write(&mut self, out: &mut BytesMut, item: &Item) -> bool {
        match item {
            Item::Opened { from, earliest, latest } => {
                let data = json!({
                    "event": "opened", "session_id": self.session.as_str(),
                    "from": from, "earliest": earliest, "latest": latest,
                });
                frame::event(out, None, "opened", data.to_string().as_bytes());
            }
            Item::Reset { reason, latest } => {
                let data = json!({
                    "event": "reset", "session_id": self.session.as_str(),
                    "reason": reason, "latest": latest,
                });
                frame::event(out, None, "reset", data.to_string().as_bytes());
            }
            Item::CaughtUp { at } if matches!(self.kind, Kind::Run { .. }) => {
                self.caught_up = Some(*at);
            }
            Item::CaughtUp { at } => {
                let data = json!({
                    "event": "caught_up", "session_id": self.session.as_str(), "at": at,
                });
                frame::event(out, None, "caught_up", data.to_string().as_bytes());
            }
            Item::Frame(stored) => {
                let head = &stored.head;
                match (&self.kind, &head.run) {
                    (Kind::Run { max, .. }, Some((run, seq))) => {
                        if max.is_some_and(|max| *seq > max) {
                            return false;
                        }
                        let id = format_args!("{run}:{seq}");
                        frame::event(out, Some(&id), &head.name, &stored.bytes);
                        return *max != Some(*seq);
                    }
                    _ => frame::event(out, Some(&head.offset), &head.name, &stored.bytes),
                }
            }
            Item::Malformed { offset, seq, error } => {
                let data = json!({
                    "event": "malformed", "session_id": self.session.as_str(),
                    "offset": offset, "seq": seq, "error": error,
                });
                let data = data.to_string();
                match (&self.kind, seq) {
                    (Kind::Run { id, .. }, Some(seq)) => {
                        let id = format_args!("{id}:{seq}");
                        frame::event(out, Some(&id), "malformed", data.as_bytes());
                    }
                    _ => frame::event(out, Some(offset), "malformed", data.as_bytes()),
                }
            }
            Item::Snapshot(_) => {}
            Item::End => return false,
        }
        true
    }

    /// Says that a run's stream has caught up, and whether nobody seems to work on the run.
    async fn say_caught_up(&mut self, out: &mut BytesMut) -> Result<(), StorageError> {
        let (Some(at), Kind::Run { id, .. }) = (self.caught_up, &self.kind) else { return Ok(()) };
        let mut data = json!({
            "event": "caught_up", "session_id": self.session.as_str(), "at": at,
        });
        if let Some(run) = self.server.engine().read().run(id).await? {
            let seen = wire::run(&self.server, &run).await?;
            if seen.interrupted_virtually {
                data["interrupted_virtually"] = true.into();
                data["cause"] = json!(seen.cause);
                data["evidence"] = json!(seen.evidence);
            }
        }
        // Only now: whoever drops this in the middle and asks again is told.
        self.caught_up = None;
        frame::event(out, None, "caught_up", data.to_string().as_bytes());
        Ok(())
    }
}

impl Feed for One {
    async fn next(&mut self, out: &mut BytesMut) -> Result<bool, StorageError> {
        if self.caught_up.is_some() {
            // In a box: it is said once, and every open stream would keep room for its reads.
            Box::pin(self.say_caught_up(out)).await?;
            return Ok(true);
        }
        let mut item = self.stream.next().await?;
        // From here on nothing waits, so that nothing taken can be lost.
        loop {
            if !self.write(out, &item) {
                return Ok(false);
            }
            if self.caught_up.is_some() {
                // What is written already goes out with it.
                return Box::pin(self.say_caught_up(out)).await.map(|()| true);
            }
            match self.stream.ready() {
                Some(next) if out.len() < CHUNK_BYTES => item = next,
                // One too many was taken: it is written as well.
                Some(next) => return Ok(self.write(out, &next)),
                None => return Ok(true),
            }
        }
    }
}
