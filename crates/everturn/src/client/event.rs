//! Events as this side reads them.

use everturn_api::message::{Message, ToolCall};
use everturn_api::prompt::Prompt;
use everturn_api::run::{Evidence, Failure};
use everturn_api::session::Session;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{CliError, Fault, Result};

/// One event: the bytes as they came, and what is known of them.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// As it was sent.
    pub(crate) raw: Box<str>,
    /// What it says.
    pub(crate) said: Said,
}

/// The fields of all events in one; each event has some of them. Unknown ones are ignored, as the
/// interface demands.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Said {
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) offset: Option<u64>,
    #[serde(default)]
    pub(crate) at: String,
    #[serde(default)]
    pub(crate) run_id: Option<String>,
    #[serde(default)]
    pub(crate) seq: Option<u64>,
    #[serde(default)]
    pub(crate) text: Option<String>,
    #[serde(default)]
    pub(crate) input_id: Option<String>,
    #[serde(default)]
    pub(crate) request_id: Option<String>,
    #[serde(default)]
    pub(crate) input_ids: Vec<String>,
    #[serde(default)]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) generation: Option<u64>,
    #[serde(default)]
    pub(crate) continues: Option<String>,
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    #[serde(default)]
    pub(crate) model: Option<String>,
    #[serde(default)]
    pub(crate) call: Option<ToolCall>,
    #[serde(default)]
    pub(crate) call_id: Option<String>,
    #[serde(default)]
    pub(crate) reasoning: Option<String>,
    #[serde(default)]
    pub(crate) output: Option<String>,
    #[serde(default)]
    pub(crate) prompt: Option<Prompt>,
    #[serde(default)]
    pub(crate) message: Option<Message>,
    #[serde(default)]
    pub(crate) session: Option<Session>,
    #[serde(default)]
    pub(crate) error: Option<Failure>,
    #[serde(default)]
    pub(crate) by: Option<String>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) cause: Option<String>,
    #[serde(default)]
    pub(crate) evidence: Option<Evidence>,
    #[serde(default)]
    pub(crate) input_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) output_tokens: Option<u64>,
}

/// Name and place of an event that is not one of ours.
fn head(raw: &str) -> Option<Said> {
    #[derive(Deserialize)]
    struct Head {
        event: String,
        #[serde(default)]
        offset: Option<u64>,
        #[serde(default)]
        at: String,
        #[serde(default)]
        run_id: Option<String>,
        #[serde(default)]
        seq: Option<u64>,
    }
    let Head { event, offset, at, run_id, seq } = serde_json::from_str(raw).ok()?;
    let ours = everturn_api::known::NAMES.contains(&event.as_str());
    (!ours).then(|| Said { event, offset, at, run_id, seq, ..Said::default() })
}

impl Event {
    /// Reads one.
    pub(crate) fn parse(raw: &str) -> Result<Self> {
        let said = match serde_json::from_str(raw) {
            Ok(said) => said,
            // Fields of an event that is not known here may be anything.
            Err(error) => head(raw).ok_or_else(|| {
                CliError::new(Fault::Protocol, format!("an event cannot be understood: {error}"))
                    .hint("server and command line may be of different versions")
            })?,
        };
        Ok(Self { raw: raw.into(), said })
    }

    /// Reads one that stands in a JSON document.
    pub(crate) fn of_json(raw: &RawValue) -> Result<Self> {
        Self::parse(raw.get())
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.said.event
    }

    /// Whether it is the last one of its run.
    pub(crate) fn is_terminal(&self) -> bool {
        everturn_core::event::is_terminal(&self.said.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_and_names_are_ignored() {
        let raw = r#"{"session_id":"s","offset":3,"event":"brand.new","at":"t","x":{"y":1}}"#;
        let event = Event::parse(raw).unwrap();
        assert_eq!((event.name(), event.said.offset), ("brand.new", Some(3)));
        assert_eq!(&*event.raw, raw);
        // Not even its fields need be what ours are.
        let raw = r#"{"event":"brand.new","seq":4,"call":[],"error":"x","text":1}"#;
        let event = Event::parse(raw).unwrap();
        assert_eq!((event.name(), event.said.seq), ("brand.new", Some(4)));
        assert!(Event::parse(r#"{"event":"tool.finished","seq":4,"call":[]}"#).is_err());
        assert_eq!(Event::parse("{}").unwrap_err().code, "protocol_mismatch");
    }
}
