//! The model's view, in the words of the client library.

use everturn_core::content::{Content, Part};
use everturn_core::view::{ViewCall, ViewMessage};
use genai::chat::{
    Binary, ChatMessage, ChatRequest, ChatRole, ContentPart, MessageContent, Tool, ToolCall,
    ToolResponse,
};
use serde_json::{Value, json};

use super::frames::Dialect;
use super::{ModelRequest, ProviderError, ProviderErrorKind};

/// Translates a request.
///
/// # Errors
/// The conversation holds what the dialect has no words for (the library would drop it silently).
pub(super) fn translate(
    dialect: Dialect,
    request: ModelRequest,
) -> Result<ChatRequest, ProviderError> {
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(request.messages.len());
    let goes_on = request.continues_partial();
    let last = request.messages.len().saturating_sub(1);
    for (at, message) in request.messages.into_iter().enumerate() {
        match message {
            ViewMessage::User(content) => messages.push(ChatMessage::user(user(dialect, content)?)),
            ViewMessage::Assistant { mut text, calls } => {
                if goes_on && at == last && dialect == Dialect::Anthropic {
                    // It refuses to go on behind white space; the model writes it again.
                    text.truncate(text.trim_end().len());
                }
                let mut parts = Vec::with_capacity(1 + calls.len());
                if !text.is_empty() {
                    parts.push(ContentPart::Text(text));
                }
                parts.extend(calls.into_iter().map(|call| ContentPart::ToolCall(tool_call(call))));
                messages.push(ChatMessage::assistant(MessageContent::from_parts(parts)));
            }
            ViewMessage::ToolResult { call_id, name, text } => {
                let result = ToolResponse { call_id, fn_name: Some(name), content: text };
                match messages.last_mut() {
                    // These two want all results of a step in one message; Ollama would keep only
                    // the last of them, and the rest does not mind.
                    Some(last)
                        if last.role == ChatRole::Tool
                            && matches!(dialect, Dialect::Anthropic | Dialect::Gemini) =>
                    {
                        last.content.push(ContentPart::ToolResponse(result));
                    }
                    _ => messages.push(ChatMessage::from(result)),
                }
            }
        }
    }
    let mut chat = ChatRequest::from_messages(messages);
    if !request.system.is_empty() {
        chat = chat.with_system(request.system);
    }
    if !request.tools.is_empty() {
        chat = chat.with_tools(request.tools.into_iter().map(|tool| {
            Tool::new(tool.name).with_description(tool.description).with_schema(tool.parameters)
        }));
    }
    Ok(chat)
}

fn user(dialect: Dialect, content: Content) -> Result<MessageContent, ProviderError> {
    let mut parts: Vec<ContentPart> = Vec::with_capacity(content.0.len());
    for part in content.0 {
        match part {
            // Joined here: the library joins texts differently in each dialect, or not at all.
            Part::Text(text) => match parts.last_mut() {
                Some(ContentPart::Text(before)) => {
                    before.push_str("\n\n");
                    before.push_str(&text);
                }
                _ => parts.push(ContentPart::Text(text)),
            },
            Part::Image { media_type, data: Some(data), .. } => {
                parts.push(ContentPart::Binary(Binary::from_base64(media_type, data, None)));
            }
            Part::Image { media_type, url: Some(url), .. } => {
                if matches!(dialect, Dialect::Anthropic | Dialect::Ollama) {
                    return Err(ProviderError {
                        kind: ProviderErrorKind::Refused,
                        message: "this provider does not fetch images by address; send the image \
                                  itself (`data`)"
                            .to_owned(),
                        retry_after: None,
                    });
                }
                parts.push(ContentPart::Binary(Binary::from_url(media_type, url, None)));
            }
            Part::Image { .. } => {}
        }
    }
    Ok(MessageContent::from_parts(parts))
}

/// A call that the model made earlier. Providers want the arguments as an object, so malformed ones
/// are wrapped into one: the model sees what it wrote, and no server fails to parse it.
fn tool_call(call: ViewCall) -> ToolCall {
    let arguments = match serde_json::from_str::<Value>(&call.arguments) {
        Ok(value @ Value::Object(_)) => value,
        _ => json!({ "malformed_arguments": call.arguments }),
    };
    ToolCall {
        call_id: call.id,
        fn_name: call.name,
        fn_arguments: arguments,
        thought_signatures: None,
    }
}
