//! Every error code that the API answers with. Each has a page in docs/errors.

macro_rules! codes {
    ($($variant:ident = $word:literal, $status:literal, $permanent:literal, $title:literal, $hint:expr;)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $title] $variant,)* }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// The code on the wire; fixed for ever.
            #[must_use]
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $word,)* } }
            /// HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 { match self { $(Self::$variant => $status,)* } }
            /// Whether the same request would fail again.
            #[must_use]
            pub const fn permanent(self) -> bool { match self { $(Self::$variant => $permanent,)* } }
            /// The code in words.
            #[must_use]
            pub const fn title(self) -> &'static str { match self { $(Self::$variant => $title,)* } }
            /// What to do about it, where that is always the same.
            #[must_use]
            pub const fn hint(self) -> Option<&'static str> { match self { $(Self::$variant => $hint,)* } }
        }
    };
}

codes! {
    BadJson = "bad_json", 400, true, "The body is not valid JSON", None;
    BadRequest = "bad_request", 400, true, "A field is missing, unknown or of the wrong type", None;
    BadId = "bad_id", 400, true, "An id is not well formed", Some("ids have 1 to 128 of A-Z a-z 0-9 _ . - and do not start with a dot");
    BadCursor = "bad_cursor", 400, true, "The cursor cannot be used", Some("read a snapshot and go on from its offset");
    EmptyInput = "empty_input", 400, true, "The input says nothing", Some("send text that is not only white space, or an image");
    BadMode = "bad_mode", 400, true, "The mode is not known", Some("use queue, steer, interrupt, redirect or reject");
    BadRequestId = "bad_request_id", 400, true, "The request id is not well formed", Some("use 1 to 255 visible ASCII characters");
    RequestIdMismatch = "request_id_mismatch", 400, true, "Header and body name different request ids", Some("send one of the two, or the same in both");
    Unauthorized = "unauthorized", 401, true, "A valid token is needed", Some("send Authorization: Bearer TOKEN; `everturn token create` makes one");
    ForbiddenScope = "forbidden_scope", 403, true, "The token lacks a scope", Some("create a token with the scope that is named");
    ForbiddenHost = "forbidden_host", 403, true, "The Host header is not this server's", Some("use the address that the server printed");
    ForbiddenOrigin = "forbidden_origin", 403, true, "The Origin header is not this server's", None;
    NotFound = "not_found", 404, true, "There is no such thing", None;
    SessionNotFound = "session_not_found", 404, true, "There is no such session", None;
    InputNotFound = "input_not_found", 404, true, "There is no such input", None;
    RunNotFound = "run_not_found", 404, true, "There is no such run", None;
    PromptNotFound = "prompt_not_found", 404, true, "There is no such prompt", None;
    MethodNotAllowed = "method_not_allowed", 405, true, "The route does not take this method", None;
    NotAcceptable = "not_acceptable", 406, true, "No form that the client accepts", None;
    RequestTimeout = "request_timeout", 408, false, "The request did not come in time", Some("send it again, body and all, without long pauses");
    SessionExists = "session_exists", 409, true, "The id is taken", Some("choose another id, or leave it out");
    RevisionConflict = "revision_conflict", 409, true, "The session changed meanwhile", Some("read it again and repeat the change with its revision");
    InputConflict = "input_conflict", 409, true, "This request id was used for something else", Some("use a new request id for a new input");
    SessionBusy = "session_busy", 409, false, "The session is busy", Some("wait for its turn to end, or queue the input");
    NotRunning = "not_running", 409, false, "No turn is running", None;
    StaleGeneration = "stale_generation", 409, true, "Another turn was meant", Some("read the session and name its current generation");
    Superseded = "superseded", 409, true, "A later turn has begun", None;
    NotInterrupted = "not_interrupted", 409, true, "The turn is not waiting for a decision", None;
    InputNotQueued = "input_not_queued", 409, true, "The input no longer waits", None;
    AlreadyResolved = "already_resolved", 409, true, "The prompt was settled already", None;
    SessionDeleted = "session_deleted", 410, true, "The session was deleted", Some("use another id");
    Expired = "expired", 410, true, "The prompt ran out", None;
    BodyTooLarge = "body_too_large", 413, true, "The body is larger than 10 MiB", None;
    TextTooLarge = "text_too_large", 413, true, "The text is larger than 1 MiB", None;
    UnsupportedMediaType = "unsupported_media_type", 415, true, "The body must be JSON", Some("send Content-Type: application/json");
    QueueFull = "queue_full", 429, false, "The session's queue is full", Some("wait until some of its inputs have run");
    RateLimited = "rate_limited", 429, false, "Too many requests", Some("wait as long as Retry-After says");
    TooManySessions = "too_many_sessions", 429, false, "The limit on sessions is reached", Some("delete sessions that are no longer needed");
    TooManyViewers = "too_many_viewers", 429, false, "The limit on open streams is reached", Some("close some streams, or watch many sessions through one feed");
    HeadersTooLarge = "headers_too_large", 431, true, "The request's headers are too large", None;
    Internal = "internal", 500, false, "Something went wrong inside", Some("the server's log has the details");
    NotImplemented = "not_implemented", 501, true, "This is not built yet", None;
    Draining = "draining", 503, false, "The server is leaving", Some("send it again in a moment; another process will take it");
    StorageUnavailable = "storage_unavailable", 503, false, "The store cannot be used", Some("nothing acknowledged is lost; see `everturn doctor`");
    StorageFull = "storage_full", 507, false, "The disk is full", Some("free some space; nothing acknowledged is lost");
}
