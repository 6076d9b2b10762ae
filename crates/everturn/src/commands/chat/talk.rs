//! What the person says and does in a chat: messages, answers, commands, Ctrl-C.

use std::time::Duration;

use everturn_api::Code;
use tokio::time::Instant;

use super::{Chat, Next, Outgoing, Typed};
use crate::client::Decide;
use crate::connect;
use crate::error::Result;
use crate::exit::Exit;
use crate::render;
use crate::surface::Surface as _;
use crate::term::one_line;

const HELP: &str = "  TEXT          say it; while a turn runs it is queued
  /stop         stop the turn; Ctrl-C does the same
  /queue        what is queued
  /cancel ID    withdraw a queued input
  /continue     go on with an interrupted turn
  /discard      leave an interrupted turn as it is
  /resend TEXT  leave it and send this instead; without a text, the same again
  /session      the id of this conversation
  /quit         leave; Ctrl-D does the same
  //TEXT        say something that begins with a slash";

/// Within this, a second Ctrl-C is the one that leaves.
const AGAIN: Duration = Duration::from_secs(5);

impl Chat<'_> {
    pub(super) async fn typed(&mut self, typed: Typed) -> Result<Next> {
        match typed {
            Typed::Key => {
                self.show_prompt();
                Ok(Next::On)
            }
            Typed::Line(line) => {
                if self.in_terminal {
                    self.end_prompt();
                }
                self.interrupted_at = None;
                self.line(&line).await
            }
            Typed::Interrupt => {
                self.end_prompt();
                self.interrupt().await
            }
            Typed::End if self.in_terminal => {
                self.end_prompt();
                if self.running.is_some() {
                    self.talk("a turn is running: Ctrl-C stops it, /quit leaves all the same");
                    return Ok(Next::On);
                }
                Ok(Next::Leave(self.leave_with()))
            }
            Typed::End => {
                self.closing = true;
                Ok(Next::On)
            }
        }
    }

    /// In a terminal the person saw how each turn ended; the process itself did what was asked.
    fn leave_with(&self) -> Exit {
        if self.in_terminal { Exit::Completed } else { self.exit }
    }

    async fn line(&mut self, line: &str) -> Result<Next> {
        if let Some(prompt) = self.prompt.clone().filter(|_| self.can_ask) {
            if line.trim().is_empty() {
                self.ask();
                return Ok(Next::On);
            }
            let (choice, text) = match prompt.kind.as_str() {
                "approval" => (render::choice(line), None),
                // A command stays one: the turn that asks can be stopped.
                _ => match line.strip_prefix('/') {
                    Some(rest) if !rest.starts_with('/') => (None, None),
                    Some(rest) => (None, Some(rest)),
                    None => (None, Some(render::said(&prompt, line))),
                },
            };
            if choice.is_some() || text.is_some() {
                self.answer(&prompt, choice, text).await?;
                return Ok(Next::On);
            }
        }
        match line.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => return self.command(rest).await,
            Some(rest) => self.say(rest)?,
            None => self.say(line)?,
        }
        Ok(Next::On)
    }

    fn say(&mut self, text: &str) -> Result<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let request_id = connect::fresh_request()?.to_string();
        self.own_requests.insert(request_id.clone());
        self.outbox.push_back(Outgoing { request_id, text: text.to_owned() });
        Ok(())
    }

    async fn command(&mut self, line: &str) -> Result<Next> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match name {
            "help" | "?" => self.talk(HELP),
            "quit" | "exit" | "q" => return Ok(Next::Leave(self.leave_with())),
            "session" => {
                let line = self.session.to_string();
                self.talk(&line);
            }
            "stop" => self.stop().await?,
            "queue" => self.queue().await?,
            "cancel" => {
                let done = self.client.cancel_input(rest.trim()).await;
                self.said(done)?;
            }
            "continue" | "discard" | "resend" => {
                let Some((generation, _)) = self.interrupted else {
                    self.talk("no interrupted turn waits for a decision");
                    return Ok(Next::On);
                };
                let text = Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
                let decision = match name {
                    "continue" => Decide::Continue,
                    "discard" => Decide::Discard,
                    _ => Decide::Resend(text),
                };
                let confirmed = match &decision {
                    Decide::Continue => "going on with it",
                    Decide::Discard => "left as it is; what it had said and done stays",
                    Decide::Resend(None) => "left as it is; the same is sent again",
                    Decide::Resend(Some(_)) => "left as it is; your new text is sent",
                };
                match self.client.decide(self.session.as_str(), generation, decision).await {
                    Ok(()) => self.talk(confirmed),
                    refused => self.said(refused)?,
                }
                self.interrupted = None;
            }
            other => {
                let line =
                    format!("there is no /{}; /help lists what there is", one_line(other, 40));
                self.talk(&line);
            }
        }
        Ok(Next::On)
    }

    /// A refusal is told and the conversation goes on; what passes is for the caller.
    fn said(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if !error.passing => {
                self.complain(&error);
                Ok(())
            }
            other => other,
        }
    }

    async fn queue(&mut self) -> Result<()> {
        if self.client.session(self.session.as_str()).await?.is_none() {
            self.talk("nothing is queued");
            return Ok(());
        }
        let inputs = self.client.inputs(self.session.as_str(), Some("queued")).await?;
        if inputs.is_empty() {
            self.talk("nothing is queued");
        }
        for input in inputs {
            let place = input.receipt.position.unwrap_or(0);
            let text = one_line(&input.text, 120);
            self.talk(&format!("{place:>3}  {}  {text}", input.receipt.input_id));
        }
        Ok(())
    }

    async fn stop(&mut self) -> Result<()> {
        let Some((generation, _)) = self.running else {
            self.talk("no turn is running");
            return Ok(());
        };
        match self.client.stop(self.session.as_str(), Some(generation), false).await {
            // It ended meanwhile.
            Err(error) if error.is(Code::NotRunning) || error.is(Code::StaleGeneration) => Ok(()),
            done => self.said(done),
        }
    }

    /// Ctrl-C: the first stops the turn, the second leaves.
    pub(super) async fn interrupt(&mut self) -> Result<Next> {
        let again = self.interrupted_at.is_some_and(|at| at.elapsed() < AGAIN);
        self.interrupted_at = Some(Instant::now());
        if again {
            return Ok(Next::Leave(if self.in_terminal {
                Exit::Completed
            } else {
                Exit::Cancelled
            }));
        }
        if self.running.is_some() {
            self.talk("stopping; Ctrl-C again leaves");
            self.stop().await?;
        } else if self.in_terminal {
            self.talk("Ctrl-C again leaves");
        } else {
            return Ok(Next::Leave(Exit::Cancelled));
        }
        Ok(Next::On)
    }

    /// Answers an open prompt, or puts it to the person, once.
    pub(super) async fn settle_prompt(&mut self) -> Result<()> {
        let Some(prompt) = self.prompt.clone() else {
            self.asked = None;
            return Ok(());
        };
        if self.asked.as_ref() == Some(&prompt.id) {
            return Ok(());
        }
        self.asked = Some(prompt.id.clone());
        let tool = prompt.call.as_ref().map(|call| call.name.clone()).unwrap_or_default();
        if prompt.kind == "approval" && self.allow.contains(&tool) {
            return self.answer(&prompt, Some("once"), None).await;
        }
        if self.can_ask {
            self.ask();
            return Ok(());
        }
        if prompt.kind == "approval" {
            let line = format!(
                "{tool} needs approval and nobody can be asked here: denied (--allow {tool} lets it run)"
            );
            self.talk(&line);
            return self.answer(&prompt, Some("deny"), Some(render::NOBODY_APPROVES)).await;
        }
        let question = render::question(&prompt);
        self.talk(&format!("the model asks, and nobody can be asked here: {question}"));
        self.answer(&prompt, None, Some(render::NOBODY)).await
    }

    fn ask(&mut self) {
        let Some(prompt) = self.prompt.clone() else { return };
        let question = self.screen.paint().strong(&render::question(&prompt));
        self.talk(&format!("? {question}"));
        for line in render::answers(&prompt) {
            self.talk(&line);
        }
    }

    async fn answer(
        &mut self,
        prompt: &everturn_api::prompt::Prompt,
        choice: Option<&str>,
        text: Option<&str>,
    ) -> Result<()> {
        let done = self.client.answer(prompt, choice, text).await;
        if done.as_ref().is_err_and(|error| error.passing) {
            // Asked again when contact is back.
            self.asked = None;
        }
        self.said(done)
    }
}
