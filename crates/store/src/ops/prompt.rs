//! Answers to prompts. The first settlement wins; a late one is told so.

use everturn_core::{Choice, Event, Permission, Prompt, PromptKind, PromptState, RunState, limits};

use super::existing;
use super::journal::Journal;
use crate::error::{OpError, Refusal};
use crate::op::{AnswerPrompt, Signal};
use crate::tx::Tx;

pub(super) fn answer(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: AnswerPrompt,
) -> Result<Prompt, OpError> {
    let Some(mut prompt) =
        tx.prompt(&op.prompt_id)?.filter(|prompt| prompt.principal == op.principal)
    else {
        return Err(Refusal::PromptNotFound.into());
    };
    let key = everturn_core::SessionKey {
        principal: prompt.principal.clone(),
        id: prompt.session_id.clone(),
    };
    let mut session = existing(tx, journal.ctx, &key)?;
    if prompt.generation != op.generation {
        return Err(Refusal::StaleGeneration { current: prompt.generation }.into());
    }
    match prompt.state {
        PromptState::Open if journal.now() < prompt.expires_at => {}
        PromptState::Settled => return Err(Refusal::AlreadyResolved.into()),
        PromptState::Open | PromptState::Expired | PromptState::Withdrawn => {
            return Err(Refusal::Expired.into());
        }
    }
    check_form(&prompt, &op)?;
    let Some(mut run) = tx.run(&prompt.run_id)? else { return Err(Refusal::Expired.into()) };
    if session.running.as_ref() != Some(&run.id) || run.stop.is_some() {
        return Err(Refusal::Expired.into());
    }
    prompt.state = PromptState::Settled;
    prompt.choice = op.choice;
    prompt.text = op.text;
    prompt.answered_by = Some(op.principal);
    prompt.settled_at = Some(journal.now());
    tx.put_prompt(&prompt)?;
    let call = match &prompt.call_id {
        Some(id) => tx.call(id)?,
        None => None,
    };
    if let Some(call) = &call {
        match prompt.choice {
            Some(Choice::Session) => {
                session.policy.tools.insert(call.name.clone(), Permission::Allow);
                session.revision += 1;
            }
            Some(Choice::Always) => {
                tx.put_grant(&session.principal, &call.name)?;
                // Whoever says so here means this session as well, which may ask by a rule of its own.
                if session.policy.tools.get(&call.name) == Some(&Permission::Ask) {
                    session.policy.tools.remove(&call.name);
                    session.revision += 1;
                }
            }
            Some(Choice::Once | Choice::Deny) | None => {}
        }
    }
    let event = Event::PromptSettled(prompt.clone(), call);
    journal.emit_run(tx, &mut session, &mut run, &event)?;
    if tx.open_prompts(&run.id)?.is_empty() && run.state == RunState::Waiting {
        run.state = RunState::Running;
    }
    session.offset_ceiling =
        session.offset_ceiling.max(session.last_offset + limits::OFFSET_RESERVE);
    tx.put_run(&run)?;
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    journal.signal(Signal::Prompt(key, prompt.id.clone()));
    Ok(prompt)
}

/// Whether the answer is one that the prompt takes.
fn check_form(prompt: &Prompt, op: &AnswerPrompt) -> Result<(), OpError> {
    let fault = match prompt.kind {
        PromptKind::Approval if op.choice.is_none() => {
            "an approval takes a choice: once, session, always or deny"
        }
        PromptKind::Clarification if op.choice.is_some() || op.text.is_none() => {
            "a clarification takes a text"
        }
        PromptKind::Approval | PromptKind::Clarification => return Ok(()),
    };
    Err(Refusal::BadAnswer(fault).into())
}
