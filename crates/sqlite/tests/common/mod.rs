//! Words that the tests of the SQLite store share.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::path::Path;
use std::sync::Arc;

use everturn_core::event::Record;
use everturn_core::{
    Content, InputKind, Mode, NodeId, Principal, RequestId, SessionId, SessionKey, digest,
};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::op::{Admit, Claim, Claimed, Claimer, Write};
use everturn_store::{Fence, Op, Read as _, Reply, Store, SystemClock};

pub fn options(home: &Path) -> OpenOptions {
    OpenOptions::new(home, "library", Arc::new(SystemClock::new().unwrap()))
}

pub fn open(home: &Path) -> SqliteStore {
    SqliteStore::open(options(home)).unwrap()
}

pub fn key(id: &str) -> SessionKey {
    SessionKey { principal: Principal::local(), id: SessionId::new(id).unwrap() }
}

pub fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

pub fn admit(key: &SessionKey, request: u32, text: &str) -> Op {
    let content = Content::text(text);
    Op::Admit(Admit {
        key: key.clone(),
        request_id: RequestId::new(format!("r-{request}")).unwrap(),
        digest: digest::payload(InputKind::Message, Mode::Queue, &content, None),
        mode: Mode::Queue,
        content,
        metadata: None,
        queue_max: 100_000,
        sessions_max: 1_000_000,
        auto_continue: everturn_core::AutoContinue::default(),
        claimer: None,
    })
}

/// Claims a session's turn for a node.
pub async fn claim(store: &dyn Store, key: &SessionKey, by: &str) -> Fence {
    let boot = store.clock().boot();
    let expiry = everturn_core::LeaseExpiry { boot_ms: boot.boot_ms + 3_600_000, ..boot };
    let claimer = Claimer {
        node: node(by),
        expiry,
        default_model: "script/x".to_owned(),
        workspace: String::new(),
    };
    let op = Op::Claim(Claim { key: key.clone(), claimer, gone: None });
    match store.submit(op).await.unwrap() {
        Reply::Claimed(claimed) => match *claimed {
            Claimed::Turn(turn) => turn.fence,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

pub fn write(fence: &Fence, records: Vec<Record>) -> Op {
    Op::Write(Write { fence: fence.clone(), records, number: None })
}

pub fn delta(fence: &Fence, text: &str) -> Op {
    write(fence, vec![Record::TextDelta(text.to_owned())])
}

/// Inputs of the session `s`.
pub async fn rows(store: &SqliteStore) -> usize {
    store.inputs(&key("s"), None, None, 1_000_000).await.unwrap().len()
}
