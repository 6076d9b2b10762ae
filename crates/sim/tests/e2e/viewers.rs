//! Viewers: slow ones, late ones, lost ones (P6, P7).

use everturn_sim::follow::{Follower, Source};
use everturn_sim::server::Home;
use everturn_sim::{history, tier};
use reqwest::Method;

use crate::common::{runs, seen, verify};

/// P7: a viewer that does not read slows nobody, and when it reads again it misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_does_not_read_slows_nobody_and_misses_nothing() {
    let words = tier::count(20_000, 200_000);
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
