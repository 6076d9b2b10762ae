//! Prompts: the first settlement wins, a late answer is told so, silence is neither consent nor
//! denial.

use everturn_core::event::Record;
use everturn_core::{
    CallId, CallState, Choice, Effect, Permission, Principal, Prompt, PromptId, PromptKind,
    PromptState, RunState, SessionKey,
};

use super::turns::{call, finished, started};
use super::world::{Turn, World, key, principal, step};
use crate::error::Refusal;
use crate::op::{AnswerPrompt, PatchSession, RevokeGrant, SessionPatch, Signal, Stop};

/// A question with a free answer.
pub(super) fn clarification(world: &World, turn: &Turn) -> Prompt {
    use crate::Clock as _;
    Prompt {
        id: PromptId::from_uuid(world.clock.uuid()),
        principal: turn.session.principal.clone(),
        session_id: turn.session.id.clone(),
        run_id: turn.run.id.clone(),
        generation: turn.run.generation,
        kind: PromptKind::Clarification,
        state: PromptState::Open,
        question: "which \0 one?".to_owned(),
        call_id: None,
        choice: None,
        text: None,
        answered_by: None,
        opened_at: world.clock.now(),
        expires_at: world.clock.now().plus_ms(300_000),
        settled_at: None,
    }
}

fn approval(world: &World, turn: &Turn, of: &str) -> Prompt {
    Prompt {
        kind: PromptKind::Approval,
        call_id: Some(CallId::new(of).unwrap()),
        ..clarification(world, turn)
    }
}

fn answer(prompt: &Prompt, choice: Option<Choice>, text: Option<&str>) -> AnswerPrompt {
    AnswerPrompt {
        principal: prompt.principal.clone(),
        prompt_id: prompt.id.clone(),
        generation: prompt.generation,
        choice,
        text: text.map(str::to_owned),
    }
}

pub(super) async fn an_approval_waits_for_its_answer(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![step("", vec![call("c1", Effect::Write)])]).await;
    let prompt = approval(&world, &turn, "c1");
    turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::Waiting);
    let (read, about) = world.store.prompt(&prompt.id).await.unwrap().unwrap();
    assert_eq!(read, prompt);
    assert_eq!(about.map(|call| call.id), prompt.call_id);
    let open = world.store.prompts(&key, PromptState::Open, None, 10).await.unwrap();
    assert_eq!(open.len(), 1);
    world.take_seen();
    world.clock.pass_ms(1_000);
    let settled = world.ok(answer(&prompt, Some(Choice::Once), Some("go"))).await;
    assert_eq!((settled.state, settled.choice), (PromptState::Settled, Some(Choice::Once)));
    assert_eq!(settled.text.as_deref(), Some("go"));
    assert_eq!(settled.answered_by.as_ref(), Some(&key.principal));
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::Running);
    let seen = world.take_seen();
    assert!(seen[0].signals.contains(&Signal::Prompt(key.clone(), prompt.id.clone())));
    let late = world.refused(&key, answer(&prompt, Some(Choice::Deny), None)).await;
    assert_eq!(late, Refusal::AlreadyResolved);
    // The owner's timeout came too late as well: the answer stays.
    turn.write(vec![Record::PromptExpired(prompt.id.clone())]).await;
    let (read, _) = world.store.prompt(&prompt.id).await.unwrap().unwrap();
    assert_eq!(read.state, PromptState::Settled);
    turn.write(vec![started("c1"), finished("c1", CallState::Succeeded, "done")]).await;
    turn.complete("ok").await;
    let names = world.names(&turn.run).await;
    assert_eq!(names.iter().filter(|name| *name == "prompt.settled").count(), 1);
}

/// A write whose answer was lost is known again by its number, whatever others wrote to the run
/// meanwhile; and a write is never taken for committed because somebody else wrote.
pub(super) async fn a_numbered_write_is_known_again(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let numbered = |number, records| crate::op::Write {
        fence: turn.lease.fence().clone(),
        records,
        number: Some(number),
    };
    let calls = vec![call("c-1", Effect::Write)];
    world.ok(numbered(1, vec![step("", calls)])).await;
    let prompt = approval(&world, &turn, "c-1");
    world.ok(numbered(2, vec![Record::PromptOpened(prompt.clone())])).await;
    // Somebody else's record moves the run on.
    world.ok(answer(&prompt, Some(Choice::Once), None)).await;
    let before = world.dump_session(&key).await;
    world.ok(numbered(2, vec![Record::PromptOpened(prompt.clone())])).await;
    assert_eq!(world.dump_session(&key).await, before, "a repetition changed something");
    let call_id = CallId::new("c-1").unwrap();
    world.ok(numbered(3, vec![started("c-1")])).await;
    let running = world.store.call(&call_id).await.unwrap().unwrap();
    assert_eq!(running.state, CallState::Running, "the start was taken for written");
    world.ok(numbered(3, vec![started("c-1")])).await;
    world.ok(numbered(4, vec![finished("c-1", CallState::Succeeded, "done")])).await;
    world.ok(numbered(5, vec![super::world::completed("bye")])).await;
    // Its answer lost, the end is known again too; nothing new is taken.
    world.ok(numbered(5, vec![super::world::completed("bye")])).await;
    let late = world.refused(&key, numbered(6, vec![super::world::delta("late")])).await;
    assert_eq!(late, Refusal::Fenced);
}

pub(super) async fn an_answer_must_fit_its_prompt(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![step("", vec![call("c1", Effect::Write)])]).await;
    let approval = approval(&world, &turn, "c1");
    let question = clarification(&world, &turn);
    let opened = [approval.clone(), question.clone()].map(Record::PromptOpened);
    turn.write(opened.into()).await;
    for bad in [
        answer(&approval, None, Some("yes")),
        answer(&question, Some(Choice::Once), Some("this one")),
        answer(&question, None, None),
    ] {
        assert!(matches!(world.refused(&key, bad).await, Refusal::BadAnswer(_)));
    }
    let stale = AnswerPrompt { generation: 9, ..answer(&question, None, Some("x")) };
    assert_eq!(world.refused(&key, stale).await, Refusal::StaleGeneration { current: 1 });
    // Of another principal it does not even exist.
    let stranger =
        AnswerPrompt { principal: principal("mallory"), ..answer(&question, None, Some("x")) };
    assert_eq!(world.refused(&key, stranger).await, Refusal::PromptNotFound);
    let unknown = AnswerPrompt {
        prompt_id: PromptId::new("prm_none").unwrap(),
        ..answer(&question, None, Some("x"))
    };
    assert_eq!(world.refused(&key, unknown).await, Refusal::PromptNotFound);
    // One answer does not consume the other prompt.
    world.ok(answer(&question, None, Some("the \0 second"))).await;
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::Waiting);
    let (read, _) = world.store.prompt(&question.id).await.unwrap().unwrap();
    assert_eq!(read.text.as_deref(), Some("the \0 second"));
    let open = world.store.prompts(&key, PromptState::Open, None, 10).await.unwrap();
    assert_eq!(open[0].0.id, approval.id);
    world.ok(answer(&approval, Some(Choice::Deny), None)).await;
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::Running);
}

pub(super) async fn a_prompt_runs_out(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let prompt = clarification(&world, &turn);
    turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    world.clock.pass_ms(300_000);
    let late = world.refused(&key, answer(&prompt, None, Some("x"))).await;
    assert_eq!(late, Refusal::Expired);
    turn.write(vec![Record::PromptExpired(prompt.id.clone())]).await;
    let (read, _) = world.store.prompt(&prompt.id).await.unwrap().unwrap();
    assert_eq!((read.state, read.choice), (PromptState::Expired, None));
    assert_eq!(world.run_row(&turn.run.id).await.state, RunState::Running);
    let late = world.refused(&key, answer(&prompt, None, Some("x"))).await;
    assert_eq!(late, Refusal::Expired);
}

pub(super) async fn an_end_withdraws_what_is_open(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let prompt = clarification(&world, &turn);
    turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    turn.complete("never mind").await;
    let withdrawn = world.store.prompts(&key, PromptState::Withdrawn, None, 10).await.unwrap();
    assert_eq!(withdrawn[0].0.id, prompt.id);
    let late = world.refused(&key, answer(&prompt, None, Some("x"))).await;
    assert_eq!(late, Refusal::Expired);
    // After a stop nothing is answered any more either.
    let turn = world.turn_of(&key, "r-2", "n1").await;
    let prompt = clarification(&world, &turn);
    turn.write(vec![Record::PromptOpened(prompt.clone())]).await;
    world
        .ok(Stop {
            key: key.clone(),
            generation: None,
            run_id: None,
            by: key.principal.clone(),
            keep_queue: false,
        })
        .await;
    let late = world.refused(&key, answer(&prompt, None, Some("x"))).await;
    assert_eq!(late, Refusal::Expired);
}

pub(super) async fn a_prompt_belongs_to_its_turn(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let good = clarification(&world, &turn);
    for bad in [
        Prompt { generation: 2, ..good.clone() },
        Prompt { run_id: everturn_core::RunId::new("run_x").unwrap(), ..good.clone() },
        Prompt { principal: principal("mallory"), ..good.clone() },
        Prompt { state: PromptState::Settled, ..good.clone() },
    ] {
        let refusal = turn.refused(vec![Record::PromptOpened(bad)]).await;
        assert!(matches!(refusal, Refusal::BadRecord(_)));
    }
    // A run that was handed over while it waited still waits.
    turn.write(vec![Record::PromptOpened(good.clone()), Record::HandedOver]).await;
    let next = world.turn(&key, "n2").await;
    assert_eq!(next.run.state, RunState::Waiting);
    world.ok(answer(&good, None, Some("x"))).await;
    assert_eq!(world.run_row(&next.run.id).await.state, RunState::Running);
}

pub(super) async fn a_choice_may_last(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let calls = vec![call("c1", Effect::Write), call("c2", Effect::Write)];
    turn.write(vec![step("", calls)]).await;
    let first = approval(&world, &turn, "c1");
    let second = approval(&world, &turn, "c2");
    turn.write([first.clone(), second.clone()].map(Record::PromptOpened).into()).await;
    let before = world.session(&key).await;
    world.ok(answer(&first, Some(Choice::Session), None)).await;
    let after = world.session(&key).await;
    assert_eq!(after.policy.tools.get("shell"), Some(&Permission::Allow));
    assert_eq!(after.revision, before.revision + 1);
    let grants = async |principal| world.store.grants(&principal).await.unwrap();
    assert!(grants(key.principal.clone()).await.is_empty());
    // Whoever says always means this session as well, even if it asked by a rule of its own.
    set_rule(&world, &key, "shell", Permission::Ask).await;
    let before = world.session(&key).await;
    world.ok(answer(&second, Some(Choice::Always), None)).await;
    let after = world.session(&key).await;
    assert_eq!(after.policy.tools.get("shell"), None);
    assert_eq!(after.revision, before.revision + 1);
    assert_eq!(grants(key.principal.clone()).await, ["shell"]);
    assert!(grants(principal("bob")).await.is_empty());
    // It can be taken back, by its owner, once.
    let revoke = |principal: &Principal, tool: &str| RevokeGrant {
        principal: principal.clone(),
        tool: tool.to_owned(),
    };
    assert!(!world.ok(revoke(&principal("bob"), "shell")).await);
    assert!(!world.ok(revoke(&key.principal, "other")).await);
    assert!(world.ok(revoke(&key.principal, "shell")).await);
    assert!(!world.ok(revoke(&key.principal, "shell")).await);
    assert!(grants(key.principal.clone()).await.is_empty());
}

/// Gives a session a rule for a tool.
async fn set_rule(world: &World, key: &SessionKey, tool: &str, rule: Permission) {
    let tools = [(tool.to_owned(), Some(rule.into()))].into();
    let policy = everturn_api::policy::PolicyPatch { tools: Some(tools), ..Default::default() };
    let patch = SessionPatch { policy: Some(policy), ..SessionPatch::default() };
    world.ok(PatchSession { key: key.clone(), expected_revision: None, patch }).await;
}
