//! Lines of a journal, in bounded memory.
//!
//! A line ends at a line feed and nowhere else: writers leave U+2028, U+2029 and U+0085 as they are
//! inside texts. Of a line that is too long its beginning and its last bytes are kept, because the
//! last bytes may be a good record that was glued to it.

use std::io::{self, BufRead};

/// Bytes of the longest line that is read as a record.
pub const LINE_BYTES_MAX: usize = 10 << 20;

/// Bytes of a line that too long a one is known by.
const HEAD_BYTES: usize = 256;

/// One line, without its line feed.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// Counts from 1.
    pub(crate) number: u64,
    /// How long it is.
    pub(crate) length: u64,
    /// All of it, or the last bytes of one that is too long.
    pub(crate) bytes: &'a [u8],
    /// How a line begins that is too long.
    pub(crate) head: Option<&'a [u8]>,
}

/// Goes through the lines of an input.
pub(crate) struct Lines<R> {
    input: R,
    limit: usize,
    number: u64,
    buffer: Vec<u8>,
    head: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self::with_limit(input, LINE_BYTES_MAX)
    }

    fn with_limit(input: R, limit: usize) -> Self {
        Self { input, limit, number: 0, buffer: Vec::new(), head: Vec::new() }
    }

    /// The next line; the last one may lack its line feed.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        let mut length = 0_u64;
        let mut ended = false;
        while !ended {
            let available = match self.input.fill_buf() {
                Ok([]) => break,
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // A piece at a time: an input in memory is one buffer as large as itself.
            let piece = &available[..available.len().min(self.limit)];
            let feed = piece.iter().position(|byte| *byte == b'\n');
            let part = &piece[..feed.unwrap_or(piece.len())];
            if self.buffer.len() + part.len() > 2 * self.limit {
                if length as usize == self.buffer.len() {
                    self.head.clear();
                    self.head.extend_from_slice(&self.buffer[..HEAD_BYTES.min(self.buffer.len())]);
                }
                self.buffer.drain(..self.buffer.len() - self.limit);
            }
            self.buffer.extend_from_slice(part);
            length += part.len() as u64;
            ended = feed.is_some();
            let used = part.len() + usize::from(ended);
            self.input.consume(used);
        }
        if !ended && length == 0 {
            return Ok(None);
        }
        self.number += 1;
        let kept = self.buffer.len();
        if length <= self.limit as u64 {
            let bytes = &self.buffer[..];
            return Ok(Some(Line { number: self.number, length, bytes, head: None }));
        }
        if length == kept as u64 {
            self.head.clear();
            self.head.extend_from_slice(&self.buffer[..HEAD_BYTES.min(kept)]);
        }
        let bytes = &self.buffer[kept - self.limit..];
        Ok(Some(Line { number: self.number, length, bytes, head: Some(&self.head) }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    /// Every line: (length, kept bytes, head).
    fn lines(input: &[u8], limit: usize, buffer: usize) -> Vec<(u64, Vec<u8>, Option<Vec<u8>>)> {
        let mut lines = Lines::with_limit(BufReader::with_capacity(buffer, input), limit);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            assert_eq!(line.number, all.len() as u64 + 1);
            all.push((line.length, line.bytes.to_vec(), line.head.map(<[u8]>::to_vec)));
        }
        all
    }

    #[test]
    fn only_a_line_feed_ends_a_line() {
        let text = "a\u{2028}b\u{2029}c\u{85}d\r\n\n\u{b}\u{c}e";
        for buffer in 1..20 {
            let got = lines(text.as_bytes(), 100, buffer);
            let texts: Vec<_> =
                got.iter().map(|line| std::str::from_utf8(&line.1).unwrap()).collect();
            assert_eq!(texts, ["a\u{2028}b\u{2029}c\u{85}d\r", "", "\u{b}\u{c}e"]);
        }
        assert!(lines(b"", 100, 1).is_empty());
        assert_eq!(lines(b"\n", 100, 1).len(), 1);
    }

    #[test]
    fn the_limit_is_exact_and_the_end_of_a_longer_line_is_kept() {
        for buffer in [1, 3, 7, 64, 1_000] {
            for length in 0..60_u8 {
                let long: Vec<u8> = (0..length).map(|at| b'A' + at).collect();
                let input = [&long[..], b"\nshort\n"].concat();
                let got = lines(&input, 8, buffer);
                assert_eq!(got.len(), 2, "{length} {buffer}");
                assert_eq!(got[0].0, u64::from(length));
                if length <= 8 {
                    assert_eq!((&got[0].1, &got[0].2), (&long, &None));
                } else {
                    assert_eq!(got[0].1, &long[long.len() - 8..], "{length} {buffer}");
                    let head = got[0].2.as_ref().unwrap();
                    assert!(!head.is_empty() && long.starts_with(head), "{length} {buffer}");
                }
                assert_eq!((got[1].0, &got[1].1[..]), (5, &b"short"[..]));
            }
        }
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let endless = io::repeat(b'x').take(64 << 20);
        let mut lines = Lines::with_limit(BufReader::new(endless), 1 << 16);
        let line = lines.next().unwrap().unwrap();
        assert_eq!((line.length, line.bytes.len()), (64 << 20, 1 << 16));
        assert!(lines.buffer.capacity() <= 4 << 16, "{}", lines.buffer.capacity());
        assert!(lines.next().unwrap().is_none());
    }
}
