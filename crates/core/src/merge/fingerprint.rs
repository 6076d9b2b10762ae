//! When two rows say the same: texts are folded and hashed once, and numbered.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use sha2::{Digest as _, Sha256};

use super::{Row, Work};
use crate::limits::MERGE_HEAD_BYTES;
use crate::message::{MessageKind, Role};

/// How outside programs begin a compaction note.
const COMPACTION: &[u8] = b"[CONTEXT COMPACTION";
/// What they put in place of an image.
const PLACEHOLDER: &str = "[screenshot]";
/// How a workspace line begins, in its present and in its older form.
const WORKSPACE: [&str; 2] = ["[Workspace::v1: ", "[Workspace: "];
/// Bytes within which a workspace line ends.
const WORKSPACE_BYTES_MAX: usize = 8 << 10;

type Fingerprint = [u8; 16];

/// What the rest of the merge knows of what a row says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Print {
    /// Equal for two rows that say the same.
    pub(super) class: usize,
    /// Bytes that it says: folded text and arguments of calls.
    pub(super) bytes: usize,
    /// The folded beginning, for a row that one of the records may have cut short.
    pub(super) head: Option<[u8; MERGE_HEAD_BYTES]>,
    /// Whether it stands for a range that was compacted.
    pub(super) summary: bool,
}

/// Prints of both records.
#[derive(Debug)]
pub(super) struct Prints {
    pub(super) ours: Vec<Print>,
    pub(super) copy: Vec<Print>,
    /// Number of classes.
    pub(super) classes: usize,
}

/// Reads every row once (a user's row of the copy up to four times, if it has what may be stripped).
pub(super) fn prints(ours: &[Row<'_>], copy: &[Row<'_>], work: &mut Work) -> Prints {
    let mut folded = Vec::new();
    let mut classes = 0;
    let mut known: HashMap<Fingerprint, usize> = HashMap::with_capacity(ours.len());
    let ours = ours
        .iter()
        .map(|row| {
            let hash = hash(row, row.text, row.images, &mut folded, work);
            print(row, &folded, class(&mut known, hash, &mut classes))
        })
        .collect();
    let mut new: HashMap<Fingerprint, usize> = HashMap::new();
    let copy = copy
        .iter()
        .map(|row| {
            let mut hash_ = hash(row, row.text, row.images, &mut folded, work);
            let mut found = known.get(&hash_).copied();
            if found.is_none() && row.role == Role::User {
                let bare = without_workspace_line(row.text);
                let stripped = (bare.len() < row.text.len()).then(|| (bare.to_owned(), row.images));
                let mut forms: Vec<(String, u32)> = stripped.into_iter().collect();
                if bare.contains(PLACEHOLDER) {
                    for text in [row.text, bare] {
                        let images = text.matches(PLACEHOLDER).count() as u32;
                        forms.push((text.replace(PLACEHOLDER, " "), row.images + images));
                    }
                }
                for (text, images) in forms {
                    hash_ = hash(row, &text, images, &mut folded, work);
                    found = known.get(&hash_).copied();
                    if found.is_some() {
                        break;
                    }
                }
            }
            let class = found.unwrap_or_else(|| class(&mut new, hash_, &mut classes));
            print(row, &folded, class)
        })
        .collect();
    Prints { ours, copy, classes }
}

fn class(known: &mut HashMap<Fingerprint, usize>, hash: Fingerprint, classes: &mut usize) -> usize {
    match known.entry(hash) {
        Entry::Occupied(entry) => *entry.get(),
        Entry::Vacant(entry) => {
            *classes += 1;
            *entry.insert(*classes - 1)
        }
    }
}

fn print(row: &Row<'_>, folded: &[u8], class: usize) -> Print {
    let summary = row.kind == MessageKind::Summary || folded.starts_with(COMPACTION);
    let shortened = summary || row.role == Role::Tool;
    Print {
        class,
        bytes: folded.len() + row.calls.iter().map(|call| call.arguments.len()).sum::<usize>(),
        head: folded.first_chunk().copied().filter(|_| shortened),
        summary,
    }
}

/// Hashes what a row says; leaves its folded text in `folded`.
fn hash(
    row: &Row<'_>,
    text: &str,
    images: u32,
    folded: &mut Vec<u8>,
    work: &mut Work,
) -> Fingerprint {
    let mut hash = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    field(row.role.as_str().as_bytes());
    field(&images.to_be_bytes());
    for call in &row.calls {
        field(call.name.as_bytes());
        let mut arguments = Vec::with_capacity(call.arguments.len());
        arguments.extend(call.arguments.bytes().filter(|byte| !byte.is_ascii_whitespace()));
        field(&arguments);
        work.bytes += call.arguments.len() as u64;
    }
    fold(text, folded);
    field(folded);
    work.bytes += text.len() as u64;
    work.steps += 1;
    let digest: [u8; 32] = hash.finalize().into();
    let mut half = Fingerprint::default();
    half.copy_from_slice(&digest[..16]);
    half
}

/// Writes `text` with each stretch of white space as one space, and none at its ends.
pub(super) fn fold(text: &str, folded: &mut Vec<u8>) {
    if has_wide_space(text.as_bytes()) {
        folded.clear();
        for word in text.split_whitespace() {
            if !folded.is_empty() {
                folded.push(b' ');
            }
            folded.extend_from_slice(word.as_bytes());
        }
        return;
    }
    // Everything that anyone ever said passes here, so that eight bytes are looked at in one word: where
    // no two spaces meet, they stay eight. Byte by byte it takes several times as long.
    folded.clear();
    folded.resize(text.len(), 0);
    let mut length = 0;
    let mut before = true;
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    for bytes in words {
        let word = u64::from_le_bytes(*bytes);
        let spaces = spaces_in(word);
        if spaces & (spaces << 8 | u64::from(before) << 7) != 0 {
            one_by_one(bytes, folded, &mut length, &mut before);
            continue;
        }
        let whole = (spaces >> 7) * 0xff;
        let plain = (word & !whole) | ((ALL * 0x20) & whole);
        folded[length..length + 8].copy_from_slice(&plain.to_le_bytes());
        length += 8;
        before = spaces >> 63 == 1;
    }
    one_by_one(rest, folded, &mut length, &mut before);
    folded.truncate(length);
    if folded.last() == Some(&b' ') {
        folded.pop();
    }
}

/// One in every byte of a word.
const ALL: u64 = 0x0101_0101_0101_0101;

/// The highest bit of each byte that is ASCII white space.
const fn spaces_in(word: u64) -> u64 {
    let (low, high) = (ALL * 0x7f, ALL * 0x80);
    // Without the highest bit of each byte, sums never carry into the next one.
    let other = word ^ (ALL * 0x20);
    let blank = !(((other & low) + low) | other);
    let from_tab = (word & low) + ALL * (0x80 - 0x09);
    let above_return = (word & low) + ALL * (0x80 - 0x0e);
    (blank | (from_tab & !above_return & !word)) & high
}

const fn is_space(byte: u8) -> bool {
    byte == b' ' || byte.wrapping_sub(b'\t') < 5
}

fn one_by_one(bytes: &[u8], folded: &mut [u8], length: &mut usize, before: &mut bool) {
    for &byte in bytes {
        let space = is_space(byte);
        folded[*length] = if space { b' ' } else { byte };
        *length += usize::from(!(space && *before));
        *before = space;
    }
}

/// Whether there is white space outside ASCII. Blocks without a byte that such a character begins with
/// are passed over by vector instructions.
fn has_wide_space(bytes: &[u8]) -> bool {
    const BLOCK: usize = 64;
    let begins = |byte: u8| matches!(byte, 0xc2 | 0xe1 | 0xe2 | 0xe3);
    bytes.chunks(BLOCK).enumerate().any(|(block, chunk)| {
        chunk.iter().fold(false, |any, &byte| any | begins(byte))
            && (block * BLOCK..block * BLOCK + chunk.len()).any(|at| {
                matches!(
                    bytes[at..],
                    [0xc2, 0x85 | 0xa0, ..]
                        | [0xe1, 0x9a, 0x80, ..]
                        | [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..]
                        | [0xe2, 0x81, 0x9f, ..]
                        | [0xe3, 0x80, 0x80, ..]
                )
            })
    })
}

/// A user's text without the one workspace line that an outside program may have put before it:
/// `[Workspace::v1: PATH]` or, older, `[Workspace: PATH]`, at its very beginning. A backslash in the
/// path escapes what follows it.
#[must_use]
pub fn without_workspace_line(text: &str) -> &str {
    let Some(path) = WORKSPACE.iter().find_map(|begin| text.strip_prefix(begin)) else {
        return text;
    };
    let mut escaped = false;
    for (at, byte) in path.bytes().enumerate().take(WORKSPACE_BYTES_MAX) {
        match byte {
            b'\n' | b'\r' => return text,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b']' => return path[at + 1..].trim_start(),
            _ => {}
        }
    }
    text
}

/// Whether one text is the other one cut short: equal at both ends, with at least the length of a head
/// at the beginning, and what one of them has of its own between is nothing, or only says that something
/// is missing. (Such a mark may be longer than what it stands for.)
pub(super) fn shortened(one: &str, other: &str) -> bool {
    let (mut texts, mut own) = ([Vec::new(), Vec::new()], [0..0, 0..0]);
    fold(one, &mut texts[0]);
    fold(other, &mut texts[1]);
    let [one, other] = &texts;
    let begin = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    if begin < MERGE_HEAD_BYTES {
        return false;
    }
    let rests = one[begin..].iter().rev().zip(other[begin..].iter().rev());
    let end = rests.take_while(|(a, b)| a == b).count();
    for (own, text) in own.iter_mut().zip(&texts) {
        *own = begin..text.len() - end;
    }
    texts.iter().zip(own).any(|(text, own)| is_mark(&text[..begin], &text[own]))
}

/// Whether `own` (what stands between two shared ends) is nothing or says that something is missing.
fn is_mark(before: &[u8], own: &[u8]) -> bool {
    const DOTS: [&str; 3] = [".", "…", " "];
    const WORDS: [&str; 5] = ["truncated", "omitted", "shortened", "elided", "clipped"];
    /// Bytes of a mark.
    const MARK_BYTES_MAX: usize = 128;
    if own.is_empty() {
        return true;
    }
    if own.len() > MARK_BYTES_MAX {
        return false;
    }
    let text = String::from_utf8_lossy(own).to_lowercase();
    let dots = DOTS.iter().fold(text.clone(), |text, dot| text.replace(dot, ""));
    // The bracket may be shared with what stands at that place in the longer text.
    let opened = text.trim_start().starts_with(['[', '(', '<', '.', '…'])
        || before.trim_ascii_end().last().is_some_and(|byte| b"[(<.".contains(byte));
    dots.is_empty() || (opened && WORDS.iter().any(|word| text.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::{fold, shortened, without_workspace_line};

    fn folded(text: &str) -> String {
        let mut out = b"left over".to_vec();
        fold(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The quick way and the plain one agree, with every white-space character that there is.
    #[test]
    fn folding_leaves_one_space_between_words() {
        let mut texts =
            vec![String::new(), " ".to_owned(), "a".to_owned(), "\u{b}a\u{c}\r\nb ".to_owned()];
        for c in (0..=0x3001).filter_map(char::from_u32) {
            texts.push(format!("{c}"));
            texts.push(format!("{c}{c}a{c}{c}b{c}"));
            texts.push(format!("a {c} b"));
        }
        for shift in 0..70 {
            texts.push(format!("{}{}", "x".repeat(shift), " a b  c\n\nd e".repeat(12)));
            texts.push(format!(
                "{} \n {}",
                "word ".repeat(shift),
                "longer words again ".repeat(shift)
            ));
        }
        for text in texts {
            let words: Vec<&str> = text.split_whitespace().collect();
            assert_eq!(folded(&text), words.join(" "), "{text:?}");
        }
    }

    #[test]
    fn white_space_is_found_in_every_byte_of_a_word() {
        for byte in 0..=u8::MAX {
            for place in 0..8 {
                for others in [0, b' ', b'a', 0x7f, 0x80, 0xff] {
                    let mut bytes = [others; 8];
                    bytes[place] = byte;
                    let expected = bytes.map(|byte| if super::is_space(byte) { 0x80 } else { 0 });
                    let found = super::spaces_in(u64::from_le_bytes(bytes));
                    assert_eq!(found.to_le_bytes(), expected, "{bytes:?}");
                }
            }
        }
        for byte in 0..=u8::MAX {
            assert_eq!(super::is_space(byte), byte.is_ascii() && char::from(byte).is_whitespace());
        }
    }

    #[test]
    fn one_workspace_line_is_stripped_at_the_very_beginning() {
        for (text, bare) in [
            ("[Workspace::v1: /a]\nhi", "hi"),
            ("[Workspace: /a] hi", "hi"),
            ("[Workspace::v1: /a\\]b]\n[Workspace: /a]\nhi", "[Workspace: /a]\nhi"),
            (" [Workspace: /a]\nhi", " [Workspace: /a]\nhi"),
            ("[Workspace: /a\nhi]", "[Workspace: /a\nhi]"),
            ("[Workspace: /a", "[Workspace: /a"),
            ("hi [Workspace: /a]", "hi [Workspace: /a]"),
        ] {
            assert_eq!(without_workspace_line(text), bare);
        }
    }

    #[test]
    fn only_what_is_cut_is_cut_short() {
        let long = "The quick brown fox jumps over the lazy dog, and then it sleeps on \
                    the grass, in the shade of an old tree, until noon.";
        for short in [
            "The quick brown fox jumps over the lazy dog",
            "The quick brown fox jumps over the lazy dog.",
            "The quick brown fox jumps over the lazy dog …",
            "The quick brown fox jumps over the lazy [... 31 bytes truncated ...] until noon.",
            "The quick brown fox jumps over the lazy dog, and [omitted]",
        ] {
            assert!(shortened(short, long) && shortened(long, short), "{short}");
        }
        for other in [
            "The quick brown fox",
            "The quick brown fox jumps over the lazy cat, and then it sleeps on \
             the grass, in the shade of an old tree, until noon.",
            "The quick brown fox jumps over the lazy dog, and then it sleeps until noon!",
            "The quick brown fox jumps over the lazy one that omitted to",
            "a dog, and then it sleeps until noon.",
        ] {
            assert!(!shortened(other, long) && !shortened(long, other), "{other}");
        }
    }
}
