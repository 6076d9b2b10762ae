//! Cursors from outside, for the fuzz target and for its corpus as a test.

use everturn_core::{Principal, RunId, SessionId};
use http::{HeaderMap, HeaderValue};

use crate::cursor::{self, FeedCursor, RunPosition};
use crate::extract::{Query, stream_cursor};

/// Takes the bytes for a cursor of every kind, in the query and in `Last-Event-ID`: each is refused,
/// or is a place that this server could have given, and comes back as it went.
///
/// # Panics
/// Where that does not hold: a fault that was found.
#[allow(clippy::expect_used, clippy::panic, reason = "a fault that is found ends the target")]
pub fn cursors(data: &[u8]) {
    const MAX: u64 = i64::MAX as u64;
    let text = String::from_utf8_lossy(data);
    if let Ok(position) = cursor::position(&text) {
        assert!(position <= MAX);
        assert_eq!(cursor::position(&position.to_string()).ok(), Some(position));
    }
    let run = RunId::new("run_1").expect("an id");
    match cursor::run_position(&text, &run) {
        Ok(RunPosition::After(seq)) => {
            assert!(seq <= MAX);
            let named = format!("{run}:{seq}");
            let again = cursor::run_position(&named, &run).ok();
            assert_eq!(again, Some(RunPosition::After(seq)));
        }
        Ok(RunPosition::Foreign) => assert!(text.contains(':') && !text.starts_with("run_1:")),
        Err(_) => {}
    }
    if let Ok((updated_at, id)) = cursor::read_list_cursor(&text) {
        let id = SessionId::new(id).expect("the id of a list's cursor");
        let again = cursor::read_list_cursor(&cursor::list_cursor(updated_at, &id)).ok();
        assert_eq!(again, Some((updated_at, id.to_string())));
    }
    if let Ok(cursor) = FeedCursor::decode(&text) {
        let again = FeedCursor::decode(&cursor.encode()).ok();
        assert_eq!(again.as_ref(), Some(&cursor));
    }
    // The bytes behind a cursor's text as well: hardly any random text is base64.
    let wrapped = {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(data)
    };
    if let Ok(cursor) = FeedCursor::decode(&wrapped) {
        assert_eq!(FeedCursor::decode(&cursor.encode()).ok(), Some(cursor));
    }
    drop(cursor::read_list_cursor(&wrapped));

    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(data) {
        headers.insert("last-event-id", value);
    }
    let raw = format!("after={text}");
    let mut query = Query::new(Some(&raw));
    if let Ok(Some(found)) = stream_cursor(&headers, &mut query) {
        drop(cursor::run_position(&found, &run));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::path::Path;

    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// Every cursor of the corpus, and each with some bytes changed, cut off or doubled.
    #[test]
    fn a_cursor_is_refused_or_comes_back_as_it_went() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/cursors");
        let mut corpus: Vec<Vec<u8>> = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            corpus.push(std::fs::read(file.unwrap().path()).unwrap());
        }
        assert_eq!(corpus.len(), 23, "files of the corpus; a new one changes this number");
        let ids: Vec<_> = (0..64).map(|n| SessionId::new(format!("s{n}")).unwrap()).collect();
        let places = ids.iter().zip([0, 1, 127, 128, i64::MAX as u64].into_iter().cycle());
        corpus.push(FeedCursor::new(&Principal::local(), places).encode().into_bytes());
        corpus.push(cursor::list_cursor(-5, &ids[3]).into_bytes());
        for seed in &corpus {
            cursors(seed);
        }
        let seed: u64 = std::env::var("EVERTURN_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| rand::rng().random());
        println!("EVERTURN_SEED={seed}");
        let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
        for _ in 0..20_000 {
            let mut data = corpus[rng.random_range(0..corpus.len())].clone();
            for _ in 0..rng.random_range(1..5) {
                let at = rng.random_range(0..=data.len());
                match rng.random_range(0..4) {
                    0 => data.insert(at, rng.random()),
                    1 => data.truncate(at),
                    2 if at < data.len() => data[at] = rng.random(),
                    _ => data.extend_from_within(at..),
                }
                data.truncate(4_096);
            }
            cursors(&data);
        }
    }
}
