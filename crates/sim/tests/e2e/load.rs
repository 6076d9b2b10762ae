//! Many clients, every input sent twice, kills in between (P1 to P8 at once).

use everturn_sim::check::Checker;
use everturn_sim::load::{Load, Plan};
use everturn_sim::server::Home;
use everturn_sim::{history, tier};

const SCRIPT: &str = r#"
words_per_second = 400
[[rule]]
reply = [{ text = "The answer to {{input}} is as long as eight words." }]
"#;

fn answer(text: &str) -> String {
    format!("The answer to {text} is as long as eight words.")
}

/// 64 clients send inputs with idempotency keys, each one twice, while the server is killed and
/// restarted again and again: every accepted input ends exactly once, order per session is the order
/// of receipts, no message appears twice, and every client saw a gapless feed.
#[tokio::test(flavor = "multi_thread")]
async fn every_input_ends_exactly_once_over_kills_under_load() {
    let inputs = tier::count(1_000, 10_000);
    let kills = tier::count(4, 10);
    let plan = Plan {
        clients: 64,
        sessions: 32,
        inputs,
        name: "load".to_owned(),
        text: |number| format!("input {number}"),
    };
    let home = Home::new().unwrap();
    let mut server = home.serve(&home.script(SCRIPT).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let load = Load::start(&client, &plan);
    let sessions = load.sessions().to_vec();
    for kill in 1..=kills {
        // Spread over all of it: half of the progress is being accepted, half is being answered.
        load.reaches(2 * inputs * kill / (kills + 1)).await.unwrap();
        server.restart().await.unwrap();
    }
    let told = load.finish(&client).await.unwrap();
    assert_eq!(told.accepted.len(), inputs);
    assert!(told.seen.iter().all(|(_, record)| record.attached > kills), "nobody attached again");
    let checker = Checker {
        sessions: history::read(&client, sessions).await.unwrap(),
        accepted: told.accepted,
        accepted_all: true,
        seen: told.seen,
        effects: None,
        answer: Some(answer),
        ..Checker::default()
    };
    checker.verify().unwrap();
    // The kills met turns at work, or they proved little.
    let interrupted = checker.sessions.iter().flat_map(|session| &session.runs);
    let interrupted = interrupted.filter(|run| run.run["terminal_state"] == "interrupted").count();
    assert!(interrupted >= kills, "{interrupted} turns were interrupted by {kills} kills");
}
