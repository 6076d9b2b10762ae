//! A model and a tool that do as the test says.
//!
//! The model does what the last thing said tells it to: `say TEXT`, `hold TEXT` (says it, then waits
//! for [`Puppet::release`]), `silent TEXT` (waits first), `heap` (600 000 bytes and waits), `many N` (N pieces), `tool` (calls the tool
//! `touch`), `think` (calls it, and then waits), `fail`.

use std::sync::Arc;

use async_trait::async_trait;
use everturn_agent::provider::{
    ModelEvent, ModelReply, ModelRequest, ModelStream, Provider, ProviderError, ProviderErrorKind,
    RequestedCall,
};
use everturn_agent::tool::{Registry, Tool, ToolInvocation, ToolOutcome, ToolSpec};
use everturn_core::view::ViewMessage;
use everturn_core::{Effect, Failure, Usage};
use everturn_engine::Models;
use futures::StreamExt as _;
use tokio::sync::Semaphore;

/// The model.
#[derive(Clone)]
pub(crate) struct Puppet {
    released: Arc<Semaphore>,
}

impl Puppet {
    pub(crate) fn new() -> Self {
        Self { released: Arc::new(Semaphore::new(0)) }
    }

    /// Lets one held answer end.
    pub(crate) fn release(&self) {
        self.released.add_permits(1);
    }

    fn answer(&self, said: &str, results: usize) -> Result<ModelStream, ProviderError> {
        let (verb, rest) = said.split_once(' ').unwrap_or((said, ""));
        let text = |text: String| Ok(ModelEvent::Text(text));
        let done = || {
            let usage = Usage { input_tokens: 3, output_tokens: 5, ..Usage::default() };
            Ok(ModelEvent::Done(ModelReply { usage: Some(usage), ..ModelReply::default() }))
        };
        Ok(match verb {
            "hold" => {
                let released = Arc::clone(&self.released);
                let held = futures::stream::once(async move {
                    released.acquire().await.unwrap().forget();
                    Ok(ModelEvent::Text(" released".to_owned()))
                });
                futures::stream::iter([text(rest.to_owned())])
                    .chain(held)
                    .chain(futures::stream::iter([done()]))
                    .boxed()
            }
            "heap" => {
                let released = Arc::clone(&self.released);
                let held = futures::stream::once(async move {
                    released.acquire().await.unwrap().forget();
                    Ok(ModelEvent::Text("end".to_owned()))
                });
                let heap = "big ".repeat(75_000);
                futures::stream::iter([text("begin ".to_owned()), text(heap.clone()), text(heap)])
                    .chain(held)
                    .chain(futures::stream::iter([done()]))
                    .boxed()
            }
            "silent" | "think" if verb == "silent" || results > 0 => {
                let released = Arc::clone(&self.released);
                let rest = rest.to_owned();
                let held = futures::stream::once(async move {
                    released.acquire().await.unwrap().forget();
                    Ok(ModelEvent::Text(rest))
                });
                held.chain(futures::stream::iter([done()])).boxed()
            }
            "many" => {
                let count: usize = rest.parse().unwrap();
                futures::stream::iter((0..count).map(move |n| text(format!("{n} "))))
                    .chain(futures::stream::iter([done()]))
                    .boxed()
            }
            "tool" | "think" if results == 0 => futures::stream::iter([Ok(call())]).boxed(),
            "fail" => return Err(refusal()),
            "play" => play(rest, results),
            _ => futures::stream::iter([text(rest.to_owned()), done()]).boxed(),
        })
    }
}

/// An answer that ends with a call.
fn call() -> ModelEvent {
    let call = RequestedCall {
        provider_id: "c1".to_owned(),
        name: "touch".to_owned(),
        arguments: r#"{"what":"it"}"#.to_owned(),
    };
    ModelEvent::Done(ModelReply { calls: vec![call], ..ModelReply::default() })
}

fn refusal() -> ProviderError {
    ProviderError {
        kind: ProviderErrorKind::Refused,
        message: "the model does not want to".to_owned(),
        retry_after: None,
    }
}

/// The answer of a round of `play`.
fn play(rounds: &str, round: usize) -> ModelStream {
    let mut later = rounds.split('|').skip(round);
    let mut words: Vec<String> =
        later.next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    words.push(if later.next().is_some() { "call" } else { "end" }.to_owned());
    let events = futures::stream::iter(words.into_iter().enumerate());
    let events = events.filter_map(|(number, word)| async move {
        Some(match &*word {
            "t" => Ok(ModelEvent::Text(format!("piece {number} "))),
            "r" => Ok(ModelEvent::Reasoning(format!("thought {number} "))),
            "big" => Ok(ModelEvent::Text("big ".repeat(75_000))),
            "y" => {
                tokio::task::yield_now().await;
                return None;
            }
            "z" => {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                return None;
            }
            "fail" => Err(refusal()),
            "call" => Ok(call()),
            _ => Ok(ModelEvent::Done(ModelReply::default())),
        })
    });
    events.boxed()
}

#[async_trait]
impl Provider for Puppet {
    fn model(&self) -> &str {
        "puppet/one"
    }

    async fn request(&self, request: ModelRequest) -> Result<ModelStream, ProviderError> {
        let mut said = String::new();
        let mut results = 0;
        for message in &request.messages {
            match message {
                ViewMessage::User(content) => {
                    said = content.plain();
                    results = 0;
                }
                ViewMessage::ToolResult { .. } => results += 1,
                ViewMessage::Assistant { .. } => {}
            }
        }
        // A continuation asks for what was asked for before.
        let asked = said.rsplit("The request was:\n\n").next().unwrap_or_default();
        self.answer(asked, results)
    }
}

/// Where the engine finds it.
pub(crate) struct OneModel(pub(crate) Puppet);

#[async_trait]
impl Models for OneModel {
    async fn provider(&self, _: &str) -> Result<Arc<dyn Provider>, Failure> {
        Ok(Arc::new(self.0.clone()))
    }

    fn default_model(&self) -> String {
        "puppet/one".to_owned()
    }
}

/// A tool that asks first.
struct Touch(ToolSpec);

#[async_trait]
impl Tool for Touch {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _: ToolInvocation) -> ToolOutcome {
        ToolOutcome::Succeeded("touched".to_owned())
    }
}

/// The tools.
pub(crate) fn tools() -> Registry {
    let mut tools = Registry::default();
    tools.add(Touch(ToolSpec {
        name: "touch".to_owned(),
        description: "Touches something.".to_owned(),
        parameters: serde_json::json!({ "type": "object" }),
        effect: Effect::Write,
    }));
    tools
}
