//! Live reading: subscribe, snapshot, replay the gap, then go on live — one code path.
//!
//! A reader pulls. It holds a cursor and asks for what lies behind it: from the ring of recent
//! frames, which all viewers share, or from the store when the ring does not reach back far enough.
//! A notice that something new exists is only a number (the latest offset), so that none can be lost
//! and a slow reader costs nothing: it falls back to reading pages, at its own pace.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use everturn_core::event::is_terminal;
use everturn_core::{Run, SessionKey};
use everturn_store::read::{SessionView, StoredEvent};
use everturn_store::{Committed, Frame, Signal, StorageError, Store};
use tokio::sync::{mpsc, watch};

/// Frames kept per watched session, and bytes of them.
const RING_FRAMES: usize = 1_024;
const RING_BYTES: usize = 1 << 20;
/// Frames taken at a time, at most.
const PAGE: u32 = 256;
/// Frames that the first page from the store has at most; later ones go by what events weigh.
const FIRST_PAGE: u32 = 32;
/// Bytes that a page from the store should have, so that a viewer that stopped reading holds no more.
const PAGE_BYTES: usize = 128 << 10;
/// Frames of a page from the store, however heavy they are.
const SMALLEST_PAGE: u32 = 4;

/// What a reader gets.
#[derive(Debug, Clone)]
pub enum Item {
    /// First of all: where the stream begins, and what exists.
    Opened {
        /// The cursor that it goes on from.
        from: u64,
        /// Earliest number that can be read.
        earliest: u64,
        /// Latest number when it was opened.
        latest: u64,
    },
    /// The session as it is, for a feed that was opened without a cursor.
    Snapshot(Box<SessionView>),
    /// The cursor could not be used; the stream goes on from where this says.
    Reset {
        /// `ahead`, `foreign`, `lost` or `overflow`.
        reason: &'static str,
        /// Latest number.
        latest: u64,
    },
    /// One event.
    Frame(Arc<Frame>),
    /// A stored event that cannot be read, in its place.
    Malformed {
        /// Its offset in the session's feed.
        offset: u64,
        /// Its seq in the run.
        seq: Option<u64>,
        /// What is wrong.
        error: String,
    },
    /// Everything up to here was history; what follows is live. Sent once.
    CaughtUp {
        /// The cursor.
        at: u64,
    },
    /// Nothing follows: the run has ended, or the session was deleted.
    End,
}

/// What the watchers of one session share.
struct Channel {
    key: SessionKey,
    latest: watch::Sender<u64>,
    ring: Mutex<Ring>,
    deleted: watch::Sender<bool>,
}

#[derive(Default)]
struct Ring {
    frames: VecDeque<Arc<Frame>>,
    bytes: usize,
}

impl Ring {
    fn push(&mut self, frame: Arc<Frame>) {
        // A hole (another process wrote meanwhile) makes what is older useless.
        if self.frames.back().is_some_and(|last| last.head.offset + 1 != frame.head.offset) {
            self.frames.clear();
            self.bytes = 0;
        }
        self.bytes += frame.bytes.len();
        self.frames.push_back(frame);
        while self.frames.len() > RING_FRAMES || self.bytes > RING_BYTES {
            let Some(old) = self.frames.pop_front() else { break };
            self.bytes -= old.bytes.len();
        }
    }

    /// Frames directly behind `after`, if the ring reaches back that far.
    fn behind(&self, after: u64) -> Option<Vec<Arc<Frame>>> {
        let first = self.frames.front()?.head.offset;
        let last = self.frames.back()?.head.offset;
        if after + 1 < first || after >= last {
            return None;
        }
        let skip = usize::try_from(after + 1 - first).ok()?;
        Some(self.frames.iter().skip(skip).take(PAGE as usize).cloned().collect())
    }
}

/// Who is told when the first viewer of a session comes, and when the last one goes.
pub(crate) type PresenceSender = mpsc::UnboundedSender<(SessionKey, bool)>;

#[derive(Default)]
struct Watched {
    channel: Option<Arc<Channel>>,
    watchers: usize,
    viewers: u32,
}

/// Everything that is being watched in this process.
pub(crate) struct Hub {
    watched: Mutex<HashMap<SessionKey, Watched>>,
    presence: PresenceSender,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The sections below cannot leave a map half changed, so a panic elsewhere harms nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn new(presence: PresenceSender) -> Self {
        Self { watched: Mutex::default(), presence }
    }

    /// Hands frames to whoever watches. Runs on the writer's thread: short sections, no waiting.
    pub(crate) fn publish(&self, committed: &Committed) {
        for frame in &committed.frames {
            let Some(channel) = self.channel(&frame.session) else { continue };
            locked(&channel.ring).push(Arc::clone(frame));
            advance(&channel, frame.head.offset);
        }
        for signal in &committed.signals {
            if let Signal::Deleted(key) = signal
                && let Some(channel) = self.channel(key)
            {
                channel.deleted.send_replace(true);
            }
        }
    }

    fn channel(&self, key: &SessionKey) -> Option<Arc<Channel>> {
        locked(&self.watched).get(key).and_then(|watched| watched.channel.clone())
    }

    /// Viewers of a session that are attached to this node.
    pub(crate) fn viewers(&self, key: &SessionKey) -> u32 {
        locked(&self.watched).get(key).map_or(0, |watched| watched.viewers)
    }

    /// Looks whether another process wrote to what is watched here.
    pub(crate) async fn poll(&self, store: &dyn Store) {
        let channels: Vec<_> =
            locked(&self.watched).values().filter_map(|watched| watched.channel.clone()).collect();
        for channel in channels {
            match store.feed_bounds(&channel.key).await {
                Ok((_, latest)) => advance(&channel, latest),
                Err(error) => {
                    tracing::debug!(session = %channel.key, %error, "cannot look for news");
                }
            }
        }
    }

    fn watch(self: &Arc<Self>, key: &SessionKey, viewer: bool) -> Subscription {
        let mut watched = locked(&self.watched);
        let entry = watched.entry(key.clone()).or_default();
        let channel = Arc::clone(entry.channel.get_or_insert_with(|| {
            Arc::new(Channel {
                key: key.clone(),
                latest: watch::Sender::new(0),
                ring: Mutex::default(),
                deleted: watch::Sender::new(false),
            })
        }));
        entry.watchers += 1;
        if viewer {
            entry.viewers += 1;
            if entry.viewers == 1 {
                let _ = self.presence.send((key.clone(), true));
            }
        }
        drop(watched);
        let latest = channel.latest.subscribe();
        let deleted = channel.deleted.subscribe();
        Subscription { hub: Arc::clone(self), channel, latest, deleted, viewer }
    }
}

fn advance(channel: &Channel, latest: u64) {
    channel.latest.send_if_modified(|seen| {
        let newer = latest > *seen;
        if newer {
            *seen = latest;
        }
        newer
    });
}

/// One watcher's place; leaving is dropping it.
struct Subscription {
    hub: Arc<Hub>,
    channel: Arc<Channel>,
    latest: watch::Receiver<u64>,
    deleted: watch::Receiver<bool>,
    viewer: bool,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut watched = locked(&self.hub.watched);
        let Some(entry) = watched.get_mut(&self.channel.key) else { return };
        if self.viewer {
            entry.viewers -= 1;
            if entry.viewers == 0 {
                let _ = self.hub.presence.send((self.channel.key.clone(), false));
            }
        }
        entry.watchers -= 1;
        if entry.watchers == 0 {
            watched.remove(&self.channel.key);
        }
    }
}

/// What a stream shows.
enum Source {
    /// A session's feed; the cursor is an offset.
    Session,
    /// One run; the cursor is a seq, and the place in the feed is kept beside it.
    Run { run: Box<Run>, offset: u64 },
}

/// A stream of one session's feed or of one run.
pub struct Stream {
    store: Arc<dyn Store>,
    subscription: Subscription,
    source: Source,
    cursor: u64,
    ready: VecDeque<Item>,
    caught_up: bool,
    ended: bool,
    /// Frames of the next page from the store.
    page: u32,
}

/// Whether a place in a run went with unsynced events in a power loss (promise P7): whoever is there
/// saw what no journal holds any more.
///
/// # Errors
/// A storage failure.
pub(crate) async fn is_lost(store: &dyn Store, run: &Run, seq: u64) -> Result<bool, StorageError> {
    if seq == 0 {
        return Ok(false);
    }
    let gaps = store.gaps(&run.session_key()).await?;
    Ok(gaps.iter().any(|gap| {
        let of_run = (run.first_offset..=run.last_offset).contains(&gap.from_offset);
        of_run && (gap.from_seq..=gap.to_seq).contains(&seq)
    }))
}

/// How many frames the next page should have, after one of so many frames and bytes.
fn next_page(page: u32, frames: usize, bytes: usize) -> u32 {
    let each = bytes.checked_div(frames).unwrap_or(0).max(1);
    let fit = u32::try_from(PAGE_BYTES / each).unwrap_or(PAGE);
    fit.clamp(SMALLEST_PAGE, PAGE.min(page.saturating_mul(2)))
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl Stream {
    /// Opens a session's feed behind `after`; without it, with a snapshot and live from there.
    pub(crate) async fn session(
        store: Arc<dyn Store>,
        hub: &Arc<Hub>,
        key: &SessionKey,
        after: Option<u64>,
        viewer: bool,
    ) -> Result<Self, StorageError> {
        // Subscribed before anything is read: what commits meanwhile is noticed.
        let subscription = hub.watch(key, viewer);
        let (earliest, latest) = store.feed_bounds(key).await?;
        let mut ready = VecDeque::new();
        let is_lost = match after {
            Some(after) if after > 0 => {
                let gaps = store.gaps(key).await?;
                gaps.iter().any(|gap| (gap.from_offset..=gap.to_offset).contains(&after))
            }
            _ => false,
        };
        let cursor = match after {
            Some(after) if after <= latest && !is_lost => {
                ready.push_back(Item::Opened { from: after, earliest, latest });
                after
            }
            Some(after) => {
                ready.push_back(Item::Opened { from: after, earliest, latest });
                // What this reader saw last went with the power: it drops what it has.
                let reason = if is_lost { "lost" } else { "ahead" };
                ready.push_back(Item::Reset { reason, latest });
                latest
            }
            None => {
                let view = store.session(key).await?;
                let from = view.as_ref().map_or(latest, |view| view.session.last_offset);
                ready.push_back(Item::Opened { from, earliest, latest: latest.max(from) });
                ready.extend(view.map(|view| Item::Snapshot(Box::new(view))));
                from
            }
        };
        Ok(Self {
            store,
            subscription,
            source: Source::Session,
            cursor,
            ready,
            caught_up: false,
            ended: false,
            page: FIRST_PAGE,
        })
    }

    /// Opens a run's journal behind `after`. A cursor that cannot be one of this run's is answered
    /// with a reset, and the stream begins with the first event.
    pub(crate) async fn run(
        store: Arc<dyn Store>,
        hub: &Arc<Hub>,
        run: Run,
        after: RunCursor,
    ) -> Result<Self, StorageError> {
        let subscription = hub.watch(&run.session_key(), false);
        // Read again behind the subscription.
        let run = store.run(&run.id).await?.unwrap_or(run);
        let latest = run.last_seq;
        let mut ready = VecDeque::new();
        let is_lost = match after {
            RunCursor::After(after) if after <= latest => is_lost(&*store, &run, after).await?,
            _ => false,
        };
        let cursor = match after {
            RunCursor::After(from) if is_lost => {
                ready.push_back(Item::Opened { from, earliest: 1, latest });
                ready.push_back(Item::Reset { reason: "lost", latest });
                0
            }
            RunCursor::After(after) if after <= latest => {
                ready.push_back(Item::Opened { from: after, earliest: 1, latest });
                after
            }
            RunCursor::After(from) => {
                ready.push_back(Item::Opened { from, earliest: 1, latest });
                ready.push_back(Item::Reset { reason: "ahead", latest });
                0
            }
            RunCursor::Foreign => {
                ready.push_back(Item::Opened { from: 0, earliest: 1, latest });
                ready.push_back(Item::Reset { reason: "foreign", latest });
                0
            }
        };
        // An unknown place in the feed: the first page comes from the store and finds it.
        let source = Source::Run { run: Box::new(run), offset: 0 };
        Ok(Self {
            store,
            subscription,
            source,
            cursor,
            ready,
            caught_up: false,
            ended: false,
            page: FIRST_PAGE,
        })
    }

    /// The next item if it is at hand already: lets a reader take many at once without waiting.
    pub fn ready(&mut self) -> Option<Item> {
        let item = self.ready.pop_front()?;
        if let Item::Frame(frame) = &item
            && matches!(self.source, Source::Run { .. })
            && is_terminal(&frame.head.name)
        {
            self.ended = true;
            self.ready.clear();
        }
        Some(item)
    }

    /// The next item. Waits while there is nothing new; can be dropped and called again without
    /// losing anything. After [`Item::End`] it ends again.
    ///
    /// # Errors
    /// A storage failure; the stream can be asked again.
    pub async fn next(&mut self) -> Result<Item, StorageError> {
        loop {
            if let Some(item) = self.ready() {
                return Ok(item);
            }
            if self.ended {
                return Ok(Item::End);
            }
            // Seen before the page is read: news that come while it is being read wake us again.
            let latest = *self.subscription.latest.borrow_and_update();
            // Whoever is caught up is told of everything that follows: with nothing told there is
            // nothing to read, and what is told next is at hand without a wait.
            if !self.caught_up || latest > self.place() {
                self.pull().await?;
            }
            if !self.ready.is_empty() {
                continue;
            }
            if !self.caught_up {
                self.caught_up = true;
                return Ok(Item::CaughtUp { at: self.cursor });
            }
            let Subscription { latest, deleted, .. } = &mut self.subscription;
            if *deleted.borrow() {
                self.ended = true;
                continue;
            }
            tokio::select! {
                // The senders live in the channel, which the subscription holds.
                _ = latest.changed() => {}
                _ = deleted.changed() => {}
            }
        }
    }

    /// The place in the session's feed up to which everything was taken.
    fn place(&self) -> u64 {
        match &self.source {
            Source::Session => self.cursor,
            Source::Run { offset, .. } => *offset,
        }
    }

    /// Takes what lies behind the cursor: from the ring, else from the store.
    async fn pull(&mut self) -> Result<(), StorageError> {
        let at = self.place();
        let shared = locked(&self.subscription.channel.ring).behind(at);
        if let (Some(frames), true) = (shared, at > 0 || matches!(self.source, Source::Session)) {
            for frame in frames {
                self.take(frame);
            }
            return Ok(());
        }
        match &self.source {
            Source::Session => {
                let key = self.subscription.channel.key.clone();
                let rows = self.store.feed(&key, self.cursor, self.page).await?;
                self.take_page(&key, rows);
            }
            Source::Run { run, .. } => {
                let run = run.clone();
                let key = run.session_key();
                let (_, upto) = self.store.feed_bounds(&key).await?;
                // The row grows with the run; reads are bounded by what it says.
                let Some(run) = self.store.run(&run.id).await? else {
                    self.ended = true;
                    return Ok(());
                };
                let rows = self.store.run_events(&run, self.cursor, None, self.page).await?;
                let full = rows.len() >= self.page as usize;
                if rows.is_empty() && run.terminal_state.is_some() {
                    self.ended = true;
                }
                self.take_page(&key, rows);
                if let (Source::Run { offset, .. }, false) = (&mut self.source, full) {
                    // Everything of this run up to there has been taken.
                    *offset = (*offset).max(upto);
                }
            }
        }
        Ok(())
    }

    fn take_page(&mut self, key: &SessionKey, rows: Vec<StoredEvent>) {
        let body = |row: &StoredEvent| match row {
            StoredEvent::Good(row) => row.body.len(),
            StoredEvent::Malformed { .. } => 0,
        };
        self.page = next_page(self.page, rows.len(), rows.iter().map(body).sum());
        for row in rows {
            self.take_stored(key, row);
        }
    }

    fn take_stored(&mut self, key: &SessionKey, row: StoredEvent) {
        match row {
            StoredEvent::Good(row) => {
                let bytes = Bytes::from(everturn_api::event::render(&row.head, &row.body));
                self.take(Arc::new(Frame { session: key.clone(), head: row.head, bytes }));
            }
            StoredEvent::Malformed { offset, seq, error } => {
                match (&mut self.source, seq) {
                    (Source::Session, _) => self.cursor = offset,
                    (Source::Run { offset: at, .. }, Some(seq)) => {
                        *at = offset;
                        self.cursor = seq;
                    }
                    (Source::Run { .. }, None) => return,
                }
                self.ready.push_back(Item::Malformed { offset, seq, error });
            }
        }
    }

    fn take(&mut self, frame: Arc<Frame>) {
        match &mut self.source {
            Source::Session => {
                self.cursor = frame.head.offset;
                self.ready.push_back(Item::Frame(frame));
            }
            Source::Run { run, offset } => {
                *offset = frame.head.offset;
                if let Some((id, seq)) = &frame.head.run
                    && *id == run.id
                    && *seq > self.cursor
                {
                    self.cursor = *seq;
                    self.ready.push_back(Item::Frame(frame));
                }
            }
        }
    }
}

/// Where a run's stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunCursor {
    /// Behind this seq; 0 is everything.
    After(u64),
    /// The client's cursor names another run.
    Foreign,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_to_what_events_weigh() {
        assert_eq!(next_page(FIRST_PAGE, 32, 32 * 100), 64);
        assert_eq!(next_page(PAGE, 256, 256 * 100), PAGE);
        assert_eq!(next_page(PAGE, 256, 256 * 1_024), 128);
        assert_eq!(next_page(PAGE, 256, 256 * (64 << 10)), SMALLEST_PAGE);
        // Nothing read tells nothing of weights, and a page grows no faster than twofold.
        assert_eq!(next_page(SMALLEST_PAGE, 0, 0), 2 * SMALLEST_PAGE);
    }
}
