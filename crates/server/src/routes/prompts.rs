//! Prompts: questions that turns put to people.

use axum::Json as JsonReply;
use axum::extract::{RawQuery, State};
use everturn_api::Code;
use everturn_api::page::Page;
use everturn_api::prompt::Prompt;
use everturn_api::request::AnswerPrompt;
use everturn_core::{Choice, PromptId, PromptState, SessionId, limits};

use super::{key, require_not_deleted};
use crate::access::{Approver, Reader};
use crate::extract::{self, Id, Json, Query};
use crate::problem::{Answer, Refused};
use crate::state::Server;

/// Prompts of a session, the oldest first
#[utoipa::path(get, path = "/v1/sessions/{id}/prompts", tag = "prompts",
    params(
        ("id" = String, Path, description = "Session id"),
        ("state" = Option<String>, Query, description = "`open` (if absent), `settled`, `expired`, `withdrawn`"),
        ("after" = Option<String>, Query, description = "Go on behind this prompt, the last one of the page before"),
        ("limit" = Option<u32>, Query, description = "Rows, 1 to 500; 50 if absent"),
    ),
    responses((status = 200, body = Page<Prompt>)))]
pub(super) async fn list(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(session): Id<SessionId>,
    RawQuery(query): RawQuery,
) -> Answer<JsonReply<Page<Prompt>>> {
    let mut query = Query::new(query.as_deref());
    let limit = query.limit()?;
    let state = match query.one("state")? {
        None => PromptState::Open,
        Some(word) => PromptState::parse(&word).ok_or_else(|| {
            Refused::field("state", "must be open, settled, expired or withdrawn")
        })?,
    };
    let after = query.one("after")?.map(|text| extract::id::<PromptId>(&text)).transpose()?;
    query.finish()?;
    let key = key(&caller.principal, session);
    require_not_deleted(&server, &key).await?;
    let read = server.engine().read();
    if let Some(after) = &after {
        let known = read.prompt(after).await?;
        let is_here = known.is_some_and(|(prompt, _)| {
            prompt.principal == key.principal && prompt.session_id == key.id
        });
        if !is_here {
            let fault = format!("after: {after} is no prompt of this session");
            return Err(Refused::new(Code::BadCursor, fault));
        }
    }
    let mut rows = read.prompts(&key, state, after.as_ref(), limit + 1).await?;
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let data = rows.iter().map(|(prompt, call)| Prompt::new(prompt, call.as_ref())).collect();
    Ok(JsonReply(Page { data, has_more }))
}

/// Answers a prompt
#[utoipa::path(post, path = "/v1/prompts/{id}/answer", tag = "prompts",
    params(("id" = String, Path, description = "Prompt id")), request_body = AnswerPrompt,
    responses((status = 200, body = Prompt)))]
pub(super) async fn answer(
    State(server): State<Server>,
    Approver(caller): Approver,
    Id(id): Id<PromptId>,
    Json(body): Json<AnswerPrompt>,
) -> Answer<JsonReply<Prompt>> {
    let choice = match body.choice.as_deref() {
        None => None,
        Some(word) => Some(
            Choice::parse(word)
                .ok_or_else(|| Refused::field("choice", "must be once, session, always or deny"))?,
        ),
    };
    if choice.is_none() && body.text.is_none() {
        return Err(Refused::field("choice", "one of choice and text is needed"));
    }
    if body.text.as_ref().is_some_and(|text| text.len() > limits::TEXT_BYTES_MAX) {
        return Err(Refused::new(Code::TextTooLarge, "the answer has more than 1 MiB"));
    }
    let principal = caller.principal;
    let prompt =
        server.engine().answer(principal, id.clone(), body.generation, choice, body.text).await?;
    // The call that it is about goes with it; without one the answer itself still stands.
    let found = server.engine().read().prompt(&id).await?;
    let call = found.and_then(|(_, call)| call);
    Ok(JsonReply(Prompt::new(&prompt, call.as_ref())))
}
