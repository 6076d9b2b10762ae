//! Following a feed across cuts: each event once, in order, whatever happens to the server between.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::{Client, Feed, Item};
use crate::error::{CliError, Result};

/// The pause between two tries grows from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What following gives.
#[derive(Debug)]
pub(crate) enum News {
    /// An item of the feed, each event once.
    Item(Item),
    /// Contact was lost; said once per loss.
    Lost(CliError),
    /// Contact is there again.
    Back,
}

/// A feed that is opened again where it was cut.
pub(crate) struct Link<'a> {
    client: &'a dyn Client,
    session: String,
    cursor: Option<u64>,
    viewer: bool,
    patience: Duration,
    feed: Option<Box<dyn Feed>>,
    lost: Option<Lost>,
}

struct Lost {
    until: Instant,
    next_try: Instant,
    pause: Duration,
    told: bool,
    last: CliError,
}

impl<'a> Link<'a> {
    /// A link that begins behind `after`; without it, live from now.
    pub(crate) fn new(
        client: &'a dyn Client,
        session: &str,
        after: Option<u64>,
        viewer: bool,
        patience: Duration,
    ) -> Self {
        let session = session.to_owned();
        Self { client, session, cursor: after, viewer, patience, feed: None, lost: None }
    }

    /// The offset of the last event that was given.
    pub(crate) fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// The other side did not answer something else: look for it before going on.
    pub(crate) fn suspect(&mut self, error: CliError) {
        self.feed = None;
        self.note_loss(error);
    }

    fn note_loss(&mut self, error: CliError) {
        let now = Instant::now();
        match &mut self.lost {
            Some(lost) => {
                lost.last = error;
                lost.next_try = now + lost.pause;
                lost.pause = (lost.pause * 2).min(PAUSE_MAX);
            }
            None => {
                self.lost = Some(Lost {
                    until: now + self.patience,
                    next_try: now + PAUSE_MIN,
                    pause: PAUSE_MIN * 2,
                    told: false,
                    last: error,
                });
            }
        }
    }

    /// What comes next. Can be dropped and called again without losing anything.
    ///
    /// # Errors
    /// What no waiting mends, or the last passing error when patience is over.
    pub(crate) async fn next(&mut self) -> Result<News> {
        loop {
            if let Some(lost) = &mut self.lost {
                if !lost.told {
                    lost.told = true;
                    return Ok(News::Lost(lost.last.clone()));
                }
                if Instant::now() >= lost.until {
                    return Err(lost.last.clone());
                }
                tokio::time::sleep_until(lost.next_try.min(lost.until)).await;
                if let Err(error) = self.client.find_again().await {
                    if !error.passing {
                        return Err(error);
                    }
                    self.note_loss(error);
                    continue;
                }
            }
            let Some(feed) = &mut self.feed else {
                match self.client.feed(&self.session, self.cursor, self.viewer).await {
                    Ok(feed) => self.feed = Some(feed),
                    Err(error) if error.passing => {
                        self.note_loss(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                if self.lost.take().is_some() {
                    return Ok(News::Back);
                }
                continue;
            };
            match feed.next().await {
                Ok(Item::Event(event)) => {
                    if let Some(offset) = event.said.offset {
                        if self.cursor.is_some_and(|cursor| offset <= cursor) {
                            continue;
                        }
                        self.cursor = Some(offset);
                    } else if let Some(session) = &event.said.session {
                        // The snapshot that a feed without a cursor begins with.
                        self.cursor = Some(self.cursor.unwrap_or(0).max(session.offset));
                    }
                    return Ok(News::Item(Item::Event(event)));
                }
                Ok(Item::Reset { reason, latest }) => {
                    self.cursor = Some(latest);
                    return Ok(News::Item(Item::Reset { reason, latest }));
                }
                Ok(item) => return Ok(News::Item(item)),
                Err(error) if error.passing => {
                    self.feed = None;
                    self.note_loss(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
