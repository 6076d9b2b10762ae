//! Creating, changing, closing and deleting sessions.

use everturn_core::{Policy, Session, SessionKey, Timestamp, limits};

use super::admit::withdraw;
use super::existing;
use super::journal::Journal;
use crate::error::{OpError, Refusal};
use crate::op::{CreateSession, DeleteSession, EndSession, PatchSession, Signal};
use crate::rows::Tombstone;
use crate::tx::Tx;

/// A session that does not exist yet, if the principal may have one more.
pub(super) fn fresh(
    tx: &mut dyn Tx,
    now: Timestamp,
    key: SessionKey,
    policy: Policy,
    sessions_max: u64,
) -> Result<Session, OpError> {
    if tx.count_sessions(&key.principal)? >= sessions_max {
        return Err(Refusal::TooManySessions { max: sessions_max }.into());
    }
    Ok(Session {
        id: key.id,
        principal: key.principal,
        title: None,
        model: None,
        system: None,
        policy,
        metadata: None,
        generation: 0,
        revision: 0,
        lease: None,
        epoch: 0,
        last_offset: 0,
        offset_ceiling: limits::OFFSET_RESERVE,
        last_message_id: 0,
        last_queue_key: 0,
        queue_length: 0,
        running: None,
        interrupted: None,
        quiet: false,
        created_at: now,
        updated_at: now,
        ended_at: None,
        end_reason: None,
    })
}

pub(super) fn create(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: CreateSession,
) -> Result<Session, OpError> {
    if tx.session(&op.key)?.is_some() {
        return Err(Refusal::SessionExists.into());
    }
    if tx.tombstone(&op.key)?.is_some() {
        return Err(Refusal::SessionDeleted.into());
    }
    let mut session = fresh(tx, journal.now(), op.key, op.policy, op.sessions_max)?;
    session.title = op.title;
    session.model = op.model;
    session.system = op.system;
    session.metadata = op.metadata;
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(session)
}

pub(super) fn patch(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: PatchSession,
) -> Result<Session, OpError> {
    let mut session = existing(tx, journal.ctx, &op.key)?;
    if op.expected_revision.is_some_and(|expected| expected != session.revision) {
        return Err(Refusal::RevisionConflict { current: session.revision }.into());
    }
    let patch = op.patch;
    if let Some(title) = patch.title {
        session.title = title;
    }
    if let Some(model) = patch.model {
        session.model = model;
    }
    if let Some(system) = patch.system {
        session.system = system;
    }
    if let Some(policy) = patch.policy {
        policy.apply(&mut session.policy);
        if session.policy.tools.len() > limits::POLICY_TOOLS_MAX {
            let fault = "the merged policy has rules for more than 256 tools";
            return Err(Refusal::BadAnswer(fault).into());
        }
    }
    if let Some(changes) = patch.metadata {
        let mut metadata: serde_json::Map<String, serde_json::Value> = session
            .metadata
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        for (name, value) in changes {
            if value.is_null() {
                metadata.remove(&name);
            } else {
                metadata.insert(name, value);
            }
        }
        let text = serde_json::Value::Object(metadata).to_string();
        if text.len() > limits::METADATA_BYTES_MAX {
            return Err(Refusal::BadAnswer("the merged metadata is larger than 64 KiB").into());
        }
        session.metadata = Some(text);
    }
    session.revision += 1;
    session.updated_at = journal.now();
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(session)
}

pub(super) fn end(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: EndSession,
) -> Result<Session, OpError> {
    let mut session = existing(tx, journal.ctx, &op.key)?;
    if session.ended_at.is_none() {
        session.ended_at = Some(journal.now());
        session.end_reason = Some(op.reason);
        session.revision += 1;
        session.updated_at = journal.now();
        tx.put_session(&session)?;
        journal.emit_session(tx, &mut session)?;
        tx.put_session(&session)?;
    }
    Ok(session)
}

pub(super) fn delete(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &DeleteSession,
) -> Result<(), OpError> {
    if tx.session(&op.key)?.is_none() && tx.tombstone(&op.key)?.is_some() {
        return Ok(());
    }
    let mut session = existing(tx, journal.ctx, &op.key)?;
    if op.expected_generation.is_some_and(|expected| expected != session.generation) {
        return Err(Refusal::StaleGeneration { current: session.generation }.into());
    }
    if session.running.is_some() {
        return Err(Refusal::SessionBusy.into());
    }
    for mut input in tx.queued(&op.key, u32::MAX)? {
        withdraw(tx, journal, &mut session, &mut input, "deleted")?;
    }
    let tombstone = Tombstone { deleted_at: journal.now(), generation: session.generation };
    tx.delete_session(&op.key)?;
    tx.put_tombstone(&op.key, &tombstone)?;
    journal.signal(Signal::Deleted(op.key.clone()));
    Ok(())
}
