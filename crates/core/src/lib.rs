//! Everturn's vocabulary and pure decisions.
//!
//! Nothing in this crate does I/O, reads a clock, rolls dice or looks at the environment: time and
//! randomness come in as arguments. Nothing here derives serde: stored and wire shapes live in
//! `everturn-api` and the stores, so that renaming a field here never changes what is on disk.

pub mod admission;
pub mod content;
pub mod digest;
pub mod event;
pub mod id;
#[macro_use]
pub mod input;
pub mod late;
pub mod limits;
pub mod merge;
pub mod message;
pub mod policy;
pub mod prompt;
pub mod recovery;
pub mod run;
pub mod session;
pub mod time;
pub mod view;

pub use content::{Content, Part};
pub use event::{Event, Record};
pub use id::{
    CallId, IdError, InputId, NodeId, Principal, PromptId, RequestId, RunId, SessionId, TokenId,
};
pub use input::{Delivery, Input, InputKind, InputStatus, Mode, Outcome};
pub use message::{CallState, Effect, Message, MessageKind, NewCall, Role, ToolCall};
pub use policy::{AutoContinue, AutoContinueWhen, Permission, Policy, QueuePolicy};
pub use prompt::{Choice, Prompt, PromptKind, PromptState};
pub use run::{Cause, Evidence, Failure, Run, RunState, Stop, TerminalState, Usage};
pub use session::{Lease, LeaseExpiry, Session, SessionKey, SessionState};
pub use time::Timestamp;
