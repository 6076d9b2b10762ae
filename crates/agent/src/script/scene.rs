//! What a script looks at: a request, read as facts.
//!
//! Everything here is a function of the request alone, so that a script answers the same after any
//! number of restarts.

use everturn_core::content::Part;
use everturn_core::recovery::CONTINUATION_PREFIX;
use everturn_core::view::ViewMessage;

use crate::provider::ModelRequest;

/// What stands before the original request in a continuation's text.
const ORIGINAL_MARK: &str = "The request was:\n\n";
/// How every note begins that Everturn puts in a person's place.
const NOTE_PREFIX: &str = "[System note: ";

/// A request, read as facts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Scene {
    /// The last thing a person said; of a continuation, the request that it goes on with.
    pub(super) input: String,
    /// Whether the last word is a continuation's.
    pub(super) continuation: bool,
    /// How often the model has called tools since the input.
    pub(super) round: u32,
    /// How many things people have said, the input included.
    pub(super) turn: u64,
    /// What the model has already said in this round.
    pub(super) partial: String,
    /// The last tool result since the input.
    pub(super) last_tool_result: Option<String>,
    /// Names of the tools that the model may call.
    pub(super) offers: Vec<String>,
}

/// Whose word a text part is.
enum Word<'a> {
    Person(&'a str),
    Note(&'a str),
    Continuation { original: &'a str },
}

fn word(text: &str) -> Word<'_> {
    if text.starts_with(CONTINUATION_PREFIX) {
        let original = text.split_once(ORIGINAL_MARK).map_or(text, |(_, original)| original);
        Word::Continuation { original }
    } else if text.starts_with(NOTE_PREFIX) {
        Word::Note(text)
    } else {
        Word::Person(text)
    }
}

/// The words of one message, in order.
fn words(message: &ViewMessage) -> Vec<Word<'_>> {
    let ViewMessage::User(content) = message else { return Vec::new() };
    content
        .0
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(word(text)),
            Part::Image { .. } => None,
        })
        .collect()
}

impl Scene {
    /// Reads a request.
    pub(super) fn of(request: &ModelRequest) -> Self {
        let messages = &request.messages;
        let mut scene = Self {
            offers: request.tools.iter().map(|tool| tool.name.clone()).collect(),
            ..Self::default()
        };
        scene.turn =
            messages.iter().flat_map(words).filter(|word| matches!(word, Word::Person(_))).count()
                as u64;

        let origin = scene.read_input(messages);
        // It is to go on in the middle of its own message.
        scene.continuation |= request.continues_partial();
        for message in &messages[origin..] {
            match message {
                ViewMessage::Assistant { calls, .. } if !calls.is_empty() => {
                    scene.round += 1;
                    scene.partial.clear();
                }
                ViewMessage::Assistant { text, .. } => scene.partial.push_str(text),
                ViewMessage::ToolResult { text, .. } => {
                    scene.last_tool_result = Some(text.clone());
                }
                ViewMessage::User(_) => {}
            }
        }
        scene
    }

    /// Finds the input; returns the index of the message that it stands in. A continuation is not
    /// an input: what was done for the request before it counts as done.
    fn read_input(&mut self, messages: &[ViewMessage]) -> usize {
        let mut found: Option<usize> = None;
        for (at, message) in messages.iter().enumerate().rev() {
            if !matches!(message, ViewMessage::User(_)) {
                continue;
            }
            let words = words(message);
            let spoken = words.iter().rposition(|word| !matches!(word, Word::Note(_)));
            match spoken.map(|at| &words[at]) {
                Some(Word::Person(text)) => {
                    if found.is_none() {
                        self.input = (*text).to_owned();
                    }
                    return at;
                }
                Some(Word::Continuation { original }) => {
                    if found.is_none() {
                        self.continuation = true;
                        self.input = (*original).to_owned();
                    }
                    // The request may stand in the same message, when nothing was said between.
                    if words.iter().any(|word| matches!(word, Word::Person(_))) {
                        return at;
                    }
                    found = Some(at);
                }
                // Only notes: background work reports, and nobody else speaks.
                _ => {
                    let text = match words.last() {
                        Some(Word::Note(text)) => *text,
                        _ => "",
                    };
                    if found.is_none() {
                        self.input = text.to_owned();
                    }
                    if self.input == text {
                        return at;
                    }
                }
            }
        }
        found.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_core::Content;
    use everturn_core::recovery::continuation_note;
    use everturn_core::view::ViewCall;

    fn user(texts: &[&str]) -> ViewMessage {
        ViewMessage::User(Content(texts.iter().map(|t| Part::Text((*t).to_owned())).collect()))
    }

    fn says(text: &str) -> ViewMessage {
        ViewMessage::Assistant { text: text.to_owned(), calls: vec![] }
    }

    fn calls(text: &str, id: &str) -> ViewMessage {
        let call = ViewCall { id: id.to_owned(), name: "t".to_owned(), arguments: "{}".to_owned() };
        ViewMessage::Assistant { text: text.to_owned(), calls: vec![call] }
    }

    fn result(id: &str, text: &str) -> ViewMessage {
        ViewMessage::ToolResult {
            call_id: id.to_owned(),
            name: "t".to_owned(),
            text: text.to_owned(),
        }
    }

    fn note(original: &str) -> String {
        continuation_note(original, "This turn was interrupted: it was.", &[])
    }

    fn scene(messages: Vec<ViewMessage>) -> Scene {
        Scene::of(&ModelRequest { system: String::new(), messages, tools: vec![] })
    }

    #[test]
    fn a_plain_conversation() {
        let scene = scene(vec![user(&["one"]), says("1"), user(&["two"])]);
        assert_eq!((scene.input.as_str(), scene.turn, scene.round), ("two", 2, 0));
        assert!(!scene.continuation);
        assert_eq!(scene.partial, "");
    }

    #[test]
    fn tool_rounds_are_counted_since_the_input() {
        let scene = scene(vec![
            user(&["one"]),
            calls("", "a"),
            result("a", "A"),
            says("done"),
            user(&["two"]),
            calls("look", "b"),
            result("b", "B"),
        ]);
        assert_eq!((scene.round, scene.last_tool_result.as_deref()), (1, Some("B")));
        assert_eq!(scene.partial, "");
    }

    #[test]
    fn a_continuation_goes_on_with_the_request_before_it() {
        let scene = scene(vec![
            user(&["first"]),
            says("ok"),
            user(&["list them"]),
            calls("I look.", "a"),
            result("a", "A"),
            says("There "),
            user(&[&note("list them")]),
            says("is "),
            user(&[&note("list them")]),
        ]);
        assert!(scene.continuation);
        assert_eq!(scene.input, "list them");
        assert_eq!((scene.round, scene.turn), (1, 2));
        assert_eq!(scene.partial, "There is ");
    }

    #[test]
    fn a_continuation_beside_its_request() {
        // Nothing was said before the interruption: the view puts both into one message.
        let scene = scene(vec![user(&["hello", &note("hello")])]);
        assert!(scene.continuation);
        assert_eq!((scene.input.as_str(), scene.turn, scene.partial.as_str()), ("hello", 1, ""));
    }

    #[test]
    fn a_later_word_ends_the_continuation() {
        let scene = scene(vec![user(&["a"]), says("hal"), user(&[&note("a"), "never mind, do b"])]);
        assert!(!scene.continuation);
        assert_eq!((scene.input.as_str(), scene.turn), ("never mind, do b", 2));
        assert_eq!(scene.partial, "");
    }

    #[test]
    fn notes_are_not_words_of_a_person() {
        let scene = scene(vec![user(&["a"]), says("b"), user(&["[System note: task 1 ended]"])]);
        assert_eq!((scene.input.as_str(), scene.turn), ("[System note: task 1 ended]", 1));
        let scene = self::scene(vec![user(&["a", "[System note: x]"])]);
        assert_eq!(scene.input, "a");
    }

    #[test]
    fn a_continuation_of_a_report_goes_on_with_the_report() {
        let report = "[System note: task 1 ended]";
        let scene = scene(vec![
            user(&["a"]),
            says("b"),
            user(&[report]),
            says("It "),
            user(&[&note(report)]),
        ]);
        assert_eq!((scene.input.as_str(), scene.partial.as_str()), (report, "It "));
    }

    #[test]
    fn an_original_that_quotes_the_mark_is_kept_whole() {
        let original = "Say: The request was:\n\nnothing";
        let scene = scene(vec![user(&[&note(original)])]);
        assert_eq!(scene.input, original);
    }
}
