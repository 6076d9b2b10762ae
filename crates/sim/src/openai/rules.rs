//! The rules of a conversation, as strict servers have them.

use std::collections::HashSet;

use serde_json::Value;

/// Every rule that a request breaks, in words.
pub(super) fn check(body: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    if body["model"].as_str().is_none_or(str::is_empty) {
        broken.push("`model` is missing".to_owned());
    }
    if body["stream"] != Value::Bool(true) {
        broken.push("`stream` is not true".to_owned());
    }
    check_tools(body, &mut broken);
    match body["messages"].as_array().map(Vec::as_slice) {
        None | Some([]) => broken.push("`messages` is missing or empty".to_owned()),
        Some(messages) => {
            let goes_on = body["continue_final_message"] == Value::Bool(true);
            Conversation { broken: &mut broken, ids: HashSet::new(), goes_on }.check(messages);
        }
    }
    broken
}

fn check_tools(body: &Value, broken: &mut Vec<String>) {
    let Some(tools) = body.get("tools") else { return };
    let Some(tools) = tools.as_array().filter(|tools| !tools.is_empty()) else {
        broken.push("`tools` is not a list of tools".to_owned());
        return;
    };
    let mut names = HashSet::new();
    for tool in tools {
        let function = &tool["function"];
        match function["name"].as_str() {
            Some(name) if tool["type"] == "function" && function["parameters"].is_object() => {
                if !names.insert(name) {
                    broken.push(format!("two tools are named {name}"));
                }
            }
            _ => broken.push(format!("this is no tool: {tool}")),
        }
    }
}

struct Conversation<'a> {
    broken: &'a mut Vec<String>,
    ids: HashSet<String>,
    /// The model is asked to go on writing its own last message.
    goes_on: bool,
}

impl Conversation<'_> {
    fn check(&mut self, messages: &[Value]) {
        // Calls of the last assistant message that no result has answered yet.
        let mut open: Vec<String> = Vec::new();
        let mut before = "system";
        for (at, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            let content = &message["content"];
            if role != "tool" && !open.is_empty() {
                self.say(at, &format!("the calls {} are not answered", open.join(", ")));
                open.clear();
            }
            match role {
                "system" | "developer" => {
                    if before != "system" {
                        self.say(at, "a system message inside the conversation");
                    }
                    self.text(at, content, role);
                    continue;
                }
                "user" => {
                    if before == "user" {
                        self.say(at, "two user messages in a row");
                    }
                    self.text(at, content, role);
                }
                "assistant" => {
                    match before {
                        "system" => self.say(at, "the conversation does not begin with the user"),
                        "assistant" => self.say(at, "two assistant messages in a row"),
                        _ => {}
                    }
                    open = self.calls(at, message);
                    if open.is_empty() {
                        self.text(at, content, role);
                    }
                }
                "tool" => {
                    let id = message["tool_call_id"].as_str().unwrap_or_default();
                    match open.iter().position(|call| call == id) {
                        Some(found) => drop(open.remove(found)),
                        None => self.say(at, &format!("no open call {id:?} for this result")),
                    }
                    if !content.is_string() {
                        self.say(at, "the result's content is not a text");
                    }
                }
                _ => self.say(at, &format!("unknown role {role:?}")),
            }
            before = role_word(role);
        }
        let last = messages.len() - 1;
        if !open.is_empty() {
            self.say(last, &format!("the calls {} are not answered", open.join(", ")));
        } else if self.goes_on && before != "assistant" {
            self.say(last, "there is no last message of the model to go on with");
        } else if before == "system" || (before == "assistant" && !self.goes_on) {
            self.say(last, "the conversation does not end with the user or a tool's result");
        }
    }

    fn say(&mut self, at: usize, what: &str) {
        self.broken.push(format!("message {at}: {what}"));
    }

    fn text(&mut self, at: usize, content: &Value, role: &str) {
        let there = match content {
            Value::String(text) => !text.is_empty(),
            Value::Array(parts) => !parts.is_empty() && parts.iter().all(part_is_whole),
            _ => false,
        };
        if !there {
            self.say(at, &format!("an empty {role} message"));
        }
    }

    /// The ids of a message's calls.
    fn calls(&mut self, at: usize, message: &Value) -> Vec<String> {
        let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) else {
            return Vec::new();
        };
        let calls = calls.as_array().map_or(&[][..], Vec::as_slice);
        if calls.is_empty() {
            self.say(at, "`tool_calls` is empty");
        }
        let mut open = Vec::new();
        for call in calls {
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            let name = call["function"]["name"].as_str().unwrap_or_default();
            if id.is_empty() || name.is_empty() || call["type"] != "function" {
                self.say(at, &format!("this is no call: {call}"));
            }
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            if !serde_json::from_str::<Value>(arguments).is_ok_and(|json| json.is_object()) {
                self.say(at, &format!("the arguments of {id} are no JSON object: {arguments:?}"));
            }
            if !self.ids.insert(id.clone()) {
                self.say(at, &format!("the id {id:?} is used twice"));
            }
            open.push(id);
        }
        open
    }
}

fn part_is_whole(part: &Value) -> bool {
    match part["type"].as_str() {
        Some("text") => part["text"].as_str().is_some_and(|text| !text.is_empty()),
        Some("image_url") => part["image_url"]["url"].as_str().is_some_and(|url| !url.is_empty()),
        _ => false,
    }
}

/// What alternates: a result is the user's side.
fn role_word(role: &str) -> &'static str {
    match role {
        "user" => "user",
        "assistant" => "assistant",
        _ => "tool",
    }
}
