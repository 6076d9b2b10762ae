//! Times in text, as our events write them.

use everturn_core::Timestamp;

/// Reads what [`Timestamp::rfc3339`] writes, and nothing else.
pub(crate) fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let digits = |range: std::ops::Range<usize>| {
        let part = text.get(range)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<i64>().ok())?
    };
    if text.len() != 24 {
        return None;
    }
    let (year, month, day) = (digits(0..4)?, digits(5..7)?, digits(8..10)?);
    let (hour, minute, second) = (digits(11..13)?, digits(14..16)?, digits(17..19)?);
    let ms = digits(20..23)?;
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    // Days from civil (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"): the inverse
    // of what `rfc3339` does.
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year - era * 400;
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let found = Timestamp((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + ms);
    // Also refuses wrong separators, and days that their month does not have.
    (found.rfc3339() == text).then_some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_is_written_is_read() {
        for bad in [
            "",
            "2026-11-30T05:58:44Z",
            "2026-11-30 05:58:44.123Z",
            "2026-02-30T05:58:44.123Z",
            "2026-11-30T24:58:44.123Z",
            "2026-11-30T05:58:44.1é3",
            "+026-11-30T05:58:44.123Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_time_of_four_digit_years_comes_back(ms in -62_167_219_200_000_i64..253_402_300_800_000) {
            prop_assert_eq!(parse_rfc3339(&Timestamp(ms).rfc3339()), Some(Timestamp(ms)));
        }
    }
}
