//! What a person is told when something did not work: a sentence, a stable code, a hint, and the exit
//! code of the process.

use everturn_api::{Code, Problem};
use everturn_core::Failure;
use everturn_store::{StorageError, StorageErrorKind};

use crate::exit::Exit;

/// Shorthand of this crate.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// What goes wrong in the command line itself; problems of the API keep their own codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An argument is not usable.
    Usage,
    /// A setting is not usable.
    Config,
    /// It exists in the plan only.
    NotBuilt,
    /// The home cannot be used.
    Home,
    /// There is no home.
    NoHome,
    /// The workspace cannot be used.
    Workspace,
    /// The address cannot be listened on.
    Listen,
    /// What is stored is not what was written.
    Corrupt,
    /// The store was made by a newer version.
    TooNew,
    /// The store's file was replaced.
    Replaced,
    /// The server was not reachable for too long.
    LostContact,
    /// The input is still queued.
    StillQueued,
    /// The turn was interrupted and not continued.
    Interrupted,
    /// A file or the terminal cannot be read or written.
    Io,
    /// There is no such token.
    NoToken,
    /// The tool was not allowed for ever.
    NoGrant,
    /// The server answered what this version does not understand.
    Protocol,
    /// There is no record in a journal.
    NoRecord,
}

impl Fault {
    /// Stable code.
    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Config => "config_invalid",
            Self::NotBuilt => "not_implemented",
            Self::Home => "home_unusable",
            Self::NoHome => "home_not_found",
            Self::Workspace => "workspace_unusable",
            Self::Listen => "listen_failed",
            Self::Corrupt => "storage_corrupt",
            Self::TooNew => "storage_too_new",
            Self::Replaced => "storage_replaced",
            Self::LostContact => "lost_contact",
            Self::StillQueued => "still_queued",
            Self::Interrupted => "turn_interrupted",
            Self::Io => "io_failed",
            Self::NoToken => "token_not_found",
            Self::NoGrant => "grant_not_found",
            Self::Protocol => "protocol_mismatch",
            Self::NoRecord => "journal_empty",
        }
    }

    const fn exit(self) -> Exit {
        match self {
            Self::Usage | Self::Config | Self::NotBuilt => Exit::Usage,
            Self::LostContact => Exit::LostContact,
            Self::StillQueued => Exit::StillQueued,
            Self::Interrupted => Exit::Interrupted,
            _ => Exit::Failed,
        }
    }
}

/// An error as a person sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError {
    /// Stable code.
    pub(crate) code: String,
    /// What happened.
    pub(crate) message: String,
    /// What to do about it, one line each.
    pub(crate) hints: Vec<String>,
    /// What the process ends with.
    pub(crate) exit: Exit,
    /// The same may succeed in a moment: the other side is away, leaving or busy.
    pub(crate) passing: bool,
}

impl CliError {
    pub(crate) fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self {
            code: fault.code().to_owned(),
            message: message.into(),
            hints: Vec::new(),
            exit: fault.exit(),
            passing: false,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Fault::Usage, message)
    }

    /// A problem of the API that this side found.
    pub(crate) fn api(code: Code, detail: impl Into<String>) -> Self {
        Problem::new(code, detail).into()
    }

    /// The other side does not answer.
    pub(crate) fn away(message: impl Into<String>) -> Self {
        Self { passing: true, ..Self::new(Fault::LostContact, message) }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Names what was looked for, where the answer says only that it is not there.
    #[must_use]
    pub(crate) fn about(mut self, id: &str) -> Self {
        for (code, what) in [
            (Code::SessionNotFound, "session"),
            (Code::RunNotFound, "run"),
            (Code::InputNotFound, "input"),
        ] {
            if self.is(code) {
                self.message = format!("there is no {what} {id}");
            }
        }
        self
    }

    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code.as_str()
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl From<Problem> for CliError {
    fn from(problem: Problem) -> Self {
        // The detail says what happened this time; the title alone is what is always the same.
        let message = if problem.detail.is_empty() { problem.title } else { problem.detail };
        let passing = problem.code == Code::Draining.as_str();
        // What only the command line can name.
        let hint = problem.hint.or_else(|| hint_of(&problem.code).map(str::to_owned));
        Self {
            code: problem.code,
            message,
            hints: hint.into_iter().collect(),
            exit: Exit::Failed,
            passing,
        }
    }
}

/// What to do where something is not there, in the words of the command line.
fn hint_of(code: &str) -> Option<&'static str> {
    const OF: [(Code, &str); 4] = [
        (Code::SessionNotFound, "`everturn sessions list` shows those that there are"),
        (
            Code::SessionDeleted,
            "it is gone for good; `everturn sessions list` shows those that there are",
        ),
        (
            Code::RunNotFound,
            "SESSION:GENERATION names a turn of a session, for example review:7; `everturn sessions list` shows the sessions",
        ),
        (
            Code::InputNotFound,
            "the receipt of an input has its id; SESSION:GENERATION names a turn as well, for example review:7",
        ),
    ];
    OF.iter().find(|(known, _)| known.as_str() == code).map(|(_, hint)| *hint)
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        Self {
            code: failure.code,
            message: failure.message,
            hints: failure.hint.into_iter().collect(),
            exit: Exit::Failed,
            passing: false,
        }
    }
}

impl From<everturn_hermes::Error> for CliError {
    fn from(error: everturn_hermes::Error) -> Self {
        if let everturn_hermes::Error::Io { doing: "write", source } = &error
            && source.kind() == std::io::ErrorKind::BrokenPipe
        {
            return crate::print::gone();
        }
        let mut told = Self::new(Fault::Io, error.to_string()).hint(error.hint());
        error.code().clone_into(&mut told.code);
        told
    }
}

impl From<StorageError> for CliError {
    fn from(error: StorageError) -> Self {
        let of = |fault, hint: &str| Self::new(fault, error.message.clone()).hint(hint);
        match error.kind {
            StorageErrorKind::Full => Self::api(Code::StorageFull, error.message),
            StorageErrorKind::Unavailable | StorageErrorKind::Closed => {
                Self::api(Code::StorageUnavailable, error.message)
            }
            StorageErrorKind::Corrupt => of(
                Fault::Corrupt,
                "nothing was written; keep a copy of the file, then restore a backup or see `everturn doctor`",
            ),
            StorageErrorKind::TooNew => {
                of(Fault::TooNew, "use the version of everturn that wrote it, or a newer one")
            }
            StorageErrorKind::Replaced => {
                of(Fault::Replaced, "stop what moves or restores the file, then start again")
            }
        }
    }
}

/// A file operation that failed, with the path in the sentence.
pub(crate) fn io(what: &str, path: &std::path::Path, error: impl std::fmt::Display) -> CliError {
    CliError::new(Fault::Io, format!("cannot {what} {}: {error}", path.display()))
}
