//! Every route of the API. docs/api.md says what each does; the OpenAPI document is made from here.

mod access;
mod controls;
mod events;
mod inputs;
mod later;
mod operation;
mod page;
mod prompts;
mod runs;
mod sessions;
mod submit;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware;
use bytes::Bytes;
use everturn_api::Code;
use everturn_core::{Principal, SessionId, SessionKey};
use everturn_store::read::SessionView;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::problem::{Answer, Refused};
use crate::state::Server;

/// What the document says besides its routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Everturn",
        description = "Conversations with an agent whose turns survive. Errors are \
                       `application/problem+json` with a stable `code`; `/docs/errors/CODE` explains each.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    modifiers(&Security),
    security(("token" = [])),
    tags(
        (name = "sessions", description = "Conversations"),
        (name = "inputs", description = "What people say, and what became of it"),
        (name = "runs", description = "Turns and their journals"),
        (name = "events", description = "Feeds, as text/event-stream"),
        (name = "control", description = "Stopping and deciding"),
        (name = "prompts", description = "Questions to people"),
        (name = "background", description = "Work outside of turns"),
        (name = "access", description = "Tokens and log-ins"),
        (name = "operation", description = "How the server is"),
        (name = "page", description = "The page and its files"),
    ),
    components(schemas(everturn_api::Problem))
)]
struct Document;

struct Security;

impl utoipa::Modify for Security {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("Not needed on loopback while no token exists."))
            .build();
        let components = openapi.components.get_or_insert_with(Default::default);
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

fn routes() -> OpenApiRouter<Server> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::show, sessions::change, sessions::delete))
        .routes(routes!(sessions::end))
        .routes(routes!(sessions::messages))
        .routes(routes!(inputs::list, submit::submit))
        .routes(routes!(inputs::show, inputs::cancel, later::edit_input))
        .routes(routes!(runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::events))
        .routes(routes!(events::session))
        .routes(routes!(events::many))
        .routes(routes!(controls::stop_session))
        .routes(routes!(controls::stop_run))
        .routes(routes!(controls::resolve))
        .routes(routes!(prompts::list))
        .routes(routes!(prompts::answer))
        .routes(routes!(later::fork))
        .routes(routes!(later::compact))
        .routes(routes!(later::completions))
        .routes(routes!(later::tasks))
        .routes(routes!(later::task))
        .routes(routes!(later::task_output))
        .routes(routes!(later::stop_task))
        .routes(routes!(access::log_in))
        .routes(routes!(access::log_out))
        .routes(routes!(access::list_tokens, access::create_token))
        .routes(routes!(access::revoke_token))
        .routes(routes!(access::list_grants))
        .routes(routes!(access::revoke_grant))
        .routes(routes!(operation::info))
        .routes(routes!(operation::healthz))
        .routes(routes!(operation::readyz))
        .routes(routes!(operation::metrics))
        .routes(routes!(operation::openapi))
        .routes(routes!(operation::drain))
        .routes(routes!(page::index))
        .routes(routes!(page::asset))
        .routes(routes!(page::error_page))
}

/// The document's text. The problem is an answer of every route, and the name of an operation says
/// what it is about, so that it is unique.
pub(crate) fn openapi_json() -> Bytes {
    let mut document = routes().into_openapi();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let mut value = serde_json::to_value(&document).unwrap_or_default();
    let problem = serde_json::json!({
        "description": "A refusal or a failure",
        "content": {
            "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } }
        }
    });
    let operations = value
        .get_mut("paths")
        .and_then(serde_json::Value::as_object_mut)
        .into_iter()
        .flat_map(|paths| paths.values_mut())
        .filter_map(serde_json::Value::as_object_mut)
        .flat_map(|methods| methods.values_mut());
    for operation in operations {
        if let Some(responses) =
            operation.get_mut("responses").and_then(serde_json::Value::as_object_mut)
        {
            responses.insert("default".to_owned(), problem.clone());
        }
        let tag = operation["tags"][0].as_str().unwrap_or_default().to_owned();
        if let Some(serde_json::Value::String(id)) = operation.get_mut("operationId") {
            *id = format!("{tag}_{id}");
        }
    }
    Bytes::from(value.to_string())
}

/// All routes with the gate in front of them.
pub(crate) fn router(server: Server) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(server.clone(), crate::access::guard))
        .with_state(server)
}

async fn unknown(request: Request) -> Refused {
    let shown: String = request.uri().path().chars().take(200).collect();
    Refused::new(Code::NotFound, format!("there is no route {shown}"))
        .hint("/openapi.json lists the routes")
}

async fn wrong_method(matched: Option<MatchedPath>, request: Request) -> Refused {
    let route = matched.as_ref().map_or("this route", MatchedPath::as_str);
    let method: String = request.method().as_str().chars().take(32).collect();
    Refused::new(Code::MethodNotAllowed, format!("{route} does not take {method}"))
        .hint("the Allow header names the methods that it takes")
}

/// What names a session of this principal in the store.
fn key(principal: &Principal, id: SessionId) -> SessionKey {
    SessionKey { principal: principal.clone(), id }
}

/// A session of this principal, or why there is none.
async fn view(server: &Server, key: &SessionKey) -> Answer<SessionView> {
    match server.engine().read().session(key).await? {
        Some(view) => Ok(view),
        None => Err(absent(server, key).await?),
    }
}

/// What a session that is not there is answered: it was deleted, or it never was.
async fn absent(server: &Server, key: &SessionKey) -> Answer<Refused> {
    Ok(match server.engine().read().tombstone(key).await? {
        Some(tombstone) => {
            let at = tombstone.deleted_at.rfc3339();
            Refused::new(Code::SessionDeleted, format!("{} was deleted at {at}", key.id))
        }
        None => Refused::new(Code::SessionNotFound, format!("there is no session {}", key.id)),
    })
}

/// Refuses what belongs to a session that was deleted meanwhile.
async fn require_not_deleted(server: &Server, key: &SessionKey) -> Answer<()> {
    view(server, key).await.map(|_| ())
}
