//! Admission: accepted means durable (P1), once (P2), in order (P3), bounded (P12).

use everturn_core::{Content, Delivery, InputStatus, Mode, Part, digest};

use super::world::{World, admit, admit_as, key};
use crate::error::Refusal;
use crate::op::{Admit, DeleteSession, Signal};

pub(super) async fn an_accepted_input_is_read_back_whole(world: World) {
    let key = key("s");
    let image = Part::Image {
        media_type: "image/png".to_owned(),
        data: None,
        url: Some("https://example.org/a.png".to_owned()),
    };
    let content = Content(vec![Part::Text("see \0 this".to_owned()), image]);
    let op = Admit {
        content: content.clone(),
        metadata: Some("{\"a\":1}".to_owned()),
        ..admit(&key, "r-1", "")
    };
    let admitted = *world.ok(op).await;
    assert_eq!(admitted.position, Some(1));
    assert!(!admitted.replayed);
    let (input, position) = world.store.input(&admitted.input.id).await.unwrap().unwrap();
    assert_eq!(input, admitted.input);
    assert_eq!(position, Some(1));
    assert_eq!(input.content, content);
    assert_eq!(input.metadata.as_deref(), Some("{\"a\":1}"));
    assert_eq!(input.status, InputStatus::Queued);
    let by_name = world.store.input_by_identity(&key, &input.request_id).await.unwrap();
    assert_eq!(by_name.as_ref(), Some(&input));
    // A session that nobody had seen exists now, and its feed begins at 1.
    let session = world.session(&key).await;
    assert_eq!((session.queue_length, session.generation), (1, 0));
    assert_eq!(session.title.as_deref(), Some("see  this"), "no control character in a title");
    let feed = world.feed(&key).await;
    assert_eq!(feed[0].head.name, "input.accepted");
    assert_eq!(feed[0].head.offset, 1);
    // Whoever claims is told.
    let signals: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.signals).collect();
    assert!(signals.contains(&Signal::Queued(key)), "{signals:?}");
}

pub(super) async fn the_same_identity_gets_the_same_receipt(world: World) {
    let key = key("s");
    let first = world.admit(&key, "r-1", "hello").await;
    let before = world.dump(&key).await;
    world.take_seen();
    world.clock.pass_ms(5_000);
    let again = world.admit(&key, "r-1", "hello").await;
    assert!(again.replayed);
    assert_eq!(again.input, first.input);
    assert_eq!(again.position, Some(1));
    assert_eq!(before, world.dump(&key).await, "a duplicate changes nothing");
    assert!(world.take_seen().is_empty());
    // Whatever state it is in.
    let turn = world.turn(&key, "n1").await;
    let started = world.admit(&key, "r-1", "hello").await;
    assert_eq!((started.input.status, started.position), (InputStatus::Started, None));
    turn.complete("done").await;
    let ended = world.admit(&key, "r-1", "hello").await;
    assert_eq!(ended.input.status, InputStatus::Terminal);
    assert_eq!(ended.input.id, first.input.id);
    // Not even a closed session is changed by a duplicate.
    world.ok(crate::op::EndSession { key: key.clone(), reason: "over".to_owned() }).await;
    let before = world.dump(&key).await;
    assert!(world.admit(&key, "r-1", "hello").await.replayed);
    assert_eq!(before, world.dump(&key).await);
}

pub(super) async fn another_payload_is_a_conflict(world: World) {
    let key = key("s");
    let first = world.admit(&key, "r-1", "hello").await;
    let refusal = world.refused(&key, admit(&key, "r-1", "something else")).await;
    assert_eq!(refusal, Refusal::InputConflict);
    let refusal = world.refused(&key, admit_as(Mode::Interrupt, &key, "r-1", "hello")).await;
    assert_eq!(refusal, Refusal::InputConflict);
    assert_eq!(world.input(&first.input.id).await.digest, digest_of("hello"));
    // In another session the same name is another identity.
    let other = super::world::key("t");
    assert!(!world.admit(&other, "r-1", "something else").await.replayed);
}

fn digest_of(text: &str) -> everturn_core::digest::Digest {
    digest::payload(everturn_core::InputKind::Message, Mode::Queue, &Content::text(text), None)
}

pub(super) async fn identity_outlives_the_session(world: World) {
    let key = key("s");
    let first = world.admit(&key, "r-1", "hello").await;
    world.ok(DeleteSession { key: key.clone(), expected_generation: None }).await;
    let again = world.admit(&key, "r-1", "hello").await;
    assert!(again.replayed);
    assert_eq!(again.input.id, first.input.id);
    assert_eq!(again.input.status, InputStatus::Terminal, "it was withdrawn with its session");
    assert_eq!(again.holder, None);
    let refusal = world.refused(&key, admit(&key, "r-1", "other")).await;
    assert_eq!(refusal, Refusal::InputConflict);
    let refusal = world.refused(&key, admit(&key, "r-2", "hello")).await;
    assert_eq!(refusal, Refusal::SessionDeleted);
    // The receipt stays, what was said does not.
    assert_eq!(world.input(&first.input.id).await.content.plain(), "");
}

pub(super) async fn the_queue_is_in_order_of_acceptance(world: World) {
    let key = key("s");
    let mut ids = Vec::new();
    for n in 1..=20_u32 {
        // A wall clock that goes back changes nothing.
        world.clock.set_wall_ms(1_000_000 - i64::from(n));
        let admitted = world.admit(&key, &format!("r-{n}"), "x").await;
        assert_eq!(admitted.position, Some(n));
        ids.push(admitted.input.id);
    }
    let queued = world.store.inputs(&key, Some(InputStatus::Queued), None, 100).await.unwrap();
    assert_eq!(
        queued.iter().map(|input| &input.id).collect::<Vec<_>>(),
        ids.iter().collect::<Vec<_>>()
    );
    // A page at a time, in whatever order the list is.
    for status in [Some(InputStatus::Queued), None] {
        let mut walked = Vec::new();
        while let page = world.store.inputs(&key, status, walked.last(), 3).await.unwrap()
            && !page.is_empty()
        {
            assert!(page.len() <= 3);
            walked.extend(page.into_iter().map(|input| input.id));
        }
        assert_eq!(walked, ids);
    }
    let foreign = everturn_core::InputId::new("in_nobody").unwrap();
    let none = world.store.inputs(&key, None, Some(&foreign), 3).await.unwrap();
    assert!(none.is_empty());
    for id in &ids {
        let turn = world.turn(&key, "n1").await;
        assert_eq!(&turn.inputs[0].id, id);
        turn.complete("ok").await;
    }
    assert!(matches!(world.claim(&key, "n1").await, crate::op::Claimed::Nothing));
}

pub(super) async fn an_interrupt_goes_first_and_stops_the_turn(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    world.admit(&key, "r-2", "later").await;
    world.take_seen();
    let urgent = *world.ok(admit_as(Mode::Interrupt, &key, "r-3", "now")).await;
    assert_eq!(urgent.position, Some(1));
    assert_eq!(urgent.input.delivery, Delivery::Interrupted);
    let signals: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.signals).collect();
    assert!(signals.contains(&Signal::Stop(key.clone(), turn.run.id.clone())), "{signals:?}");
    assert!(world.run_row(&turn.run.id).await.stop.is_some());
    // A second one goes before the first; the rest of the queue stays.
    let more_urgent = *world.ok(admit_as(Mode::Interrupt, &key, "r-4", "at once")).await;
    assert_eq!(more_urgent.position, Some(1));
    let queued = world.store.inputs(&key, Some(InputStatus::Queued), None, 100).await.unwrap();
    let names: Vec<&str> = queued.iter().map(|input| input.request_id.as_str()).collect();
    assert_eq!(names, ["r-4", "r-3", "r-2"]);
}

pub(super) async fn modes_are_refused_where_they_make_no_sense(world: World) {
    let key = key("s");
    let refusal = world.refused(&key, admit_as(Mode::Steer, &key, "r-0", "x")).await;
    assert_eq!(refusal, Refusal::NotRunning);
    // With nothing to reject it for, it is queued.
    let admitted = *world.ok(admit_as(Mode::Reject, &key, "r-1", "x")).await;
    assert_eq!(admitted.input.delivery, Delivery::Queued);
    let refusal = world.refused(&key, admit_as(Mode::Reject, &key, "r-2", "x")).await;
    assert_eq!(refusal, Refusal::SessionBusy);
    let turn = world.turn(&key, "n1").await;
    let refusal = world.refused(&key, admit_as(Mode::Reject, &key, "r-2", "x")).await;
    assert_eq!(refusal, Refusal::SessionBusy);
    turn.complete("ok").await;
    // A refusal leaves no receipt that blocks the corrected one.
    assert!(!world.ok(admit_as(Mode::Reject, &key, "r-2", "x")).await.replayed);
}

pub(super) async fn a_full_queue_refuses_and_keeps_nothing(world: World) {
    let key = key("s");
    for n in 0..3 {
        world.ok(Admit { queue_max: 3, ..admit(&key, &format!("r-{n}"), "x") }).await;
    }
    let full = Admit { queue_max: 3, ..admit(&key, "r-3", "x") };
    assert_eq!(world.refused(&key, full.clone()).await, Refusal::QueueFull { max: 3 });
    // A known identity still gets its receipt.
    assert!(world.ok(Admit { queue_max: 3, ..admit(&key, "r-0", "x") }).await.replayed);
    let _turn = world.turn(&key, "n1").await;
    assert!(!world.ok(full).await.replayed);
    // The limit on sessions holds for those that an input would make.
    let other = super::world::key("t");
    let refusal = world.refused(&other, Admit { sessions_max: 1, ..admit(&other, "r", "x") }).await;
    assert_eq!(refusal, Refusal::TooManySessions { max: 1 });
}
