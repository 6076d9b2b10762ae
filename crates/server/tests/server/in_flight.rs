//! The picture of a turn under way: what a reader gets who comes in the middle (P7).

use std::sync::Arc;

use async_trait::async_trait;
use everturn_agent::tool::{Tool, ToolInvocation, ToolOutcome, ToolSpec};
use everturn_core::{Effect, limits};
use everturn_engine::{Config, Scope as Work};
use everturn_server::ServerConfig;
use everturn_store::SystemClock;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::sse::{Events, stored};
use crate::world::{World, key, memory};

/// `touch`, but it asks nobody, says something and waits until it is let go.
struct Gated(ToolSpec, Arc<Semaphore>);

#[async_trait]
impl Tool for Gated {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        invocation.output.send("half ".to_owned()).await.unwrap();
        invocation.output.send("done".to_owned()).await.unwrap();
        self.1.acquire().await.unwrap().forget();
        ToolOutcome::Succeeded("touched".to_owned())
    }
}

fn gated(open: &Arc<Semaphore>) -> impl FnOnce(&mut Config, &mut ServerConfig) + use<> {
    let tool = Gated(
        ToolSpec {
            name: "touch".to_owned(),
            description: "Touches something, slowly.".to_owned(),
            parameters: json!({ "type": "object" }),
            effect: Effect::Read,
        },
        Arc::clone(open),
    );
    |config, _| config.tools.add(tool)
}

fn in_flight(session: &Value) -> &Value {
    &session["running"]["in_flight"]
}

/// The session once its picture is as the test wants it.
async fn when(world: &World, wanted: impl Fn(&Value) -> bool) -> Value {
    world.session_when("s", |seen| in_flight(seen).is_object() && wanted(in_flight(seen))).await
}

/// The events of the run behind a picture, to its end: every one of them once.
async fn rest(world: &World, session: &Value) -> Vec<crate::sse::Event> {
    let run = session["running"]["run_id"].as_str().unwrap();
    let seq = in_flight(session)["seq"].as_u64().unwrap();
    let events = Events::open(world, &format!("/v1/runs/{run}/events?after={seq}")).await;
    let events = stored(&events.rest().await);
    let seqs: Vec<u64> = events.iter().map(|event| event.data["seq"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (seq + 1..).take(seqs.len()).collect();
    assert_eq!(seqs, expected);
    assert!(events.last().unwrap().name.starts_with("run."));
    events
}

fn text_of(events: &[crate::sse::Event]) -> String {
    let deltas = events.iter().filter(|event| event.name == "text.delta");
    deltas.map(|event| event.data["text"].as_str().unwrap()).collect()
}

async fn before_the_first_word_there_is_the_request(world: World) {
    world.say("s", "silent then this").await;
    let session = when(&world, |_| true).await;
    let seen = in_flight(&session);
    assert_eq!((&seen["seq"], &seen["text"]), (&json!(1), &json!("")));
    assert_eq!((&seen["calls"], &seen["prompts"]), (&json!([]), &json!([])));
    let input = &session["running"]["input_id"];
    let request = json!([{ "id": input, "kind": "message", "text": "silent then this" }]);
    assert_eq!(seen["inputs"], request);
    for absent in ["reasoning", "truncated", "outputs", "resumes"] {
        assert_eq!(seen.get(absent), None, "{absent}");
    }
    // A list holds no pictures, nor does what is stored.
    let list = world.get("/v1/sessions").await.ok();
    assert_eq!(list["data"][0]["running"].get("in_flight"), None);
    world.puppet.release();
    assert_eq!(text_of(&rest(&world, &session).await), "then this");
    let feed = world.get("/v1/sessions/s").await.ok();
    assert_eq!(feed.get("running"), None, "what is over is no turn under way");
    let mut feed = Events::open(&world, "/v1/sessions/s/events?after=0").await;
    for event in stored(&feed.through("caught_up").await) {
        assert!(!event.raw.contains("in_flight"), "{event:?}");
    }
}

async fn in_the_middle_of_an_answer_there_is_its_text(world: World) {
    world.say("s", "hold this").await;
    let session = when(&world, |seen| seen["text"] != "").await;
    assert_eq!(in_flight(&session)["text"], "this");
    world.puppet.release();
    assert_eq!(text_of(&rest(&world, &session).await), " released");
}

async fn during_a_tool_there_are_its_call_and_its_output(open: Arc<Semaphore>, world: World) {
    world.say("s", "think done").await;
    let session = when(&world, |seen| seen["outputs"][0]["text"] == "half done").await;
    let seen = in_flight(&session);
    let call = &seen["calls"][0];
    assert_eq!((&call["name"], &call["state"]), (&json!("touch"), &json!("running")));
    assert_eq!((&seen["outputs"][0]["call_id"], &seen["text"]), (&call["id"], &json!("")));
    open.add_permits(1);

    // Between two steps: the call has its end, its result is a row, and nothing is said yet.
    let between = when(&world, |seen| seen["calls"][0]["state"] == "succeeded").await;
    let seen = in_flight(&between);
    assert_eq!((&seen["text"], seen.get("outputs")), (&json!(""), None));
    assert_eq!(seen["calls"][0].get("result"), None);
    let rows = world.get("/v1/sessions/s/messages").await.ok();
    assert_eq!(rows["data"].as_array().unwrap().last().unwrap()["text"], "touched");
    world.puppet.release();
    let all = rest(&world, &session).await;
    assert_eq!(all[0].name, "tool.finished");
    let later = rest(&world, &between).await;
    assert_eq!(text_of(&later), "done");
    assert_eq!(all[all.len() - later.len()..], later);
}

async fn with_an_open_prompt_there_is_the_question(world: World) {
    world.say("s", "tool").await;
    let session = when(&world, |seen| seen["prompts"][0].is_object()).await;
    let prompt = &in_flight(&session)["prompts"][0];
    assert_eq!((&prompt["kind"], &prompt["state"]), (&json!("approval"), &json!("open")));
    assert_eq!(prompt["call"]["id"], in_flight(&session)["calls"][0]["id"]);
    assert_eq!(in_flight(&session)["calls"][0]["state"], "intended");
    let path = format!("/v1/prompts/{}/answer", prompt["id"].as_str().unwrap());
    world.post(&path, json!({ "generation": 1, "choice": "once" })).await.ok();
    let events = rest(&world, &session).await;
    assert_eq!(events[0].name, "prompt.settled");
}

/// What is too much is cut at a seq, and read from there.
async fn a_picture_is_bounded_and_the_events_bring_the_rest(world: World) {
    world.say("s", "heap").await;
    let session = when(&world, |seen| seen["truncated"] == true).await;
    let seen = in_flight(&session);
    assert_eq!((&seen["text"], &seen["seq"]), (&json!("begin "), &json!(2)));
    world.puppet.release();
    let rest = text_of(&rest(&world, &session).await);
    assert_eq!(rest.len(), 600_003);
    let shown = seen["text"].as_str().unwrap().len();
    assert!(shown <= limits::IN_FLIGHT_BYTES_MAX, "{shown}");
}

/// Text and seq of a picture are of one moment, whenever it is taken.
async fn no_picture_is_torn(world: World) {
    let pieces = "t t t z ".repeat(60);
    world.say("s", &format!("play {pieces}")).await;
    let mut pictures = Vec::new();
    loop {
        let session = world.get("/v1/sessions/s").await.ok();
        match in_flight(&session) {
            Value::Object(_) => pictures.push(session),
            _ if session["generation"] == 1 && session.get("running").is_none() => break,
            _ => {}
        }
    }
    assert!(pictures.len() > 1, "the turn was over before anybody looked");
    let run = pictures[0]["running"]["run_id"].as_str().unwrap().to_owned();
    let events = Events::open(&world, &format!("/v1/runs/{run}/events?after=0")).await;
    let events = stored(&events.rest().await);
    let mut distinct = std::collections::BTreeSet::new();
    for session in &pictures {
        let seen = in_flight(session);
        let upto =
            events.iter().take_while(|event| event.data["seq"].as_u64() <= seen["seq"].as_u64());
        let upto: Vec<_> = upto.cloned().collect();
        assert_eq!(seen["text"], text_of(&upto), "{seen}");
        distinct.insert(seen["seq"].as_u64().unwrap());
    }
    assert!(distinct.len() > 1, "{distinct:?}");
}

on_both_stores! {
    before_the_first_word_there_is_the_request
    in_the_middle_of_an_answer_there_is_its_text
    with_an_open_prompt_there_is_the_question
    a_picture_is_bounded_and_the_events_bring_the_rest
    no_picture_is_torn
}

#[tokio::test]
async fn during_a_tool_in_memory() {
    let open = Arc::new(Semaphore::new(0));
    let world = World::with(gated(&open)).await;
    during_a_tool_there_are_its_call_and_its_output(open, world).await;
}

#[tokio::test]
async fn during_a_tool_on_sqlite() {
    let open = Arc::new(Semaphore::new(0));
    let world = World::sqlite_with(gated(&open)).await;
    during_a_tool_there_are_its_call_and_its_output(open, world).await;
}

/// A turn that is handed over is still one under way; one whose process is gone shows its picture
/// beside the interruption that nobody has recorded.
#[tokio::test]
async fn a_turn_that_nobody_works_on_keeps_its_picture() {
    let store = memory();
    let works = World::on(store.clone(), |_, _| {}).await;
    works.say("s", "tool").await;
    when(&works, |seen| seen["prompts"][0].is_object()).await;
    let other = Arc::new(store.another(Arc::new(SystemClock::new().unwrap())));
    let watches = World::on(other, |config, _| config.scope = Work::Only(key("nothing"))).await;
    works.engine.drain().await;
    let run = watches.get("/v1/sessions/s").await.ok();
    assert_eq!(in_flight(&run)["prompts"][0]["state"], "open", "{run}");

    let works = World::on(store, |_, _| {}).await;
    let before = works.held_turn("t").await;
    watches.store.set_gone(works.engine.node(), Some(true));
    let session =
        watches.session_when("t", |seen| seen["interrupted"]["in_flight"]["text"] == "on").await;
    assert_eq!((&session["state"], session.get("running")), (&json!("interrupted"), None));
    assert_eq!(session["interrupted"]["run_id"], before.as_str());
    let list = watches.get("/v1/sessions").await.ok();
    assert!(!list.to_string().contains("in_flight"));
}
