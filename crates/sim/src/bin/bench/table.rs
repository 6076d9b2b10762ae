//! The table that comes out.

use std::fmt;

/// One budget, or one measurement beside it.
#[derive(Debug)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) what: String,
    /// The result.
    pub(crate) measured: String,
    /// The peer or the raw limit, from the same run.
    pub(crate) beside: String,
    /// What the design asks for.
    pub(crate) budget: String,
    /// Whether that is met; `None` for a row without a budget.
    pub(crate) met: Option<bool>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn add(&mut self, row: Row) {
        eprintln!("   {} | {} | {}", row.what, row.measured, row.beside);
        self.rows.push(row);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

impl Row {
    fn cells(&self) -> [&str; 5] {
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "NOT met",
            None => "–",
        };
        [&self.what, &self.measured, &self.beside, &self.budget, verdict]
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: [&str; 5] = ["what", "measured", "beside it", "budget", "verdict"];
        let lines: Vec<[&str; 5]> =
            std::iter::once(HEAD).chain(self.rows.iter().map(Row::cells)).collect();
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        for (number, line) in lines.iter().enumerate() {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}", width = *width))
                .collect();
            writeln!(f, "{}", cells.join(" | ").trim_end())?;
            if number == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(f, "{}", rule.join("-|-"))?;
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}
