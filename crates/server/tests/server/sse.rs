//! Reading streams as a client does.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::header::{ACCEPT, HeaderName};
use reqwest::{Method, Response};
use serde_json::Value;
use sse_stream::{Sse, SseByteStream};

use crate::world::{PATIENCE, World};

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// The bytes, as text.
    pub(crate) raw: String,
    pub(crate) data: Value,
}

/// A stream.
pub(crate) struct Events {
    events: BoxStream<'static, Sse>,
}

/// Opens a stream, with more headers.
pub(crate) async fn ask(world: &World, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = world.request(Method::GET, path).header(ACCEPT, "text/event-stream");
    for (name, value) in headers {
        request = request.header(HeaderName::from_bytes(name.as_bytes()).unwrap(), *value);
    }
    request.send().await.unwrap()
}

impl Events {
    pub(crate) async fn open(world: &World, path: &str) -> Self {
        Self::open_with(world, path, &[]).await
    }

    pub(crate) async fn open_with(world: &World, path: &str, headers: &[(&str, &str)]) -> Self {
        let response = ask(world, path, headers).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self::of(response)
    }

    pub(crate) fn of(response: Response) -> Self {
        let events = SseByteStream::new(response.bytes_stream());
        // A connection that is cut ends the stream like one that is closed.
        let events = events.take_while(|event| std::future::ready(event.is_ok()));
        Self { events: events.map(Result::unwrap).boxed() }
    }

    /// The next event; `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.events.next()).await;
            let sse = next.expect("an event in time")?;
            // What is no event (the first comment and its `retry`) has no name.
            let Some(name) = sse.event else { continue };
            let raw = sse.data.unwrap_or_default();
            let data = serde_json::from_str(&raw).unwrap();
            return Some(Event { id: sse.id, name, raw, data });
        }
    }

    /// The next event of this name; what comes before it is skipped.
    pub(crate) async fn until(&mut self, name: &str) -> Event {
        loop {
            let event =
                self.next().await.unwrap_or_else(|| panic!("the stream ended before {name}"));
            if event.name == name {
                return event;
            }
        }
    }

    /// Everything up to and with the next event of this name.
    pub(crate) async fn through(&mut self, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("no {name} after {events:?}"));
            let is_last = event.name == name;
            events.push(event);
            if is_last {
                return events;
            }
        }
    }

    /// Everything up to the end.
    pub(crate) async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// Events that are stored, without what a stream says of itself.
pub(crate) fn stored(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|event| event.id.is_some()).cloned().collect()
}

/// Names, in order.
pub(crate) fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}
