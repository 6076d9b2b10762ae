//! Questions that a turn puts to people, durably: approvals of calls, and what the model itself asks.
//!
//! A turn that waits for a person is at a boundary: it may be stopped, handed over or taken over, and
//! whoever goes on finds the question as it stands. Silence is neither consent nor denial.

use std::time::Duration;

use everturn_core::event::Record;
use everturn_core::{
    CallState, Choice, Policy, Prompt, PromptId, PromptKind, PromptState, Run, SessionKey,
    ToolCall, limits,
};

use crate::calls::retry_read;
use crate::config::Asking;
use crate::control::TurnControl;
use crate::engine::Shared;
use crate::journal::{Halt, Journal};

/// How often a waiting turn looks whether another process took an answer.
const LOOK: Duration = Duration::from_millis(500);
/// Characters of arguments that a question shows.
const SHOWN_CHARS: usize = 2_000;

/// Why a call does not run: its state, and what the model is told.
pub(crate) struct Refused(pub(crate) CallState, pub(crate) String);

/// A call about which, or by which, a person is asked.
pub(crate) struct Asks<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) control: &'a TurnControl,
    pub(crate) key: &'a SessionKey,
    pub(crate) run: &'a Run,
    pub(crate) call: &'a ToolCall,
}

impl Asks<'_> {
    /// Asks whether the call may run.
    pub(crate) async fn approve(&self, journal: &mut Journal) -> Result<Result<(), Refused>, Halt> {
        if self.shared.config.asking == Asking::Deny {
            let text = "This tool needs a person's approval and nobody can be asked here; the call did not run.";
            return Ok(Err(Refused(CallState::Denied, text.to_owned())));
        }
        let mut shown: String = self.call.arguments.chars().take(SHOWN_CHARS).collect();
        if shown.len() < self.call.arguments.len() {
            shown.push('…');
        }
        let question = format!("May {} run with {shown}?", self.call.name);
        let prompt = self.put(journal, PromptKind::Approval, question).await?;
        if prompt.state != PromptState::Settled {
            let text = "Nobody answered the question whether this call may run; it did not run.";
            return Ok(Err(Refused(CallState::NotRun, text.to_owned())));
        }
        Ok(match prompt.choice {
            Some(Choice::Once | Choice::Session | Choice::Always) => Ok(()),
            Some(Choice::Deny) | None => {
                // With words, they say who denied it: a program may answer, too, where nobody is.
                let text = match prompt.text.as_deref().filter(|word| !word.is_empty()) {
                    None => "A person denied this call; it did not run.".to_owned(),
                    Some(word) => {
                        format!("This call was denied and did not run. The answer said: {word}")
                    }
                };
                Err(Refused(CallState::Denied, text))
            }
        })
    }

    /// Puts the model's own question, and brings the answer.
    pub(crate) async fn clarify(
        &self,
        journal: &mut Journal,
        question: String,
    ) -> Result<Result<String, Refused>, Halt> {
        const SILENCE: &str = "That is neither consent nor denial. Go on with what needs no answer, or say what you would have to know.";
        if self.shared.config.asking == Asking::Deny {
            let text = format!("Nobody can be asked here: no person is there to answer. {SILENCE}");
            return Ok(Err(Refused(CallState::NotRun, text)));
        }
        let prompt = self.put(journal, PromptKind::Clarification, question).await?;
        Ok(match (prompt.state, prompt.text) {
            (PromptState::Settled, Some(answer)) => Ok(answer),
            _ => {
                let waited = prompt.expires_at.since_ms(prompt.opened_at) / 1_000;
                let text = format!("Nobody answered within {waited} s. {SILENCE}");
                Err(Refused(CallState::NotRun, text))
            }
        })
    }

    /// Puts a question, or finds it put already, and waits for its end: a person's word, or time.
    async fn put(
        &self,
        journal: &mut Journal,
        kind: PromptKind,
        question: String,
    ) -> Result<Prompt, Halt> {
        let (shared, control) = (self.shared, self.control);
        let mut prompt = match self.asked_before(kind).await? {
            Some(prompt) => prompt,
            None => {
                let prompt = self.question(journal, kind, question).await?;
                journal.write(vec![Record::PromptOpened(prompt.clone())]).await?;
                prompt
            }
        };
        loop {
            if prompt.state != PromptState::Open {
                return Ok(prompt);
            }
            let left = prompt.expires_at.since_ms(journal.now());
            if left == 0 {
                journal.write(vec![Record::PromptExpired(prompt.id.clone())]).await?;
            } else {
                let look = LOOK.min(Duration::from_millis(left));
                tokio::select! {
                    biased;
                    () = control.lost.cancelled() => return Err(Halt::Lost),
                    () = control.stop.cancelled() => return Err(Halt::Stopped),
                    // A waiting turn is at a boundary: whoever goes on finds the same question.
                    () = shared.drain.cancelled() => return Err(Halt::Draining),
                    () = control.prompt.notified() => {}
                    () = tokio::time::sleep(look) => {}
                }
            }
            let found = retry_read(shared, control, || shared.store.prompt(&prompt.id)).await?;
            prompt = found.map(|(prompt, _)| prompt).ok_or(Halt::Lost)?;
        }
    }

    /// A question that was put before the run was handed over; or, of the model's own questions, one
    /// that a person answered before the run was interrupted: what they said is not asked again.
    async fn asked_before(&self, kind: PromptKind) -> Result<Option<Prompt>, Halt> {
        let store = &self.shared.store;
        for state in [PromptState::Open, PromptState::Settled] {
            let limit = limits::PAGE_ROWS_MAX;
            let mut after = None;
            loop {
                let prompts = retry_read(self.shared, self.control, || {
                    store.prompts(self.key, state, after.as_ref(), limit)
                })
                .await?;
                after = prompts.last().map(|(last, _)| last.id.clone());
                let is_last = prompts.len() < limit as usize;
                let same = prompts.into_iter().map(|(prompt, _)| prompt).find(|prompt| {
                    let outlives =
                        kind == PromptKind::Clarification && state == PromptState::Settled;
                    prompt.kind == kind
                        && prompt.call_id.as_ref() == Some(&self.call.id)
                        && (prompt.run_id == self.call.run_id || outlives)
                });
                if same.is_some() {
                    return Ok(same);
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(None)
    }

    async fn question(
        &self,
        journal: &Journal,
        kind: PromptKind,
        question: String,
    ) -> Result<Prompt, Halt> {
        let store = &self.shared.store;
        let view = retry_read(self.shared, self.control, || store.session(self.key)).await?;
        let Some(view) = view else { return Err(Halt::Lost) };
        let now = journal.now();
        Ok(Prompt {
            id: PromptId::from_uuid(store.clock().uuid()),
            principal: self.key.principal.clone(),
            session_id: self.key.id.clone(),
            run_id: self.run.id.clone(),
            generation: self.run.generation,
            kind,
            state: PromptState::Open,
            question,
            call_id: Some(self.call.id.clone()),
            choice: None,
            text: None,
            answered_by: None,
            opened_at: now,
            expires_at: now.plus_ms(timeout_s(&view.session.policy, kind).saturating_mul(1_000)),
            settled_at: None,
        })
    }
}

/// Seconds that a question waits.
const fn timeout_s(policy: &Policy, kind: PromptKind) -> u64 {
    match kind {
        PromptKind::Approval => policy.approval_timeout_s,
        PromptKind::Clarification => policy.clarification_timeout_s,
    }
}
