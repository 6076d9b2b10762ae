//! The strict server refuses what a strict provider would.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::rules::check;

fn body(messages: Value) -> Value {
    json!({"model": "m", "stream": true, "messages": messages})
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "t", "arguments": "{}"}})
}

#[test]
fn a_legal_conversation_breaks_no_rule() {
    let messages = json!([
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "tool", "tool_call_id": "a", "content": "A"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": [
            {"type": "text", "text": "and"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        ]},
    ]);
    assert_eq!(check(&body(messages)), Vec::<String>::new());
}

#[test]
fn every_broken_rule_is_told() {
    let user = json!({"role": "user", "content": "u"});
    let says = json!({"role": "assistant", "content": "a"});
    let calls = |ids: &[&str]| {
        let calls: Vec<Value> = ids.iter().map(|id| call(id)).collect();
        json!({"role": "assistant", "content": "", "tool_calls": calls})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
    let malformed = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{\"x"}},
    ]});
    for (messages, told) in [
        (json!([]), "missing or empty"),
        (json!([says, user]), "begin with the user"),
        (json!([user, user]), "two user messages"),
        (json!([user, says, says, user]), "two assistant messages"),
        (json!([user, says]), "end with the user"),
        (json!([user, calls(&["a"]), user]), "calls a are not answered"),
        (json!([user, calls(&["a"])]), "calls a are not answered"),
        (json!([user, calls(&["a", "b"]), result("a"), says, user]), "calls b are not answered"),
        (json!([user, result("a")]), "no open call \"a\""),
        (json!([user, calls(&["a"]), result("a"), result("a")]), "no open call \"a\""),
        (json!([user, calls(&["a", "a"]), result("a"), result("a")]), "used twice"),
        (json!([user, calls(&["a"]), result("a"), calls(&["a"]), result("a")]), "used twice"),
        (json!([user, malformed, result("a")]), "no JSON object"),
        (json!([{"role": "user", "content": ""}]), "empty user message"),
        (json!([user, {"role": "assistant", "content": ""}, user]), "empty assistant message"),
        (json!([user, {"role": "system", "content": "s"}]), "system message inside"),
        (json!([{"role": "robot", "content": "s"}]), "unknown role"),
        (json!([{"role": "system", "content": "s"}]), "end with the user"),
    ] {
        let broken = check(&body(messages.clone()));
        assert!(broken.iter().any(|rule| rule.contains(told)), "{messages}\n{broken:?}");
    }
    assert!(check(&json!({"messages": [user]})).iter().any(|rule| rule.contains("stream")));
    let mut twice = body(json!([user]));
    let tool = json!({"type": "function", "function": {"name": "t", "parameters": {}}});
    twice["tools"] = json!([tool, tool]);
    assert!(check(&twice).iter().any(|rule| rule.contains("two tools")));
}
