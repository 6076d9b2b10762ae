//! Interruptions: nothing is silently replayed (P5), each input has one outcome (P4), effects happen
//! at most once (P9), and numbers are never used twice (P7).

use everturn_core::event::{End, Record};
use everturn_core::recovery::{self, CONTINUATION_PREFIX, Decision, Output, Parked};
use everturn_core::{
    AutoContinue, AutoContinueWhen, CallId, CallState, Cause, Effect, InputKind, InputStatus,
    Message, MessageKind, Mode, Outcome, Policy, PromptState, QueuePolicy, Role, RunState,
    SessionKey, TerminalState,
};

use super::turns::{call, finished, started};
use super::world::{Turn, World, admit, admit_as, completed, delta, key, node, step};
use crate::error::Refusal;
use crate::op::{
    CancelInput, Claimed, CloseUndecided, Decide, EndSession, Interrupt, PatchSession, Reconsider,
    SessionPatch, Signal, Stop,
};

/// Records the interruption of a turn whose node is provably gone.
async fn interrupt(world: &World, key: &SessionKey, turn: &Turn) -> Decision {
    let op = world.interrupt_op(key, &turn.run, "n2").await;
    world.ok(op).await.decision.expect("the run was unresolved")
}

async fn park(world: &World, key: &SessionKey, turn: &Turn) {
    let op = world.interrupt_op(key, &turn.run, "n2").await;
    let done = world.ok(Interrupt { may_continue: false, ..op }).await;
    assert_eq!(done.decision, Some(Decision::Park(Parked::NotHere)));
}

fn stop(key: &SessionKey) -> Stop {
    Stop {
        key: key.clone(),
        generation: None,
        run_id: None,
        by: key.principal.clone(),
        keep_queue: true,
    }
}

pub(super) async fn streamed_text_stands_directly_above_the_marker(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("done"), step("done", Vec::new())]).await;
    turn.write(vec![Record::ReasoningDelta("hm ".to_owned()), delta("half a ")]).await;
    turn.write(vec![Record::ReasoningDelta("ok".to_owned()), delta("sen\0tence")]).await;
    park(&world, &key, &turn).await;
    let rows = world.transcript(&key).await;
    let kinds: Vec<(Role, MessageKind, bool)> =
        rows.iter().map(|row| (row.role, row.kind, row.recovered)).collect();
    let expected = [
        (Role::User, MessageKind::Message, false),
        (Role::Assistant, MessageKind::Message, false),
        (Role::Assistant, MessageKind::Message, true),
        (Role::System, MessageKind::Interruption, false),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(rows[2].content.plain(), "half a sen\0tence");
    assert_eq!(rows[2].reasoning.as_deref(), Some("hm ok"));
    assert!(rows[3].content.plain().contains("(number 6)"), "{}", rows[3].content.plain());
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.terminal_state, Some(TerminalState::Interrupted));
    let evidence = run.evidence.as_ref().unwrap();
    assert_eq!((evidence.last_seq, evidence.last_event.as_str()), (6, "text.delta"));
    assert_eq!(world.names(&run).await.last().unwrap(), "run.interrupted");
    let session = world.session(&key).await;
    assert_eq!(session.interrupted.as_ref(), Some(&run.id));
    assert_eq!((session.running, session.lease), (None, None));
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Interrupted));
    // Where nothing was streamed, nothing is recovered.
    let turn = world.turn_of(&key, "r-2", "n1").await;
    park(&world, &key, &turn).await;
    assert_eq!(world.transcript(&key).await.iter().filter(|row| row.recovered).count(), 1);
}

pub(super) async fn the_cause_follows_the_evidence(world: World) {
    for (n, (gone, newer, rebooted, by_holder, cause)) in [
        (Some(true), true, false, false, Cause::ProcessRestart),
        (None, true, true, false, Cause::ProcessRestart),
        (Some(true), false, false, false, Cause::LostWorker),
        (Some(false), true, false, false, Cause::SplitBrain),
        (Some(false), false, false, false, Cause::SplitBrain),
        (None, true, false, false, Cause::Unknown),
        (Some(true), true, false, true, Cause::LeaseLost),
    ]
    .into_iter()
    .enumerate()
    {
        let key = key(&format!("s-{n}"));
        let turn = world.turn_of(&key, "r", "n1").await;
        world.clock.pass_ms(30_000);
        let mut op = world.interrupt_op(&key, &turn.run, "n1").await;
        op.evidence.holder_gone = gone;
        op.evidence.newer_process = newer;
        op.evidence.rebooted = rebooted;
        op.by_holder = by_holder;
        world.ok(op).await;
        let run = world.run_row(&turn.run.id).await;
        assert_eq!(run.cause, Some(cause));
        let marker = world.transcript(&key).await.into_iter().nth(1).unwrap();
        let text = marker.content.plain();
        assert!(text.starts_with(&run.evidence.unwrap().sentence(cause)), "{text}");
        let output = match cause {
            Cause::SplitBrain | Cause::Unknown => Output::Pending,
            _ => Output::Nothing,
        };
        assert_eq!(run.late.is_some(), output == Output::Pending, "{cause:?}");
        let seen = world.run_row(&turn.run.id).await.evidence.unwrap();
        assert_eq!(text, recovery::marker(&seen, cause, output, None));
    }
}

pub(super) async fn a_living_holder_is_left_alone(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let mut op = world.interrupt_op(&key, &turn.run, "n2").await;
    op.evidence.holder_gone = Some(false);
    let refusal = world.refused(&key, op.clone()).await;
    assert!(matches!(refusal, Refusal::Held { ref node, .. } if *node == super::world::node("n1")));
    op.evidence.holder_gone = None;
    assert!(matches!(world.refused(&key, op.clone()).await, Refusal::Held { .. }));
    // The death of another node proves nothing.
    op.evidence.holder_gone = Some(true);
    op.evidence.holder = node("n3");
    assert!(matches!(world.refused(&key, op.clone()).await, Refusal::Held { .. }));
    // Nobody speaks for another holder.
    assert!(matches!(
        world.refused(&key, Interrupt { by_holder: true, ..op.clone() }).await,
        Refusal::Held { .. }
    ));
    turn.write(vec![delta("still here")]).await;
    // Once its lease has run out, it is interrupted although it may still exist.
    world.clock.pass_ms(30_000);
    op.evidence.holder_gone = Some(false);
    assert!(world.ok(op).await.decision.is_some());
    assert_eq!(turn.refused(vec![delta("late")]).await, Refusal::Fenced);
}

pub(super) async fn the_first_to_resolve_a_run_is_the_only_one(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let op = world.interrupt_op(&key, &turn.run, "n2").await;
    world.ok(op.clone()).await;
    let before = world.dump(&key).await;
    assert_eq!(world.ok(op.clone()).await.decision, None);
    let third = Interrupt { node: node("n3"), ..op };
    assert_eq!(world.ok(third).await.decision, None);
    assert_eq!(before, world.dump(&key).await);
    // A run that has ended, or was handed over, is nobody's to interrupt.
    let continued = world.turn(&key, "n2").await;
    continued.write(vec![Record::HandedOver]).await;
    let op = world.interrupt_op(&key, &continued.run, "n3").await;
    assert_eq!(world.ok(op).await.decision, None);
    assert_eq!(world.run_row(&continued.run.id).await.state, RunState::HandedOver);
    let nobody = super::world::key("nobody");
    let op = Interrupt {
        key: nobody,
        ..Interrupt {
            run_id: turn.run.id.clone(),
            ..world.interrupt_op(&key, &continued.run, "n3").await
        }
    };
    assert_eq!(world.ok(op).await.decision, None);
}

pub(super) async fn a_continuation_goes_ahead_and_ends_its_chain(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let root = turn.inputs[0].id.clone();
    let later = world.admit(&key, "r-2", "and then").await;
    turn.write(vec![delta("half")]).await;
    world.take_seen();
    assert_eq!(interrupt(&world, &key, &turn).await, Decision::Continue { attempt: 1 });
    let signals: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.signals).collect();
    assert!(signals.contains(&Signal::Queued(key.clone())));
    let input = world.input(&root).await;
    assert_eq!((input.status, input.outcome), (InputStatus::Started, None), "not yet decided");
    let queued = world.store.inputs(&key, Some(InputStatus::Queued), None, 9).await.unwrap();
    assert_eq!(queued.len(), 2);
    assert_eq!(queued[0].kind, InputKind::Continuation);
    assert_eq!(queued[1].id, later.input.id);
    let text = queued[0].content.plain();
    assert!(text.starts_with(CONTINUATION_PREFIX), "{text}");
    assert!(text.ends_with("do something"), "{text}");
    assert_eq!(world.session(&key).await.interrupted, None);
    let second = world.turn(&key, "n2").await;
    assert_eq!((second.run.attempt, second.run.generation), (1, 2));
    assert_eq!(second.run.continues.as_ref(), Some(&turn.run.id));
    assert!(second.run.interrupted_at.is_some());
    let view = world.store.session(&key).await.unwrap().unwrap();
    assert_eq!(view.chain_generation, Some(1));
    assert_eq!(world.input(&root).await.run_id.as_ref(), Some(&second.run.id));
    // The continuation itself is interrupted, and continued once more.
    second.write(vec![delta(" more")]).await;
    assert_eq!(interrupt(&world, &key, &second).await, Decision::Continue { attempt: 2 });
    let third = world.turn(&key, "n2").await;
    let text = third.inputs[0].content.plain();
    assert!(text.ends_with("do something"), "never a note inside a note: {text}");
    assert_eq!(text.matches(CONTINUATION_PREFIX).count(), 1);
    let view = world.store.session(&key).await.unwrap().unwrap();
    assert_eq!((view.chain_generation, third.run.generation), (Some(1), 3));
    third.complete("at last").await;
    for id in [&root, &second.inputs[0].id, &third.inputs[0].id] {
        let input = world.input(id).await;
        assert_eq!(input.outcome, Some(Outcome::Completed), "the last run of the chain decides");
        assert_eq!(
            input.run_id.as_ref(),
            Some(&third.run.id).filter(|_| *id != second.inputs[0].id).or(input.run_id.as_ref())
        );
    }
    assert_eq!(world.turn(&key, "n2").await.inputs[0].id, later.input.id);
}

pub(super) async fn a_chain_that_is_used_up_ends_interrupted(world: World) {
    let key = key("s");
    let mut turn = world.turn_of(&key, "r-1", "n1").await;
    let mut inputs = vec![turn.inputs[0].id.clone()];
    for attempt in 1..=2 {
        assert_eq!(interrupt(&world, &key, &turn).await, Decision::Continue { attempt });
        turn = world.turn(&key, "n1").await;
        inputs.push(turn.inputs[0].id.clone());
    }
    assert_eq!(interrupt(&world, &key, &turn).await, Decision::Park(Parked::Exhausted));
    world.take_seen();
    for id in &inputs {
        assert_eq!(world.input(id).await.outcome, Some(Outcome::Interrupted));
    }
    let session = world.session(&key).await;
    assert_eq!(session.interrupted.as_ref(), Some(&turn.run.id));
    assert_eq!(session.queue_length, 0);
}

pub(super) async fn policy_decides_whether_to_go_on(world: World) {
    let policy = |auto: AutoContinue| Policy { auto_continue: auto, ..Policy::default() };
    let auto = AutoContinue::default();
    let on_view = AutoContinue { when: AutoContinueWhen::OnView, ..auto };
    for (n, (auto, ended, age_ms, viewed, loop_broken, decision)) in [
        (auto, false, 0, false, false, Decision::Continue { attempt: 1 }),
        (
            AutoContinue { enabled: false, ..auto },
            false,
            0,
            false,
            false,
            Decision::Park(Parked::Disabled),
        ),
        (
            AutoContinue { max_attempts: 0, ..auto },
            false,
            0,
            false,
            false,
            Decision::Park(Parked::Exhausted),
        ),
        (auto, false, 900_001, false, false, Decision::Park(Parked::Stale)),
        (auto, false, 900_000, false, false, Decision::Continue { attempt: 1 }),
        (auto, false, 0, false, true, Decision::Park(Parked::LoopBreaker)),
        (auto, true, 0, false, false, Decision::Park(Parked::Ended)),
        (on_view, false, 0, false, false, Decision::Park(Parked::WaitsForViewer)),
        (on_view, false, 0, true, false, Decision::Continue { attempt: 1 }),
    ]
    .into_iter()
    .enumerate()
    {
        let key = key(&format!("s-{n}"));
        world.create(&key, policy(auto)).await;
        let turn = world.turn_of(&key, "r", "n1").await;
        if ended {
            world.ok(EndSession { key: key.clone(), reason: "over".to_owned() }).await;
        }
        world.clock.pass_ms(age_ms);
        let op = world.interrupt_op(&key, &turn.run, "n2").await;
        let done = world.ok(Interrupt { viewed, loop_broken, ..op }).await;
        assert_eq!(done.decision, Some(decision), "row {n}");
        let parked = matches!(decision, Decision::Park(_));
        assert_eq!(world.session(&key).await.interrupted.is_some(), parked);
        let outcome = world.input(&turn.inputs[0].id).await.outcome;
        assert_eq!(outcome, parked.then_some(Outcome::Interrupted));
    }
}

pub(super) async fn a_stop_wins_over_an_interruption(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("half")]).await;
    world.ok(stop(&key)).await;
    assert_eq!(interrupt(&world, &key, &turn).await, Decision::Cancel);
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.terminal_state, Some(TerminalState::Cancelled));
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Cancelled));
    assert_eq!(world.names(&run).await.last().unwrap(), "run.cancelled");
    let rows = world.transcript(&key).await;
    assert_eq!(rows.last().unwrap().content.plain(), "half", "what was said is kept");
    assert!(rows.iter().all(|row| row.kind != MessageKind::Interruption));
    let session = world.session(&key).await;
    assert_eq!((session.interrupted, session.queue_length), (None, 0));
    // A chain that is stopped ends cancelled as a whole.
    let turn = world.turn_of(&key, "r-2", "n1").await;
    interrupt(&world, &key, &turn).await;
    let second = world.turn(&key, "n1").await;
    world.ok(stop(&key)).await;
    second.write(vec![Record::End(End::Cancelled { text: String::new(), reasoning: None })]).await;
    for id in [&turn.inputs[0].id, &second.inputs[0].id] {
        assert_eq!(world.input(id).await.outcome, Some(Outcome::Cancelled));
    }
}

pub(super) async fn a_batch_is_continued_as_a_whole(world: World) {
    let key = key("s");
    world.create(&key, Policy { queue: QueuePolicy::Batch, ..Policy::default() }).await;
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(world.admit(&key, &format!("r-{n}"), &format!("text {n}")).await.input.id);
    }
    let turn = world.turn(&key, "n1").await;
    interrupt(&world, &key, &turn).await;
    let second = world.turn(&key, "n1").await;
    let text = second.inputs[0].content.plain();
    assert!(text.ends_with("text 1\n\ntext 2\n\ntext 3"), "{text}");
    interrupt(&world, &key, &second).await;
    let third = world.turn(&key, "n1").await;
    assert!(third.inputs[0].content.plain().ends_with("text 1\n\ntext 2\n\ntext 3"));
    for id in &ids {
        let input = world.input(id).await;
        assert_eq!(
            (input.status, input.run_id.as_ref()),
            (InputStatus::Started, Some(&third.run.id))
        );
    }
    third.complete("all three").await;
    ids.push(second.inputs[0].id.clone());
    ids.push(third.inputs[0].id.clone());
    for id in &ids {
        assert_eq!(world.input(id).await.outcome, Some(Outcome::Completed));
    }
}

pub(super) async fn a_person_takes_a_continuations_place(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let waiting = world.admit(&key, "r-2", "waits").await;
    interrupt(&world, &key, &turn).await;
    let queued = world.store.inputs(&key, Some(InputStatus::Queued), None, 9).await.unwrap();
    let continuation = queued[0].id.clone();
    // A known input is no new word.
    world.ok(admit(&key, "r-1", "do something")).await;
    assert_eq!(world.input(&continuation).await.status, InputStatus::Queued);
    let fresh = world.admit(&key, "r-3", "forget it, do this").await;
    assert_eq!(fresh.position, Some(2), "behind what was accepted before");
    assert_eq!(world.input(&continuation).await.outcome, Some(Outcome::Cancelled));
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Interrupted));
    let cancelled: Vec<serde_json::Value> = world
        .feed(&key)
        .await
        .iter()
        .filter(|row| row.head.name == "input.cancelled")
        .map(|row| serde_json::from_str(&row.body).unwrap())
        .collect();
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0]["reason"], "superseded");
    let next = world.turn(&key, "n1").await;
    assert_eq!(next.inputs[0].id, waiting.input.id);
    next.complete("ok").await;
    assert_eq!(world.turn(&key, "n1").await.inputs[0].id, fresh.input.id);
}

pub(super) async fn a_claimed_continuation_stays(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    interrupt(&world, &key, &turn).await;
    let second = world.turn(&key, "n1").await;
    world.admit(&key, "r-2", "too late to supersede").await;
    second.complete("finished").await;
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Completed));
}

pub(super) async fn a_person_decides_about_what_is_parked(world: World) {
    let key = key("s");
    let decide = |generation, decision| Decide { key: key.clone(), generation, decision };
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let early = decide(1, crate::op::Decision::Continue);
    assert_eq!(world.refused(&key, early.clone()).await, Refusal::NotInterrupted);
    park(&world, &key, &turn).await;
    let wrong = decide(9, crate::op::Decision::Continue);
    assert_eq!(world.refused(&key, wrong).await, Refusal::NotInterrupted);
    let decided = world.ok(early.clone()).await;
    let continuation = decided.input.unwrap();
    assert_eq!((continuation.kind, continuation.attempt), (InputKind::Continuation, 0));
    assert!(continuation.content.plain().ends_with("do something"));
    assert_eq!(decided.session.interrupted, None);
    assert_eq!(world.refused(&key, early.clone()).await, Refusal::NotInterrupted, "once");
    // A person's own wish is not superseded by the next thing that they say.
    world.admit(&key, "r-2", "and this").await;
    assert_eq!(world.input(&continuation.id).await.status, InputStatus::Queued);
    // The person withdraws it: the decision is there again, and can be taken again.
    world
        .ok(CancelInput { principal: key.principal.clone(), input_id: continuation.id.clone() })
        .await;
    assert_eq!(world.session(&key).await.interrupted.as_ref(), Some(&turn.run.id));
    let again = world.ok(early).await.input.unwrap();
    assert_ne!(again.id, continuation.id);
    let second = world.turn(&key, "n1").await;
    assert_eq!(second.inputs[0].id, again.id);
    assert_eq!(second.run.continues.as_ref(), Some(&turn.run.id));
    second.complete("done").await;
    // The interrupted input has had its one outcome.
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Interrupted));
    assert_eq!(world.input(&again.id).await.outcome, Some(Outcome::Completed));
    let late = decide(1, crate::op::Decision::Discard);
    assert_eq!(world.refused(&key, late).await, Refusal::Superseded);
}

pub(super) async fn a_person_may_discard(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    park(&world, &key, &turn).await;
    world.ok(EndSession { key: key.clone(), reason: "over".to_owned() }).await;
    let discard =
        Decide { key: key.clone(), generation: 1, decision: crate::op::Decision::Discard };
    let decided = world.ok(discard.clone()).await;
    assert!(decided.input.is_none());
    assert_eq!(decided.session.interrupted, None);
    assert!(decided.session.ended_at.is_some(), "a closed session stays closed");
    assert_eq!(world.refused(&key, discard).await, Refusal::NotInterrupted);
    assert!(matches!(world.claim(&key, "n1").await, Claimed::Nothing));
    // An interruption that nobody decides about holds nothing back, and is over with the next turn.
    let turn = world.turn_of(&key, "r-2", "n1").await;
    park(&world, &key, &turn).await;
    let next = world.turn_of(&key, "r-3", "n1").await;
    assert_eq!(next.session.interrupted, None);
    let late = Decide { key: key.clone(), generation: 2, decision: crate::op::Decision::Continue };
    assert_eq!(world.refused(&key, late).await, Refusal::Superseded);
}

pub(super) async fn a_withdrawn_continuation_leaves_its_input_interrupted(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    interrupt(&world, &key, &turn).await;
    let queued = world.store.inputs(&key, Some(InputStatus::Queued), None, 9).await.unwrap();
    let cancel = CancelInput { principal: key.principal.clone(), input_id: queued[0].id.clone() };
    let withdrawn = world.ok(cancel.clone()).await;
    assert_eq!(withdrawn.outcome, Some(Outcome::Cancelled));
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Interrupted));
    assert_eq!(world.session(&key).await.interrupted.as_ref(), Some(&turn.run.id));
    assert_eq!(world.refused(&key, cancel).await, Refusal::InputNotQueued);
}

pub(super) async fn calls_are_left_as_what_is_known_of_them(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let calls = ["c1", "c2", "c3", "c4", "c5"]
        .map(|id| call(id, if matches!(id, "c3" | "c5") { Effect::Read } else { Effect::Write }));
    turn.write(vec![step("working", calls.into())]).await;
    turn.write(vec![started("c1"), finished("c1", CallState::Succeeded, "one")]).await;
    turn.write(vec![started("c2"), started("c3")]).await;
    let prompt = super::prompts::clarification(&world, &turn);
    turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    assert_eq!(interrupt(&world, &key, &turn).await, Decision::Continue { attempt: 1 });
    let states: Vec<CallState> =
        world.store.run_calls(&turn.run.id).await.unwrap().iter().map(|c| c.state).collect();
    let expected = [
        CallState::Succeeded,
        CallState::Unknown,
        CallState::Unknown,
        CallState::NotRun,
        CallState::NotRun,
    ];
    assert_eq!(states, expected);
    let (prompt, _) = world.store.prompt(&prompt.id).await.unwrap().unwrap();
    assert_eq!(prompt.state, PromptState::Withdrawn);
    let second = world.turn(&key, "n1").await;
    // The note names what is of unknown outcome and may not be repeated, and nothing else.
    let note = second.inputs[0].content.plain();
    assert_eq!(note.matches("shell {\"command\":\"ls\"}").count(), 1, "{note}");
    let adopt = |id: &str| Record::CallAdopted(CallId::new(id).unwrap());
    for id in ["c1", "c2"] {
        let refusal = second.refused(vec![adopt(id)]).await;
        assert!(matches!(refusal, Refusal::BadRecord(_)), "{id}");
    }
    second.write(vec![adopt("c3"), adopt("c4")]).await;
    assert!(matches!(second.refused(vec![adopt("c3")]).await, Refusal::BadRecord(_)), "once");
    let mine: Vec<String> = world
        .store
        .run_calls(&second.run.id)
        .await
        .unwrap()
        .iter()
        .map(|call| format!("{} {}", call.id, call.state))
        .collect();
    assert_eq!(mine, ["c3 intended", "c4 intended"]);
    second.write(vec![started("c3"), finished("c3", CallState::Succeeded, "three")]).await;
    // The message of the first run shows the call as it is now, in its place.
    let rows = world.transcript(&key).await;
    let of_first = rows.iter().find(|row| !row.tool_calls.is_empty()).unwrap();
    assert_eq!(of_first.tool_calls.len(), 5);
    assert_eq!(of_first.tool_calls[2].state, CallState::Succeeded);
    // A later link of the chain may still take over what the first one left.
    interrupt(&world, &key, &second).await;
    let third = world.turn(&key, "n1").await;
    third.write(vec![adopt("c5"), adopt("c4")]).await;
    third.complete("ok").await;
    let c5 = world.store.call(&CallId::new("c5").unwrap()).await.unwrap().unwrap();
    assert_eq!((c5.state, c5.run_id), (CallState::NotRun, third.run.id));
}

pub(super) async fn after_a_power_loss_numbering_goes_on_above(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("half")]).await;
    let before = world.session(&key).await;
    let seq = world.run_row(&turn.run.id).await.last_seq;
    world.clock.reboot("boot-2");
    let mut op = world.interrupt_op(&key, &turn.run, "n2").await;
    op.evidence.rebooted = true;
    world.ok(Interrupt { may_continue: false, ..op }).await;
    let gaps = world.store.gaps(&key).await.unwrap();
    assert_eq!(gaps.len(), 1);
    let lost = before.offset_ceiling - before.last_offset;
    assert_eq!(
        (gaps[0].from_offset, gaps[0].to_offset),
        (before.last_offset + 1, before.offset_ceiling)
    );
    assert_eq!((gaps[0].from_seq, gaps[0].to_seq), (seq + 1, seq + lost));
    let feed = world.feed(&key).await;
    let after: Vec<u64> =
        feed.iter().map(|row| row.head.offset).filter(|o| *o > before.last_offset).collect();
    assert_eq!(after[0], before.offset_ceiling + 1, "no number that may have been seen");
    for pair in after.windows(2) {
        assert_eq!(pair[1], pair[0] + 1);
    }
    let run = world.run_row(&turn.run.id).await;
    let journal = world.journal(&run).await;
    assert_eq!(journal.last().unwrap().head.run.as_ref().unwrap().1, seq + lost + 1);
    assert_eq!(run.evidence.unwrap().last_seq, seq, "the last event that is there");
    let texts: Vec<String> =
        world.transcript(&key).await.iter().map(|row| row.content.plain()).collect();
    assert_eq!(texts[1], "half");
    // Any window of the journal is read across the gap.
    let run = world.run_row(&turn.run.id).await;
    for after in [0, seq - 1, seq, seq + 1, seq + lost - 1, seq + lost, seq + lost + 1] {
        let read = world.store.run_events(&run, after, None, 100).await.unwrap();
        let expected = journal.iter().filter(|row| row.head.run.as_ref().unwrap().1 > after);
        assert_eq!(read.len(), expected.count(), "after {after}");
    }
}

pub(super) async fn nothing_reuses_a_number_before_the_interruption_is_recorded(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("half")]).await;
    let before = world.session(&key).await;
    let seq = world.run_row(&turn.run.id).await.last_seq;
    world.clock.reboot("boot-2");
    // Somebody is faster than the recovery.
    world.admit(&key, "r-2", "are you there?").await;
    world.ok(admit_as(Mode::Queue, &key, "r-3", "hello?")).await;
    let accepted: Vec<u64> = world
        .feed(&key)
        .await
        .iter()
        .map(|row| row.head.offset)
        .filter(|offset| *offset > before.last_offset)
        .collect();
    assert_eq!(accepted, [before.offset_ceiling + 1, before.offset_ceiling + 2]);
    assert_eq!(world.store.gaps(&key).await.unwrap().len(), 1);
    match world.claim(&key, "n2").await {
        Claimed::Unfinished { run, .. } => assert_eq!(run.id, turn.run.id),
        other => panic!("{other:?}"),
    }
    let mut op = world.interrupt_op(&key, &turn.run, "n2").await;
    op.evidence.rebooted = true;
    op.evidence.holder_gone = None;
    let done = world.ok(op).await;
    assert_eq!(done.decision, Some(Decision::Continue { attempt: 1 }));
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.evidence.as_ref().unwrap().last_seq, seq);
    assert_eq!(world.store.gaps(&key).await.unwrap().len(), 1, "one gap for one power loss");
    // Another session, in which nothing ran, lost nothing.
    let quiet = super::world::key("t");
    world.admit(&quiet, "r", "x").await;
    world.clock.reboot("boot-3");
    world.admit(&quiet, "r-2", "x").await;
    assert!(world.store.gaps(&quiet).await.unwrap().is_empty());
    assert_eq!(world.feed(&quiet).await.len(), 2);
    let _turn = world.turn(&key, "n2").await;
}

pub(super) async fn what_waits_for_a_viewer_goes_on_once_and_in_time(world: World) {
    let auto_continue = AutoContinue { when: AutoContinueWhen::OnView, ..AutoContinue::default() };
    let policy = Policy { auto_continue, ..Policy::default() };
    let parked = async |key: &SessionKey| {
        world.create(key, policy.clone()).await;
        let turn = world.turn_of(key, "r-1", "n1").await;
        let op = world.interrupt_op(key, &turn.run, "n2").await;
        let done = world.ok(op).await;
        assert_eq!(done.decision, Some(Decision::Park(Parked::WaitsForViewer)));
        let marker = world.transcript(key).await.pop().unwrap().content.plain();
        assert!(marker.ends_with(&format!("{}.", Parked::WaitsForViewer.reason())), "{marker}");
        Reconsider {
            key: key.clone(),
            run_id: turn.run.id,
            may_continue: true,
            model_here: true,
            tools_here: true,
            workspace: String::new(),
            loop_broken: false,
            viewed: true,
        }
    };
    let (early, late) = (key("early"), key("late"));
    let viewed = parked(&early).await;
    let too_late = parked(&late).await;
    // What else the policy asks is asked again.
    for (op, reason) in [
        (Reconsider { may_continue: false, ..viewed.clone() }, Parked::NotHere),
        (Reconsider { model_here: false, ..viewed.clone() }, Parked::ModelMissing),
        (Reconsider { viewed: false, ..viewed.clone() }, Parked::WaitsForViewer),
    ] {
        let before = world.dump(&early).await;
        assert_eq!(world.ok(op).await.decision, Some(Decision::Park(reason)));
        assert_eq!(before, world.dump(&early).await);
    }
    world.clock.pass_ms(900_000);
    world.take_seen();
    let done = world.ok(viewed.clone()).await;
    assert_eq!(done.decision, Some(Decision::Continue { attempt: 1 }));
    let signals: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.signals).collect();
    assert!(signals.contains(&Signal::Queued(early.clone())));
    let before = world.dump(&early).await;
    assert_eq!(world.ok(viewed.clone()).await.decision, None, "once");
    assert_eq!(before, world.dump(&early).await);
    let turn = world.turn(&early, "n2").await;
    assert_eq!((turn.run.attempt, turn.run.continues.as_ref()), (1, Some(&viewed.run_id)));
    let text = turn.inputs[0].content.plain();
    assert_eq!(text.matches("interrupted").count(), 1, "{text}");
    turn.complete("done").await;
    assert_eq!(world.ok(viewed).await.decision, None, "nothing waits any more");
    // One millisecond past the window.
    world.clock.pass_ms(1);
    assert_eq!(world.ok(too_late.clone()).await.decision, Some(Decision::Park(Parked::Stale)));
    let session = world.session(&late).await;
    assert_eq!((session.interrupted.as_ref(), session.queue_length), (Some(&too_late.run_id), 0));
    // What will not pass is said, and then final.
    let marker = world.transcript(&late).await.pop().unwrap().content.plain();
    assert!(marker.ends_with(&format!("{}.", Parked::Stale.reason())), "{marker}");
    assert_eq!(world.run_row(&too_late.run_id).await.parked, Some(Parked::Stale));
    let before = world.dump(&late).await;
    assert_eq!(world.ok(too_late).await.decision, None);
    assert_eq!(before, world.dump(&late).await);
}

pub(super) async fn what_was_parked_for_a_passing_reason_is_decided_again(world: World) {
    for (name, parked, goes_on) in [
        ("a", Parked::NotHere, true),
        ("b", Parked::ModelMissing, true),
        ("c", Parked::LoopBreaker, false),
        ("d", Parked::Disabled, false),
        ("e", Parked::Stale, false),
    ] {
        let key = key(name);
        let auto_continue =
            AutoContinue { enabled: parked != Parked::Disabled, ..AutoContinue::default() };
        world.create(&key, Policy { auto_continue, ..Policy::default() }).await;
        let turn = world.turn_of(&key, "r-1", "n1").await;
        if parked == Parked::Stale {
            world.clock.pass_ms(900_001);
        }
        let mut op = world.interrupt_op(&key, &turn.run, "n2").await;
        op.may_continue = parked != Parked::NotHere;
        op.model_here = parked != Parked::ModelMissing;
        op.loop_broken = parked == Parked::LoopBreaker;
        assert_eq!(world.ok(op).await.decision, Some(Decision::Park(parked)));
        let waiting = world.store.parked(None, 10).await.unwrap();
        assert!(waiting.iter().any(|(of, run)| *of == key && run.parked == Some(parked)));
        let again = Reconsider {
            key: key.clone(),
            run_id: turn.run.id.clone(),
            may_continue: true,
            model_here: true,
            tools_here: true,
            workspace: String::new(),
            loop_broken: false,
            viewed: false,
        };
        let decision = world.ok(again).await.decision;
        assert_eq!(decision, goes_on.then_some(Decision::Continue { attempt: 1 }), "{parked:?}");
        assert_eq!(world.session(&key).await.interrupted.is_some(), !goes_on);
    }
    // Page by page, in the order of names.
    let names = |page: Vec<(everturn_core::SessionKey, everturn_core::Run)>| -> Vec<String> {
        page.into_iter().map(|(key, _)| key.id.to_string()).collect()
    };
    assert_eq!(names(world.store.parked(None, 2).await.unwrap()), ["c", "d"]);
    assert_eq!(names(world.store.parked(Some(&key("d")), 2).await.unwrap()), ["e"]);
}

/// Counterpart of `failed_agent_build_leaves_marker_for_retry` of seed 001: a continuation that could
/// not begin spends no attempt and stays eligible.
pub(super) async fn a_continuation_that_cannot_begin_spends_no_attempt(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let (root, interrupted) = (turn.inputs[0].id.clone(), turn.run.id.clone());
    let failure = || everturn_core::Failure {
        code: "model_unauthorized".to_owned(),
        message: "no key".to_owned(),
        permanent: true,
        hint: None,
    };
    let unprepared = || vec![Record::End(End::Unprepared { failure: failure() })];
    assert!(
        matches!(turn.refused(unprepared()).await, Refusal::BadRecord(_)),
        "not a continuation"
    );
    assert_eq!(interrupt(&world, &key, &turn).await, Decision::Continue { attempt: 1 });
    for tried in 1..=10 {
        let again = world.turn(&key, "n2").await;
        assert_eq!((again.run.attempt, again.run.continues.as_ref()), (1, Some(&interrupted)));
        again.write(unprepared()).await;
        let run = world.run_row(&again.run.id).await;
        assert_eq!(run.terminal_state, Some(TerminalState::Failed));
        assert_eq!(run.error, Some(failure()));
        assert_eq!(world.names(&run).await, ["run.started", "run.failed"]);
        assert_eq!(world.input(&root).await.outcome, Some(Outcome::Interrupted));
        assert_eq!(world.input(&again.inputs[0].id).await.outcome, Some(Outcome::Failed));
        let session = world.session(&key).await;
        assert_eq!((session.interrupted.as_ref(), session.running), (Some(&interrupted), None));
        assert_eq!(world.run_row(&interrupted).await.parked, Some(Parked::Unprepared));
        let op = Reconsider {
            key: key.clone(),
            run_id: interrupted.clone(),
            may_continue: true,
            model_here: true,
            tools_here: true,
            workspace: String::new(),
            loop_broken: false,
            viewed: false,
        };
        // However often somebody looks, it is tried once a minute.
        world.clock.pass_ms(59_999);
        let before = world.dump(&key).await;
        for _ in 0..3 {
            assert_eq!(world.ok(op.clone()).await.decision, None);
        }
        assert_eq!(before, world.dump(&key).await);
        world.clock.pass_ms(1);
        let decision = world.ok(op).await.decision;
        let marker = world.transcript(&key).await.into_iter().nth(1).unwrap().content.plain();
        if tried < 10 {
            let goes_on = Decision::Continue { attempt: 1 };
            assert_eq!(decision, Some(goes_on), "no attempt is spent");
            assert!(!marker.contains("by itself"), "{marker}");
        } else {
            // Nor without end; a person still may.
            assert_eq!(decision, Some(Decision::Park(Parked::Exhausted)));
            assert!(marker.ends_with(&format!("{}.", Parked::Exhausted.reason())), "{marker}");
            let decision = crate::op::Decision::Continue;
            let generation = turn.run.generation;
            world.ok(Decide { key: key.clone(), generation, decision }).await;
        }
    }
    // One that has begun fails like any other turn.
    let again = world.turn(&key, "n2").await;
    again.write(vec![delta("I")]).await;
    assert!(matches!(again.refused(unprepared()).await, Refusal::BadRecord(_)));
    again.complete("done").await;
    let original = |row: &Message| row.content.plain().matches("do something").count();
    for row in world.transcript(&key).await {
        assert!(original(&row) <= 1, "a note inside a note: {row:?}");
    }
}

pub(super) async fn an_interruption_that_nobody_decides_about_is_closed(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    park(&world, &key, &turn).await;
    let close = CloseUndecided { key: key.clone(), run_id: turn.run.id.clone() };
    let before = world.dump(&key).await;
    world.clock.pass_ms(86_400_000);
    assert!(!world.ok(close.clone()).await, "a day is given");
    assert_eq!(before, world.dump(&key).await);
    world.clock.pass_ms(1);
    let revision = world.session(&key).await.revision;
    assert!(world.ok(close.clone()).await);
    let session = world.session(&key).await;
    assert_eq!((session.interrupted, session.revision), (None, revision + 1));
    let note = world.transcript(&key).await.pop().unwrap();
    assert_eq!((note.role, note.kind), (Role::System, MessageKind::Note));
    assert!(note.content.plain().contains("24 hours"), "{}", note.content.plain());
    assert_eq!(world.run_row(&turn.run.id).await.parked, Some(Parked::Undecided));
    assert!(world.store.parked(None, 10).await.unwrap().is_empty());
    let before = world.dump(&key).await;
    assert!(!world.ok(close).await, "once");
    assert_eq!(before, world.dump(&key).await);
    let decide =
        Decide { key: key.clone(), generation: 1, decision: crate::op::Decision::Continue };
    assert_eq!(world.refused(&key, decide).await, Refusal::NotInterrupted);
    // It goes on with what a person says next, and the model is told.
    world.turn_of(&key, "r-2", "n2").await.complete("hello").await;
}

fn again(key: &SessionKey, turn: &Turn) -> Reconsider {
    Reconsider {
        key: key.clone(),
        run_id: turn.run.id.clone(),
        may_continue: true,
        model_here: true,
        tools_here: true,
        workspace: "host:/work".to_owned(),
        loop_broken: false,
        viewed: false,
    }
}

pub(super) async fn a_turn_is_bound_to_its_tools_and_its_workspace(world: World) {
    for (name, parked) in [("t", Parked::ToolMissing), ("w", Parked::OtherWorkspace)] {
        let key = key(name);
        world.admit(&key, "r-1", "do something").await;
        let mut claim = world.claim_op(&key, "n1");
        claim.claimer.workspace = "host:/work".to_owned();
        let Claimed::Turn(turn) = *world.ok(claim).await else { panic!("nothing to claim") };
        let turn = world.claimed(*turn).await;
        let mut op = world.interrupt_op(&key, &turn.run, "n2").await;
        op.tools_here = parked != Parked::ToolMissing;
        let here = if parked == Parked::OtherWorkspace { "host:/home" } else { "host:/work" };
        op.workspace = here.to_owned();
        assert_eq!(world.ok(op).await.decision, Some(Decision::Park(parked)));
        // Where both are there it goes on.
        let decision = world.ok(again(&key, &turn)).await.decision;
        assert_eq!(decision, Some(Decision::Continue { attempt: 1 }));
    }
}

/// DESIGN §5: budgets count deaths of the executor only.
pub(super) async fn what_a_store_ended_spends_no_attempt(world: World) {
    let key = key("s");
    world.admit(&key, "r-1", "do something").await;
    for attempt in 1..=6 {
        let turn = world.turn(&key, "n1").await;
        assert_eq!(turn.run.attempt, attempt - 1);
        let mut op = world.interrupt_op(&key, &turn.run, "n1").await;
        op.by_holder = true;
        // Two of them died.
        let died = attempt == 2 || attempt == 4;
        op.evidence.store_silent_s = (!died).then_some(600);
        assert_eq!(world.ok(op).await.decision, Some(Decision::Continue { attempt }), "{attempt}");
        let row = world.run_row(&turn.run.id).await;
        let said = row.evidence.as_ref().unwrap().observed(Cause::LeaseLost);
        assert_eq!(said.contains("its store took no record for 600 s"), !died, "{said}");
    }
    let turn = world.turn(&key, "n1").await;
    assert_eq!(interrupt(&world, &key, &turn).await, Decision::Park(Parked::Exhausted));
}

pub(super) async fn how_a_matter_was_closed_is_said(world: World) {
    let (left, later) = (key("left"), key("later"));
    let turn = world.turn_of(&left, "r-1", "n1").await;
    park(&world, &left, &turn).await;
    let discard = crate::op::Decision::Discard;
    world.ok(Decide { key: left.clone(), generation: 1, decision: discard }).await;
    assert_eq!(world.run_row(&turn.run.id).await.parked, Some(Parked::Discarded));
    let turn = world.turn_of(&later, "r-1", "n1").await;
    park(&world, &later, &turn).await;
    world.turn_of(&later, "r-2", "n2").await.complete("done").await;
    assert_eq!(world.run_row(&turn.run.id).await.parked, Some(Parked::Superseded));
    assert!(world.store.parked(None, 9).await.unwrap().is_empty());
}

pub(super) async fn a_request_is_sent_again_in_one_step(world: World) {
    for (name, text, asked) in
        [("same", None, "do something"), ("other", Some("do less"), "do less")]
    {
        let key = key(name);
        let turn = world.turn_of(&key, "r-1", "n1").await;
        turn.write(vec![delta("half")]).await;
        park(&world, &key, &turn).await;
        let decision = crate::op::Decision::Resend(text.map(str::to_owned));
        let op = Decide { key: key.clone(), generation: 1, decision };
        let decided = *world.ok(op.clone()).await;
        assert_eq!(decided.session.interrupted, None);
        assert_eq!(world.run_row(&turn.run.id).await.parked, Some(Parked::Resent));
        let input = decided.input.unwrap();
        assert_eq!((input.kind, input.content.plain().as_str()), (InputKind::Message, asked));
        assert_eq!(world.refused(&key, op).await, Refusal::NotInterrupted, "once");
        let next = world.turn(&key, "n2").await;
        assert_eq!((next.inputs[0].id.clone(), next.run.continues.clone()), (input.id, None));
        next.complete("done").await;
        let rows = world.transcript(&key).await;
        assert_eq!(rows.iter().filter(|row| row.role == Role::User).count(), 2);
    }
}

/// What is accepted after the record of the interruption and before its continuation is claimed takes
/// the continuation's place, whether that was admitted by then or not.
pub(super) async fn what_is_said_later_takes_the_place_of_a_late_continuation(world: World) {
    let (before, after) = (key("before"), key("after"));
    // Admitted by a second look, and not claimed yet.
    let turn = world.turn_of(&before, "r-1", "n1").await;
    park(&world, &before, &turn).await;
    let decision = world.ok(again(&before, &turn)).await.decision;
    assert_eq!(decision, Some(Decision::Continue { attempt: 1 }));
    let said = world.admit(&before, "r-2", "never mind").await;
    let next = world.turn(&before, "n2").await;
    assert_eq!(next.inputs[0].id, said.input.id);
    next.complete("done").await;
    assert!(matches!(world.claim(&before, "n2").await, Claimed::Nothing));
    // Said while it was parked: a second look finds that it has been answered.
    let turn = world.turn_of(&after, "r-1", "n1").await;
    park(&world, &after, &turn).await;
    world.admit(&after, "r-2", "never mind").await;
    assert_eq!(world.ok(again(&after, &turn)).await.decision, None);
    // A person's word is not overruled by the next one.
    let turn = world.turn(&after, "n2").await;
    park(&world, &after, &turn).await;
    let decision = crate::op::Decision::Continue;
    world.ok(Decide { key: after.clone(), generation: 2, decision }).await;
    world.admit(&after, "r-3", "and this").await;
    assert_eq!(world.turn(&after, "n2").await.run.continues.as_ref(), Some(&turn.run.id));
}

/// A turn is bound to its model, unless people give the session another one.
pub(super) async fn a_continuation_runs_on_the_model_of_its_turn(world: World) {
    let (plain, given) = (key("plain"), key("given"));
    for key in [&plain, &given] {
        let turn = world.turn_of(key, "r-1", "n1").await;
        assert_eq!(turn.run.model, "script/demo");
        interrupt(&world, key, &turn).await;
    }
    let patch =
        SessionPatch { model: Some(Some("script/chosen".to_owned())), ..SessionPatch::default() };
    world.ok(PatchSession { key: given.clone(), expected_revision: None, patch }).await;
    for (key, model) in [(&plain, "script/demo"), (&given, "script/chosen")] {
        let mut claim = world.claim_op(key, "n2");
        claim.claimer.default_model = "script/other".to_owned();
        let Claimed::Turn(turn) = *world.ok(claim).await else { panic!("nothing to claim") };
        assert_eq!((turn.run.model.as_str(), turn.run.attempt), (model, 1));
    }
}

pub(super) async fn a_late_end_never_beats_the_interruption(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    interrupt(&world, &key, &turn).await;
    assert_eq!(turn.refused(vec![completed("I was faster")]).await, Refusal::Fenced);
    let names = world.names(&turn.run).await;
    let ends = names.iter().filter(|name| everturn_core::event::is_terminal(name)).count();
    assert_eq!(ends, 1);
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::Ended);
}

/// What a continuation says in the middle of the message that broke off is marked as more of it: when
/// it ends a step, when it is cut off again, and when it says nothing.
pub(super) async fn what_goes_on_in_the_middle_of_a_message_says_so(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![delta("one ")]).await;
    interrupt(&world, &key, &turn).await;
    let second = world.turn(&key, "n2").await;
    let partial = world.transcript(&key).await[1].id;
    // Only such a message, of a run that this one goes on from, and only where the step begins.
    let resumed = |message_id| Record::TextResumed { message_id };
    for wrong in [partial - 1, partial + 1, 99] {
        assert!(matches!(second.refused(vec![resumed(wrong)]).await, Refusal::BadRecord(_)));
    }
    let late = vec![delta("x"), resumed(partial)];
    assert!(matches!(second.refused(late).await, Refusal::BadRecord(_)));
    second.write(vec![resumed(partial), delta("two ")]).await;
    assert_eq!(world.names(&second.run).await, ["run.started", "text.resumed", "text.delta"]);
    interrupt(&world, &key, &second).await;
    let third = world.turn(&key, "n2").await;
    let rows = world.transcript(&key).await;
    let shape = |row: &Message| (row.kind, row.recovered, row.content.plain());
    assert_eq!(shape(&rows[4]), (MessageKind::Resumed, true, "two ".to_owned()));

    let partial = rows[4].id;
    third.write(vec![resumed(partial)]).await;
    third.write(vec![delta("three"), step("three", vec![call("c1", Effect::Read)])]).await;
    third.write(vec![started("c1"), finished("c1", CallState::Succeeded, "found")]).await;
    // What it says next is a message of its own.
    third.write(vec![delta("four"), completed("four")]).await;
    let rows = world.transcript(&key).await;
    let said: Vec<_> = rows.iter().filter(|row| row.role == Role::Assistant).map(shape).collect();
    let expected = [
        (MessageKind::Message, true, "one ".to_owned()),
        (MessageKind::Resumed, true, "two ".to_owned()),
        (MessageKind::Resumed, false, "three".to_owned()),
        (MessageKind::Message, false, "four".to_owned()),
    ];
    assert_eq!(said, expected);

    let turn = world.turn_of(&key, "r-2", "n1").await;
    turn.write(vec![delta("whole")]).await;
    interrupt(&world, &key, &turn).await;
    let silent = world.turn(&key, "n2").await;
    let partial = world.transcript(&key).await.iter().rfind(|row| row.recovered).unwrap().id;
    silent.write(vec![resumed(partial)]).await;
    silent.write(vec![completed("")]).await;
    let rows = world.transcript(&key).await;
    assert_eq!(shape(rows.last().unwrap()), (MessageKind::Resumed, false, String::new()));
    // Nobody goes on in the middle of anything who goes on from nothing.
    let turn = world.turn_of(&key, "r-3", "n1").await;
    assert!(matches!(turn.refused(vec![resumed(partial)]).await, Refusal::BadRecord(_)));
}
