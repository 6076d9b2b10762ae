//! A reader in the same process, without a socket: it reads a router's streams in whatever way chance
//! wants, is cut off anywhere (in the middle of an event as well), and finds its place again through
//! whatever feed.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use futures::StreamExt as _;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt as _;

/// A server's routes, and the token that opens them.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) router: Router,
    pub(crate) token: String,
}

impl Door {
    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "127.0.0.1")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
    }

    async fn open(&self, path: &str, last_event_id: Option<&str>) -> (StatusCode, Body) {
        let mut request = self.request(Method::GET, path).header(ACCEPT, "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        (response.status(), response.into_body())
    }

    /// Sends JSON, and answers what came back.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request = self.request(method, path).header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

/// How far a history is, for its readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Steps of the history that were done.
    pub(crate) steps: usize,
    /// The last offset of each session, once nothing more will happen.
    pub(crate) ends: Option<BTreeMap<String, u64>>,
}

/// What an event says of itself.
#[derive(Deserialize)]
struct Head {
    session_id: String,
    offset: u64,
    event: String,
    run_id: Option<String>,
    seq: Option<u64>,
}

/// One event as it came over the wire.
struct Wire {
    id: Option<String>,
    name: String,
    data: String,
}

/// What came on one connection and is no complete event yet.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    /// Up to here there is no end of an event.
    searched: usize,
}

impl Bytes {
    /// Takes bytes in, and gives the events that are complete. What is not when the connection is cut
    /// off is dropped with it, as clients do.
    fn take(&mut self, piece: &[u8]) -> Vec<Wire> {
        self.bytes.extend_from_slice(piece);
        let mut events = Vec::new();
        while let Some(end) = self.end() {
            let block = String::from_utf8(self.bytes.drain(..end).collect()).unwrap();
            self.searched = 0;
            let field = |name: &str| {
                let lines = block.lines().filter_map(|line| line.strip_prefix(name));
                let lines: Vec<&str> = lines.collect();
                (!lines.is_empty()).then(|| lines.join("\n"))
            };
            if let Some(name) = field("event: ") {
                let data = field("data: ").expect("an event has data");
                events.push(Wire { id: field("id: "), name, data });
            }
        }
        events
    }

    /// Where the first block ends, behind its empty line.
    fn end(&mut self) -> Option<usize> {
        let text = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text,
            // A character that is not complete.
            Err(error) => std::str::from_utf8(&self.bytes[..error.valid_up_to()]).unwrap(),
        };
        while let Some(at) = text[self.searched..].find('\n') {
            let next = self.searched + at + 1;
            match text.as_bytes().get(next) {
                Some(b'\n') => return Some(next + 1),
                Some(_) => self.searched = next,
                None => return None,
            }
        }
        self.searched = text.len();
        None
    }
}

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
}

/// Everything that a reader got, by its place.
#[derive(Default)]
pub(crate) struct Got {
    /// Bytes of a session's events, from offset 1.
    pub(crate) feeds: BTreeMap<String, Vec<String>>,
    /// Bytes of the runs' events, from seq 1.
    pub(crate) runs: BTreeMap<String, Vec<String>>,
    /// Connections that were opened, and how many of them were cut off.
    pub(crate) opened: usize,
    pub(crate) cut: usize,
}

/// The last id of the multiplexed feed, and the offsets that it stands for.
struct Cursor {
    id: String,
    places: BTreeMap<String, u64>,
}

pub(crate) struct Reader {
    /// Servers of the same store; each connection goes to one of them.
    doors: Vec<Door>,
    progress: watch::Receiver<Progress>,
    /// Steps of the whole history.
    steps: usize,
    random: StdRng,
    got: Got,
    /// Runs that were seen in feeds, and whether the end of each was read on a stream of its own.
    runs: BTreeMap<String, bool>,
    cursor: Cursor,
}

impl Reader {
    pub(crate) fn new(
        doors: &[Door],
        sessions: &[String],
        progress: watch::Receiver<Progress>,
        steps: usize,
        seed: u64,
    ) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(1..=sessions.len());
        let mine: Vec<String> = sessions.sample(&mut random, count).cloned().collect();
        let feeds = mine.iter().map(|id| (id.clone(), Vec::new())).collect();
        let places = mine.iter().map(|id| (id.clone(), 0)).collect();
        Self {
            doors: doors.to_vec(),
            progress,
            steps,
            random,
            got: Got { feeds, ..Got::default() },
            runs: BTreeMap::new(),
            cursor: Cursor { id: "0".to_owned(), places },
        }
    }

    /// Reads until everything was read, over as many connections as chance wants.
    pub(crate) async fn read(mut self) -> Got {
        while !self.is_complete() {
            let way = self.way();
            self.connect(way).await;
        }
        // Runs that were begun are read to their ends.
        while let Some((run, _)) =
            self.runs.iter().find(|(id, read)| !**read && self.got.runs.contains_key(*id))
        {
            let run = run.clone();
            self.connect(Way::Run(run)).await;
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
        ends.is_some_and(|ends| self.got.feeds[session].len() as u64 >= ends[session])
    }

    /// Whether a connection has nothing to give any more. A run's says so itself.
    fn is_over(&self, way: &Way) -> bool {
        match way {
            Way::Feed(id) => self.is_read(id),
            Way::Many => self.is_complete(),
            Way::Run(_) => false,
        }
    }

    fn way(&mut self) -> Way {
        let unread: Vec<String> =
            self.runs.iter().filter(|(_, read)| !**read).map(|(id, _)| id.clone()).collect();
        match self.random.random_range(0..10) {
            0..4 => Way::Many,
            4..6 if !unread.is_empty() => {
                Way::Run(unread.choose(&mut self.random).unwrap().clone())
            }
            _ => {
                let mine: Vec<&String> = self.got.feeds.keys().collect();
                Way::Feed((*mine.choose(&mut self.random).unwrap()).clone())
            }
        }
    }

    /// The path of a way, and the id to send along. The place is given in one or the other; a
    /// client that comes back with an id may still have an old place in its address.
    fn address(&mut self, way: &Way) -> (String, Option<String>) {
        let (path, place, old) = match way {
            Way::Feed(id) => {
                let place = self.got.feeds[id].len();
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
            Way::Run(id) => {
                let place = self.got.runs.get(id).map_or(0, Vec::len);
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

    /// One connection, to its end or to the cut.
    async fn connect(&mut self, way: Way) {
        let (path, id) = self.address(&way);
        let door = self.doors.choose(&mut self.random).unwrap().clone();
        let (status, body) = door.open(&path, id.as_deref()).await;
        self.got.opened += 1;
        if let (Way::Run(run), StatusCode::NO_CONTENT) = (&way, status) {
            let last = self.got.runs.get(run).and_then(|events| events.last());
            assert!(last.is_some_and(|last| ends(last)), "204 for {path} with more to come");
            self.runs.insert(run.clone(), true);
            return;
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
                assert!(*place <= self.got.feeds[id].len() as u64);
            }
        }
        let mut connection = Connection {
            places: match &way {
                Way::Feed(id) => BTreeMap::from([(id.clone(), self.got.feeds[id].len() as u64)]),
                Way::Many => self.cursor.places.clone(),
                Way::Run(_) => BTreeMap::new(),
            },
            way,
            is_open: false,
            is_caught_up: false,
            path,
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
                    let far = |progress: &Progress| progress.steps >= *steps;
                    self.progress.wait_for(far).await.unwrap();
                }
            }
            if self.is_over(&connection.way) {
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
                self.take(connection, event);
            }
            if left == 0 {
                self.got.cut += 1;
                return;
            }
        }
        let Way::Run(run) = &connection.way else { panic!("{} ended", connection.path) };
        let last = self.got.runs.get(run).and_then(|events| events.last());
        assert!(last.is_some_and(|last| ends(last)), "{} ended before the run", connection.path);
        assert!(bytes.bytes.is_empty(), "{} ended in the middle of an event", connection.path);
        self.runs.insert(run.clone(), true);
    }

    /// Takes one event in, and checks that it stands where it should.
    fn take(&mut self, connection: &mut Connection, event: Wire) {
        let Wire { id, name, data } = event;
        let path = &connection.path;
        let Some(id) = id else {
            connection.note(&name, &data, &self.got);
            return;
        };
        assert!(connection.is_open, "{path}: {name} came before `opened`");
        let head: Head = serde_json::from_str(&data).unwrap_or_else(|why| panic!("{why}: {data}"));
        assert_eq!(head.event, name, "{path}");
        let events = if let Way::Run(run) = &connection.way {
            assert_eq!(head.run_id.as_deref(), Some(run.as_str()), "{path}: {data}");
            let seq = head.seq.expect("an event of a run has a seq");
            assert_eq!(id, format!("{run}:{seq}"));
            let events = self.got.runs.entry(run.clone()).or_default();
            assert_eq!(seq, events.len() as u64 + 1, "{path}: a gap or a double: {data}");
            events
        } else {
            let place = connection.places.get_mut(&head.session_id);
            let place = place.unwrap_or_else(|| panic!("{path}: another session's event: {data}"));
            assert_eq!(head.offset, *place + 1, "{path}: a gap or a double: {data}");
            *place = head.offset;
            match &connection.way {
                Way::Many => self.cursor = Cursor { id, places: connection.places.clone() },
                _ => assert_eq!(id, head.offset.to_string()),
            }
            if let Some(run) = head.run_id {
                self.runs.entry(run).or_insert(false);
            }
            let events = self.got.feeds.get_mut(&head.session_id).unwrap();
            if let Some(known) = events.get(usize::try_from(head.offset - 1).unwrap()) {
                assert_eq!(*known, data, "{path}: it was something else before");
                return;
            }
            events
        };
        events.push(data);
    }
}

fn ends(data: &str) -> bool {
    let head: Head = serde_json::from_str(data).unwrap();
    everturn_core::event::is_terminal(&head.event)
}

struct Connection {
    way: Way,
    /// The offsets up to which it has come.
    places: BTreeMap<String, u64>,
    is_open: bool,
    is_caught_up: bool,
    path: String,
}

impl Connection {
    /// What a stream says of itself.
    fn note(&mut self, name: &str, data: &str, got: &Got) {
        let path = &self.path;
        let data: Value = serde_json::from_str(data).unwrap();
        match name {
            "opened" => {
                assert!(!self.is_open, "{path}: opened twice");
                self.is_open = true;
                let from = match &self.way {
                    Way::Feed(id) => json!(self.places[id]),
                    Way::Run(id) => json!(got.runs.get(id).map_or(0, Vec::len)),
                    Way::Many => {
                        for (id, place) in &self.places {
                            assert_eq!(data["sessions"][id]["from"], *place, "{path}: {data}");
                        }
                        return;
                    }
                };
                assert_eq!(data["from"], from, "{path}: {data}");
            }
            "caught_up" => {
                assert!(self.is_open && !self.is_caught_up, "{path}: {name} is out of place");
                self.is_caught_up = true;
                let at = match &self.way {
                    Way::Feed(id) => json!(self.places[id]),
                    Way::Run(id) => json!(got.runs.get(id).map_or(0, Vec::len)),
                    Way::Many => return,
                };
                assert_eq!(data["at"], at, "{path}: {data}");
            }
            _ => panic!("{path}: {name} {data}"),
        }
    }
}
