//! Waiting for what can be observed, with a limit.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// How long anything in a test may take before it has failed. Generous: machines are shared.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer, at most for [`LIMIT`].
///
/// # Errors
/// There was none in time, or asking failed.
pub async fn until<T, F>(what: &str, ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    until_for(LIMIT, what, ask).await
}

/// As [`until`], with a limit of its own.
///
/// # Errors
/// As [`until`].
pub async fn until_for<T, F>(limit: Duration, what: &str, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            bail!("waited {} s in vain: {what}", limit.as_secs_f32());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
