//! OpenAI's chat completions, against a strict server.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use everturn_agent::provider::{Cut, ModelEvent, Provider, ProviderErrorKind as K};
use everturn_agent::retry::{RetryPolicy, request_with_retry};
use everturn_core::Usage;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use futures::StreamExt as _;
use serde_json::{Value, json};

use super::*;

async fn connect(server: &OpenAi) -> Arc<dyn Provider> {
    connect_with(server, RequestTimeouts::default()).await
}

async fn connect_with(server: &OpenAi, timeouts: RequestTimeouts) -> Arc<dyn Provider> {
    let base = server.base_url();
    provider("openai/m", &[("OPENAI_BASE_URL", &base), ("OPENAI_API_KEY", KEY)], timeouts).await
}

fn hello() -> ModelRequest {
    request(vec![user("hello")])
}

#[tokio::test]
async fn an_answer_streams() {
    let server = OpenAi::start().await.unwrap();
    server.require_key(KEY);
    let gate = Gate::new();
    server.push(Reply::new().reasoning("hm").text("Hel").gate(&gate).text("lo ✓").usage(1_234, 5));
    let provider = connect(&server).await;
    let mut stream = provider.request(hello()).await.unwrap();
    // What was sent before the gate is here before the gate opens.
    assert_eq!(stream.next().await.unwrap(), Ok(ModelEvent::Reasoning("hm".to_owned())));
    assert_eq!(stream.next().await.unwrap(), Ok(ModelEvent::Text("Hel".to_owned())));
    gate.reached().await;
    gate.open();
    assert_eq!(stream.next().await.unwrap(), Ok(ModelEvent::Text("lo ✓".to_owned())));
    let Some(Ok(ModelEvent::Done(reply))) = stream.next().await else { panic!("no end") };
    let usage = Usage { input_tokens: 1_234, output_tokens: 5, ..Usage::default() };
    assert_eq!(reply, ModelReply { calls: vec![], usage: Some(usage), cut: None });
    assert_eq!(stream.next().await, None);

    assert_eq!(server.violations(), Vec::<String>::new());
    let sent = &server.requests()[0];
    assert_eq!(sent.key.as_deref(), Some(KEY));
    assert_eq!(sent.body["model"], "m");
    assert_eq!(sent.body["stream_options"], json!({"include_usage": true}));
    assert_eq!(
        sent.messages(),
        [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "hello"})
        ]
    );
    assert_eq!(sent.body["tools"][0]["function"]["name"], "read_file");
    assert_eq!(sent.body["tools"][0]["function"]["parameters"], read_file().parameters);
}

#[tokio::test]
async fn usage_is_told_in_detail_or_not_at_all() {
    let server = OpenAi::start().await.unwrap();
    let usage = json!({
        "prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 6},
        "completion_tokens_details": {"reasoning_tokens": 3},
    });
    server.push(Reply::new().text("x").frame(json!({"choices": [], "usage": usage})));
    server.push(Reply::new().text("x"));
    let provider = connect(&server).await;
    let told = Usage {
        input_tokens: 10,
        output_tokens: 8,
        cached_input_tokens: Some(6),
        reasoning_tokens: Some(3),
        cost: None,
    };
    assert_eq!(ask(&*provider, hello()).await.reply().usage, Some(told));
    assert_eq!(ask(&*provider, hello()).await.reply().usage, None);
}

/// The body in HTTP chunks of every small size: inside a character, a line end, a frame.
#[tokio::test]
async fn an_answer_may_be_split_anywhere() {
    let server = OpenAi::start().await.unwrap();
    let arguments = r#"{"path":"größe ✓.txt"}"#;
    server.otherwise(move |_| {
        Reply::new()
            .reasoning("überlegt")
            .pieces(["größer ", "als ✓", " 🦀"])
            .raw(": a comment\r\n\r\n")
            .call("c1", "read_file", arguments)
            .usage(3, 2)
    });
    let provider = connect(&server).await;
    let whole = ask(&*provider, hello()).await;
    assert_eq!((whole.text.as_str(), whole.reasoning.as_str()), ("größer als ✓ 🦀", "überlegt"));
    assert_eq!(calls(whole.reply()), [("c1", "read_file", arguments)]);
    for size in 1..24 {
        server.split_every(size);
        assert_eq!(ask(&*provider, hello()).await, whole, "in chunks of {size}");
    }
    assert_eq!(server.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn tool_calls_make_the_round() {
    let server = OpenAi::start().await.unwrap();
    server.push(
        Reply::new()
            .text("I look. ")
            .call("c1", "read_file", r#"{ "path" : "a", "n": 12345678901234567890123 }"#)
            .call("c2", "read_file", r#"{"path": "b"#)
            .call("c3", "nobody_has_this", ""),
    );
    server.push(Reply::new().text("Done."));
    let provider = connect(&server).await;
    let first = ask(&*provider, hello()).await;
    assert_eq!(first.text, "I look. ");
    // As the model wrote them, the malformed one too; only nothing becomes an empty object.
    let asked = calls(first.reply());
    assert_eq!(
        asked,
        [
            ("c1", "read_file", r#"{ "path" : "a", "n": 12345678901234567890123 }"#),
            ("c2", "read_file", r#"{"path": "b"#),
            ("c3", "nobody_has_this", "{}"),
        ]
    );
    let mut messages = vec![user("hello")];
    messages.push(ViewMessage::Assistant {
        text: first.text.clone(),
        calls: asked.iter().map(|(id, name, arguments)| call(id, name, arguments)).collect(),
    });
    for (id, name, _) in &asked {
        messages.push(result(id, name, &format!("result of {id}")));
    }
    let second = ask(&*provider, request(messages)).await;
    assert_eq!((second.text.as_str(), second.reply().calls.len()), ("Done.", 0));
    assert_eq!(server.violations(), Vec::<String>::new());
    let sent = &server.requests()[1];
    assert_eq!(sent.tool_results(), ["result of c1", "result of c2", "result of c3"]);
    // The server would refuse arguments that are no object: the model sees what it wrote in one.
    let arguments = sent.messages()[2]["tool_calls"][1]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments, json!({"malformed_arguments": r#"{"path": "b"#}));
}

#[tokio::test]
async fn a_whole_conversation_is_legal() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let answer = ask(&*provider, request(long_conversation())).await;
    assert_eq!(answer.text, "You said: And c?\n\nLook well.");
    assert_eq!(server.violations(), Vec::<String>::new());
    let sent = &server.requests()[0];
    assert_eq!(
        sent.messages()[6]["content"][1],
        json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}})
    );
    // The same conversation is the same bytes, so that the provider's cache hits.
    ask(&*provider, request(long_conversation())).await;
    let requests = server.requests();
    assert_eq!(requests[0].body.to_string(), requests[1].body.to_string());
}

/// The strict server itself: a conversation that breaks the rules is refused.
#[tokio::test]
async fn an_illegal_conversation_is_refused_and_kept() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let orphan = vec![user("hello"), result("c9", "read_file", "x")];
    let answer = ask(&*provider, request(orphan)).await;
    assert_eq!(answer.error().kind, K::Refused);
    assert!(answer.error().message.contains("no open call"), "{:?}", answer.error());
    assert_eq!(server.violations().len(), 1);
}

#[tokio::test]
async fn an_answer_that_was_cut_off_says_so() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    for (reason, cut) in
        [("stop", None), ("length", Some(Cut::Length)), ("content_filter", Some(Cut::Filter))]
    {
        server.push(Reply::new().text("x").finish(reason));
        assert_eq!(ask(&*provider, hello()).await.reply().cut, cut);
    }
    // Nothing was written of the arguments: that is no empty object here.
    server.push(Reply::new().call("c1", "read_file", "").finish("length"));
    assert_eq!(calls(ask(&*provider, hello()).await.reply()), [("c1", "read_file", "")]);
}

#[tokio::test]
async fn refusals_have_kinds() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let too_long = "This model's maximum context length is 8192 tokens.";
    for (status, message, kind) in [
        (401, "Incorrect API key provided: sk-test-4711-secret.", K::Unauthorized),
        (403, "no", K::Unauthorized),
        (404, "The model `m` does not exist", K::Misconfigured),
        (400, "odd", K::Refused),
        (400, too_long, K::TooLong),
        (413, "big", K::Refused),
        (422, "odd", K::Refused),
        (408, "slow", K::Unavailable),
        (429, "limit", K::RateLimited),
        (500, "oops", K::Unavailable),
        (502, "oops", K::Unavailable),
        (503, "oops", K::Unavailable),
        (529, "overloaded", K::Unavailable),
        (307, "moved", K::Misconfigured),
    ] {
        server
            .push(Reply::status(status).message(message).header("location", "http://127.0.0.1:1/"));
        let answer = ask(&*provider, hello()).await;
        let error = answer.error();
        assert_eq!((error.kind, answer.pieces), (kind, 0), "{status}: {error:?}");
        assert!(error.message.contains(&status.to_string()), "{error:?}");
        assert!(error.message.contains(&server.address().to_string()), "{error:?}");
        assert_eq!(error.retry_after, None);
        if status != 401 {
            assert!(error.message.contains(message), "{error:?}");
        }
    }
    assert_eq!(server.requests().len(), 14);
}

#[tokio::test]
async fn the_wait_that_a_provider_asks_for_is_read() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let in_a_minute = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(61));
    for (name, value, least, most) in [
        ("retry-after", "7", 7.0, 7.0),
        ("retry-after-ms", "1500", 1.5, 1.5),
        ("retry-after", in_a_minute.as_str(), 50.0, 61.0),
    ] {
        server.push(Reply::status(429).header(name, value));
        let answer = ask(&*provider, hello()).await;
        assert_eq!(answer.error().kind, K::RateLimited);
        let wait = answer.error().retry_after.unwrap().as_secs_f64();
        assert!((least..=most).contains(&wait), "{value}: {wait}");
    }
    server.push(Reply::status(503).header("retry-after", "2"));
    let answer = ask(&*provider, hello()).await;
    assert_eq!(answer.error().retry_after, Some(Duration::from_secs(2)));
}

#[tokio::test]
async fn nobody_answers() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let address = server.address().to_string();
    drop(server);
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::Unavailable, 0), "{:?}", answer.error());
    assert!(answer.error().message.contains(&address), "{:?}", answer.error());
}

#[tokio::test]
async fn a_cut_connection_is_no_end() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    for after in 1..4 {
        let pieces = ["a", "b", "c"].into_iter().take(after);
        server.push(Reply::new().pieces(pieces).cut());
        let answer = ask(&*provider, hello()).await;
        assert_eq!((answer.error().kind, answer.pieces), (K::Broken, after), "{answer:?}");
    }
    // In the middle of a call nothing has been shown, but the answer had begun.
    server.push(Reply::new().call("c1", "read_file", "{\"path\": \"a").cut());
    assert_eq!(ask(&*provider, hello()).await.error().kind, K::Broken);
    // Before anything came it is as if the server had not answered.
    server.push(Reply::new().cut());
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::Unavailable, 0), "{answer:?}");
    // The whole server goes away.
    let gate = Gate::new();
    server.push(Reply::new().text("a").gate(&gate).text("b"));
    let mut stream = provider.request(hello()).await.unwrap();
    assert!(matches!(stream.next().await, Some(Ok(ModelEvent::Text(_)))));
    gate.reached().await;
    drop(server);
    assert_eq!(stream.next().await.unwrap().unwrap_err().kind, K::Broken);
    assert_eq!(stream.next().await, None);
}

/// A body that ends properly for HTTP, after each of its bytes: only the whole is an answer.
#[tokio::test]
async fn a_body_that_just_stops_is_no_end() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let chunk = |delta: Value, finish: Value| {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        )
    };
    let body = [
        chunk(json!({"content": "Hé"}), Value::Null),
        chunk(json!({}), json!("stop")),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    // The last frame counts once its data is whole; the empty line after it adds nothing.
    let whole = body.len() - 2;
    for length in 0..=body.len() {
        server.push(Reply::new().raw(body.as_bytes()[..length].to_vec()).end());
        let answer = ask(&*provider, hello()).await;
        if length >= whole {
            assert_eq!(answer.reply().cut, None);
        } else {
            let begun = answer.pieces > 0;
            let kind = if begun { K::Broken } else { K::Unavailable };
            assert_eq!(answer.error().kind, kind, "after {length} bytes: {answer:?}");
        }
    }
}

#[tokio::test]
async fn an_error_in_the_place_of_an_answer() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let error = |body: Value| json!({ "error": body });
    server
        .push(Reply::new().frame(error(json!({"message": "slow", "code": "rate_limit_exceeded"}))));
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::RateLimited, 0));
    server.push(Reply::new().text("a").frame(error(json!({"message": "overloaded", "code": 503}))));
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::Unavailable, 1));
    assert!(answer.error().message.contains("overloaded"));
    // Something that is no frame at all.
    server.push(Reply::new().text("a").raw("data: <html>\n\n").text("b"));
    assert_eq!(ask(&*provider, hello()).await.error().kind, K::Malformed);
    // Tools that it wants to call, and does not name.
    server.push(Reply::new().text("a").finish("tool_calls"));
    assert_eq!(ask(&*provider, hello()).await.error().kind, K::Malformed);
}

#[tokio::test]
async fn silence_has_a_limit() {
    let server = OpenAi::start().await.unwrap();
    // Generous where silence is not what the test is about: the machine may be busy.
    let provider = connect_with(&server, impatient(300, 60_000)).await;
    server.push(Reply::new().stall());
    let begun = std::time::Instant::now();
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::Stalled, 0), "{answer:?}");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let provider = connect_with(&server, impatient(60_000, 300)).await;
    server.push(Reply::new().text("a").stall());
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::Stalled, 1), "{answer:?}");
    // Comments keep the connection, not the turn.
    let pings = (0..500).fold(Reply::new().text("a"), |reply, _| {
        reply.wait(Duration::from_millis(20)).raw(": ping\n\n")
    });
    server.push(pings);
    let answer = ask(&*provider, hello()).await;
    assert_eq!((answer.error().kind, answer.pieces), (K::Stalled, 1), "{answer:?}");
}

/// The arguments of a call are no events, but they are progress.
#[tokio::test]
async fn a_long_call_is_no_silence() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect_with(&server, impatient(60_000, 1_000)).await;
    let arguments = format!("{{\"path\":\"{}\"}}", "x".repeat(200));
    // More than 50 pieces of 30 ms each: longer than the limit.
    server.push(Reply::new().every(Duration::from_millis(30)).call("c1", "read_file", &arguments));
    let begun = std::time::Instant::now();
    let answer = ask(&*provider, hello()).await;
    assert!(begun.elapsed() > Duration::from_millis(1_000));
    assert_eq!(calls(answer.reply()), [("c1", "read_file", arguments.as_str())]);
}

#[tokio::test]
async fn a_dropped_stream_ends_the_request() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let gate = Gate::new();
    server.push(Reply::new().text("a").gate(&gate));
    let mut stream = provider.request(hello()).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    gate.reached().await;
    drop(stream);
    // The server notices that the reader is gone: the answer, and its gate with it, is dropped.
    gate.abandoned().await;
}

#[tokio::test]
async fn a_request_is_tried_again_until_something_comes() {
    let server = OpenAi::start().await.unwrap();
    let provider = connect_with(&server, impatient(2_000, 60_000)).await;
    let policy = RetryPolicy { base: Duration::from_millis(5), ..RetryPolicy::default() };
    server.push(Reply::status(500));
    server.push(Reply::status(429).header("retry-after", "0"));
    server.push(Reply::new().cut());
    server.push(Reply::new().stall());
    server.push(Reply::new().text("here").cut());
    let mut kinds = Vec::new();
    let stream = request_with_retry(&*provider, &hello(), &policy, &mut |notice| {
        kinds.push(notice.error.kind)
    })
    .await
    .unwrap();
    assert_eq!(kinds, [K::Unavailable, K::RateLimited, K::Unavailable, K::Stalled]);
    // From the first event on nothing is hidden.
    let events: Vec<_> = stream.collect().await;
    assert_eq!(events[0], Ok(ModelEvent::Text("here".to_owned())));
    assert_eq!(events[1].as_ref().unwrap_err().kind, K::Broken);
    assert_eq!(server.requests().len(), 5);
    let bodies: Vec<String> = server.requests().iter().map(|r| r.body.to_string()).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]));
}

/// Names that end in a word which the library takes for an effort.
#[tokio::test]
async fn the_name_is_sent_as_it_stands() {
    let server = OpenAi::start().await.unwrap();
    let base = server.base_url();
    let variables = [("OPENAI_BASE_URL", base.as_str())];
    for name in ["qwen3-max", "org/model-high", "plain", "phi-4-mini:latest", "x-none"] {
        let provider =
            provider(&format!("openai/{name}"), &variables, RequestTimeouts::default()).await;
        ask(&*provider, hello()).await.reply();
        let sent = server.requests().pop().unwrap();
        assert_eq!(sent.body["model"], name);
        assert_eq!(sent.body.get("reasoning_effort"), None);
    }
}

/// What the log takes in, on this thread.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Promise P14: even with every log line on, and a server that quotes the key, it is in none.
#[tokio::test]
async fn the_log_holds_no_key() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer({
            let log = log.clone();
            move || log.clone()
        })
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = OpenAi::start().await.unwrap();
    let provider = connect(&server).await;
    let quoted = format!("wrong key {KEY}");
    server.push(Reply::status(401).message(&quoted));
    server.push(Reply::new().frame(json!({"error": {"message": quoted}})));
    server.push(Reply::new().raw(format!("data: {KEY}\n\n")));
    for kind in [K::Unauthorized, K::Unavailable, K::Malformed] {
        assert_eq!(ask(&*provider, hello()).await.error().kind, kind);
    }
    tracing::info!("the log works");
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("the log works"));
    assert!(!log.contains(KEY), "{log}");
}

/// A machine without any certificate, as slim containers are, still reaches servers that need none.
#[test]
fn plain_http_needs_no_certificates() {
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["openai::an_answer_streams", "--exact"])
        .envs([("SSL_CERT_FILE", "/nonexistent"), ("SSL_CERT_DIR", "/nonexistent")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && told.contains("1 passed"), "{told}");
}

/// What a server behind this protocol does with such a message depends on the server: it is asked
/// only where a setting says so, and then in the words that servers have for it.
#[tokio::test]
async fn a_message_that_broke_off_is_its_last_where_a_setting_says_so() {
    let server = OpenAi::start().await.unwrap();
    assert!(!connect(&server).await.continues_partial());
    let base = server.base_url();
    let variables = [("OPENAI_BASE_URL", base.as_str()), ("OPENAI_API_KEY", KEY)];
    let words = ContinuePartial::of(vec!["auto".to_owned(), "openai/m".to_owned()]);
    let provider = continuing("openai/m", &variables, RequestTimeouts::default(), words).await;
    assert!(provider.continues_partial());
    server.push(Reply::new().text("o"));
    let answer = ask(&*provider, request(vec![user("count"), says("one tw")])).await;
    assert_eq!(answer.text, "o", "{answer:?}");
    server.push(Reply::new().text("hi"));
    ask(&*provider, hello()).await;
    let sent = server.requests();
    assert_eq!(sent[0].body["continue_final_message"], true);
    assert_eq!(sent[0].body["add_generation_prompt"], false);
    assert_eq!(sent[1].body.get("continue_final_message"), None, "only for such a message");
    assert_eq!(server.violations(), Vec::<String>::new());
}
