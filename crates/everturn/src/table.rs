//! Columns for people.

use crate::term::harmless;

/// Rows of text as columns, two spaces apart; the last column is as wide as it likes.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let width_of = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = head.iter().map(|text| width_of(text)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(width_of(cell));
        }
    }
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            let cell = harmless(cell);
            text.push_str(&cell);
            text.extend(std::iter::repeat_n(' ', width.saturating_sub(width_of(&cell)) + 2));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

/// A time on the wire as people read it here: local, to the second.
pub(crate) fn time(wire: &str) -> String {
    match wire.parse::<jiff::Timestamp>() {
        Ok(time) => local(time),
        Err(_) => wire.to_owned(),
    }
}

/// A point in time as people read it here.
pub(crate) fn local(time: jiff::Timestamp) -> String {
    let zoned = time.to_zoned_datetime(jiff::tz::TimeZone::system());
    zoned.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A number of things, the word as the number wants it.
pub(crate) fn count(number: u64, one: &str) -> String {
    let more = if number == 1 { "" } else { "s" };
    format!("{number} {one}{more}")
}

/// Bytes as people read them.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count;
    let mut rest = 0;
    let mut unit = 0;
    while value >= 1_024 && unit + 1 < UNITS.len() {
        rest = value % 1_024;
        value /= 1_024;
        unit += 1;
    }
    match unit {
        0 => format!("{value} B"),
        _ => format!("{value}.{} {}", rest * 10 / 1_024, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_end_clean() {
        let rows = vec![
            vec!["a".to_owned(), "long one".to_owned()],
            vec!["bbb".to_owned(), String::new()],
        ];
        assert_eq!(columns(&["ID", "TEXT"], &rows), "ID   TEXT\na    long one\nbbb\n");
    }

    #[test]
    fn one_thing_is_no_plural() {
        let shown = [0, 1, 2].map(|number| count(number, "home"));
        assert_eq!(shown, ["0 homes", "1 home", "2 homes"]);
    }

    #[test]
    fn bytes_have_units() {
        let shown = [0, 1_023, 1_024, 1_536, 1 << 30, u64::MAX].map(bytes);
        assert_eq!(shown[..5], ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 GiB"]);
        assert!(shown[5].ends_with("TiB"));
    }
}
