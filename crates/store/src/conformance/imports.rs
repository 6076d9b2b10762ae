//! Runs that happened elsewhere: taken in whole, once, and beside everything that is ours.

use everturn_core::digest::{Digest, JournalDigest};
use everturn_core::{
    InputKind, InputStatus, Outcome, RunId, RunState, TerminalState, Timestamp, limits,
};

use super::world::{World, key, node, refusal};
use crate::error::Refusal;
use crate::op::{DeleteSession, ForeignEvent, ForeignEvents, ImportRun, Imported};

const AT: Timestamp = Timestamp(1_700_000_000_123);

fn event(name: &str, body: &str) -> ForeignEvent {
    ForeignEvent { at: AT, name: name.to_owned(), body: body.to_owned() }
}

fn answered() -> Vec<ForeignEvent> {
    vec![
        event("text.delta", r#"{"text":"Hello, "}"#),
        event("hermes.title", r#"{"payload":{"title":"x"}}"#),
        event("text.delta", r#"{"text":"you."}"#),
        event("usage", r#"{"input_tokens":3,"output_tokens":2}"#),
        event("run.completed", r#"{"message_id":77}"#),
    ]
}

fn digest(source: &RunId, events: &[ForeignEvent]) -> Digest {
    let mut digest = JournalDigest::new(source);
    for event in events {
        digest.add(event.at, &event.name, &event.body);
    }
    digest.finish()
}

fn import(session: &str, source: &str, events: Vec<ForeignEvent>) -> ImportRun {
    let source = RunId::new(source).unwrap();
    ImportRun {
        key: key(session),
        digest: digest(&source, &events),
        source,
        events: ForeignEvents::new(events.into_iter().map(Ok)),
        node: node("n1"),
        sessions_max: 1_000,
    }
}

async fn imported(world: &World, session: &str, source: &str) -> Imported {
    *world.ok(import(session, source, answered())).await
}

pub(super) async fn an_imported_run_reads_like_any_other(world: World) {
    let Imported { input, run, replayed } = imported(&world, "s", "theirs").await;
    assert!(!replayed);
    assert_ne!(run.id.as_str(), "theirs", "an id of ours");
    assert_eq!((run.state, run.terminal_state), (RunState::Ended, Some(TerminalState::Completed)));
    assert_eq!((run.last_seq, run.last_event.as_str()), (5, "run.completed"));
    assert_eq!((run.started_at, run.ended_at, run.last_event_at), (AT, Some(AT), AT));
    assert_eq!(run.usage.as_ref().map(|usage| usage.output_tokens), Some(2));
    assert_eq!((input.kind, input.status), (InputKind::Import, InputStatus::Terminal));
    assert_eq!(input.outcome, Some(Outcome::Completed));
    assert_eq!(world.run_row(&run.id).await, run);
    assert_eq!(world.input(&input.id).await, input);

    let journal = world.journal(&run).await;
    let seqs: Vec<u64> = journal.iter().map(|row| row.head.run.as_ref().unwrap().1).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    assert!(journal.iter().all(|row| row.head.at == AT));
    let bodies: Vec<_> = journal.iter().map(|row| row.body.as_str()).collect();
    let theirs = answered();
    assert_eq!(bodies[..4], theirs[..4].iter().map(|e| e.body.as_str()).collect::<Vec<_>>());
    // What it said is a message of this session, which its end names.
    let transcript = world.transcript(&key("s")).await;
    assert_eq!(transcript.len(), 1);
    assert_eq!(transcript[0].content.plain(), "Hello, you.");
    assert_eq!(bodies[4], format!("{{\"message_id\":{}}}", transcript[0].id));
    // The feed has it all, without a hole.
    let feed = world.feed(&key("s")).await;
    let offsets: Vec<u64> = feed.iter().map(|row| row.head.offset).collect();
    assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>());
    let session = world.session(&key("s")).await;
    assert_eq!(session.last_offset, offsets.len() as u64);
    assert_eq!(session.running, None);
    // And the session goes on.
    let turn = world.turn_of(&key("s"), "r", "n1").await;
    assert_eq!(turn.run.generation, run.generation + 1);
    turn.complete("done").await;
}

pub(super) async fn an_import_is_known_again(world: World) {
    let first = imported(&world, "s", "theirs").await;
    let before = world.dump(&key("s")).await;
    let again = imported(&world, "s", "theirs").await;
    assert!(again.replayed);
    assert_eq!((again.run, again.input), (first.run, first.input));
    assert_eq!(world.dump(&key("s")).await, before);
    // Another journal of the same run is no second import.
    let mut other = answered();
    other.remove(0);
    let refused = world.refused(&key("s"), import("s", "theirs", other)).await;
    assert_eq!(refused, Refusal::InputConflict);
    // In another session it is another run.
    let elsewhere = imported(&world, "t", "theirs").await;
    assert!(!elsewhere.replayed);
    // A deleted session stays deleted.
    world.ok(DeleteSession { key: key("s"), expected_generation: None }).await;
    let refused = refusal(world.run(import("s", "theirs", answered())).await);
    assert_eq!(refused, Refusal::SessionDeleted);
    let refused = refusal(world.run(import("s", "another", answered())).await);
    assert_eq!(refused, Refusal::SessionDeleted);
}

/// An id of ours that comes back as somebody else's is a run of its own.
pub(super) async fn a_run_of_the_session_itself_is_here_already(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.complete("Hello").await;
    let before = (world.transcript(&key).await, world.session(&key).await);
    let again = imported(&world, "s", turn.run.id.as_str()).await;
    assert!(again.replayed);
    assert_eq!((&again.run.id, &again.input.id), (&turn.run.id, &turn.inputs[0].id));
    assert_eq!((world.transcript(&key).await, world.session(&key).await), before);
    // Elsewhere it is a copy.
    let copy = imported(&world, "t", turn.run.id.as_str()).await;
    assert!(!copy.replayed && copy.run.id != turn.run.id);
}

pub(super) async fn an_import_collides_with_nothing(world: World) {
    let turn = world.turn_of(&key("s"), "r", "n1").await;
    let ours = turn.run.id.clone();
    let busy = world.refused(&key("s"), import("s", "theirs", answered())).await;
    assert_eq!(busy, Refusal::SessionBusy);
    turn.complete("ours").await;
    let before = world.run_row(&ours).await;
    let journal = world.journal(&before).await;
    // Another session's run of the same name, and one that follows in the same session.
    assert_ne!(imported(&world, "t", ours.as_str()).await.run.id, ours);
    let run = imported(&world, "s", "theirs").await.run;
    assert_ne!(run.id, ours);
    assert_eq!(world.run_row(&ours).await, before);
    assert_eq!(world.journal(&before).await, journal);
    assert_eq!(run.generation, before.generation + 1);
}

pub(super) async fn an_import_is_whole_or_not_there(world: World) {
    world.admit(&key("s"), "waits", "for its turn").await;
    let end = || event("run.cancelled", r#"{"by":"alice"}"#);
    let text = || event("text.delta", r#"{"text":"a"}"#);
    for (what, events) in [
        ("no end", vec![text()]),
        ("nothing", vec![]),
        ("two ends", vec![text(), end(), end()]),
        ("something behind the end", vec![end(), text()]),
        ("a body that no reader takes", vec![event("text.delta", "{}"), end()]),
        ("a field of the head", vec![event("x.y", r#"{"seq":4}"#), end()]),
        ("a name that is none", vec![event("X\"", "{}"), end()]),
        ("an event of the feed", vec![event("session.updated", "{}"), end()]),
        ("too much", vec![text(); limits::IMPORT_EVENTS_MAX as usize / 100]),
    ] {
        let refused = world.refused(&key("s"), import("s", "theirs", events)).await;
        assert!(matches!(refused, Refusal::BadImport(_)), "{what}: {refused:?}");
    }
    // A source that fails, and one that is not what was announced.
    let broken = [Ok(text()), Err("the file is gone".to_owned())];
    let op = ImportRun {
        events: ForeignEvents::new(broken.into_iter()),
        ..import("s", "theirs", vec![text(), end()])
    };
    let refused = world.refused(&key("s"), op).await;
    assert_eq!(refused, Refusal::BadImport("the file is gone".to_owned()));
    let op = ImportRun {
        events: ForeignEvents::new([Ok(end())].into_iter()),
        ..import("s", "theirs", vec![text(), end()])
    };
    assert!(matches!(world.refused(&key("s"), op).await, Refusal::BadImport(_)));
    // A session that nobody has seen is not left behind either.
    let refused = refusal(world.run(import("fresh", "theirs", vec![text()])).await);
    assert!(matches!(refused, Refusal::BadImport(_)));
    assert!(world.store.session(&key("fresh")).await.unwrap().is_none());
    // What waited has its turn.
    world.turn(&key("s"), "n1").await.complete("done").await;
}

/// What an interrupted run of elsewhere left is not continued here, and no decision waits for it.
pub(super) async fn an_imported_ending_is_only_told(world: World) {
    let evidence = r#"{"text":"t","holder":"h","rebooted":false,"observer":"o","observer_started_at":"2026-11-30T06:00:00.000Z","newer_process":false,"last_seq":1,"last_event":"text.delta","last_event_at":"2026-11-30T06:00:00.000Z"}"#;
    let rows = [
        (
            event(
                "run.interrupted",
                &format!(r#"{{"cause":"lost_worker","evidence":{evidence}}}"#),
            ),
            TerminalState::Interrupted,
            Outcome::Interrupted,
        ),
        (
            event("run.failed", r#"{"error":{"code":"c","message":"m","permanent":true}}"#),
            TerminalState::Failed,
            Outcome::Failed,
        ),
        (event("run.cancelled", r#"{"by":"bob"}"#), TerminalState::Cancelled, Outcome::Cancelled),
    ];
    for (at, (end, state, outcome)) in rows.into_iter().enumerate() {
        let source = format!("theirs-{at}");
        let events = vec![event("text.delta", r#"{"text":"half"}"#), end.clone()];
        let Imported { input, run, .. } = *world.ok(import("s", &source, events)).await;
        assert_eq!((run.terminal_state, input.outcome), (Some(state), Some(outcome)));
        assert_eq!(world.journal(&run).await[1].body, end.body);
        assert_eq!(world.transcript(&key("s")).await[at].content.plain(), "half");
    }
    let session = world.session(&key("s")).await;
    assert_eq!((session.interrupted, session.queue_length, session.running), (None, 0, None));
    assert!(world.store.work(None, 10).await.unwrap().is_empty());
    let silent = vec![event("run.cancelled", r#"{"by":"bob"}"#)];
    world.ok(import("quiet", "r", silent)).await;
    assert!(world.transcript(&key("quiet")).await.is_empty());
}
