//! What the engine says, in the words that a server would answer with, so that a person reads the
//! same code and hint either way.

use everturn_api::Code;
use everturn_engine::EngineError;
use everturn_store::{OpError, Refusal};

use crate::error::CliError;

impl From<Refusal> for CliError {
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
            Refusal::Fenced | Refusal::Stopped | Refusal::BadRecord(_) => Code::Internal,
        };
        Self::api(code, refusal.to_string())
    }
}

impl From<OpError> for CliError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Refused(refusal) => refusal.into(),
            OpError::Storage(error) => error.into(),
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Op(error) => error.into(),
            EngineError::Draining => Self::api(Code::Draining, error.to_string()),
        }
    }
}
