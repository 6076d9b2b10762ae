//! Routes that are named but not built: each checks who asks and what is meant, then says so.

use axum::extract::State;
use everturn_core::id::IdError;
use everturn_core::{InputId, SessionId};

use super::{key, require_not_deleted};
use crate::access::{Controller, Reader, Submitter};
use crate::extract::{Id, PathId};
use crate::problem::{Answer, Refused};
use crate::state::Server;

/// Edits or moves an input that still waits
#[utoipa::path(patch, path = "/v1/inputs/{id}", tag = "inputs",
    params(("id" = String, Path, description = "Input id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn edit_input(_caller: Controller, _id: Id<InputId>) -> Refused {
    Refused::not_built("editing queued inputs")
        .hint("withdraw the input (DELETE) and send it again")
}

/// Forks a session
#[utoipa::path(post, path = "/v1/sessions/{id}/fork", tag = "sessions",
    params(("id" = String, Path, description = "Session id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn fork(
    State(server): State<Server>,
    Submitter(caller): Submitter,
    Id(session): Id<SessionId>,
) -> Answer<()> {
    require_not_deleted(&server, &key(&caller.principal, session)).await?;
    Err(Refused::not_built("forking a session"))
}

/// Compacts a session
#[utoipa::path(post, path = "/v1/sessions/{id}/compact", tag = "sessions",
    params(("id" = String, Path, description = "Session id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn compact(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(session): Id<SessionId>,
) -> Answer<()> {
    require_not_deleted(&server, &key(&caller.principal, session)).await?;
    Err(Refused::not_built("compacting a session")
        .hint("start a new session when the conversation no longer fits the model"))
}

/// Results of background work outside
#[utoipa::path(post, path = "/v1/sessions/{id}/completions", tag = "background",
    params(("id" = String, Path, description = "Session id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn completions(
    State(server): State<Server>,
    Submitter(caller): Submitter,
    Id(session): Id<SessionId>,
) -> Answer<()> {
    require_not_deleted(&server, &key(&caller.principal, session)).await?;
    Err(Refused::not_built("admitting completions").hint("send the result as an input"))
}

/// The id of a task: checked like every other, and nothing more yet.
pub(super) struct TaskId;

impl PathId for TaskId {
    const WHAT: &'static str = "task id";
    fn read(text: &str) -> Result<Self, IdError> {
        InputId::new(text).map(|_| Self)
    }
}

fn no_tasks() -> Refused {
    Refused::not_built("background work")
}

/// Background work
#[utoipa::path(get, path = "/v1/tasks", tag = "background",
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn tasks(_caller: Reader) -> Refused {
    no_tasks()
}

/// One piece of background work
#[utoipa::path(get, path = "/v1/tasks/{id}", tag = "background",
    params(("id" = String, Path, description = "Task id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn task(_caller: Reader, _id: Id<TaskId>) -> Refused {
    no_tasks()
}

/// The output of one
#[utoipa::path(get, path = "/v1/tasks/{id}/output", tag = "background",
    params(("id" = String, Path, description = "Task id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn task_output(_caller: Reader, _id: Id<TaskId>) -> Refused {
    no_tasks()
}

/// Stops one
#[utoipa::path(post, path = "/v1/tasks/{id}/stop", tag = "background",
    params(("id" = String, Path, description = "Task id")),
    responses((status = 501, description = "Not built yet")))]
pub(super) async fn stop_task(_caller: Controller, _id: Id<TaskId>) -> Refused {
    no_tasks()
}
