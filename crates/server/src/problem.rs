//! What a request is answered when it is refused or fails: a problem with a stable code, always.

use axum::response::{IntoResponse, Response};
use everturn_api::{Code, Problem};
use everturn_engine::EngineError;
use everturn_store::{OpError, Refusal, StorageError, StorageErrorKind};
use http::{HeaderValue, header};

/// Seconds after which a draining server's successor is expected to be there.
const RETRY_DRAINING_S: u32 = 2;
/// Seconds after which a store is worth another try.
const RETRY_STORE_S: u32 = 1;
/// What a damaged store is answered with: the usual hint would promise too much.
const DAMAGED_HINT: &str = "the database is damaged; see `everturn doctor` and restore a backup";

/// The answer of a handler.
pub(crate) type Answer<T> = Result<T, Refused>;

/// A refusal or a failure on its way to the client.
#[derive(Debug)]
pub(crate) struct Refused {
    problem: Box<Problem>,
    retry_after_s: Option<u32>,
    store: Option<StorageErrorKind>,
}

/// Stands in a response's extensions when a store failure is behind it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreFailed(pub(crate) StorageErrorKind);

impl Refused {
    /// A problem of this code; `detail` says what happened this time.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { problem: Box::new(Problem::new(code, detail)), retry_after_s: None, store: None }
    }

    /// A hint that fits better than the code's own.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = Some(hint.into());
        self
    }

    /// When the same request is worth another try.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// A field of a body or of a query that is missing, unknown, or not what it should be.
    pub(crate) fn field(name: &str, fault: impl std::fmt::Display) -> Self {
        Self::new(Code::BadRequest, format!("{name}: {fault}"))
    }

    /// A cursor that cannot be used.
    pub(crate) fn cursor(detail: impl Into<String>) -> Self {
        Self::new(Code::BadCursor, detail)
    }

    /// Something that the server does not do yet.
    pub(crate) fn not_built(what: &str) -> Self {
        Self::new(Code::NotImplemented, format!("{what} is not built yet"))
            .hint("a later version does it; the changelog will say so")
    }

    /// The problem.
    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl From<StorageError> for Refused {
    fn from(error: StorageError) -> Self {
        // The message is for the operator: it may name files.
        tracing::error!(kind = ?error.kind, %error, "the store failed");
        let (code, detail) = match error.kind {
            StorageErrorKind::Full => {
                (Code::StorageFull, "there is no space left where the store is")
            }
            StorageErrorKind::Unavailable => {
                (Code::StorageUnavailable, "the store cannot be used at the moment")
            }
            StorageErrorKind::Corrupt => {
                (Code::StorageUnavailable, "the store holds something that cannot be read")
            }
            StorageErrorKind::TooNew => {
                (Code::StorageUnavailable, "the store was made by a newer version")
            }
            StorageErrorKind::Replaced => {
                (Code::StorageUnavailable, "the store's file is not the one that was opened")
            }
            StorageErrorKind::Closed => (Code::StorageUnavailable, "the store is closed"),
        };
        let mut refused = Self::new(code, detail).retry_after(RETRY_STORE_S);
        if error.kind == StorageErrorKind::Corrupt {
            refused = refused.hint(DAMAGED_HINT);
        }
        refused.store = Some(error.kind);
        refused
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::SessionNotFound => Code::SessionNotFound,
            Refusal::SessionDeleted => Code::SessionDeleted,
            Refusal::SessionExists => Code::SessionExists,
            Refusal::TooManySessions { .. } => Code::TooManySessions,
            Refusal::RevisionConflict { .. } => Code::RevisionConflict,
            Refusal::SessionBusy | Refusal::Held { .. } => Code::SessionBusy,
            Refusal::InputConflict => Code::InputConflict,
            Refusal::QueueFull { .. } => Code::QueueFull,
            Refusal::NotRunning => Code::NotRunning,
            Refusal::StaleGeneration { .. } => Code::StaleGeneration,
            Refusal::InputNotFound => Code::InputNotFound,
            Refusal::InputNotQueued => Code::InputNotQueued,
            Refusal::RunNotFound => Code::RunNotFound,
            Refusal::PromptNotFound => Code::PromptNotFound,
            Refusal::AlreadyResolved => Code::AlreadyResolved,
            Refusal::Expired => Code::Expired,
            Refusal::BadAnswer(_) | Refusal::BadImport(_) => Code::BadRequest,
            Refusal::Superseded => Code::Superseded,
            Refusal::NotInterrupted => Code::NotInterrupted,
            Refusal::Fenced | Refusal::Stopped | Refusal::BadRecord(_) => {
                // Only the owner of a turn is told these; no request should ever see one.
                tracing::error!(%refusal, "a request was answered what only a turn is told");
                return Self::new(Code::Internal, "the server answered itself wrongly");
            }
        };
        let retry_after_s = match code {
            Code::QueueFull | Code::SessionBusy => Some(1),
            _ => None,
        };
        Self { retry_after_s, ..Self::new(code, refusal.to_string()) }
    }
}

impl From<OpError> for Refused {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Refused(refusal) => refusal.into(),
            OpError::Storage(error) => error.into(),
        }
    }
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Op(error) => error.into(),
            EngineError::Draining => Self::new(Code::Draining, EngineError::Draining.to_string())
                .retry_after(RETRY_DRAINING_S),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let status = http::StatusCode::from_u16(self.problem.status)
            .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == http::StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"everturn\""),
            );
        }
        if let Some(kind) = self.store {
            response.extensions_mut().insert(StoreFailed(kind));
        }
        response
    }
}
