//! The built-in tools and the supervisor, observed from outside: their results, the files they
//! leave, and the processes that are still there.
//!
//! The binary has a main of its own because it is also the supervisor under test, and the server
//! that a test kills.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub
)]

mod bench;
mod command;
mod edit;
mod ending;
mod escape;
mod list;
mod output;
mod read;
mod search;
mod server;
mod write;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial, run};

/// Names each test once; one that is missing here is reported as unused code.
macro_rules! trials {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($(Trial::test(concat!(stringify!($module), "::", stringify!($name)), || {
            bench::block_on($module::$name());
            Ok(())
        })),*),*]
    };
}

fn main() -> ExitCode {
    if let Some(code) = everturn_agent::supervisor::dispatch() {
        return code;
    }
    if let Some(code) = server::dispatch() {
        return code;
    }
    let trials = trials! {
        command {
            both_streams_and_the_exit_code_come_back,
            a_success_is_one,
            there_is_no_input_and_no_terminal,
            it_runs_where_it_is_told,
            a_folder_outside_is_refused,
            bad_arguments_are_refused_with_a_reason,
            a_signal_is_named,
            the_idempotency_key_is_in_the_environment,
            secrets_are_not,
            many_run_at_once,
            a_missing_supervisor_is_an_error_with_a_hint,
            a_helper_that_is_none_is_noticed,
        }
        output {
            a_long_output_keeps_head_and_tail,
            pieces_are_small_and_their_sum_is_bounded,
            a_gibibyte_takes_no_memory,
            a_character_cut_in_two_is_whole_again,
            slow_viewers_hold_the_command_back,
            a_late_viewer_misses_nothing,
            a_stop_does_not_wait_for_viewers,
            viewers_that_leave_hold_nothing_back,
            a_closed_output_is_not_the_end,
        }
        ending {
            the_time_limit_ends_what_left_the_session,
            a_stop_lets_the_command_say_goodbye,
            a_stop_before_the_start_runs_nothing,
            the_deadline_kills_at_once,
            a_moved_deadline_keeps_it_alive,
            a_deadline_moves_while_viewers_are_slow,
            a_deadline_in_the_past_runs_nothing,
            a_dropped_call_ends_at_once,
            a_child_left_behind_does_not_hold_the_call,
            a_child_that_is_nearly_done_may_finish,
            a_killed_supervisor_is_reported_and_cleaned_up_after,
            a_suspended_supervisor_is_woken_for_a_stop,
            a_supervisor_that_cannot_act_is_overruled,
            a_command_that_keeps_changing_its_id_is_caught,
            orphans_are_reaped_while_it_runs,
            the_death_of_the_server_ends_everything,
        }
        escape {
            dots_and_absolute_paths,
            links_that_lead_out,
            links_that_stay_inside_work,
            a_folder_swapped_for_a_link_while_in_use,
            a_folder_swapped_for_a_link_while_walked,
            paths_that_are_none,
        }
        read {
            lines_and_pages,
            a_long_line_is_cut_and_pages_lose_nothing_else,
            binary_files_are_refused,
            strange_bytes_are_shown_as_such,
            what_is_no_file_is_refused_without_waiting,
            bad_arguments_are_refused_with_a_reason,
        }
        write {
            makes_folders_and_replaces,
            keeps_the_mode_and_the_link,
            what_is_no_file_is_refused,
            a_reader_sees_old_or_new_content,
            a_kill_leaves_old_or_new_content,
            a_full_disk_is_typed_and_changes_nothing,
            a_stopped_turn_writes_nothing,
            withheld_at_the_last_moment_leaves_nothing_behind,
            bad_arguments_are_refused_with_a_reason,
        }
        edit {
            exactly_once,
            everywhere_if_asked,
            a_file_that_changed_meanwhile_is_left_alone,
            what_cannot_be_edited_is_refused,
            bad_arguments_are_refused_with_a_reason,
        }
        list {
            in_order_without_what_is_ignored,
            depth_and_glob,
            limits_are_said,
            bad_arguments_are_refused_with_a_reason,
        }
        search {
            finds_lines,
            leaves_out_what_it_should,
            limits_are_said,
            bad_arguments_are_refused_with_a_reason,
        }
    };
    run(&Arguments::from_args(), trials).exit_code()
}
