//! The story of a turn: claim → run → settle.
//!
//! [`work`] is a session's worker: it claims one turn after the other until nothing waits. [`run`]
//! is one turn: prepare the model's view, ask, run the tools that it wants, ask again, settle. Every
//! step is recorded through [`crate::journal`] before anyone sees it, so that at any point the
//! process may vanish: what is in the store is what happened, and [`crate::recover`] goes on there.

use std::sync::Arc;
use std::time::Instant;

use everturn_agent::provider::{ModelReply, ModelRequest, Provider};
use everturn_core::event::{End, Event, Record};
use everturn_core::{
    CallId, Effect, Failure, NewCall, Role, Run, RunState, Session, SessionKey, TerminalState, view,
};
use everturn_crash::Point;
use everturn_store::op::{Claim, Claimed, ClaimedTurn};
use everturn_store::{OpError, Refusal, execute};

use crate::calls::{self, retry_read};
use crate::control::TurnControl;
use crate::engine::Shared;
use crate::journal::{Halt, Journal};
use crate::patience::Patience;
use crate::recover;
use crate::step::{self, Said, StepEnd};
use crate::wake::Begun;

/// A session's worker: one turn after the other, until nothing waits or somebody else holds it.
pub(crate) async fn work(shared: &Arc<Shared>, key: &SessionKey, begun: Option<Begun>) {
    if let Some((turn, control)) = begun {
        take(shared, key, *turn, &control).await;
    }
    let mut patience = Patience::default();
    while !shared.is_draining() {
        match claim(shared, key).await {
            Ok(Claimed::Turn(turn)) => {
                patience = Patience::default();
                let control = shared.controls.begin(key, &turn.run.id);
                take(shared, key, *turn, &control).await;
            }
            // Claimed with its admission a moment ago: its worker comes after this one.
            Ok(Claimed::Unfinished { run, .. }) if shared.controls.has(key, &run.id) => return,
            Ok(Claimed::Unfinished { session, run }) => {
                match recover::resolve_session(shared, &session, &run).await {
                    Ok(()) => {}
                    Err(OpError::Refused(_)) => return,
                    Err(error) => wait_for_store(shared, &error, &mut patience).await,
                }
            }
            Ok(Claimed::Nothing | Claimed::Held { .. }) => return,
            Err(OpError::Refused(Refusal::SessionNotFound | Refusal::SessionDeleted)) => return,
            Err(error) => wait_for_store(shared, &error, &mut patience).await,
        }
    }
}

/// Runs a claimed turn, and forgets its handles when it is over.
async fn take(shared: &Arc<Shared>, key: &SessionKey, turn: ClaimedTurn, control: &TurnControl) {
    let id = turn.run.id.clone();
    run(shared, control, turn).await;
    shared.controls.finish(key, &id);
}

async fn wait_for_store(shared: &Shared, error: &OpError, patience: &mut Patience) {
    let kind = match error {
        OpError::Storage(error) => {
            shared.noise.say("cannot claim; trying again", error);
            Some(error.kind)
        }
        OpError::Refused(refusal) => {
            tracing::warn!(%refusal, "cannot claim; trying again");
            None
        }
    };
    tokio::select! {
        () = shared.closed.cancelled() => {}
        () = shared.drain.cancelled() => {}
        () = tokio::time::sleep(patience.pause(kind)) => {}
    }
}

/// Takes the lease and the next input. A lease whose holder is provably gone is taken at once.
async fn claim(shared: &Shared, key: &SessionKey) -> Result<Claimed, OpError> {
    let mut gone = None;
    loop {
        let expiry = shared.leases.expiry(shared.store.clock());
        let claimer = shared.claimer(expiry.clone());
        let claim = Claim { key: key.clone(), claimer, gone: gone.clone() };
        let claimed = *execute(&*shared.store, claim).await?;
        match &claimed {
            Claimed::Held { holder } if gone.is_none() => {
                if shared.store.node_gone(&holder.holder).await != Some(true) {
                    return Ok(claimed);
                }
                gone = Some(holder.holder.clone());
            }
            Claimed::Turn(_) => {
                shared.leases.granted(&expiry);
                return Ok(claimed);
            }
            _ => return Ok(claimed),
        }
    }
}

/// One turn, from its claim to its terminal record.
async fn run(shared: &Arc<Shared>, control: &TurnControl, turn: ClaimedTurn) {
    let ClaimedTurn { fence, session, run: row } = turn;
    everturn_crash::pass(Point::TurnBegun);
    if row.continues.is_some() {
        everturn_crash::pass(Point::ContinuationBegun);
    }
    let began = Instant::now();
    metrics::counter!("everturn_turns_started_total").increment(1);
    let mut journal = Journal::new(Arc::clone(shared), fence, control.clone());
    if row.stop.is_some() {
        // Stopped while nobody worked on it.
        control.stop.cancel();
    }
    let mut turn = Turn { shared, control, session: &session, run: &row, said: Said::default() };
    let end = match turn.go_on(&mut journal).await {
        Ok(end) => Some(end),
        Err(halt) => turn.halted(halt),
    };
    let Some(record) = end else {
        let (session, run) = (session.key(), &row.id);
        if control.abandoned.is_cancelled() {
            tracing::warn!(%session, %run, "the turn was ended, because this node leaves");
        } else {
            tracing::warn!(%session, %run, "the turn is another node's now");
            journal.leave().await;
        }
        return;
    };
    let settled = settle(&mut journal, &turn, record).await;
    let state = match settled {
        Settled::Ended(state) => state.as_str(),
        Settled::HandedOver => RunState::HandedOver.as_str(),
        Settled::Lost => "lost",
    };
    if matches!(settled, Settled::Lost) && !control.abandoned.is_cancelled() {
        journal.leave().await;
    }
    metrics::counter!("everturn_turns_ended_total", "state" => state).increment(1);
    metrics::histogram!("everturn_turn_seconds").record(began.elapsed().as_secs_f64());
}

/// What became of a turn whose last record was written.
enum Settled {
    Ended(TerminalState),
    HandedOver,
    /// It was not: the turn is somebody else's.
    Lost,
}

/// Writes the terminal record. A stop that was recorded first wins over the answer.
async fn settle(journal: &mut Journal, turn: &Turn<'_>, mut record: Record) -> Settled {
    loop {
        let state = match &record {
            Record::End(End::Completed { .. }) => Some(TerminalState::Completed),
            Record::End(End::Failed { .. } | End::Unprepared { .. }) => Some(TerminalState::Failed),
            Record::End(End::Cancelled { .. }) => Some(TerminalState::Cancelled),
            _ => None,
        };
        let halt = match journal.write(vec![record]).await {
            Ok(()) => return state.map_or(Settled::HandedOver, Settled::Ended),
            Err(halt) => halt,
        };
        // Each of these can happen once: the record that takes its place is always accepted.
        let next = match halt {
            Halt::Stopped if state != Some(TerminalState::Cancelled) => turn.halted(halt),
            Halt::Bug(_) if state != Some(TerminalState::Failed) => turn.halted(halt),
            _ => None,
        };
        let Some(next) = next else { return Settled::Lost };
        record = next;
    }
}

struct Turn<'a> {
    shared: &'a Shared,
    control: &'a TurnControl,
    session: &'a Session,
    run: &'a Run,
    /// What the request under way has said so far.
    said: Said,
}

impl Turn<'_> {
    /// Steps until the model has given its answer. Returns the record that ends the run.
    async fn go_on(&mut self, journal: &mut Journal) -> Result<Record, Halt> {
        let (shared, control) = (self.shared, self.control);
        let key = self.session.key();
        // Setting a provider up may ask a server of it, which may be as silent as any.
        let provider = tokio::select! {
            biased;
            () = control.lost.cancelled() => return Err(Halt::Lost),
            () = control.stop.cancelled() => return Err(Halt::Stopped),
            found = shared.config.models.provider(&self.run.model) => found,
            () = tokio::time::sleep(shared.config.watchdog.model) => Err(step::not_a_word(shared).failure()),
        };
        let provider = match provider {
            Ok(provider) => provider,
            Err(failure) => return Ok(self.failed_at(journal, failure)),
        };
        if self.run.continues.is_some() {
            calls::adopt(shared, journal, control, self.run).await?;
        }
        let mut in_place = self.can_resume(&*provider).await?;
        for _ in self.steps_done().await?..shared.config.steps_max {
            // Two step boundaries: what is intended and not begun, and what is to be asked next,
            // can both be done by whoever goes on.
            self.boundary()?;
            calls::run_open(shared, journal, control, &key, self.run).await?;
            self.boundary()?;
            let end = loop {
                let (request, resumes) = match self.request(&*provider, &key, in_place).await? {
                    Ok(request) => request,
                    Err(failure) => return Ok(self.failed_at(journal, failure)),
                };
                everturn_crash::pass(Point::TurnPrepared);
                let asked = step::ask(shared, journal, control, &*provider, request, resumes);
                let (end, said) = asked.await;
                self.said = said;
                match &end {
                    // It does not take its own beginning back: it is told what happened instead.
                    StepEnd::Failed(failure)
                        if resumes.is_some()
                            && self.said.is_silent()
                            && step::may_be_its_form(failure) =>
                    {
                        tracing::info!(run = %self.run.id, model = provider.model(), why = failure.message, "the model does not go on in the middle of its message");
                        in_place = false;
                    }
                    _ => break end,
                }
            };
            match end {
                StepEnd::Answered(reply) if reply.calls.is_empty() => {
                    return Ok(self.completed(reply));
                }
                StepEnd::Answered(reply) => {
                    let step = self.step(reply);
                    journal.write(vec![step]).await?;
                    self.said = Said::default();
                }
                StepEnd::Failed(failure) => return Ok(self.failed_at(journal, failure)),
                StepEnd::Halted(halt) => return Err(halt),
            }
        }
        Ok(self.failed(Failure {
            code: "too_many_steps".to_owned(),
            message: format!(
                "the turn made {} model requests without an answer",
                shared.config.steps_max
            ),
            permanent: false,
            hint: Some("ask the model to go on, or raise the limit on steps".to_owned()),
        }))
    }

    /// Whether the message that an interruption cut off may be continued where it ends: only if
    /// nothing more of it may still arrive.
    async fn can_resume(&self, provider: &dyn Provider) -> Result<bool, Halt> {
        let Some(before) = self.run.continues.as_ref().filter(|_| provider.continues_partial())
        else {
            return Ok(false);
        };
        let store = &self.shared.store;
        let before = retry_read(self.shared, self.control, || store.run(before)).await?;
        Ok(before.is_some_and(|run| run.late.is_none()))
    }

    /// Model requests that this run made before it was handed over: its count goes on. (A
    /// continuation is a run of its own and counts anew: how many there are has a limit as well.)
    async fn steps_done(&self) -> Result<u32, Halt> {
        if self.run.last_event != Event::<()>::RunHandedOver.name() {
            return Ok(0);
        }
        let key = self.session.key();
        let store = &self.shared.store;
        let rows = retry_read(self.shared, self.control, || store.transcript(&key)).await?;
        let steps = rows.iter().filter(|row| {
            row.run_id.as_ref() == Some(&self.run.id)
                && row.role == Role::Assistant
                && !row.tool_calls.is_empty()
        });
        Ok(u32::try_from(steps.count()).unwrap_or(u32::MAX))
    }

    /// Between two steps: here a stop is obeyed and a leaving node lets go.
    fn boundary(&self) -> Result<(), Halt> {
        if self.control.stop.is_cancelled() {
            return Err(Halt::Stopped);
        }
        if self.shared.is_draining() {
            return Err(Halt::Draining);
        }
        Ok(())
    }

    /// The model's view of the session, as of now, and the message that it is to go on writing.
    async fn request(
        &self,
        provider: &dyn Provider,
        key: &SessionKey,
        in_place: bool,
    ) -> Result<Result<(ModelRequest, Option<u64>), Failure>, Halt> {
        let store = &self.shared.store;
        let transcript = retry_read(self.shared, self.control, || store.transcript(key)).await?;
        let (resumes, messages) = match in_place.then(|| view::in_place(&transcript)).flatten() {
            Some((message, view)) => (Some(message), view),
            None => (None, view::build(&transcript)),
        };
        let mut system = self.shared.config.system.clone();
        if let Some(own) = &self.session.system {
            if !system.is_empty() {
                system.push_str("\n\n");
            }
            system.push_str(own);
        }
        let tokens = view::estimated_tokens(&system, &messages);
        if let Some(fits) = provider.context_tokens().filter(|fits| tokens > *fits) {
            return Ok(Err(Failure {
                code: "context_too_long".to_owned(),
                message: format!(
                    "the conversation has about {tokens} tokens and the model takes {fits}"
                ),
                permanent: true,
                hint: Some("start a new session, or use a model with a larger context".to_owned()),
            }));
        }
        let tools = self.shared.config.tools.specs();
        Ok(Ok((ModelRequest { system, messages, tools }, resumes)))
    }

    /// The record of a step that asks for tools: the intents are durable before anything happens.
    fn step(&self, reply: ModelReply) -> Record {
        let tools = &self.shared.config.tools;
        let calls = reply
            .calls
            .into_iter()
            .map(|call| {
                let spec = tools.get(&call.name).map(|tool| tool.spec());
                NewCall {
                    id: CallId::from_uuid(self.shared.store.clock().uuid()),
                    provider_id: call.provider_id,
                    effect: spec.map_or(Effect::Write, |spec| spec.effect),
                    schema: spec.map(|spec| spec.fingerprint()).unwrap_or_default(),
                    name: call.name,
                    arguments: call.arguments,
                }
            })
            .collect();
        Record::Step {
            text: self.said.text.clone(),
            reasoning: self.said.reasoning(),
            calls,
            usage: reply.usage,
        }
    }

    fn completed(&self, reply: ModelReply) -> Record {
        let reasoning = self.said.reasoning();
        let text = self.said.text.clone();
        Record::End(End::Completed { text, reasoning, usage: reply.usage })
    }

    /// A failure ends the turn. A continuation that failed before it had done anything (no key, no
    /// such model, a provider that refuses) spends no attempt: it can be tried again.
    fn failed_at(&self, journal: &Journal, failure: Failure) -> Record {
        let begun = self.run.last_seq > 1 || !journal.is_untouched();
        if self.run.continues.is_some() && !begun {
            return Record::End(End::Unprepared { failure });
        }
        self.failed(failure)
    }

    fn failed(&self, failure: Failure) -> Record {
        let reasoning = self.said.reasoning();
        let text = self.said.text.clone();
        Record::End(End::Failed { failure, text, reasoning })
    }

    /// The record that ends a turn which something outside ended; `None` where nothing of it may be
    /// written any more.
    fn halted(&self, halt: Halt) -> Option<Record> {
        let reasoning = self.said.reasoning();
        match halt {
            Halt::Lost => None,
            Halt::Stopped => {
                let text = self.said.text.clone();
                Some(Record::End(End::Cancelled { text, reasoning }))
            }
            Halt::Draining => Some(Record::HandedOver),
            Halt::Bug(what) => {
                tracing::error!(run = %self.run.id, what, "a record did not fit");
                Some(self.failed(Failure {
                    code: "internal".to_owned(),
                    message: format!("the turn could not be recorded: {what}"),
                    permanent: false,
                    hint: Some("this is a bug of Everturn; the log has the details".to_owned()),
                }))
            }
        }
    }
}
