//! How one event looks in `text/event-stream`.
//!
//! The data of a stored event is its stored bytes: they are copied, never encoded again.

use std::fmt::{Display, Write as _};

use bytes::{BufMut as _, BytesMut};

/// Writes one event.
pub(super) fn event(out: &mut BytesMut, id: Option<&dyn Display>, name: &str, data: &[u8]) {
    out.reserve(data.len() + name.len() + 64);
    if let Some(id) = id {
        // Writing to a growing buffer cannot fail.
        let _ = writeln!(out, "id: {id}");
    }
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_u8(b'\n');
    // Stored events are one line; a line end that came in otherwise must not end the field.
    // Searching for one byte is fast, and splitting at it is not.
    if data.contains(&b'\n') {
        for line in data.split(|byte| *byte == b'\n') {
            data_line(out, line);
        }
    } else {
        data_line(out, data);
    }
    out.put_u8(b'\n');
}

fn data_line(out: &mut BytesMut, line: &[u8]) {
    out.put_slice(b"data: ");
    out.put_slice(line);
    out.put_u8(b'\n');
}

/// Writes a comment: bytes that keep a connection alive and that no client takes for an event.
pub(super) fn comment(out: &mut BytesMut, text: &str) {
    let _ = write!(out, ": {text}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_comments_look_as_the_standard_says() {
        let mut out = BytesMut::new();
        event(&mut out, Some(&"run_1:7"), "text.delta", br#"{"text":"a"}"#);
        event(&mut out, None, "opened", b"{\n}");
        comment(&mut out, "heartbeat");
        assert_eq!(
            out,
            "id: run_1:7\nevent: text.delta\ndata: {\"text\":\"a\"}\n\n\
             event: opened\ndata: {\ndata: }\n\n\
             : heartbeat\n\n"
        );
    }
}
