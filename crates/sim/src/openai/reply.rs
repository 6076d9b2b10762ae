//! What the server answers, and how it is sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures::{Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Holds an answer at a certain point until the test lets it go on.
#[derive(Debug, Clone)]
pub struct Gate(Arc<GateInner>);

#[derive(Debug)]
struct GateInner {
    open: watch::Sender<bool>,
    reached: watch::Sender<bool>,
    abandoned: watch::Sender<bool>,
}

/// Tells that an answer before the gate was given up, because its reader went away.
struct Waiting<'a> {
    gate: &'a Gate,
    through: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.through {
            self.gate.0.abandoned.send_replace(true);
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(GateInner {
            open: watch::Sender::new(false),
            reached: watch::Sender::new(false),
            abandoned: watch::Sender::new(false),
        }))
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// Waits until an answer stands before the gate.
    pub async fn reached(&self) {
        // Neither sender can go away: `self` holds both.
        let _ = self.0.reached.subscribe().wait_for(|reached| *reached).await;
    }

    /// Waits until an answer that stood before the gate was given up by its reader.
    pub async fn abandoned(&self) {
        let _ = self.0.abandoned.subscribe().wait_for(|abandoned| *abandoned).await;
    }

    async fn pass(&self) {
        let mut waiting = Waiting { gate: self, through: false };
        self.0.reached.send_replace(true);
        let _ = self.0.open.subscribe().wait_for(|open| *open).await;
        waiting.through = true;
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// One frame's data.
    Frame(Value),
    /// Bytes as they are.
    Raw(Bytes),
    Wait(Duration),
    Gate(Gate),
    Stall,
    Cut,
    /// The body ends here, properly as far as HTTP goes.
    End,
}

/// An answer: steps in order, then the finish, the usage and `[DONE]`, unless it was cut before.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    message: Option<String>,
    steps: Vec<Step>,
    calls: usize,
    usage: Option<Value>,
    finish: Option<String>,
    delay: Duration,
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    /// An answer that says nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            message: None,
            steps: Vec::new(),
            calls: 0,
            usage: None,
            finish: None,
            delay: Duration::ZERO,
        }
    }

    /// A refusal with this HTTP status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::new() }
    }

    /// What a refusal says.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// A header of the answer.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How long every later piece takes to come.
    #[must_use]
    pub fn every(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// A piece of text.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.delta(json!({"content": text.into()}))
    }

    /// Several pieces of text.
    #[must_use]
    pub fn pieces<'a>(self, pieces: impl IntoIterator<Item = &'a str>) -> Self {
        pieces.into_iter().fold(self, |reply, piece| reply.text(piece))
    }

    /// A piece of reasoning.
    #[must_use]
    pub fn reasoning(self, text: impl Into<String>) -> Self {
        self.delta(json!({"reasoning_content": text.into()}))
    }

    /// A tool call. The arguments, which may be malformed, come in pieces of a few letters.
    #[must_use]
    pub fn call(mut self, id: &str, name: &str, arguments: &str) -> Self {
        let index = self.calls;
        self.calls += 1;
        self = self.delta(json!({"tool_calls": [{
            "index": index, "id": id, "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}));
        let letters: Vec<char> = arguments.chars().collect();
        letters.chunks(4).fold(self, |reply, piece| {
            let piece: String = piece.iter().collect();
            reply.delta(json!({"tool_calls": [{
                "index": index, "function": {"arguments": piece},
            }]}))
        })
    }

    /// A pause.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.steps.push(Step::Wait(time));
        self
    }

    /// Nothing more until the gate opens.
    #[must_use]
    pub fn gate(mut self, gate: &Gate) -> Self {
        self.steps.push(Step::Gate(gate.clone()));
        self
    }

    /// Nothing more, ever; the connection stays open.
    #[must_use]
    pub fn stall(mut self) -> Self {
        self.steps.push(Step::Stall);
        self
    }

    /// The connection is torn down.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.steps.push(Step::Cut);
        self
    }

    /// The body ends without finish and `[DONE]`, but properly as far as HTTP goes.
    #[must_use]
    pub fn end(mut self) -> Self {
        self.steps.push(Step::End);
        self
    }

    /// Bytes as they are, for what no other method can say.
    #[must_use]
    pub fn raw(mut self, bytes: impl Into<Bytes>) -> Self {
        self.steps.push(Step::Raw(bytes.into()));
        self
    }

    /// One frame with this data.
    #[must_use]
    pub fn frame(mut self, data: Value) -> Self {
        self.steps.push(Step::Frame(data));
        self
    }

    /// Tokens that the answer says it used (only told when it was asked, as the protocol has it).
    #[must_use]
    pub fn usage(mut self, input: u64, output: u64) -> Self {
        self.usage = Some(json!({
            "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
        }));
        self
    }

    /// Why the answer stopped, where it is not `stop` or `tool_calls`.
    #[must_use]
    pub fn finish(mut self, reason: &str) -> Self {
        self.finish = Some(reason.to_owned());
        self
    }

    fn delta(mut self, delta: Value) -> Self {
        if !self.delay.is_zero() {
            self.steps.push(Step::Wait(self.delay));
        }
        self.steps.push(Step::Frame(json!({
            "choices": [{"index": 0, "delta": delta, "finish_reason": null}],
        })));
        self
    }

    /// The answer on its way.
    pub(super) fn send(self, model: &Value, split: Option<usize>) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = if status.is_success() {
            let mut response = Response::new(Body::from_stream(self.stream(model.clone(), split)));
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response
        } else {
            let message = self.message.as_deref().unwrap_or("the test says no");
            super::problem(self.status, "test", message)
        };
        *response.status_mut() = status;
        for (name, value) in &self.headers {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()))
            {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    fn stream(
        &self,
        model: Value,
        split: Option<usize>,
    ) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static {
        let first = Step::Frame(json!({
            "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": null}],
        }));
        let reason = match &self.finish {
            Some(reason) => reason.as_str(),
            None if self.calls > 0 => "tool_calls",
            None => "stop",
        };
        let last = Step::Frame(json!({
            "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
        }));
        let mut steps = vec![first];
        steps.extend(self.steps.iter().cloned());
        steps.push(last);
        if let Some(usage) = &self.usage {
            steps.push(Step::Frame(json!({"choices": [], "usage": usage})));
        }
        steps.push(Step::Raw(Bytes::from_static(b"data: [DONE]\n\n")));
        steps.push(Step::End);
        futures::stream::unfold(steps.into_iter(), move |mut steps| {
            let model = model.clone();
            async move {
                let bytes = loop {
                    match steps.next()? {
                        Step::Frame(data) => break Ok(frame(data, &model)),
                        Step::Raw(bytes) => break Ok(bytes),
                        Step::Wait(time) => tokio::time::sleep(time).await,
                        Step::Gate(gate) => gate.pass().await,
                        Step::Stall => std::future::pending().await,
                        Step::Cut => break Err(std::io::Error::other("cut by the test")),
                        Step::End => return None,
                    }
                };
                Some((bytes, steps))
            }
        })
        .flat_map(move |item| match item {
            Ok(bytes) => futures::stream::iter(parts(&bytes, split)).left_stream(),
            // Pending once lets the server flush: tearing the connection down takes with it what
            // has not left.
            Err(error) => futures::stream::once(async move {
                tokio::task::yield_now().await;
                Err(error)
            })
            .right_stream(),
        })
    }
}

/// One frame, with what stands in every one.
fn frame(mut data: Value, model: &Value) -> Bytes {
    if let Some(data) = data.as_object_mut().filter(|data| data.contains_key("choices")) {
        data.insert("id".to_owned(), json!("chatcmpl-test"));
        data.insert("object".to_owned(), json!("chat.completion.chunk"));
        data.insert("created".to_owned(), json!(0));
        data.insert("model".to_owned(), model.clone());
    }
    Bytes::from(format!("data: {data}\n\n"))
}

fn parts(bytes: &Bytes, split: Option<usize>) -> Vec<Result<Bytes, std::io::Error>> {
    let Some(size) = split else { return vec![Ok(bytes.clone())] };
    (0..bytes.len())
        .step_by(size)
        .map(|at| Ok(bytes.slice(at..bytes.len().min(at + size))))
        .collect()
}
