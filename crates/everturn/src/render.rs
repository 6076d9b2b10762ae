//! A turn, as a person sees it: text, tool cards, how it ended.

use std::collections::HashMap;

use everturn_api::message::ToolCall;
use everturn_api::prompt::Prompt;
use everturn_api::run::{Evidence, Failure};
use everturn_core::recovery::Parked;

use crate::client::Event;
use crate::surface::Surface;
use crate::term::one_line;

/// Lines of a tool's output that a card shows.
const OUTPUT_LINES: usize = 20;
/// Characters of a line on a card.
const LINE_CHARS: usize = 160;

/// Turns events into what is shown.
#[derive(Default)]
pub(crate) struct Renderer {
    cards: HashMap<String, Card>,
    /// Text was shown and its message is over: the next text is another message's.
    between: bool,
}

#[derive(Default)]
struct Card {
    /// The beginning of a line whose end has not come.
    partial: String,
    lines: usize,
}

impl Renderer {
    /// Shows one event of a run.
    pub(crate) fn event(&mut self, event: &Event, to: &mut dyn Surface) {
        let said = &event.said;
        match event.name() {
            "text.snapshot" if said.output.is_some() => {
                self.output(said.call_id.as_deref(), said.output.as_deref(), to);
            }
            // Reasoning is not shown, whether it was pruned or not.
            "text.snapshot" if said.reasoning.is_some() => {}
            "text.delta" | "text.snapshot" => {
                if std::mem::take(&mut self.between) {
                    to.break_data();
                }
                to.data(said.text.as_deref().unwrap_or_default());
            }
            "tool.intended" => {
                self.between = true;
                if let Some(call) = &said.call {
                    to.talk(&card_head(call, to));
                }
            }
            "tool.output" => {
                self.output(said.call_id.as_deref(), said.text.as_deref(), to);
            }
            "tool.finished" => {
                self.between = true;
                if let Some(call) = &said.call {
                    self.finished(call, to);
                }
            }
            "run.failed" => {
                if let Some(failure) = &said.error {
                    talk_failure(failure, to);
                }
            }
            "run.cancelled" => {
                let by = said.by.as_deref().unwrap_or("a person");
                let line = format!("stopped by {by}");
                to.talk(&to.paint().warn(&line));
            }
            "run.interrupted" => {
                self.between = false;
                talk_evidence(said.evidence.as_ref(), to);
            }
            "run.handed_over" => {
                let line =
                    "the process that ran this turn is leaving; the next one goes on with it";
                to.talk(&to.paint().quiet(line));
            }
            _ => {}
        }
    }

    fn output(&mut self, call: Option<&str>, text: Option<&str>, to: &mut dyn Surface) {
        let card = self.cards.entry(call.unwrap_or_default().to_owned()).or_default();
        card.partial.push_str(text.unwrap_or_default());
        while let Some(end) = card.partial.find('\n') {
            let line: String = card.partial.drain(..=end).collect();
            card.line(&line, to);
        }
        if card.partial.len() > LINE_CHARS * 4 {
            let line = std::mem::take(&mut card.partial);
            card.line(&line, to);
        }
    }

    fn finished(&mut self, call: &ToolCall, to: &mut dyn Surface) {
        let mut card = self.cards.remove(&call.id).unwrap_or_default();
        if !card.partial.is_empty() {
            let line = std::mem::take(&mut card.partial);
            card.line(&line, to);
        }
        if card.lines > OUTPUT_LINES {
            let more = format!("  | … {} more lines", card.lines - OUTPUT_LINES);
            to.talk(&to.paint().quiet(&more));
        }
        to.talk(&card_end(call, to));
    }
}

impl Card {
    fn line(&mut self, line: &str, to: &mut dyn Surface) {
        self.lines += 1;
        if self.lines <= OUTPUT_LINES {
            let line = format!("  | {}", one_line(line, LINE_CHARS));
            to.talk(&to.paint().quiet(line.trim_end()));
        }
    }
}

/// The first line of a tool card.
pub(crate) fn card_head(call: &ToolCall, to: &dyn Surface) -> String {
    format!("* {}  {}", to.paint().name(&one_line(&call.name, 64)), arguments(call, LINE_CHARS))
}

/// What a call was asked to do, in one line: the value alone where there is only one.
pub(crate) fn arguments(call: &ToolCall, chars: usize) -> String {
    let text = call.arguments.get();
    if let Ok(serde_json::Value::Object(map)) = serde_json::from_str(text)
        && map.len() == 1
        && let Some(serde_json::Value::String(only)) = map.values().next()
    {
        return one_line(only, chars);
    }
    one_line(text, chars)
}

fn card_end(call: &ToolCall, to: &dyn Surface) -> String {
    let paint = to.paint();
    let took = took(call.started_at.as_deref(), call.ended_at.as_deref());
    let why = call.result.as_deref().map(|result| one_line(result, LINE_CHARS)).unwrap_or_default();
    match call.state.as_str() {
        "succeeded" => paint.good(&format!("  = done{took}")),
        "failed" => paint.warn(&format!("  = failed{took}: {why}")),
        "denied" => paint.warn("  = denied"),
        "not_run" => paint.warn(&format!("  = not run: {why}")),
        "unknown" => paint.bad("  = outcome unknown: it began, and nobody knows how far it got"),
        other => paint.quiet(&format!("  = {other}")),
    }
}

/// ` in 1.2 s`, where both ends are known.
fn took(from: Option<&str>, to: Option<&str>) -> String {
    let ms = from.zip(to).and_then(|(from, to)| {
        let from: jiff::Timestamp = from.parse().ok()?;
        let to: jiff::Timestamp = to.parse().ok()?;
        Some(to.as_millisecond().saturating_sub(from.as_millisecond()))
    });
    match ms {
        Some(ms) => format!(" in {}", duration(ms)),
        None => String::new(),
    }
}

/// A duration for people.
pub(crate) fn duration(ms: i64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        ..1 => format!("{} ms", ms.max(0)),
        1..60 => format!("{}.{} s", seconds, ms % 1_000 / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A handled error, as every error is shown.
pub(crate) fn talk_failure(failure: &Failure, to: &mut dyn Surface) {
    let paint = to.paint();
    let message = one_line(&failure.message, 2_000);
    to.talk(&format!("{} {message} ({})", paint.bad("error:"), failure.code));
    if let Some(hint) = &failure.hint {
        to.talk(&format!("{} {}", paint.strong("hint:"), one_line(hint, 2_000)));
    }
}

fn talk_evidence(evidence: Option<&Evidence>, to: &mut dyn Surface) {
    let text = evidence.map_or("this turn was interrupted", |evidence| evidence.text.as_str());
    to.talk(&to.paint().warn(&one_line(text, 2_000)));
}

/// Why an interrupted turn did not go on by itself, as the rest of a sentence; `word` is the reason on
/// the wire.
pub(crate) fn not_continued(word: Option<&str>) -> String {
    let Some(word) = word else { return "nobody works on it".to_owned() };
    // A word of a newer server is shown as it is.
    let reason =
        Parked::parse(word).map_or_else(|| one_line(word, 64), |it| it.reason().to_owned());
    format!("it was not continued by itself: {reason}")
}

/// What is said where a run goes on from another one. A person's own *continue* is no attempt of ours.
pub(crate) fn going_on(attempt: Option<u32>) -> String {
    match attempt.unwrap_or(0) {
        0 => "going on, as you asked".to_owned(),
        attempt => format!("going on (attempt {attempt})"),
    }
}

/// The question of a prompt, with what it is about.
pub(crate) fn question(prompt: &Prompt) -> String {
    match &prompt.call {
        Some(call) if prompt.kind == "approval" => {
            format!("may {} run?  {}", one_line(&call.name, 64), arguments(call, 2_000))
        }
        _ => one_line(&prompt.question, 2_000),
    }
}

/// The keys that answer an approval.
const ANSWERS: &str = "[y] once  [s] this session  [a] always  [n] no, then Enter";

/// What can be typed to answer a prompt, line by line.
pub(crate) fn answers(prompt: &Prompt) -> Vec<String> {
    if prompt.kind == "approval" {
        return vec![format!("  {ANSWERS}")];
    }
    let numbered = prompt.suggestions.iter().zip(1..);
    let mut lines: Vec<String> =
        numbered.map(|(text, number)| format!("  [{number}] {}", one_line(text, 200))).collect();
    lines.push(match lines.is_empty() {
        true => "  type the answer, then Enter".to_owned(),
        false => "  a number, or any other answer, then Enter".to_owned(),
    });
    lines
}

/// What a typed line says to a question of the model: the proposal with this number, or itself.
pub(crate) fn said<'a>(prompt: &'a Prompt, typed: &'a str) -> &'a str {
    let number = typed.trim().parse::<usize>().ok();
    number
        .and_then(|number| prompt.suggestions.get(number.checked_sub(1)?))
        .map_or(typed, String::as_str)
}

/// What a question of the model is answered with where nobody can be asked.
pub(crate) const NOBODY: &str = "(Nobody is there to answer: the conversation goes through a command without a terminal. That is neither consent nor denial.)";

/// What a denial says where nobody can be asked whether a call may run.
pub(crate) const NOBODY_APPROVES: &str =
    "Nobody could be asked: the conversation goes through a command without a terminal.";

/// The choice that a person typed.
pub(crate) fn choice(typed: &str) -> Option<&'static str> {
    match typed.trim().to_lowercase().as_str() {
        "y" | "yes" | "once" => Some("once"),
        "s" | "session" => Some("session"),
        "a" | "always" => Some("always"),
        "n" | "no" | "d" | "deny" => Some("deny"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::{Paint, Term};

    #[derive(Default)]
    struct Paper {
        data: String,
        talk: Vec<String>,
    }

    impl Surface for Paper {
        fn data(&mut self, text: &str) {
            self.data.push_str(text);
        }
        fn break_data(&mut self) {
            if !self.data.is_empty() && !self.data.ends_with('\n') {
                self.data.push('\n');
            }
        }
        fn talk(&mut self, line: &str) {
            self.talk.push(line.to_owned());
        }
        fn paint(&self) -> Paint {
            let plain = Term::of_process();
            Term { stderr_tty: false, ..plain }.err_paint()
        }
    }

    fn show(events: &[&str]) -> Paper {
        let (mut paper, mut renderer) = (Paper::default(), Renderer::default());
        for raw in events {
            renderer.event(&Event::parse(raw).unwrap(), &mut paper);
        }
        paper
    }

    #[test]
    fn text_is_data_and_tools_are_talk() {
        let call = r#"{"id":"c","name":"shell","arguments":{"command":"ls -l"},"state":"STATE","effect":"write","started_at":"2026-11-30T06:00:00.000Z","ended_at":"2026-11-30T06:00:01.250Z"}"#;
        let intended =
            format!(r#"{{"event":"tool.intended","call":{}}}"#, call.replace("STATE", "intended"));
        let finished =
            format!(r#"{{"event":"tool.finished","call":{}}}"#, call.replace("STATE", "succeeded"));
        let paper = show(&[
            r#"{"event":"text.delta","text":"I will "}"#,
            r#"{"event":"text.delta","text":"look."}"#,
            &intended,
            r#"{"event":"tool.output","call_id":"c","text":"one\ntw"}"#,
            r#"{"event":"tool.output","call_id":"c","text":"o\u001b[31m\n"}"#,
            &finished,
            r#"{"event":"text.delta","text":"Two lines."}"#,
        ]);
        assert_eq!(paper.data, "I will look.\nTwo lines.");
        assert_eq!(paper.talk, ["* shell  ls -l", "  | one", "  | two␛[31m", "  = done in 1.2 s"]);
        // Pruned, it looks the same.
        let pruned = show(&[
            r#"{"event":"text.snapshot","from":2,"to":3,"text":"","reasoning":"hm"}"#,
            r#"{"event":"text.snapshot","from":4,"to":5,"text":"I will look."}"#,
            &intended,
            r#"{"event":"text.snapshot","from":7,"to":8,"text":"","call_id":"c","output":"one\ntwo\u001b[31m\n"}"#,
            &finished,
            r#"{"event":"text.snapshot","from":10,"to":10,"text":"Two lines."}"#,
        ]);
        assert_eq!((pruned.data, pruned.talk), (paper.data, paper.talk));
    }

    #[test]
    fn text_that_goes_on_after_an_interruption_stays_one_text() {
        let paper = show(&[
            r#"{"event":"text.delta","text":"Half a sen"}"#,
            r#"{"event":"run.interrupted","cause":"process_restart"}"#,
            r#"{"event":"text.delta","text":"tence."}"#,
        ]);
        assert_eq!(paper.data, "Half a sentence.");
        assert_eq!(paper.talk, ["this turn was interrupted"]);
    }

    #[test]
    fn much_output_is_counted_and_not_shown() {
        let text = "x\\n".repeat(30);
        let paper = show(&[
            &format!(r#"{{"event":"tool.output","call_id":"c","text":"{text}"}}"#),
            r#"{"event":"tool.finished","call":{"id":"c","name":"n","arguments":{},"state":"failed","result":"exit 1\nbad","effect":"read"}}"#,
        ]);
        assert_eq!(paper.talk.len(), 22);
        assert_eq!(paper.talk[20], "  | … 10 more lines");
        assert_eq!(paper.talk[21], "  = failed: exit 1 bad");
    }

    #[test]
    fn durations_are_for_people() {
        let shown = [0, 999, 1_000, 59_999, 60_000, 3_600_000, 90_000_000].map(duration);
        assert_eq!(
            shown,
            ["0 ms", "999 ms", "1.0 s", "59.9 s", "1 min 0 s", "1 h 0 min", "1 d 1 h"]
        );
    }
}
