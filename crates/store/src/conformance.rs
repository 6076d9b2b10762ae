//! The suite that every backend runs: what a store promises, observed from outside.
//!
//! A backend's test lists [`cases`] and runs each on a fresh store of its own (`libtest-mimic` shows
//! them one by one). Cases speak only the contract: [`crate::Store`] and [`crate::Read`]. Names of
//! promises are those of DESIGN §2.

// A failed expectation is how a case fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

mod admission;
mod claims;
mod feed;
mod imports;
mod interruptions;
mod late;
mod nodes;
mod prompts;
mod retention;
mod sessions;
mod turns;
mod world;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Clock;
use crate::store::Store;

pub use world::{ManualClock, World};

/// Makes stores to be tested.
#[async_trait]
pub trait Factory: Send + Sync {
    /// A fresh, empty store that takes time and ids from this clock. What it needs on disk lives as
    /// long as the factory.
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store>;
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One thing that a store promises.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: `area::what_holds`.
    pub name: &'static str,
    run: fn(World) -> Running,
}

impl Case {
    /// Runs the case on a fresh store.
    ///
    /// # Panics
    /// Where the promise does not hold.
    pub async fn run(&self, factory: &dyn Factory) {
        let world = World::open(factory).await;
        (self.run)(world).await;
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

macro_rules! cases {
    ($($area:ident { $($case:ident,)* })*) => {
        /// Every case.
        #[must_use]
        pub fn cases() -> Vec<Case> {
            vec![$($(Case {
                name: concat!(stringify!($area), "::", stringify!($case)),
                run: |world| Box::pin($area::$case(world)),
            },)*)*]
        }
    };
}

cases! {
    admission {
        an_accepted_input_is_read_back_whole,
        the_same_identity_gets_the_same_receipt,
        another_payload_is_a_conflict,
        identity_outlives_the_session,
        the_queue_is_in_order_of_acceptance,
        an_interrupt_goes_first_and_stops_the_turn,
        modes_are_refused_where_they_make_no_sense,
        a_full_queue_refuses_and_keeps_nothing,
    }
    claims {
        a_claim_makes_a_turn,
        a_held_session_is_not_claimed_again,
        an_expired_lease_is_taken_and_the_epoch_grows,
        another_boot_frees_every_lease,
        proof_of_death_frees_a_lease,
        an_empty_queue_gives_the_lease_up,
        a_batch_takes_what_people_queued,
        a_run_that_was_handed_over_is_gone_on_with,
        an_admission_may_claim_at_once,
        a_renewal_moves_all_leases_of_a_node_and_tells_of_stops,
        a_stop_names_its_turn_and_empties_the_queue,
        a_session_says_what_it_does,
    }
    turns {
        a_turn_becomes_messages_and_ends_once,
        silence_is_an_answer_too,
        a_failure_keeps_what_was_said,
        after_a_stop_only_the_end_can_be_written,
        records_are_written_all_or_none,
        a_stale_writer_leaves_no_trace,
        a_call_has_an_intent_before_and_a_result_after,
        a_running_call_cannot_be_handed_over,
        another_runs_call_is_out_of_reach,
        a_repeated_write_is_known_again,
        a_turn_under_way_is_seen_as_it_is,
    }
    prompts {
        an_approval_waits_for_its_answer,
        a_numbered_write_is_known_again,
        an_answer_must_fit_its_prompt,
        a_prompt_runs_out,
        an_end_withdraws_what_is_open,
        a_prompt_belongs_to_its_turn,
        a_choice_may_last,
    }
    interruptions {
        streamed_text_stands_directly_above_the_marker,
        the_cause_follows_the_evidence,
        a_living_holder_is_left_alone,
        the_first_to_resolve_a_run_is_the_only_one,
        a_continuation_goes_ahead_and_ends_its_chain,
        a_chain_that_is_used_up_ends_interrupted,
        policy_decides_whether_to_go_on,
        a_stop_wins_over_an_interruption,
        a_batch_is_continued_as_a_whole,
        a_person_takes_a_continuations_place,
        a_claimed_continuation_stays,
        a_person_decides_about_what_is_parked,
        a_person_may_discard,
        a_withdrawn_continuation_leaves_its_input_interrupted,
        calls_are_left_as_what_is_known_of_them,
        after_a_power_loss_numbering_goes_on_above,
        nothing_reuses_a_number_before_the_interruption_is_recorded,
        what_waits_for_a_viewer_goes_on_once_and_in_time,
        what_was_parked_for_a_passing_reason_is_decided_again,
        a_continuation_that_cannot_begin_spends_no_attempt,
        an_interruption_that_nobody_decides_about_is_closed,
        a_turn_is_bound_to_its_tools_and_its_workspace,
        what_a_store_ended_spends_no_attempt,
        how_a_matter_was_closed_is_said,
        a_request_is_sent_again_in_one_step,
        what_is_said_later_takes_the_place_of_a_late_continuation,
        a_continuation_runs_on_the_model_of_its_turn,
        a_late_end_never_beats_the_interruption,
        what_goes_on_in_the_middle_of_a_message_says_so,
    }
    late {
        what_arrives_late_stands_above_the_marker,
        what_is_still_arriving_costs_nothing,
        an_empty_journal_is_given_up_after_twelve_looks,
        an_old_matter_is_given_up_unread,
        what_a_tool_returned_late_is_its_result,
        a_deposit_is_for_whom_it_is_meant_and_bounded,
        the_owner_looks_and_nobody_else,
        what_came_before_the_record_is_found_by_it,
        what_was_committed_after_all_is_not_late,
        nothing_of_it_stays,
    }
    feed {
        offsets_and_seqs_have_no_gaps,
        what_was_published_is_what_is_read,
        the_sink_is_told_before_the_caller,
        any_window_of_a_journal_can_be_read,
        an_old_picture_of_a_run_reads_the_new_journal,
        what_is_not_there_reads_as_nothing,
        numbers_are_reserved_ahead,
        inputs_in_any_mode_say_how_they_came,
        ids_grow_whatever_the_clock_does,
    }
    retention {
        each_range_becomes_one_snapshot,
        a_feed_explains_every_number,
        every_cursor_is_answered_with_the_rest,
        pruning_again_or_from_everywhere_changes_nothing,
        what_is_not_over_keeps_its_events,
        a_deleted_session_is_passed_over,
        a_long_range_grows_over_many_transactions,
        a_snapshot_is_of_bounded_size,
        many_runs_are_gone_through_in_the_order_of_their_ends,
    }
    sessions {
        a_session_is_read_back_whole,
        a_patch_merges_and_names_its_revision,
        a_closed_session_is_opened_by_a_person,
        a_deletion_leaves_a_tombstone_and_nothing_else,
        principals_never_meet,
        the_limit_on_sessions_counts_living_ones,
        lists_are_walked_newest_first,
        text_is_found_whatever_its_case,
        a_transcript_is_read_in_windows,
        any_text_survives_everywhere,
        what_needs_a_node_is_listed_page_by_page,
        receipts_are_forgotten_in_the_end,
        an_input_is_withdrawn_by_its_sender,
        viewers_are_known_by_node,
    }
    imports {
        an_imported_run_reads_like_any_other,
        an_import_is_known_again,
        a_run_of_the_session_itself_is_here_already,
        an_import_collides_with_nothing,
        an_import_is_whole_or_not_there,
        an_imported_ending_is_only_told,
    }
    nodes {
        nodes_come_and_go,
        tokens_are_found_by_their_hash,
        one_refusal_touches_no_other_operation,
    }
}
