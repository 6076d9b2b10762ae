//! Nodes, tokens, and what several operations share.

use everturn_core::{Timestamp, TokenId};

use super::world::{World, admit, key, node, principal};
use crate::op::{CreateToken, EndNode, Op, RegisterNode, RevokeToken, TouchToken};
use crate::rows::{Node, Token};

pub(super) async fn nodes_come_and_go(world: World) {
    let first = world.register("n1", "serve").await;
    world.clock.pass_ms(5);
    let second = world.register("n2", "run").await;
    // The wall clock goes back: the order is that of their coming.
    world.clock.set_wall_ms(1_000);
    let third = Node { interrupted_start: true, ..world.register("n3", "serve").await };
    world.ok(RegisterNode { node: third.clone() }).await;
    assert_eq!(world.store.node(&first.id).await.unwrap(), Some(first.clone()));
    assert_eq!(world.store.node(&node("n9")).await.unwrap(), None);
    let mut numbers = Vec::new();
    for id in [&first.id, &second.id, &third.id] {
        numbers.push(world.store.node_number(id).await.unwrap().unwrap());
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert_eq!(world.store.node_number(&node("n9")).await.unwrap(), None);
    let here = world.store.nodes(10).await.unwrap();
    assert_eq!(here, [third.clone(), second.clone(), first.clone()]);
    let starts = world.store.serve_starts("/home/test", 10).await.unwrap();
    assert_eq!(starts, [third.clone(), first.clone()]);
    assert_eq!(
        world.store.serve_starts("/home/test", 1).await.unwrap(),
        std::slice::from_ref(&third)
    );
    assert!(world.store.serve_starts("/elsewhere", 10).await.unwrap().is_empty());
    world.ok(EndNode { node: first.id.clone() }).await;
    let ended = world.store.node(&first.id).await.unwrap().unwrap();
    assert_eq!(ended.ended_at, Some(Timestamp(1_000)));
    world.clock.pass_ms(5);
    world.ok(EndNode { node: first.id.clone() }).await;
    world.ok(EndNode { node: node("n9") }).await;
    assert_eq!(world.store.node(&first.id).await.unwrap(), Some(ended), "left once");
    assert_eq!(world.store.nodes(10).await.unwrap(), [third.clone(), second]);
    assert_eq!(world.store.nodes(1).await.unwrap(), [third]);
    assert_eq!(world.store.serve_starts("/home/test", 10).await.unwrap().len(), 2);
    // Those that ended are forgotten in the end, unless a lease still names them.
    let _turn = world.turn_of(&key("s"), "r", "n2").await;
    world.ok(EndNode { node: node("n2") }).await;
    world.ok(crate::op::Prune { before: Timestamp(1_000) }).await;
    assert!(world.store.node(&first.id).await.unwrap().is_some(), "not before its time");
    world.ok(crate::op::Prune { before: Timestamp(5_000) }).await;
    assert!(world.store.node(&first.id).await.unwrap().is_none());
    assert!(world.store.node(&node("n2")).await.unwrap().is_some());
    assert!(world.store.node(&node("n3")).await.unwrap().is_some());
}

pub(super) async fn tokens_are_found_by_their_hash(world: World) {
    let token = |id: &str, byte: u8| Token {
        id: TokenId::new(id).unwrap(),
        hash: [byte; 32],
        principal: principal("alice"),
        scopes: vec!["read".to_owned(), "submit".to_owned()],
        created_at: world.clock_now(),
        expires_at: (byte == 1).then_some(Timestamp(9_999)),
        last_used_at: None,
        revoked_at: None,
    };
    let (first, second) = (token("t1", 1), token("t2", 2));
    for token in [&first, &second] {
        world.ok(CreateToken { token: token.clone() }).await;
    }
    assert_eq!(world.store.token_by_hash(&[1; 32]).await.unwrap(), Some(first.clone()));
    assert_eq!(world.store.token_by_hash(&[3; 32]).await.unwrap(), None);
    assert_eq!(world.store.tokens().await.unwrap(), [first.clone(), second.clone()]);
    world.clock.pass_ms(5);
    world.ok(TouchToken { token_id: first.id.clone() }).await;
    let now = world.clock_now();
    let used = world.store.token_by_hash(&[1; 32]).await.unwrap().unwrap();
    assert_eq!(used, Token { last_used_at: Some(now), ..first.clone() });
    assert!(world.ok(RevokeToken { token_id: first.id.clone() }).await);
    world.clock.pass_ms(5);
    assert!(world.ok(RevokeToken { token_id: first.id.clone() }).await);
    let revoked = world.store.token_by_hash(&[1; 32]).await.unwrap().unwrap();
    assert_eq!(revoked.revoked_at, Some(now), "the first revocation stands");
    let unknown = TokenId::new("t9").unwrap();
    assert!(!world.ok(RevokeToken { token_id: unknown.clone() }).await);
    world.ok(TouchToken { token_id: unknown }).await;
    assert_eq!(world.store.tokens().await.unwrap().len(), 2);
}

pub(super) async fn one_refusal_touches_no_other_operation(world: World) {
    let store = world.store.clone();
    let mut waiting = tokio::task::JoinSet::new();
    for n in 0..200_u32 {
        let store = store.clone();
        // Every fourth is refused; half of the sessions have an input already.
        let key = key(&format!("s-{}", n / 4));
        let op = match n % 4 {
            3 => Op::CancelInput(crate::op::CancelInput {
                principal: key.principal.clone(),
                input_id: everturn_core::InputId::new("inp_none").unwrap(),
            }),
            place => Op::Admit(admit(&key, &format!("r-{place}"), "x")),
        };
        waiting.spawn(async move { (n, store.submit(op).await) });
    }
    while let Some(done) = waiting.join_next().await {
        let (n, reply) = done.unwrap();
        assert_eq!(reply.is_ok(), n % 4 != 3, "operation {n}: {reply:?}");
    }
    for n in 0..50 {
        let session = world.session(&key(&format!("s-{n}"))).await;
        assert_eq!((session.queue_length, session.last_offset), (3, 3));
        assert_eq!(world.feed(&session.key()).await.len(), 3);
    }
    assert_eq!(world.store.counts().await.unwrap().queued, 150);
    let _same = world.submit(Op::EndNode(EndNode { node: node("n1") })).await.unwrap();
}
