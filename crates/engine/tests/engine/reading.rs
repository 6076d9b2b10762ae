//! Reading while it happens: no gaps, no doubles, at every boundary (promises P6 and P7).

use everturn_core::Outcome;
use everturn_engine::live::{Item, RunCursor};
use tokio::sync::mpsc;

use crate::bench::{Say, event, key, open, within};

#[tokio::test]
async fn a_reader_that_attaches_anywhere_gets_the_rest_once_and_in_order() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    node.model.says(Say::Text(vec!["a", "b", "c", "d", "e"]));
    let input = node.say("s", "r1", "hi").await;
    node.ended(&input.id).await;
    let run = node.last_run("s").await;
    let all = node.journal(&run).await;
    for after in 0..=run.last_seq {
        let mut stream =
            node.engine.run_stream(run.clone(), RunCursor::After(after)).await.unwrap();
        let mut got = Vec::new();
        loop {
            match within(stream.next()).await.unwrap() {
                Item::Frame(frame) => got.push(String::from_utf8(frame.bytes.to_vec()).unwrap()),
                Item::End => break,
                Item::Reset { .. } => panic!("a good cursor was reset"),
                _ => {}
            }
        }
        let want: Vec<String> = all
            .iter()
            .filter(|(seq, ..)| *seq > after)
            .map(|(_, _, bytes)| bytes.clone())
            .collect();
        assert_eq!(got, want, "after {after}");
    }
    node.engine.close().await;
}

#[tokio::test]
async fn live_readers_and_late_readers_get_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (pieces, receiver) = mpsc::channel(64);
    node.model.says(Say::Stream(receiver));
    let mut first = node.feed("s", Some(0)).await;
    let input = node.say("s", "r1", "hi").await;
    let mut readers = Vec::new();
    for number in 0..40 {
        pieces.send(format!("piece {number} ")).await.unwrap();
        if number % 10 == 0 {
            // One that begins in the middle, from the start of the feed.
            readers.push(node.feed("s", Some(0)).await);
        }
    }
    drop(pieces);
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let stored = node.engine.read().feed(&key("s"), 0, 10_000).await.unwrap();
    let want: Vec<String> = stored
        .iter()
        .map(|event| match event {
            everturn_store::read::StoredEvent::Good(row) => {
                everturn_api::event::render(&row.head, &row.body)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    readers.push(node.feed("s", Some(0)).await);
    std::mem::swap(&mut first, &mut readers[0]);
    readers.push(first);
    for mut reader in readers {
        let mut got = Vec::new();
        while got.len() < want.len() {
            if let Item::Frame(frame) = within(reader.next()).await.unwrap() {
                got.push(String::from_utf8(frame.bytes.to_vec()).unwrap());
            }
        }
        assert_eq!(got, want);
    }
    node.engine.close().await;
}

#[tokio::test]
async fn cursors_that_cannot_be_are_answered_with_a_reset() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let input = node.say("s", "r1", "hi").await;
    node.ended(&input.id).await;
    let run = node.last_run("s").await;
    for cursor in [RunCursor::After(run.last_seq + 1), RunCursor::Foreign] {
        let mut stream = node.engine.run_stream(run.clone(), cursor).await.unwrap();
        assert!(matches!(stream.next().await.unwrap(), Item::Opened { .. }));
        assert!(matches!(stream.next().await.unwrap(), Item::Reset { .. }));
        let Item::Frame(frame) = stream.next().await.unwrap() else { panic!("no first event") };
        assert_eq!(frame.head.run.as_ref().unwrap().1, 1);
    }
    let mut feed = node.feed("s", Some(1_000_000)).await;
    assert!(matches!(feed.next().await.unwrap(), Item::Opened { .. }));
    let Item::Reset { reason, latest } = feed.next().await.unwrap() else { panic!("no reset") };
    assert_eq!(reason, "ahead");
    assert!(matches!(feed.next().await.unwrap(), Item::CaughtUp { at } if at == latest));
    let next = node.say("s", "r2", "more").await;
    node.ended(&next.id).await;
    let accepted = event(&mut feed, "input.accepted").await;
    assert_eq!(accepted["offset"], latest + 1);
    node.engine.close().await;
}

#[tokio::test]
async fn a_feed_without_a_cursor_begins_with_the_session_and_goes_on_from_there() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let input = node.say("s", "r1", "hi").await;
    node.ended(&input.id).await;
    let mut feed = node.feed("s", None).await;
    assert!(matches!(feed.next().await.unwrap(), Item::Opened { .. }));
    let Item::Snapshot(view) = feed.next().await.unwrap() else { panic!("no snapshot") };
    let at = view.session.last_offset;
    assert!(matches!(feed.next().await.unwrap(), Item::CaughtUp { .. }));
    node.say("s", "r2", "more").await;
    let accepted = event(&mut feed, "input.accepted").await;
    assert_eq!(accepted["offset"], at + 1);
    node.engine.close().await;
}
