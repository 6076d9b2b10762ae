//! A model and a tool that do as the test says.
//!
//! The model does what the last thing said tells it to: `say TEXT`, `hold TEXT` (says it, then waits
//! for [`Puppet::release`]), `many N` (N pieces), `tool` (calls the tool `touch`), `fail`.

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

    fn answer(&self, said: &str, has_result: bool) -> Result<ModelStream, ProviderError> {
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
            "many" => {
                let count: usize = rest.parse().unwrap();
                futures::stream::iter((0..count).map(move |n| text(format!("{n} "))))
                    .chain(futures::stream::iter([done()]))
                    .boxed()
            }
            "tool" if !has_result => {
                let call = RequestedCall {
                    provider_id: "c1".to_owned(),
                    name: "touch".to_owned(),
                    arguments: r#"{"what":"it"}"#.to_owned(),
                };
                let reply = ModelReply { calls: vec![call], ..ModelReply::default() };
                futures::stream::iter([Ok(ModelEvent::Done(reply))]).boxed()
            }
            "fail" => {
                return Err(ProviderError {
                    kind: ProviderErrorKind::Refused,
                    message: "the model does not want to".to_owned(),
                    retry_after: None,
                });
            }
            _ => futures::stream::iter([text(rest.to_owned()), done()]).boxed(),
        })
    }
}

#[async_trait]
impl Provider for Puppet {
    fn model(&self) -> &str {
        "puppet/one"
    }

    async fn request(&self, request: ModelRequest) -> Result<ModelStream, ProviderError> {
        let mut said = String::new();
        let mut has_result = false;
        for message in &request.messages {
            match message {
                ViewMessage::User(content) => {
                    said = content.plain();
                    has_result = false;
                }
                ViewMessage::ToolResult { .. } => has_result = true,
                ViewMessage::Assistant { .. } => {}
            }
        }
        self.answer(&said, has_result)
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
