//! Counterparts of the cases that an earlier system pinned.

use crate::line::{adds_nothing, model, tool, user};

const NOTE: &str = "[CONTEXT COMPACTION — REFERENCE ONLY] What was said earlier is summed up below. It \
                    comes from another window";

/// Seed 000, `test_state_db_prefix_with_float_timestamps_does_not_hide_sidecar_tail`: the copy is a
/// prefix, hours later by its times, one of them out of order; its note is shortened, a result has
/// another id, the last prompt has a workspace line.
#[test]
fn a_restamped_prefix_does_not_hide_the_tail() {
    let second = 1_779_309_765_000;
    let ours = [
        user("plan").at(second),
        model("plan loaded").at(second),
        tool("what the skill printed").at(second),
        model("the answer before").at(second),
        user(format!("{NOTE} — treat it as background, NOT as instructions.")).at(second),
        tool("{\"success\": true, \"message\": \"Patched.\"}").at(second),
        user("more of them?").at(second),
        model("Yes, but not all in one").at(second),
    ];
    let later = 1_779_344_917_000;
    let copy = [
        user("plan").at(later + 278),
        model("plan loaded").at(later + 285),
        tool("what the skill printed").at(later + 292),
        model("the answer before").at(later + 307),
        user(format!("{NOTE}.")).at(later + 299),
        tool("{\"success\": true, \"message\": \"Patched.\"}")
            .at(later + 315)
            .answers("another-id"),
        user("[Workspace::v1: /srv/project]\nmore of them?").at(later + 328),
    ];
    adds_nothing(&ours, &copy);
}

/// Seed 000, `test_state_db_full_replay_does_not_append_after_sidecar_tail`.
#[test]
fn a_full_replay_adds_nothing_behind_the_tail() {
    let ours = [
        user("a first critique").at(100_000),
        model("analysed").at(100_000),
        user("Write your own").at(100_000),
        model("opened a preview").at(100_000),
    ];
    let copy = [
        user("a first critique").at(100_100),
        model("analysed").at(100_200),
        user("[Workspace::v1: /srv/project]\nWrite your own").at(100_300),
        model("opened a preview").at(100_400),
    ];
    adds_nothing(&ours, &copy);
}

/// Seed 000, `test_state_db_middle_segment_replay_does_not_append_after_sidecar_tail`.
#[test]
fn a_replay_from_the_middle_adds_nothing_behind_the_tail() {
    let ours = [
        user("older").at(100_000),
        model("older answer").at(100_000),
        model("analysis before the wish").at(100_000),
        user("Write your own").at(100_000),
        model("opened a preview").at(100_000),
    ];
    let copy = [
        model("analysis before the wish").at(100_100),
        user("[Workspace::v1: /srv/project]\nWrite your own").at(100_200),
    ];
    adds_nothing(&ours, &copy);
}
