//! What a turn under way has said and done, read in one transaction: the same rules for every store.

use std::collections::BTreeMap;

use everturn_api::event::piece;
use everturn_core::event::Told;
use everturn_core::{CallId, Event, Input, Prompt, Run, ToolCall, limits};

use crate::error::StorageError;
use crate::read::StoredEvent;

/// Events that are read at a time.
const PAGE: u32 = 512;

/// A turn under way, as of one moment. Its finished steps are rows of the transcript; this is the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct InFlight {
    /// Seq of the last event that is in here.
    pub seq: u64,
    /// The inputs that it answers.
    pub inputs: Vec<Input>,
    /// What the step under way said.
    pub text: String,
    /// Its reasoning.
    pub reasoning: String,
    /// The message that the text goes on, in the middle of it.
    pub resumes: Option<u64>,
    /// Whether more had been said than is in here: it comes behind `seq`.
    pub truncated: bool,
    /// The calls of the turn's last step that made any, and whatever else has no end; without their
    /// results, which are rows of the transcript.
    pub calls: Vec<ToolCall>,
    /// What calls under way said.
    pub outputs: BTreeMap<CallId, String>,
    /// Its open prompts, each with its call.
    pub prompts: Vec<(Prompt, Option<ToolCall>)>,
}

/// The rows that a picture of a turn is made of, all from one transaction.
pub trait Rows {
    /// An input.
    ///
    /// # Errors
    /// The store fails.
    fn input(&mut self, id: &everturn_core::InputId) -> Result<Option<Input>, StorageError>;
    /// The run's events behind a seq, at most `limit`.
    ///
    /// # Errors
    /// The store fails.
    fn events(
        &mut self,
        run: &Run,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StorageError>;
    /// The run's calls.
    ///
    /// # Errors
    /// The store fails.
    fn calls(&mut self, run: &Run) -> Result<Vec<ToolCall>, StorageError>;
    /// The run's open prompts.
    ///
    /// # Errors
    /// The store fails.
    fn open_prompts(&mut self, run: &Run) -> Result<Vec<(Prompt, Option<ToolCall>)>, StorageError>;
}

impl InFlight {
    /// Reads the picture of an unfinished run.
    ///
    /// # Errors
    /// The store fails. A stored event that cannot be read is passed over: whoever reads on from
    /// before it is told of it.
    pub fn read(rows: &mut dyn Rows, run: &Run) -> Result<Self, StorageError> {
        let mut calls = rows.calls(run)?;
        let last = calls.iter().map(|call| call.message_id).max();
        calls.retain(|call| Some(call.message_id) == last || !call.state.settled());
        for call in &mut calls {
            call.result = None;
        }
        let mut inputs = Vec::new();
        for id in &run.input_ids {
            inputs.extend(rows.input(id)?);
        }
        let prompts = rows.open_prompts(run)?;
        let mut picture = Self {
            seq: run.step_seq,
            inputs,
            text: String::new(),
            reasoning: String::new(),
            resumes: None,
            truncated: false,
            calls,
            outputs: BTreeMap::new(),
            prompts,
        };
        let (mut bytes, mut count) = (0_usize, 0_u64);
        'pages: loop {
            let page = rows.events(run, picture.seq, PAGE)?;
            if page.is_empty() {
                break;
            }
            for event in &page {
                count += 1;
                if count > limits::IN_FLIGHT_EVENTS_MAX || !picture.take(event, &mut bytes) {
                    picture.truncated = true;
                    break 'pages;
                }
            }
        }
        Ok(picture)
    }

    /// Takes the next event in; `false` if it does not fit.
    fn take(&mut self, event: &StoredEvent, bytes: &mut usize) -> bool {
        if let StoredEvent::Good(row) = event {
            if let Some(piece) = piece(&row.head, &row.body) {
                *bytes += piece.text.len();
                if *bytes > limits::IN_FLIGHT_BYTES_MAX {
                    return false;
                }
                match piece.of {
                    Told::Text => self.text.push_str(&piece.text),
                    Told::Reasoning => self.reasoning.push_str(&piece.text),
                    Told::Output(call) => {
                        self.outputs.entry(call).or_default().push_str(&piece.text)
                    }
                }
            } else if row.head.name == (Event::<()>::TextResumed { message_id: 0 }).name() {
                self.resumes = resumed(&row.body);
            }
        }
        self.seq = event.seq().unwrap_or(self.seq);
        true
    }
}

/// The message that a `text.resumed` names.
fn resumed(body: &str) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Resumed {
        message_id: u64,
    }
    serde_json::from_str::<Resumed>(body).ok().map(|resumed| resumed.message_id)
}
