//! Turning a stream of bytes into text, and a long text into its head and tail.

use super::{RESULT_HEAD_BYTES, RESULT_TAIL_BYTES};

/// Decodes UTF-8 that comes in pieces. What is not UTF-8 becomes U+FFFD, exactly as if all had
/// come in one piece: a character cut between two pieces is whole again.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The beginning of a character whose end is yet to come: at most 3 bytes.
    pending: Vec<u8>,
}

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let mut joined = std::mem::take(&mut self.pending);
        joined.extend_from_slice(bytes);
        let mut rest = joined.as_slice();
        let mut text = String::with_capacity(rest.len());
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, broken) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        self.pending = broken.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &broken[length..];
                }
            }
        }
    }

    /// What a cut-off character at the very end becomes.
    pub(super) fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.pending).is_empty() { "" } else { "\u{fffd}" }
    }
}

/// Keeps the head and the tail of a text that may be long, and counts what is between.
#[derive(Debug, Default)]
pub(super) struct Clipped {
    head: String,
    tail: String,
    /// Whether the head takes no more.
    full: bool,
    skipped: u64,
}

impl Clipped {
    pub(super) fn push(&mut self, text: &str) {
        let mut rest = text;
        if !self.full {
            let room = floor(rest, RESULT_HEAD_BYTES - self.head.len());
            self.head.push_str(&rest[..room]);
            rest = &rest[room..];
            if rest.is_empty() {
                return;
            }
            self.full = true;
        }
        self.tail.push_str(rest);
        if self.tail.len() > 2 * RESULT_TAIL_BYTES {
            self.trim();
        }
    }

    /// Counts bytes that never came here; what comes next is not joined to what came last.
    pub(super) fn skip(&mut self, bytes: u64) {
        if bytes > 0 {
            self.full = true;
            self.skipped += self.tail.len() as u64 + bytes;
            self.tail.clear();
        }
    }

    fn trim(&mut self) {
        if let Some(surplus) = self.tail.len().checked_sub(RESULT_TAIL_BYTES) {
            let cut = ceil(&self.tail, surplus);
            self.tail.drain(..cut);
            self.skipped += cut as u64;
        }
    }

    /// The text, with a line that says what was left out.
    pub(super) fn finish(mut self) -> String {
        self.trim();
        if self.skipped == 0 {
            return self.head + &self.tail;
        }
        format!("{}\n[… {} bytes left out here …]\n{}", self.head, self.skipped, self.tail)
    }
}

/// The largest place up to `at` where a character begins or the text ends.
pub(super) fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The smallest place from `at` on where a character begins or the text ends.
fn ceil(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::RESULT_BYTES_MAX;
    use super::*;

    proptest! {
        #[test]
        fn pieces_decode_as_the_whole_does(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f)],
                0..200,
            ),
            cuts in proptest::collection::vec(0_usize..200, 0..20),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut decoder = Decoder::default();
            let mut text = String::new();
            for pair in cuts.windows(2) {
                text.push_str(&decoder.push(&bytes[pair[0]..pair[1]]));
                prop_assert!(decoder.pending.len() <= 3);
            }
            text.push_str(decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_clipped_text_is_bounded_and_accounts_for_every_byte(
            pieces in proptest::collection::vec(("[aé€😀]{0,40}", 1_usize..2_000), 0..12),
        ) {
            let mut clipped = Clipped::default();
            let mut whole = String::new();
            for (piece, times) in pieces {
                let piece = piece.repeat(times);
                whole.push_str(&piece);
                clipped.push(&piece);
                prop_assert!(clipped.tail.len() <= 2 * RESULT_TAIL_BYTES);
            }
            let (head, skipped) = (clipped.head.clone(), whole.len());
            let text = clipped.finish();
            prop_assert!(text.len() <= RESULT_BYTES_MAX);
            if skipped <= RESULT_HEAD_BYTES {
                prop_assert_eq!(text, whole);
            } else {
                prop_assert!(text.starts_with(&head) && whole.starts_with(&head));
            }
        }
    }

    #[test]
    fn what_is_left_out_is_said_and_counted() {
        let mut clipped = Clipped::default();
        clipped.push(&"a".repeat(RESULT_HEAD_BYTES));
        clipped.push(&"B".repeat(1_000_000));
        clipped.push(&"c".repeat(RESULT_TAIL_BYTES));
        let text = clipped.finish();
        assert!(text.contains("\n[… 1000000 bytes left out here …]\n"));
        assert!(text.ends_with('c') && !text.contains('B'));
    }

    #[test]
    fn skipped_bytes_break_the_text_even_if_little_came() {
        let mut clipped = Clipped::default();
        clipped.push("start");
        clipped.skip(7);
        clipped.push("end");
        assert_eq!(clipped.finish(), "start\n[… 7 bytes left out here …]\nend");
    }
}
