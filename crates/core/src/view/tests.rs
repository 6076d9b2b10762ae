//! What a view is of each transcript that an interruption can leave.

use super::*;
use crate::id::{Principal, RunId, SessionId};
use crate::message::{Effect, appended_position};
use crate::session::SessionKey;
use crate::time::Timestamp;

fn row(id: u64, run: &str, role: Role, kind: MessageKind, text: &str) -> Message {
    Message {
        id,
        position: appended_position(id),
        role,
        kind,
        content: if text.is_empty() { Content::default() } else { Content::text(text) },
        reasoning: None,
        tool_calls: Vec::new(),
        tool_call_id: None,
        generation: Some(1),
        run_id: Some(RunId::new(run).unwrap()),
        input_id: None,
        recovered: false,
        created_at: Timestamp(0),
    }
}

fn call(id: &str, run: &str, state: CallState, effect: Effect) -> ToolCall {
    ToolCall {
        id: CallId::new(id).unwrap(),
        session: SessionKey { principal: Principal::local(), id: SessionId::new("s").unwrap() },
        run_id: RunId::new(run).unwrap(),
        message_id: 0,
        index: 0,
        provider_id: id.to_owned(),
        name: "tool".to_owned(),
        arguments: "{}".to_owned(),
        effect,
        schema: String::new(),
        state,
        result: None,
        started_at: None,
        ended_at: None,
    }
}

/// Builds transcripts row by row.
#[derive(Clone, Default)]
struct Rows(Vec<Message>);

impl Rows {
    fn add(mut self, run: &str, role: Role, kind: MessageKind, text: &str) -> Self {
        let id = self.0.len() as u64 + 1;
        self.0.push(row(id, run, role, kind, text));
        self
    }

    fn asks(self, run: &str, text: &str) -> Self {
        self.add(run, Role::User, MessageKind::Message, text)
    }

    fn partial(self, run: &str, kind: MessageKind, text: &str) -> Self {
        let mut rows = self.add(run, Role::Assistant, kind, text);
        rows.0.last_mut().unwrap().recovered = true;
        rows
    }

    fn says(self, run: &str, kind: MessageKind, text: &str) -> Self {
        self.add(run, Role::Assistant, kind, text)
    }

    fn calls(self, run: &str, kind: MessageKind, call: ToolCall) -> Self {
        let mut rows = self.says(run, kind, "");
        rows.0.last_mut().unwrap().tool_calls.push(call);
        rows
    }

    fn result(self, run: &str, call: &str, text: &str) -> Self {
        let mut rows = self.add(run, Role::Tool, MessageKind::Message, text);
        rows.0.last_mut().unwrap().tool_call_id = Some(CallId::new(call).unwrap());
        rows
    }

    /// The marker of `run`, and the request to finish it.
    fn goes_on(self, run: &str, next: &str) -> Self {
        self.add(run, Role::System, MessageKind::Interruption, "marker").add(
            next,
            Role::System,
            MessageKind::Continuation,
            "go on",
        )
    }
}

/// The view in short: one line for each message.
fn shown(view: &[ViewMessage]) -> Vec<String> {
    view.iter()
        .map(|message| match message {
            ViewMessage::User(content) => format!("user: {}", content.plain().replace('\n', " | ")),
            ViewMessage::Assistant { text, calls } => format!("model: {text} ({})", calls.len()),
            ViewMessage::ToolResult { text, .. } => format!("tool: {text}"),
        })
        .collect()
}

fn not_in_place() -> String {
    format!("user: go on | [System note: {NOT_IN_PLACE}]")
}

#[test]
fn a_message_that_broke_off_is_the_end_of_the_view_where_it_can_be_continued() {
    let rows = Rows::default().asks("r1", "hello").partial("r1", MessageKind::Message, "one tw");
    let rows = rows.goes_on("r1", "r2").0;
    let (id, view) = in_place(&rows).unwrap();
    assert_eq!((id, shown(&view)), (2, vec!["user: hello".into(), "model: one tw (0)".into()]));
    // Where it cannot, the model is told so, and what it says is a message of its own.
    let told = shown(&build(&rows));
    assert_eq!(told, ["user: hello".to_owned(), "model: one tw (0)".into(), not_in_place()]);
}

/// What went on in the middle is one message with it, whatever follows: views only grow.
#[test]
fn what_went_on_in_the_middle_is_one_message() {
    let rows = Rows::default().asks("r1", "hello").partial("r1", MessageKind::Message, "one tw");
    let rows = rows.goes_on("r1", "r2");
    let (_, first) = in_place(&rows.0).unwrap();
    let done = rows.clone().says("r2", MessageKind::Resumed, "o three");
    assert_eq!(shown(&build(&done.0)), ["user: hello", "model: one two three (0)"]);
    let next = done.clone().asks("r3", "more");
    assert_eq!(shown(&build(&next.0)), ["user: hello", "model: one two three (0)", "user: more"]);
    assert_eq!(build(&next.0)[..1], first[..1]);

    // It called a tool instead of a further word.
    let called = rows.calls(
        "r2",
        MessageKind::Resumed,
        call("c", "r2", CallState::Succeeded, Effect::Write),
    );
    let called = called.result("r2", "c", "found");
    assert_eq!(shown(&build(&called.0)), ["user: hello", "model: one tw (1)", "tool: found"]);
}

#[test]
fn a_continuation_that_breaks_off_again_is_continued_in_the_same_message() {
    let rows = Rows::default().asks("r1", "hello").partial("r1", MessageKind::Message, "a");
    let rows =
        rows.goes_on("r1", "r2").partial("r2", MessageKind::Resumed, "b").goes_on("r2", "r3");
    let (id, view) = in_place(&rows.0).unwrap();
    assert_eq!((id, shown(&view)), (5, vec!["user: hello".into(), "model: ab (0)".into()]));
    let done = rows.clone().says("r3", MessageKind::Resumed, "c");
    assert_eq!(shown(&build(&done.0)), ["user: hello", "model: abc (0)"]);
    // The second one was not: the first stays joined.
    let told = rows.says("r3", MessageKind::Message, "c");
    let expected =
        ["user: hello".to_owned(), "model: ab (0)".into(), not_in_place(), "model: c (0)".into()];
    assert_eq!(shown(&build(&told.0)), expected);
    // One that never said anything leaves the message as it was.
    let silent = Rows::default().asks("r1", "hello").partial("r1", MessageKind::Message, "a");
    let silent = silent.goes_on("r1", "r2").goes_on("r2", "r3");
    assert_eq!(in_place(&silent.0).unwrap().0, 2);
}

/// Whatever the model cannot see by itself is told, so that nothing is continued in its place.
#[test]
fn what_has_to_be_told_is_told() {
    let begun = || Rows::default().asks("r1", "hello");
    let partial = |rows: Rows| rows.partial("r1", MessageKind::Message, "a");
    let unknown = |effect| {
        let call = call("c", "r1", CallState::Unknown, effect);
        partial(begun().calls("r1", MessageKind::Message, call).result("r1", "c", "unknown"))
            .goes_on("r1", "r2")
    };
    assert!(in_place(&unknown(Effect::Write).0).is_none(), "a call of unknown outcome");
    assert!(in_place(&unknown(Effect::Read).0).is_some());
    let late = partial(begun()).result("r1", "c", "came late").goes_on("r1", "r2");
    assert!(in_place(&late.0).is_none(), "a late result");
    let since = partial(begun()).goes_on("r1", "r2").asks("r3", "never mind");
    assert!(in_place(&since.0).is_none(), "something was said since");
    let note = partial(begun()).add("r1", Role::System, MessageKind::Interruption, "marker").add(
        "r2",
        Role::System,
        MessageKind::Note,
        "superseded",
    );
    assert!(in_place(&note.0).is_none());
    for text in ["", " \n"] {
        let rows = begun().partial("r1", MessageKind::Message, text).goes_on("r1", "r2");
        assert!(in_place(&rows.0).is_none(), "there is no text to go on with: {text:?}");
        assert!(!format!("{:?}", build(&rows.0)).contains(NOT_IN_PLACE));
    }
    let whole = begun().says("r1", MessageKind::Message, "a").goes_on("r1", "r2");
    assert!(in_place(&whole.0).is_none(), "nothing broke off");
    let mut calls = partial(begun()).goes_on("r1", "r2");
    calls.0[1].tool_calls.push(call("c", "r1", CallState::NotRun, Effect::Write));
    assert!(in_place(&calls.0).is_none(), "it ended in a call");
}
