//! Random histories and random readers (promises P6 and P7): whatever happens in sessions and to the
//! processes that work on them, and however a reader is cut off and comes back, what it got one after the
//! other is the journal.
//!
//! A failure prints the seed of its batch; `EVERTURN_SEED=N` begins with that one. Chance decides everything but
//! the moments at which threads and timers meet.
#![allow(clippy::print_stdout, reason = "a failure says with which seed")]

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use everturn_engine::Engine;
use everturn_sim::tier;
use everturn_store::read::StoredEvent;
use everturn_store::rows::Gap;
use http::Method;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;

use crate::door::Door;
use crate::fleet::Fleet;
use crate::line::{Count, Head, Piece};
use crate::reader::{Got, Reader};
use crate::world::key;

/// How long one case may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Cases that share their processes: setting these up takes longer than a case.
const BATCH: usize = 10;

/// Something that a person does, or that happens to the processes.
enum Step {
    Say(String, String),
    Rename(String, u64),
    Stop(String),
    /// Waits until everything that was said is answered.
    Rest,
    /// Lets the others run.
    Pause(usize),
    /// A reader comes.
    Read(u64),
    /// In the middle of an answer, while somebody reads it, a process stops where it stands, and
    /// another one takes over.
    Interrupt(String, u64),
    /// One that was taken for dead comes back.
    Thaw,
    /// In the middle of an answer, while somebody reads it, the machine loses its power, and starts
    /// again.
    LosePower(String, u64),
    /// Retention: token events of what is over are pruned.
    Prune,
}

/// What one turn does: rounds of pieces, each round but the last with a tool call at its end.
fn program(random: &mut StdRng) -> String {
    let rounds = *[1, 1, 1, 2, 3].choose(random).unwrap();
    let rounds: Vec<String> = (0..rounds)
        .map(|_| {
            let pieces = random.random_range(0..12);
            let mut words: Vec<&str> =
                (0..pieces).map(|_| *["t", "t", "r", "y", "z"].choose(random).unwrap()).collect();
            // Enough of these push what came before out of the shared memory.
            if random.random_bool(0.01) {
                words.extend(["big"; 4]);
            }
            // More than a reader takes from the store at a time.
            if random.random_bool(0.02) {
                words.extend(["t"; 400]);
            }
            words.join(" ")
        })
        .collect();
    let end = if random.random_bool(0.1) { " fail" } else { "" };
    format!("play {}{end}", rounds.join(" | "))
}

fn steps(random: &mut StdRng, sessions: &[String]) -> Vec<Step> {
    let mut steps = Vec::new();
    for session in sessions {
        for _ in 0..random.random_range(1..=3) {
            steps.push(Step::Say(session.clone(), program(random)));
        }
        for _ in 0..random.random_range(0..=2) {
            steps.push(Step::Rename(session.clone(), random.random()));
        }
        if random.random_bool(0.2) {
            steps.push(Step::Stop(session.clone()));
        }
    }
    for _ in 0..random.random_range(0..=4) {
        steps.push(Step::Pause(random.random_range(1..200)));
    }
    if random.random_bool(0.3) {
        steps.push(Step::Rest);
    }
    let session = || sessions[0].clone();
    if random.random_bool(0.2) {
        steps.extend([Step::Interrupt(session(), random.random()), Step::Thaw]);
    }
    if random.random_bool(0.15) {
        steps.push(Step::LosePower(session(), random.random()));
    }
    for _ in 0..random.random_range(0..=2) {
        steps.push(Step::Prune);
    }
    for _ in 0..random.random_range(1..=4) {
        steps.push(Step::Read(random.random()));
    }
    steps.shuffle(random);
    // One that comes when all is over, and perhaps pruned.
    steps.push(Step::Rest);
    if random.random_bool(0.3) {
        steps.push(Step::Prune);
    }
    steps.push(Step::Read(random.random()));
    steps
}

/// How often things happened in all cases, so that a test that shows nothing is noticed.
#[derive(Default)]
struct Seen {
    interrupted: AtomicUsize,
    continued: AtomicUsize,
    gaps: AtomicUsize,
    resets: AtomicUsize,
    resets_of_runs: AtomicUsize,
    snapshots: AtomicUsize,
    windows: AtomicUsize,
    cuts: AtomicUsize,
}

fn add(counter: &AtomicUsize, count: usize) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Histories, one after the other, on these processes.
async fn batch(random: &mut StdRng, mut fleet: Fleet, seen: &Seen) {
    for number in 0..BATCH {
        let case = case(random, &mut fleet, number, seen);
        tokio::time::timeout(PATIENCE, case).await.expect("the case ends");
    }
    fleet.close().await;
}

/// One history with its readers.
async fn case(random: &mut StdRng, fleet: &mut Fleet, number: usize, seen: &Seen) {
    fleet.begin();
    let count = random.random_range(1..=3);
    let sessions: Vec<String> = (0..count).map(|one| format!("s{number}-{one}")).collect();
    for session in &sessions {
        let body = json!({ "id": session, "policy": { "tools": { "*": "allow" } } });
        let (status, said) = fleet.door(random).send(Method::POST, "/v1/sessions", &body).await;
        assert_eq!(status, 201, "{said}");
    }

    let steps = steps(random, &sessions);
    let count = steps.len();
    let mut readers = Vec::new();
    let progress = fleet.progress.subscribe();
    let read = |seed, run| {
        let reader = Reader::new(&sessions, progress.clone(), count, seed, run);
        tokio::spawn(reader.read())
    };
    let mut inputs = Vec::new();
    let mut journals = Journals::default();
    for step in steps {
        let door = fleet.door(random);
        match step {
            Step::Say(session, text) => inputs.push(say(&door, &session, &text).await),
            Step::Rename(session, number) => {
                let path = format!("/v1/sessions/{session}");
                let revision = door.get(&path).await["revision"].clone();
                let title = json!({ "title": number.to_string(), "expected_revision": revision });
                // A race for the revision may be lost.
                let (status, said) = door.send(Method::PATCH, &path, &title).await;
                assert!(matches!(status, 200 | 409), "{said}");
            }
            Step::Stop(session) => {
                let path = format!("/v1/sessions/{session}/stop");
                let (status, said) =
                    door.send(Method::POST, &path, &json!({ "queue": "keep" })).await;
                // There may be nothing to stop.
                assert!(matches!(status, 200 | 202 | 409), "{status} {said}");
            }
            Step::Rest => rest(&door, &inputs).await,
            Step::Pause(times) => {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
            Step::Read(seed) => readers.push(read(seed, None)),
            Step::Interrupt(session, seed) => {
                readers.push(read(seed, None));
                let of_run = |run| readers.push(read(seed, Some(run)));
                inputs.push(begin(random, door, &session, of_run).await);
                fleet.interrupt(random).await;
            }
            Step::Thaw => fleet.thaw(),
            Step::LosePower(session, seed) => {
                readers.push(read(seed, None));
                let of_run = |run| readers.push(read(seed, Some(run)));
                inputs.push(begin(random, door, &session, of_run).await);
                fleet.lose_power().await;
            }
            Step::Prune => {
                // What readers may have seen before.
                journals.look(fleet.engine(), &sessions).await;
                fleet.prune(random).await;
            }
        }
        fleet.progress.send_modify(|progress| progress.steps += 1);
    }
    rest(&fleet.door(random), &inputs).await;
    journals.look(fleet.engine(), &sessions).await;
    journals.sort();
    let end = |events: &Vec<Piece>| events.last().map_or(0, |event| event.last);
    let ends = journals.now.iter().map(|(id, events)| (id.clone(), end(events))).collect();
    fleet.end(ends);
    for reader in readers {
        let got =
            reader.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        journals.assert_same(&got);
        let of_runs = got.resets.iter().filter(|reset| reset.count == Count::Seq).count();
        add(&seen.resets, got.resets.len() - of_runs);
        add(&seen.resets_of_runs, of_runs);
        add(&seen.windows, got.windows);
        add(&seen.cuts, got.cut);
    }
    let count = |what: &str| {
        journals.now.values().flatten().filter(|event| event.bytes.contains(what)).count()
    };
    add(&seen.snapshots, count(r#""event":"text.snapshot""#));
    add(&seen.interrupted, count(r#""event":"run.interrupted""#));
    add(&seen.continued, count(r#""kind":"continuation""#));
    add(&seen.gaps, journals.gaps.values().map(Vec::len).sum());
}

/// Says something to a session, and answers the input's id.
async fn say(door: &Door, session: &str, text: &str) -> String {
    let path = format!("/v1/sessions/{session}/inputs");
    let (status, said) = door.send(Method::POST, &path, &json!({ "text": text })).await;
    assert_eq!(status, 202, "{said}");
    said["input_id"].as_str().unwrap().to_owned()
}

/// Says something, and returns in the middle of the answer, or shortly after it. `with` is told the run
/// when it has begun.
async fn begin(
    random: &mut StdRng,
    door: Door,
    session: &str,
    with: impl FnOnce(String),
) -> String {
    let mut text = "play t".to_owned();
    for _ in 0..random.random_range(3..30) {
        text.push_str([" t", " r", " y", " z", " z t"].choose(random).unwrap());
    }
    let input = say(&door, session, &text).await;
    let enough = random.random_range(2..20);
    let mut with = Some(with);
    loop {
        let seen = door.get(&format!("/v1/inputs/{input}")).await;
        if seen["status"] == "terminal" {
            break;
        }
        if let Some(run) = seen["run_id"].as_str() {
            if let Some(with) = with.take() {
                with(run.to_owned());
            }
            let run = door.get(&format!("/v1/runs/{run}")).await;
            if run["last_seq"].as_u64().unwrap() >= enough {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // So that readers can have seen what may be lost.
    for _ in 0..random.random_range(0..100) {
        tokio::task::yield_now().await;
    }
    input
}

/// Waits until everything that was said has its outcome. Looks often: of an end in another process
/// nobody is told at once.
async fn rest(door: &Door, inputs: &[String]) {
    for input in inputs {
        let path = format!("/v1/inputs/{input}");
        while door.get(&path).await["status"] != "terminal" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What the store has of the sessions.
#[derive(Default)]
struct Journals {
    /// The feeds as they are now.
    now: BTreeMap<String, Vec<Piece>>,
    /// By session and offset, the events that were there when the test looked, but for snapshots.
    ever: BTreeMap<(String, u64), String>,
    /// Numbers that were lost with the power.
    gaps: BTreeMap<String, Vec<Gap>>,
    /// The runs that are in the feeds now.
    runs: BTreeMap<String, RunJournal>,
}

/// A run as the feed of its session has it.
#[derive(Default)]
struct RunJournal {
    session: String,
    events: Vec<Piece>,
    /// As in [`Journals::ever`], by seq.
    ever: BTreeMap<u64, String>,
}

impl Journals {
    /// Reads what there is, and checks that no number is missing without a record.
    async fn look(&mut self, engine: &Engine, sessions: &[String]) {
        for session in sessions {
            let rows = engine.read().feed(&key(session), 0, 100_000).await.unwrap();
            let gaps = engine.read().gaps(&key(session)).await.unwrap();
            let piece = |row| match row {
                StoredEvent::Good(row) => {
                    let bytes = everturn_api::event::render(&row.head, &row.body);
                    Piece::new(Count::Offset, bytes)
                }
                StoredEvent::Malformed { .. } => panic!("{row:?}"),
            };
            let events: Vec<Piece> = rows.into_iter().map(piece).collect();
            let mut next = 1;
            for event in &events {
                let gap = gaps.iter().find(|gap| gap.from_offset == next);
                next = gap.map_or(next, |gap| gap.to_offset + 1);
                assert_eq!(event.first, next, "{session}: a gap that is not recorded: {gaps:?}");
                next = event.last + 1;
                if !Head::of(&event.bytes).is_snapshot() {
                    let place = (session.clone(), event.last);
                    let first = self.ever.entry(place).or_insert_with(|| event.bytes.clone());
                    assert_eq!(*first, event.bytes, "it was something else when it was written");
                }
            }
            self.now.insert(session.clone(), events);
            self.gaps.insert(session.clone(), gaps);
        }
    }

    /// What a reader got is the journal, and it was reset where something was lost only.
    fn assert_same(&self, got: &Got) {
        for (session, line) in &got.feeds {
            line.assert_is(&self.now[session], |offset| {
                self.ever.get(&(session.clone(), offset)).cloned()
            });
        }
        for (run, line) in &got.runs {
            let journal = &self.runs[run];
            line.assert_is(&journal.events, |seq| journal.ever.get(&seq).cloned());
        }
        for reset in &got.resets {
            let (gaps, place) = match reset.count {
                Count::Offset => (self.gaps[&reset.of].clone(), reset.place),
                Count::Seq => (self.gaps_of_run(&reset.of), reset.place),
            };
            let lost = |gap: &Gap| match reset.count {
                Count::Offset => (gap.from_offset..=gap.to_offset).contains(&place),
                Count::Seq => (gap.from_seq..=gap.to_seq).contains(&place),
            };
            assert!(gaps.iter().any(lost), "nothing was lost where {reset:?} was: {gaps:?}");
        }
    }

    /// Sorts what there is by run.
    fn sort(&mut self) {
        let of_run = |bytes: &str| {
            let head = Head::of(bytes);
            head.run_id.zip(head.seq)
        };
        for (session, events) in &self.now {
            for event in events {
                let Some((run, _)) = of_run(&event.bytes) else { continue };
                let journal = self.runs.entry(run).or_default();
                journal.session.clone_from(session);
                journal.events.push(Piece::new(Count::Seq, event.bytes.clone()));
            }
        }
        for bytes in self.ever.values() {
            let Some((run, seq)) = of_run(bytes) else { continue };
            self.runs.entry(run).or_default().ever.insert(seq, bytes.clone());
        }
    }

    /// The gaps in a run's seqs: directly before an event of the run, with none of its events inside.
    fn gaps_of_run(&self, run: &str) -> Vec<Gap> {
        let RunJournal { session, events, .. } = &self.runs[run];
        let mut gaps = self.gaps[session].clone();
        gaps.retain(|gap| {
            events.iter().any(|event| event.first == gap.to_seq + 1)
                && !events.iter().any(|event| (gap.from_seq..=gap.to_seq).contains(&event.last))
        });
        gaps
    }
}

/// Runs batches, the seeds of which follow each other.
fn batches<F: Future<Output = Fleet>>(cases: usize, open: impl Fn(StdRng) -> F) -> Seen {
    let first: u64 = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is a number"),
        Err(_) => u64::from(rand::random::<u32>()),
    };
    println!("EVERTURN_SEED={first}");
    let seen = Seen::default();
    for seed in first..first + (cases / BATCH) as u64 {
        let mut random = StdRng::seed_from_u64(seed);
        // A fresh one each time: what is left of a process that was cut off ends with it.
        let mut runtime = match random.random_bool(0.5) {
            true => tokio::runtime::Builder::new_current_thread(),
            false => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let fleet = open(StdRng::seed_from_u64(random.random())).await;
                batch(&mut random, fleet, &seen).await;
            });
        }));
        if let Err(panic) = done {
            println!("EVERTURN_SEED={seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
    seen
}

/// Fails where the histories held nothing of what they are for.
fn assert_seen(seen: &Seen, on_disk: bool) {
    let Seen { interrupted, continued, gaps, resets, resets_of_runs, snapshots, windows, cuts } =
        seen;
    let mut all = vec![
        ("interrupted runs", interrupted),
        ("continuations", continued),
        ("gaps", gaps),
        ("snapshots", snapshots),
        ("windows", windows),
        ("cuts", cuts),
    ];
    if !on_disk {
        all.extend([("resets", resets), ("resets of runs", resets_of_runs)]);
    }
    let counts: Vec<(&str, usize)> =
        all.iter().map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect();
    println!("{counts:?}");
    for (name, count) in counts {
        assert!(count > 0, "no {name}");
    }
}

/// P6, P7: whatever happened and however it was read, what was read is the journal.
#[test]
fn whatever_a_reader_got_is_the_journal() {
    let seen = batches(tier::count(900, 9_000), Fleet::in_memory);
    assert_seen(&seen, false);
}

/// P6, P7: the same on SQLite, whose notices come from a thread of their own.
#[test]
fn whatever_a_reader_got_is_the_journal_on_sqlite() {
    let seen = batches(tier::count(100, 1_000), Fleet::on_disk);
    assert_seen(&seen, true);
}
