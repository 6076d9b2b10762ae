//! `ask_user`: the model asks the person.
//!
//! The tool itself only says what is asked. That it waits, for how long, and that a person's answer
//! outlives the process is the engine's part, as it is with approvals.

use async_trait::async_trait;
use everturn_core::{Effect, limits};
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{parse, refusal};
use super::{Tool, ToolInvocation, ToolOutcome, ToolSpec};

/// The tool by which a model asks the person.
#[derive(Debug)]
pub struct AskUser(ToolSpec);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    question: String,
    #[serde(default)]
    choices: Vec<String>,
}

impl Default for AskUser {
    fn default() -> Self {
        Self(ToolSpec {
            name: "ask_user".to_owned(),
            description: "Asks the person a question and waits for the answer. Use it where the request cannot be carried out well without knowing something that only they can tell; never to ask whether a tool may run. Nobody may answer: then go on without."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "question": {
                        "type": "string",
                        "description": format!(
                            "One question, at most {} characters.",
                            limits::QUESTION_CHARS_MAX
                        ),
                    },
                    "choices": {
                        "type": "array",
                        "items": { "type": "string" },
                        "maxItems": limits::SUGGESTIONS_MAX,
                        "description": format!(
                            "Answers to choose from, each at most {} characters. The person may answer something else.",
                            limits::SUGGESTION_CHARS_MAX
                        ),
                    },
                },
                "required": ["question"],
                "additionalProperties": false,
            }),
            // Nothing is changed by asking; a question that got no answer may be put again.
            effect: Effect::Read,
        })
    }
}

impl AskUser {
    /// The question, if it is one.
    fn asked(&self, arguments: &Value) -> Result<String, String> {
        let Arguments { question, choices } = parse(&self.0, arguments)?;
        let question = question.trim();
        if question.is_empty() || question.chars().count() > limits::QUESTION_CHARS_MAX {
            let what = format!("`question` takes 1 to {} characters", limits::QUESTION_CHARS_MAX);
            return Err(refusal(&self.0, &what));
        }
        let is_fine = |choice: &String| {
            !choice.trim().is_empty() && choice.chars().count() <= limits::SUGGESTION_CHARS_MAX
        };
        if choices.len() > limits::SUGGESTIONS_MAX || !choices.iter().all(is_fine) {
            let what = format!(
                "`choices` takes at most {} texts of 1 to {} characters",
                limits::SUGGESTIONS_MAX,
                limits::SUGGESTION_CHARS_MAX
            );
            return Err(refusal(&self.0, &what));
        }
        Ok(question.to_owned())
    }
}

#[async_trait]
impl Tool for AskUser {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn question(&self, arguments: &Value) -> Option<Result<String, String>> {
        Some(self.asked(arguments))
    }

    /// Reached only where whoever runs tools puts no questions.
    async fn run(&self, _: ToolInvocation) -> ToolOutcome {
        ToolOutcome::NotRun("Nobody can be asked here.".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_one_within_its_limits() {
        let asks = |arguments: Value| AskUser::default().question(&arguments).unwrap();
        assert_eq!(asks(json!({ "question": " Which one? " })), Ok("Which one?".to_owned()));
        assert!(asks(json!({ "question": "?", "choices": ["a", "b"] })).is_ok());
        let long = |chars: usize| "x".repeat(chars);
        assert!(asks(json!({ "question": long(2_000) })).is_ok());
        for bad in [
            json!({}),
            json!({ "question": " " }),
            json!({ "question": 1 }),
            json!({ "question": long(2_001) }),
            json!({ "question": "?", "choices": [""] }),
            json!({ "question": "?", "choices": [long(201)] }),
            json!({ "question": "?", "choices": vec!["a"; 11] }),
            json!({ "question": "?", "secret": true }),
        ] {
            assert!(asks(bad.clone()).is_err(), "{bad}");
        }
    }
}
