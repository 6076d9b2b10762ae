//! Pieces of text are pruned by a server, by its setting, and nothing of them is lost.

use everturn_sim::client::Client;
use everturn_sim::openai::{OpenAi, Reply};
use everturn_sim::server::Home;
use everturn_sim::wait;
use serde_json::Value;

use crate::common::{run, serve_openai};

/// A run's events, and the answer's text in them.
async fn journal(client: &Client, run: &str) -> (Vec<Value>, String) {
    let answer = client.get(&format!("/v1/runs/{run}/events")).await.unwrap();
    let events = answer.expect(200).unwrap()["events"].as_array().unwrap().clone();
    let text = events
        .iter()
        .filter(|event| matches!(event["event"].as_str(), Some("text.delta" | "text.snapshot")))
        .map(|event| event["text"].as_str().unwrap())
        .collect();
    (events, text)
}

fn deltas(events: &[Value]) -> usize {
    events.iter().filter(|event| event["event"] == "text.delta").count()
}

/// P6, P12: with the setting 0 nothing is ever pruned; with one second a server prunes at its start
/// what an earlier process left, and while it runs what ends, also after it was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_prunes_what_is_older_than_its_setting() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let words: Vec<String> = (0..200).map(|n| format!("word {n} ")).collect();
    let text = words.concat();
    let reply = || Reply::new().pieces(words.iter().map(String::as_str));
    openai.push(reply());
    let ended = run(&home, &openai, &["--session", "s", "tell me"]).run().await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let spec = serve_openai(&home, &openai);
    let mut server =
        spec.clone().env("EVERTURN_RETENTION_TOKEN_EVENTS_S", "0").start().await.unwrap();
    let client = home.client().unwrap();
    let turns = client.get("/v1/sessions/s/turns").await.unwrap().expect(200).unwrap();
    let old = turns["data"][0]["run_id"].as_str().unwrap().to_owned();
    let (unpruned, said) = journal(&client, &old).await;
    assert!(deltas(&unpruned) > 1, "{unpruned:?}");
    assert_eq!(said, text);
    server.terminate().await.unwrap();

    let mut server = spec.env("EVERTURN_RETENTION_TOKEN_EVENTS_S", "1").start().await.unwrap();
    for round in 0..3 {
        openai.push(reply());
        let accepted = client.say("s", &format!("r{round}"), "again").await.unwrap();
        let input = client.outcome(&accepted.input_id).await.unwrap();
        let new = input["run_id"].as_str().unwrap().to_owned();
        for run in [&old, &new] {
            let (events, said) = wait::until("the run is pruned", || async {
                let (events, said) = journal(&client, run).await;
                assert_eq!(said, text, "at any moment all of it is there");
                Ok((deltas(&events) == 0).then_some((events, said)))
            })
            .await
            .unwrap();
            assert_eq!(said, text);
            let last = events.last().unwrap();
            assert_eq!(last["event"], "run.completed");
            assert!((last["seq"].as_u64().unwrap() as usize) > events.len());
            assert_eq!(client.run(run).await.unwrap()["last_seq"], last["seq"]);
        }
        server.kill();
        server.restart().await.unwrap();
    }
    let report = home.everturn("doctor").unwrap().run().await.unwrap();
    let sound = report.stdout.lines().any(|line| line.starts_with("ok") && line.contains("whole"));
    assert!(sound, "a pruned store is sound: {report:?}");
}
