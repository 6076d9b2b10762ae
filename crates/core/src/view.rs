//! The model's view of a session: a pure function of its transcript.
//!
//! It always yields a legal conversation — it starts with the user, user and assistant alternate,
//! every tool call is answered directly after the message that made it, no answer is without its
//! call — and it is byte-stable: a transcript that only grew yields a view that only grew (its last
//! message may get longer while it is the user's), so that providers' prompt caches hit.

use std::collections::HashMap;

use crate::content::{Content, Part};
use crate::id::{CallId, RunId};
use crate::message::{CallState, Message, MessageKind, Role, ToolCall};

/// One message as a provider is told it.
#[derive(Debug, Clone, PartialEq)]
pub enum ViewMessage {
    /// What people (and Everturn, in their place) say.
    User(Content),
    /// What the model said.
    Assistant {
        /// Its text; may be empty when there are calls.
        text: String,
        /// The calls that it made.
        calls: Vec<ViewCall>,
    },
    /// What one call returned.
    ToolResult {
        /// The provider's id of the call.
        call_id: String,
        /// The tool's name.
        name: String,
        /// The text.
        text: String,
    },
}

/// One call as a provider is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewCall {
    /// The provider's id; made unique within the view.
    pub id: String,
    /// Tool name.
    pub name: String,
    /// JSON text as the model wrote it; may be malformed.
    pub arguments: String,
}

/// What the model is told of a call that has no recorded result.
#[must_use]
pub fn unfinished_text(state: CallState) -> &'static str {
    match state {
        CallState::Unknown => {
            "The outcome of this call is unknown: it had begun when the process that ran it went away. It was not run again. Check whether it took effect before repeating it."
        }
        CallState::Denied => "This call was denied and did not run.",
        CallState::NotRun => "This call did not run.",
        CallState::Intended | CallState::Running => "This call has no result yet.",
        CallState::Succeeded | CallState::Failed => "This call returned nothing.",
    }
}

/// What the model is told beside a continuation whose text it cannot go on writing where it stands.
pub const NOT_IN_PLACE: &str = "Your message above broke off where it ends and cannot be continued in place. What you write now becomes a message of its own behind it: begin where that one ends, and do not repeat it.";

/// Builds the view of a transcript that is sorted by position.
#[must_use]
pub fn build(transcript: &[Message]) -> Vec<ViewMessage> {
    view(transcript, true)
}

/// The view of a transcript that ends in a continuation, made so that it ends in the model's message
/// that broke off: a provider that can goes on writing it. With the id of that message's last row.
///
/// `None` where there is no such message, or where the model has to be told more than it can see by
/// itself: of a call whose outcome nobody knows, of a result that came late, of anything that was
/// said since.
#[must_use]
pub fn in_place(transcript: &[Message]) -> Option<(u64, Vec<ViewMessage>)> {
    transcript.last().filter(|row| row.is_continuation())?;
    let at = transcript.iter().rposition(|row| !row.is_of_interruption())?;
    let partial = transcript.get(at).filter(|row| row.is_partial())?;
    let mut runs = transcript[at..].iter().filter_map(|row| row.run_id.as_ref());
    // The continuation's own run has done nothing yet; the ones before it may have.
    let unclear = |run: &RunId| {
        transcript.iter().flat_map(|row| &row.tool_calls).any(|call| {
            call.run_id == *run && call.state == CallState::Unknown && !call.effect.repeatable()
        })
    };
    if runs.any(unclear) {
        return None;
    }
    let view = view(transcript, false);
    let ends_so =
        matches!(view.last(), Some(ViewMessage::Assistant { calls, .. }) if calls.is_empty());
    ends_so.then_some((partial.id, view))
}

impl Message {
    fn is_continuation(&self) -> bool {
        self.role == Role::System && self.kind == MessageKind::Continuation
    }

    /// A row that stands between a message that broke off and what goes on with it.
    fn is_of_interruption(&self) -> bool {
        self.is_continuation() || self.kind == MessageKind::Interruption
    }

    /// Text that an interruption cut off.
    fn is_partial(&self) -> bool {
        self.role == Role::Assistant
            && self.recovered
            && self.tool_calls.is_empty()
            && !self.content.is_blank()
    }
}

/// Whether the continuation at `at` is told to the model: not if the model went on in the middle of
/// the message that broke off. `open` says it of one behind which nothing has been said yet.
fn is_told(transcript: &[Message], at: usize, open: bool) -> bool {
    let mut later = transcript[at..].iter().filter(|row| row.role != Role::Tool);
    match later.find(|row| !row.is_of_interruption()) {
        Some(row) => row.kind != MessageKind::Resumed,
        None => open,
    }
}

/// Whether what a continuation goes on from is text that broke off.
fn breaks_off(transcript: &[Message], at: usize) -> bool {
    transcript[..at]
        .iter()
        .rev()
        .find(|row| !row.is_of_interruption())
        .is_some_and(Message::is_partial)
}

/// The view. `tells_last` says whether a continuation at its end is told.
fn view(transcript: &[Message], tells_last: bool) -> Vec<ViewMessage> {
    let mut results: HashMap<&CallId, String> = HashMap::new();
    for message in transcript {
        if let (Role::Tool, Some(call)) = (message.role, &message.tool_call_id) {
            results.insert(call, message.content.plain());
        }
    }
    let mut view: Vec<ViewMessage> = Vec::with_capacity(transcript.len());
    let mut used_ids: HashMap<String, u32> = HashMap::new();
    for (at, message) in transcript.iter().enumerate() {
        match (message.role, message.kind) {
            // Answers are placed beside their calls, wherever they stand in the transcript.
            (Role::Tool, _) => {}
            (_, MessageKind::Interruption) => {
                // The continuation that follows says it itself.
                let continued = transcript[at + 1..]
                    .iter()
                    .find(|later| later.role != Role::Tool)
                    .is_some_and(|later| later.kind == MessageKind::Continuation);
                if !continued {
                    say(&mut view, note(&message.content.plain()));
                }
            }
            (Role::System, MessageKind::Continuation) => {
                if is_told(transcript, at, tells_last) {
                    say(&mut view, message.content.clone());
                    if breaks_off(transcript, at) {
                        say(&mut view, note(NOT_IN_PLACE));
                    }
                }
            }
            (Role::User, _) => say(&mut view, message.content.clone()),
            (Role::System, _) => say(&mut view, note(&message.content.plain())),
            (Role::Assistant, MessageKind::Note) => say(&mut view, note(&message.content.plain())),
            (Role::Assistant, _) => answer(&mut view, &mut used_ids, message, &results),
        }
    }
    view
}

fn note(text: &str) -> Content {
    Content::text(format!("[System note: {text}]"))
}

/// Adds what the user's side says, to the user message that is last or as a new one.
fn say(view: &mut Vec<ViewMessage>, content: Content) {
    if let Some(ViewMessage::User(last)) = view.last_mut() {
        last.0.extend(content.0);
    } else {
        view.push(ViewMessage::User(content));
    }
}

/// Adds what the model said, and the answer to each of its calls.
fn answer(
    view: &mut Vec<ViewMessage>,
    used_ids: &mut HashMap<String, u32>,
    message: &Message,
    results: &HashMap<&CallId, String>,
) {
    let text = message.content.plain();
    if text.is_empty() && message.tool_calls.is_empty() {
        return;
    }
    if view.is_empty() {
        view.push(ViewMessage::User(note("The conversation begins with your own message.")));
    }
    let calls: Vec<(ViewCall, &ToolCall)> =
        message.tool_calls.iter().map(|call| (view_call(used_ids, call), call)).collect();
    match view.last_mut() {
        // Two answers in a row (a text that broke off, and what went on in the middle of it) are one.
        Some(ViewMessage::Assistant { text: before, calls: made }) if made.is_empty() => {
            before.push_str(&text);
            made.extend(calls.iter().map(|(call, _)| call.clone()));
        }
        _ => view.push(ViewMessage::Assistant {
            text,
            calls: calls.iter().map(|(call, _)| call.clone()).collect(),
        }),
    }
    for (told, call) in calls {
        let text = results
            .get(&call.id)
            .cloned()
            .or_else(|| call.result.clone())
            .unwrap_or_else(|| unfinished_text(call.state).to_owned());
        view.push(ViewMessage::ToolResult { call_id: told.id, name: told.name, text });
    }
}

/// Some providers number their calls anew in each answer: a repeated id gets a suffix, the same one
/// each time the view is built.
fn view_call(used_ids: &mut HashMap<String, u32>, call: &ToolCall) -> ViewCall {
    let given = if call.provider_id.is_empty() { call.id.as_str() } else { &call.provider_id };
    let count = used_ids.entry(given.to_owned()).or_insert(0);
    *count += 1;
    let id = if *count == 1 { given.to_owned() } else { format!("{given}_{count}") };
    ViewCall { id, name: call.name.clone(), arguments: call.arguments.clone() }
}

/// A rough count of the tokens of a view: four bytes each, a thousand for an image. Exact counts
/// exist for few models; a wrong exact number is worse than an honest estimate.
#[must_use]
pub fn estimated_tokens(system: &str, view: &[ViewMessage]) -> u64 {
    let bytes: usize = view
        .iter()
        .map(|message| match message {
            ViewMessage::User(content) => content
                .0
                .iter()
                .map(|part| match part {
                    Part::Text(text) => text.len(),
                    Part::Image { .. } => 4_000,
                })
                .sum(),
            ViewMessage::Assistant { text, calls } => {
                text.len()
                    + calls.iter().map(|c| c.name.len() + c.arguments.len() + 16).sum::<usize>()
            }
            ViewMessage::ToolResult { text, .. } => text.len() + 16,
        })
        .sum();
    ((bytes + system.len()) as u64).div_ceil(4)
}

#[cfg(test)]
#[path = "view/tests.rs"]
mod tests;
