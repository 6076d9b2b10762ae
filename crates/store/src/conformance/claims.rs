//! Claiming: one turn at a time, in order, by one holder (P3), and stale holders are out (P11).

use everturn_core::event::{End, Record};
use everturn_core::{
    InputStatus, MessageKind, Mode, Policy, QueuePolicy, Role, RunState, SessionState,
};

use super::world::{World, admit, admit_as, completed, delta, key, node, step};
use crate::error::Refusal;
use crate::op::{Admit, Claim, Claimed, Claimer, RenewLeases, Signal, Stop};

pub(super) async fn a_claim_makes_a_turn(world: World) {
    let key = key("s");
    let admitted = world.admit(&key, "r-1", "hello").await;
    world.clock.pass_ms(10);
    let turn = world.turn(&key, "n1").await;
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run, turn.run, "the answer is what is stored");
    assert_eq!((run.generation, run.attempt, run.state), (1, 0, RunState::Running));
    assert_eq!(run.input_ids, std::slice::from_ref(&admitted.input.id));
    assert_eq!((run.model.as_str(), &run.node), ("script/demo", &node("n1")));
    assert_eq!((run.last_seq, run.step_seq), (1, 1));
    let view = world.store.session(&key).await.unwrap().unwrap();
    assert_eq!(view.session, turn.session);
    assert_eq!(view.running.as_ref(), Some(&run));
    assert_eq!(view.chain_generation, Some(1));
    let session = view.session;
    assert_eq!((session.generation, session.queue_length, session.epoch), (1, 0, 1));
    let lease = session.lease.unwrap();
    assert_eq!((lease.holder, lease.expiry), (node("n1"), world.expiry()));
    let input = world.input(&admitted.input.id).await;
    assert_eq!(input.status, InputStatus::Started);
    assert_eq!((input.generation, input.run_id.as_ref()), (Some(1), Some(&run.id)));
    // The input is a row of the transcript now, and not before.
    let rows = world.transcript(&key).await;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].role, rows[0].kind), (Role::User, MessageKind::Message));
    assert_eq!((rows[0].input_id.as_ref(), rows[0].generation), (Some(&input.id), Some(1)));
    let feed: Vec<String> = world.feed(&key).await.into_iter().map(|row| row.head.name).collect();
    let expected =
        ["input.accepted", "turn.started", "message.added", "run.started", "session.updated"];
    assert_eq!(feed, expected);
}

pub(super) async fn a_held_session_is_not_claimed_again(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    world.admit(&key, "r-2", "next").await;
    let before = world.dump(&key).await;
    match world.claim(&key, "n2").await {
        Claimed::Held { holder } => assert_eq!(holder.holder, node("n1")),
        other => panic!("{other:?}"),
    }
    // Not even by its own holder, while a turn runs.
    match world.claim(&key, "n1").await {
        Claimed::Unfinished { run, .. } => assert_eq!(run.id, turn.run.id),
        other => panic!("{other:?}"),
    }
    assert_eq!(before, world.dump(&key).await);
    // Between turns the lease stays while inputs wait.
    turn.complete("ok").await;
    assert!(matches!(world.claim(&key, "n2").await, Claimed::Held { .. }));
    let next = world.turn(&key, "n1").await;
    assert_eq!((next.session.epoch, next.run.generation), (1, 2));
}

pub(super) async fn an_expired_lease_is_taken_and_the_epoch_grows(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    world.admit(&key, "r-2", "next").await;
    turn.complete("ok").await;
    world.clock.pass_ms(29_999);
    assert!(matches!(world.claim(&key, "n2").await, Claimed::Held { .. }));
    // The wall clock has no say.
    world.clock.set_wall_ms(4_000_000_000_000);
    assert!(matches!(world.claim(&key, "n2").await, Claimed::Held { .. }));
    world.clock.pass_ms(1);
    let taken = world.turn(&key, "n2").await;
    assert_eq!((taken.session.epoch, taken.run.generation), (2, 2));
    assert_eq!(taken.session.lease.unwrap().holder, node("n2"));
}

pub(super) async fn another_boot_frees_every_lease(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    world.admit(&key, "r-2", "next").await;
    turn.complete("ok").await;
    world.clock.reboot("boot-2");
    assert_eq!(world.turn(&key, "n2").await.session.epoch, 2);
}

pub(super) async fn proof_of_death_frees_a_lease(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    world.admit(&key, "r-2", "next").await;
    turn.complete("ok").await;
    let gone = |id: &str| Claim { gone: Some(node(id)), ..world.claim_op(&key, "n2") };
    assert!(matches!(*world.ok(gone("n3")).await, Claimed::Held { .. }), "of somebody else");
    match *world.ok(gone("n1")).await {
        Claimed::Turn(turn) => assert_eq!(turn.session.epoch, 2),
        other => panic!("{other:?}"),
    }
}

pub(super) async fn an_empty_queue_gives_the_lease_up(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let second = world.admit(&key, "r-2", "next").await;
    turn.complete("ok").await;
    assert!(world.session(&key).await.lease.is_some());
    world
        .ok(crate::op::CancelInput {
            principal: key.principal.clone(),
            input_id: second.input.id.clone(),
        })
        .await;
    // A head that was cancelled meanwhile stalls nothing.
    assert!(matches!(world.claim(&key, "n1").await, Claimed::Nothing));
    assert_eq!(world.session(&key).await.lease, None);
    let refusal = world
        .refused(
            &super::world::key("nobody"),
            Claim { ..world.claim_op(&super::world::key("nobody"), "n1") },
        )
        .await;
    assert_eq!(refusal, Refusal::SessionNotFound);
    // Another holder may come at once.
    world.admit(&key, "r-3", "x").await;
    assert_eq!(world.turn(&key, "n2").await.session.epoch, 2);
}

pub(super) async fn a_batch_takes_what_people_queued(world: World) {
    let key = key("s");
    world.create(&key, Policy { queue: QueuePolicy::Batch, ..Policy::default() }).await;
    for n in 1..=3 {
        world.admit(&key, &format!("r-{n}"), &format!("text {n}")).await;
    }
    let turn = world.turn(&key, "n1").await;
    assert_eq!(turn.inputs.len(), 3);
    assert_eq!(turn.session.queue_length, 0);
    let texts: Vec<String> =
        world.transcript(&key).await.iter().map(|row| row.content.plain()).collect();
    assert_eq!(texts, ["text 1", "text 2", "text 3"]);
    turn.complete("all of it").await;
    for input in &turn.inputs {
        let input = world.input(&input.id).await;
        assert_eq!(input.outcome, Some(everturn_core::Outcome::Completed));
        assert_eq!(input.run_id.as_ref(), Some(&turn.run.id));
    }
}

pub(super) async fn a_run_that_was_handed_over_is_gone_on_with(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("half"), step("half", Vec::new()), Record::HandedOver]).await;
    let session = world.session(&key).await;
    assert_eq!(session.lease, None, "anyone may go on at once");
    assert_eq!(session.running.as_ref(), Some(&turn.run.id));
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::HandedOver);
    assert_eq!(turn.refused(vec![delta("more")]).await, Refusal::Fenced);
    let next = world.turn(&key, "n2").await;
    assert_eq!(next.run.id, turn.run.id);
    assert_eq!((next.run.generation, next.run.attempt), (1, 0));
    assert_eq!((next.session.epoch, next.run.state), (2, RunState::Running));
    assert_eq!(next.run.node, node("n2"));
    assert_eq!(next.inputs[0].request_id.as_str(), "r-1");
    next.write(vec![delta(" done"), completed(" done")]).await;
    let names = world.names(&turn.run).await;
    let expected = ["run.started", "text.delta", "run.handed_over", "text.delta", "run.completed"];
    assert_eq!(names, expected);
    // The input had one outcome, and nothing was said twice.
    let said: Vec<String> = world
        .transcript(&key)
        .await
        .iter()
        .filter(|row| row.role == Role::Assistant)
        .map(|row| row.content.plain())
        .collect();
    assert_eq!(said, ["half", " done"]);
}

pub(super) async fn an_admission_may_claim_at_once(world: World) {
    let key = key("s");
    let with =
        |request: &str| Admit { claimer: Some(world.claimer("n1")), ..admit(&key, request, "x") };
    world.take_seen();
    let admitted = *world.ok(with("r-1")).await;
    assert_eq!((admitted.input.status, admitted.position), (InputStatus::Started, None));
    let seen = world.take_seen();
    assert_eq!(seen.len(), 1, "one commit for both");
    let claimed: Vec<_> = seen[0]
        .signals
        .iter()
        .filter_map(|signal| match signal {
            Signal::Claimed(turn) => Some(turn.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(claimed.len(), 1);
    assert!(!seen[0].signals.contains(&Signal::Queued(key.clone())));
    let turn = world.claimed((*claimed[0]).clone()).await;
    assert_eq!(turn.inputs[0].id, admitted.input.id);
    // While it runs, the next one waits.
    let second = *world.ok(with("r-2")).await;
    assert_eq!((second.input.status, second.position), (InputStatus::Queued, Some(1)));
    // Behind one that waits, too, and where another node holds the session.
    turn.complete("ok").await;
    assert_eq!(world.ok(with("r-3")).await.position, Some(2));
    let other = Claimer { node: node("n2"), ..world.claimer("n2") };
    let fourth = Admit { claimer: Some(other), ..admit(&key, "r-4", "x") };
    assert_eq!(world.ok(fourth).await.position, Some(3));
    // A repeated one claims nothing.
    world.take_seen();
    assert!(world.ok(with("r-1")).await.replayed);
    assert!(world.take_seen().is_empty());
}

pub(super) async fn a_renewal_moves_all_leases_of_a_node_and_tells_of_stops(world: World) {
    let mut turns = Vec::new();
    for id in ["a", "b", "c"] {
        turns.push(world.turn_of(&key(id), "r", "n1").await);
    }
    let other = world.turn_of(&key("d"), "r", "n2").await;
    let stop = |id: &str| Stop {
        key: key(id),
        generation: None,
        run_id: None,
        by: key(id).principal,
        keep_queue: false,
    };
    world.ok(stop("b")).await;
    world.ok(stop("d")).await;
    // A lease that ran out but was not taken may be renewed.
    world.clock.pass_ms(60_000);
    let expiry = world.expiry();
    let held = world.ok(RenewLeases { node: node("n1"), expiry: expiry.clone() }).await;
    let mine = [(0, false), (1, true), (2, false)].map(|(n, stop)| (turns[n].run.id.clone(), stop));
    assert_eq!(held, mine);
    for id in ["a", "b", "c"] {
        assert_eq!(world.session(&key(id)).await.lease.unwrap().expiry, expiry);
    }
    assert_ne!(world.session(&key("d")).await.lease.unwrap().expiry, expiry);
    turns[0].write(vec![delta("still mine")]).await;
    assert!(matches!(world.claim(&key("a"), "n3").await, Claimed::Held { .. }));
    other.write(vec![cancelled()]).await;
    let none = world.ok(RenewLeases { node: node("n9"), expiry }).await;
    assert!(none.is_empty());
}

fn cancelled() -> Record {
    Record::End(End::Cancelled { text: String::new(), reasoning: None })
}

pub(super) async fn a_stop_names_its_turn_and_empties_the_queue(world: World) {
    let key = key("s");
    let stop = Stop {
        key: key.clone(),
        generation: None,
        run_id: None,
        by: key.principal.clone(),
        keep_queue: false,
    };
    world.admit(&key, "r-1", "x").await;
    assert_eq!(world.refused(&key, stop.clone()).await, Refusal::NotRunning);
    let turn = world.turn(&key, "n1").await;
    let waiting = world.admit(&key, "r-2", "x").await;
    let stale = Stop { generation: Some(7), ..stop.clone() };
    assert_eq!(world.refused(&key, stale).await, Refusal::StaleGeneration { current: 1 });
    let wrong = everturn_core::RunId::new("run_other").unwrap();
    let wrong = Stop { run_id: Some(wrong), ..stop.clone() };
    assert_eq!(world.refused(&key, wrong).await, Refusal::NotRunning);
    let kept = world.ok(Stop { keep_queue: true, ..stop.clone() }).await;
    assert_eq!(kept.stop.as_ref().map(|stop| stop.by.clone()), Some(key.principal.clone()));
    assert_eq!(world.session(&key).await.queue_length, 1);
    world.take_seen();
    let at = kept.stop.clone().unwrap().at;
    world.clock.pass_ms(50);
    let again = world.ok(Stop { generation: Some(1), ..stop }).await;
    assert_eq!(again.stop.as_ref().map(|stop| stop.at), Some(at), "the first stop stands");
    assert_eq!(world.session(&key).await.queue_length, 0);
    let input = world.input(&waiting.input.id).await;
    assert_eq!(input.outcome, Some(everturn_core::Outcome::Cancelled));
    let seen = world.take_seen();
    assert!(seen[0].signals.contains(&Signal::Stop(key.clone(), turn.run.id.clone())));
    assert!(seen[0].signals.contains(&Signal::InputEnded(waiting.input.id)));
    turn.write(vec![cancelled()]).await;
    assert_eq!(
        world.input(&turn.inputs[0].id).await.outcome,
        Some(everturn_core::Outcome::Cancelled)
    );
    // A late stop never touches the next turn.
    let next = world.turn_of(&key, "r-3", "n1").await;
    let late = Stop {
        key: key.clone(),
        generation: Some(1),
        run_id: None,
        by: key.principal.clone(),
        keep_queue: false,
    };
    assert_eq!(world.refused(&key, late).await, Refusal::StaleGeneration { current: 2 });
    assert!(world.run_row(&next.run.id).await.stop.is_none());
}

pub(super) async fn a_session_says_what_it_does(world: World) {
    let key = key("s");
    let state = async || {
        let mut found = None;
        for state in SessionState::ALL {
            let filter = crate::read::SessionFilter { state: Some(*state), ..Default::default() };
            let list = world.store.sessions(&key.principal, &filter, 10).await.unwrap();
            if !list.is_empty() {
                assert_eq!(found, None, "one state at a time");
                found = Some(*state);
            }
        }
        found
    };
    assert_eq!(state().await, None);
    world.admit(&key, "r-1", "x").await;
    assert_eq!(state().await, Some(SessionState::Idle));
    let turn = world.turn(&key, "n1").await;
    assert_eq!(state().await, Some(SessionState::Running));
    let prompt = super::prompts::clarification(&world, &turn);
    turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    assert_eq!(state().await, Some(SessionState::Waiting));
    turn.write(vec![Record::PromptExpired(prompt.id)]).await;
    assert_eq!(state().await, Some(SessionState::Running));
    let op = world.interrupt_op(&key, &turn.run, "n2").await;
    world.ok(crate::op::Interrupt { may_continue: false, ..op }).await;
    assert_eq!(state().await, Some(SessionState::Interrupted));
    world.ok(crate::op::EndSession { key: key.clone(), reason: "over".to_owned() }).await;
    assert_eq!(state().await, Some(SessionState::Ended));
    world.ok(admit_as(Mode::Queue, &key, "r-2", "again")).await;
    assert_eq!(state().await, Some(SessionState::Interrupted));
    let _turn = world.turn(&key, "n1").await;
    assert_eq!(state().await, Some(SessionState::Running));
}
