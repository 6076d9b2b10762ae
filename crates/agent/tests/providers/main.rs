//! Providers against servers that speak their protocols.
#![allow(clippy::unwrap_used, clippy::panic)]

mod anthropic;
mod canned;
mod ollama;
mod openai;

use std::time::Duration;

use everturn_agent::models::{ContinuePartial, ModelOptions, resolve_with};
use everturn_agent::provider::{
    ModelEvent, ModelReply, ModelRequest, Provider, ProviderError, RequestTimeouts,
};
use everturn_agent::tool::ToolSpec;
use everturn_core::view::{ViewCall, ViewMessage};
use everturn_core::{Content, Effect};
use futures::StreamExt as _;
use serde_json::json;

/// The key that must never show.
const KEY: &str = "sk-test-4711-secret";

/// A provider, as a user would set it up: by name, and through the environment.
async fn provider(
    model: &str,
    variables: &[(&str, &str)],
    timeouts: RequestTimeouts,
) -> std::sync::Arc<dyn Provider> {
    continuing(model, variables, timeouts, ContinuePartial::default()).await
}

/// The same, with other models that go on writing a message of theirs.
async fn continuing(
    model: &str,
    variables: &[(&str, &str)],
    timeouts: RequestTimeouts,
    continue_partial: ContinuePartial,
) -> std::sync::Arc<dyn Provider> {
    let env = |name: &str| {
        variables.iter().find(|(variable, _)| *variable == name).map(|(_, v)| (*v).to_owned())
    };
    let options = ModelOptions { timeouts, continue_partial, ..ModelOptions::default() };
    resolve_with(Some(model), &env, &options).await.unwrap().provider
}

fn impatient(first_ms: u64, between_ms: u64) -> RequestTimeouts {
    RequestTimeouts {
        first_event: Duration::from_millis(first_ms),
        between_events: Duration::from_millis(between_ms),
        ..RequestTimeouts::default()
    }
}

fn user(text: &str) -> ViewMessage {
    ViewMessage::User(Content::text(text))
}

fn says(text: &str) -> ViewMessage {
    ViewMessage::Assistant { text: text.to_owned(), calls: vec![] }
}

fn call(id: &str, name: &str, arguments: &str) -> ViewCall {
    ViewCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

fn result(id: &str, name: &str, text: &str) -> ViewMessage {
    ViewMessage::ToolResult { call_id: id.into(), name: name.into(), text: text.into() }
}

fn request(messages: Vec<ViewMessage>) -> ModelRequest {
    ModelRequest { system: "Be brief.".to_owned(), messages, tools: vec![read_file()] }
}

fn read_file() -> ToolSpec {
    ToolSpec {
        name: "read_file".to_owned(),
        description: "Reads a file.".to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        }),
        effect: Effect::Read,
    }
}

/// A conversation with everything in it that a view can hold.
fn long_conversation() -> Vec<ViewMessage> {
    vec![
        user("Compare a and b."),
        ViewMessage::Assistant {
            text: "I read both.".to_owned(),
            calls: vec![
                call("c1", "read_file", r#"{"path":"a"}"#),
                call("c2", "read_file", r#"{"path":"#),
            ],
        },
        result("c1", "read_file", "A"),
        result("c2", "read_file", "the arguments are malformed"),
        says("They differ."),
        ViewMessage::User(Content(vec![
            everturn_core::Part::Text("And c?".to_owned()),
            everturn_core::Part::Text("Look well.".to_owned()),
            everturn_core::Part::Image {
                media_type: "image/png".to_owned(),
                data: Some("iVBORw0KGgo=".to_owned()),
                url: None,
            },
        ])),
    ]
}

/// All that came of a request.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    text: String,
    reasoning: String,
    pieces: usize,
    end: Option<Result<ModelReply, ProviderError>>,
}

impl Answer {
    fn reply(&self) -> &ModelReply {
        match &self.end {
            Some(Ok(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn error(&self) -> &ProviderError {
        match &self.end {
            Some(Err(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

/// Sends a request and takes in all of its answer. An error of the request leaves no pieces; an
/// error of its stream at least one.
async fn ask(provider: &dyn Provider, request: ModelRequest) -> Answer {
    let mut answer = Answer::default();
    let mut stream = match provider.request(request).await {
        Ok(stream) => stream,
        Err(error) => {
            answer.end = Some(Err(error));
            return answer;
        }
    };
    while let Some(event) = stream.next().await {
        assert_eq!(answer.end, None, "something after the end: {event:?}");
        match event {
            Ok(ModelEvent::Text(text)) => {
                assert!(!text.is_empty());
                answer.text.push_str(&text);
                answer.pieces += 1;
            }
            Ok(ModelEvent::Reasoning(text)) => {
                assert!(!text.is_empty());
                answer.reasoning.push_str(&text);
                answer.pieces += 1;
            }
            Ok(ModelEvent::Done(reply)) => answer.end = Some(Ok(reply)),
            Err(error) => answer.end = Some(Err(error)),
        }
    }
    if let Some(Err(error)) = &answer.end {
        assert!(!format!("{error:?} {error}").contains(KEY), "{error:?}");
    }
    answer
}

/// The calls of an answer, as (id, name, arguments).
fn calls(reply: &ModelReply) -> Vec<(&str, &str, &str)> {
    reply
        .calls
        .iter()
        .map(|call| (call.provider_id.as_str(), call.name.as_str(), call.arguments.as_str()))
        .collect()
}
