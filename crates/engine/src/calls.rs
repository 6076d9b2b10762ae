//! Tool calls: permission, intent, execution, result (promise P9).

use std::time::Duration;

use everturn_agent::tool::{Tool, ToolInvocation, ToolOutcome};
use everturn_core::event::Record;
use everturn_core::{CallState, Permission, Run, SessionKey, ToolCall, limits};
use everturn_crash::Point;
use everturn_store::StorageError;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::asks::Asks;
use crate::control::TurnControl;
use crate::engine::Shared;
use crate::journal::{Deltas, Halt, Journal};
use crate::patience::Patience;

/// How long a tool has to end when a person or the watchdog tells it to. (The supervisor of a command gives its
/// processes less.)
const ENDING: Duration = Duration::from_secs(10);

/// Runs the calls of a run that have a record and no result, in order.
pub(crate) async fn run_open(
    shared: &Shared,
    journal: &mut Journal,
    control: &TurnControl,
    key: &SessionKey,
    run: &Run,
) -> Result<(), Halt> {
    let calls = retry_read(shared, control, || shared.store.run_calls(&run.id)).await?;
    for call in calls {
        if control.stop.is_cancelled() {
            return Err(Halt::Stopped);
        }
        if shared.is_draining() {
            return Err(Halt::Draining);
        }
        match call.state {
            CallState::Intended => one(shared, journal, control, key, run, &call).await?,
            // Handed over in the middle of a call: that does not happen, and if it did, nobody
            // knows how it ended.
            CallState::Running => {
                let result = everturn_core::view::unfinished_text(CallState::Unknown).to_owned();
                finish(journal, &call, CallState::Unknown, result).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes over what an interrupted run left: calls that never began, and calls that declare
/// themselves safe to repeat. All others keep their unknown outcome.
pub(crate) async fn adopt(
    shared: &Shared,
    journal: &mut Journal,
    control: &TurnControl,
    run: &Run,
) -> Result<(), Halt> {
    let mut chain = Vec::new();
    let mut before = run.continues.clone();
    while let Some(id) = before {
        let calls = retry_read(shared, control, || shared.store.run_calls(&id)).await?;
        chain.push(calls);
        before = retry_read(shared, control, || shared.store.run(&id))
            .await?
            .and_then(|run| run.continues);
    }
    for calls in chain.into_iter().rev() {
        for call in calls {
            let safe = match call.state {
                CallState::NotRun => call.started_at.is_none() && call.result.is_none(),
                CallState::Unknown => call.effect.repeatable(),
                _ => false,
            };
            if safe {
                journal.write(vec![Record::CallAdopted(call.id.clone())]).await?;
            }
        }
    }
    Ok(())
}

/// One call, from permission to result.
async fn one(
    shared: &Shared,
    journal: &mut Journal,
    control: &TurnControl,
    key: &SessionKey,
    run: &Run,
    call: &ToolCall,
) -> Result<(), Halt> {
    let Some(tool) = shared.config.tools.get(&call.name).cloned() else {
        let names: Vec<_> = shared.config.tools.specs().into_iter().map(|spec| spec.name).collect();
        let text = format!("There is no tool named {:?}. Tools: {}.", call.name, names.join(", "));
        return fail_unstarted(journal, call, text).await;
    };
    let arguments = match serde_json::from_str::<Value>(&call.arguments) {
        Ok(Value::Object(arguments)) => Value::Object(arguments),
        _ if call.arguments.trim().is_empty() => Value::Object(serde_json::Map::new()),
        Ok(_) => {
            let text = "The arguments are not a JSON object; nothing was run.".to_owned();
            return fail_unstarted(journal, call, text).await;
        }
        Err(error) => {
            let text = format!("The arguments are not valid JSON ({error}); nothing was run.");
            return fail_unstarted(journal, call, text).await;
        }
    };
    let question = match tool.question(&arguments) {
        Some(Ok(question)) => Some(question),
        Some(Err(text)) => return fail_unstarted(journal, call, text).await,
        None => None,
    };
    if !call.schema.is_empty() && call.schema != tool.spec().fingerprint() {
        let text = "The tool changed since this call was made; it was not run.".to_owned();
        return finish(journal, call, CallState::NotRun, text).await;
    }
    match permission(shared, control, key, call, &*tool).await? {
        Permission::Allow => {}
        Permission::Deny => {
            let text = "The session's policy denies this tool; the call did not run.".to_owned();
            return finish(journal, call, CallState::Denied, text).await;
        }
        Permission::Ask => {
            let asking = Asks { shared, control, key, run, call };
            if let Err(refused) = asking.approve(journal).await? {
                return finish(journal, call, refused.0, refused.1).await;
            }
        }
    }
    if let Some(question) = question {
        let asking = Asks { shared, control, key, run, call };
        return match asking.clarify(journal, question).await? {
            Ok(mut answer) => {
                limit(&mut answer, limits::TOOL_RESULT_BYTES_MAX);
                succeed_unstarted(journal, call, answer).await
            }
            Err(refused) => finish(journal, call, refused.0, refused.1).await,
        };
    }
    everturn_crash::pass(Point::CallAllowed);
    journal.write(vec![Record::CallStarted(call.id.clone())]).await?;
    everturn_crash::pass(Point::CallStarted);
    execute(shared, journal, control, key, call, arguments, tool).await
}

/// What the session's policy, as it is now, says of a call.
async fn permission(
    shared: &Shared,
    control: &TurnControl,
    key: &SessionKey,
    call: &ToolCall,
    tool: &dyn Tool,
) -> Result<Permission, Halt> {
    let view = retry_read(shared, control, || shared.store.session(key)).await?;
    let Some(view) = view else { return Err(Halt::Lost) };
    let grants = retry_read(shared, control, || shared.store.grants(&key.principal)).await?;
    let effect = tool.spec().effect;
    let permission =
        view.session.policy.permission(&call.name, effect, grants.contains(&call.name));
    // Whoever started this process answered every question of these tools in advance.
    let is_allowed_here = shared.config.allowed_tools.contains(&call.name);
    Ok(match permission {
        Permission::Ask if is_allowed_here => Permission::Allow,
        other => other,
    })
}

/// Runs a call whose start is recorded, with its output streamed into the journal.
async fn execute(
    shared: &Shared,
    journal: &mut Journal,
    control: &TurnControl,
    key: &SessionKey,
    call: &ToolCall,
    arguments: Value,
    tool: Arc<dyn Tool>,
) -> Result<(), Halt> {
    let cancel = tokio_util::sync::CancellationToken::new();
    let (output, mut pieces) = mpsc::channel::<String>(64);
    let invocation = ToolInvocation {
        call_id: call.id.clone(),
        session_id: key.id.clone(),
        arguments,
        // Stable for the call: a continuation that takes it over keeps its id.
        idempotency_key: call.id.to_string(),
        cancel: cancel.clone(),
        lease_deadline: shared.leases.deadline(),
        output,
    };
    metrics::counter!("everturn_tool_calls_total").increment(1);
    let mut running = tokio::spawn(async move { tool.run(invocation).await });
    let mut deltas = Deltas::new(shared.config.coalesce);
    let mut halted: Option<Halt> = None;
    let watchdog = shared.config.watchdog.tool;
    let mut heard = Instant::now();
    // Ended by the watchdog, and given a moment to say how it ended.
    let mut silent = false;
    let mut ended_by: Option<Instant> = None;
    let outcome = loop {
        if deltas.is_due()
            && halted.is_none()
            && let Err(halt) = journal.write(deltas.take()).await
        {
            if halt == Halt::Lost {
                return end_hard(journal, call, running).await;
            }
            halted = Some(halt);
            ended_by = Some(Instant::now() + ENDING);
            cancel.cancel();
        }
        let due = deltas.due().filter(|_| halted.is_none());
        tokio::select! {
            biased;
            () = control.lost.cancelled() => return end_hard(journal, call, running).await,
            () = control.stop.cancelled(), if halted.is_none() => {
                halted = Some(Halt::Stopped);
                ended_by = Some(Instant::now() + ENDING);
                cancel.cancel();
            }
            outcome = &mut running => break outcome,
            () = tokio::time::sleep_until(heard + watchdog), if !silent => {
                tracing::warn!(session = %key, call = %call.id, "the watchdog ends a silent tool");
                metrics::counter!("everturn_watchdog_total", "phase" => "tool").increment(1);
                silent = true;
                ended_by.get_or_insert(Instant::now() + ENDING);
                cancel.cancel();
            }
            // It did not even end when it was told to, whatever it goes on saying.
            () = wait(ended_by) => {
                running.abort();
                break (&mut running).await;
            }
            Some(text) = pieces.recv() => {
                heard = Instant::now();
                if halted.is_none() {
                    deltas.push(Record::CallOutput { call_id: call.id.clone(), text });
                }
            }
            () = wait(due) => {}
        }
    };
    while let Ok(text) = pieces.try_recv() {
        deltas.push(Record::CallOutput { call_id: call.id.clone(), text });
    }
    everturn_crash::pass(Point::CallReturned);
    let mut records = deltas.take();
    let outcome = if silent { Ok(after_silence(outcome, watchdog)) } else { outcome };
    records.push(finished(call, outcome));
    journal.write(records).await?;
    match halted {
        Some(halt) => Err(halt),
        None => Ok(()),
    }
}

/// What is told of a tool that the watchdog ended: how it ended, and why.
fn after_silence(
    outcome: Result<ToolOutcome, tokio::task::JoinError>,
    limit: Duration,
) -> ToolOutcome {
    let why =
        format!("[The watchdog ended this call: it had said nothing for {} s.]\n", limit.as_secs());
    match outcome {
        Ok(ToolOutcome::Succeeded(text)) => ToolOutcome::Succeeded(why + &text),
        Ok(ToolOutcome::Failed(text)) => ToolOutcome::Failed(why + &text),
        Ok(ToolOutcome::NotRun(text)) => ToolOutcome::NotRun(why + &text),
        Ok(ToolOutcome::Unknown(text)) => ToolOutcome::Unknown(why + &text),
        Err(_) => ToolOutcome::Unknown(
            why + "It did not end by itself; what it did until then is not known.",
        ),
    }
}

/// The record of how a tool ended.
fn finished(call: &ToolCall, outcome: Result<ToolOutcome, tokio::task::JoinError>) -> Record {
    let (state, mut result) = match outcome {
        Ok(ToolOutcome::Succeeded(text)) => (CallState::Succeeded, text),
        Ok(ToolOutcome::Failed(text)) => (CallState::Failed, text),
        Ok(ToolOutcome::NotRun(text)) => (CallState::NotRun, text),
        Ok(ToolOutcome::Unknown(text)) => (CallState::Unknown, text),
        Err(error) => (CallState::Unknown, format!("The tool broke down: {error}")),
    };
    limit(&mut result, limits::TOOL_RESULT_BYTES_MAX);
    Record::CallFinished { call_id: call.id.clone(), state, result }
}

/// Somebody else may go on with this session: the tool gets no grace, and nothing is written. What
/// had ended by itself is known, and left for whoever goes on.
async fn end_hard(
    journal: &mut Journal,
    call: &ToolCall,
    running: tokio::task::JoinHandle<ToolOutcome>,
) -> Result<(), Halt> {
    if running.is_finished() {
        let outcome = running.await;
        journal.keep(vec![finished(call, outcome)]);
    } else {
        running.abort();
        let _ = running.await;
    }
    Err(Halt::Lost)
}

async fn wait(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// A call that cannot be run at all. It begins and fails in one commit, so that its failure is a
/// result like any other.
async fn fail_unstarted(journal: &mut Journal, call: &ToolCall, text: String) -> Result<(), Halt> {
    at_once(journal, call, CallState::Failed, text).await
}

/// A call whose result is there without anything that ran: a person gave it.
async fn succeed_unstarted(
    journal: &mut Journal,
    call: &ToolCall,
    text: String,
) -> Result<(), Halt> {
    at_once(journal, call, CallState::Succeeded, text).await
}

async fn at_once(
    journal: &mut Journal,
    call: &ToolCall,
    state: CallState,
    result: String,
) -> Result<(), Halt> {
    let finished = Record::CallFinished { call_id: call.id.clone(), state, result };
    journal.write(vec![Record::CallStarted(call.id.clone()), finished]).await
}

async fn finish(
    journal: &mut Journal,
    call: &ToolCall,
    state: CallState,
    result: String,
) -> Result<(), Halt> {
    journal.write(vec![Record::CallFinished { call_id: call.id.clone(), state, result }]).await
}

/// Cuts a text at a character boundary, and says so.
fn limit(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let mut at = bytes;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.truncate(at);
        text.push_str("\n[cut here]");
    }
}

/// Reads, and while the store is away tries again: a turn waits for its store, as long as the watchdog
/// allows.
pub(crate) async fn retry_read<T, F>(
    shared: &Shared,
    control: &TurnControl,
    read: impl Fn() -> F,
) -> Result<T, Halt>
where
    F: Future<Output = Result<T, StorageError>>,
{
    let mut patience = Patience::default();
    let limit = shared.config.watchdog.store;
    let given_up = Instant::now() + limit;
    loop {
        let read = tokio::select! {
            biased;
            () = control.lost.cancelled() => return Err(Halt::Lost),
            () = shared.closed.cancelled() => return Err(Halt::Lost),
            read = tokio::time::timeout_at(given_up, read()) => read,
        };
        let pause = match read {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if Instant::now() < given_up => {
                shared.noise.say("cannot read; a turn waits", &error);
                patience.pause(Some(error.kind))
            }
            Ok(Err(_)) | Err(_) => {
                let run = &control.run_id;
                tracing::error!(%run, after_s = limit.as_secs(), "the store answers nothing; the turn lets go");
                metrics::counter!("everturn_watchdog_total", "phase" => "store").increment(1);
                shared.note_let_go(run, limit.as_secs());
                return Err(Halt::Lost);
            }
        };
        tokio::select! {
            biased;
            () = control.lost.cancelled() => return Err(Halt::Lost),
            () = shared.closed.cancelled() => return Err(Halt::Lost),
            () = tokio::time::sleep(pause) => {}
        }
    }
}
