//! Merging a record of a conversation with a copy of it that was stamped anew, prefixed, shortened and
//! extended.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use everturn_core::Role;
use everturn_core::merge::{Call, Merged, Row as Line, merge};
use everturn_core::time::Timestamp;

use super::Scale;
use super::stats::{ms, thousands};
use super::table::{Row, Table};

/// Rows of one step: a question, a call, its result, an answer.
const STEP: usize = 4;
/// Bytes of each text.
const BYTES: usize = 20 << 10;
/// Rows at which the earlier method is measured: beyond them it looked at less.
const PEER_ROWS: usize = 990;

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let (count, peers) = (scale.of(10_000, 400), scale.of(PEER_ROWS, 40));
    let (row, steps) = tokio::task::spawn_blocking(move || {
        let (merged, time) = best_of(3, &Record::new(count));
        let (_, few) = best_of(3, &Record::new(peers));
        let expected = count + count / STEP / 10;
        ensure!(merged.rows.len() == expected, "{} rows for {expected}", merged.rows.len());
        let peer = pairwise(&Record::new(peers));
        let row = Row {
            what: format!("merge, 2 × {} rows of 20 KiB", thousands(count as u64)),
            measured: ms(time),
            beside: format!(
                "{peers} rows: {}; every pair looked at, as before: {}, {:.0} ×",
                ms(few),
                ms(peer),
                peer.as_secs_f64() / few.as_secs_f64()
            ),
            budget: "≤ 1 s".to_owned(),
            met: Some(time <= Duration::from_secs(1)),
        };
        anyhow::Ok((row, (merged.work.steps + merged.work.cells) as f64 / count as f64))
    })
    .await??;
    table.add(row);
    table.note(format!("a merge looked at {steps:.1} rows, pairs or cells for each row"));
    Ok(())
}

/// The texts of both records.
struct Record {
    ours: Vec<String>,
    copy: Vec<String>,
}

impl Record {
    fn new(count: usize) -> Self {
        let ours: Vec<String> = (0..count).map(text).collect();
        let copy = ours
            .iter()
            .enumerate()
            .map(|(at, text)| match at % STEP {
                0 => format!("[Workspace::v1: /srv/project]\n{text}"),
                2 => format!("{} [truncated]", &text[..BYTES * 9 / 10]),
                _ => format!("{text}\n"),
            })
            .collect();
        Self { ours, copy }
    }

    fn lines<'a>(texts: &'a [String], calls: &'a [String], shift: i64) -> Vec<Line<'a>> {
        let row = |(at, text): (usize, &'a String)| {
            let id = calls[at / STEP].as_str();
            let mut row = Line::new(Role::Assistant, text);
            row.at = Some(Timestamp(at as i64 * 1_000 + shift));
            match at % STEP {
                0 => row.role = Role::User,
                1 => row.calls.push(Call { id, name: "shell", arguments: "{}" }),
                2 => (row.role, row.answers) = (Role::Tool, Some(id)),
                _ => {}
            }
            row
        };
        texts.iter().enumerate().map(row).collect()
    }
}

/// A text with words and lines, of which no two are alike.
fn text(number: usize) -> String {
    let mut text = format!("Message {number} of this conversation — ");
    let mut word = number;
    while text.len() < BYTES {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(["the ", "server ", "keeps\n", "every ", "turn, "][word >> 33 & 3]);
        if word >> 40 & 15 == 0 {
            text.push_str(&format!("{:x}\n\n", word >> 44));
        }
    }
    text.truncate(BYTES);
    text
}

fn best_of(times: usize, record: &Record) -> (Merged, Duration) {
    let ids = |name: &str| -> Vec<String> {
        (0..record.ours.len().div_ceil(STEP)).map(|step| format!("{name}-{step}")).collect()
    };
    let (ids_of_ours, ids_of_copy) = (ids("call"), ids("other"));
    let ours = Record::lines(&record.ours, &ids_of_ours, 0);
    let mut copy = Vec::new();
    for (at, row) in Record::lines(&record.copy, &ids_of_copy, 7_200_123).into_iter().enumerate() {
        copy.push(row);
        // In every tenth step the copy knows one more answer.
        if at % (STEP * 10) == STEP - 1 {
            copy.push(Line::new(Role::Assistant, &ids_of_copy[at / STEP]));
        }
    }
    let mut best = (merge(&ours, &copy), Duration::MAX);
    for _ in 0..times {
        let begun = Instant::now();
        let merged = merge(black_box(&ours), black_box(&copy));
        let time = begun.elapsed();
        if time < best.1 {
            best = (merged, time);
        }
    }
    best
}

/// What the earlier web interface did below a thousand texts, for rows whose times tell nothing: each
/// row of the copy beside every text of ours, one inside the other with white space folded, or with
/// only its words left and in lower case. White space and words are prepared once for each row here, the
/// case for each pair.
fn pairwise(record: &Record) -> Duration {
    struct Text {
        folded: String,
        words: String,
    }
    let texts = |texts: &[String]| -> Vec<Text> {
        let text = |text: &String| Text {
            folded: text.split_whitespace().collect::<Vec<_>>().join(" "),
            words: text
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(" "),
        };
        texts.iter().map(text).collect()
    };
    let within = |one: &str, other: &str| one.contains(other) || other.contains(one);
    let begun = Instant::now();
    let (ours, copies) = (texts(&record.ours), texts(&record.copy));
    let mut found = 0;
    for copy in copies.iter().rev() {
        found += usize::from(ours.iter().any(|ours| {
            within(&ours.folded, &copy.folded)
                || within(&ours.words.to_lowercase(), &copy.words.to_lowercase())
        }));
    }
    black_box(found);
    begun.elapsed()
}
