//! What of a command's output is passed on, and what is kept of the rest.

use super::protocol::{Frame, encode, line};
use super::{STREAM_BYTES_MAX, TAIL_BYTES};

/// Output of one command on its way to the server, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Relay {
    passed: u64,
    /// Whether passing on is over and only the tail is kept.
    tail_only: bool,
    tail: Vec<u8>,
    /// Bytes that went through `tail`.
    tailed: u64,
}

impl Relay {
    /// How many bytes may be read and passed on now; 0 once only the tail is kept.
    pub(super) fn room(&self) -> u64 {
        if self.tail_only { 0 } else { STREAM_BYTES_MAX - self.passed }
    }

    /// Stops passing on: what still comes goes to the tail.
    pub(super) fn close(&mut self) {
        self.tail_only = true;
    }

    /// Takes bytes. Gives the line to send for them, if they are to be passed on.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.room() >= bytes.len() as u64 {
            self.passed += bytes.len() as u64;
            if self.passed == STREAM_BYTES_MAX {
                self.close();
            }
            return Some(line(&Frame::Output(encode(bytes))));
        }
        self.close();
        self.tailed += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > 4 * TAIL_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
        }
        None
    }

    /// The line for the end of an output that was too long, if it was.
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        if self.tailed == 0 {
            return None;
        }
        if self.tail.len() > TAIL_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
        }
        let skipped = self.tailed - self.tail.len() as u64;
        Some(line(&Frame::Tail { skipped, bytes: encode(&self.tail) }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::protocol::decode;
    use super::*;

    #[test]
    fn a_short_output_is_passed_on_whole_and_has_no_tail() {
        let mut relay = Relay::default();
        let sent = relay.take(b"hello\xff").unwrap();
        let Frame::Output(text) = serde_json::from_slice(&sent).unwrap() else { unreachable!() };
        assert_eq!(decode(&text).unwrap(), b"hello\xff");
        assert_eq!(relay.finish(), None);
    }

    #[test]
    fn beyond_the_limit_only_the_tail_is_kept_and_every_byte_is_counted() {
        let mut relay = Relay::default();
        let mut passed = 0;
        let mut total = 0_u64;
        let mut last = Vec::new();
        for round in 0..600_u32 {
            let bytes: Vec<u8> = (0..4096).map(|at| (round + at) as u8).collect();
            total += 4096;
            if relay.take(&bytes).is_some() {
                passed += 4096;
            }
            last = bytes;
            assert!(relay.tail.len() <= 5 * TAIL_BYTES);
        }
        assert_eq!(passed, STREAM_BYTES_MAX);
        let tail = relay.finish().unwrap();
        let Frame::Tail { skipped, bytes } = serde_json::from_slice(&tail).unwrap() else {
            unreachable!()
        };
        let bytes = decode(&bytes).unwrap();
        assert_eq!(passed + skipped + bytes.len() as u64, total);
        assert_eq!(bytes.len(), TAIL_BYTES);
        assert!(bytes.ends_with(&last));
    }
}
