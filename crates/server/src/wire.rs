//! From what the store holds to what clients are shown, where that takes more than one row.

use everturn_api::in_flight::{InFlightInput, InFlightOutput};
use everturn_api::message::ToolCall;
use everturn_api::prompt::Prompt;
use everturn_api::run::Evidence as WireEvidence;
use everturn_api::session::{Interrupted, Session as WireSession};
use everturn_core::{Cause, Evidence, Lease, Run, Session, SessionState, recovery};
use everturn_store::StorageError;
use everturn_store::in_flight::InFlight;
use everturn_store::read::SessionView;
use serde_json::json;

use crate::state::Server;

/// A session as clients see it: with the viewers of every node, and with an interruption that nobody
/// has recorded yet.
///
/// # Virtual interruptions
/// While a run has no end although nobody works on it, its session is shown as `interrupted`, with
/// the run that is meant and what can be observed. Nothing of that is stored, and nothing gets an id:
/// whoever takes the session's lease records it, or the holder comes back and goes on.
pub(crate) async fn session(
    server: &Server,
    view: SessionView,
) -> Result<WireSession, StorageError> {
    let engine = server.engine();
    let mut viewers = engine.viewers(&view.session.key());
    for node in &view.present {
        if node != engine.node() && engine.node_gone(node).await != Some(true) {
            viewers = viewers.saturating_add(1);
        }
    }
    let mut wire = WireSession::new(
        &view.session,
        view.running.as_ref(),
        view.interrupted.as_ref(),
        view.chain_generation,
        viewers,
    );
    if let Some(run) = &view.running
        && is_interrupted_virtually(server, &view.session, run).await?
    {
        let evidence = server.engine().evidence(run).await?;
        let cause = virtual_cause(&evidence);
        wire.state = SessionState::Interrupted.to_string();
        wire.running = None;
        wire.interrupted = Some(Interrupted {
            run_id: run.id.to_string(),
            generation: run.generation,
            cause: cause.to_string(),
            evidence: Some(WireEvidence::new(&evidence, cause)),
            reason: None,
            pending: false,
            in_flight: None,
        });
    }
    Ok(wire)
}

/// A session with the picture of its turn under way: beside the turn, or beside its interruption
/// while that is only seen.
pub(crate) async fn session_in_flight(
    server: &Server,
    view: SessionView,
    picture: Option<InFlight>,
) -> Result<WireSession, StorageError> {
    let mut wire = session(server, view).await?;
    let picture = picture.map(in_flight);
    match (&mut wire.running, &mut wire.interrupted) {
        (Some(running), _) => running.in_flight = picture,
        (None, Some(interrupted)) => interrupted.in_flight = picture,
        (None, None) => {}
    }
    Ok(wire)
}

fn in_flight(from: InFlight) -> everturn_api::in_flight::InFlight {
    everturn_api::in_flight::InFlight {
        seq: from.seq,
        inputs: from
            .inputs
            .iter()
            .map(|input| InFlightInput {
                id: input.id.to_string(),
                kind: input.kind.to_string(),
                text: input.content.plain(),
            })
            .collect(),
        text: from.text,
        reasoning: from.reasoning,
        resumes: from.resumes,
        truncated: from.truncated,
        calls: from.calls.iter().map(ToolCall::from).collect(),
        outputs: from
            .outputs
            .into_iter()
            .map(|(call, text)| InFlightOutput { call_id: call.to_string(), text })
            .collect(),
        prompts: from
            .prompts
            .iter()
            .map(|(prompt, call)| Prompt::new(prompt, call.as_ref()))
            .collect(),
    }
}

/// The data of the snapshot that a feed without a cursor begins with.
pub(crate) async fn snapshot(server: &Server, view: SessionView) -> Result<String, StorageError> {
    let at = server.engine().clock().now().rfc3339();
    let session = session(server, view).await?;
    let data = json!({
        "session_id": session.id, "offset": session.offset,
        "event": "session.updated", "at": at, "session": session,
    });
    Ok(data.to_string())
}

/// A run as clients see it.
pub(crate) async fn run(
    server: &Server,
    run: &Run,
) -> Result<everturn_api::run::Run, StorageError> {
    let mut wire = everturn_api::run::Run::from(run);
    if run.terminal_state.is_none() && server.engine().interrupted_virtually(run).await? {
        let evidence = server.engine().evidence(run).await?;
        let cause = virtual_cause(&evidence);
        wire.interrupted_virtually = true;
        wire.cause = Some(cause.to_string());
        wire.evidence = Some(WireEvidence::new(&evidence, cause));
    }
    Ok(wire)
}

async fn is_interrupted_virtually(
    server: &Server,
    session: &Session,
    run: &Run,
) -> Result<bool, StorageError> {
    // The usual case, without another read: this node holds the session.
    if session.lease.as_ref().is_some_and(|lease| lease.holder == *server.engine().node()) {
        return Ok(false);
    }
    server.engine().interrupted_virtually(run).await
}

/// The cause as far as it can be told before the lease is taken: a holder that still lives has lost
/// nothing to anybody yet.
fn virtual_cause(evidence: &Evidence) -> Cause {
    match recovery::cause(evidence) {
        Cause::SplitBrain => Cause::Unknown,
        cause => cause,
    }
}

/// Another living process that holds a session.
pub(crate) async fn other_holder(server: &Server, lease: Option<&Lease>) -> Option<Lease> {
    let engine = server.engine();
    let lease = lease.filter(|lease| lease.holder != *engine.node())?;
    if lease.expiry.passed(&engine.clock().boot()) {
        return None;
    }
    (engine.node_gone(&lease.holder).await != Some(true)).then(|| lease.clone())
}
