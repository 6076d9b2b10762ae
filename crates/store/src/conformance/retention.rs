//! Pruned token events: a range reads as one snapshot, from every cursor and on every stream, and
//! nothing else changes (P6, P7, P12).

use everturn_api::event::{Piece, piece};
use everturn_core::event::{Record, Told};
use everturn_core::{CallId, CallState, Effect, Run, RunId, SessionKey, limits};

use super::turns::{call, finished, started};
use super::world::{Turn, World, completed, delta, key, step};
use crate::op::{Decide, Decision, DeleteSession, EndedRun, Interrupt, PruneEvents, Pruned};
use crate::read::StoredEvent;
use crate::rows::EventRow;

const DAY_MS: u64 = 86_400_000;

/// Prunes everything that ended before now, call by call, and adds up what the calls answered.
async fn prune(world: &World) -> Pruned {
    let before = world.clock_now();
    let mut all = Pruned::default();
    loop {
        let done = world.ok(PruneEvents { before, after: all.after.clone() }).await;
        assert!(done.rows <= limits::PRUNE_ROWS, "a transaction is bounded: {done:?}");
        all.events += done.events;
        all.snapshots += done.snapshots;
        all.rows += done.rows;
        all.after = done.after;
        if !done.more {
            return all;
        }
    }
}

fn reasoning(text: &str) -> Record {
    Record::ReasoningDelta(text.to_owned())
}

fn output(call: &str, text: &str) -> Record {
    Record::CallOutput { call_id: CallId::new(call).unwrap(), text: text.to_owned() }
}

fn seq(row: &EventRow) -> u64 {
    row.head.run.as_ref().expect("an event of a run").1
}

/// A journal in short: what stands where, and which numbers it stands for.
fn short(rows: &[EventRow]) -> Vec<String> {
    rows.iter()
        .map(|row| match piece(&row.head, &row.body) {
            Some(Piece { from, to, of, text, .. }) => {
                let of = match of {
                    Told::Text => "text".to_owned(),
                    Told::Reasoning => "reasoning".to_owned(),
                    Told::Output(call) => call.to_string(),
                };
                format!("{} {from}-{to} {of}: {text}", row.head.name)
            }
            None => format!("{} {}", row.head.name, seq(row)),
        })
        .collect()
}

/// A turn with every kind of token event, alone and in ranges, that is over.
async fn story(world: &World, key: &SessionKey) -> Run {
    let turn = world.turn_of(key, "r-1", "n1").await;
    turn.write(vec![reasoning("h"), reasoning("m"), delta("Hel"), delta("lo"), delta("!")]).await;
    turn.write(vec![step("Hello!", vec![call("c1", Effect::Read), call("c2", Effect::Read)])])
        .await;
    turn.write(vec![started("c1"), started("c2")]).await;
    turn.write(vec![output("c1", "a"), output("c1", "b"), output("c2", "x"), output("c1", "c")])
        .await;
    turn.write(vec![finished("c1", CallState::Succeeded, "abc")]).await;
    turn.write(vec![finished("c2", CallState::Succeeded, "x")]).await;
    turn.write(vec![delta("one "), delta("")]).await;
    world.admit(key, "r-2", "by the way").await;
    turn.write(vec![delta("two"), reasoning("so"), delta(".")]).await;
    turn.complete("one two.").await;
    world.run_row(&turn.run.id).await
}

pub(super) async fn each_range_becomes_one_snapshot(world: World) {
    let key = key("s");
    let run = story(&world, &key).await;
    let before = world.journal(&run).await;
    assert_eq!(before.len() as u64, run.last_seq);
    world.clock.pass_ms(DAY_MS);
    world.take_seen();
    let done = prune(&world).await;
    assert!(world.take_seen().is_empty(), "nothing happened that a viewer has to be told");
    let after = world.journal(&run).await;
    let expected = [
        "run.started 1",
        "text.snapshot 2-3 reasoning: hm",
        "text.snapshot 4-6 text: Hello!",
        "tool.intended 7",
        "tool.intended 8",
        "text.snapshot 9-10 c1: ab",
        "text.snapshot 11-11 c2: x",
        "text.snapshot 12-12 c1: c",
        "tool.finished 13",
        "tool.finished 14",
        // An input was accepted in between: the feed has another event there.
        "text.snapshot 15-16 text: one ",
        "text.snapshot 17-17 text: two",
        "text.snapshot 18-18 reasoning: so",
        "text.snapshot 19-19 text: .",
        "run.completed 20",
    ];
    assert_eq!(short(&after), expected);
    assert_eq!((done.events, done.snapshots), (14, 9));
    // A snapshot stands where the last event of its range stood, at its time; all others are as
    // they were.
    for row in &after {
        let was = before.iter().find(|was| was.head.run == row.head.run).unwrap();
        assert_eq!((was.head.offset, was.head.at), (row.head.offset, row.head.at));
        assert!(row.head.name == "text.snapshot" || was == row);
    }
    // On the wire the answer's text alone is `text`, so that a reader who knows no more is not told
    // that the model said its thoughts.
    let body = |at: usize| serde_json::from_str::<serde_json::Value>(&after[at].body).unwrap();
    assert_eq!(body(1), serde_json::json!({ "from": 2, "to": 3, "text": "", "reasoning": "hm" }));
    assert_eq!(body(2), serde_json::json!({ "from": 4, "to": 6, "text": "Hello!" }));
    assert_eq!(
        body(5),
        serde_json::json!({ "from": 9, "to": 10, "text": "", "call_id": "c1", "output": "ab" })
    );
    // And the run is what it was.
    assert_eq!(world.run_row(&run.id).await, run);
}

pub(super) async fn a_feed_explains_every_number(world: World) {
    let key = key("s");
    let run = story(&world, &key).await;
    let before = world.feed(&key).await;
    let session = world.session(&key).await;
    world.clock.pass_ms(DAY_MS);
    prune(&world).await;
    assert_eq!(world.session(&key).await, session);
    assert_eq!(world.store.feed_bounds(&key).await.unwrap(), (1, session.last_offset));
    let mut next = 1;
    for row in world.feed(&key).await {
        // The numbers that are gone are those directly before the snapshot, as many as it names.
        let told = piece(&row.head, &row.body).map_or(1, |piece| piece.to - piece.from + 1);
        assert_eq!(row.head.offset + 1 - told, next, "{:?}", row.head);
        next = row.head.offset + 1;
    }
    assert_eq!(next, session.last_offset + 1);
    let others = |rows: Vec<EventRow>| -> Vec<EventRow> {
        rows.into_iter().filter(|row| row.head.run.is_none()).collect()
    };
    assert_eq!(others(world.feed(&key).await), others(before), "the session's own events stay");
    // What comes now is numbered on.
    let turn = world.turn(&key, "n1").await;
    assert!(turn.run.first_offset > session.last_offset && turn.run.id != run.id);
}

pub(super) async fn every_cursor_is_answered_with_the_rest(world: World) {
    let key = key("s");
    let run = story(&world, &key).await;
    world.clock.pass_ms(DAY_MS);
    prune(&world).await;
    let journal = world.journal(&run).await;
    let feed = world.feed(&key).await;
    let good = |events: Vec<StoredEvent>| -> Vec<EventRow> {
        events.into_iter().map(super::world::good).collect()
    };
    for after in 0..=run.last_seq + 1 {
        for max in [None].into_iter().chain((0..=run.last_seq + 1).map(Some)) {
            let read = good(world.store.run_events(&run, after, max, 100).await.unwrap());
            let inside =
                |row: &&EventRow| seq(row) > after && max.is_none_or(|max| seq(row) <= max);
            let expected: Vec<EventRow> = journal.iter().filter(inside).cloned().collect();
            assert_eq!(read, expected, "({after}, {max:?}]");
        }
        let read = good(world.store.run_events(&run, after, None, 1).await.unwrap());
        if let Some(first) = read.first() {
            // Never silence, never a gap: the first event is the next one, or begins at or before it.
            let from = piece(&first.head, &first.body).map_or(seq(first), |piece| piece.from);
            assert!(from <= after + 1 && after < seq(first), "after {after}: {first:?}");
        } else {
            assert!(after >= run.last_seq, "silence after {after}");
        }
    }
    for after in 0..=feed.len() as u64 + 30 {
        let read = good(world.store.feed(&key, after, 100).await.unwrap());
        let expected: Vec<EventRow> =
            feed.iter().filter(|row| row.head.offset > after).cloned().collect();
        assert_eq!(read, expected, "after offset {after}");
    }
}

pub(super) async fn pruning_again_or_from_everywhere_changes_nothing(world: World) {
    let keys: Vec<SessionKey> = (0..5).map(|n| key(&format!("s-{n}"))).collect();
    let mut runs = Vec::new();
    for key in &keys {
        runs.push(story(&world, key).await);
    }
    world.clock.pass_ms(DAY_MS);
    let before = world.clock_now();
    // Several nodes at once, each from the beginning.
    let ops = (0..8).map(|_| world.run(PruneEvents { before, after: None })).collect();
    let done: Vec<Pruned> =
        super::feed::futures_all(ops).await.into_iter().map(|done| done.unwrap()).collect();
    assert_eq!(done.iter().map(|done| done.events).sum::<u64>(), 5 * 14, "each event once");
    assert!(done.iter().all(|done| !done.more));
    let mut pictures = Vec::new();
    for (key, run) in keys.iter().zip(&runs) {
        let names = world.names(run).await;
        assert_eq!(names.iter().filter(|name| *name == "text.snapshot").count(), 9);
        assert!(!names.iter().any(|name| name.ends_with(".delta") || name == "tool.output"));
        pictures.push(world.dump_session(key).await);
    }
    assert_eq!(prune(&world).await, Pruned::default(), "nothing is left, and nothing is read");
    for (key, picture) in keys.iter().zip(pictures) {
        assert_eq!(world.dump_session(key).await, picture);
    }
}

/// The token events of a run that are there one by one.
async fn left(world: &World, run: &RunId) -> usize {
    let run = world.run_row(run).await;
    let names = world.names(&run).await;
    names.iter().filter(|name| name.ends_with(".delta")).count()
}

/// Records that the run's executor is gone.
async fn interrupt(world: &World, key: &SessionKey, turn: &Turn, loop_broken: bool) {
    let op = world.interrupt_op(key, &turn.run, "n2").await;
    world.ok(Interrupt { loop_broken, ..op }).await;
}

pub(super) async fn what_is_not_over_keeps_its_events(world: World) {
    // Running for days.
    let running = world.turn_of(&key("running"), "r-1", "n1").await;
    running.write(vec![delta("a"), delta("b")]).await;
    // Handed over.
    let handed = world.turn_of(&key("handed"), "r-1", "n1").await;
    handed.write(vec![delta("a"), delta("b"), Record::HandedOver]).await;
    // Interrupted: a person has not decided.
    let parked_key = key("parked");
    let parked = world.turn_of(&parked_key, "r-1", "n1").await;
    parked.write(vec![delta("a"), delta("b")]).await;
    interrupt(&world, &parked_key, &parked, true).await;
    // Interrupted: its continuation waits.
    let chain_key = key("chain");
    let chain = world.turn_of(&chain_key, "r-1", "n1").await;
    chain.write(vec![delta("a"), delta("b")]).await;
    interrupt(&world, &chain_key, &chain, false).await;
    let all = [&running.run.id, &handed.run.id, &parked.run.id, &chain.run.id];
    world.clock.pass_ms(30 * DAY_MS);
    assert_eq!(prune(&world).await.events, 0);
    for run in all {
        assert_eq!(left(&world, run).await, 2);
    }

    // Its continuation runs.
    let continuation = world.turn(&chain_key, "n1").await;
    continuation.write(vec![delta("c"), delta("d")]).await;
    // A person decides, and what was decided runs.
    let generation = parked.run.generation;
    let decide = Decide { key: parked_key.clone(), generation, decision: Decision::Continue };
    world.ok(decide).await;
    let decided = world.turn(&parked_key, "n1").await;
    assert_eq!(prune(&world).await.events, 0);

    // Over: everything of the chain is pruned once it is old enough, not a moment before.
    continuation.complete("cd").await;
    decided.complete("").await;
    running.complete("ab").await;
    let ended_at = world.run_row(&continuation.run.id).await.ended_at.unwrap();
    let done = world.ok(PruneEvents { before: ended_at, after: None }).await;
    assert_eq!(done.events, 4, "the interrupted ones ended long ago");
    assert_eq!(left(&world, &continuation.run.id).await, 2, "this one ended just now");
    world.clock.pass_ms(1);
    assert_eq!(prune(&world).await.events, 4);
    for run in [&running.run.id, &parked.run.id, &chain.run.id, &continuation.run.id] {
        assert_eq!(left(&world, run).await, 0, "{run}");
    }
    assert_eq!(left(&world, &handed.run.id).await, 2);
}

pub(super) async fn a_deleted_session_is_passed_over(world: World) {
    let (gone, kept) = (key("gone"), key("kept"));
    story(&world, &gone).await;
    let run = story(&world, &kept).await;
    world.ok(DeleteSession { key: gone, expected_generation: None }).await;
    world.clock.pass_ms(DAY_MS);
    assert_eq!(prune(&world).await.events, 14);
    assert_eq!(world.names(&run).await.len(), 15);
    assert_eq!(prune(&world).await, Pruned::default());
}

pub(super) async fn a_long_range_grows_over_many_transactions(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let mut said = String::new();
    for n in 0..10 {
        let pieces: Vec<String> = (0..500).map(|m| format!("{n}.{m} ")).collect();
        said.extend(pieces.iter().map(String::as_str));
        turn.write(pieces.iter().map(|text| delta(text)).collect()).await;
    }
    turn.complete(&said).await;
    world.clock.pass_ms(DAY_MS);
    let before = world.clock_now();
    let mut calls = 0;
    loop {
        let done = world.ok(PruneEvents { before, after: None }).await;
        assert!(done.rows <= limits::PRUNE_ROWS);
        calls += 1;
        // Whatever is done so far: nothing is missing, nothing is there twice.
        let mut next = 1;
        let mut text = String::new();
        for row in world.journal(&turn.run).await {
            let told = piece(&row.head, &row.body);
            assert_eq!(told.as_ref().map_or(seq(&row), |told| told.from), next);
            next = seq(&row) + 1;
            text.extend(told.map(|told| told.text));
        }
        assert_eq!(text, said);
        if !done.more {
            break;
        }
    }
    assert!(calls > 2, "{calls} transactions for 5 000 events");
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(
        short(&world.journal(&run).await),
        ["run.started 1", &format!("text.snapshot 2-5001 text: {said}"), "run.completed 5002"]
    );
}

pub(super) async fn a_snapshot_is_of_bounded_size(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    // More than one snapshot holds, and single events that are larger than a transaction reads.
    let line = "0123456789".repeat(100);
    let huge = "ä\n".repeat(limits::PRUNE_BYTES / 2);
    let mut said = String::new();
    for text in [&line, &huge, &huge, &line] {
        let times = if *text == huge { 1 } else { 200 };
        let pieces: Vec<Record> = (0..times).map(|_| delta(text)).collect();
        said.push_str(&text.repeat(times));
        turn.write(pieces).await;
    }
    turn.complete("done").await;
    world.clock.pass_ms(DAY_MS);
    assert_eq!(prune(&world).await.events, 402);
    let mut text = String::new();
    let mut next = 2;
    for row in world.journal(&turn.run).await {
        let Some(told) = piece(&row.head, &row.body) else { continue };
        assert_eq!(told.from, next);
        next = told.to + 1;
        let one = told.from == told.to;
        assert!(one || told.text.len() <= limits::SNAPSHOT_BYTES_MAX, "{}", told.text.len());
        text.push_str(&told.text);
    }
    assert!(text == said, "all of the text, in order");
    let names = world.names(&world.run_row(&turn.run.id).await).await;
    // 65 lines fit into one.
    assert_eq!(names.len(), 2 + 4 + 2 + 4);
}

pub(super) async fn many_runs_are_gone_through_in_the_order_of_their_ends(world: World) {
    let count = limits::PRUNE_RUNS + 3;
    let mut ends = Vec::new();
    for n in 0..count {
        let key = key(&format!("s-{n}"));
        let turn = world.turn_of(&key, "r-1", "n1").await;
        turn.write(vec![delta("a"), delta("b")]).await;
        // Most wait for a person, and are passed over: they hold nobody up.
        if n < limits::PRUNE_RUNS {
            interrupt(&world, &key, &turn, true).await;
        } else {
            turn.write(vec![completed("ab")]).await;
        }
        let ended_at = world.run_row(&turn.run.id).await.ended_at.unwrap();
        ends.push(EndedRun { ended_at, id: turn.run.id });
        world.clock.pass_ms(u64::from(n % 2));
    }
    world.clock.pass_ms(DAY_MS);
    let before = world.clock_now();
    ends.sort();
    let first = world.ok(PruneEvents { before, after: None }).await;
    assert_eq!((first.events, first.more), (0, true));
    assert_eq!(first.after.as_ref(), ends.get(limits::PRUNE_RUNS as usize - 1));
    let second = world.ok(PruneEvents { before, after: first.after }).await;
    assert_eq!((second.events, second.more), (6, false));
    assert_eq!(second.after.as_ref(), ends.last());
}
