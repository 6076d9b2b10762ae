//! Log-ins of the page, and tokens.

use axum::Json as JsonReply;
use axum::extract::{RawPathParams, State};
use axum::response::IntoResponse;
use everturn_api::Code;
use everturn_api::page::Page;
use everturn_core::{Principal, Timestamp, TokenId};
use everturn_store::rows::Token;
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{Admin, Approver, Reader, Scope, new_token};
use crate::extract::{Id, Json};
use crate::problem::{Answer, Refused};
use crate::state::Server;

/// Seconds that a token may last.
const TOKEN_LIFE_S_MAX: u64 = 10 * 366 * 24 * 60 * 60;

/// `POST /v1/login`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogIn {
    /// A token.
    token: String,
}

/// Who was logged in.
#[derive(Serialize, ToSchema)]
pub(super) struct LoggedIn {
    /// On whose behalf requests are made from now on.
    principal: String,
    /// What they may do.
    scopes: Vec<String>,
}

/// Logs the page in: from now on its cookie speaks for the token
#[utoipa::path(post, path = "/v1/login", tag = "access", request_body = LogIn, security(()),
    responses((status = 200, body = LoggedIn, headers(("Set-Cookie" = String)))))]
pub(super) async fn log_in(
    State(server): State<Server>,
    headers: HeaderMap,
    Json(body): Json<LogIn>,
) -> Answer<impl IntoResponse> {
    let caller = server.access().by_secret(body.token.trim()).await?;
    // Where the page was reached through TLS, its cookie shall never leave it.
    let is_secure = headers
        .get(header::ORIGIN)
        .is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let cookie = server.access().log_in(&caller, is_secure)?;
    let reply = LoggedIn { principal: caller.principal.to_string(), scopes: caller.scopes.words() };
    Ok(([(header::SET_COOKIE, cookie)], JsonReply(reply)))
}

/// Logs the page out
#[utoipa::path(post, path = "/v1/logout", tag = "access", security(()),
    responses((status = 204, description = "The cookie is worth nothing any more")))]
pub(super) async fn log_out(State(server): State<Server>, headers: HeaderMap) -> impl IntoResponse {
    let cookie = server.access().log_out(&headers);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)])
}

/// A token, without its secret.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenInfo {
    /// Its name.
    id: String,
    /// Who it speaks for.
    principal: String,
    /// What it may do.
    scopes: Vec<String>,
    /// When it was made.
    created_at: String,
    /// When it runs out.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// When it was last used, to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<String>,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
}

impl From<&Token> for TokenInfo {
    fn from(token: &Token) -> Self {
        Self {
            id: token.id.to_string(),
            principal: token.principal.to_string(),
            scopes: token.scopes.clone(),
            created_at: token.created_at.rfc3339(),
            expires_at: token.expires_at.map(Timestamp::rfc3339),
            last_used_at: token.last_used_at.map(Timestamp::rfc3339),
            revoked_at: token.revoked_at.map(Timestamp::rfc3339),
        }
    }
}

/// All tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenList {
    /// The tokens, the newest last.
    data: Vec<TokenInfo>,
}

/// All tokens
#[utoipa::path(get, path = "/v1/tokens", tag = "access",
    responses((status = 200, body = TokenList)))]
pub(super) async fn list_tokens(
    State(server): State<Server>,
    _caller: Admin,
) -> Answer<JsonReply<TokenList>> {
    let mut tokens = server.engine().read().tokens().await?;
    tokens.sort_by(|a, b| (a.created_at, a.id.as_str()).cmp(&(b.created_at, b.id.as_str())));
    Ok(JsonReply(TokenList { data: tokens.iter().map(TokenInfo::from).collect() }))
}

/// `POST /v1/tokens`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateToken {
    /// Who it speaks for.
    principal: String,
    /// Words of `read`, `submit`, `control`, `approve`, `admin`.
    scopes: Vec<String>,
    /// Seconds that it lasts; for ever if absent.
    #[serde(default)]
    expires_in_s: Option<u64>,
}

/// A token with its secret, which is shown this once.
#[derive(Serialize, ToSchema)]
pub(super) struct CreatedToken {
    /// The secret: `Authorization: Bearer` with this.
    token: String,
    /// What is known of it.
    #[serde(flatten)]
    info: TokenInfo,
}

/// Makes a token
#[utoipa::path(post, path = "/v1/tokens", tag = "access", request_body = CreateToken,
    responses((status = 201, body = CreatedToken)))]
pub(super) async fn create_token(
    State(server): State<Server>,
    _caller: Admin,
    Json(body): Json<CreateToken>,
) -> Answer<impl IntoResponse> {
    let principal = Principal::new(&body.principal)
        .map_err(|fault| Refused::new(Code::BadId, format!("the principal {fault}")))?;
    let scopes = body
        .scopes
        .iter()
        .map(|word| {
            Scope::parse(word).ok_or_else(|| {
                Refused::field("scopes", "must be words of read, submit, control, approve, admin")
            })
        })
        .collect::<Answer<Vec<Scope>>>()?;
    if scopes.is_empty() {
        return Err(Refused::field("scopes", "at least one is needed"));
    }
    let clock = server.engine().clock();
    let now = clock.now();
    let expires_at = match body.expires_in_s {
        None => None,
        Some(s) if (1..=TOKEN_LIFE_S_MAX).contains(&s) => Some(now.plus_ms(s * 1_000)),
        Some(_) => {
            let fault = format_args!("must be 1 to {TOKEN_LIFE_S_MAX}").to_string();
            return Err(Refused::field("expires_in_s", fault));
        }
    };
    let id = TokenId::from_uuid(clock.uuid());
    let (token, secret) = new_token(id, principal, &scopes, now, expires_at).map_err(|error| {
        tracing::error!(%error, "no token could be made");
        Refused::new(Code::Internal, "no token could be made")
    })?;
    let info = TokenInfo::from(&token);
    server.engine().create_token(token).await?;
    server.access().forget();
    Ok((StatusCode::CREATED, JsonReply(CreatedToken { token: secret, info })))
}

/// Revokes a token
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "access",
    params(("id" = String, Path, description = "Token id")),
    responses((status = 204, description = "It is worth nothing any more")))]
pub(super) async fn revoke_token(
    State(server): State<Server>,
    _caller: Admin,
    Id(id): Id<TokenId>,
) -> Answer<StatusCode> {
    let known = server.engine().revoke_token(id.clone()).await?;
    server.access().forget();
    if known {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Refused::new(Code::NotFound, format!("there is no token {id}")))
}

/// A tool that the caller allowed for ever, by answering `always`.
#[derive(Serialize, ToSchema)]
pub(super) struct Grant {
    /// The tool's name.
    tool: String,
}

/// Tools that the caller allowed for ever
#[utoipa::path(get, path = "/v1/grants", tag = "access",
    responses((status = 200, body = Page<Grant>)))]
pub(super) async fn list_grants(
    State(server): State<Server>,
    Reader(caller): Reader,
) -> Answer<JsonReply<Page<Grant>>> {
    let tools = server.engine().read().grants(&caller.principal).await?;
    let data = tools.into_iter().map(|tool| Grant { tool }).collect();
    Ok(JsonReply(Page { data, has_more: false }))
}

/// Takes a lasting permission back: the tool asks again
#[utoipa::path(delete, path = "/v1/grants/{tool}", tag = "access",
    params(("tool" = String, Path, description = "The tool's name")),
    responses((status = 204, description = "It asks again")))]
pub(super) async fn revoke_grant(
    State(server): State<Server>,
    Approver(caller): Approver,
    params: RawPathParams,
) -> Answer<StatusCode> {
    let (_, tool) = params.iter().next().unwrap_or_default();
    let tool = tool.to_owned();
    if server.engine().revoke_grant(caller.principal, tool.clone()).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Refused::new(Code::NotFound, format!("{tool:?} was not allowed for ever"))
        .hint("GET /v1/grants lists what was"))
}
