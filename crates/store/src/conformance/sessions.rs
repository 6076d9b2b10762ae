//! Sessions: created, changed, closed, deleted, listed; ids belong to their principal (P14).

use everturn_core::{
    AutoContinue, Content, InputStatus, Outcome, Part, Permission, Policy, Principal, PromptState,
    SessionKey, SessionState,
};

use super::turns::call;
use super::world::{World, admit, completed, delta, key, node, principal, step};
use crate::error::Refusal;
use crate::op::{
    Admit, CancelInput, CreateSession, DeleteSession, EndSession, PatchSession, Prune,
    SessionPatch, SetPresence, Signal,
};
use crate::read::{MessageWindow, SessionFilter};

fn create(key: &SessionKey) -> CreateSession {
    CreateSession {
        key: key.clone(),
        title: None,
        model: None,
        system: None,
        policy: Policy::default(),
        metadata: None,
        sessions_max: 1_000,
    }
}

fn patch(key: &SessionKey, patch: SessionPatch) -> PatchSession {
    PatchSession { key: key.clone(), expected_revision: None, patch }
}

pub(super) async fn a_session_is_read_back_whole(world: World) {
    let key = key("s");
    let mut policy = Policy {
        auto_continue: AutoContinue { max_attempts: 7, ..AutoContinue::default() },
        approval_timeout_s: 11,
        ..Policy::default()
    };
    policy.tools.insert("*".to_owned(), Permission::Deny);
    policy.tools.insert("re\0ad".to_owned(), Permission::Allow);
    let op = CreateSession {
        title: Some("a \0 title \u{1f9ff}".to_owned()),
        model: Some("script/x".to_owned()),
        system: Some("be \"kind\"".to_owned()),
        policy: policy.clone(),
        metadata: Some("{\"k\":\"\\u0000\"}".to_owned()),
        ..create(&key)
    };
    let session = *world.ok(op.clone()).await;
    assert_eq!(session.policy, policy);
    assert_eq!(world.session(&key).await, session);
    assert_eq!(world.refused(&key, op).await, Refusal::SessionExists);
    let feed = world.feed(&key).await;
    assert_eq!(feed.len(), 1);
    let body: serde_json::Value = serde_json::from_str(&feed[0].body).unwrap();
    assert_eq!(body["session"]["offset"], 1);
    assert_eq!(body["session"]["metadata"]["k"], "\0");
    assert_eq!(body["session"]["title"], "a \0 title \u{1f9ff}");
    // The turn is bound to the session's own model.
    assert_eq!(world.turn_of(&key, "r", "n1").await.run.model, "script/x");
    assert_eq!(world.session(&key).await.title.as_deref(), Some("a \0 title \u{1f9ff}"));
}

pub(super) async fn a_patch_merges_and_names_its_revision(world: World) {
    let key = key("s");
    let missing = patch(&key, SessionPatch::default());
    assert_eq!(world.refused(&key, missing).await, Refusal::SessionNotFound);
    world
        .ok(CreateSession { metadata: Some("{\"a\":1,\"b\":2}".to_owned()), ..create(&key) })
        .await;
    let metadata = serde_json::json!({ "a": null, "c": { "d": "\0" } });
    let change = SessionPatch {
        title: Some(Some("new".to_owned())),
        system: Some(None),
        metadata: metadata.as_object().cloned(),
        policy: Some(everturn_api::policy::PolicyPatch {
            approval_timeout_s: Some(9),
            ..Default::default()
        }),
        ..SessionPatch::default()
    };
    world.clock.pass_ms(7);
    let changed =
        *world.ok(PatchSession { expected_revision: Some(0), ..patch(&key, change.clone()) }).await;
    assert_eq!((changed.revision, changed.title.as_deref()), (1, Some("new")));
    assert_eq!(changed.policy.approval_timeout_s, 9);
    let value: serde_json::Value =
        serde_json::from_str(changed.metadata.as_deref().unwrap()).unwrap();
    assert_eq!(value, serde_json::json!({ "b": 2, "c": { "d": "\0" } }));
    assert!(changed.updated_at > changed.created_at);
    let stale = PatchSession { expected_revision: Some(0), ..patch(&key, change) };
    assert_eq!(world.refused(&key, stale).await, Refusal::RevisionConflict { current: 1 });
    // What adds up over several changes is bounded as well as each of them.
    let rules = |from: usize, to: usize| SessionPatch {
        policy: Some(everturn_api::policy::PolicyPatch {
            tools: Some(
                (from..to)
                    .map(|n| (format!("tool-{n}"), Some(everturn_core::Permission::Ask.into())))
                    .collect(),
            ),
            ..Default::default()
        }),
        ..SessionPatch::default()
    };
    let most = everturn_core::limits::POLICY_TOOLS_MAX;
    world.ok(patch(&key, rules(0, 200))).await;
    assert_eq!(world.ok(patch(&key, rules(100, most))).await.policy.tools.len(), most);
    assert!(matches!(
        world.refused(&key, patch(&key, rules(most, most + 1))).await,
        Refusal::BadAnswer(_)
    ));
    let huge = serde_json::json!({ "x": "y".repeat(everturn_core::limits::METADATA_BYTES_MAX) });
    let huge = SessionPatch { metadata: huge.as_object().cloned(), ..SessionPatch::default() };
    assert!(matches!(world.refused(&key, patch(&key, huge)).await, Refusal::BadAnswer(_)));
    // An untouched field stays, a cleared one is gone.
    let cleared = SessionPatch { title: Some(None), ..SessionPatch::default() };
    let cleared = *world.ok(patch(&key, cleared)).await;
    assert_eq!((cleared.title, cleared.policy.approval_timeout_s), (None, 9));
}

pub(super) async fn a_closed_session_is_opened_by_a_person(world: World) {
    let key = key("s");
    let end = |reason: &str| EndSession { key: key.clone(), reason: reason.to_owned() };
    assert_eq!(world.refused(&key, end("x")).await, Refusal::SessionNotFound);
    world.ok(create(&key)).await;
    world.clock.pass_ms(3);
    let ended = *world.ok(end("finished")).await;
    assert_eq!(ended.end_reason.as_deref(), Some("finished"));
    let before = world.dump(&key).await;
    world.clock.pass_ms(3);
    assert_eq!(*world.ok(end("another reason")).await, ended, "the first one stands");
    assert_eq!(before, world.dump(&key).await);
    world.admit(&key, "r-1", "one more thing").await;
    let opened = world.session(&key).await;
    assert_eq!((opened.ended_at, opened.end_reason.as_ref()), (None, None));
    assert_eq!(opened.revision, ended.revision + 1);
    assert_eq!(world.feed(&key).await.last().unwrap().head.name, "session.updated");
}

pub(super) async fn a_deletion_leaves_a_tombstone_and_nothing_else(world: World) {
    let key = key("s");
    let delete = DeleteSession { key: key.clone(), expected_generation: None };
    assert_eq!(world.refused(&key, delete.clone()).await, Refusal::SessionNotFound);
    let turn = world.turn_of(&key, "r-1", "n1").await;
    turn.write(vec![step("secret", vec![call("c1", everturn_core::Effect::Read)])]).await;
    let prompt = super::prompts::clarification(&world, &turn);
    turn.write(vec![everturn_core::Record::PromptOpened(prompt.clone())]).await;
    assert_eq!(world.refused(&key, delete.clone()).await, Refusal::SessionBusy);
    let failure = everturn_core::Failure {
        code: "x".to_owned(),
        message: "secret".to_owned(),
        permanent: true,
        hint: None,
    };
    let end = everturn_core::event::End::Failed { failure, text: String::new(), reasoning: None };
    turn.write(vec![everturn_core::Record::End(end)]).await;
    let waiting = world.admit(&key, "r-2", "secret").await;
    world.ok(SetPresence { key: key.clone(), node: node("n1"), present: true }).await;
    let stale = DeleteSession { expected_generation: Some(9), ..delete.clone() };
    assert_eq!(world.refused(&key, stale).await, Refusal::StaleGeneration { current: 1 });
    world.take_seen();
    world.ok(DeleteSession { expected_generation: Some(1), ..delete.clone() }).await;
    let signals: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.signals).collect();
    assert!(signals.contains(&Signal::Deleted(key.clone())));
    assert!(signals.contains(&Signal::InputEnded(waiting.input.id.clone())));
    let tombstone = world.store.tombstone(&key).await.unwrap().unwrap();
    assert_eq!((tombstone.generation, tombstone.deleted_at), (1, world.clock_now()));
    assert!(world.store.session(&key).await.unwrap().is_none());
    assert!(world.transcript(&key).await.is_empty());
    assert!(world.store.feed(&key, 0, 10).await.unwrap().is_empty());
    assert!(world.store.prompt(&prompt.id).await.unwrap().is_none());
    assert!(world.store.prompts(&key, PromptState::Withdrawn, None, 10).await.unwrap().is_empty());
    let c1 = everturn_core::CallId::new("c1").unwrap();
    assert!(world.store.call(&c1).await.unwrap().is_none());
    assert!(world.store.run_calls(&turn.run.id).await.unwrap().is_empty());
    assert!(world.store.work(None, 10).await.unwrap().is_empty());
    assert_eq!(world.store.counts().await.unwrap().sessions, 0);
    let listed = world.store.sessions(&key.principal, &SessionFilter::default(), 10).await.unwrap();
    assert!(listed.is_empty());
    // Receipts answer, without what was said.
    let input = world.input(&waiting.input.id).await;
    assert_eq!((input.outcome, input.content), (Some(Outcome::Cancelled), Content::default()));
    let run = world.run_row(&turn.run.id).await;
    assert_eq!(run.error, None);
    let dump = world.dump(&key).await;
    assert!(!dump.contains("secret"), "{dump}");
    // Again, for ever; and the id is not to be had.
    world.ok(delete).await;
    assert_eq!(world.refused(&key, create(&key)).await, Refusal::SessionDeleted);
    assert_eq!(world.refused(&key, world.claim_op(&key, "n1")).await, Refusal::SessionDeleted);
    let patch = patch(&key, SessionPatch::default());
    assert_eq!(world.refused(&key, patch).await, Refusal::SessionDeleted);
}

pub(super) async fn principals_never_meet(world: World) {
    let alice = key("same");
    let bob = SessionKey { principal: principal("bob"), id: alice.id.clone() };
    let turn = world.turn_of(&alice, "r-1", "n1").await;
    let theirs = *world.ok(admit(&bob, "r-1", "something else")).await;
    assert!(!theirs.replayed, "the same names, another identity");
    let before = world.dump_session(&alice).await;
    // Not even by knowing an id.
    let cancel = |principal: &Principal| CancelInput {
        principal: principal.clone(),
        input_id: theirs.input.id.clone(),
    };
    assert_eq!(world.refused(&bob, cancel(&alice.principal)).await, Refusal::InputNotFound);
    world.ok(cancel(&bob.principal)).await;
    world.ok(DeleteSession { key: bob.clone(), expected_generation: None }).await;
    assert_eq!(before, world.dump_session(&alice).await, "nothing of hers changed");
    turn.write(vec![delta("mine"), completed("mine")]).await;
    assert!(world.store.session(&bob).await.unwrap().is_none());
    assert!(world.store.tombstone(&alice).await.unwrap().is_none());
    let listed = world.store.sessions(&bob.principal, &SessionFilter::default(), 10).await.unwrap();
    assert!(listed.is_empty());
    assert_eq!(world.feed(&alice).await.len(), 9);
    let fenced = crate::Fence { session: bob, ..turn.lease.fence().clone() };
    let refusal = super::world::refusal(world.write(&fenced, vec![delta("x")]).await);
    assert_eq!(refusal, Refusal::Fenced);
}

pub(super) async fn the_limit_on_sessions_counts_living_ones(world: World) {
    let limit = |id: &str| CreateSession { sessions_max: 2, ..create(&key(id)) };
    world.ok(limit("a")).await;
    world.ok(limit("b")).await;
    let refusal = world.refused(&key("c"), limit("c")).await;
    assert_eq!(refusal, Refusal::TooManySessions { max: 2 });
    // Another principal has a limit of its own.
    let bobs = SessionKey { principal: principal("bob"), id: key("c").id };
    world.ok(CreateSession { sessions_max: 1, ..create(&bobs) }).await;
    // Inputs for what exists are not in question.
    world.ok(Admit { sessions_max: 2, ..admit(&key("a"), "r", "x") }).await;
    world.ok(DeleteSession { key: key("b"), expected_generation: None }).await;
    world.ok(limit("c")).await;
    assert_eq!(world.store.counts().await.unwrap().sessions, 3);
}

pub(super) async fn lists_are_walked_newest_first(world: World) {
    let alice = principal("alice");
    for n in 0..23 {
        // Pairs share a moment: the id decides.
        world.clock.pass_ms(n % 2);
        world.ok(create(&key(&format!("s-{n:02}")))).await;
    }
    let bobs = SessionKey { principal: principal("bob"), id: key("s-00").id };
    world.ok(create(&bobs)).await;
    world.clock.pass_ms(1);
    world.admit(&key("s-07"), "r", "touched").await;
    let walk = async |filter: SessionFilter, page: u32| {
        let mut filter = filter;
        let mut ids = Vec::new();
        loop {
            let rows = world.store.sessions(&alice, &filter, page).await.unwrap();
            let Some(last) = rows.last() else { return ids };
            filter.cursor = Some((last.session.updated_at.0, last.session.id.to_string()));
            ids.extend(rows.iter().map(|row| row.session.id.to_string()));
        }
    };
    let all = walk(SessionFilter::default(), 100).await;
    assert_eq!(all.len(), 23);
    assert_eq!(all[0], "s-07");
    assert_eq!(all[1], "s-22");
    for page in [1, 2, 5, 23] {
        assert_eq!(walk(SessionFilter::default(), page).await, all);
    }
    // Each row is a whole snapshot.
    let turn = world.turn(&key("s-07"), "n1").await;
    let running = SessionFilter { state: Some(SessionState::Running), ..Default::default() };
    let rows = world.store.sessions(&alice, &running, 10).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].running.as_ref().map(|run| &run.id), Some(&turn.run.id));
    let idle = SessionFilter { state: Some(SessionState::Idle), ..Default::default() };
    assert_eq!(walk(idle, 4).await.len(), 22);
}

pub(super) async fn text_is_found_whatever_its_case(world: World) {
    let alice = principal("alice");
    world.ok(CreateSession { title: Some("Grüne Äpfel".to_owned()), ..create(&key("a")) }).await;
    let turn = world.turn_of(&key("b"), "r", "n1").await;
    turn.write(vec![step("before\0AFTER 100%_x", Vec::new())]).await;
    world.ok(create(&key("c"))).await;
    // Inputs that wait are not said yet.
    world.ok(Admit { ..admit(&key("c"), "r", "") }).await;
    let bobs = SessionKey { principal: principal("bob"), id: key("a").id };
    world.ok(CreateSession { title: Some("grüne äpfel".to_owned()), ..create(&bobs) }).await;
    let found = async |text: &str| {
        let filter = SessionFilter { query: Some(text.to_owned()), ..Default::default() };
        let rows = world.store.sessions(&alice, &filter, 10).await.unwrap();
        rows.iter().map(|row| row.session.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found("GRÜNE ä").await, ["a"]);
    assert_eq!(found("after").await, ["b"], "behind a U+0000 as well");
    assert_eq!(found("e\0a").await, ["b"]);
    assert_eq!(found("0%_X").await, ["b"]);
    assert_eq!(found("0%%x").await, Vec::<String>::new(), "no pattern, just text");
    assert_eq!(found("DO SOMETHING").await, ["b"]);
    assert_eq!(found("").await.len(), 3);
    let both = SessionFilter {
        query: Some("after".to_owned()),
        state: Some(SessionState::Idle),
        ..Default::default()
    };
    assert!(world.store.sessions(&alice, &both, 10).await.unwrap().is_empty());
}

pub(super) async fn a_transcript_is_read_in_windows(world: World) {
    let key = key("s");
    let turn = world.turn_of(&key, "r-1", "n1").await;
    let steps = (2..=20).map(|n| step(&format!("m{n}"), Vec::new())).collect();
    turn.write(steps).await;
    let all = world.transcript(&key).await;
    let ids: Vec<u64> = all.iter().map(|row| row.id).collect();
    assert_eq!(ids, (1..=20).collect::<Vec<u64>>());
    for pair in all.windows(2) {
        assert!(pair[0].position < pair[1].position, "positions sort");
    }
    let window = async |window: MessageWindow, limit: u32| {
        let (rows, more) = world.store.messages(&key, window, limit).await.unwrap();
        (rows.iter().map(|row| row.id).collect::<Vec<_>>(), more)
    };
    assert_eq!(window(MessageWindow::Last, 3).await, (vec![18, 19, 20], true));
    assert_eq!(window(MessageWindow::Last, 20).await, ((1..=20).collect(), false));
    assert_eq!(window(MessageWindow::Last, 0).await, (vec![], true));
    assert_eq!(window(MessageWindow::Before(18), 3).await, (vec![15, 16, 17], true));
    assert_eq!(window(MessageWindow::Before(3), 5).await, (vec![1, 2], false));
    assert_eq!(window(MessageWindow::Before(1), 5).await, (vec![], false));
    assert_eq!(window(MessageWindow::Before(999), 2).await, (vec![19, 20], true));
    assert_eq!(window(MessageWindow::Before(u64::MAX), 1).await, (vec![20], true));
    assert_eq!(window(MessageWindow::After(0), 2).await, (vec![1, 2], true));
    assert_eq!(window(MessageWindow::After(18), 5).await, (vec![19, 20], false));
    assert_eq!(window(MessageWindow::After(20), 5).await, (vec![], false));
    assert_eq!(window(MessageWindow::After(u64::MAX), 5).await, (vec![], false));
}

pub(super) async fn any_text_survives_everywhere(world: World) {
    // Nulls, controls, what JSON escapes, bidirectional marks, a byte-order mark, the highest code
    // point, a combining mark alone, non-characters.
    let odd = "\0\u{1}\t\r\n\"\\/\u{7f}\u{80}\u{2028}\u{202e}\u{feff}\u{301}\u{fffe}\u{ffff}\u{10ffff}\u{1f468}\u{200d}\u{1f469}";
    let key = key("s");
    world
        .ok(CreateSession {
            system: Some(odd.to_owned()),
            title: Some(odd.to_owned()),
            ..create(&key)
        })
        .await;
    let content = Content(vec![Part::Text(odd.to_owned()), Part::Text(odd.to_owned())]);
    let op = Admit { content: content.clone(), ..admit(&key, "r-1", "") };
    let input = world.ok(op).await.input.id;
    assert_eq!(world.input(&input).await.content, content);
    let turn = world.turn(&key, "n1").await;
    let mut asked = call("c1", everturn_core::Effect::Write);
    for text in [&mut asked.name, &mut asked.arguments, &mut asked.provider_id, &mut asked.schema] {
        odd.clone_into(text);
    }
    turn.write(vec![delta(odd), everturn_core::Record::ReasoningDelta(odd.to_owned())]).await;
    turn.write(vec![everturn_core::Record::Step {
        text: odd.to_owned(),
        reasoning: Some(odd.to_owned()),
        calls: vec![asked],
        usage: None,
    }])
    .await;
    let call_id = everturn_core::CallId::new("c1").unwrap();
    turn.write(vec![
        super::turns::started("c1"),
        everturn_core::Record::CallOutput { call_id: call_id.clone(), text: odd.to_owned() },
        super::turns::finished("c1", everturn_core::CallState::Failed, odd),
    ])
    .await;
    let failure = everturn_core::Failure {
        code: "x".to_owned(),
        message: odd.to_owned(),
        permanent: true,
        hint: Some(odd.to_owned()),
    };
    let end = everturn_core::event::End::Failed {
        failure: failure.clone(),
        text: odd.to_owned(),
        reasoning: None,
    };
    turn.write(vec![everturn_core::Record::End(end)]).await;
    world.ok(EndSession { key: key.clone(), reason: odd.to_owned() }).await;
    let session = world.session(&key).await;
    for text in [&session.system, &session.title, &session.end_reason] {
        assert_eq!(text.as_deref(), Some(odd));
    }
    let rows = world.transcript(&key).await;
    assert_eq!(rows[0].content, content);
    assert_eq!(rows[1].content.plain(), odd);
    assert_eq!(rows[1].reasoning.as_deref(), Some(odd));
    let read = world.store.call(&call_id).await.unwrap().unwrap();
    for text in [&read.name, &read.arguments, &read.provider_id, &read.schema] {
        assert_eq!(text, odd);
    }
    assert_eq!(read.result.as_deref(), Some(odd));
    assert_eq!(rows[2].content.plain(), odd);
    assert_eq!(world.run_row(&turn.run.id).await.error, Some(failure));
    // The feed says the same, as JSON, in the bytes that were published.
    let feed = world.feed(&key).await;
    let delta = feed.iter().find(|row| row.head.name == "text.delta").unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&everturn_api::event::render(&delta.head, &delta.body)).unwrap();
    assert_eq!(value["text"], odd);
    let published: Vec<_> = world.take_seen().into_iter().flat_map(|seen| seen.frames).collect();
    for (frame, row) in published.iter().zip(&feed) {
        let read = everturn_api::event::render(&row.head, &row.body);
        assert_eq!(frame.bytes, read.as_bytes());
    }
    let filter =
        SessionFilter { query: Some("\u{10ffff}\u{1f468}".to_owned()), ..Default::default() };
    assert_eq!(world.store.sessions(&key.principal, &filter, 10).await.unwrap().len(), 1);
}

pub(super) async fn what_needs_a_node_is_listed_page_by_page(world: World) {
    for id in ["a", "b", "c", "d"] {
        world.clock.pass_ms(5);
        world.admit(&key(id), "r", "x").await;
    }
    world.clock.pass_ms(5);
    let turn = world.turn(&key("a"), "n1").await;
    let done = world.turn(&key("b"), "n1").await;
    done.complete("ok").await;
    let work = world.store.work(None, 10).await.unwrap();
    let ids: Vec<&str> = work.iter().map(|work| work.key.id.as_str()).collect();
    assert_eq!(ids, ["c", "d", "a"]);
    assert_eq!(work[0].queue_length, 1);
    assert!(work[0].running.is_none() && work[0].lease.is_none());
    assert_eq!(work[2].running.as_ref().map(|run| &run.id), Some(&turn.run.id));
    assert_eq!(work[2].lease.as_ref().map(|lease| &lease.holder), Some(&node("n1")));
    assert_eq!(work[2].epoch, 1);
    let page = world.store.work(None, 2).await.unwrap();
    assert_eq!(page, work[..2]);
    let rest = world.store.work(page.last(), 2).await.unwrap();
    assert_eq!(rest, work[2..]);
    assert_eq!(world.store.work(rest.last(), 2).await.unwrap(), []);
    // Several of one moment are each seen once, whatever the page.
    for id in ["x", "y", "z"] {
        world.admit(&key(id), "r", "x").await;
    }
    let mut seen = rest;
    loop {
        let page = world.store.work(seen.last(), 1).await.unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page);
    }
    let mut ids: Vec<&str> = seen[1..].iter().map(|work| work.key.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["x", "y", "z"]);
    let counts = world.store.counts().await.unwrap();
    assert_eq!((counts.queued, counts.unfinished), (5, 1));
}

pub(super) async fn receipts_are_forgotten_in_the_end(world: World) {
    let (old, young, alive) = (key("old"), key("young"), key("alive"));
    for key in [&old, &young, &alive] {
        let turn = world.turn_of(key, "r-1", "n1").await;
        turn.complete("x").await;
    }
    let receipts = world.store.inputs(&old, None, None, 10).await.unwrap();
    let runs = world.store.runs(&old, None, 10).await.unwrap();
    assert_eq!((receipts.len(), runs.len()), (1, 1));
    world.ok(DeleteSession { key: old.clone(), expected_generation: None }).await;
    world.clock.pass_ms(1_000);
    let before = world.clock_now();
    world.ok(DeleteSession { key: young.clone(), expected_generation: None }).await;
    assert_eq!(world.ok(Prune { before }).await, 1);
    assert!(world.store.tombstone(&old).await.unwrap().is_none());
    assert!(world.store.input(&receipts[0].id).await.unwrap().is_none());
    assert!(world.store.run(&runs[0].id).await.unwrap().is_none());
    assert!(world.store.tombstone(&young).await.unwrap().is_some());
    assert_eq!(world.store.inputs(&young, None, None, 10).await.unwrap().len(), 1);
    assert_eq!(world.transcript(&alive).await.len(), 2);
    assert_eq!(world.ok(Prune { before }).await, 0);
    // The id is a fresh one now, and nothing of the old shines through.
    assert!(!world.admit(&old, "r-1", "do something").await.replayed);
    assert_eq!(world.feed(&old).await.len(), 1);
    assert!(world.transcript(&old).await.is_empty());
    let turn = world.turn(&old, "n1").await;
    assert_eq!(turn.run.generation, 1);
    turn.complete("fresh").await;
    assert_eq!(world.transcript(&old).await.len(), 2);
}

pub(super) async fn an_input_is_withdrawn_by_its_sender(world: World) {
    let key = key("s");
    let first = world.admit(&key, "r-1", "x").await;
    let second = world.admit(&key, "r-2", "x").await;
    let cancel = |id: &everturn_core::InputId| CancelInput {
        principal: key.principal.clone(),
        input_id: id.clone(),
    };
    let unknown = everturn_core::InputId::new("inp_none").unwrap();
    assert_eq!(world.refused(&key, cancel(&unknown)).await, Refusal::InputNotFound);
    let withdrawn = world.ok(cancel(&first.input.id)).await;
    assert_eq!(
        (withdrawn.status, withdrawn.outcome),
        (InputStatus::Terminal, Some(Outcome::Cancelled))
    );
    assert_eq!(world.refused(&key, cancel(&first.input.id)).await, Refusal::InputNotQueued);
    let (_, position) = world.store.input(&second.input.id).await.unwrap().unwrap();
    assert_eq!(position, Some(1));
    let turn = world.turn(&key, "n1").await;
    assert_eq!(turn.inputs[0].id, second.input.id);
    assert_eq!(world.refused(&key, cancel(&second.input.id)).await, Refusal::InputNotQueued);
    assert_eq!(world.transcript(&key).await.len(), 1, "a withdrawn input was never said");
}

pub(super) async fn viewers_are_known_by_node(world: World) {
    let key = key("s");
    let present = |on: &str, present| SetPresence { key: key.clone(), node: node(on), present };
    // Of a session that does not exist there is nothing to view, and nothing to remember.
    world.ok(present("n1", true)).await;
    assert!(world.store.session(&key).await.unwrap().is_none());
    world.ok(create(&key)).await;
    world.register("n1", "serve").await;
    for on in ["n2", "n1", "n1"] {
        world.ok(present(on, true)).await;
    }
    let view = world.store.session(&key).await.unwrap().unwrap();
    assert_eq!(view.present, [node("n1"), node("n2")]);
    world.ok(present("n2", false)).await;
    world.ok(present("n3", false)).await;
    let view = world.store.session(&key).await.unwrap().unwrap();
    assert_eq!(view.present, [node("n1")]);
    // Snapshots count them.
    world.ok(patch(&key, SessionPatch::default())).await;
    let last = world.feed(&key).await.pop().unwrap();
    let body: serde_json::Value = serde_json::from_str(&last.body).unwrap();
    assert_eq!(body["session"]["viewers"], 1);
    // A node that left has no viewers.
    world.ok(crate::op::EndNode { node: node("n1") }).await;
    assert!(world.store.session(&key).await.unwrap().unwrap().present.is_empty());
}
