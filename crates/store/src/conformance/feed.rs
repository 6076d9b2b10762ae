//! The feed and the journals in it: committed before published (P6), no gaps and no doubles (P7).

use everturn_core::event::Record;
use everturn_core::{Content, Mode};

use super::world::{World, admit, admit_as, completed, delta, good, key, step};
use crate::read::StoredEvent;

/// A session with a bit of everything.
async fn story(world: &World, id: &str) -> everturn_core::SessionKey {
    let key = key(id);
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![Record::ReasoningDelta("hm".to_owned()), delta("a"), delta("b")]).await;
    world.admit(&key, "r-2", "more").await;
    turn.write(vec![delta("c")]).await;
    turn.write(vec![step("abc", Vec::new()), delta("d")]).await;
    turn.complete("d").await;
    let turn = world.turn(&key, "n1").await;
    turn.write(vec![delta("e"), completed("e")]).await;
    key
}

pub(super) async fn offsets_and_seqs_have_no_gaps(world: World) {
    let key = story(&world, "s").await;
    let feed = world.feed(&key).await;
    for (row, offset) in feed.iter().zip(1..) {
        assert_eq!(row.head.offset, offset);
        assert_eq!(row.head.session_id, key.id);
    }
    let session = world.session(&key).await;
    assert_eq!(session.last_offset, feed.len() as u64);
    let bounds = world.store.feed_bounds(&key).await.unwrap();
    assert_eq!(bounds, (1, session.last_offset));
    let runs = world.store.runs(&key, None, 10).await.unwrap();
    assert_eq!(runs.len(), 2);
    for run in &runs {
        let journal = world.journal(run).await;
        for (row, seq) in journal.iter().zip(1..) {
            assert_eq!(row.head.run, Some((run.id.clone(), seq)));
        }
        let (first, last) = (&journal[0].head, &journal[journal.len() - 1].head);
        assert_eq!((run.first_offset, run.last_offset), (first.offset, last.offset));
        assert_eq!(run.last_seq, journal.len() as u64);
        assert_eq!((run.last_event.as_str(), run.last_event_at), (last.name.as_str(), last.at));
        assert!(everturn_core::event::is_terminal(&last.name));
        // Each is in the feed as well, in the same place.
        assert!(journal.iter().all(|row| feed.contains(row)));
    }
    let in_runs: u64 = runs.iter().map(|run| run.last_seq).sum();
    let of_runs = feed.iter().filter(|row| row.head.run.is_some()).count() as u64;
    assert_eq!(in_runs, of_runs);
}

pub(super) async fn what_was_published_is_what_is_read(world: World) {
    let first = story(&world, "s").await;
    let second = story(&world, "t").await;
    let frames: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.frames).collect();
    for key in [first, second] {
        let published: Vec<_> = frames.iter().filter(|frame| frame.session == key).collect();
        let feed = world.feed(&key).await;
        assert_eq!(published.len(), feed.len(), "each event is published once");
        for (frame, row) in published.iter().zip(&feed) {
            assert_eq!(frame.head, row.head);
            let read = everturn_api::event::render(&row.head, &row.body);
            assert_eq!(frame.bytes, read.as_bytes(), "the same bytes, live or read later");
            let _: serde_json::Value = serde_json::from_str(&read).expect("an event is JSON");
        }
    }
}

pub(super) async fn the_sink_is_told_before_the_caller(world: World) {
    let key = key("s");
    world.admit(&key, "r-1", "x").await;
    let seen = world.take_seen();
    assert_eq!(seen.len(), 1, "one commit, told when its caller is");
    assert_eq!(seen[0].frames[0].head.name, "input.accepted");
    // Of many that wait at once, each session's events come in order.
    let ops = (0..40).map(|n| {
        let key = super::world::key(&format!("k-{}", n % 4));
        world.run(admit(&key, &format!("r-{n}"), "x"))
    });
    for done in futures_all(ops.collect()).await {
        assert!(!done.expect("accepted").replayed);
    }
    let seen = world.take_seen();
    for n in 0..4 {
        let key = super::world::key(&format!("k-{n}"));
        let offsets: Vec<u64> = seen
            .iter()
            .flat_map(|seen| &seen.frames)
            .filter(|frame| frame.session == key)
            .map(|frame| frame.head.offset)
            .collect();
        assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>());
        assert_eq!(world.session(&key).await.queue_length, 10);
    }
}

/// Waits for all of some futures, in one task.
pub(super) async fn futures_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if let Some(waiting) = future
                && let std::task::Poll::Ready(output) = waiting.as_mut().poll(context)
            {
                *done = Some(output);
                *future = None;
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

pub(super) async fn any_window_of_a_journal_can_be_read(world: World) {
    let key = story(&world, "s").await;
    for run in world.store.runs(&key, None, 10).await.unwrap() {
        let all = world.journal(&run).await;
        let last = run.last_seq;
        for after in 0..=last + 1 {
            for max in [None, Some(0), Some(1), Some(last / 2), Some(last), Some(last + 5)] {
                for limit in [1, 2, u32::MAX] {
                    let read = world.store.run_events(&run, after, max, limit).await.unwrap();
                    let expected: Vec<StoredEvent> = all
                        .iter()
                        .filter(|row| {
                            let seq = row.head.run.as_ref().unwrap().1;
                            seq > after && max.is_none_or(|max| seq <= max)
                        })
                        .take(limit as usize)
                        .cloned()
                        .map(StoredEvent::Good)
                        .collect();
                    assert_eq!(read, expected, "after {after}, max {max:?}, limit {limit}");
                }
            }
        }
        assert!(world.store.run_events(&run, u64::MAX, None, 9).await.unwrap().is_empty());
    }
    let all = world.feed(&key).await;
    for after in 0..=all.len() + 1 {
        for limit in [1, 3, 1_000] {
            let read = world.store.feed(&key, after as u64, limit).await.unwrap();
            let expected: Vec<_> = all.iter().skip(after).take(limit as usize).collect();
            assert_eq!(
                read.into_iter().map(good).collect::<Vec<_>>(),
                expected.into_iter().cloned().collect::<Vec<_>>()
            );
        }
    }
    assert!(world.store.feed(&key, u64::MAX, 9).await.unwrap().is_empty());
}

pub(super) async fn an_old_picture_of_a_run_reads_the_new_journal(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let old = world.run_row(&turn.run.id).await;
    turn.write(vec![delta("a"), delta("b")]).await;
    turn.complete("ab").await;
    let names = world.names(&old).await;
    assert_eq!(names, ["run.started", "text.delta", "text.delta", "run.completed"]);
}

pub(super) async fn what_is_not_there_reads_as_nothing(world: World) {
    let nobody = key("nobody");
    assert!(world.store.session(&nobody).await.unwrap().is_none());
    assert!(world.store.tombstone(&nobody).await.unwrap().is_none());
    assert!(world.store.feed(&nobody, 0, 10).await.unwrap().is_empty());
    assert_eq!(world.store.feed_bounds(&nobody).await.unwrap(), (1, 0));
    assert!(world.store.gaps(&nobody).await.unwrap().is_empty());
    assert!(world.transcript(&nobody).await.is_empty());
    let window = crate::read::MessageWindow::Last;
    let (rows, more) = world.store.messages(&nobody, window, 10).await.unwrap();
    assert!(rows.is_empty() && !more);
    assert!(world.store.inputs(&nobody, None, None, 10).await.unwrap().is_empty());
    assert!(world.store.runs(&nobody, None, 10).await.unwrap().is_empty());
    let turn = world.turn_of(&key("s"), "r", "n1").await;
    let mut stranger = turn.run.clone();
    stranger.id = everturn_core::RunId::new("run_stranger").unwrap();
    assert!(world.store.run(&stranger.id).await.unwrap().is_none());
    assert!(world.store.run_events(&stranger, 0, None, 10).await.unwrap().is_empty());
    assert!(world.store.run_calls(&stranger.id).await.unwrap().is_empty());
    assert_eq!(world.store.counts().await.unwrap().unfinished, 1);
    assert_eq!(world.store.work(None, 10).await.unwrap().len(), 1);
}

pub(super) async fn numbers_are_reserved_ahead(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let reserve = everturn_core::limits::OFFSET_RESERVE;
    let claimed = world.session(&key).await;
    assert_eq!(claimed.offset_ceiling, turn.session.last_offset + reserve);
    // However many events come without a sync, what a reader may see stays below the ceiling.
    for _ in 0..9 {
        turn.write((0..1_000).map(|_| delta("x")).collect()).await;
        let session = world.session(&key).await;
        assert!(session.last_offset <= session.offset_ceiling);
    }
    turn.write(vec![step("x", Vec::new())]).await;
    let session = world.session(&key).await;
    assert_eq!(session.offset_ceiling, session.last_offset + reserve);
    assert_eq!(world.run_row(&turn.run.id).await.last_seq, 9_001);
}

pub(super) async fn inputs_in_any_mode_say_how_they_came(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    world.ok(admit_as(Mode::Interrupt, &key, "r-2", "now")).await;
    let accepted: Vec<serde_json::Value> = world
        .feed(&key)
        .await
        .iter()
        .filter(|row| row.head.name == "input.accepted")
        .map(|row| serde_json::from_str(&row.body).unwrap())
        .collect();
    assert_eq!(accepted[0]["delivery"], "queued");
    assert_eq!(accepted[1]["delivery"], "interrupted");
    assert_eq!(accepted[1]["request_id"], "r-2");
    assert_eq!(accepted[1]["text"], Content::text("now").plain());
    drop(turn);
}

/// Ids are unique and sorted with 100 000 events in a tight loop while the clock is set back again and
/// again: those of events, and those of whatever else is named.
pub(super) async fn ids_grow_whatever_the_clock_does(world: World) {
    const WRITES: u64 = 200;
    const EACH: u64 = 500;
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let start = world.clock_now().0;
    world.take_seen();
    let (mut last_seq, mut last_offset) = (turn.run.last_seq, turn.session.last_offset);
    for write in 0..WRITES {
        // An hour back each time, and now and then a day ahead.
        let hours = -i64::try_from(write).unwrap() + i64::from(write % 7 == 3) * 24;
        world.clock.set_wall_ms(start + hours * 3_600_000);
        let records = (0..EACH).map(|at| delta(&at.to_string())).collect();
        turn.write(records).await;
        for frame in world.take_seen().into_iter().flat_map(|seen| seen.frames) {
            let (run, seq) = frame.head.run.clone().unwrap();
            assert_eq!((run, seq), (turn.run.id.clone(), last_seq + 1), "no gap, no double");
            assert_eq!(frame.head.offset, last_offset + 1);
            (last_seq, last_offset) = (seq, frame.head.offset);
        }
    }
    assert_eq!(last_seq, turn.run.last_seq + WRITES * EACH);
    // What is read later has the same numbers, in the same order.
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.last_seq, last_seq);
    let mut after = 0;
    loop {
        let page = world.store.run_events(&run, after, None, 1_000).await.unwrap();
        let Some(last) = page.last() else { break };
        let StoredEvent::Good(last) = last else { panic!("{last:?}") };
        let end = last.head.run.as_ref().unwrap().1;
        for (row, seq) in page.iter().zip(after + 1..) {
            let StoredEvent::Good(row) = row else { panic!("{row:?}") };
            assert_eq!(row.head.run.as_ref().map(|run| run.1), Some(seq));
        }
        assert_eq!(end, after + page.len() as u64);
        after = end;
    }
    assert_eq!(after, last_seq);
    turn.complete("done").await;
    // And the next turn goes on above, in a past that has not been.
    world.clock.set_wall_ms(1);
    let next = world.turn_of(&key, "r-2", "n1").await;
    assert!(next.session.last_offset > last_offset);
    assert_eq!(next.run.generation, turn.run.generation + 1);
    assert_ne!(next.run.id, turn.run.id);
}
