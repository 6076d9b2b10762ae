//! Anthropic's messages, against a server that gives canned answers.

use everturn_agent::provider::{Cut, ProviderErrorKind as K};
use everturn_core::Usage;
use serde_json::{Value, json};

use super::canned::{Canned, Server};
use super::*;

fn event(data: Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap())
}

fn start() -> String {
    event(json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m",
        "usage": {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 90},
    }}))
}

fn block(index: u32, block: Value, deltas: &[Value]) -> String {
    let mut out =
        event(json!({"type": "content_block_start", "index": index, "content_block": block}));
    for delta in deltas {
        out += &event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }
    out + &event(json!({"type": "content_block_stop", "index": index}))
}

fn stop(reason: &str) -> String {
    event(json!({"type": "message_delta", "delta": {"stop_reason": reason},
        "usage": {"output_tokens": 20}}))
        + &event(json!({"type": "message_stop"}))
}

fn text(index: u32, pieces: &[&str]) -> String {
    let deltas: Vec<Value> =
        pieces.iter().map(|text| json!({"type": "text_delta", "text": text})).collect();
    block(index, json!({"type": "text", "text": ""}), &deltas)
}

fn tool(index: u32, id: &str, pieces: &[&str]) -> String {
    let deltas: Vec<Value> = pieces
        .iter()
        .map(|json| json!({"type": "input_json_delta", "partial_json": json}))
        .collect();
    let start = json!({"type": "tool_use", "id": id, "name": "read_file", "input": {}});
    block(index, start, &deltas)
}

async fn connect(server: &Server) -> std::sync::Arc<dyn Provider> {
    let variables = [("ANTHROPIC_BASE_URL", server.base.as_str()), ("ANTHROPIC_API_KEY", KEY)];
    provider("anthropic/claude-sonnet-4-6", &variables, impatient(60_000, 1_000)).await
}

#[tokio::test]
async fn an_answer_streams_and_calls_tools() {
    let body = [
        start(),
        event(json!({"type": "ping"})),
        block(
            0,
            json!({"type": "thinking", "thinking": ""}),
            &[
                json!({"type": "thinking_delta", "thinking": "let me see"}),
                json!({"type": "signature_delta", "signature": "c2ln"}),
            ],
        ),
        text(1, &["Größe", " ✓"]),
        tool(2, "toolu_1", &["{\"path\":", " \"a\"}"]),
        tool(3, "toolu_2", &["{\"path"]),
        tool(4, "toolu_3", &[]),
        stop("tool_use"),
    ]
    .concat();
    let server = Server::start([Canned::stream(&body)]).await;
    let provider = connect(&server).await;
    let answer = ask(&*provider, request(long_conversation())).await;
    assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("Größe ✓", "let me see"));
    let reply = answer.reply();
    assert_eq!(
        calls(reply),
        [
            ("toolu_1", "read_file", "{\"path\": \"a\"}"),
            ("toolu_2", "read_file", "{\"path"),
            ("toolu_3", "read_file", "{}"),
        ]
    );
    let usage = Usage {
        input_tokens: 100,
        output_tokens: 20,
        cached_input_tokens: Some(90),
        ..Usage::default()
    };
    assert_eq!(reply.usage, Some(usage));
    assert_eq!(reply.cut, None);

    let sent = server.requests().remove(0);
    assert_eq!(sent.path, "/v1/messages");
    assert_eq!(sent.headers["x-api-key"], KEY);
    let body = sent.body;
    assert_eq!(body["model"], "claude-sonnet-4-6");
    assert_eq!(body["stream"], true);
    assert_eq!(body["system"][0]["text"], "Be brief.");
    assert_eq!(body["system"][0]["cache_control"]["type"], "ephemeral");
    assert_eq!(body["tools"][0]["name"], "read_file");
    assert_eq!(body["tools"][0]["input_schema"], read_file().parameters);
    assert_eq!(body.get("thinking"), None);
    let roles: Vec<&str> =
        body["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            {"type": "text", "text": "I read both."},
            {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a"}},
            {"type": "tool_use", "id": "c2", "name": "read_file",
             "input": {"malformed_arguments": "{\"path\":"}},
        ])
    );
    // Both results stand in the one message after the calls.
    assert_eq!(
        body["messages"][2]["content"],
        json!([
            {"type": "tool_result", "tool_use_id": "c1", "content": "A"},
            {"type": "tool_result", "tool_use_id": "c2", "content": "the arguments are malformed"},
        ])
    );
    assert_eq!(body["messages"][4]["content"][1]["source"]["media_type"], "image/png");
}

#[tokio::test]
async fn an_answer_may_be_split_anywhere() {
    let body = [
        start(),
        text(0, &["größer ", "🦀"]),
        tool(1, "t", &["{\"path\":\"é\"}"]),
        stop("tool_use"),
    ]
    .concat();
    let server = Server::start((1..16).map(|size| Canned::stream(&body).split(size))).await;
    let provider = connect(&server).await;
    for size in 1..16 {
        let answer = ask(&*provider, request(vec![user("hi")])).await;
        assert_eq!(answer.text, "größer 🦀", "in chunks of {size}");
        assert_eq!(calls(answer.reply()), [("t", "read_file", "{\"path\":\"é\"}")]);
    }
}

#[tokio::test]
async fn an_answer_that_was_cut_off_says_so() {
    let server = Server::start([
        Canned::stream(&[start(), text(0, &["a"]), stop("max_tokens")].concat()),
        Canned::stream(&[start(), text(0, &["a"]), stop("refusal")].concat()),
    ])
    .await;
    let provider = connect(&server).await;
    for cut in [Cut::Length, Cut::Filter] {
        assert_eq!(ask(&*provider, request(vec![user("hi")])).await.reply().cut, Some(cut));
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_broken() {
    let body = [start(), text(0, &["a"]), tool(1, "t", &["{}"])].concat();
    let server = Server::start([
        Canned::stream(&body),
        Canned::stream(&body).cut(),
        Canned::stream(&start()),
        Canned::stream(&(start() + &text(0, &["a"]))).stall(),
    ])
    .await;
    let provider = connect(&server).await;
    for kind in [K::Broken, K::Broken, K::Unavailable, K::Stalled] {
        let answer = ask(&*provider, request(vec![user("hi")])).await;
        assert_eq!(answer.error().kind, kind, "{answer:?}");
    }
}

#[tokio::test]
async fn errors_have_kinds() {
    let error = |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}});
    let overloaded = error("overloaded_error", "Overloaded");
    let limited = error("rate_limit_error", "slow down");
    let long = error("invalid_request_error", "prompt is too long: 2 tokens > 1 maximum");
    let server = Server::start([
        Canned::status(401, &error("authentication_error", "invalid x-api-key")),
        Canned::status(529, &overloaded),
        Canned::status(429, &limited).header("retry-after", "3"),
        Canned::status(400, &long),
        Canned::status(404, &error("not_found_error", "model: m")),
        Canned::stream(&(start() + &text(0, &["a"]) + &event(overloaded.clone()))),
        Canned::stream(&event(limited.clone())),
    ])
    .await;
    let provider = connect(&server).await;
    for (kind, pieces, words) in [
        (K::Unauthorized, 0, "invalid x-api-key"),
        (K::Unavailable, 0, "Overloaded"),
        (K::RateLimited, 0, "slow down"),
        (K::TooLong, 0, "prompt is too long"),
        (K::Misconfigured, 0, "model: m"),
        (K::Unavailable, 1, "Overloaded"),
        (K::RateLimited, 0, "slow down"),
    ] {
        let answer = ask(&*provider, request(vec![user("hi")])).await;
        assert_eq!((answer.error().kind, answer.pieces), (kind, pieces), "{answer:?}");
        assert!(answer.error().message.contains(words), "{answer:?}");
    }
}

#[tokio::test]
async fn an_image_by_address_is_refused_not_dropped() {
    let server = Server::start([]).await;
    let provider = connect(&server).await;
    let image = everturn_core::Part::Image {
        media_type: "image/png".to_owned(),
        data: None,
        url: Some("https://example.com/x.png".to_owned()),
    };
    let answer = ask(&*provider, request(vec![ViewMessage::User(Content(vec![image]))])).await;
    assert_eq!(answer.error().kind, K::Refused);
    assert!(server.requests().is_empty());
}

/// A model that thinks by default is asked not to: its signed thoughts could not be handed back.
#[tokio::test]
async fn thinking_by_default_is_turned_off() {
    let server =
        Server::start([Canned::stream(&[start(), text(0, &["a"]), stop("end_turn")].concat())])
            .await;
    let variables = [("ANTHROPIC_BASE_URL", server.base.as_str()), ("ANTHROPIC_API_KEY", KEY)];
    let provider =
        provider("anthropic/claude-sonnet-5", &variables, RequestTimeouts::default()).await;
    ask(&*provider, request(vec![user("hi")])).await.reply();
    assert_eq!(server.requests()[0].body["thinking"], json!({"type": "disabled"}));
}

/// White space at the end of such a message would be refused.
#[tokio::test]
async fn a_message_that_broke_off_is_its_last() {
    let body = [start(), text(0, &["o"]), stop("end_turn")].concat();
    let server = Server::start([Canned::stream(&body)]).await;
    assert!(!connect(&server).await.continues_partial(), "newer models refuse it");
    let variables = [("ANTHROPIC_BASE_URL", server.base.as_str()), ("ANTHROPIC_API_KEY", KEY)];
    let model = "anthropic/claude-sonnet-4-5";
    let provider = provider(model, &variables, impatient(60_000, 1_000)).await;
    assert!(provider.continues_partial());
    let messages = vec![user("count"), says("zero "), user("on"), says("one tw \n")];
    assert_eq!(ask(&*provider, request(messages)).await.text, "o");
    let sent = server.requests().remove(0).body["messages"].to_string();
    assert!(sent.contains("one tw") && !sent.contains("one tw "), "{sent}");
    assert!(sent.contains("zero "), "only the last one: {sent}");
}
