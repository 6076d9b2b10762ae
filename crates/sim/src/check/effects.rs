//! Side effects: counted outside, compared with what the records say (P9).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::{Findings, text};
use crate::history::SessionHistory;

/// Lines that commands appended to a file, and how often each is there.
#[derive(Debug, Clone)]
pub struct Effects {
    /// What was found.
    pub lines: BTreeMap<String, usize>,
    /// The line that a call with these arguments appends, if it is one that does.
    pub line_of: fn(&Value) -> Option<String>,
}

/// The lines of a file, each with how often it is there; none if there is no file.
///
/// # Errors
/// It cannot be read.
pub fn lines(path: &Path) -> Result<BTreeMap<String, usize>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        *lines.entry(line.to_owned()).or_default() += 1;
    }
    Ok(lines)
}

impl Effects {
    /// No effect more than once; one for each call that succeeded, none for one that did not begin.
    pub(super) fn check(&self, history: &SessionHistory, findings: &mut Findings<'_>) {
        let calls = history.messages.iter().filter_map(|message| message["tool_calls"].as_array());
        for call in calls.flatten() {
            let Some(line) = (self.line_of)(&call["arguments"]) else { continue };
            let times = self.lines.get(&line).copied().unwrap_or_default();
            let kept = match text(call, "state") {
                "succeeded" => times == 1,
                "failed" | "unknown" => times <= 1,
                "not_run" | "denied" => times == 0,
                _ => false,
            };
            if !kept {
                findings.add("P9", format!("{line:?} happened {times} times: {call}"));
            }
        }
    }
}
