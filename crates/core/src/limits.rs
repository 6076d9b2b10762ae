//! Every limit that the vocabulary itself has, in one place; docs/limits.md lists them all.

/// Characters of an id.
pub const ID_CHARS_MAX: usize = 128;
/// Characters of a request id or idempotency key.
pub const REQUEST_ID_CHARS_MAX: usize = 255;
/// Bytes of one input's text, all text parts together.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Bytes of an HTTP request body.
pub const BODY_BYTES_MAX: usize = 10 << 20;
/// Inputs that may wait in one session's queue.
pub const QUEUE_INPUTS_MAX: u32 = 1_000;
/// Rows of one page of any list.
pub const PAGE_ROWS_MAX: u32 = 500;
/// Bytes of text, reasoning and output that a session's picture of its turn under way holds.
pub const IN_FLIGHT_BYTES_MAX: usize = 256 << 10;
/// Events that are read for it.
pub const IN_FLIGHT_EVENTS_MAX: u64 = 16_384;
/// Days that tombstones and idempotency receipts are kept after the end.
pub const RECEIPT_DAYS: u64 = 90;
/// Characters of a session's title.
pub const TITLE_CHARS_MAX: usize = 500;
/// Bytes of a metadata object, serialised.
pub const METADATA_BYTES_MAX: usize = 64 << 10;
/// Tools that a session's policy has rules for, and characters of such a name.
pub const POLICY_TOOLS_MAX: usize = 256;
/// Characters of a tool's name; model providers take no more than half of it.
pub const TOOL_NAME_CHARS_MAX: usize = 128;
/// Bytes of a session's own system text.
pub const SYSTEM_BYTES_MAX: usize = 256 << 10;
/// Seconds that `?wait=` may ask for.
pub const WAIT_S_MAX: u64 = 60;
/// Sessions that one multiplexed feed may name.
pub const FEED_SESSIONS_MAX: usize = 64;
/// Bytes of text and reasoning that one model request may answer with.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Bytes of arguments that the calls of one model request may have, all together.
pub const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Bytes of a tool's result that are kept in the transcript.
pub const TOOL_RESULT_BYTES_MAX: usize = 256 << 10;
/// Events that one synced commit reserves numbers for ahead of itself (promise P7).
pub const OFFSET_RESERVE: u64 = 4_096;
/// Days that token events are kept one by one after the end of their run.
pub const TOKEN_EVENT_DAYS: u64 = 7;
/// Rows of events that one transaction of the pruning reads at most, so that it never holds the
/// writer for long.
pub const PRUNE_ROWS: u64 = 2_048;
/// Bytes of events from which on such a transaction reads no further.
pub const PRUNE_BYTES: usize = 1 << 20;
/// Runs that such a transaction looks at.
pub const PRUNE_RUNS: u32 = 64;
/// Bytes of text that one snapshot of pruned events holds; a longer range becomes several. (A single
/// event that is longer stays whole.)
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 10;
/// Looks at a late journal that holds nothing, after which it is given up.
pub const LATE_ATTEMPTS_MAX: u32 = 12;
/// Seconds from the record of the interruption after which a late journal is given up.
pub const LATE_AGE_S: u64 = 86_400;
/// Seconds of silence after which a late journal without its end counts as whole.
pub const LATE_GRACE_S: u64 = 30;
/// Late records of one run that are kept.
pub const LATE_RECORDS_MAX: usize = 10_000;
/// Bytes of their texts.
pub const LATE_BYTES_MAX: usize = 4 << 20;
/// Seconds that a phase of a turn may go without progress, unless set otherwise.
pub const WATCHDOG_S: u64 = 600;
/// Seconds after which a continuation that failed before it had done anything may be tried again.
pub const UNPREPARED_PAUSE_S: u64 = 60;
/// Continuations of one turn after which no further one of that kind is tried by itself.
pub const UNPREPARED_MAX: u32 = 10;
/// Seconds that an interrupted turn waits for a person's decision.
pub const DECISION_S: u64 = 86_400;
/// Seconds that a question of the model waits for a person's answer, unless a policy says otherwise.
pub const CLARIFICATION_S: u64 = 3_600;
/// Characters of such a question.
pub const QUESTION_CHARS_MAX: usize = 2_000;
/// Answers that the model may propose with it, and characters of each.
pub const SUGGESTIONS_MAX: usize = 10;
/// Characters of one of them.
pub const SUGGESTION_CHARS_MAX: usize = 200;
/// Events of one run that is imported.
pub const IMPORT_EVENTS_MAX: u64 = 1_000_000;
/// Bytes of all their bodies.
pub const IMPORT_BYTES_MAX: u64 = 256 << 20;
/// Bytes from which on a text is not said twice by chance, so that a merge may look for it anywhere.
pub const MERGE_DISTINCT_BYTES: usize = 64;
/// Bytes at the beginning that a merge wants of a text that is cut short.
pub const MERGE_HEAD_BYTES: usize = 32;
/// Cells of one exact alignment for each of the rows that it compares.
pub const MERGE_CELLS_PER_ROW: usize = 64;
/// Cells of one exact alignment.
pub const MERGE_CELLS_MAX: usize = 1 << 16;
/// How often a merge may read all bytes again, to compare texts that are cut short.
pub const MERGE_REREADS: u64 = 4;
