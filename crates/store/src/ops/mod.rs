//! What each operation does to the rows, and which events it emits.
//!
//! Every function here runs inside one transaction of a backend, reads rows, decides with a pure
//! function of `everturn-core` where there is something to decide, and writes rows and events. It
//! never waits, never looks at a clock of its own and never talks to anyone.

mod admit;
mod claim;
mod control;
mod import;
mod interrupt;
mod journal;
mod late;
mod nodes;
mod prompt;
mod retention;
mod sessions;
mod write;

use everturn_core::{Lease, LeaseExpiry, Run, Session, SessionKey, Timestamp};
use uuid::Uuid;

use crate::clock::Clock;
use crate::error::{OpError, Refusal, StorageError};
use crate::op::{Committed, Op, Reply};
use crate::rows::Gap;
use crate::tx::Tx;

use journal::Journal;

/// What an operation is given besides its rows.
pub struct Ctx<'a> {
    /// The wall clock at the start of the transaction.
    pub now: Timestamp,
    /// The boot clock at the start of the transaction.
    pub boot: LeaseExpiry,
    clock: &'a dyn Clock,
}

impl<'a> Ctx<'a> {
    /// Reads the clocks once.
    #[must_use]
    pub fn new(clock: &'a dyn Clock) -> Self {
        Self { now: clock.now(), boot: clock.boot(), clock }
    }

    fn uuid(&self) -> Uuid {
        self.clock.uuid()
    }
}

impl std::fmt::Debug for Ctx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ctx").field("now", &self.now).finish_non_exhaustive()
    }
}

/// What an operation did, to be published after its commit.
#[derive(Debug)]
pub struct Applied {
    /// The answer.
    pub reply: Reply,
    /// Events and hints.
    pub committed: Committed,
    /// The commit must be synced although the operation itself would not need it (its numbers went
    /// beyond what an earlier synced commit reserved).
    pub must_sync: bool,
}

/// Applies one operation.
///
/// # Errors
/// A refusal or a storage failure; the backend then rolls the operation's savepoint back.
pub fn apply(tx: &mut dyn Tx, ctx: &Ctx<'_>, op: Op) -> Result<Applied, OpError> {
    let mut journal = Journal::new(ctx);
    let reply = match op {
        Op::RegisterNode(op) => Reply::Unit(nodes::register(tx, op)?),
        Op::EndNode(op) => Reply::Unit(nodes::end(tx, ctx, &op)?),
        Op::RenewLeases(op) => {
            let mut held = tx.renew(&op.node, &op.expiry)?;
            // In an order that does not depend on how rows are kept.
            held.sort();
            Reply::Renewed(held)
        }
        Op::SetPresence(op) => Reply::Unit(tx.put_presence(&op.key, &op.node, op.present)?),
        Op::CreateSession(op) => Reply::Session(Box::new(sessions::create(tx, &mut journal, op)?)),
        Op::PatchSession(op) => Reply::Session(Box::new(sessions::patch(tx, &mut journal, op)?)),
        Op::EndSession(op) => Reply::Session(Box::new(sessions::end(tx, &mut journal, op)?)),
        Op::DeleteSession(op) => Reply::Unit(sessions::delete(tx, &mut journal, &op)?),
        Op::Admit(op) => Reply::Admitted(Box::new(admit::admit(tx, &mut journal, op)?)),
        Op::CancelInput(op) => Reply::Input(Box::new(control::cancel(tx, &mut journal, &op)?)),
        Op::Stop(op) => Reply::Run(Box::new(control::stop(tx, &mut journal, &op)?)),
        Op::Decide(op) => Reply::Decided(Box::new(control::decide(tx, &mut journal, &op)?)),
        Op::Claim(op) => Reply::Claimed(Box::new(claim::claim(tx, &mut journal, op)?)),
        Op::Write(op) => Reply::Written(write::write(tx, &mut journal, op)?),
        Op::Interrupt(op) => Reply::Interrupted(interrupt::interrupt(tx, &mut journal, op)?),
        Op::ImportRun(op) => Reply::Imported(Box::new(import::import(tx, &mut journal, op)?)),
        Op::Reconsider(op) => Reply::Interrupted(interrupt::reconsider(tx, &mut journal, &op)?),
        Op::CloseUndecided(op) => Reply::Bool(interrupt::close_undecided(tx, &mut journal, &op)?),
        Op::Deposit(op) => Reply::Bool(late::deposit(tx, &journal, op)?),
        Op::LookLate(op) => Reply::Looked(late::look(tx, &mut journal, &op)?),
        Op::AnswerPrompt(op) => Reply::Prompt(Box::new(prompt::answer(tx, &mut journal, op)?)),
        Op::CreateToken(op) => Reply::Unit(tx.put_token(&op.token)?),
        Op::RevokeToken(op) => Reply::Bool(nodes::revoke_token(tx, ctx, &op)?),
        Op::TouchToken(op) => Reply::Unit(nodes::touch_token(tx, ctx, &op)?),
        Op::RevokeGrant(op) => Reply::Bool(tx.remove_grant(&op.principal, &op.tool)?),
        Op::Prune(op) => {
            tx.prune_nodes(op.before)?;
            Reply::Count(tx.prune_tombstones(op.before)?)
        }
        Op::PruneEvents(op) => Reply::Pruned(retention::prune(tx, op)?),
    };
    let (committed, must_sync) = journal.finish();
    Ok(Applied { reply, committed, must_sync })
}

/// The session of a key, or the reason why there is none.
fn existing(tx: &mut dyn Tx, ctx: &Ctx<'_>, key: &SessionKey) -> Result<Session, OpError> {
    if let Some(session) = session_now(tx, ctx, key)? {
        return Ok(session);
    }
    let refusal = if tx.tombstone(key)?.is_some() {
        Refusal::SessionDeleted
    } else {
        Refusal::SessionNotFound
    };
    Err(refusal.into())
}

/// The session of a key, with its numbers above whatever anybody may have seen of it: if the machine
/// was started anew under a running turn, the events after its last synced commit may be gone, and
/// their numbers are given to nothing else (promise P7).
fn session_now(
    tx: &mut dyn Tx,
    ctx: &Ctx<'_>,
    key: &SessionKey,
) -> Result<Option<Session>, StorageError> {
    let Some(mut session) = tx.session(key)? else { return Ok(None) };
    let rebooted = |lease: &Lease| lease.expiry.boot_id != ctx.boot.boot_id;
    if session.running.is_none() || !session.lease.as_ref().is_some_and(rebooted) {
        return Ok(Some(session));
    }
    if let Some(mut run) = running(tx, &session)? {
        skip_reserved(tx, &mut session, &mut run)?;
        tx.put_run(&run)?;
    }
    if let Some(lease) = &mut session.lease {
        // Done once: the lease has run out all the same, and in this boot.
        lease.expiry = LeaseExpiry { boot_id: ctx.boot.boot_id.clone(), boot_ms: 0 };
    }
    tx.put_session(&session)?;
    Ok(Some(session))
}

/// Passes over all numbers that a session has reserved, and records the gap.
fn skip_reserved(
    tx: &mut dyn Tx,
    session: &mut Session,
    run: &mut Run,
) -> Result<(), StorageError> {
    let lost = session.offset_ceiling.saturating_sub(session.last_offset);
    if lost == 0 {
        return Ok(());
    }
    let gap = Gap {
        from_offset: session.last_offset + 1,
        to_offset: session.last_offset + lost,
        from_seq: run.last_seq + 1,
        to_seq: run.last_seq + lost,
    };
    tx.put_gap(&session.key(), &run.id, &gap)?;
    session.last_offset += lost;
    run.last_seq += lost;
    Ok(())
}

/// The unfinished run of a session.
fn running(tx: &mut dyn Tx, session: &Session) -> Result<Option<Run>, StorageError> {
    match &session.running {
        Some(id) => tx.run(id),
        None => Ok(None),
    }
}
