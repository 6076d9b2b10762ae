//! What ends a tool from outside: a stop, or the end of the node's lease (promise P11).

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{ToolInvocation, ToolOutcome};
use crate::supervisor::boot_ms;

/// Milliseconds that a tool which works on files is waited for after it was told to end.
pub const FILE_TOOL_END_MS: u64 = 1_000;

/// Whether a tool may go on.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    cancel: CancellationToken,
    lease: watch::Receiver<u64>,
}

impl Guard {
    pub(super) fn of(invocation: &ToolInvocation) -> Self {
        Self { cancel: invocation.cancel.clone(), lease: invocation.lease_deadline.clone() }
    }

    /// Why it may not go on, if it may not.
    pub(super) fn ended_because(&self) -> Option<&'static str> {
        if self.cancel.is_cancelled() {
            Some("the turn was stopped")
        } else if *self.lease.borrow() <= boot_ms() {
            Some("the server was about to lose this session to another one")
        } else {
            None
        }
    }

    /// The outcome of a tool that has done nothing yet and may not begin.
    pub(super) fn check(&self) -> Result<(), ToolOutcome> {
        match self.ended_because() {
            Some(why) => Err(ToolOutcome::NotRun(format!("nothing was done: {why}"))),
            None => Ok(()),
        }
    }

    /// Completes when it may not go on any more.
    pub(super) async fn ended(&self) {
        let mut lease = self.lease.clone();
        loop {
            if self.ended_because().is_some() {
                return;
            }
            let left = lease.borrow_and_update().saturating_sub(boot_ms());
            // Looks again now and then: the awake clock says nothing of time asleep.
            let left = Duration::from_millis(left.clamp(1, 1_000));
            tokio::select! {
                () = self.cancel.cancelled() => return,
                Ok(()) = lease.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// Does the work of a tool on a thread where it may wait for the disk. The work is to look at the
/// guard now and then, and before it changes anything.
pub(super) async fn blocking(
    invocation: &ToolInvocation,
    work: impl FnOnce(&Guard) -> ToolOutcome + Send + 'static,
) -> ToolOutcome {
    let guard = Guard::of(invocation);
    if let Err(outcome) = guard.check() {
        return outcome;
    }
    let theirs = guard.clone();
    let mut task = tokio::task::spawn_blocking(move || work(&theirs));
    let ended = async {
        guard.ended().await;
        tokio::time::sleep(Duration::from_millis(FILE_TOOL_END_MS)).await;
    };
    tokio::select! {
        biased;
        done = &mut task => done.unwrap_or_else(|error| {
            tracing::error!(%error, "a tool panicked");
            ToolOutcome::Unknown(
                "the tool broke down, which is a fault of the server; its outcome is unknown"
                    .to_owned(),
            )
        }),
        () = ended => ToolOutcome::Unknown(
            "the tool was told to end but still waits for the file system; its outcome is unknown"
                .to_owned(),
        ),
    }
}
