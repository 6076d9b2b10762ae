//! The multiplexed feed: many sessions on one connection, so that a client that watches them all
//! needs no connection for each.
//!
//! Every event carries its session and its offset there; the id of an event is a cursor over all
//! sessions. The stream opens once (`opened` with a place for each session) and says `caught_up`
//! once, when all of them are live.

use bytes::BytesMut;
use everturn_core::{Principal, SessionId};
use everturn_engine::live::{Item, Stream};
use everturn_store::StorageError;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Map, Value, json};

use super::{CHUNK_BYTES, Feed, frame};
use crate::cursor::FeedCursor;
use crate::problem::Answer;
use crate::state::Server;
use crate::wire;

type Labelled = (usize, Result<Item, StorageError>);

/// Many sessions.
pub(crate) struct Many {
    sessions: Vec<SessionId>,
    items: SelectAll<BoxStream<'static, Labelled>>,
    cursor: FeedCursor,
    /// Sessions that are not live yet.
    behind: usize,
    is_caught_up: Vec<bool>,
}

impl Many {
    /// Opens the streams of these sessions of the principal, and writes what they say at once. With `is_foreign`
    /// the client's cursor named none of them.
    pub(crate) async fn open(
        server: &Server,
        principal: &Principal,
        streams: Vec<(SessionId, Stream)>,
        is_foreign: bool,
    ) -> Answer<(Self, BytesMut)> {
        let mut places = Map::new();
        let mut offsets = Vec::with_capacity(streams.len());
        let mut rest = BytesMut::new();
        let mut items = SelectAll::new();
        let mut sessions = Vec::with_capacity(streams.len());
        for (index, (id, mut stream)) in streams.into_iter().enumerate() {
            let mut offset = 0;
            while let Some(item) = stream.ready() {
                match item {
                    Item::Opened { from, earliest, latest } => {
                        offset = from;
                        let place = json!({ "from": from, "earliest": earliest, "latest": latest });
                        places.insert(id.to_string(), place);
                        if is_foreign {
                            reset(&mut rest, &id, "foreign", latest);
                        }
                    }
                    Item::Reset { reason, latest } => {
                        offset = latest;
                        reset(&mut rest, &id, reason, latest);
                    }
                    Item::Snapshot(view) => {
                        let data = wire::snapshot(server, *view).await?;
                        frame::event(&mut rest, None, "session.updated", data.as_bytes());
                    }
                    // A stream that was not asked yet holds nothing else.
                    Item::Frame(_) | Item::Malformed { .. } | Item::CaughtUp { .. } | Item::End => {
                        break;
                    }
                }
            }
            offsets.push(offset);
            sessions.push(id);
            items.push(labelled(index, stream));
        }
        let cursor = FeedCursor::new(principal, sessions.iter().zip(offsets));
        let opened = json!({ "event": "opened", "from": cursor.encode(), "sessions": Value::Object(places) });
        let mut prelude = BytesMut::new();
        frame::event(&mut prelude, None, "opened", opened.to_string().as_bytes());
        prelude.extend_from_slice(&rest);
        let behind = sessions.len();
        let is_caught_up = vec![false; behind];
        Ok((Self { sessions, items, cursor, behind, is_caught_up }, prelude))
    }

    fn write(&mut self, out: &mut BytesMut, index: usize, item: Item) {
        match item {
            Item::Frame(stored) => {
                self.cursor.set(index, stored.head.offset);
                let id = self.cursor.encode();
                frame::event(out, Some(&id), &stored.head.name, &stored.bytes);
            }
            Item::Malformed { offset, seq, error } => {
                self.cursor.set(index, offset);
                let id = self.cursor.encode();
                let session = self.sessions.get(index).map(SessionId::as_str);
                let data = json!({
                    "event": "malformed", "session_id": session,
                    "offset": offset, "seq": seq, "error": error,
                });
                frame::event(out, Some(&id), "malformed", data.to_string().as_bytes());
            }
            Item::Reset { reason, latest } => {
                self.cursor.set(index, latest);
                if let Some(id) = self.sessions.get(index) {
                    reset(out, id, reason, latest);
                }
            }
            Item::CaughtUp { .. } => self.catch_up(out, index),
            Item::End => {
                if let Some(id) = self.sessions.get(index) {
                    // The session is gone, and its feed with it; the others go on.
                    reset(out, id, "lost", self.cursor.get(index).unwrap_or(0));
                }
                self.catch_up(out, index);
            }
            Item::Opened { .. } | Item::Snapshot(_) => {}
        }
    }

    fn catch_up(&mut self, out: &mut BytesMut, index: usize) {
        match self.is_caught_up.get_mut(index) {
            Some(is_caught_up) if !*is_caught_up => *is_caught_up = true,
            _ => return,
        }
        self.behind -= 1;
        if self.behind == 0 {
            let data = json!({ "event": "caught_up", "at": self.cursor.encode() });
            frame::event(out, None, "caught_up", data.to_string().as_bytes());
        }
    }
}

fn reset(out: &mut BytesMut, id: &SessionId, reason: &str, latest: u64) {
    let data = json!({
        "event": "reset", "session_id": id.as_str(), "reason": reason, "latest": latest,
    });
    frame::event(out, None, "reset", data.to_string().as_bytes());
}

/// A session's items with the session's place. Ends behind [`Item::End`].
fn labelled(index: usize, stream: Stream) -> BoxStream<'static, Labelled> {
    futures::stream::unfold(Some(stream), move |stream| async move {
        let mut stream = stream?;
        let item = stream.next().await;
        let next = (!matches!(item, Ok(Item::End))).then_some(stream);
        Some(((index, item), next))
    })
    .boxed()
}

impl Feed for Many {
    async fn next(&mut self, out: &mut BytesMut) -> Result<bool, StorageError> {
        let mut labelled = self.items.next().await;
        loop {
            match labelled {
                None => return Ok(false),
                Some((index, item)) => self.write(out, index, item?),
            }
            if out.len() >= CHUNK_BYTES {
                return Ok(true);
            }
            // Takes what is there. The streams are kept, so that none of them loses its place, and
            // the next call asks them again with somebody to wake.
            labelled = match self.items.next().now_or_never() {
                Some(labelled) => labelled,
                None => return Ok(true),
            };
        }
    }
}
