//! Kills at random moments, again and again, with tools at work; then the checker.

use std::time::Duration;

use everturn_sim::check::{Checker, Effects, lines};
use everturn_sim::load::{Load, Plan};
use everturn_sim::server::Home;
use everturn_sim::{history, tier};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;

/// Every third input runs a command that leaves a line; every third reads a file.
const SCRIPT: &str = r#"
words_per_second = 300
[[rule]]
matches = 'write (\w+)'
round = 0
reply = [
  { text = "I will write. " },
  { call = "shell", arguments = { command = "echo {{1}} >> effects" } },
]
[[rule]]
contains = "read"
round = 0
reply = [{ text = "I will read. " }, { call = "read_file", arguments = { path = "note.txt" } }]
[[rule]]
reply = [{ text = "That was {{input}}, in a few words." }]
"#;

fn input(number: usize) -> String {
    match number % 3 {
        0 => format!("write w{number}"),
        1 => format!("read {number}"),
        _ => format!("say {number}"),
    }
}

fn answer(text: &str) -> String {
    let first = match text.split(' ').next() {
        Some("write") => "I will write. ",
        Some("read") => "I will read. ",
        _ => "",
    };
    format!("{first}That was {text}, in a few words.")
}

fn line_of(arguments: &Value) -> Option<String> {
    let line = arguments["command"].as_str()?.strip_prefix("echo ")?;
    Some(line.strip_suffix(" >> effects")?.to_owned())
}

/// Cycles of load and kill -9 at a random moment; a fresh home after each third one, so that turns
/// are continued as well as parked by the loop breaker. A failure prints the seed.
#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_moments_break_no_promise() {
    let seed = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is not a number"),
        Err(_) => rand::random::<u32>(),
    };
    println!("EVERTURN_SEED={seed}");
    let mut random = StdRng::seed_from_u64(u64::from(seed));
    let cycles = tier::count(10, 200);
    let mut done = 0;
    while done < cycles {
        let kills = (cycles - done).min(3);
        one_home(&mut random, kills).await;
        done += kills;
    }
}

async fn one_home(random: &mut StdRng, kills: usize) {
    let home = Home::new().unwrap();
    std::fs::write(home.work().join("note.txt"), "a note\n").unwrap();
    let mut server = home.serve(&home.script(SCRIPT).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let plan = Plan { clients: 8, sessions: 4, inputs: 72, name: "t".to_owned(), text: input };
    for number in 0..plan.sessions {
        client.create_open_session(&format!("t-{number}")).await.unwrap();
    }
    let load = Load::start(&client, &plan);
    let sessions = load.sessions().to_vec();
    for _ in 0..kills {
        let moment = Duration::from_micros(random.random_range(0..700_000));
        tokio::time::sleep(moment).await;
        server.restart().await.unwrap();
    }
    let told = load.finish(&client).await.unwrap();
    let effects = Effects { lines: lines(&home.work().join("effects")).unwrap(), line_of };
    let checker = Checker {
        sessions: history::read(&client, sessions).await.unwrap(),
        accepted: told.accepted,
        accepted_all: true,
        seen: told.seen,
        effects: Some(&effects),
        answer: Some(answer),
    };
    checker.verify().unwrap();
}
