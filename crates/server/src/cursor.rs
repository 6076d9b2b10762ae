//! Cursors: where a reader goes on.
//!
//! Positions are integers from 0 to 2^63 - 1. Lists and the multiplexed feed have opaque cursors,
//! base64url with a version in front; what cannot be read is refused, never guessed at.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use everturn_core::{Principal, RunId, SessionId};
use sha2::{Digest as _, Sha256};

use crate::problem::{Answer, Refused};

/// A position: digits, nothing else, up to 2^63 - 1.
pub(crate) fn position(text: &str) -> Answer<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = is_digits.then(|| text.parse::<i64>().ok()).flatten();
    value.and_then(|value| u64::try_from(value).ok()).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        Refused::cursor(format!("{shown:?} is not a position from 0 to 9223372036854775807"))
    })
}

/// Where a reader of a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunPosition {
    /// Behind this seq.
    After(u64),
    /// It names another run.
    Foreign,
}

/// Reads `<run>:<seq>`, or a plain seq.
pub(crate) fn run_position(text: &str, run: &RunId) -> Answer<RunPosition> {
    let Some((id, seq)) = text.rsplit_once(':') else {
        return position(text).map(RunPosition::After);
    };
    let id = RunId::new(id).map_err(|fault| Refused::cursor(format!("its run id {fault}")))?;
    let seq = position(seq)?;
    Ok(if id == *run { RunPosition::After(seq) } else { RunPosition::Foreign })
}

const LIST_VERSION: &str = "1";

/// A place in the list of sessions, as text.
pub(crate) fn list_cursor(updated_at_ms: i64, id: &SessionId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{LIST_VERSION}:{updated_at_ms}:{id}"))
}

/// Reads a place in the list of sessions.
pub(crate) fn read_list_cursor(text: &str) -> Answer<(i64, String)> {
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let plain = String::from_utf8(bytes).ok()?;
        let mut parts = plain.splitn(3, ':');
        let version = parts.next()?;
        let updated_at = parts.next()?.parse::<i64>().ok()?;
        let id = SessionId::new(parts.next()?).ok()?;
        (version == LIST_VERSION).then(|| (updated_at, id.to_string()))
    };
    read().ok_or_else(|| Refused::cursor("it is not one that a list of sessions gave"))
}

const FEED_VERSION: u8 = 1;
/// Bytes of a session's hash in a cursor: with 64 sessions, two of them share one once in 10^11.
const HASH: usize = 6;

/// Where a reader of the multiplexed feed stands in each of its sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FeedCursor {
    entries: Vec<([u8; HASH], u64)>,
}

/// Of the session and whose it is: another person's session of the same name is another one.
fn short_hash(principal: &Principal, id: &SessionId) -> [u8; HASH] {
    let mut hash = Sha256::new();
    hash.update(principal.as_str().as_bytes());
    // In neither of the two.
    hash.update([0]);
    hash.update(id.as_str().as_bytes());
    let full: [u8; 32] = hash.finalize().into();
    let mut short = [0; HASH];
    short.copy_from_slice(&full[..HASH]);
    short
}

impl FeedCursor {
    /// A cursor for these sessions of this principal, at these offsets.
    pub(crate) fn new<'a>(
        principal: &Principal,
        places: impl Iterator<Item = (&'a SessionId, u64)>,
    ) -> Self {
        Self { entries: places.map(|(id, offset)| (short_hash(principal, id), offset)).collect() }
    }

    /// Moves a session, by its place in the order given to [`FeedCursor::new`].
    pub(crate) fn set(&mut self, index: usize, offset: u64) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.1 = offset;
        }
    }

    /// A session's offset, by its place in the order given to [`FeedCursor::new`].
    pub(crate) fn get(&self, index: usize) -> Option<u64> {
        self.entries.get(index).map(|(_, offset)| *offset)
    }

    /// The offset of a session of this principal, if the cursor knows the session.
    pub(crate) fn offset(&self, principal: &Principal, id: &SessionId) -> Option<u64> {
        let hash = short_hash(principal, id);
        self.entries.iter().find(|(known, _)| *known == hash).map(|(_, offset)| *offset)
    }

    /// As text.
    pub(crate) fn encode(&self) -> String {
        let mut bytes = Vec::with_capacity(1 + self.entries.len() * (HASH + 4));
        bytes.push(FEED_VERSION);
        for (hash, offset) in &self.entries {
            bytes.extend_from_slice(hash);
            put_varint(&mut bytes, *offset);
        }
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// From text.
    pub(crate) fn decode(text: &str) -> Answer<Self> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let (version, mut rest) = bytes.split_first()?;
            let mut entries = Vec::new();
            while !rest.is_empty() {
                let (hash, tail) = rest.split_at_checked(HASH)?;
                let (offset, tail) = take_varint(tail)?;
                entries.push((hash.try_into().ok()?, offset));
                rest = tail;
            }
            let fits = entries.len() <= everturn_core::limits::FEED_SESSIONS_MAX;
            (*version == FEED_VERSION && fits).then_some(Self { entries })
        };
        read().ok_or_else(|| Refused::cursor("it is not one that a multiplexed feed gave"))
    }
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            // Nine bytes hold 63 bits: no more than a position has.
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn positions_are_plain_integers() {
        for (text, value) in [("0", 0), ("007", 7), ("9223372036854775807", i64::MAX as u64)] {
            assert_eq!(position(text).unwrap(), value);
        }
        for bad in ["", " ", "abc", "-1", "+1", "1.0", "1e3", "9223372036854775808", "1 ", "١"] {
            assert_eq!(position(bad).unwrap_err().problem().code, "bad_cursor", "{bad:?}");
        }
    }

    #[test]
    fn a_run_position_names_its_run() {
        let run = RunId::new("run_1").unwrap();
        assert_eq!(run_position("7", &run).unwrap(), RunPosition::After(7));
        assert_eq!(run_position("run_1:7", &run).unwrap(), RunPosition::After(7));
        assert_eq!(run_position("run_2:7", &run).unwrap(), RunPosition::Foreign);
        for bad in ["", ":", "run_1:", ":7", "run_1:-1", "../x:1", "run_1:9223372036854775808"] {
            assert!(run_position(bad, &run).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn opaque_cursors_come_back_as_they_went() {
        let ids: Vec<_> = (0..64).map(|n| SessionId::new(format!("s{n}")).unwrap()).collect();
        let offsets = [0, 1, 127, 128, 300, u64::from(u32::MAX), i64::MAX as u64];
        let places = ids.iter().zip(offsets.iter().copied().cycle());
        let own = Principal::local();
        let mut cursor = FeedCursor::new(&own, places.clone());
        assert_eq!(FeedCursor::decode(&cursor.encode()).unwrap(), cursor);
        for (id, offset) in places {
            assert_eq!(cursor.offset(&own, id), Some(offset));
        }
        cursor.set(3, 5);
        assert_eq!(cursor.offset(&own, &ids[3]), Some(5));
        assert_eq!(cursor.offset(&own, &SessionId::new("other").unwrap()), None);
        assert_eq!(cursor.offset(&Principal::new("other").unwrap(), &ids[3]), None);

        let text = list_cursor(-5, &ids[0]);
        assert_eq!(read_list_cursor(&text).unwrap(), (-5, "s0".to_owned()));
    }

    #[test]
    fn unreadable_opaque_cursors_are_refused() {
        let many = FeedCursor { entries: vec![([0; HASH], 1); 65] }.encode();
        for bad in ["", "abc", "-1", "AA", "Ag", "====", "AQAA", &many] {
            assert!(FeedCursor::decode(bad).is_err(), "{bad:?}");
        }
        let other_version = URL_SAFE_NO_PAD.encode("2:5:s0");
        let bad_id = URL_SAFE_NO_PAD.encode("1:5:../x");
        for bad in ["", "abc", "5", "=", &other_version, &bad_id] {
            assert!(read_list_cursor(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_varint_is_longer_than_a_position() {
        assert_eq!(take_varint(&[0xff; 10]), None);
        assert_eq!(take_varint(&[]), None);
        let mut bytes = Vec::new();
        put_varint(&mut bytes, i64::MAX as u64);
        assert_eq!(take_varint(&bytes), Some((i64::MAX as u64, &[][..])));
    }
}
