//! Numbers about numbers.

use std::time::Duration;

/// Durations of one kind, sorted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value that this share of all is not above; zero if there is none.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let place = (self.0.len() as f64 * share).ceil() as usize;
        let index = place.clamp(1, self.0.len().max(1)) - 1;
        self.0.get(index).copied().unwrap_or_default()
    }

    pub(crate) fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    /// `p50 0.2 ms, p99 1.3 ms`
    pub(crate) fn shown(&self) -> String {
        format!("p50 {}, p99 {}", ms(self.p50()), ms(self.p99()))
    }
}

/// Milliseconds in words.
pub(crate) fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 100.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.0} ms"),
    }
}

/// Signed milliseconds in words: a difference of two measurements may be below zero.
pub(crate) fn signed_ms(ms: f64) -> String {
    format!("{ms:+.2} ms")
}

/// How many per second.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

/// `12 345 /s`
pub(crate) fn per_second(rate: f64) -> String {
    format!("{}/s", thousands(rate.round() as u64))
}

/// `12 345`
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Bytes in words.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let times = Times::of((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(times.p50(), Duration::from_millis(50));
        assert_eq!(times.p99(), Duration::from_millis(99));
        assert_eq!(times.quantile(1.0), Duration::from_millis(100));
        assert_eq!(Times::default().p99(), Duration::ZERO);
        assert_eq!(Times::of(vec![Duration::from_secs(1)]).p50(), Duration::from_secs(1));
    }

    #[test]
    fn numbers_are_written_in_groups() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1 000");
        assert_eq!(thousands(12_345_678), "12 345 678");
    }
}
