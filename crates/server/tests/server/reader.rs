//! A reader in the same process, without a socket: it reads a router's streams and windows in whatever
//! way chance wants, is cut off anywhere (in the middle of an event as well), and finds its place again
//! through whatever feed. Where it is told to, it loads anew and goes on.

use std::collections::BTreeMap;

use axum::body::BodyDataStream;
use futures::StreamExt as _;
use http::{Method, StatusCode};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::door::{Bytes, Door, Progress, Wire};
use crate::line::{Count, Head, Line, Piece};

/// How a reader takes what comes on one connection.
enum Pace {
    Fast,
    /// Lets others go first, this often before each piece.
    Slow(usize),
    /// Takes nothing before the history has come this far.
    Asleep(usize),
}

/// What a connection shows.
enum Way {
    Feed(String),
    Many,
    Run(String),
    /// A run's events as JSON, window by window.
    Windows(String),
}

/// A reset that a reader was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reset {
    /// The session; the run, where it was a run's stream or window.
    pub(crate) of: String,
    pub(crate) count: Count,
    /// Where the reader was.
    pub(crate) place: u64,
}

/// Everything that a reader got, by its place.
#[derive(Default)]
pub(crate) struct Got {
    /// The sessions' feeds.
    pub(crate) feeds: BTreeMap<String, Line>,
    /// The runs.
    pub(crate) runs: BTreeMap<String, Line>,
    pub(crate) resets: Vec<Reset>,
    /// Connections that were opened, and how many of them were cut off.
    pub(crate) opened: usize,
    pub(crate) cut: usize,
    /// Windows that were read.
    pub(crate) windows: usize,
}

/// The last id of the multiplexed feed, and the offsets that it stands for.
struct Cursor {
    id: String,
    places: BTreeMap<String, u64>,
}

impl Cursor {
    /// Everything.
    fn zero<'a>(sessions: impl IntoIterator<Item = &'a String>) -> Self {
        let places = sessions.into_iter().map(|id| (id.clone(), 0)).collect();
        Self { id: "0".to_owned(), places }
    }
}

/// A window of a run.
#[derive(Deserialize)]
struct Window {
    run_id: String,
    events: Vec<Box<RawValue>>,
    malformed: Vec<Value>,
    last_seq: u64,
    terminal: bool,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Read,
    Leave,
}

pub(crate) struct Reader {
    progress: watch::Receiver<Progress>,
    /// Steps of the whole history.
    steps: usize,
    random: StdRng,
    got: Got,
    /// Runs that were seen in feeds, and whether the end of each was read on a stream of its own.
    runs: BTreeMap<String, bool>,
    /// The run to begin with.
    first: Option<String>,
    cursor: Cursor,
}

impl Reader {
    pub(crate) fn new(
        sessions: &[String],
        progress: watch::Receiver<Progress>,
        steps: usize,
        seed: u64,
        first: Option<String>,
    ) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(1..=sessions.len());
        let mine: Vec<String> = sessions.sample(&mut random, count).cloned().collect();
        let feeds = mine.iter().map(|id| (id.clone(), Line::default())).collect();
        Self {
            progress,
            steps,
            random,
            got: Got { feeds, ..Got::default() },
            runs: first.iter().map(|run| (run.clone(), false)).collect(),
            first,
            cursor: Cursor::zero(&mine),
        }
    }

    /// Reads until everything was read, over as many connections as chance wants.
    pub(crate) async fn read(mut self) -> Got {
        if let Some(run) = self.first.take() {
            let way = if self.random.random_bool(0.5) { Way::Windows(run) } else { Way::Run(run) };
            self.connect(way).await;
        }
        while !self.is_complete() {
            let way = self.way();
            self.connect(way).await;
        }
        // Runs that were begun are read to their ends.
        while let Some((run, _)) =
            self.runs.iter().find(|(id, read)| !**read && self.got.runs.contains_key(*id))
        {
            let run = run.clone();
            let way = if self.random.random_bool(0.3) { Way::Windows(run) } else { Way::Run(run) };
            self.connect(way).await;
        }
        self.got
    }

    fn is_complete(&self) -> bool {
        self.got.feeds.keys().all(|id| self.is_read(id))
    }

    /// Whether a session's feed was read to its last end.
    fn is_read(&self, session: &str) -> bool {
        let progress = self.progress.borrow();
        let ends = progress.ends.as_ref();
        ends.is_some_and(|ends| self.got.feeds[session].at() >= ends[session])
    }

    /// Whether a connection has nothing to give any more. A run's says so itself.
    fn is_over(&self, way: &Way) -> bool {
        match way {
            Way::Feed(id) => self.is_read(id),
            Way::Many => self.is_complete(),
            Way::Run(_) | Way::Windows(_) => false,
        }
    }

    fn way(&mut self) -> Way {
        let unread: Vec<String> =
            self.runs.iter().filter(|(_, read)| !**read).map(|(id, _)| id.clone()).collect();
        match self.random.random_range(0..10) {
            0..4 => Way::Many,
            4..7 if !unread.is_empty() => {
                let run = unread.choose(&mut self.random).unwrap().clone();
                if self.random.random_bool(0.4) { Way::Windows(run) } else { Way::Run(run) }
            }
            _ => {
                let mine: Vec<&String> = self.got.feeds.keys().collect();
                Way::Feed((*mine.choose(&mut self.random).unwrap()).clone())
            }
        }
    }

    fn at_of_run(&self, run: &str) -> u64 {
        self.got.runs.get(run).map_or(0, Line::at)
    }

    /// The path of a way, and the id to send along. The place is given in one or the other; a
    /// client that comes back with an id may still have an old place in its address.
    fn address(&mut self, way: &Way) -> (String, Option<String>) {
        let (path, place, old) = match way {
            Way::Feed(id) => {
                let place = self.got.feeds[id].at();
                let old = self.random.random_range(0..=place).to_string();
                let viewer = self.random.random_bool(0.5);
                let path = format!("/v1/sessions/{id}/events?viewer={viewer}");
                (path, place.to_string(), old)
            }
            Way::Many => {
                let mut mine: Vec<&String> = self.got.feeds.keys().collect();
                mine.shuffle(&mut self.random);
                let all: Vec<String> = mine.iter().map(|id| format!("session={id}")).collect();
                (format!("/v1/events?{}", all.join("&")), self.cursor.id.clone(), "0".to_owned())
            }
            Way::Run(id) | Way::Windows(id) => {
                let place = self.at_of_run(id);
                let named = self.random.random_bool(0.5);
                let text = if named { format!("{id}:{place}") } else { place.to_string() };
                (format!("/v1/runs/{id}/events?max=9223372036854775807"), text, "0".to_owned())
            }
        };
        match self.random.random_range(0..3) {
            0 => (format!("{path}&after={place}"), None),
            // "0" stands for everything in the address only: nobody was ever sent it as an id.
            _ if place == "0" => (format!("{path}&after=0"), None),
            1 => (path, Some(place)),
            _ => (format!("{path}&after={old}"), Some(place)),
        }
    }

    /// A server that can be asked; waits while there is none.
    async fn door(&mut self) -> Door {
        let progress = self.progress.wait_for(|progress| !progress.doors.is_empty()).await;
        let doors = progress.unwrap().doors.clone();
        doors.choose(&mut self.random).unwrap().clone()
    }

    /// Whether the connections to a process are cut.
    fn is_gone(&self, door: usize) -> bool {
        self.progress.borrow().gone.contains(&door)
    }

    /// Whether something happened to a process, so that it may refuse and end streams.
    fn is_shaken(&self, door: usize) -> bool {
        self.progress.borrow().shaken.contains(&door)
    }

    /// One connection, to its end or to the cut.
    async fn connect(&mut self, way: Way) {
        if let Way::Windows(run) = way {
            return self.windows(run).await;
        }
        let (path, id) = self.address(&way);
        let door = self.door().await;
        let (status, body) = door.open(&path, id.as_deref()).await;
        self.got.opened += 1;
        if let (Way::Run(run), StatusCode::NO_CONTENT) = (&way, status) {
            let last = self.got.runs.get(run).and_then(Line::last);
            assert!(last.is_some_and(ends), "204 for {path} with more to come");
            self.runs.insert(run.clone(), true);
            return;
        }
        if status.is_server_error() && self.is_shaken(door.number) {
            return tokio::task::yield_now().await;
        }
        assert_eq!(status, StatusCode::OK, "{path} {id:?}");
        let pace = match self.random.random_range(0..4) {
            0 => Pace::Slow(self.random.random_range(1..20)),
            1 => Pace::Asleep(self.random.random_range(0..=self.steps)),
            _ => Pace::Fast,
        };
        let left = match self.random.random_range(0..4) {
            0 => self.random.random_range(0..600),
            1 => self.random.random_range(0..6_000),
            2 => self.random.random_range(0..60_000),
            _ => usize::MAX,
        };
        if let Way::Many = way {
            for (id, place) in &self.cursor.places {
                // What was read on other ways meanwhile comes once more: no more than that.
                assert!(*place <= self.got.feeds[id].at());
            }
        }
        let mut connection = Connection {
            places: match &way {
                Way::Feed(id) => BTreeMap::from([(id.clone(), self.got.feeds[id].at())]),
                Way::Many => self.cursor.places.clone(),
                Way::Run(id) | Way::Windows(id) => {
                    BTreeMap::from([(id.clone(), self.at_of_run(id))])
                }
            },
            way,
            is_open: false,
            is_caught_up: false,
            path,
            door,
        };
        self.drain(&mut connection, body.into_data_stream(), &pace, left).await;
    }

    async fn drain(
        &mut self,
        connection: &mut Connection,
        mut body: BodyDataStream,
        pace: &Pace,
        mut left: usize,
    ) {
        let door = connection.door.number;
        let mut bytes = Bytes::default();
        loop {
            match pace {
                Pace::Fast => {}
                Pace::Slow(times) => {
                    for _ in 0..*times {
                        tokio::task::yield_now().await;
                    }
                }
                Pace::Asleep(steps) => {
                    let wakes = |progress: &Progress| {
                        progress.steps >= *steps || progress.gone.contains(&door)
                    };
                    self.progress.wait_for(wakes).await.unwrap();
                }
            }
            if self.is_over(&connection.way) || self.is_gone(door) {
                return;
            }
            let piece = tokio::select! {
                piece = body.next() => piece,
                _ = self.progress.changed() => continue,
            };
            let Some(piece) = piece else { break };
            let piece = piece.unwrap();
            let taken = piece.len().min(left);
            left -= taken;
            for event in bytes.take(&piece[..taken]) {
                if self.take(connection, event).await == Next::Leave {
                    return;
                }
            }
            if left == 0 {
                self.got.cut += 1;
                return;
            }
        }
        if self.is_shaken(door) {
            // It gave up on a store that it could not reach.
            return;
        }
        let Way::Run(run) = &connection.way else { panic!("{} ended", connection.path) };
        let last = self.got.runs.get(run).and_then(Line::last);
        assert!(last.is_some_and(ends), "{} ended before the run", connection.path);
        assert!(bytes.is_empty(), "{} ended in the middle of an event", connection.path);
        self.runs.insert(run.clone(), true);
    }

    /// Takes one event in, and checks that it stands where it should.
    async fn take(&mut self, connection: &mut Connection, event: Wire) -> Next {
        let Wire { id, name, data } = event;
        let path = &connection.path;
        let Some(id) = id else {
            if name == "reset" {
                return self.reset(connection, &data).await;
            }
            connection.note(&name, &data);
            return Next::Read;
        };
        assert!(connection.is_open, "{path}: {name} came before `opened`");
        let head = Head::of(&data);
        assert_eq!(head.event, name, "{path}");
        let (of, count) = match &connection.way {
            Way::Run(run) | Way::Windows(run) => {
                assert_eq!(head.run_id.as_deref(), Some(run.as_str()), "{path}: {data}");
                (run.clone(), Count::Seq)
            }
            Way::Feed(_) | Way::Many => (head.session_id.clone(), Count::Offset),
        };
        let (first, last) = head.range(count).into_inner();
        let place = connection.places.get_mut(&of);
        let place = place.unwrap_or_else(|| panic!("{path}: another session's event: {data}"));
        let before = std::mem::replace(place, last);
        match &connection.way {
            Way::Run(run) | Way::Windows(run) => assert_eq!(id, format!("{run}:{last}")),
            Way::Many => self.cursor = Cursor { id, places: connection.places.clone() },
            Way::Feed(_) => assert_eq!(id, last.to_string()),
        }
        let line = match count {
            Count::Seq => self.got.runs.entry(of).or_default(),
            Count::Offset => {
                if let Some(run) = head.run_id {
                    self.runs.entry(run).or_insert(false);
                }
                self.got.feeds.get_mut(&of).unwrap()
            }
        };
        line.take(before, Piece { first, last, bytes: data });
        Next::Read
    }

    /// What the reader has is gone with the power: it drops that, loads what there is, and goes on.
    async fn reset(&mut self, connection: &mut Connection, data: &str) -> Next {
        let path = &connection.path;
        assert!(connection.is_open, "{path}: reset before `opened`");
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["reason"], "lost", "{path}: {data}");
        let latest = data["latest"].as_u64().unwrap();
        if let Way::Run(run) = &connection.way {
            let place = connection.places.insert(run.clone(), 0).unwrap();
            self.got.resets.push(Reset { of: run.clone(), count: Count::Seq, place });
            // The stream begins with the first event.
            self.got.runs.insert(run.clone(), Line::default());
            return Next::Read;
        }
        let session = data["session_id"].as_str().unwrap().to_owned();
        let place = connection.places.insert(session.clone(), latest);
        let place = place.unwrap_or_else(|| panic!("{path}: another session's reset: {data}"));
        self.got.resets.push(Reset { of: session.clone(), count: Count::Offset, place });
        if self.random.random_bool(0.5) {
            // The session as it is: what that reflects is not read any more.
            let asked = format!("/v1/sessions/{session}");
            let (status, seen) = connection.door.send(Method::GET, &asked, &Value::Null).await;
            if status == 200 {
                let reflected = seen["offset"].as_u64().unwrap();
                assert!(reflected >= latest, "{path}: {data} {seen}");
                self.got.feeds.insert(session, Line::behind(reflected));
                return Next::Read;
            }
            assert!(self.is_shaken(connection.door.number), "{asked}: {status} {seen}");
        }
        // All of it, from the beginning.
        self.got.feeds.insert(session, Line::default());
        self.cursor = Cursor::zero(self.got.feeds.keys());
        Next::Leave
    }

    /// Reads a run window by window, for as long as chance wants.
    async fn windows(&mut self, run: String) {
        let door = self.door().await;
        let mut wide = self.random.random_range(1..40_u64);
        while !self.is_gone(door.number) {
            let after = self.at_of_run(&run);
            let max = match self.random.random_range(0..3) {
                0 => String::new(),
                _ => format!("&max={}", after + wide),
            };
            let path = format!("/v1/runs/{run}/events?after={after}{max}");
            let (status, bytes) = door.ask(Method::GET, &path, &Value::Null).await;
            self.got.windows += 1;
            let said = || String::from_utf8_lossy(&bytes).into_owned();
            if status == 400 {
                assert!(said().contains("bad_cursor"), "{path}: {}", said());
                self.got.resets.push(Reset { of: run.clone(), count: Count::Seq, place: after });
                self.got.runs.insert(run.clone(), Line::default());
                continue;
            }
            if status >= 500 && self.is_shaken(door.number) {
                return tokio::task::yield_now().await;
            }
            assert_eq!(status, 200, "{path}: {}", said());
            let window: Window = serde_json::from_slice(&bytes).unwrap();
            assert!(window.run_id == run && window.malformed.is_empty(), "{}", said());
            let line = self.got.runs.entry(run.clone()).or_default();
            for event in &window.events {
                let place = line.at();
                line.take(place, Piece::new(Count::Seq, event.get().to_owned()));
            }
            if line.at() >= window.last_seq {
                if window.terminal {
                    assert!(line.last().is_some_and(ends), "{path}: {}", said());
                    self.runs.insert(run, true);
                    return;
                }
                // It may wait for what comes next, or do something else.
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                if self.random.random_bool(0.1) {
                    return;
                }
                continue;
            }
            if window.events.is_empty() {
                // A range that is pruned or lost is wider than the window.
                assert!(!max.is_empty(), "{path} has nothing of {} events", window.last_seq);
                wide *= 2;
            } else if self.random.random_bool(0.2) {
                return;
            }
        }
    }
}

fn ends(data: &str) -> bool {
    everturn_core::event::is_terminal(&Head::of(data).event)
}

struct Connection {
    way: Way,
    /// The numbers up to which it has come: offsets by session, or the seq of its run.
    places: BTreeMap<String, u64>,
    is_open: bool,
    is_caught_up: bool,
    path: String,
    door: Door,
}

impl Connection {
    /// What a stream says of itself.
    fn note(&mut self, name: &str, data: &str) {
        let path = &self.path;
        let data: Value = serde_json::from_str(data).unwrap();
        let place = match &self.way {
            Way::Feed(id) | Way::Run(id) | Way::Windows(id) => Some(json!(self.places[id])),
            Way::Many => None,
        };
        match name {
            "opened" => {
                assert!(!self.is_open, "{path}: opened twice");
                self.is_open = true;
                if let Some(place) = place {
                    assert_eq!(data["from"], place, "{path}: {data}");
                    return;
                }
                for (id, place) in &self.places {
                    assert_eq!(data["sessions"][id]["from"], *place, "{path}: {data}");
                }
            }
            "caught_up" => {
                assert!(self.is_open && !self.is_caught_up, "{path}: {name} is out of place");
                self.is_caught_up = true;
                if let Some(place) = place {
                    assert_eq!(data["at"], place, "{path}: {data}");
                }
            }
            _ => panic!("{path}: {name} {data}"),
        }
    }
}
