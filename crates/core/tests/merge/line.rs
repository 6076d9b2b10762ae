//! Rows that own their text, and words to write them with.

use everturn_core::merge::{Call, Doubt, Effort, Merged, Row, Source, merge_with};
use everturn_core::{MessageKind, Role, Timestamp};

/// A row that owns its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) role: Role,
    pub(crate) kind: MessageKind,
    pub(crate) text: String,
    pub(crate) images: u32,
    /// Id, name, arguments.
    pub(crate) calls: Vec<(String, String, String)>,
    pub(crate) answers: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) at: Option<i64>,
}

impl Line {
    pub(crate) fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            kind: MessageKind::Message,
            text: text.into(),
            images: 0,
            calls: Vec::new(),
            answers: None,
            key: None,
            run: None,
            at: None,
        }
    }

    pub(crate) fn at(mut self, ms: i64) -> Self {
        self.at = Some(ms);
        self
    }

    pub(crate) fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    pub(crate) fn run(mut self, run: &str) -> Self {
        self.run = Some(run.to_owned());
        self
    }

    pub(crate) fn calls(mut self, id: &str, name: &str) -> Self {
        self.calls.push((id.to_owned(), name.to_owned(), "{\"a\": 1}".to_owned()));
        self
    }

    pub(crate) fn answers(mut self, id: &str) -> Self {
        self.answers = Some(id.to_owned());
        self
    }

    pub(crate) fn summary(mut self) -> Self {
        self.kind = MessageKind::Summary;
        self
    }

    pub(crate) fn row(&self) -> Row<'_> {
        Row {
            kind: self.kind,
            images: self.images,
            calls: self
                .calls
                .iter()
                .map(|(id, name, arguments)| Call { id, name, arguments })
                .collect(),
            answers: self.answers.as_deref(),
            key: self.key.as_deref(),
            run: self.run.as_deref(),
            at: self.at.map(Timestamp),
            ..Row::new(self.role, &self.text)
        }
    }
}

pub(crate) fn user(text: impl Into<String>) -> Line {
    Line::new(Role::User, text)
}

pub(crate) fn model(text: impl Into<String>) -> Line {
    Line::new(Role::Assistant, text)
}

pub(crate) fn tool(text: impl Into<String>) -> Line {
    Line::new(Role::Tool, text)
}

/// A text that is not said twice by chance.
pub(crate) fn long(name: &str) -> String {
    format!("{name}: a text of more than sixty-four bytes, which nobody says twice by accident.")
}

pub(crate) fn rows(lines: &[Line]) -> Vec<Row<'_>> {
    lines.iter().map(Line::row).collect()
}

pub(crate) fn merged(ours: &[Line], copy: &[Line]) -> Merged {
    merged_with(ours, copy, Effort::default())
}

pub(crate) fn merged_with(ours: &[Line], copy: &[Line], effort: Effort) -> Merged {
    merge_with(&rows(ours), &rows(copy), effort)
}

/// The lines of a result.
pub(crate) fn transcript(ours: &[Line], copy: &[Line], merged: &Merged) -> Vec<Line> {
    let line = |source| match source {
        Source::Ours(row) => ours[row].clone(),
        Source::Copy(row) => copy[row].clone(),
    };
    merged.rows.iter().map(|row| line(row.source)).collect()
}

/// The texts of a result, doubtful ones with a question mark before them.
pub(crate) fn texts(ours: &[Line], copy: &[Line]) -> Vec<String> {
    let merged = merged(ours, copy);
    transcript(ours, copy, &merged)
        .into_iter()
        .zip(&merged.rows)
        .map(|(line, row)| format!("{}{}", if row.doubt.is_some() { "?" } else { "" }, line.text))
        .collect()
}

/// Why rows are in doubt.
pub(crate) fn doubts(ours: &[Line], copy: &[Line]) -> Vec<(usize, Doubt)> {
    merged(ours, copy).doubtful().collect()
}

#[track_caller]
pub(crate) fn adds_nothing(ours: &[Line], copy: &[Line]) {
    let merged = merged(ours, copy);
    let rows: Vec<Source> = merged.rows.iter().map(|row| row.source).collect();
    let all: Vec<Source> = (0..ours.len()).map(Source::Ours).collect();
    assert_eq!(rows, all, "{:#?}", transcript(ours, copy, &merged));
    assert_eq!(merged.matches.len(), copy.len());
}
