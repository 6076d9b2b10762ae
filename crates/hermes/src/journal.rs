//! Run journals: one JSON object a line, one run a file.
//!
//! [`Reader`] goes through a journal record by record, [`read`] takes a window and the summary in one
//! pass, [`Writer`] appends, [`Folder`] finds a run's file in a folder of them. Reading is tolerant:
//! whatever is damaged is reported as [`Malformed`] beside the good records and never hides one.
//! Memory is bounded whatever the input holds.

mod folder;
mod lines;
mod reader;
mod record;
mod stale;
mod terminal;
mod window;
mod writer;

pub use folder::{Folder, Found};
pub use lines::LINE_BYTES_MAX;
pub use reader::{Identity, Item, Malformed, Reader, Reason};
pub use record::{EventId, Record};
pub use stale::{StalePayload, StaleReport, stale_report};
pub use terminal::{State, is_terminal};
pub use window::{
    HOLES_MAX, Journal, MALFORMED_MAX, Summary, WINDOW_BYTES_MAX, Window, read, read_of, summary,
};
pub use writer::Writer;
