//! The scripted provider: its file format and what it says.

#![allow(clippy::unwrap_used, clippy::panic)]

use everturn_core::recovery::continuation_note;
use everturn_core::view::{ViewCall, ViewMessage};
use everturn_core::{Content, Effect};
use tokio::time::Instant;

use super::*;
use crate::provider::Cut;
use crate::tool::ToolSpec;

fn script(text: &str) -> ScriptedProvider {
    ScriptedProvider::parse("test.toml", text).unwrap()
}

fn user(text: &str) -> ViewMessage {
    ViewMessage::User(Content::text(text))
}

fn says(text: &str) -> ViewMessage {
    ViewMessage::Assistant { text: text.to_owned(), calls: vec![] }
}

fn called(text: &str, id: &str) -> ViewMessage {
    let call = ViewCall { id: id.to_owned(), name: "t".to_owned(), arguments: "{}".to_owned() };
    ViewMessage::Assistant { text: text.to_owned(), calls: vec![call] }
}

fn result(id: &str, text: &str) -> ViewMessage {
    ViewMessage::ToolResult { call_id: id.into(), name: "t".into(), text: text.into() }
}

fn goes_on(original: &str) -> ViewMessage {
    user(&continuation_note(original, "It was interrupted.", &[]))
}

fn tool(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters: serde_json::json!({"type": "object"}),
        effect: Effect::Read,
    }
}

fn request(messages: Vec<ViewMessage>) -> ModelRequest {
    ModelRequest { system: String::new(), messages, tools: vec![] }
}

/// All events of an answer.
async fn play(
    provider: &ScriptedProvider,
    request: ModelRequest,
) -> Vec<Result<ModelEvent, ProviderError>> {
    match provider.request(request).await {
        Ok(stream) => stream.collect().await,
        Err(error) => vec![Err(error)],
    }
}

/// The text of an answer and its end.
async fn answer(provider: &ScriptedProvider, messages: Vec<ViewMessage>) -> (String, ModelReply) {
    let mut text = String::new();
    for event in play(provider, request(messages)).await {
        match event.unwrap() {
            ModelEvent::Text(piece) => text.push_str(&piece),
            ModelEvent::Reasoning(_) => {}
            ModelEvent::Done(reply) => return (text, reply),
        }
    }
    panic!("no end");
}

fn error_of(events: &[Result<ModelEvent, ProviderError>]) -> &ProviderError {
    events.last().unwrap().as_ref().unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn pieces_come_at_their_pace() {
    let provider = script(
        r#"
        [[rule]]
        reply = [
          { reasoning = "Hm. " },
          { pieces = ["one ", "two ", "three"], delay_ms = 100 },
          { text = " four five  six", words_per_second = 2 },
        ]
        usage = { input_tokens = 7, output_tokens = 3, reasoning_tokens = 1 }
        stop = "length"
        "#,
    );
    let begun = Instant::now();
    let mut stream = provider.request(request(vec![user("x")])).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = stream.next().await {
        seen.push((begun.elapsed().as_millis(), event.unwrap()));
    }
    let text = |text: &str| ModelEvent::Text(text.to_owned());
    let usage = everturn_core::Usage {
        input_tokens: 7,
        output_tokens: 3,
        reasoning_tokens: Some(1),
        ..Default::default()
    };
    assert_eq!(
        seen,
        [
            (0, ModelEvent::Reasoning("Hm. ".to_owned())),
            (100, text("one ")),
            (200, text("two ")),
            (300, text("three")),
            (800, text(" ")),
            (1_300, text("four ")),
            (1_800, text("five  ")),
            (2_300, text("six")),
            (
                2_300,
                ModelEvent::Done(ModelReply {
                    calls: vec![],
                    usage: Some(usage),
                    cut: Some(Cut::Length)
                })
            ),
        ]
    );
}

#[tokio::test]
async fn the_first_rule_that_applies_answers() {
    let provider = script(
        r#"
        rule = [
          { contains = ["Big", "cat"], reply = [{ text = "big cat" }] },
          { matches = '^(\w+) (\w+)$', turn = 2, reply = [{ text = "{{2}} {{1}} in turn {{turn}}" }] },
          { contains = "cat", reply = [{ text = "cat: {{input}}" }] },
          { tool_result = "42", reply = [{ text = "round {{round}}: {{last_tool_result}}" }] },
          { offers = "shell", reply = [{ text = "shell" }] },
          { continuation = true, reply = [{ text = "again: {{input}}" }] },
        ]
        "#,
    );
    for (messages, text) in [
        (vec![user("a BIG Cat")], "big cat"),
        (vec![user("a cat")], "cat: a cat"),
        (vec![user("x"), says("y"), user("hello world")], "world hello in turn 2"),
        (vec![user("go"), called("", "c"), result("c", "it is 42")], "round 1: it is 42"),
        (vec![user("go"), says("par"), goes_on("go")], "again: go"),
    ] {
        assert_eq!(answer(&provider, messages).await.0, text);
    }
    let mut with_shell = request(vec![user("go")]);
    with_shell.tools.push(tool("shell"));
    assert_eq!(play(&provider, with_shell).await[0], Ok(ModelEvent::Text("shell".to_owned())));
    let events = play(&provider, request(vec![user("nothing fits")])).await;
    let error = error_of(&events);
    assert_eq!(error.kind, ProviderErrorKind::Refused);
    assert!(error.message.contains("no rule") && error.message.contains("nothing fits"));
}

#[tokio::test]
async fn calls_are_made_as_written() {
    let provider = script(
        r#"
        [[rule]]
        matches = '(?s)^run (.*)$'
        round = 0
        reply = [
          { text = "Now." },
          { call = "shell", arguments = { command = "{{1}}", times = 2, deep = [{ x = "{{turn}}" }] } },
          { call = "shell", raw_arguments = '{"command": ', id = "mine" },
          { call = "nobody_has_this" },
        ]
        "#,
    );
    // What is filled in cannot break the JSON around it.
    let (text, reply) = answer(&provider, vec![user("run echo \"a\nb\" \\")]).await;
    assert_eq!(text, "Now.");
    let ids: Vec<&str> = reply.calls.iter().map(|call| call.provider_id.as_str()).collect();
    assert_eq!(ids, ["call_1_1", "mine", "call_1_3"]);
    let arguments: serde_json::Value = serde_json::from_str(&reply.calls[0].arguments).unwrap();
    assert_eq!(
        arguments,
        serde_json::json!({"command": "echo \"a\nb\" \\", "times": 2, "deep": [{"x": "1"}]})
    );
    assert_eq!(reply.calls[1].arguments, "{\"command\": ");
    assert_eq!(
        (reply.calls[2].name.as_str(), reply.calls[2].arguments.as_str()),
        ("nobody_has_this", "{}")
    );
}

#[tokio::test]
async fn repetitions_are_numbered() {
    let provider = script(
        "[[rule]]\nreply = [{ text = \"{{n}}, \", repeat = 3 }, { text = \"-\", repeat = 2 }]",
    );
    assert_eq!(answer(&provider, vec![user("x")]).await.0, "1, 2, 3, --");
}

const STORY: &str = r#"
    [[rule]]
    reply = [
      { reasoning = "think" },
      { pieces = ["Once ", "upon ", "a time."] },
      { stall = true },
      { text = " The end." },
    ]
"#;

#[tokio::test]
async fn a_continuation_goes_on_after_what_was_said() {
    let provider = script(STORY);
    // Broken off inside a piece: the stall has not happened yet, and would now.
    let messages = vec![user("tell"), says("Once up"), goes_on("tell")];
    let mut stream = provider.request(request(messages)).await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Ok(ModelEvent::Text("on ".to_owned())));
    assert_eq!(stream.next().await.unwrap(), Ok(ModelEvent::Text("a time.".to_owned())));
    drop(stream);
    // Broken off where it stalls: that has happened.
    let stalled = vec![user("tell"), says("Once upon a time."), goes_on("tell")];
    assert_eq!(answer(&provider, stalled).await.0, " The end.");
    // Twice interrupted; all of it is taken together.
    let twice = vec![
        user("tell"),
        says("Once upon "),
        goes_on("tell"),
        says("a time. The"),
        goes_on("tell"),
    ];
    assert_eq!(answer(&provider, twice).await.0, " end.");
    // Everything was said.
    let all = vec![user("tell"), says("Once upon a time. The end."), goes_on("tell")];
    assert_eq!(answer(&provider, all).await.0, "");
}

#[tokio::test]
async fn another_text_is_not_gone_on_with() {
    let provider = script("[[rule]]\nreply = [{ text = \"Once.\" }]");
    let other = vec![user("tell"), says("Twice"), goes_on("tell")];
    assert_eq!(answer(&provider, other).await.0, "Once.");
    let longer = vec![user("tell"), says("Once. And more"), goes_on("tell")];
    assert_eq!(answer(&provider, longer).await.0, "Once.");
    let never = script("[[rule]]\nresume = false\nreply = [{ text = \"Once.\" }]");
    let messages = vec![user("tell"), says("On"), goes_on("tell")];
    assert_eq!(answer(&never, messages).await.0, "Once.");
}

#[tokio::test]
async fn a_text_inside_a_turn_goes_on_as_well() {
    // The engine asks again after a cut, without a person's word in between.
    let provider = script(
        "[[rule]]\nreply = [{ text = \"äöü\" }, { cut = true, times = 1 }, { text = \"ß\" }]",
    );
    let events = play(&provider, request(vec![user("x")])).await;
    assert_eq!(events[0], Ok(ModelEvent::Text("äöü".to_owned())));
    assert_eq!(error_of(&events).kind, ProviderErrorKind::Broken);
    assert_eq!(answer(&provider, vec![user("x"), says("äöü")]).await.0, "ß");
}

#[tokio::test]
async fn the_first_requests_fail() {
    let provider = script(
        r#"
        [[rule]]
        reply = [
          { fail = 429, times = 2, retry_after_s = 1.5, message = "slow down" },
          { fail = 500, times = 1 },
          { text = "ok" },
        ]
        "#,
    );
    for _ in 0..2 {
        let Err(error) = provider.request(request(vec![user("x")])).await else { panic!("no") };
        assert_eq!(error.kind, ProviderErrorKind::RateLimited);
        assert_eq!(error.message, "slow down");
        assert_eq!(error.retry_after, Some(Duration::from_millis(1_500)));
    }
    let Err(error) = provider.request(request(vec![user("x")])).await else { panic!("no") };
    assert_eq!(error.kind, ProviderErrorKind::Unavailable);
    assert_eq!(answer(&provider, vec![user("x")]).await.0, "ok");
}

#[tokio::test]
async fn errors_have_the_kinds_of_their_statuses() {
    for (status, message, kind) in [
        (401, "no", ProviderErrorKind::Unauthorized),
        (404, "no", ProviderErrorKind::Misconfigured),
        (400, "no", ProviderErrorKind::Refused),
        (400, "maximum context length is 8", ProviderErrorKind::TooLong),
        (503, "no", ProviderErrorKind::Unavailable),
    ] {
        let provider = script(&format!(
            "[[rule]]\nreply = [{{ text = \"a\" }}, {{ fail = {status}, message = \"{message}\" }}]"
        ));
        let events = play(&provider, request(vec![user("x")])).await;
        assert_eq!(events.len(), 2);
        assert_eq!(error_of(&events).kind, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_lasts_for_ever_or_until_the_limit() {
    let provider = script("[[rule]]\nreply = [{ text = \"a\" }, { stall = true }]");
    let mut stream = provider.request(request(vec![user("x")])).await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Ok(ModelEvent::Text("a".to_owned())));
    let day = Duration::from_secs(86_400);
    assert!(tokio::time::timeout(day, stream.next()).await.is_err());

    let limited = script(
        "idle_timeout_ms = 400\n[[rule]]\nreply = [{ text = \"a\" }, { wait_ms = 300 }, { wait_ms = 5000 }]",
    );
    let begun = Instant::now();
    let events = play(&limited, request(vec![user("x")])).await;
    assert_eq!(error_of(&events).kind, ProviderErrorKind::Stalled);
    assert_eq!(begun.elapsed(), Duration::from_millis(700));
}

#[tokio::test]
async fn the_same_request_gets_the_same_answer_from_a_fresh_start() {
    let text = "[[rule]]\nround = 0\nreply = [{ text = \"{{turn}}{{input}}\" }, { call = \"t\" }]";
    let messages = vec![user("a"), says("b"), user("c")];
    let first = answer(&script(text), messages.clone()).await;
    let provider = script(text);
    for _ in 0..3 {
        assert_eq!(answer(&provider, messages.clone()).await, first);
    }
}

#[test]
fn errors_name_the_line() {
    for (text, line, told) in [
        ("[[rule]]\nreply = [{ txt = \"x\" }]", 2, "txt"),
        ("# only talk", 1, "no `[[rule]]`"),
        ("[[rule]]\nreply = []", 1, "empty"),
        ("[[rule]]\n\nmatches = '('\nreply = [{ text = \"x\" }]", 3, "unclosed group"),
        (
            "[[rule]]\nreply = [\n  { text = \"x\" },\n  { text = \"a\", cut = true },\n]",
            4,
            "two parts",
        ),
        ("[[rule]]\nreply = [\n  {},\n]", 3, "needs one of"),
        ("[[rule]]\nreply = [{ text = \"{{who}}\" }]", 2, "who"),
        ("[[rule]]\nreply = [{ text = \"{{1}}\" }]", 2, "group"),
        ("[[rule]]\nreply = [{ call = \"t\" }]", 2, "needs `round`"),
        ("[[rule]]\nround = \"all\"\nreply = [{ text = \"x\" }]", 2, "\"any\""),
        ("[[rule]]\nreply = [{ fail = 200 }]", 2, "status"),
        ("[[rule]]\nreply = [{ stall = false }]", 2, "absent"),
        ("[[rule]]\nreply = [{ text = \"x\", times = 2 }]", 2, "does not belong"),
        ("[[rule]]\nreply = [{ text = \"\" }]", 2, "empty"),
        ("[[rule]]\nreply = [{ wait_ms = 99999999999 }]", 2, "a day"),
        ("[[rule]]\nreply = [{ text = \"x\", repeat = 100000000 }]", 2, "repeat"),
        ("words_per_second = 0\n[[rule]]\nreply = [{ text = \"x\" }]", 1, "words_per_second"),
        (
            "[[rule]]\nround = 0\nreply = [{ call = \"t\", arguments = {}, raw_arguments = \"\" }]",
            3,
            "exclude",
        ),
        ("[[rule]\n", 1, ""),
        ("surprise = 1\n[[rule]]\nreply = [{ text = \"x\" }]", 1, "surprise"),
    ] {
        match ScriptedProvider::parse("t.toml", text) {
            Err(ScriptError::Invalid { path, line: at, message }) => {
                assert_eq!((path.as_str(), at), ("t.toml", line), "{text}\n{message}");
                assert!(message.contains(told), "{text}\n{message}");
            }
            other => panic!("{text}\n{other:?}"),
        }
    }
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let missing = ScriptedProvider::read(&folder.path().join("none.toml")).unwrap_err();
    assert_eq!(missing.code(), "script_unreadable");
    assert_eq!(ScriptedProvider::read(folder.path()).unwrap_err().code(), "script_unreadable");
    let odd = folder.path().join("odd.toml");
    std::fs::write(&odd, b"# fine\n# \xff\n").unwrap();
    assert!(matches!(
        ScriptedProvider::read(&odd).unwrap_err(),
        ScriptError::Invalid { line: 2, .. }
    ));
    std::fs::write(&odd, vec![b'#'; 2 << 20]).unwrap();
    assert_eq!(ScriptedProvider::read(&odd).unwrap_err().code(), "script_unreadable");
    std::fs::write(&odd, STORY).unwrap();
    let provider = ScriptedProvider::read(&odd).unwrap();
    assert_eq!(provider.model(), format!("script/{}", odd.display()));
}

/// Every example of the guide is a script, and the worked one does what the guide says.
#[tokio::test(start_paused = true)]
async fn the_guide_is_right() {
    let guide = include_str!("../../../../docs/script.md");
    let examples: Vec<&str> =
        guide.split("```toml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert!(examples.len() > 1);
    for example in &examples {
        script(example);
    }
    let provider = script(examples[0]);
    let (text, reply) = answer(&provider, vec![user("What is the weather in Oslo?")]).await;
    assert_eq!(text, "I will look it up. ");
    assert_eq!(reply.calls[0].arguments, r#"{"city":"Oslo"}"#);
    let told = vec![
        user("What is the weather in Oslo?"),
        called("I will look it up. ", "a"),
        result("a", "rain"),
    ];
    assert_eq!(answer(&provider, told).await.0, "They say: rain.");
    assert_eq!(provider.context_tokens(), Some(32_000));
}

#[tokio::test(start_paused = true)]
async fn the_demo_says_what_it_is_once() {
    let provider = demo().unwrap();
    let begun = Instant::now();
    let (first, _) = answer(&provider, vec![user("hi")]).await;
    // Long enough to kill a server in the middle of it.
    assert!(begun.elapsed() > Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(first.contains("not a language model") && first.contains("OPENAI_API_KEY"));
    assert!(first.split("\n\n").count() >= 3);
    let (second, _) = answer(&provider, vec![user("hi"), says(&first), user("and")]).await;
    assert!(!second.contains("language model"));
    // Killed in the middle: the rest comes, and nothing twice.
    let half = &first[..first.len() / 2];
    let (rest, _) = answer(&provider, vec![user("hi"), says(half), goes_on("hi")]).await;
    assert_eq!(format!("{half}{rest}"), first);
}

#[tokio::test(start_paused = true)]
async fn the_demo_calls_tools_that_it_has() {
    let provider = demo().unwrap();
    let mut ask = request(vec![user("Which files are there?")]);
    ask.tools = vec![tool("list_files"), tool("shell")];
    let Some(Ok(ModelEvent::Done(reply))) = play(&provider, ask).await.pop() else { panic!("no") };
    assert_eq!(reply.calls[0].name, "list_files");
    let mut ask = request(vec![user("run echo hi\n")]);
    ask.tools = vec![tool("list_files"), tool("shell")];
    let Some(Ok(ModelEvent::Done(reply))) = play(&provider, ask).await.pop() else { panic!("no") };
    assert_eq!(reply.calls[0].arguments, r#"{"command":"echo hi"}"#);
    let mut after = request(vec![user("run echo hi"), called("", "a"), result("a", "hi")]);
    after.tools = vec![tool("shell")];
    let events = play(&provider, after).await;
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            Ok(ModelEvent::Text(text)) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert!(text.contains("```\nhi\n```"), "{text}");
    // Without tools it just talks.
    let (_, reply) = answer(&provider, vec![user("run echo hi")]).await;
    assert!(reply.calls.is_empty());
}

/// A conversation that ends in the model's own text: the script says what it does with it.
#[tokio::test]
async fn a_script_goes_on_in_the_middle_of_its_message_or_does_not() {
    const RULES: &str = r#"
[[rule]]
continuation = true
contains = "count"
reply = [{ text = "one two three" }]
"#;
    let partial = || request(vec![user("count"), says("one tw")]);
    let yes = script(RULES);
    assert!(yes.continues_partial());
    let said: Vec<_> = play(&yes, partial()).await.into_iter().flatten().collect();
    assert_eq!(said[0], ModelEvent::Text("o three".to_owned()));
    assert!(!script(&format!("continue_partial = \"no\"\n{RULES}")).continues_partial());
    let refuses = script(&format!("continue_partial = \"refused\"\n{RULES}"));
    assert!(refuses.continues_partial());
    let error = play(&refuses, partial()).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Refused);
    let told = request(vec![user("count"), says("one tw"), goes_on("count")]);
    let said: Vec<_> = play(&refuses, told).await.into_iter().flatten().collect();
    assert_eq!(said[0], ModelEvent::Text("o three".to_owned()));
    let error = ScriptedProvider::parse("t", "continue_partial = \"maybe\"").unwrap_err();
    assert_eq!(error.code(), "script_invalid");
}
