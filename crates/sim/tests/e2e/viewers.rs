//! Viewers: slow ones, late ones, lost ones (P6, P7).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use everturn_sim::crowd::{self, Crowd, Digest, Watched};
use everturn_sim::follow::{Follower, Source};
use everturn_sim::server::{Home, allow_open_files};
use everturn_sim::{history, tier};
use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::common::{runs, seen, verify};

/// P7: a viewer that does not read slows nobody, and when it reads again it misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_does_not_read_slows_nobody_and_misses_nothing() {
    let words = tier::count(20_000, 100_000);
    let script = format!("[[rule]]\nreply = [{{ pieces = [\"word \"], repeat = {words} }}]\n");
    let home = Home::new().unwrap();
    let _server = home.serve(&home.script(&script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    client.post("/v1/sessions", &serde_json::json!({ "id": "s" })).await.unwrap();
    let request = client.request(Method::GET, "/v1/sessions/s/events?after=0");
    let mut unread = request.send().await.unwrap();
    assert_eq!(unread.status(), 200);
    let accepted = client.say("s", "r1", "go").await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    // Now it reads: what was on its way, and then the rest, to the end of the turn.
    let mut bytes = Vec::new();
    let ended = async {
        while let Some(piece) = unread.chunk().await.unwrap() {
            bytes.extend_from_slice(&piece);
            let from = bytes.len().saturating_sub(piece.len() + 64);
            if bytes[from..].windows(20).any(|window| window == b"event: run.completed") {
                break;
            }
        }
    };
    tokio::time::timeout(everturn_sim::wait::LIMIT, ended).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let ids: Vec<u64> =
        text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.len() >= words, "{}", ids.len());
    assert!(ids.iter().enumerate().all(|(at, id)| *id == at as u64 + 1), "a gap or a double");
    verify(&client, &["s"], vec![accepted], vec![]).await;
}

/// P6, P7: from every place of a feed and of a run, a reader gets exactly what follows, live or not.
#[tokio::test(flavor = "multi_thread")]
async fn from_every_cursor_a_reader_gets_exactly_what_follows() {
    let script =
        "words_per_second = 300\n[[rule]]\nreply = [{ text = \"one two three four five six\" }]\n";
    let home = Home::new().unwrap();
    let _server = home.serve(&home.script(script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let live = Follower::feed(&client, "s");
    let mut accepted = Vec::new();
    for number in 0..3 {
        let one = client.say("s", &format!("r{number}"), "go").await.unwrap();
        client.outcome(&one.input_id).await.unwrap();
        accepted.push(one);
    }
    let offset = client.session("s").await.unwrap()["offset"].as_u64().unwrap();
    live.wait_for(|record| (record.cursor() >= offset).then_some(())).await.unwrap();
    let whole = live.record();
    for after in 0..=offset {
        let reader = Follower::start(&client, Source::Feed("s".to_owned()), after);
        reader.wait_for(|record| (record.caught_up > 0).then_some(())).await.unwrap();
        let record = reader.stop();
        assert_eq!(record.faults, Vec::<String>::new());
        assert_eq!(record.events, whole.events[usize::try_from(after).unwrap()..]);
    }
    let run = runs(&whole)[1].clone();
    let journal = history::read(&client, ["s".to_owned()]).await.unwrap().remove(0);
    let journal = journal.runs.into_iter().find(|one| one.id() == run).unwrap();
    for after in 0..=journal.events.len() {
        let reader = Follower::start(&client, Source::Run(run.clone()), after as u64);
        reader.wait_for(|record| record.complete.then_some(())).await.unwrap();
        let record = reader.stop();
        // Asked from its very end it answers 204, which this reader has no terminal event for.
        if after < journal.events.len() {
            assert_eq!(record.faults, Vec::<String>::new());
        }
        let data: Vec<&String> = record.events.iter().map(|seen| &seen.data).collect();
        assert_eq!(data, journal.events[after..].iter().collect::<Vec<_>>());
    }
    verify(&client, &["s"], accepted, vec![seen(live)]).await;
}

/// P7: a cursor that nobody can have is never skipped in silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_ahead_is_answered_with_a_reset() {
    let script = "[[rule]]\nreply = [{ text = \"Yes.\" }]\n";
    let home = Home::new().unwrap();
    let _server = home.serve(&home.script(script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let one = client.say("s", "r1", "go").await.unwrap();
    client.outcome(&one.input_id).await.unwrap();
    let reader = Follower::start(&client, Source::Feed("s".to_owned()), 1_000_000);
    let reset = reader.wait_for(|record| record.resets.first().cloned()).await.unwrap();
    let reset: serde_json::Value = serde_json::from_str(&reset).unwrap();
    let offset = client.session("s").await.unwrap()["offset"].clone();
    assert_eq!((&reset["reason"], &reset["latest"]), (&"ahead".into(), &offset));
    let turns = client.get("/v1/sessions/s/turns").await.unwrap().expect(200).unwrap();
    let run = turns["data"][0]["run_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events?after=1000000");
    assert_eq!(client.get(&path).await.unwrap().problem(400).unwrap(), "bad_cursor");
}

/// P12: viewers that read nothing at all cost a turn that writes megabytes no time, and what they cost
/// the server in memory does not grow with what is written.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_that_read_nothing_cost_neither_time_nor_memory() {
    const VIEWERS: usize = 64;
    let piece = "0123456789abcde ".repeat(64);
    let script = format!("[[rule]]\nreply = [{{ pieces = [\"{piece}\"], repeat = 3000 }}]\n");
    let home = Home::new().unwrap();
    let server = home.serve(&home.script(&script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let turn = async |session: &str, name: &str| {
        let start = Instant::now();
        let accepted = client.say(session, name, "go").await.unwrap();
        assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
        start.elapsed()
    };
    let alone = turn("alone", "r0").await;
    client.post("/v1/sessions", &serde_json::json!({ "id": "seen" })).await.unwrap();
    let mut unread = Vec::new();
    let address = client.address().trim_start_matches("http://").parse().unwrap();
    for _ in 0..VIEWERS {
        // Its kernel takes little, so that what it does not read stays with the server.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        let mut viewer = socket.connect(address).await.unwrap();
        let request = "GET /v1/sessions/seen/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
        viewer.write_all(request.as_bytes()).await.unwrap();
        let mut begun = [0; 12];
        viewer.read_exact(&mut begun).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200");
        unread.push(viewer);
    }
    // The first one goes into what the kernel keeps for each of them, which costs what writing costs.
    turn("seen", "r1").await;
    let before = server.resident_bytes().unwrap();
    for name in ["r2", "r3"] {
        let watched = turn("seen", name).await;
        assert!(watched < alone * 3 + Duration::from_secs(2), "{watched:?}, and {alone:?} unseen");
    }
    let grown = server.resident_bytes().unwrap().saturating_sub(before);
    // The two answers, kept for each viewer, were four hundred megabytes.
    assert!(grown < 64 << 20, "{grown} bytes more than after the first turn, {before}");
    drop(unread);
}

/// Counterpart of `test_server_treats_broken_pipe_as_client_disconnect_not_500` of seed 000.
/// W-69: clients that go away, at any moment and in any way, are a normal end: no answer of the server
/// counts as an error of it, nothing is said in its log, and nobody else notices.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_go_away_are_no_error_of_the_server() {
    let script = "[[rule]]\nreply = [{ pieces = [\"word \"], repeat = 300, delay_ms = 5 }]\n";
    let home = Home::new().unwrap();
    let server = home.serve(&home.script(script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let live = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "go").await.unwrap();
    let run = live.wait_for(|record| runs(record).first().cloned()).await.unwrap();
    let address: std::net::SocketAddr =
        client.address().trim_start_matches("http://").parse().unwrap();
    let body = r#"{"text":"cut"}"#;
    let requests = [
        "GET /v1/sessions/s/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        "GET /v1/events?session=s&after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        format!(
            "GET /v1/runs/{run}/events HTTP/1.1\r\nhost: localhost\r\n\
             accept: text/event-stream\r\n\r\n"
        ),
        // Cut off before the answer, or within a request.
        format!("GET /v1/inputs/{}?wait=5 HTTP/1.1\r\nhost: localhost\r\n\r\n", accepted.input_id),
        format!(
            "POST /v1/sessions/s/inputs HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: 1000\r\n\r\n{body}"
        ),
    ];
    for (number, request) in requests.iter().cycle().take(100).enumerate() {
        let socket = TcpSocket::new_v4().unwrap();
        let mut peer = socket.connect(address).await.unwrap();
        peer.write_all(request.as_bytes()).await.unwrap();
        // Streams are left after their beginning, in the middle of what comes, or at once.
        let is_stream = number % requests.len() < 3;
        if is_stream && number % 2 == 0 {
            let mut begun = vec![0; 12 + number * 20];
            peer.read_exact(&mut begun).await.unwrap();
            assert_eq!(&begun[..12], b"HTTP/1.1 200");
        }
        if number % 4 < 2 {
            // RST, while the other half of them says goodbye.
            peer.set_zero_linger().unwrap();
        }
        drop(peer);
    }
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    let figures = client.get("/metrics").await.unwrap().body;
    let failed = figures.lines().find(|line| {
        line.starts_with("everturn_http_requests_total{") && line.contains("status=\"5")
    });
    assert_eq!(failed, None);
    assert!(!figures.contains("everturn_storage_failures_total{"), "{figures}");
    let said = server.process.err.text();
    for word in ["ERROR", "WARN", "panicked"] {
        assert!(!said.contains(word), "{said}");
    }
    verify(&client, &["s"], vec![accepted], vec![seen(live)]).await;
}

/// P6, P7: many viewers of many turns, and a kill in the middle: each of them gets everything once.
#[tokio::test(flavor = "multi_thread")]
async fn many_viewers_miss_nothing_and_see_nothing_twice_over_a_kill() {
    let runs = tier::count(10, 100);
    let viewers = tier::count(100, 1_000);
    let seconds = tier::count(10, 60);
    let pieces = seconds * 50;
    allow_open_files(4 * viewers as u64 + 1_024).unwrap();
    let script = format!(
        "[[rule]]\nreply = [{{ pieces = [\"w{{{{n}}}} \"], repeat = {pieces}, delay_ms = 20 }}]\n"
    );
    let home = Home::new().unwrap();
    let mut server = home.serve(&home.script(&script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let sessions: Vec<String> = (0..runs).map(|number| format!("v-{number}")).collect();
    let mut accepted = Vec::new();
    let mut first_runs = Vec::new();
    for session in &sessions {
        accepted.push(client.say(session, "r1", "go").await.unwrap());
        let run = everturn_sim::wait::until("a run", || async {
            let view = client.session(session).await?;
            Ok(view["running"]["run_id"].as_str().map(str::to_owned))
        });
        first_runs.push(run.await.unwrap());
    }
    // Of ten viewers of a session, two watch the run that is cut off.
    let watched = (0..viewers).map(|number| match number / runs % 5 {
        4 => Watched::Run(first_runs[number % runs].clone()),
        _ => Watched::Feed(sessions[number % runs].clone()),
    });
    let crowd = Crowd::start(&client, watched);
    let patience = Duration::from_secs(60 + 6 * seconds as u64);
    let half = (viewers * pieces / 2) as u64;
    everturn_sim::wait::until_for(patience, "the middle", || async {
        Ok((crowd.events() >= half).then_some(()))
    })
    .await
    .unwrap();
    assert!(crowd.attached() >= viewers);
    server.restart().await.unwrap();
    let read = crowd.finish(patience).await.unwrap();
    assert_eq!(read.len(), viewers);
    for one in &accepted {
        let ended = client.outcome_within(&one.input_id, patience).await.unwrap();
        assert_eq!(ended["outcome"], "completed", "{ended}");
    }

    // What every one of them should have read: up to the event at which it left.
    let histories = history::read(&client, sessions.clone()).await.unwrap();
    let mut wanted: HashMap<String, Digest> = HashMap::new();
    for history in &histories {
        let end = history.feed.iter().position(|seen| seen.event == "run.completed").unwrap();
        let feed = history.feed[..=end].iter().map(|seen| seen.data.as_str());
        wanted.insert(history.id.clone(), crowd::digest(feed));
        for run in &history.runs {
            let events = run.events.iter().map(String::as_str);
            wanted.insert(run.id().to_owned(), crowd::digest(events));
        }
        assert_eq!(history.runs.len(), 2, "{}: the kill met its turn", history.id);
    }
    for (watched, digest) in read {
        let (Watched::Feed(name) | Watched::Run(name)) = &watched;
        assert_eq!(digest, wanted[name], "{watched:?}");
    }
    let names: Vec<&str> = sessions.iter().map(String::as_str).collect();
    verify(&client, &names, accepted, vec![]).await;
}
