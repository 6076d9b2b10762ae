//! Ollama's own protocol, against a server that gives canned answers.

use everturn_agent::provider::{Cut, ProviderErrorKind as K};
use everturn_core::Usage;
use serde_json::{Value, json};

use super::canned::{Canned, Server};
use super::*;

fn lines(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn piece(text: &str) -> Value {
    json!({"model": "m", "message": {"role": "assistant", "content": text}, "done": false})
}

fn done(reason: &str) -> Value {
    json!({"model": "m", "message": {"role": "assistant", "content": ""}, "done": true,
        "done_reason": reason, "prompt_eval_count": 26, "eval_count": 9})
}

async fn connect(server: &Server) -> std::sync::Arc<dyn Provider> {
    provider("ollama/qwen3:4b", &[("OLLAMA_HOST", server.base.as_str())], impatient(60_000, 1_000))
        .await
}

#[tokio::test]
async fn an_answer_streams_and_calls_tools() {
    let call = |path: &str| json!({"function": {"name": "read_file", "arguments": {"path": path}}});
    let body = lines(&[
        json!({"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": false}),
        piece("Größe"),
        piece(" ✓ \"done\":true"),
        json!({"message": {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
            "done": false}),
        done("stop"),
    ]);
    let server = Server::start([Canned::stream(&body)]).await;
    let provider = connect(&server).await;
    let answer = ask(&*provider, request(long_conversation())).await;
    assert_eq!(answer.text, "Größe ✓ \"done\":true");
    assert_eq!(answer.reasoning, "hm");
    let reply = answer.reply();
    let made: Vec<(&str, &str)> =
        reply.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(made, [("read_file", "{\"path\":\"a\"}"), ("read_file", "{\"path\":\"b\"}")]);
    assert_ne!(reply.calls[0].provider_id, reply.calls[1].provider_id);
    let usage = Usage { input_tokens: 26, output_tokens: 9, ..Usage::default() };
    assert_eq!((&reply.usage, reply.cut), (&Some(usage), None));

    let sent = server.requests().remove(0);
    assert_eq!(sent.path, "/api/chat");
    assert_eq!(sent.body["model"], "qwen3:4b");
    assert_eq!(sent.body["tools"][0]["function"]["parameters"], read_file().parameters);
    assert_eq!(
        sent.body["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Compare a and b."},
            {"role": "assistant", "content": "I read both.", "tool_calls": [
                {"function": {"name": "read_file", "arguments": {"path": "a"}}},
                {"function": {"name": "read_file",
                    "arguments": {"malformed_arguments": "{\"path\":"}}},
            ]},
            {"role": "tool", "content": "A"},
            {"role": "tool", "content": "the arguments are malformed"},
            {"role": "assistant", "content": "They differ."},
            {"role": "user", "content": "And c?\n\nLook well.", "images": ["iVBORw0KGgo="]},
        ])
    );
}

#[tokio::test]
async fn an_answer_may_be_split_anywhere() {
    let body = lines(&[piece("größer "), piece("🦀"), done("length")]);
    let server = Server::start((1..16).map(|size| Canned::stream(&body).split(size))).await;
    let provider = connect(&server).await;
    for size in 1..16 {
        let answer = ask(&*provider, request(vec![user("hi")])).await;
        assert_eq!(answer.text, "größer 🦀", "in chunks of {size}");
        assert_eq!(answer.reply().cut, Some(Cut::Length));
    }
}

/// The library takes the end of the body for the end of the answer; we do not.
#[tokio::test]
async fn an_answer_without_an_end_is_broken() {
    let body = lines(&[piece("a"), piece("b")]);
    let whole = lines(&[piece("a"), done("stop")]);
    let server = Server::start([
        Canned::stream(&body),
        Canned::stream(&body).cut(),
        Canned::stream(&whole[..whole.len() - 3]),
        Canned::stream(""),
        Canned::stream(&body).stall(),
    ])
    .await;
    let provider = connect(&server).await;
    for kind in [K::Broken, K::Broken, K::Broken, K::Unavailable, K::Stalled] {
        let answer = ask(&*provider, request(vec![user("hi")])).await;
        assert_eq!(answer.error().kind, kind, "{answer:?}");
    }
}

#[tokio::test]
async fn errors_have_kinds() {
    let server = Server::start([
        Canned::status(404, &json!({"error": "model 'x' not found"})),
        Canned::status(500, &json!({"error": "llama runner process has terminated"})),
        Canned::status(400, &json!({"error": "x does not support tools"})),
        Canned::stream(&lines(&[piece("a"), json!({"error": "an error was encountered"})])),
        Canned::stream(&lines(&[piece("a"), json!("no object"), piece("b"), done("stop")])),
    ])
    .await;
    let provider = connect(&server).await;
    for (kind, words) in [
        (K::Misconfigured, "model 'x' not found"),
        (K::Unavailable, "terminated"),
        (K::Refused, "does not support tools"),
        (K::Unavailable, "an error was encountered"),
    ] {
        let answer = ask(&*provider, request(vec![user("hi")])).await;
        assert_eq!(answer.error().kind, kind, "{answer:?}");
        assert!(answer.error().message.contains(words), "{answer:?}");
    }
    assert_eq!(ask(&*provider, request(vec![user("hi")])).await.text, "ab");
}

/// A conversation that ends in the model's own text is sent as it stands: Ollama goes on with it.
#[tokio::test]
async fn a_message_that_broke_off_is_its_last() {
    let server = Server::start([Canned::stream(&lines(&[piece("o"), done("stop")]))]).await;
    let provider = connect(&server).await;
    assert!(provider.continues_partial());
    let answer = ask(&*provider, request(vec![user("count"), says("one tw ")])).await;
    assert_eq!(answer.text, "o");
    let sent = server.requests().remove(0);
    let last = sent.body["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last, json!({"role": "assistant", "content": "one tw "}));
}
