//! Each line of the tables, and each way in which an earlier system went wrong.

use everturn_core::Role;
use everturn_core::merge::{By, Doubt, Source};

use crate::line::{Line, adds_nothing, doubts, long, merged, model, texts, tool, user};

fn is(ours: &[Line], copy: &[Line], expected: &[&str]) {
    assert_eq!(texts(ours, copy), expected);
}

// What is matched.

#[test]
fn a_key_of_both_records_outweighs_the_text() {
    let ours = [user("a").key("k"), model("b")];
    let copy = [user("a, edited").key("k"), model("b")];
    adds_nothing(&ours, &copy);
    let found = merged(&ours, &copy).matches[0];
    assert_eq!((found.by, found.same), (By::Correlation, false));
    // Twice on one side, it names nothing; nor does it for another role.
    is(&ours, &[user("x").key("k"), user("y").key("k"), model("b")], &["a", "x", "y", "b"]);
    is(&ours, &[user("a"), model("x").key("k"), model("b")], &["a", "x", "b"]);
}

#[test]
fn a_call_that_both_records_have_is_one_row_with_its_result() {
    let ours =
        [user("do"), model("").calls("c1", "shell"), tool("done, and much was said").answers("c1")];
    let copy = [user("do"), model("I do").calls("c1", "shell"), tool("[cleared]").answers("c1")];
    adds_nothing(&ours, &copy);
    // The copy begins in the middle of a step.
    adds_nothing(&ours, &copy[2..]);
}

#[test]
fn results_follow_their_calls_whatever_the_ids() {
    let ours = [
        user("do"),
        model("").calls("c1", "shell").calls("c2", "shell"),
        tool("0").answers("c1"),
        tool("0").answers("c2"),
        model("done"),
    ];
    let copy = [
        user("do"),
        model("").calls("x1", "shell").calls("x2", "shell"),
        tool("shortened beyond all recognition").answers("x2"),
        tool("0").answers("x1"),
        model("done"),
    ];
    adds_nothing(&ours, &copy);
    let pairs: Vec<_> = merged(&ours, &copy).matches.iter().map(|m| (m.copy, m.ours)).collect();
    assert_eq!(pairs, [(0, 0), (1, 1), (2, 3), (3, 2), (4, 4)]);
    // Without ids the order of the results says which is which.
    let mut bare = copy.clone();
    bare[2].answers = None;
    bare[3].answers = None;
    adds_nothing(&ours, &bare);
}

#[test]
fn a_result_that_only_the_copy_has_goes_to_its_call() {
    let ours = [
        user("do"),
        model("").calls("c1", "shell").calls("c2", "shell"),
        tool("one").answers("c1"),
        user("and?"),
        model("well"),
    ];
    let copy = [
        user("do"),
        model("").calls("x1", "shell").calls("x2", "shell"),
        tool("one").answers("x1"),
        user("and?"),
        tool("two").answers("x2"),
        model("well"),
    ];
    is(&ours, &copy, &["do", "", "one", "two", "and?", "well"]);
}

#[test]
fn nothing_comes_between_a_call_and_its_results() {
    let ours =
        [user("do"), model("step").calls("c1", "shell"), tool("one").answers("c1"), model("done")];
    let copy = [user("do"), model("step").calls("x1", "shell"), model("meanwhile"), model("done")];
    is(&ours, &copy, &["do", "step", "one", "meanwhile", "done"]);
    // Also where the copy has something between them.
    let copy = [
        user("do"),
        model("step").calls("x1", "shell"),
        model("meanwhile"),
        tool("one").answers("x1"),
        model("done"),
    ];
    is(&ours, &copy, &["do", "step", "one", "meanwhile", "done"]);
    // And the same for a step that only the copy has: its result comes with it, and is not mistaken.
    let ours = [user("do"), model("done"), tool("ok")];
    let copy = [
        user("do"),
        model("step").calls("x", "shell"),
        model("meanwhile"),
        tool("ok").answers("x"),
        model("done"),
    ];
    is(&ours, &copy, &["do", "step", "ok", "meanwhile", "done", "ok"]);
}

#[test]
fn the_same_time_tells_repetitions_apart() {
    let ours = [
        user(long("q")).at(1),
        model(long("a")).at(2),
        user("ok").at(3),
        model(long("b")).at(4),
        user("ok").at(5),
    ];
    let copy = [model(long("b")).at(4), user("ok").at(5), user("ok").at(3)];
    adds_nothing(&ours, &copy);
    assert_eq!(merged(&ours, &copy).matches[2].ours, 2);
    // Stamped anew, an equal time is an accident.
    let ours = [user("q").at(1), user("ok").at(100), model("a").at(150), user("ok").at(200)];
    let copy = [user("q").at(190), user("ok").at(200), model("a").at(250), user("ok").at(300)];
    adds_nothing(&ours, &copy);
}

#[test]
fn rows_of_different_runs_are_different_rows() {
    let ours = [
        user("go").run("r1"),
        model("gone").run("r1"),
        user("go").run("r2"),
        model("gone").run("r2"),
    ];
    let copy = [
        user("go").run("r1"),
        model("gone").run("r1"),
        user("go").run("r3"),
        model("gone").run("r3"),
    ];
    let merged_ = merged(&ours, &copy);
    assert_eq!((merged_.added(), merged_.doubtful().count()), (2, 0));
    // Where the records have no run in common, its id says nothing.
    let foreign: Vec<Line> = copy.iter().map(|line| line.clone().run("elsewhere")).collect();
    adds_nothing(&ours, &foreign);
    // A row without one may be of any.
    let bare: Vec<Line> = ours.iter().map(|line| Line { run: None, ..line.clone() }).collect();
    adds_nothing(&ours, &[&ours[..1], &bare[1..]].concat());
}

#[test]
fn white_space_and_one_workspace_line_do_not_count() {
    let ours = [user("look  at\n this"), model("a\u{a0}b")];
    adds_nothing(&ours, &[user("[Workspace: /a\\]b] look at this\n"), model(" a b")]);
    // Only the copy's is stripped, once, at the beginning, and only of what people say.
    let typed = [user("[Workspace: /a]\nhi"), model("yes")];
    adds_nothing(&typed, &typed);
    adds_nothing(&typed, &[user("[Workspace::v1: /b]\n[Workspace: /a]\nhi"), model("yes")]);
    is(&typed, &[user("hi"), model("yes")], &["[Workspace: /a]\nhi", "hi", "yes"]);
    is(&[model("hi")], &[model("[Workspace: /a]\nhi")], &["hi", "[Workspace: /a]\nhi"]);
}

#[test]
fn a_moved_stretch_adds_nothing() {
    let ours = [user("1"), model("2"), user("3"), model("4"), user("5"), model("6")];
    let copy = [user("3"), model("4"), user("5"), model("6"), user("1"), model("2")];
    adds_nothing(&ours, &copy);
    // A long text is known again alone, and takes its neighbours with it.
    let ours = [user("hm"), model(long("1")), user("q"), model(long("2")), user("ok")];
    let copy = [user("q"), model(long("2")), user("ok"), user("hm"), model(long("1"))];
    adds_nothing(&ours, &copy);
    assert_eq!(merged(&ours, &copy).matches[3].by, By::Block);
    adds_nothing(&ours, &[user("q"), model(long("2")), user("ok"), model(long("1"))]);
}

// What is kept.

#[test]
fn an_answer_that_ours_lost_stands_after_its_question() {
    let ours = [user("1"), user("2"), model("b"), user("3"), model("c")];
    let copy = [user("1"), model("a"), user("2"), model("b"), user("3"), model("c"), model("d")];
    is(&ours, &copy, &["1", "a", "2", "b", "3", "c", "d"]);
    // What ours says in that turn comes first.
    let ours = [user("1"), model("broken o"), user("2"), model("b")];
    is(
        &ours,
        &[user("1"), model("whole"), user("2"), model("b")],
        &["1", "broken o", "whole", "2", "b"],
    );
    // A question with its answer comes between turns.
    is(
        &ours,
        &[user("1"), user("1a"), model("x"), user("2")],
        &["1", "broken o", "1a", "x", "2", "b"],
    );
    // What comes before everything does not go to the end.
    is(&ours, &[user("0"), model("z"), user("1")], &["0", "z", "1", "broken o", "2", "b"]);
}

#[test]
fn genuine_repetitions_stay() {
    let ours = [user("go"), model("done"), user("go"), model("done")];
    let copy = [&ours[..], &ours[..2]].concat();
    is(&ours, &copy, &["go", "done", "go", "done", "go", "done"]);
    assert!(doubts(&ours, &copy).is_empty());
    // The same question twice, with two answers.
    let ours = [user(long("q")), model(long("a"))];
    let copy = [&ours[..], &[user(long("q")), model(long("b"))]].concat();
    assert_eq!(merged(&ours, &copy).added(), 2);
    assert!(doubts(&ours, &copy).is_empty());
    // And where the copy is only the later part, with the new answer as evidence.
    let copy = [model(long("a")), user(long("q")), model(long("b"))];
    let merged = merged(&ours, &copy);
    let sources: Vec<Source> = merged.for_model().collect();
    assert_eq!(
        sources,
        [Source::Ours(0), Source::Ours(1), Source::Copy(1), Source::Copy(2)],
        "{merged:?}"
    );
}

/// Reference W-175: a repeated "go" behind the tail of a stretch is not dropped; nobody can tell
/// whether it is a second one, so that it is shown and not told to the model.
#[test]
fn a_short_text_out_of_place_is_kept_in_doubt() {
    let ours = [user("go"), model("a"), user("x"), model("b")];
    let copy = [user("x"), model("b"), user("go")];
    is(&ours, &copy, &["go", "a", "x", "b", "?go"]);
    assert_eq!(doubts(&ours, &copy), [(2, Doubt::OutOfPlace { like: 0 })]);
    assert_eq!(merged(&ours, &copy).for_model().count(), 4);
    // It is said again if something new answers it.
    is(&ours, &[user("x"), model("b"), user("go"), model("c")], &["go", "a", "x", "b", "go", "c"]);
}

#[test]
fn a_stretch_that_the_copy_repeats_within_itself_is_kept_in_doubt() {
    let ours = [user("q"), model(long("a")), user("r"), model(long("b"))];
    let copy = [&ours[..], &ours[..2]].concat();
    assert_eq!(
        doubts(&ours, &copy),
        [(4, Doubt::Replayed { like: 0 }), (5, Doubt::Replayed { like: 1 })]
    );
    assert_eq!(merged(&ours, &copy).rows.len(), 6);
}

#[test]
fn a_result_without_its_call_is_never_told() {
    let ours = [user("do"), model("").calls("c", "shell"), tool("one").answers("c")];
    let copy = [tool("lost").answers("gone"), user("do")];
    assert_eq!(doubts(&ours, &copy), [(0, Doubt::Unpaired)]);
    let copy = [
        user("do"),
        model("").calls("x", "shell"),
        tool("one").answers("x"),
        tool("two").answers("x"),
    ];
    assert_eq!(doubts(&ours, &copy), [(3, Doubt::Unpaired)]);
    // One whose call is in doubt shares it.
    let ours = [user("hm"), model("").calls("c", "shell"), user("x"), model(long("b"))];
    let copy = [model(long("b")), model("").calls("d", "shell"), tool("y").answers("d")];
    let doubt = Doubt::OutOfPlace { like: 1 };
    assert_eq!(doubts(&ours, &copy), [(1, doubt), (2, doubt)]);
}

// How an earlier system went wrong.

/// Reference B-31 and B-60: restamped rows neither stand behind the answer nor are sorted there.
#[test]
fn restamped_rows_are_not_put_behind_the_answer() {
    let ours: Vec<Line> = (0..6)
        .map(|n| if n % 2 == 0 { user(format!("q{n}")) } else { model(format!("a{n}")) }.at(n))
        .collect();
    let copy: Vec<Line> = ours
        .iter()
        .take(5)
        .enumerate()
        .map(|(n, line)| line.clone().at(9_000_000 - n as i64))
        .collect();
    adds_nothing(&ours, &copy);
}

/// B-32 and B-33: one prompt in two spellings is one prompt, for people and for the model.
#[test]
fn a_prompt_with_a_workspace_line_is_not_a_second_one() {
    adds_nothing(&[user("fix it"), model("fixed")], &[user("[Workspace::v1: /srv/a b]\nfix it")]);
}

/// B-36: a provider's result that lists everything again.
#[test]
fn a_whole_list_that_is_repeated_reaches_the_model_once() {
    let ours = [user("q"), model(long("a")), user("r"), model(long("b"))];
    let copy = [&ours[..], &ours[..]].concat();
    assert_eq!(merged(&ours, &copy).for_model().count(), 4);
}

/// B-37: the copy's turn is not found by the text of an older question.
#[test]
fn an_old_question_is_not_taken_for_the_present_one() {
    let ours = [user("status?"), model("red"), user("status?"), model("green"), user("status?")];
    let copy = [model("green"), user("status?"), model("blue")];
    is(&ours, &copy, &["status?", "red", "status?", "green", "status?", "blue"]);
}

/// B-39: a pending prompt is not there twice, and a repeated one is.
#[test]
fn a_pending_prompt_is_counted() {
    let ours = [user("ok"), model("a"), user("ok")];
    adds_nothing(&ours, &ours);
    is(&ours, &[user("ok"), model("a"), user("ok"), user("ok")], &["ok", "a", "ok", "ok"]);
}

/// B-41: images that the copy has placeholders for.
#[test]
fn an_image_and_its_placeholder_are_one() {
    let ours = [Line { images: 2, ..user("look at these") }, model("I see")];
    adds_nothing(&ours, &[user("look at\n[screenshot]\n[screenshot]\nthese"), model("I see")]);
    adds_nothing(&ours, &[user("[Workspace: /a]\n[screenshot] [screenshot] look at these")]);
    is(
        &ours,
        &[user("[screenshot] look at these"), model("I see")],
        &["look at these", "[screenshot] look at these", "I see"],
    );
    let typed = [user("what does [screenshot] mean?")];
    adds_nothing(&typed, &typed);
}

/// B-42 and W-174: more than a thousand different texts change neither the result nor the speed.
#[test]
fn a_thousand_more_rows_change_nothing() {
    for count in [900, 1_100, 3_000] {
        let ours: Vec<Line> = (0..count)
            .flat_map(|n| [user(format!("q{n}")), model(format!("a{n}")), user("ok")])
            .collect();
        let mut copy: Vec<Line> = ours
            .iter()
            .map(|line| match line.role {
                Role::User => user(format!("[Workspace: /a]\n{}", line.text)),
                _ => line.clone(),
            })
            .collect();
        adds_nothing(&ours, &copy);
        copy.insert(7, model("late"));
        let merged = merged(&ours, &copy);
        assert_eq!((merged.added(), merged.rows[7].source), (1, Source::Copy(7)));
    }
}

/// B-45: what was compacted does not come back to the model.
#[test]
fn what_a_summary_stands_for_does_not_come_back() {
    let ours = [user("[a summary]").summary(), user("9"), model("i")];
    let copy = [
        user("1"),
        model("a"),
        user("2"),
        model("b"),
        user("9"),
        model("i"),
        user("new"),
        model("j"),
    ];
    is(&ours, &copy, &["?1", "?a", "?2", "?b", "[a summary]", "9", "i", "new", "j"]);
    assert_eq!(doubts(&ours, &copy)[0], (0, Doubt::Summarised { by: 0 }));
}

/// B-61: results stand with their calls, not behind the answer.
#[test]
fn a_step_that_ours_lost_stands_before_the_answer() {
    let ours = [user("do"), model("done")];
    let copy = [user("do"), model("").calls("c", "shell"), tool("x").answers("c"), model("done")];
    is(&ours, &copy, &["do", "", "x", "done"]);
}

/// W-166: an answer that only the copy has and that is older than our last row is not lost.
#[test]
fn an_older_answer_is_not_lost() {
    let ours = [user("1").at(10), user("2").at(30), model("b").at(40)];
    let copy = [user("1").at(10), model("a").at(20), user("2").at(30), model("b").at(40)];
    is(&ours, &copy, &["1", "a", "2", "b"]);
}

/// W-175: a text inside another one is another text.
#[test]
fn a_part_of_a_text_is_a_text_of_its_own() {
    let ours = [user("please continue with the tests"), model("ok, done")];
    let copy = [&ours[..], &[user("continue"), model("ok")]].concat();
    is(&ours, &copy, &["please continue with the tests", "ok, done", "continue", "ok"]);
    is(&ours, &copy[2..], &["please continue with the tests", "ok, done", "continue", "ok"]);
}

#[test]
fn several_shortened_notes_are_matched_in_order() {
    let note =
        |n: usize| user(format!("[CONTEXT COMPACTION] {} part {n} and what was said", long("x")));
    let short = user(format!("[CONTEXT COMPACTION] {}", long("x")));
    let ours = [user("a"), note(1), user("b"), note(2), user("c"), note(3)];
    adds_nothing(&ours, &[short.clone(), user("b"), short.clone(), user("c")]);
    adds_nothing(&ours, &[user("a"), short.clone(), user("b"), user("c"), short.clone()]);
    // Two of what ours has once are two.
    let merged = merged(&ours[..3], &[user("a"), short.clone(), short, user("b")]);
    assert_eq!(merged.added(), 1);
}

#[test]
fn nearly_the_same_is_not_the_same() {
    let ours = [user("q"), model(long("answer 1")), tool(long("result 1"))];
    let copy = [user("q"), model(long("answer 2")), tool(long("result 2"))];
    let merged = merged(&ours, &copy);
    assert_eq!(merged.added(), 2);
}
