//! Relative links in Markdown: the file is there, and so is the heading.

use super::Findings;
use super::tree::{File, Tree};

/// Follows every relative link.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for file in tree.with(&["md"]) {
        for (line, target) in targets(&file.text) {
            if let Some(problem) = broken(tree, file, &target) {
                found.problem(&file.path, line, format!("link to {target}: {problem}"));
            }
        }
    }
}

/// Why a link leads nowhere.
fn broken(tree: &Tree, from: &File, target: &str) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        from.path.clone()
    } else {
        let Some(path) = joined(&from.path, path) else { return Some("it leaves the tree") };
        path
    };
    if !tree.has(&path) {
        return Some("there is no such file");
    }
    let there = tree.get(&path).filter(|file| file.extension() == "md")?;
    if !heading.is_empty() && !headings(&there.text).iter().any(|slug| slug == heading) {
        return Some("there is no such heading");
    }
    None
}

/// The path that a link in this file means, from the root; `None` if it leaves the tree.
fn joined(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if link.starts_with('/') {
        parts.clear();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines outside code blocks, numbered from 1, with their code spans blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fence = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let marks = ["```", "~~~"].into_iter().find(|marks| start.starts_with(marks));
        match (fence, marks) {
            (None, Some(marks)) => fence = Some(marks),
            (Some(open), Some(marks)) if open == marks => fence = None,
            (None, None) => {
                let spans = line.split('`').enumerate();
                let outside = spans.filter(|(span, _)| span % 2 == 0).map(|(_, text)| text);
                lines.push((index + 1, outside.collect::<Vec<_>>().join("` `")));
            }
            (Some(_), _) => {}
        }
    }
    lines
}

/// The targets of inline links and of reference definitions, each with its line.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (number, line) in prose(text) {
        for (at, _) in line.match_indices("](") {
            let inside = &line[at + 2..];
            // A title may follow the target.
            let target = inside.split([')', ' ']).next().unwrap_or_default();
            targets.push((number, target.trim_matches(['<', '>']).to_owned()));
        }
        let definition =
            line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((_, rest)) = definition {
            targets.push((number, rest.split(' ').next().unwrap_or_default().to_owned()));
        }
    }
    targets
}

/// The anchors that a page's headings give, as code hosts make them.
fn headings(text: &str) -> Vec<String> {
    // Code spans count in a heading, so the lines are read as they are.
    let prose: Vec<usize> = prose(text).into_iter().map(|(number, _)| number).collect();
    let lines = text.lines().enumerate().filter(|(index, _)| prose.contains(&(index + 1)));
    let titles = lines.filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then_some(title.strip_prefix(' ')?)
    });
    titles
        .map(|title| {
            let kept = title.trim().to_lowercase();
            let kept = kept.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
            kept.map(|char| if char == ' ' { '-' } else { char }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::problems;
    use super::*;

    #[test]
    fn dead_links_are_found_and_live_ones_are_not() {
        let page = "# Top\n[a](docs/b.md) [c](docs/none.md) ![d](docs) [e](https://host/none)\n\
                    `[f](none.md)`\n```\n[g](none.md)\n```\n[h](#top) [i](#none)\n\
                    [j](docs/b.md#what-is-b \"title\") [k](docs/b.md#none) [l](../x.md)\n\n[m]: none.md\n";
        let other = "## What is `b`?\n[up](../a.md) [same](./b.md)\n";
        assert_eq!(
            problems(check, &[("a.md", page), ("docs/b.md", &other.replace(" `b`?", " b"))]),
            [
                "a.md:2: link to docs/none.md: there is no such file",
                "a.md:7: link to #none: there is no such heading",
                "a.md:8: link to docs/b.md#none: there is no such heading",
                "a.md:8: link to ../x.md: it leaves the tree",
                "a.md:10: link to none.md: there is no such file",
            ]
        );
        assert_eq!(headings(other), ["what-is-b"]);
    }
}
