//! The digest that tells whether a repeated request says the same thing (promise P2).

use sha2::{Digest as _, Sha256};

use crate::content::{Content, Part};
use crate::id::RunId;
use crate::input::{InputKind, Mode};
use crate::time::Timestamp;

/// SHA-256 of an input's canonical payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// Digests what a sender said: kind, mode, content and metadata (as canonical JSON text).
///
/// Each field is preceded by its length, so that no two payloads share an encoding; a version byte
/// starts it, so that a later encoding cannot collide with this one.
#[must_use]
pub fn payload(kind: InputKind, mode: Mode, content: &Content, metadata: Option<&str>) -> Digest {
    let mut hash = Sha256::new();
    hash.update([1_u8]);
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    field(kind.as_str().as_bytes());
    field(mode.as_str().as_bytes());
    for part in &content.0 {
        match part {
            Part::Text(text) => {
                field(b"text");
                field(text.as_bytes());
            }
            Part::Image { media_type, data, url } => {
                field(b"image");
                field(media_type.as_bytes());
                field(data.as_deref().unwrap_or_default().as_bytes());
                field(url.as_deref().unwrap_or_default().as_bytes());
            }
        }
    }
    field(b"metadata");
    field(metadata.unwrap_or_default().as_bytes());
    Digest(hash.finalize().into())
}

/// Digests a run that is imported, event by event, so that the same journal is known again.
#[derive(Debug, Clone)]
pub struct JournalDigest(Sha256);

impl JournalDigest {
    /// Begins with the run's id in its own journal.
    #[must_use]
    pub fn new(run: &RunId) -> Self {
        let mut digest = Self(Sha256::new());
        // Not the version byte of a payload: no import shares an encoding with an input.
        digest.0.update([2_u8]);
        digest.field(run.as_str().as_bytes());
        digest
    }

    fn field(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// Takes the next event in.
    pub fn add(&mut self, at: Timestamp, name: &str, body: &str) {
        self.0.update(at.0.to_be_bytes());
        self.field(name.as_bytes());
        self.field(body.as_bytes());
    }

    /// The digest of everything so far.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_differs_wherever_one_of_its_events_does() {
        let of = |run: &str, events: &[(i64, &str, &str)]| {
            let mut digest = JournalDigest::new(&RunId::new(run).unwrap());
            for (at, name, body) in events {
                digest.add(Timestamp(*at), name, body);
            }
            digest.finish()
        };
        let one = of("r", &[(1, "a", "{}"), (2, "b", "{}")]);
        assert_eq!(one, of("r", &[(1, "a", "{}"), (2, "b", "{}")]));
        for other in [
            of("s", &[(1, "a", "{}"), (2, "b", "{}")]),
            of("r", &[(1, "a", "{}")]),
            of("r", &[(1, "a", "{}"), (3, "b", "{}")]),
            of("r", &[(1, "a", "{}"), (2, "b{", "}")]),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn equal_payloads_agree_and_any_difference_shows() {
        let of = |text: &str, mode| payload(InputKind::Message, mode, &Content::text(text), None);
        assert_eq!(of("a", Mode::Queue), of("a", Mode::Queue));
        assert_ne!(of("a", Mode::Queue), of("a ", Mode::Queue));
        assert_ne!(of("a", Mode::Queue), of("a", Mode::Steer));
        let split = Content(vec![Part::Text("a".into()), Part::Text("b".into())]);
        let joined = Content::text("ab");
        assert_ne!(
            payload(InputKind::Message, Mode::Queue, &split, None),
            payload(InputKind::Message, Mode::Queue, &joined, None)
        );
    }
}
