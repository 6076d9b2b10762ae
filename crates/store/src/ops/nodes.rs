//! Nodes and tokens.

use super::Ctx;
use crate::error::{OpError, StorageError};
use crate::op::{EndNode, RegisterNode, RevokeToken, TouchToken};
use crate::tx::Tx;

pub(super) fn register(tx: &mut dyn Tx, op: RegisterNode) -> Result<(), StorageError> {
    tx.put_node(&op.node)
}

pub(super) fn end(tx: &mut dyn Tx, ctx: &Ctx<'_>, op: &EndNode) -> Result<(), StorageError> {
    if let Some(mut node) = tx.node(&op.node)?
        && node.ended_at.is_none()
    {
        node.ended_at = Some(ctx.now);
        tx.put_node(&node)?;
    }
    // Nobody is there any more to say that its viewers went.
    tx.clear_presence(&op.node)
}

pub(super) fn revoke_token(
    tx: &mut dyn Tx,
    ctx: &Ctx<'_>,
    op: &RevokeToken,
) -> Result<bool, OpError> {
    let Some(mut token) = tx.token(&op.token_id)? else { return Ok(false) };
    if token.revoked_at.is_none() {
        token.revoked_at = Some(ctx.now);
        tx.put_token(&token)?;
    }
    Ok(true)
}

pub(super) fn touch_token(
    tx: &mut dyn Tx,
    ctx: &Ctx<'_>,
    op: &TouchToken,
) -> Result<(), StorageError> {
    if let Some(mut token) = tx.token(&op.token_id)? {
        token.last_used_at = Some(ctx.now);
        tx.put_token(&token)?;
    }
    Ok(())
}
