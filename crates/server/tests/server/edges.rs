//! The edges of streams (promises P6 and P7): the end and a moment after it, notices that are late or
//! never come, connections that are cut at every event, peers that are there and do nothing.

use std::time::Duration;

use everturn_engine::Scope as Work;
use everturn_server::Scope;
use everturn_store::SystemClock;
use socket2::{SockFilter, SockRef};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::sse::{Event, Events, ask, names, stored};
use crate::world::{PATIENCE, World, key, memory};

/// Turns that a race is tried with.
const TRIES: usize = 40;

/// A socket with a stream that is being read, as it comes.
struct Wire {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Wire {
    /// HTTP/1.0, so that the events are not wrapped in chunks.
    async fn open(world: &World, path: &str, id: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(world.addr).await.unwrap();
        let id = id.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let request = format!(
            "GET {path} HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\n{id}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, bytes: Vec::new() }
    }

    /// The next block, which ends with an empty line; `None` at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
                let block = self.bytes.drain(..end + 2).collect();
                return Some(String::from_utf8(block).unwrap());
            }
            let read = self.stream.read_buf(&mut self.bytes);
            let count = tokio::time::timeout(PATIENCE, read).await.expect("something comes");
            if count.unwrap() == 0 {
                return None;
            }
        }
    }

    /// Id and data of the next stored event; `None` at the end.
    async fn event(&mut self) -> Option<(String, String)> {
        loop {
            let block = self.block().await?;
            let field = |name| block.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(id), Some(data)) = (field("id: "), field("data: ")) {
                return Some((id.to_owned(), data.to_owned()));
            }
        }
    }

    /// Cuts the connection (RST), with whatever is on its way.
    fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// P7: cut (RST) after every single event, of a turn that is being written, a reader of any feed that
/// comes back with the id of the last one gets everything once.
async fn a_connection_that_is_cut_at_every_event_loses_nothing(world: World) {
    let pieces = "t z ".repeat(30);
    world.say("s", &format!("play {pieces}")).await;
    let run = world.session_when("s", |seen| seen["running"]["run_id"].is_string()).await;
    let run = run["running"]["run_id"].as_str().unwrap().to_owned();
    let read = async |path: &str| {
        let mut seen: Vec<(String, String)> = Vec::new();
        loop {
            let id = seen.last().map(|(id, _)| id.as_str());
            let mut wire = Wire::open(&world, path, id).await;
            // 204 has no event: that is how a run's stream says that it is over.
            let Some(event) = wire.event().await else { return seen };
            let is_last = event.1.contains("\"event\":\"session.updated\"")
                && event.1.contains("\"state\":\"idle\"")
                && seen.len() > 10;
            seen.push(event);
            wire.reset();
            if is_last {
                return seen;
            }
        }
    };
    let feed = "/v1/sessions/s/events?after=0";
    let journal = format!("/v1/runs/{run}/events");
    let many = "/v1/events?session=s&after=0";
    let (of_feed, of_run, of_many) = tokio::join!(read(feed), read(&journal), read(many));
    let mut events = Events::open(&world, feed).await;
    let all = stored(&events.through("caught_up").await);
    let bytes = |events: &[(String, String)]| -> Vec<String> {
        events.iter().map(|(_, data)| data.clone()).collect()
    };
    let raw: Vec<String> = all.iter().map(|event| event.raw.clone()).collect();
    assert_eq!(bytes(&of_feed), raw);
    assert_eq!(bytes(&of_many), raw);
    let journal = Events::open(&world, &journal).await.rest().await;
    let journal: Vec<String> = stored(&journal).into_iter().map(|event| event.raw).collect();
    assert_eq!(bytes(&of_run), journal);
    assert!(journal.len() > 20, "{}", journal.len());
}

/// P7: attached again exactly at the end, and a millisecond later, a reader learns that there is
/// nothing more: of a run by 204, of a feed by `caught_up`. One event before, it gets that event.
async fn at_the_end_and_a_moment_later_there_is_nothing_more(world: World) {
    for _ in 0..TRIES / 4 {
        let run = world.held_turn("s").await;
        let path = format!("/v1/runs/{run}/events");
        let mut events = Events::open(&world, &path).await;
        world.puppet.release();
        let seen = events.through("run.completed").await;
        let [.., before, last] = &stored(&seen)[..] else { panic!("{seen:?}") };
        let last_id = [("last-event-id", last.id.as_deref().unwrap())];
        assert_eq!(ask(&world, &path, &last_id).await.status(), 204);
        // The moment is what is tested: nothing that happens behind the end may change the answer.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(ask(&world, &path, &last_id).await.status(), 204);
        let before_id = [("last-event-id", before.id.as_deref().unwrap())];
        let again = Events::open_with(&world, &path, &before_id).await.rest().await;
        assert_eq!(stored(&again), std::slice::from_ref(last));

        world.session_when("s", |seen| seen["state"] == "idle").await;
        let latest = world.get("/v1/sessions/s").await.ok()["offset"].to_string();
        let mut feed = Events::open(&world, &format!("/v1/sessions/s/events?after={latest}")).await;
        assert_eq!(names(&feed.through("caught_up").await), ["opened", "caught_up"]);
    }
}

/// P6, P7: a reader that comes at the same time as the last event gets it, however the two meet, though
/// nobody looks around for notices that were lost.
async fn a_reader_that_comes_with_the_last_event_gets_it(world: World) {
    for number in 0..TRIES {
        let run = world.held_turn("s").await;
        let path = format!("/v1/runs/{run}/events");
        let read = async || {
            for _ in 0..number % 8 {
                tokio::task::yield_now().await;
            }
            let response = ask(&world, &path, &[]).await;
            assert_eq!(response.status(), 200);
            stored(&Events::of(response).rest().await)
        };
        let end = async {
            world.puppet.release();
        };
        let (one, (), two) = tokio::join!(read(), end, read());
        assert_eq!(one.last().unwrap().name, "run.completed");
        assert_eq!(one, two);
        let seqs: Vec<u64> = one.iter().map(|event| event.data["seq"].as_u64().unwrap()).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        world.session_when("s", |seen| seen["state"] == "idle").await;
    }
}

mod in_memory {
    use super::*;

    async fn world() -> World {
        World::with(|config, _| config.poll = Duration::from_secs(600)).await
    }

    #[tokio::test]
    async fn a_connection_that_is_cut_at_every_event_loses_nothing() {
        super::a_connection_that_is_cut_at_every_event_loses_nothing(world().await).await;
    }

    #[tokio::test]
    async fn at_the_end_and_a_moment_later_there_is_nothing_more() {
        super::at_the_end_and_a_moment_later_there_is_nothing_more(world().await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_that_comes_with_the_last_event_gets_it() {
        super::a_reader_that_comes_with_the_last_event_gets_it(world().await).await;
    }
}

mod on_sqlite {
    use super::*;

    async fn world() -> World {
        World::sqlite_with(|config, _| config.poll = Duration::from_secs(600)).await
    }

    #[tokio::test]
    async fn a_connection_that_is_cut_at_every_event_loses_nothing() {
        super::a_connection_that_is_cut_at_every_event_loses_nothing(world().await).await;
    }

    #[tokio::test]
    async fn at_the_end_and_a_moment_later_there_is_nothing_more() {
        super::at_the_end_and_a_moment_later_there_is_nothing_more(world().await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_that_comes_with_the_last_event_gets_it() {
        super::a_reader_that_comes_with_the_last_event_gets_it(world().await).await;
    }
}

/// Two processes on one store; the second one is never told of what the first one writes, and looks
/// around as often as this.
async fn told_late(poll: Duration) -> (World, World) {
    let store = memory();
    let works = World::on(store.clone(), |_, _| {}).await;
    let other = Arc::new(store.another(Arc::new(SystemClock::new().unwrap())));
    let watches = World::on(other, |config, _| {
        config.scope = Work::Only(key("nothing"));
        config.poll = poll;
    })
    .await;
    (works, watches)
}

/// P6, P7: who comes when everything is written, and before anybody was told, gets everything.
#[tokio::test]
async fn a_reader_that_comes_before_any_notice_gets_everything() {
    let (works, watches) = told_late(Duration::from_secs(600)).await;
    let input = works.say_and_wait("s", "many 20").await;
    let run = input["run_id"].as_str().unwrap();
    let journal = Events::open(&watches, &format!("/v1/runs/{run}/events")).await.rest().await;
    assert_eq!(journal.last().unwrap().name, "run.completed");
    for path in ["/v1/sessions/s/events?after=0", "/v1/events?session=s&after=0"] {
        let mut here = Events::open(&watches, path).await;
        let mut there = Events::open(&works, path).await;
        let here = stored(&here.through("caught_up").await);
        assert_eq!(here, stored(&there.through("caught_up").await));
        let seqs = here.iter().filter(|event| event.data.get("seq").is_some()).count();
        assert_eq!(seqs, stored(&journal).len());
    }
}

/// P6, P7: a reader whose notice of the last event was lost, and of all before it, gets them at the
/// next look around, once.
#[tokio::test]
async fn a_lost_notice_is_made_up_for() {
    let (works, watches) = told_late(Duration::from_millis(20)).await;
    let run = works.held_turn("s").await;
    let mut feed = Events::open(&watches, "/v1/sessions/s/events?after=0").await;
    let mut seen = feed.through("caught_up").await;
    let journal = Events::open(&watches, &format!("/v1/runs/{run}/events")).await;
    works.puppet.release();
    seen.extend(feed.through("run.completed").await);
    let offsets: Vec<u64> =
        stored(&seen).iter().map(|event| event.data["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>());
    let journal = stored(&journal.rest().await);
    let of_feed = stored(&seen).into_iter().filter(|event| event.data.get("seq").is_some());
    let raw = |event: Event| event.raw;
    assert_eq!(
        journal.into_iter().map(raw).collect::<Vec<_>>(),
        of_feed.map(raw).collect::<Vec<_>>()
    );
}

/// P7, P14: a place in another person's session of the same name is none in one's own.
#[tokio::test]
async fn a_cursor_of_another_persons_session_is_reset() {
    let mut world = World::new().await;
    let ann = world.token("ann", Scope::ALL).await;
    let bob = world.token("bob", Scope::ALL).await;
    let mut cursors = Vec::new();
    let mut runs = Vec::new();
    for who in [&ann, &bob] {
        world.show(Some(who));
        let input = world.say_and_wait("s", "many 5").await;
        runs.push(input["run_id"].as_str().unwrap().to_owned());
        let mut feed = Events::open(&world, "/v1/events?session=s&after=0").await;
        let seen = stored(&feed.through("caught_up").await);
        cursors.push(seen[seen.len() / 2].id.clone().unwrap());
    }
    // Bob shows Ann's.
    let headers = [("last-event-id", cursors[0].as_str())];
    let mut feed = Events::open_with(&world, "/v1/events?session=s", &headers).await;
    let seen = feed.through("caught_up").await;
    let reset = seen.iter().find(|event| event.name == "reset").expect("it is not taken for his");
    assert_eq!(reset.data["reason"], "foreign");
    let path = format!("/v1/runs/{}/events", runs[1]);
    let id = format!("{}:2", runs[0]);
    let seen = Events::open_with(&world, &path, &[("last-event-id", &id)]).await.rest().await;
    assert_eq!(names(&seen)[..2], ["opened", "reset"]);
    assert_eq!(seen[1].data["reason"], "foreign");
    assert_eq!(stored(&seen)[0].data["seq"], 1, "and everything of the run follows");
    // His own is still his.
    let headers = [("last-event-id", cursors[1].as_str())];
    let mut feed = Events::open_with(&world, "/v1/events?session=s", &headers).await;
    assert!(!names(&feed.through("caught_up").await).contains(&"reset"));
}

/// P7: a client that attaches twice at once, with the same id, gets everything twice: once on each.
#[tokio::test]
async fn two_attaches_at_once_each_get_everything() {
    let world = World::new().await;
    let run = world.held_turn("s").await;
    for path in [
        "/v1/sessions/s/events?after=1".to_owned(),
        "/v1/events?session=s&after=0".to_owned(),
        format!("/v1/runs/{run}/events?after=1"),
    ] {
        let (mut one, mut two) =
            tokio::join!(Events::open(&world, &path), Events::open(&world, &path));
        let (mut of_one, of_two) = tokio::join!(one.through("caught_up"), two.through("caught_up"));
        assert_eq!(of_one, of_two, "{path}");
        // One of them goes; the other one goes on.
        drop(two);
        let mut three = Events::open(&world, &path).await;
        let of_three = three.through("caught_up").await;
        assert_eq!(of_one, of_three);
        if path.contains("/runs/") {
            world.puppet.release();
            of_one.extend(one.rest().await);
            let rest = three.rest().await;
            assert_eq!(of_one[of_three.len()..], rest);
            assert_eq!(rest.last().unwrap().name, "run.completed");
        }
    }
}

/// P7: a stream on which nothing happens for long stays open, says beforehand how often it will say
/// so, and goes on when something happens.
#[tokio::test]
async fn a_stream_that_is_silent_for_long_is_kept_alive() {
    let world = World::with(|_, config| {
        config.heartbeat = Duration::from_millis(20);
        config.write_timeout = Duration::from_millis(200);
        config.read_timeout = Duration::from_millis(200);
    })
    .await;
    let run = world.held_turn("s").await;
    let run = format!("/v1/runs/{run}/events");
    for path in ["/v1/sessions/s/events?after=0", "/v1/events?session=s&after=0", &run] {
        let mut wire = Wire::open(&world, path, None).await;
        let mut beats = 0;
        let mut is_told = false;
        // Several times as long as anything else may take.
        while beats < 40 {
            let block = wire.block().await.expect("it stays open");
            is_told |= block.contains(": a heartbeat follows 20ms of silence\n");
            beats += usize::from(block == ": heartbeat\n\n");
            assert!(is_told || beats == 0, "{path} says how often before it does so");
        }
        if path == run {
            world.puppet.release();
        } else {
            let revision = world.get("/v1/sessions/s").await.ok()["revision"].clone();
            let body = serde_json::json!({ "title": path, "expected_revision": revision });
            world.patch("/v1/sessions/s", body).await.ok();
        }
        wire.event().await.expect("it goes on");
    }
}

/// P12: a viewer whose machine vanished, so that nobody closes its connection, is none after the time
/// that a peer has to take what was sent to it.
#[tokio::test]
async fn a_viewer_that_vanished_without_a_word_is_noticed() {
    let world = World::with(|_, config| {
        config.heartbeat = Duration::from_millis(100);
        config.write_timeout = Duration::from_millis(500);
    })
    .await;
    world.say_and_wait("s", "say hi").await;
    let mut gone = Wire::open(&world, "/v1/sessions/s/events?after=0", None).await;
    gone.event().await.expect("it is attached");
    world.session_when("s", |seen| seen["viewers"] == 1).await;
    // Its kernel drops whatever comes (`ret 0`), acknowledges nothing, and closes nothing.
    let nothing = SockFilter::new(0x06, 0, 0, 0);
    SockRef::from(&gone.stream).attach_filter(&[nothing]).unwrap();
    world.session_when("s", |seen| seen["viewers"] == 0).await;
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    events.through("caught_up").await;
    world.say("s", "say on").await;
    events.until("run.completed").await;
    drop(gone);
}
