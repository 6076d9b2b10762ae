//! One step: a model request, streamed into the journal.

use everturn_agent::provider::{Cut, ModelEvent, ModelReply, ModelRequest, ModelStream, Provider};
use everturn_agent::provider::{ProviderError, ProviderErrorKind};
use everturn_agent::retry::{RetryNotice, request_with_retry};
use everturn_core::event::Record;
use everturn_core::{Failure, limits};
use futures::StreamExt as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::control::TurnControl;
use crate::engine::Shared;
use crate::journal::{Deltas, Halt, Journal};

/// What the model said so far, as viewers saw it: nothing is in here that is not committed.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) reasoning: String,
}

impl Said {
    /// Writes what waits, and then knows it as said.
    async fn write(&mut self, journal: &mut Journal, deltas: &mut Deltas) -> Result<(), Halt> {
        let records = deltas.take();
        let (mut text, mut reasoning) = (String::new(), String::new());
        for record in &records {
            match record {
                Record::TextDelta(delta) => text.push_str(delta),
                Record::ReasoningDelta(delta) => reasoning.push_str(delta),
                _ => {}
            }
        }
        journal.write(records).await?;
        self.text.push_str(&text);
        self.reasoning.push_str(&reasoning);
        Ok(())
    }

    /// Whether nothing was said.
    pub(crate) fn is_silent(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty()
    }

    pub(crate) fn reasoning(&self) -> Option<String> {
        (!self.reasoning.is_empty()).then(|| self.reasoning.clone())
    }
}

/// How a step ended.
pub(crate) enum StepEnd {
    /// The answer is complete.
    Answered(ModelReply),
    /// The provider failed, for good.
    Failed(Failure),
    /// Something outside ended it.
    Halted(Halt),
}

/// Asks the model. Everything that it says is committed before anyone sees it; what it said when
/// the step ended, however it ended, is in the second value. `resumes` names the message that it goes
/// on writing, if it does.
pub(crate) async fn ask(
    shared: &Shared,
    journal: &mut Journal,
    control: &TurnControl,
    provider: &dyn Provider,
    request: ModelRequest,
    resumes: Option<u64>,
) -> (StepEnd, Said) {
    let mut said = Said::default();
    let retries = AtomicU32::new(0);
    let (progress, seen) = watch::channel(Instant::now());
    let mut on_retry = |notice: RetryNotice| {
        retries.fetch_add(1, Ordering::Relaxed);
        // The pause before the next try is not the model's silence.
        progress.send_replace(Instant::now() + notice.wait);
    };
    let sent = tokio::select! {
        biased;
        () = control.lost.cancelled() => return (StepEnd::Halted(Halt::Lost), said),
        () = control.stop.cancelled() => return (StepEnd::Halted(Halt::Stopped), said),
        sent = request_with_retry(provider, &request, &shared.config.retry, &mut on_retry) => sent,
        () = silent(seen, shared.config.watchdog.model) => Err(not_a_word(shared)),
    };
    let retries = retries.into_inner();
    if retries > 0 {
        metrics::counter!("everturn_model_retries_total").increment(u64::from(retries));
    }
    let end = match sent {
        Ok(stream) => take(shared, journal, control, stream, resumes, &mut said).await,
        Err(error) => StepEnd::Failed(error.failure()),
    };
    (end, said)
}

/// Takes the stream in, delta by delta.
async fn take(
    shared: &Shared,
    journal: &mut Journal,
    control: &TurnControl,
    mut stream: ModelStream,
    resumes: Option<u64>,
    said: &mut Said,
) -> StepEnd {
    let mut deltas = Deltas::new(shared.config.coalesce);
    if let Some(message_id) = resumes {
        // Before anything that it says: whoever reads on from here knows where it belongs.
        deltas.push(Record::TextResumed { message_id });
    }
    let mut bytes = 0_usize;
    let mut heard = Instant::now();
    let end = loop {
        if deltas.is_due()
            && let Err(halt) = said.write(journal, &mut deltas).await
        {
            return StepEnd::Halted(halt);
        }
        let due = deltas.due();
        let silent_at = heard + shared.config.watchdog.model;
        let event = tokio::select! {
            biased;
            () = control.lost.cancelled() => {
                journal.keep(deltas.take());
                return StepEnd::Halted(Halt::Lost);
            }
            () = control.stop.cancelled() => break StepEnd::Halted(Halt::Stopped),
            event = stream.next() => event,
            () = sleep_until(due) => continue,
            () = tokio::time::sleep_until(silent_at) => Some(Err(not_a_word(shared))),
        };
        heard = Instant::now();
        if let Some(Ok(ModelEvent::Text(text) | ModelEvent::Reasoning(text))) = &event {
            bytes += text.len();
            if bytes > limits::ANSWER_BYTES_MAX {
                break StepEnd::Failed(too_large("text", limits::ANSWER_BYTES_MAX));
            }
        }
        match event {
            Some(Ok(ModelEvent::Text(text))) => deltas.push(Record::TextDelta(text)),
            Some(Ok(ModelEvent::Reasoning(text))) => deltas.push(Record::ReasoningDelta(text)),
            Some(Ok(ModelEvent::Done(reply))) => break done(reply),
            Some(Err(error)) => break StepEnd::Failed(error.failure()),
            None => {
                let error = ProviderError {
                    kind: ProviderErrorKind::Broken,
                    message: "the model's answer ended without its end".to_owned(),
                    retry_after: None,
                };
                break StepEnd::Failed(error.failure());
            }
        }
    };
    // What came before the end is shown before the end. After a stop nothing more is.
    if !matches!(end, StepEnd::Halted(_))
        && let Err(halt) = said.write(journal, &mut deltas).await
    {
        return StepEnd::Halted(halt);
    }
    end
}

/// Whether a request may have failed for its form. Most servers refuse what they do not take; some
/// fail over it, and cannot be told from ones that are down.
pub(crate) fn may_be_its_form(failure: &Failure) -> bool {
    matches!(failure.code.as_str(), "model_refused" | "model_unavailable" | "model_malformed")
}

fn too_large(what: &str, max: usize) -> Failure {
    Failure {
        code: "model_answer_too_large".to_owned(),
        message: format!("the model's answer has more than {max} bytes of {what}"),
        permanent: false,
        hint: Some("what came until then is kept; ask for less at once".to_owned()),
    }
}

fn done(reply: ModelReply) -> StepEnd {
    let arguments: usize = reply.calls.iter().map(|call| call.arguments.len()).sum();
    if arguments > limits::ARGUMENTS_BYTES_MAX {
        return StepEnd::Failed(too_large("tool arguments", limits::ARGUMENTS_BYTES_MAX));
    }
    match reply.cut {
        Some(Cut::Filter) => StepEnd::Failed(Failure {
            code: "model_filtered".to_owned(),
            message: "the provider's content filter cut the answer off".to_owned(),
            permanent: true,
            hint: Some("put the request in other words".to_owned()),
        }),
        // Half a list of calls is no list.
        Some(Cut::Length) if !reply.calls.is_empty() => StepEnd::Failed(Failure {
            code: "model_output_limit".to_owned(),
            message: "the answer reached the model's output limit within its tool calls".to_owned(),
            permanent: true,
            hint: Some("ask for less at once, or raise the model's output limit".to_owned()),
        }),
        Some(Cut::Length) | None => StepEnd::Answered(reply),
    }
}

/// Ends when nothing was heard for longer than a limit.
async fn silent(seen: watch::Receiver<Instant>, limit: Duration) {
    loop {
        let due = *seen.borrow() + limit;
        if due <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(due).await;
    }
}

/// The watchdog ends a model request.
pub(crate) fn not_a_word(shared: &Shared) -> ProviderError {
    let after_s = shared.config.watchdog.model.as_secs();
    tracing::warn!(after_s, "the watchdog ends a silent model request");
    metrics::counter!("everturn_watchdog_total", "phase" => "model").increment(1);
    ProviderError {
        kind: ProviderErrorKind::Stalled,
        message: format!("the watchdog ended the request: nothing came of it for {after_s} s"),
        retry_after: None,
    }
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
