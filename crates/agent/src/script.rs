//! The scripted provider, `script/PATH`: a deterministic model for demos and tests.
//!
//! What it answers is chosen from the request alone, so that a server which was killed and started
//! again goes on as if nothing had been. The only memory is the count behind `times` ("fail the
//! first two requests"), which a restart forgets. docs/script.md describes the format of the file.

mod file;
mod scene;
mod template;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn_core::Failure;
use futures::StreamExt as _;

use crate::provider::{
    ModelEvent, ModelReply, ModelRequest, ModelStream, Provider, ProviderError, ProviderErrorKind,
    RequestedCall,
};
use file::{Act, Arguments, Partial, Rule, Script};
use scene::Scene;
use template::{Template, Variable};

/// What is wrong with a script file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// It cannot be read.
    #[error("cannot read the script {path}: {message}")]
    Unreadable {
        /// As it was given.
        path: String,
        /// What the system says.
        message: String,
    },
    /// It can, but does not say what a script says.
    #[error("{path}:{line}: {message}")]
    Invalid {
        /// As it was given.
        path: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
}

impl ScriptError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "script_unreadable",
            Self::Invalid { .. } => "script_invalid",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => {
                "`script/PATH` takes the path of a script file; `script/demo` is built in"
            }
            Self::Invalid { .. } => "docs/script.md describes the format, with an example",
        }
    }
}

/// A piece of a scripted answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    text: String,
    reasoning: bool,
    /// How long it takes to come.
    delay: Duration,
}

/// The built-in demo: it says that it is one, and how to get a real model.
///
/// # Errors
/// None that a test has not ruled out: the script is part of the program.
pub fn demo() -> Result<ScriptedProvider, ScriptError> {
    let script = Script::parse("the built-in demo", include_str!("script/demo.toml"))?;
    Ok(ScriptedProvider { model: "script/demo".to_owned(), script: Arc::new(script) })
}

/// A model that follows a script.
#[derive(Debug, Clone)]
pub struct ScriptedProvider {
    model: String,
    script: Arc<Script>,
}

impl ScriptedProvider {
    /// Reads a script file. The model is named `script/` and the path as given.
    ///
    /// # Errors
    /// The file cannot be read, or is no script: with the line where it goes wrong.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let script = Script::read(path)?;
        Ok(Self { model: format!("script/{}", path.display()), script: Arc::new(script) })
    }

    /// Takes a script from a text. `name` stands for the path, in the model's name and in errors.
    ///
    /// # Errors
    /// The text is no script: with the line where it goes wrong.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let script = Script::parse(name, text)?;
        Ok(Self { model: format!("script/{name}"), script: Arc::new(script) })
    }
}

/// One step of an answer, in order.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Say(Piece),
    Wait(Duration),
    /// The rule's act at this index, which may go wrong.
    Fault(usize),
}

/// An answer under way.
struct Play {
    script: Arc<Script>,
    rule: usize,
    steps: VecDeque<Step>,
    reply: Option<ModelReply>,
    over: bool,
}

impl Rule {
    fn applies(&self, scene: &Scene) -> bool {
        let input = scene.input.to_lowercase();
        self.contains.iter().all(|part| input.contains(part))
            && self.matches.as_ref().is_none_or(|pattern| pattern.is_match(&scene.input))
            && self.round.is_none_or(|round| round == scene.round)
            && self.continuation.is_none_or(|is| is == scene.continuation)
            && self.partial.is_none_or(|is| is != scene.partial.is_empty())
            && self.turn.is_none_or(|turn| turn == scene.turn)
            && self.tool_result.as_ref().is_none_or(|part| {
                scene.last_tool_result.as_ref().is_some_and(|text| text.contains(part))
            })
            && self.offers.as_ref().is_none_or(|tool| scene.offers.contains(tool))
    }

    /// What the rule answers to a request: the steps, and the calls that end it.
    fn play(&self, scene: &Scene) -> (VecDeque<Step>, ModelReply) {
        let groups: Vec<String> = self
            .matches
            .as_ref()
            .and_then(|pattern| pattern.captures(&scene.input))
            .map(|captures| {
                captures
                    .iter()
                    .map(|group| group.map_or(String::new(), |text| text.as_str().to_owned()))
                    .collect()
            })
            .unwrap_or_default();
        let value = |variable: Variable, n: usize| match variable {
            Variable::Input => scene.input.clone(),
            Variable::Turn => scene.turn.to_string(),
            Variable::Round => scene.round.to_string(),
            Variable::LastToolResult => scene.last_tool_result.clone().unwrap_or_default(),
            Variable::N => n.to_string(),
            Variable::Group(group) => groups.get(group).cloned().unwrap_or_default(),
        };
        let mut steps = VecDeque::new();
        let mut reply = ModelReply { calls: vec![], usage: self.usage.clone(), cut: self.stop };
        for (at, act) in self.acts.iter().enumerate() {
            match act {
                Act::Say { reasoning, pieces, chop, delay, repeat } => {
                    // Without {{n}} every repetition is the same text: rendered once.
                    let varies = pieces.iter().any(|piece| piece.uses(Variable::N));
                    let mut made: Vec<Piece> = Vec::new();
                    for n in 1..=*repeat {
                        if varies || n == 1 {
                            made = pieces
                                .iter()
                                .map(|piece| piece.render(|variable| value(variable, n)))
                                .filter(|text| !text.is_empty())
                                .flat_map(|text| file::pieces(text, *chop, *reasoning, *delay))
                                .collect();
                        }
                        steps.extend(made.iter().cloned().map(Step::Say));
                        if steps.len() > file::PIECES_MAX {
                            break;
                        }
                    }
                }
                Act::Call { name, arguments, id } => {
                    let number = reply.calls.len() + 1;
                    reply.calls.push(RequestedCall {
                        provider_id: id
                            .clone()
                            .unwrap_or_else(|| format!("call_{}_{number}", scene.round + 1)),
                        name: name.clone(),
                        arguments: match arguments {
                            Arguments::Raw(template) => template.render(|v| value(v, number)),
                            Arguments::Json(json) => {
                                fill(json, groups.len(), &|v| value(v, number)).to_string()
                            }
                        },
                    });
                }
                Act::Wait(time) => steps.push_back(Step::Wait(*time)),
                Act::Stall(_) | Act::Cut(_) | Act::Fail { .. } => steps.push_back(Step::Fault(at)),
            }
        }
        if self.resume && !scene.partial.is_empty() {
            go_on_after(&scene.partial, &mut steps);
        }
        (steps, reply)
    }
}

/// Fills the variables in the strings of a JSON value in. They parse: the file was checked.
fn fill(
    json: &serde_json::Value,
    groups: usize,
    value: &dyn Fn(Variable) -> String,
) -> serde_json::Value {
    use serde_json::Value as J;
    match json {
        J::String(text) => J::String(
            Template::parse(text, groups)
                .map_or_else(|_| text.clone(), |template| template.render(value)),
        ),
        J::Array(items) => J::Array(items.iter().map(|item| fill(item, groups, value)).collect()),
        J::Object(map) => J::Object(
            map.iter().map(|(key, item)| (key.clone(), fill(item, groups, value))).collect(),
        ),
        other => other.clone(),
    }
}

/// Drops what was already said, if it is how the scripted text begins. What would go wrong just
/// where the text broke off has gone wrong already, and is dropped as well.
fn go_on_after(partial: &str, steps: &mut VecDeque<Step>) {
    let mut rest = partial;
    let mut keep_from = None;
    for (at, step) in steps.iter().enumerate() {
        let Step::Say(Piece { text, reasoning: false, .. }) = step else { continue };
        if rest.is_empty() {
            break;
        } else if let Some(after) = rest.strip_prefix(text.as_str()) {
            rest = after;
            keep_from = Some((at + 1, 0));
        } else if text.starts_with(rest) {
            keep_from = Some((at, rest.len()));
            rest = "";
        } else {
            return;
        }
    }
    let (true, Some((at, bytes))) = (rest.is_empty(), keep_from) else { return };
    steps.drain(..at);
    if let (true, Some(Step::Say(piece))) = (bytes > 0, steps.front_mut()) {
        piece.text.drain(..bytes);
    }
    while let Some(Step::Fault(_) | Step::Wait(_)) = steps.front() {
        steps.pop_front();
    }
}

impl Play {
    fn fail(&mut self, error: ProviderError) -> Option<Result<ModelEvent, ProviderError>> {
        self.over = true;
        Some(Err(error))
    }

    /// Waits, but no longer than the script lets a stream be silent.
    async fn pause(&self, time: Duration) -> Result<(), ProviderError> {
        match self.script.idle_timeout {
            Some(limit) if time > limit => {
                tokio::time::sleep(limit).await;
                Err(stalled(limit))
            }
            // Zero must not yield to the timer: a script without delays is as fast as it can be.
            _ if time.is_zero() => Ok(()),
            _ => {
                tokio::time::sleep(time).await;
                Ok(())
            }
        }
    }

    async fn next(&mut self) -> Option<Result<ModelEvent, ProviderError>> {
        if self.over {
            return None;
        }
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Say(piece) => {
                    if let Err(error) = self.pause(piece.delay).await {
                        return self.fail(error);
                    }
                    return Some(Ok(if piece.reasoning {
                        ModelEvent::Reasoning(piece.text)
                    } else {
                        ModelEvent::Text(piece.text)
                    }));
                }
                Step::Wait(time) => {
                    if let Err(error) = self.pause(time).await {
                        return self.fail(error);
                    }
                }
                Step::Fault(at) => {
                    if let Some(error) = self.fault(at).await {
                        return self.fail(error);
                    }
                }
            }
        }
        self.over = true;
        self.reply.take().map(|reply| Ok(ModelEvent::Done(reply)))
    }

    /// Lets go wrong what the act says, unless it has gone wrong often enough.
    async fn fault(&self, at: usize) -> Option<ProviderError> {
        match &self.script.rules[self.rule].acts[at] {
            Act::Stall(fault) if fault.strikes() => match self.script.idle_timeout {
                Some(limit) => {
                    tokio::time::sleep(limit).await;
                    Some(stalled(limit))
                }
                None => std::future::pending().await,
            },
            Act::Cut(fault) if fault.strikes() => Some(ProviderError {
                kind: ProviderErrorKind::Broken,
                message: "the script cut the connection".to_owned(),
                retry_after: None,
            }),
            Act::Fail { status, message, retry_after, fault } if fault.strikes() => {
                Some(ProviderError {
                    kind: ProviderErrorKind::of_status(*status, message.as_deref().unwrap_or("")),
                    message: message
                        .clone()
                        .unwrap_or_else(|| format!("the script answered HTTP {status}")),
                    retry_after: *retry_after,
                })
            }
            _ => None,
        }
    }
}

fn stalled(limit: Duration) -> ProviderError {
    ProviderError {
        kind: ProviderErrorKind::Stalled,
        message: format!("the script sent nothing for {} ms", limit.as_millis()),
        retry_after: None,
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn model(&self) -> &str {
        &self.model
    }

    fn context_tokens(&self) -> Option<u64> {
        self.script.context_tokens
    }

    fn continues_partial(&self) -> bool {
        self.script.partial != Partial::Told
    }

    async fn request(&self, request: ModelRequest) -> Result<ModelStream, ProviderError> {
        if request.continues_partial() && self.script.partial == Partial::Refused {
            return Err(ProviderError {
                kind: ProviderErrorKind::Refused,
                message: "the script does not go on writing a message of its own".to_owned(),
                retry_after: None,
            });
        }
        let scene = Scene::of(&request);
        let Some(rule) = self.script.rules.iter().position(|rule| rule.applies(&scene)) else {
            let shown: String = scene.input.chars().take(60).collect();
            return Err(ProviderError {
                kind: ProviderErrorKind::Refused,
                message: format!(
                    "no rule of {} applies to {shown:?} (round {}, turn {}, continuation: {}); \
                     a last rule without conditions answers everything",
                    self.model, scene.round, scene.turn, scene.continuation
                ),
                retry_after: None,
            });
        };
        let (steps, reply) = self.script.rules[rule].play(&scene);
        let mut play =
            Play { script: Arc::clone(&self.script), rule, steps, reply: Some(reply), over: false };
        // What fails before anything came fails the request, as it does with a real provider.
        while let Some(Step::Fault(at)) = play.steps.front() {
            if !matches!(&play.script.rules[rule].acts[*at], Act::Fail { .. }) {
                break;
            }
            let at = *at;
            play.steps.pop_front();
            if let Some(error) = play.fault(at).await {
                return Err(error);
            }
        }
        Ok(futures::stream::unfold(play, |mut play| async move {
            play.next().await.map(|event| (event, play))
        })
        .boxed())
    }
}

impl From<ScriptError> for Failure {
    fn from(error: ScriptError) -> Self {
        Self {
            code: error.code().to_owned(),
            message: error.to_string(),
            permanent: true,
            hint: Some(error.hint().to_owned()),
        }
    }
}

#[cfg(test)]
#[path = "script/tests.rs"]
mod tests;
