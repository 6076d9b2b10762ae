//! Recovery that is late: what a cut-off executor deposits, and the looks that settle the marker
//! (P5, P8, P11). Counterparts of seed 000's tests about the deferred retry.

use everturn_core::late::{LateRecord, Look};
use everturn_core::recovery::{self, Output};
use everturn_core::{CallState, Cause, Effect, Event, Message, Role, Run, SessionKey};

use super::turns::{call, started};
use super::world::{Turn, World, completed, delta, key, node, step};
use crate::error::Refusal;
use crate::op::{DeleteSession, Deposit, LookLate};

/// A turn whose holder may still live is taken over by `n2`, and nothing of it goes on.
async fn cut_off(world: &World, key: &SessionKey, turn: &Turn) -> Run {
    world.clock.pass_ms(30_000);
    let mut op = world.interrupt_op(key, &turn.run, "n2").await;
    op.evidence.holder_gone = Some(false);
    op.may_continue = false;
    assert!(world.ok(op).await.decision.is_some());
    let run = world.run_row(&turn.run.id).await;
    assert_eq!((run.cause, run.late.map(|late| late.attempts)), (Some(Cause::SplitBrain), Some(0)));
    run
}

fn deposit(key: &SessionKey, run: &Run, first: u64, records: Vec<LateRecord>) -> Deposit {
    // Of a write that was never tried.
    let records = records.into_iter().map(|record| (u64::MAX >> 1, record)).collect();
    let (key, run_id, epoch) = (key.clone(), run.id.clone(), run.writes_epoch);
    Deposit { key, run_id, node: node("n1"), epoch, first, records }
}

fn look(key: &SessionKey, run: &Run) -> LookLate {
    LookLate { key: key.clone(), run_id: run.id.clone(), node: node("n2"), holder_gone: false }
}

fn text(text: &str) -> LateRecord {
    LateRecord::Text(text.to_owned())
}

/// The marker and the row above it.
async fn marker(world: &World, key: &SessionKey, run: &Run) -> (Message, Message) {
    let rows = world.transcript(key).await;
    let at = rows.iter().position(|row| Some(row.id) == run.marker_id).unwrap();
    (rows[at].clone(), rows[at - 1].clone())
}

/// What the marker says is what is known, and it never claims a restart.
fn assert_says(marker: &Message, run: &Run, output: Output) {
    let seen = run.evidence.as_ref().unwrap();
    let text = marker.content.plain();
    assert_eq!(text, recovery::marker(seen, run.cause.unwrap(), output, run.parked));
    assert!(text.contains("interrupted") && !text.contains("restart"), "{text}");
}

/// Counterpart of `test_lost_response_recovered_on_second_read`.
pub(super) async fn what_arrives_late_stands_above_the_marker(world: World) {
    for begun in [false, true] {
        let key = key(if begun { "begun" } else { "silent" });
        let turn = world.turn_of(&key, "r-1", "n1").await;
        if begun {
            turn.write(vec![delta("Looking ")]).await;
        }
        let run = cut_off(&world, &key, &turn).await;
        let (pending, _) = marker(&world, &key, &run).await;
        assert_says(&pending, &run, Output::Pending);
        // Somebody went on meanwhile: the marker is not the last row any more.
        world.turn_of(&key, "r-2", "n2").await.complete("something else").await;
        let updated_at = world.session(&key).await.updated_at;
        world.clock.pass_ms(1_000);

        let records = vec![
            LateRecord::Reasoning("hm".to_owned()),
            text("at the list. "),
            text("Done\0."),
            LateRecord::Sealed,
        ];
        let mut op = deposit(&key, &run, 1, records);
        let before = world.dump(&key).await;
        assert!(world.ok(op.clone()).await);
        assert_eq!(before, world.dump(&key).await, "outside run, feed and transcript");
        assert!(world.ok(op.clone()).await, "again, and nothing is doubled");
        world.take_seen();
        assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Promote));
        let seen: Vec<String> = world
            .take_seen()
            .into_iter()
            .flat_map(|seen| seen.frames)
            .map(|frame| frame.head.name.clone())
            .collect();
        let row = if begun { "message.updated" } else { "message.added" };
        assert_eq!(seen[..2], [row, "message.updated"], "viewers are told: {seen:?}");

        let run = world.run_row(&run.id).await;
        assert_eq!(run.late, None);
        let (settled, above) = marker(&world, &key, &run).await;
        assert_says(&settled, &run, Output::Recovered);
        assert_eq!((settled.id, &settled.position), (pending.id, &pending.position));
        let whole = if begun { "Looking at the list. Done\0." } else { "at the list. Done\0." };
        assert_eq!(above.content.plain(), whole);
        assert!(above.recovered && above.role == Role::Assistant);
        assert_eq!(above.reasoning.as_deref(), Some("hm"));
        assert_eq!(above.run_id.as_ref(), Some(&run.id));
        // One row of it, in its place; nothing moved; lists are not reordered; the run has one end.
        let rows = world.transcript(&key).await;
        assert_eq!(rows.iter().filter(|row| row.recovered).count(), 1);
        assert_eq!(rows.last().unwrap().content.plain(), "something else");
        assert!(rows.is_sorted_by(|a, b| a.position < b.position));
        assert_eq!(world.session(&key).await.updated_at, updated_at);
        let names = world.names(&run).await;
        assert_eq!(names.last().map(String::as_str), Some("run.interrupted"));
        // It is over: nothing more is taken, nothing more is done.
        op.first = 9;
        let before = world.dump(&key).await;
        assert!(!world.ok(op).await);
        assert_eq!(world.ok(look(&key, &run)).await, None);
        assert_eq!(before, world.dump(&key).await);
    }
}

/// Counterpart of `test_still_arriving_journal_does_not_consume_retry_budget`.
pub(super) async fn what_is_still_arriving_costs_nothing(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let run = cut_off(&world, &key, &turn).await;
    let before = world.dump(&key).await;
    for _ in 0..20 {
        assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Wait));
    }
    assert_eq!(before, world.dump(&key).await);
    // A beginning waits for the rest, for as long as more may be on its way.
    world.ok(deposit(&key, &run, 1, vec![text("one ")])).await;
    world.clock.pass_ms(29_999);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Wait));
    world.ok(deposit(&key, &run, 2, vec![text("two")])).await;
    world.clock.pass_ms(29_999);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Wait));
    world.clock.pass_ms(1);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Promote));
    let (_, above) = marker(&world, &key, &run).await;
    assert_eq!(above.content.plain(), "one two");
}

/// Counterpart of `test_sealed_empty_journal_consumes_retry_budget_and_demotes_at_max` and of
/// `test_marker_demotes_after_max_attempts_with_sealed_empty_journal`.
pub(super) async fn an_empty_journal_is_given_up_after_twelve_looks(world: World) {
    for gone in [false, true] {
        let key = key(if gone { "gone" } else { "sealed" });
        let turn = world.turn_of(&key, "r-1", "n1").await;
        let run = cut_off(&world, &key, &turn).await;
        if !gone {
            world.ok(deposit(&key, &run, 1, vec![text(""), LateRecord::Sealed])).await;
        }
        let op = LookLate { holder_gone: gone, ..look(&key, &run) };
        for attempts in 1..12 {
            assert_eq!(world.ok(op.clone()).await, Some(Look::Spend));
            let run = world.run_row(&run.id).await;
            assert_eq!(run.late.map(|late| late.attempts), Some(attempts));
            let (row, _) = marker(&world, &key, &run).await;
            assert_says(&row, &run, Output::Pending);
        }
        assert_eq!(world.ok(op.clone()).await, Some(Look::GiveUp));
        let run = world.run_row(&run.id).await;
        let (row, _) = marker(&world, &key, &run).await;
        assert_says(&row, &run, Output::Lost);
        assert_eq!(run.late, None);
        assert!(world.transcript(&key).await.iter().all(|row| !row.recovered));
        assert_eq!(world.ok(op).await, None);
    }
}

/// Counterpart of `test_marker_demotes_after_giveup_seconds`.
pub(super) async fn an_old_matter_is_given_up_unread(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let run = cut_off(&world, &key, &turn).await;
    world.clock.pass_ms(86_400_000);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Wait), "to the second");
    world.ok(deposit(&key, &run, 1, vec![text("too late"), LateRecord::Sealed])).await;
    world.clock.pass_ms(1);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::GiveUp));
    let run = world.run_row(&run.id).await;
    let (row, _) = marker(&world, &key, &run).await;
    assert_says(&row, &run, Output::Lost);
    assert!(world.transcript(&key).await.iter().all(|row| !row.recovered));
}

pub(super) async fn what_a_tool_returned_late_is_its_result(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let calls = ["c1", "c2", "c3"].map(|id| call(id, Effect::Write)).to_vec();
    turn.write(vec![step("I run three", calls)]).await;
    for id in ["c1", "c2"] {
        turn.write(vec![started(id)]).await;
    }
    let run = cut_off(&world, &key, &turn).await;
    let state = async |id: &str| {
        let id = everturn_core::CallId::new(id).unwrap();
        let call = world.store.call(&id).await.unwrap().unwrap();
        (call.state, call.result)
    };
    assert_eq!(state("c1").await.0, CallState::Unknown);
    let done = |id: &str, state, result: &str| LateRecord::CallFinished {
        call_id: everturn_core::CallId::new(id).unwrap(),
        state,
        result: result.to_owned(),
    };
    let records = vec![
        done("c1", CallState::Succeeded, "first"),
        // It never began; it cannot have ended.
        done("c3", CallState::Succeeded, "third"),
        done("c2", CallState::Failed, "second"),
        done("c1", CallState::Failed, "again"),
        LateRecord::Sealed,
    ];
    world.ok(deposit(&key, &run, 1, records)).await;
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Promote));
    assert_eq!(state("c1").await, (CallState::Succeeded, Some("first".to_owned())));
    assert_eq!(state("c2").await, (CallState::Failed, Some("second".to_owned())));
    assert_eq!(state("c3").await, (CallState::NotRun, None));
    let rows = world.transcript(&key).await;
    let at = rows.iter().position(|row| Some(row.id) == run.marker_id).unwrap();
    let results: Vec<String> = rows[..at]
        .iter()
        .filter(|row| row.role == Role::Tool)
        .map(|row| row.content.plain())
        .collect();
    assert_eq!(results, ["first", "second"]);
    // The model is told the results instead of "unknown".
    let view = format!("{:?}", everturn_core::view::build(&rows));
    assert!(view.contains("\"first\"") && !view.contains("is unknown"), "{view}");
    // A card that a client shows as unknown is sent anew.
    let updated = world.feed(&key).await;
    let name = Event::<()>::MessageUpdated(rows[1].clone()).name();
    let cards = updated.iter().filter(|row| row.head.name == name && row.body.contains("\"c1\""));
    assert!(cards.count() >= 1);
}

pub(super) async fn a_deposit_is_for_whom_it_is_meant_and_bounded(world: World) {
    let (key, other) = (key("s"), super::world::key("t"));
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let held = vec![text("mine")];
    let run = cut_off(&world, &key, &turn).await;
    let stranger = Deposit { node: node("n3"), ..deposit(&key, &run, 1, held.clone()) };
    assert!(matches!(world.refused(&key, stranger).await, Refusal::BadRecord(_)));
    assert!(!world.ok(deposit(&other, &run, 1, held.clone())).await, "another session's");
    // The same text from another principal's session of that name reaches nothing.
    let bob = SessionKey { principal: super::world::principal("bob"), id: key.id.clone() };
    assert!(!world.ok(deposit(&bob, &run, 1, held)).await);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Wait), "nothing arrived");
    // Bounded: what is too much is left out, the end is not.
    let half = "x".repeat(everturn_core::limits::LATE_BYTES_MAX / 2);
    let records = vec![text(&half), text(&half), text("y"), LateRecord::Sealed];
    world.ok(deposit(&key, &run, 1, records)).await;
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Promote));
    let (_, above) = marker(&world, &key, &run).await;
    assert_eq!(above.content.plain().len(), 2 * half.len());
    // Of a turn that ended otherwise nothing is wanted.
    let turn = world.turn_of(&other, "r-1", "n1").await;
    turn.write(vec![completed("done")]).await;
    assert!(!world.ok(deposit(&other, &turn.run, 1, vec![text("more")])).await);
}

pub(super) async fn the_owner_looks_and_nobody_else(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let run = cut_off(&world, &key, &turn).await;
    world.ok(deposit(&key, &run, 1, vec![text("late"), LateRecord::Sealed])).await;
    assert_eq!(names(&world.store.late_runs(&key, 9).await.unwrap()), [run.id.as_str()]);
    // Somebody else runs the conversation now.
    let next = world.turn_of(&key, "r-2", "n3").await;
    let refusal = world.refused(&key, look(&key, &run)).await;
    assert!(matches!(refusal, Refusal::Held { .. }));
    // The owner may, under its turn, which goes on as if nothing were.
    next.write(vec![delta("a")]).await;
    let own = LookLate { node: node("n3"), ..look(&key, &run) };
    assert_eq!(world.ok(own).await, Some(Look::Promote));
    next.write(vec![delta("b")]).await;
    next.complete("ab").await;
    assert!(world.store.late_runs(&key, 9).await.unwrap().is_empty());
    assert!(world.store.all_late_runs(None, 9).await.unwrap().is_empty());
}

fn names(runs: &[Run]) -> Vec<&str> {
    runs.iter().map(|run| run.id.as_str()).collect()
}

/// A holder that gives up (its store took nothing for too long) leaves what it has before anybody
/// records the interruption, and even a cause of which nothing would be expected waits for it.
pub(super) async fn what_came_before_the_record_is_found_by_it(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("so ")]).await;
    world.clock.pass_ms(30_000);
    let mut op = world.interrupt_op(&key, &turn.run, "n2").await;
    // Let go of by itself: nothing would be waited for.
    let session = world.session(&key).await;
    assert_eq!(session.lease.unwrap().holder, node("n1"));
    let early = deposit(&key, &turn.run, 1, vec![text("far"), LateRecord::Sealed]);
    let before = world.dump(&key).await;
    assert!(world.ok(early).await);
    assert_eq!(before, world.dump(&key).await);
    op.by_holder = true;
    world.ok(op).await;
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Promote));
    assert_eq!(marker(&world, &key, &run).await.1.content.plain(), "so far");
}

/// P8: a write whose answer its owner never heard may have been committed. What it said is in the run,
/// and is not said again.
pub(super) async fn what_was_committed_after_all_is_not_late(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    // The third one was committed, and its answer was lost; the fourth was not.
    for (number, said) in [(1, "one "), (2, "two "), (3, "three ")] {
        turn.lease.write(number, vec![delta(said)]).await.unwrap();
    }
    let run = cut_off(&world, &key, &turn).await;
    let records = [(3, "three "), (4, "four")].map(|(write, said)| (write, text(said))).to_vec();
    let mut op = Deposit { records, ..deposit(&key, &run, 1, Vec::new()) };
    op.records.push((5, LateRecord::Sealed));
    // Nobody else's, and no other claim's.
    let other = Deposit { epoch: run.writes_epoch + 1, ..op.clone() };
    assert!(matches!(world.refused(&key, other).await, Refusal::BadRecord(_)));
    assert!(world.ok(op).await);
    assert_eq!(world.ok(look(&key, &run)).await, Some(Look::Promote));
    assert_eq!(marker(&world, &key, &run).await.1.content.plain(), "one two three four");
    // All of it: then nothing was late.
    let other = super::world::key("t");
    let turn = world.turn_of(&other, "r-1", "n1").await;
    turn.lease.write(1, vec![delta("all")]).await.unwrap();
    let run = cut_off(&world, &other, &turn).await;
    let records = vec![(1, text("all")), (2, LateRecord::Sealed)];
    let op = Deposit { records, ..deposit(&other, &run, 1, Vec::new()) };
    assert!(world.ok(op).await);
    assert_eq!(world.ok(look(&other, &run)).await, Some(Look::Spend));
    assert_eq!(marker(&world, &other, &run).await.1.content.plain(), "all");
}

pub(super) async fn nothing_of_it_stays(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let run = cut_off(&world, &key, &turn).await;
    world.ok(deposit(&key, &run, 1, vec![text("secret")])).await;
    let pages = world.store.all_late_runs(None, 9).await.unwrap();
    assert_eq!(names(&pages), [run.id.as_str()]);
    assert!(world.store.all_late_runs(Some(&run.id), 9).await.unwrap().is_empty());
    world.ok(DeleteSession { key: key.clone(), expected_generation: None }).await;
    assert!(world.store.all_late_runs(None, 9).await.unwrap().is_empty());
    assert_eq!(world.ok(look(&key, &run)).await, None);
    assert!(!world.ok(deposit(&key, &run, 2, vec![text("more")])).await);
}
