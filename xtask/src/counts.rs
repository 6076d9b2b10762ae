//! How many tests passed, read from what each runner reports.

use std::ops::AddAssign;

use anyhow::{Context as _, Result};

/// Tests of one part, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Counts {
    /// One check, which passed or failed.
    pub(crate) fn one(passed: bool) -> Self {
        Self { passed: u64::from(passed), failed: u64::from(!passed), skipped: 0 }
    }

    /// A runner that failed without naming a failed test counts as one failure: it did not build, or
    /// died. One that ran nothing at all failed as well.
    pub(crate) fn or_failed(mut self, success: bool) -> Self {
        if self.failed == 0 && (!success || self == Self::default()) {
            self.failed = 1;
        }
        self
    }

    /// The closing line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        line
    }
}

/// From the JUnit report of nextest.
pub(crate) fn of_junit(report: &str) -> Result<Counts> {
    let start = report.find("<testsuites ").context("the report has no <testsuites>")?;
    let tag = report[start..].split('>').next().unwrap_or_default();
    let number = |name: &str| -> Result<u64> {
        let key = format!(" {name}=\"");
        let at = tag.find(&key).with_context(|| format!("the report does not say {name}"))?;
        let digits = tag[at + key.len()..].split('"').next().unwrap_or_default();
        digits.parse().with_context(|| format!("the report's {name} is not a number"))
    };
    let failed = number("failures")? + number("errors")?;
    let skipped = number("skipped").unwrap_or(0);
    let passed = number("tests")?.saturating_sub(failed + skipped);
    Ok(Counts { passed, failed, skipped })
}

/// From the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …` of `cargo test`.
pub(crate) fn of_libtest(output: &str) -> Counts {
    let mut counts = Counts::default();
    for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        // The verdict ends with a full stop; the numbers follow.
        let numbers = line.split_once(". ").map_or(line, |(_, rest)| rest);
        for field in numbers.split(';') {
            let mut words = field.split_whitespace();
            let (Some(Ok(n)), Some(what)) = (words.next().map(str::parse::<u64>), words.next())
            else {
                continue;
            };
            match what {
                "passed" => counts.passed += n,
                "failed" => counts.failed += n,
                "ignored" => counts.skipped += n,
                _ => {}
            }
        }
    }
    counts
}

/// From the closing lines of Node's test runner: `# pass 3` (TAP) or `ℹ pass 3` (spec).
pub(crate) fn of_node(output: &str) -> Counts {
    let mut counts = Counts::default();
    for line in output.lines() {
        let mut words = line.split_whitespace();
        if !matches!(words.next(), Some("#" | "ℹ")) {
            continue;
        }
        let (Some(what), Some(Ok(n)), None) =
            (words.next(), words.next().map(str::parse::<u64>), words.next())
        else {
            continue;
        };
        match what {
            "pass" => counts.passed += n,
            "fail" | "cancelled" => counts.failed += n,
            "skipped" | "todo" => counts.skipped += n,
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junit_counts_failures_and_errors() {
        let report = "<?xml version=\"1.0\"?>\n<testsuites name=\"nextest-run\" tests=\"12\" \
                      skipped=\"1\" failures=\"2\" errors=\"1\" time=\"0.1\">\n<testsuite tests=\"7\">";
        assert_eq!(of_junit(report).unwrap(), Counts { passed: 8, failed: 3, skipped: 1 });
        assert!(of_junit("<testsuites tests=\"1\">").is_err());
        assert!(of_junit("").is_err());
    }

    #[test]
    fn libtest_sums_its_binaries() {
        let output = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                      test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured\n";
        assert_eq!(of_libtest(output), Counts { passed: 4, failed: 2, skipped: 1 });
    }

    #[test]
    fn node_is_read_in_both_reporters() {
        let spec = "ℹ tests 6\nℹ pass 3\nℹ fail 1\nℹ cancelled 1\nℹ skipped 1\nℹ todo 0\n";
        let tap = "# tests 6\n# pass 3\n# fail 1\n# cancelled 1\n# skipped 1\n# pass the salt\n";
        let wanted = Counts { passed: 3, failed: 2, skipped: 1 };
        assert_eq!((of_node(spec), of_node(tap)), (wanted, wanted));
    }

    #[test]
    fn a_runner_that_fails_or_runs_nothing_is_a_failure() {
        assert_eq!(Counts::default().or_failed(true).failed, 1);
        assert_eq!(Counts::one(true).or_failed(false).failed, 1);
        assert_eq!(Counts { passed: 1, failed: 2, skipped: 0 }.or_failed(false).failed, 2);
        assert_eq!(Counts::one(true).or_failed(true), Counts::one(true));
    }

    #[test]
    fn the_closing_line_names_skips_only_when_there_are_some() {
        assert_eq!(Counts { passed: 3, failed: 0, skipped: 0 }.line(), "3 passed, 0 failed");
        assert_eq!(
            Counts { passed: 3, failed: 1, skipped: 2 }.line(),
            "3 passed, 1 failed, 2 skipped"
        );
    }
}
