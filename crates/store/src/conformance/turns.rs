//! What a turn writes: records become events and messages in one transaction (P8), all or none, under
//! the fence (P11), and end once (P4).

use everturn_core::event::{End, Record};
use everturn_core::{
    CallId, CallState, Effect, Failure, NewCall, Outcome, Role, RunState, TerminalState, Usage,
};

use super::world::{World, completed, delta, key, node, step};
use crate::error::Refusal;
use crate::op::{DeleteSession, Signal, Stop};

pub(super) fn call(id: &str, effect: Effect) -> NewCall {
    NewCall {
        id: CallId::new(id).unwrap(),
        provider_id: format!("provider-{id}"),
        name: "shell".to_owned(),
        arguments: "{\"command\":\"ls\"}".to_owned(),
        effect,
        schema: "ab".repeat(32),
    }
}

pub(super) fn started(id: &str) -> Record {
    Record::CallStarted(CallId::new(id).unwrap())
}

pub(super) fn finished(id: &str, state: CallState, result: &str) -> Record {
    Record::CallFinished { call_id: CallId::new(id).unwrap(), state, result: result.to_owned() }
}

fn usage(input: u64, output: u64) -> Usage {
    Usage { input_tokens: input, output_tokens: output, ..Usage::default() }
}

fn stop(key: &everturn_core::SessionKey) -> Stop {
    Stop {
        key: key.clone(),
        generation: None,
        run_id: None,
        by: key.principal.clone(),
        keep_queue: false,
    }
}

pub(super) async fn a_turn_becomes_messages_and_ends_once(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![Record::ReasoningDelta("think".to_owned()), delta("Hel"), delta("lo")]).await;
    assert_eq!(world.transcript(&key).await.len(), 1, "deltas are no rows");
    let written = turn
        .write(vec![Record::Step {
            text: "Hello".to_owned(),
            reasoning: Some("think".to_owned()),
            calls: Vec::new(),
            usage: Some(usage(10, 2)),
        }])
        .await;
    assert_eq!(written.message_ids, [2]);
    world.take_seen();
    let end = Record::End(End::Completed {
        text: "Bye".to_owned(),
        reasoning: None,
        usage: Some(usage(5, 1)),
    });
    let written = turn.write(vec![delta("Bye"), end]).await;
    assert_eq!(written.message_ids, [3]);
    let rows = world.transcript(&key).await;
    let said: Vec<(Role, String)> =
        rows.iter().map(|row| (row.role, row.content.plain())).collect();
    let expected = [
        (Role::User, "do something".to_owned()),
        (Role::Assistant, "Hello".to_owned()),
        (Role::Assistant, "Bye".to_owned()),
    ];
    assert_eq!(said, expected);
    assert_eq!(rows[1].reasoning.as_deref(), Some("think"));
    assert_eq!((rows[1].generation, rows[1].run_id.as_ref()), (Some(1), Some(&turn.run.id)));
    assert!(!rows[1].recovered);
    let run = world.run_row(&turn.run.id).await;
    assert_eq!((run.state, run.terminal_state), (RunState::Ended, Some(TerminalState::Completed)));
    assert_eq!(run.usage, Some(usage(15, 3)));
    assert_eq!((run.last_seq, run.step_seq), (written.last_seq, written.last_seq));
    assert!(run.ended_at.is_some());
    let session = world.session(&key).await;
    assert_eq!((session.running.as_ref(), session.lease.as_ref()), (None, None));
    assert_eq!(session.revision, 1);
    let input = world.input(&turn.inputs[0].id).await;
    assert_eq!(input.outcome, Some(Outcome::Completed));
    assert_eq!(input.ended_at, run.ended_at);
    let signals: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.signals).collect();
    assert!(signals.contains(&Signal::Released(key.clone())));
    assert!(signals.contains(&Signal::InputEnded(input.id)));
    let names = world.names(&run).await;
    assert_eq!(names.last().map(String::as_str), Some("run.completed"));
    assert_eq!(names.iter().filter(|name| everturn_core::event::is_terminal(name)).count(), 1);
    assert_eq!(turn.refused(vec![completed("again")]).await, Refusal::Fenced);
}

pub(super) async fn silence_is_an_answer_too(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let written = turn.complete("").await;
    assert_eq!(written.message_ids, [2], "so that the answer has an id");
    assert_eq!(world.transcript(&key).await[1].content, everturn_core::Content::default());
    // A step that said and asked nothing is no row.
    let turn = world.turn_of(&key, "r-2", "n1").await;
    assert!(turn.write(vec![step("", Vec::new())]).await.message_ids.is_empty());
}

pub(super) async fn a_failure_keeps_what_was_said(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let failure = Failure {
        code: "model_unavailable".to_owned(),
        message: "no \0 answer".to_owned(),
        permanent: false,
        hint: Some("try again".to_owned()),
    };
    let end = End::Failed { failure: failure.clone(), text: "half".to_owned(), reasoning: None };
    turn.write(vec![delta("half"), Record::End(end)]).await;
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.terminal_state, Some(TerminalState::Failed));
    assert_eq!(run.error, Some(failure));
    assert_eq!(world.transcript(&key).await[1].content.plain(), "half");
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Failed));
    assert_eq!(world.session(&key).await.interrupted, None, "an error that was handled is over");
}

pub(super) async fn after_a_stop_only_the_end_can_be_written(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![step("", vec![call("c1", Effect::Write), call("c2", Effect::Read)])]).await;
    turn.write(vec![started("c1")]).await;
    // Without a stop nobody cancelled.
    let cancelled = || Record::End(End::Cancelled { text: "cut".to_owned(), reasoning: None });
    assert!(matches!(turn.refused(vec![cancelled()]).await, Refusal::BadRecord(_)));
    world.ok(stop(&key)).await;
    let before = world.dump(&key).await;
    let failure =
        Failure { code: "x".to_owned(), message: String::new(), permanent: true, hint: None };
    for record in [
        delta("more"),
        Record::ReasoningDelta("more".to_owned()),
        step("more", Vec::new()),
        started("c2"),
        completed("done"),
        Record::End(End::Failed { failure, text: String::new(), reasoning: None }),
        Record::HandedOver,
    ] {
        assert_eq!(turn.refused(vec![record.clone()]).await, Refusal::Stopped, "{record:?}");
    }
    assert_eq!(before, world.dump(&key).await);
    // What a tool under way returned is still true.
    let output = Record::CallOutput { call_id: CallId::new("c1").unwrap(), text: "out".to_owned() };
    turn.write(vec![output, finished("c1", CallState::Succeeded, "listed")]).await;
    turn.write(vec![cancelled()]).await;
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.terminal_state, Some(TerminalState::Cancelled));
    assert_eq!(world.input(&turn.inputs[0].id).await.outcome, Some(Outcome::Cancelled));
    let rows = world.transcript(&key).await;
    assert_eq!(rows.last().unwrap().content.plain(), "cut");
    let calls = world.store.run_calls(&run.id).await.unwrap();
    let states: Vec<CallState> = calls.iter().map(|call| call.state).collect();
    assert_eq!(states, [CallState::Succeeded, CallState::NotRun]);
}

pub(super) async fn records_are_written_all_or_none(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let before = world.dump(&key).await;
    world.take_seen();
    for bad in [
        vec![delta("a"), step("a", vec![call("c1", Effect::Read)]), started("c2")],
        vec![delta("a"), finished("c1", CallState::Succeeded, "x")],
        vec![step("", vec![call("c1", Effect::Read)]), finished("c1", CallState::Succeeded, "x")],
        vec![completed("a"), delta("b")],
        vec![Record::HandedOver, delta("b")],
        vec![delta("a"), Record::CallAdopted(CallId::new("c1").unwrap())],
        vec![delta("a"), Record::PromptExpired(everturn_core::PromptId::new("p").unwrap())],
    ] {
        let _refusal = turn.refused(bad.clone()).await;
        assert_eq!(before, world.dump(&key).await, "{bad:?}");
    }
    assert!(world.take_seen().is_empty());
    // The same numbers are used by what comes next.
    let written = turn.write(vec![delta("a")]).await;
    assert_eq!(written.last_seq, 2);
    turn.write(vec![step("a", vec![call("c1", Effect::Read)])]).await;
    assert_eq!(world.store.run_calls(&turn.run.id).await.unwrap().len(), 1);
}

pub(super) async fn a_stale_writer_leaves_no_trace(world: World) {
    let key = key("s");
    // Another node took the session over, and recorded the interruption.
    let old = world.turn_of(&key, "r-1", "n1").await;
    world.admit(&key, "r-2", "next").await;
    let op = world.interrupt_op(&key, &old.run, "n2").await;
    world.ok(crate::op::Interrupt { may_continue: false, ..op }).await;
    let attempts = || {
        [vec![delta("late")], vec![step("late", Vec::new())], vec![completed("late")], Vec::new()]
    };
    for records in attempts() {
        let before = world.dump(&key).await;
        assert_eq!(old.refused(records).await, Refusal::Fenced);
        assert_eq!(before, world.dump(&key).await);
    }
    let new = world.turn(&key, "n2").await;
    for records in attempts() {
        let before = world.dump(&key).await;
        assert_eq!(old.refused(records).await, Refusal::Fenced);
        assert_eq!(before, world.dump(&key).await);
    }
    // The same node in a later turn: the generation is another one.
    new.complete("ok").await;
    world.admit(&key, "r-3", "x").await;
    let third = world.turn(&key, "n2").await;
    assert_eq!(new.refused(vec![delta("late")]).await, Refusal::Fenced);
    // Every part of the fence counts.
    let fence = third.lease.fence().clone();
    for wrong in [
        crate::Fence { node: node("n9"), ..fence.clone() },
        crate::Fence { epoch: fence.epoch + 1, ..fence.clone() },
        crate::Fence { epoch: fence.epoch - 1, ..fence.clone() },
        crate::Fence { generation: fence.generation - 1, ..fence.clone() },
        crate::Fence { run_id: old.run.id.clone(), ..fence.clone() },
        crate::Fence { session: super::world::key("t"), ..fence.clone() },
    ] {
        let before = world.dump(&key).await;
        let refusal = super::world::refusal(world.write(&wrong, vec![delta("x")]).await);
        assert_eq!(refusal, Refusal::Fenced, "{wrong:?}");
        assert_eq!(before, world.dump(&key).await);
    }
    // A lease that ran out and was not taken is still its holder's.
    world.clock.pass_ms(3_600_000);
    third.complete("late but mine").await;
    world.ok(DeleteSession { key: key.clone(), expected_generation: None }).await;
    assert_eq!(third.refused(vec![delta("x")]).await, Refusal::Fenced);
}

pub(super) async fn a_call_has_an_intent_before_and_a_result_after(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let calls = vec![
        call("c1", Effect::Write),
        call("c2", Effect::Read),
        NewCall { arguments: "not json".to_owned(), ..call("c3", Effect::Idempotent) },
    ];
    let written = turn.write(vec![step("let me look", calls)]).await;
    assert_eq!(written.message_ids, [2]);
    let rows = world.transcript(&key).await;
    assert_eq!(rows[1].tool_calls.len(), 3);
    let intended = &rows[1].tool_calls[2];
    assert_eq!((intended.index, intended.message_id), (2, 2));
    assert_eq!(intended.arguments, "not json");
    assert_eq!(intended.state, CallState::Intended);
    // A result before a start, a start twice, a result twice.
    let early = turn.refused(vec![finished("c1", CallState::Succeeded, "x")]).await;
    assert!(matches!(early, Refusal::BadRecord(_)));
    world.clock.pass_ms(5);
    turn.write(vec![started("c1")]).await;
    assert!(matches!(turn.refused(vec![started("c1")]).await, Refusal::BadRecord(_)));
    let denied = turn.refused(vec![finished("c1", CallState::Denied, "x")]).await;
    assert!(matches!(denied, Refusal::BadRecord(_)), "it did begin");
    let open = turn.refused(vec![finished("c1", CallState::Running, "x")]).await;
    assert!(matches!(open, Refusal::BadRecord(_)), "not a final state");
    world.clock.pass_ms(5);
    let written = turn.write(vec![finished("c1", CallState::Failed, "exit 1")]).await;
    assert_eq!(written.message_ids, [3]);
    let again = turn.refused(vec![finished("c1", CallState::Succeeded, "x")]).await;
    assert!(matches!(again, Refusal::BadRecord(_)));
    turn.write(vec![finished("c2", CallState::Denied, "no")]).await;
    let c1 = world.store.call(&CallId::new("c1").unwrap()).await.unwrap().unwrap();
    assert_eq!((c1.state, c1.result.as_deref()), (CallState::Failed, Some("exit 1")));
    assert!(c1.started_at < c1.ended_at);
    let rows = world.transcript(&key).await;
    assert_eq!((rows[2].role, rows[2].tool_call_id.as_ref()), (Role::Tool, Some(&c1.id)));
    assert_eq!(rows[1].tool_calls[0], c1, "the message shows its calls as they are now");
    // A tool that was let begin may find that it must not, and do nothing: that is known.
    turn.write(vec![step("", vec![call("c4", Effect::Write)]), started("c4")]).await;
    turn.write(vec![finished("c4", CallState::NotRun, "nothing was done")]).await;
    let c4 = world.store.call(&CallId::new("c4").unwrap()).await.unwrap().unwrap();
    assert_eq!((c4.state, c4.started_at), (CallState::NotRun, None));
    assert_eq!(c4.result.as_deref(), Some("nothing was done"));
    // What is still open when the turn ends gets its final state.
    turn.complete("enough").await;
    let states: Vec<CallState> =
        world.store.run_calls(&turn.run.id).await.unwrap().iter().map(|c| c.state).collect();
    let open = [CallState::NotRun, CallState::NotRun];
    assert_eq!(states, [CallState::Failed, CallState::Denied, open[0], open[1]]);
    let names = world.names(&turn.run).await;
    assert_eq!(names.iter().filter(|name| *name == "tool.intended").count(), 4);
    assert_eq!(names.iter().filter(|name| *name == "tool.finished").count(), 4);
}

pub(super) async fn a_running_call_cannot_be_handed_over(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![step("", vec![call("c1", Effect::Write)]), started("c1")]).await;
    assert!(matches!(turn.refused(vec![Record::HandedOver]).await, Refusal::BadRecord(_)));
    turn.write(vec![finished("c1", CallState::Succeeded, "ok"), Record::HandedOver]).await;
    let next = world.turn(&key, "n2").await;
    next.complete("ok").await;
}

pub(super) async fn another_runs_call_is_out_of_reach(world: World) {
    let first = world.turn_of(&key("a"), "r", "n1").await;
    first.write(vec![step("", vec![call("c1", Effect::Read)])]).await;
    let second = world.turn_of(&key("b"), "r", "n1").await;
    for record in [
        started("c1"),
        finished("c1", CallState::Denied, "x"),
        Record::CallAdopted(CallId::new("c1").unwrap()),
    ] {
        assert!(matches!(second.refused(vec![record]).await, Refusal::BadRecord(_)));
    }
    let c1 = world.store.call(&CallId::new("c1").unwrap()).await.unwrap().unwrap();
    assert_eq!(c1.state, CallState::Intended);
}

pub(super) async fn a_repeated_write_is_known_again(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let lease = &turn.lease;
    let first = lease.write(1, vec![delta("a")]).await.unwrap();
    let second = lease.write(2, vec![step("a", Vec::new())]).await.unwrap();
    assert_eq!((first.last_seq, second.message_ids.as_slice()), (2, [2].as_slice()));
    // As one whose answers were lost repeats them.
    for number in [1, 2, 2] {
        let before = world.dump(&key).await;
        world.take_seen();
        let again = lease.write(number, vec![delta("again"), completed("again")]).await.unwrap();
        assert_eq!(again.last_seq, second.last_seq);
        assert_eq!(before, world.dump(&key).await, "it changes nothing");
        assert!(world.take_seen().is_empty(), "and publishes nothing");
    }
    // A refused one was not written: its number is free.
    let bad = lease.write(3, vec![delta("b"), started("none")]).await;
    assert!(matches!(super::world::refusal(bad), Refusal::BadRecord(_)));
    let third = lease.write(3, vec![delta("b")]).await.unwrap();
    assert_eq!(third.last_seq, second.last_seq + 1);
    // The next holder counts anew, and the last one is out whatever it repeats.
    lease.write(4, vec![Record::HandedOver]).await.unwrap();
    let next = world.turn(&key, "n2").await;
    assert_eq!(super::world::refusal(lease.write(4, vec![delta("c")]).await), Refusal::Fenced);
    let begun = next.lease.write(1, vec![delta("c")]).await.unwrap();
    assert_eq!(begun.last_seq, third.last_seq + 2);
    // Even the end may be repeated: it was written.
    let ended = next.lease.write(2, vec![completed("c")]).await.unwrap();
    let again = next.lease.write(2, vec![completed("c")]).await.unwrap();
    assert_eq!(again.last_seq, ended.last_seq);
    let beyond = next.lease.write(3, vec![completed("c")]).await;
    assert_eq!(super::world::refusal(beyond), Refusal::Fenced);
    let ends = world.names(&turn.run).await.into_iter().filter(|name| name == "run.completed");
    assert_eq!(ends.count(), 1);
}

/// The picture of a turn under way, from its claim to its end.
pub(super) async fn a_turn_under_way_is_seen_as_it_is(world: World) {
    let key = key("s");
    assert!(world.store.session_in_flight(&key).await.unwrap().is_none());
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let see = async || {
        let (view, seen) = world.store.session_in_flight(&key).await.unwrap().unwrap();
        assert_eq!(view.running.is_some(), seen.is_some());
        seen
    };
    let begun = see().await.unwrap();
    assert_eq!((begun.seq, begun.text.as_str(), begun.truncated), (1, "", false));
    assert_eq!(begun.inputs, turn.inputs);
    assert!(begun.calls.is_empty() && begun.prompts.is_empty() && begun.outputs.is_empty());

    turn.write(vec![Record::ReasoningDelta("hm".to_owned()), delta("a\0"), delta("b")]).await;
    let amid = see().await.unwrap();
    assert_eq!((amid.seq, amid.text.as_str(), amid.reasoning.as_str()), (4, "a\0b", "hm"));
    let calls = vec![call("c1", Effect::Read), call("c2", Effect::Write)];
    let written = turn.write(vec![step("a\0b", calls)]).await;
    let stepped = see().await.unwrap();
    assert_eq!((stepped.seq, stepped.text.as_str()), (written.last_seq, ""));
    let states: Vec<CallState> = stepped.calls.iter().map(|call| call.state).collect();
    assert_eq!(states, [CallState::Intended, CallState::Intended]);

    turn.write(vec![started("c1")]).await;
    let output = |text: &str| Record::CallOutput {
        call_id: CallId::new("c1").unwrap(),
        text: text.to_owned(),
    };
    let written = turn.write(vec![output("x"), output("y")]).await;
    let ran = see().await.unwrap();
    assert_eq!(ran.seq, written.last_seq);
    assert_eq!(ran.calls[0].state, CallState::Running);
    assert_eq!(ran.outputs.get(&CallId::new("c1").unwrap()).map(String::as_str), Some("xy"));

    turn.write(vec![finished("c1", CallState::Succeeded, "found")]).await;
    let prompt = super::prompts::clarification(&world, &turn);
    let written = turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    let asks = see().await.unwrap();
    assert_eq!(asks.seq, written.last_seq);
    assert_eq!((asks.prompts, asks.calls[0].result.clone()), (vec![(prompt, None)], None));
    assert!(asks.outputs.is_empty(), "the result is a row");

    // More than a picture holds is left to the events behind its seq.
    let long = "x".repeat(everturn_core::limits::IN_FLIGHT_BYTES_MAX);
    turn.write(vec![Record::CallFinished {
        call_id: CallId::new("c2").unwrap(),
        state: CallState::NotRun,
        result: "not".to_owned(),
    }])
    .await;
    let written = turn.write(vec![delta("y"), delta(&long)]).await;
    let cut = see().await.unwrap();
    assert_eq!((cut.text.as_str(), cut.truncated, cut.seq), ("y", true, written.last_seq - 1));
    turn.write(vec![completed(&format!("y{long}"))]).await;
    assert!(see().await.is_none());
}
