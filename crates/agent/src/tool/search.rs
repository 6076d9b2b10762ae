//! `search_files`: lines that match a regular expression.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use everturn_core::Effect;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use ignore::overrides::Override;
use serde::Deserialize;
use serde_json::json;

use super::arguments::{parse, refusal};
use super::guard::{Guard, blocking};
use super::list::{glob, notes, selected};
use super::text::floor;
use super::{RESULT_BYTES_MAX, Tool, ToolInvocation, ToolOutcome, ToolSpec, explain};
use crate::workspace::{
    EntryKind, Found, Opened, Step, Walk, Workspace, WorkspaceError, open_regular, shown,
};

/// Matching lines that are returned.
pub const SEARCH_MATCHES_MAX: usize = 500;
/// Bytes of one matching line that are returned.
pub const SEARCH_LINE_BYTES_MAX: usize = 500;
/// Bytes of a file that is searched; larger ones are named and left out.
pub const SEARCH_FILE_BYTES_MAX: u64 = 32 << 20;
/// Seconds that one search may take.
pub const SEARCH_S_MAX: u64 = 30;
/// Bytes of a regular expression.
pub const REGEX_BYTES_MAX: usize = 4_096;
/// Bytes that a compiled regular expression and each of its caches may take.
pub const REGEX_MEMORY_MAX: usize = 8 << 20;
/// Bytes of one line that the search itself holds; a file with a longer one is left out.
pub const SEARCH_HEAP_BYTES: usize = 8 << 20;
/// Bytes kept for the notes after the matches.
const NOTE_BYTES: usize = 1_024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    regex: String,
    path: Option<String>,
    glob: Option<String>,
}

/// The tool.
#[derive(Debug)]
pub(super) struct SearchFiles {
    spec: ToolSpec,
    workspace: Workspace,
}

impl SearchFiles {
    pub(super) fn new(workspace: Workspace) -> Self {
        let spec = ToolSpec {
            name: "search_files".to_owned(),
            description: format!(
                "Finds lines that match a regular expression in the text files of the workspace \
                 and returns them as path:line:text, at most {SEARCH_MATCHES_MAX} of them. What \
                 .gitignore names and binary files are left out."
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "regex": {
                        "type": "string",
                        "description": "what to find, in Rust's regex syntax, within one line; \
                                        (?i) at the beginning ignores case",
                    },
                    "path": {
                        "type": "string",
                        "description": "the folder or the file to search, relative to the \
                                        workspace; all of it if not given",
                    },
                    "glob": {
                        "type": "string",
                        "description": "search only files that match, such as *.rs or src/**/*.rs",
                    },
                },
                "required": ["regex"],
                "additionalProperties": false,
            }),
            effect: Effect::Read,
        };
        Self { spec, workspace }
    }
}

#[async_trait]
impl Tool for SearchFiles {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let arguments: Arguments = match parse(&self.spec, &invocation.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return ToolOutcome::Failed(text),
        };
        let matcher = match matcher(&arguments.regex) {
            Ok(matcher) => matcher,
            Err(what) => return ToolOutcome::Failed(refusal(&self.spec, &what)),
        };
        let only = match arguments.glob.as_deref().map(glob).transpose() {
            Ok(only) => only,
            Err(what) => return ToolOutcome::Failed(refusal(&self.spec, &what)),
        };
        let workspace = self.workspace.clone();
        let path = arguments.path.unwrap_or_else(|| ".".to_owned());
        blocking(&invocation, move |guard| {
            let mut search = Search::new(matcher, guard);
            match search.run(&workspace, &path, only.as_ref()) {
                Ok(found) => search.outcome(found),
                Err(error) => ToolOutcome::Failed(explain(&error)),
            }
        })
        .await
    }
}

fn matcher(regex: &str) -> Result<RegexMatcher, String> {
    if regex.is_empty() || regex.len() > REGEX_BYTES_MAX {
        return Err(format!("`regex` must have from 1 to {REGEX_BYTES_MAX} bytes"));
    }
    RegexMatcherBuilder::new()
        .line_terminator(Some(b'\n'))
        .size_limit(REGEX_MEMORY_MAX)
        .dfa_size_limit(REGEX_MEMORY_MAX)
        .build(regex)
        .map_err(|error| format!("`regex`: {error}"))
}

/// One search under way.
struct Search<'g> {
    matcher: RegexMatcher,
    searcher: Searcher,
    guard: &'g Guard,
    until: Instant,
    hits: Hits,
    /// Files that were left out because of their size or a line in them.
    large: Vec<String>,
    unreadable: usize,
    ended: Option<&'static str>,
    late: bool,
}

/// What was found so far.
#[derive(Default)]
struct Hits {
    text: String,
    count: usize,
    cut: bool,
    /// The file being searched, and how much of the text is about it.
    path: String,
}

impl<'g> Search<'g> {
    fn new(matcher: RegexMatcher, guard: &'g Guard) -> Self {
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(SEARCH_HEAP_BYTES))
            .build();
        Self {
            matcher,
            searcher,
            guard,
            until: Instant::now() + Duration::from_secs(SEARCH_S_MAX),
            hits: Hits::default(),
            large: Vec::new(),
            unreadable: 0,
            ended: None,
            late: false,
        }
    }

    fn run(
        &mut self,
        workspace: &Workspace,
        path: &str,
        only: Option<&Override>,
    ) -> Result<Found, WorkspaceError> {
        match workspace.open_file(path) {
            Ok(opened) => {
                self.file(opened, shown(path));
                Ok(Found::default())
            }
            Err(WorkspaceError::NotAFile { .. }) => {
                Walk::run(workspace, path, usize::MAX, &mut |entry| {
                    if entry.kind != EntryKind::File || !selected(only, entry.path) {
                        return if self.may_go_on() { Step::On } else { Step::Stop };
                    }
                    match open_regular(entry.folder, entry.name, &entry.shown()) {
                        Ok(opened) => self.file(opened, entry.shown()),
                        Err(_) => self.unreadable += 1,
                    }
                    if self.may_go_on() { Step::On } else { Step::Stop }
                })
            }
            Err(error) => Err(error),
        }
    }

    fn may_go_on(&mut self) -> bool {
        self.ended = self.guard.ended_because();
        self.late = self.until <= Instant::now();
        self.ended.is_none() && !self.late && !self.hits.cut
    }

    fn file(&mut self, opened: Opened, path: String) {
        if opened.size > SEARCH_FILE_BYTES_MAX {
            self.large.push(path);
            return;
        }
        self.hits.path = path;
        // An error is one of reading, or a line beyond the limit; what was found before stands.
        if let Err(error) = self.searcher.search_file(&self.matcher, &opened.file, &mut self.hits) {
            if error.raw_os_error().is_some() {
                self.unreadable += 1;
            } else {
                self.large.push(std::mem::take(&mut self.hits.path));
            }
        }
    }

    fn outcome(self, found: Found) -> ToolOutcome {
        if let Some(why) = self.ended {
            return ToolOutcome::Failed(format!("not searched to the end: {why}"));
        }
        let mut text = self.hits.text;
        if self.hits.count == 0 {
            text.push_str("[no line matches]");
        }
        text.push_str(&notes(found, self.hits.cut.then_some(self.hits.count), "returned"));
        if self.late {
            text.push_str(&format!(
                "\n[the search took longer than {SEARCH_S_MAX} s and was ended; narrow path or glob]"
            ));
        }
        if let Some(first) = self.large.first() {
            text.push_str(&format!(
                "\n[{} not searched because of their size or of a line in them, such as {first}]",
                files(self.large.len())
            ));
        }
        if self.unreadable > 0 {
            text.push_str(&format!("\n[{} could not be read]", files(self.unreadable)));
        }
        ToolOutcome::Succeeded(text)
    }
}

impl Sink for Hits {
    type Error = std::io::Error;

    fn matched(
        &mut self,
        _searcher: &Searcher,
        found: &SinkMatch<'_>,
    ) -> Result<bool, std::io::Error> {
        let line = String::from_utf8_lossy(found.bytes());
        let line = line.trim_end_matches(['\n', '\r']);
        let end = floor(line, SEARCH_LINE_BYTES_MAX);
        let more = if end < line.len() { "…" } else { "" };
        let number = found.line_number().unwrap_or(0);
        let piece = format!("{}:{number}:{}{more}\n", self.path, &line[..end]);
        if self.count == SEARCH_MATCHES_MAX
            || self.text.len() + piece.len() > RESULT_BYTES_MAX - NOTE_BYTES
        {
            self.cut = true;
            return Ok(false);
        }
        self.text.push_str(&piece);
        self.count += 1;
        Ok(true)
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 file was".to_owned() } else { format!("{count} files were") }
}
