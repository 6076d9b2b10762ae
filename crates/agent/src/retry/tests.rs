//! Retries: how often, how long, and only before the first event.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::provider::{ModelEvent, ModelReply};

/// What a try does.
enum Try {
    /// The request fails.
    Refuse(ProviderErrorKind, Option<u64>),
    /// The stream exists, and fails with its first event.
    FailFirst(ProviderErrorKind),
    /// The stream ends at once.
    Nothing,
    /// A piece of text, and then an error.
    Break,
    Answer,
    Hang,
}

struct Moody {
    tries: Mutex<VecDeque<Try>>,
    asked: Mutex<Vec<Instant>>,
}

impl Moody {
    fn new(tries: impl IntoIterator<Item = Try>) -> Self {
        Self { tries: Mutex::new(tries.into_iter().collect()), asked: Mutex::default() }
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn error(kind: ProviderErrorKind, retry_after: Option<u64>) -> ProviderError {
    let retry_after = retry_after.map(Duration::from_millis);
    ProviderError { kind, message: "no".to_owned(), retry_after }
}

#[async_trait]
impl Provider for Moody {
    fn model(&self) -> &str {
        "test/moody"
    }

    async fn request(&self, _: ModelRequest) -> Result<ModelStream, ProviderError> {
        self.asked.lock().unwrap().push(Instant::now());
        let next = self.tries.lock().unwrap().pop_front().unwrap();
        let text = Ok(ModelEvent::Text("a".to_owned()));
        let broken = Err(error(ProviderErrorKind::Broken, None));
        let items = match next {
            Try::Refuse(kind, wait) => return Err(error(kind, wait)),
            Try::Hang => std::future::pending().await,
            Try::FailFirst(kind) => vec![Err(error(kind, None))],
            Try::Nothing => vec![],
            Try::Break => vec![text, broken],
            Try::Answer => vec![text, Ok(ModelEvent::Done(ModelReply::default()))],
        };
        Ok(futures::stream::iter(items).boxed())
    }
}

fn request() -> ModelRequest {
    ModelRequest { system: String::new(), messages: vec![], tools: vec![] }
}

/// Runs a request; gives its events and the notices.
async fn run(
    provider: &Moody,
    policy: &RetryPolicy,
    seed: u64,
) -> (Result<Vec<Result<ModelEvent, ProviderError>>, ProviderError>, Vec<RetryNotice>) {
    let mut notices = Vec::new();
    let mut rng = StdRng::seed_from_u64(seed);
    let stream = request_with_retry_seeded(
        provider,
        &request(),
        policy,
        &mut |notice| notices.push(notice),
        &mut rng,
    )
    .await;
    let events = match stream {
        Ok(stream) => Ok(stream.collect().await),
        Err(error) => Err(error),
    };
    (events, notices)
}

use ProviderErrorKind as K;

#[tokio::test(start_paused = true)]
async fn what_may_help_is_tried_again() {
    let provider = Moody::new([
        Try::Refuse(K::Unavailable, None),
        Try::FailFirst(K::Broken),
        Try::Nothing,
        Try::Refuse(K::Stalled, None),
        Try::Answer,
    ]);
    let (events, notices) = run(&provider, &RetryPolicy::default(), 1).await;
    assert_eq!(events.unwrap().len(), 2);
    assert_eq!(notices.iter().map(|n| n.attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(notices.iter().all(|notice| notice.attempts == 5));
    // The notice tells the wait that really comes.
    let asked = provider.asked.lock().unwrap();
    for (notice, pair) in notices.iter().zip(asked.windows(2)) {
        let waited = pair[1] - pair[0];
        assert!(waited >= notice.wait && waited < notice.wait + Duration::from_millis(2));
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_help_is_not_tried_again() {
    for kind in [K::Unauthorized, K::Misconfigured, K::Refused, K::TooLong, K::Malformed] {
        let provider = Moody::new([Try::Refuse(kind, None)]);
        let (events, notices) = run(&provider, &RetryPolicy::default(), 1).await;
        assert_eq!(events.unwrap_err().kind, kind);
        assert_eq!((notices.len(), provider.asked()), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_tried_again_once_something_came() {
    let provider = Moody::new([Try::Break]);
    let (events, notices) = run(&provider, &RetryPolicy::default(), 1).await;
    let events = events.unwrap();
    assert_eq!(events[0], Ok(ModelEvent::Text("a".to_owned())));
    assert_eq!(events[1].as_ref().unwrap_err().kind, K::Broken);
    assert_eq!((events.len(), notices.len(), provider.asked()), (2, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_after_the_last_try() {
    let provider = Moody::new((0..9).map(|_| Try::Refuse(K::Unavailable, None)));
    let (events, notices) = run(&provider, &RetryPolicy::default(), 1).await;
    assert_eq!(events.unwrap_err().kind, K::Unavailable);
    assert_eq!((notices.len(), provider.asked()), (4, 5));
    let none = RetryPolicy { retries: 0, ..RetryPolicy::default() };
    let (events, notices) = run(&provider, &none, 1).await;
    assert!(events.is_err() && notices.is_empty());
}

/// The waits are random over the whole range, the range doubles, and it has a cap.
#[tokio::test(start_paused = true)]
async fn waits_grow_and_are_random() {
    let policy = RetryPolicy {
        retries: 7,
        base: Duration::from_millis(100),
        cap: Duration::from_millis(500),
        ..RetryPolicy::default()
    };
    let limits = [100, 200, 400, 500, 500, 500, 500].map(Duration::from_millis);
    let (mut least, mut most) = (limits, [Duration::ZERO; 7]);
    for seed in 0..400 {
        let provider = Moody::new((0..8).map(|_| Try::Refuse(K::Unavailable, None)));
        let (_, notices) = run(&provider, &policy, seed).await;
        for (at, notice) in notices.iter().enumerate() {
            assert!(notice.wait <= limits[at], "{at}: {:?}", notice.wait);
            least[at] = least[at].min(notice.wait);
            most[at] = most[at].max(notice.wait);
        }
    }
    for at in 0..7 {
        assert!(least[at] < limits[at] / 20, "{at}: {:?}", least[at]);
        assert!(most[at] > limits[at] * 19 / 20, "{at}: {:?}", most[at]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_provider_asks_for_is_kept() {
    for asked in [0, 3_000, 60_000] {
        let provider = Moody::new([Try::Refuse(K::RateLimited, Some(asked)), Try::Answer]);
        let (events, notices) = run(&provider, &RetryPolicy::default(), 7).await;
        assert!(events.is_ok());
        let asked = Duration::from_millis(asked);
        assert!(notices[0].wait >= asked, "{:?}", notices[0].wait);
        assert!(notices[0].wait <= asked + Duration::from_millis(500));
    }
    let provider = Moody::new([Try::Refuse(K::RateLimited, Some(60_001))]);
    let (events, notices) = run(&provider, &RetryPolicy::default(), 7).await;
    assert_eq!(events.unwrap_err().retry_after, Some(Duration::from_millis(60_001)));
    assert!(notices.is_empty());
}

#[tokio::test(start_paused = true)]
async fn all_waits_together_have_a_limit() {
    let policy = RetryPolicy { retries: 1_000, ..RetryPolicy::default() };
    let provider = Moody::new((0..1_000).map(|_| Try::Refuse(K::RateLimited, Some(50_000))));
    let begun = Instant::now();
    let (events, _) = run(&provider, &policy, 3).await;
    assert_eq!(events.unwrap_err().kind, K::RateLimited);
    assert!(begun.elapsed() <= policy.total);
    assert_eq!(provider.asked(), 6);
}

#[tokio::test(start_paused = true)]
async fn dropping_it_ends_it() {
    let provider = Moody::new([Try::Refuse(K::Unavailable, None), Try::Hang]);
    let day = Duration::from_secs(86_400);
    let waited = tokio::time::timeout(day, run(&provider, &RetryPolicy::default(), 1)).await;
    assert!(waited.is_err());
    assert_eq!(provider.asked(), 2);
}

/// The future may cross threads, as a turn's task does.
#[tokio::test]
async fn it_may_be_spawned() {
    let task = tokio::spawn(async {
        let provider = Moody::new([Try::Answer]);
        let stream =
            request_with_retry(&provider, &request(), &RetryPolicy::default(), &mut |_| {}).await;
        stream.map(drop)
    });
    assert!(task.await.unwrap().is_ok());
}
