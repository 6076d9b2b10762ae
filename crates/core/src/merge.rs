//! Two records of one conversation become one transcript.
//!
//! Ours is authoritative: its rows stay, all of them, in their order. The other one, the *copy*, was
//! kept by an outside program or by a node that came late; it may repeat a part of ours, and it may
//! know rows that ours lost. [`merge`] tells the two apart and puts what is new in its place. Here
//! are the rows and the result; `fingerprint` says when two rows say the same, `same` which rows are
//! one for certain, `align` follows both records in order, `moved` looks for what stands elsewhere,
//! and `place` builds the transcript.
//!
//! # What is the same row
//!
//! The first line that applies decides. Each row of the copy is matched with at most one row of ours
//! and the other way round, so occurrences are counted: of two "ok" in the copy and one in ours, one
//! is new.
//!
//! | | a row of the copy is a row of ours if | where |
//! | --- | --- | --- |
//! | 1 | both have the same [`Row::key`], once on each side, and the same role | anywhere |
//! | 2 | the first calls that both make have the same id, tool and arguments, the id once on each side; or both answer such a call and one of them has lost the call itself | anywhere |
//! | 3 | it says the same at the same millisecond, once on each side, in records that share a clock (below) | anywhere |
//! | 4 | it says the same, or is the same text cut short (below) | between the same neighbours: the longest common order of both records; of several, that with the most long texts, then with the most calls whose results agree, then with the most that stands together, then with the fewest questions |
//! | 5 | it and its neighbour in the copy say what two neighbours of ours say | anywhere |
//! | 6 | it says the same in [`MERGE_DISTINCT_BYTES`](crate::limits::MERGE_DISTINCT_BYTES) bytes or more, and is not part of something new | anywhere |
//! | 7 | it says the same and stands beside a row that 1 to 6 matched, as in ours | there |
//! | 8 | it is the result of a call that was matched, at the same place among its calls, whatever it says | with its call |
//!
//! A result whose call is in its record is decided by line 8 alone: a result never leaves its call. Rows
//! of runs that both records name are compared only within their run: as soon as the records share
//! one run id, two rows with different ones are different rows.
//!
//! *Says the same*: same role, same text with each stretch of white space as one space, same number
//! of images, same tools called with the same arguments (white space aside). Ids, times, kinds and
//! tool names of results do not count. In the copy a user's text may besides begin with one workspace
//! line, and may have `[screenshot]` in place of images; ours is never stripped, because a person may
//! have typed just that.
//!
//! *Cut short*: only compaction notes and tool results, only with 32 equal bytes at the beginning, and
//! only if what the short one has of its own is nothing or a mark that something was left out. Rows
//! that say the same go first.
//!
//! *Share a clock*: of the texts that occur once on each side, and there is one, at least half have the
//! same time on both. Where rows were stamped anew, an equal time is an accident.
//!
//! # What is kept of the copy
//!
//! | a row that is not matched | becomes |
//! | --- | --- |
//! | ours has no such row left | a new row |
//! | ours has one, elsewhere; it is answered by something new, or answers it | a new row: said again |
//! | ours has one, elsewhere, and nothing tells a repetition from a move | [`Doubt::OutOfPlace`] |
//! | with its neighbours it repeats neighbours of ours, a long text among them, once more than ours has them | [`Doubt::Replayed`] |
//! | it belongs before a summary of ours, which stands for that part already | [`Doubt::Summarised`] |
//! | a result without a call, or a second one of a call | [`Doubt::Unpaired`] |
//! | a result whose call is in doubt | the doubt of its call |
//!
//! It stands after the row that the row before it in the copy became, behind what ours says to the
//! same end (the rest of that turn, as far as the copy does not have it), and never between a call and
//! its results. Rows before the first matched one stand before that one. Doubtful rows are shown and
//! never told to a model: [`Merged::for_model`] leaves them out.
//!
//! # What it costs
//!
//! Each text is read once and hashed (SHA-256, so that nobody can make two texts look alike); from
//! then on rows are numbers. A text that may be cut short is read again, against at most four times
//! the bytes of both records in all. A table of alignment never has more than 64 cells for each row;
//! what is larger is split at rows that occur once on each side, and where there are none, followed
//! greedily. So the work is linear in the bytes and in the rows, but for the longest increasing order
//! of single rows, which takes n log n comparisons of numbers. [`Work`] counts it.

mod align;
mod fingerprint;
mod moved;
mod place;
mod same;
mod scene;

use crate::message::{MessageKind, Role};
use crate::time::Timestamp;

pub use fingerprint::without_workspace_line;

/// A tool call in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Its id in that record; empty if it has none.
    pub id: &'a str,
    /// Tool name.
    pub name: &'a str,
    /// JSON text.
    pub arguments: &'a str,
}

/// One row of either record, borrowed from wherever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    /// Who it is from.
    pub role: Role,
    /// What it is. Decoration, but for summaries.
    pub kind: MessageKind,
    /// Its text.
    pub text: &'a str,
    /// How many images it has.
    pub images: u32,
    /// The calls that it makes.
    pub calls: Vec<Call<'a>>,
    /// For a tool's result: the id of the call that it answers, in that record.
    pub answers: Option<&'a str>,
    /// For a tool's result: the tool's name.
    pub tool: Option<&'a str>,
    /// A name of the message that one record took over from the other. Not a record's own row id:
    /// equal keys are trusted. Different ones say nothing.
    pub key: Option<&'a str>,
    /// The run that wrote it, if the record has it from the one that ran it.
    pub run: Option<&'a str>,
    /// When it was written.
    pub at: Option<Timestamp>,
}

impl<'a> Row<'a> {
    /// A row that says something and has nothing else.
    #[must_use]
    pub const fn new(role: Role, text: &'a str) -> Self {
        Self {
            role,
            kind: MessageKind::Message,
            text,
            images: 0,
            calls: Vec::new(),
            answers: None,
            tool: None,
            key: None,
            run: None,
            at: None,
        }
    }
}

/// By which rule a row of the copy is a row of ours; the numbers are lines of the module's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// 1 and 2: an id that both have.
    Correlation,
    /// 3: the same at the same time.
    Exact,
    /// 4: the same place in both orders.
    Sequence,
    /// 5 and 7: the same beside the same neighbour, elsewhere.
    Block,
    /// 6: the count of its occurrences.
    Count,
    /// 8: the same call's result.
    Call,
}

/// A row of the copy that is a row of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Index in the copy.
    pub copy: usize,
    /// Index in ours.
    pub ours: usize,
    /// Why.
    pub by: By,
    /// Whether both say the same. If not, the copy's text is shortened, or an id outweighed it.
    pub same: bool,
}

/// Why a row is kept and not trusted. Indices are those of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// Said again, or the same row in another place.
    OutOfPlace {
        /// The row that it may be.
        like: usize,
    },
    /// Part of a stretch that ours has and the copy has once more.
    Replayed {
        /// The row that it repeats.
        like: usize,
    },
    /// Older than a summary, which may stand for it.
    Summarised {
        /// The summary.
        by: usize,
    },
    /// A tool's result without its call, or a second result.
    Unpaired,
}

/// One row of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A row of ours, by index.
    Ours(usize),
    /// A row that only the copy has, by index.
    Copy(usize),
}

/// One row of the result and whether it is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Where it comes from.
    pub source: Source,
    /// Why it is not for the model, if it is not. Rows of ours are never in doubt.
    pub doubt: Option<Doubt>,
}

/// What a merge did, counted: proportional to time and independent of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of text that were read, some of them more than once.
    pub bytes: u64,
    /// Look-ups and comparisons of rows.
    pub steps: u64,
    /// Pairs of rows in tables of alignment.
    pub cells: u64,
}

/// The result of a merge. It holds indices only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The transcript.
    pub rows: Vec<Placed>,
    /// The rows of the copy that are rows of ours, in the copy's order.
    pub matches: Vec<Match>,
    /// What it took.
    pub work: Work,
}

impl Merged {
    /// The rows of the transcript that a model may be told, in order.
    pub fn for_model(&self) -> impl Iterator<Item = Source> + '_ {
        self.rows.iter().filter(|row| row.doubt.is_none()).map(|row| row.source)
    }

    /// The doubtful rows: index in the copy, and why.
    pub fn doubtful(&self) -> impl Iterator<Item = (usize, Doubt)> + '_ {
        self.rows.iter().filter_map(|row| match (row.source, row.doubt) {
            (Source::Copy(row), Some(doubt)) => Some((row, doubt)),
            _ => None,
        })
    }

    /// How many rows the copy added, doubtful ones included.
    #[must_use]
    pub fn added(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.source, Source::Copy(_))).count()
    }
}

/// How large an exact alignment may be.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct Effort {
    /// Cells of a table for each of the rows that it compares.
    pub cells_per_row: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { cells_per_row: crate::limits::MERGE_CELLS_PER_ROW }
    }
}

/// Merges `copy` into `ours`. The module's tables say what is matched, kept and doubted.
///
/// Both must be whole records, or the copy a stretch of one: of a part of ours one cannot count.
#[must_use]
pub fn merge(ours: &[Row<'_>], copy: &[Row<'_>]) -> Merged {
    merge_with(ours, copy, Effort::default())
}

/// [`merge`] with less effort for exactness, so that tests reach what large records need.
#[doc(hidden)]
#[must_use]
pub fn merge_with(ours: &[Row<'_>], copy: &[Row<'_>], effort: Effort) -> Merged {
    let mut scene = scene::Scene::new(ours, copy, effort);
    same::correlate(&mut scene);
    align::heads(&mut scene);
    let doubts = moved::decide(&mut scene);
    same::results(&mut scene);
    align::results(&mut scene);
    place::build(scene, doubts)
}
