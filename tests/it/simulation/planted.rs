//! Mistakes planted on purpose, each of which a check of this suite must notice.
//!
//! A row names a mistake of [`Bug`], the smallest check that sees it, and what that check then says:
//! being noticed for another reason would not count. The check is the very function that runs as a
//! test of its own, and passes there. A mistake that is not noticed is a hole in the suite.

use std::any::Any;
use std::panic::{UnwindSafe, catch_unwind};

use bsd::storage::plant::{Bug, plant};

use super::{bounds, clocks, crashes, damage, faults, full_disk, policies, seeds};

/// Plant `bug`, run `check`, and see that it fails with a message that has `expected` in it.
fn assert_caught(bug: Bug, name: &str, check: impl FnOnce() + UnwindSafe, expected: &str) {
    let planted = plant(bug);
    let result = catch_unwind(check);
    drop(planted);
    let Err(panic) = result else {
        panic!("{bug:?} is not noticed by {name}");
    };
    let message = message(&*panic);
    assert!(
        message.contains(expected),
        "{bug:?} makes {name} fail, not with {expected:?}: {message}"
    );
    println!("{bug:?} was caught by {name}: {expected}");
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

macro_rules! caught {
    ($($test:ident: $bug:ident by $module:ident::$check:ident, $expected:literal;)*) => {
        $(
            #[test]
            fn $test() {
                let check = concat!(stringify!($module), "::", stringify!($check));
                assert_caught(Bug::$bug, check, $module::$check, $expected);
            }
        )*
        /// Every mistake that has a row.
        const CAUGHT: &[Bug] = &[$(Bug::$bug),*];
    };
}

caught! {
    an_acknowledgement_before_the_sync:
        AckBeforeSync by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "job 1 is lost";
    a_reply_that_does_not_wait_for_its_record:
        UpdateNotAwaited by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "job 2: priority is 5, not 9";
    a_failed_sync_that_is_ignored:
        SyncErrorIgnored by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "is lost";
    a_failed_sync_that_is_made_again:
        SyncRetried by faults::d31_no_space_when_a_new_segment_is_named_ends_the_log_before_more_is_acknowledged,
        "after a power cut";
    a_failure_that_is_forgotten:
        FailureForgotten by faults::d3_d4_d5_any_operation_that_fails_with_eio_costs_nothing_acknowledged,
        "a put is answered after the log has failed";
    a_short_write_that_is_ignored:
        ShortWriteIgnored by faults::short_and_interrupted_reads_and_writes_change_nothing,
        "it does not begin like a segment";
    a_full_disk_that_counts_as_success:
        FullIsSuccess by faults::d6_d31_any_operation_that_fails_with_enospc_costs_nothing_acknowledged,
        "on a mended disk";
    a_full_disk_that_counts_as_failure:
        FullIsFatal by full_disk::d6_d24_on_a_full_disk_everything_but_put_goes_on,
        "the log has failed";
    a_segment_whose_name_is_not_synced:
        NameNotSynced by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "is what was recovered";
    a_directory_whose_parents_are_not_synced:
        ParentsNotSynced by crashes::d28_a_data_directory_made_with_its_parents_survives_a_power_cut,
        "the directory is still there";
    a_segment_that_is_named_before_it_is_synced:
        NamedBeforeSynced by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "the file ends inside its header";
    a_segment_that_is_left_unsynced:
        RotationUnsynced by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "is what was recovered";
    evidence_that_is_never_given:
        DurableNeverTold by damage::writes_that_were_lost_or_misdirected_are_found_when_later_ones_tell_of_them,
        "a damaged log was opened";
    evidence_that_is_given_too_early:
        DurableTooEarly by policies::without_syncs_a_crash_at_any_operation_leaves_a_prefix,
        "no valid frame header where one must be";
    an_interval_that_goes_by:
        IntervalForgotten by policies::d10_with_an_interval_the_last_write_before_an_idle_spell_is_synced_by_tick_alone,
        "a sync is due";
    a_clean_stop_without_a_sync:
        StopUnsynced by policies::without_syncs_a_clean_stop_makes_everything_durable,
        "is what was recovered";
    a_start_that_believes_the_page_cache:
        StartUnsynced by crashes::what_is_acknowledged_after_a_kill_at_any_operation_survives_a_power_cut,
        "is what was recovered";
    a_start_that_does_not_write_again:
        NotWrittenAgain by faults::d31_no_space_when_a_new_segment_is_named_ends_the_log_before_more_is_acknowledged,
        "is what was recovered";
    a_length_that_is_trusted:
        LengthTrusted by damage::the_open_segment_cut_at_any_length_is_damaged_or_ends_there,
        "out of range";
    records_that_are_not_checked_at_a_start:
        RecordUnchecked by damage::d14_a_bit_flipped_anywhere_in_the_log_stops_the_start_and_is_named,
        "a damaged log was opened";
    records_that_are_not_checked_when_they_are_copied:
        RecordUnchecked by damage::a_body_that_rots_under_a_running_server_is_not_served_and_not_copied,
        "the segment is still as it was";
    a_body_that_is_not_checked_when_it_is_served:
        BodyUnchecked by damage::a_body_that_rots_under_a_running_server_is_not_served_and_not_copied,
        "has another body";
    checksums_that_do_not_know_their_file:
        IdentityUnchecked by damage::a_frame_behind_the_end_is_evidence_only_if_it_belongs_there,
        "no valid frame header where one must be";
    checksums_that_do_not_know_their_place:
        PlaceUnchecked by damage::a_frame_behind_the_end_is_evidence_only_if_it_belongs_there,
        "no valid frame header where one must be";
    frames_that_need_not_follow_each_other:
        ChainUnchecked by damage::a_sound_frame_that_does_not_follow_the_one_before_it_is_damage,
        "a damaged log was opened";
    a_read_error_that_is_taken_for_the_end:
        ReadErrorIsEnd by faults::d3_d4_d5_any_operation_that_fails_with_eio_costs_nothing_acknowledged,
        "is lost";
    a_torn_tail_that_is_appended_to:
        TornTailAppendedTo by damage::a_bit_flipped_behind_all_that_was_acknowledged_costs_nothing,
        "torn.is_some()";
    a_torn_tail_that_is_not_sealed:
        TornTailUnsealed by damage::a_bit_flipped_behind_all_that_was_acknowledged_costs_nothing,
        "a tail is cut once";
    a_stale_spare_that_is_used_as_it_is:
        StaleSpareUsed by damage::a_spare_that_holds_garbage_does_not_make_every_end_a_torn_one,
        "cut-";
    a_missing_segment_that_is_passed_over:
        MissingIgnored by damage::d20_a_missing_segment_stops_the_start_and_is_named,
        "a damaged log was opened";
    a_file_back_from_the_dead_that_is_replayed:
        LeftoverReplayed by damage::a_removed_segment_that_comes_back_changes_nothing,
        "name == old";
    a_stranger_that_is_overwritten:
        NumberTaken by damage::a_strangers_segment_under_the_next_number_is_never_overwritten,
        "the stranger's file was overwritten";
    a_compaction_whose_output_is_not_synced:
        OutputUnsynced by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "segment-0000000001.00001 at byte 64";
    a_compaction_whose_name_is_not_synced:
        OutputNameNotSynced by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "segment 1 of the log is missing";
    a_compaction_that_removes_before_it_has_switched:
        InputsRemovedEarly by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "the log's list names this file, which is not there";
    a_compaction_that_drops_a_delete_too_early:
        TombstoneDropped by seeds::random_lives_and_crashes_lose_and_invent_nothing,
        "should not be there";
    a_compaction_that_drops_what_is_alive:
        LiveRecordDropped by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "is what was recovered";
    a_compaction_that_never_begins:
        GarbageKept by bounds::d9_endless_bury_and_kick_on_a_fixed_set_keeps_the_log_bounded,
        "bytes on the disk";
    ids_that_begin_again:
        IdsReused by bounds::d18_ids_go_on_when_nothing_in_the_log_tells_of_the_last_job_any_more,
        "would be given out again";
    the_order_of_buried_jobs_lost:
        BuriedOrderLost by bounds::d17_the_order_of_buried_jobs_outlives_the_compaction_of_a_kick_between_two_burials,
        "buried [2, 1], found [1, 2]";
    counters_reset_by_a_restart:
        CountersReset by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "counters is";
    a_priority_lost_by_a_restart:
        PriorityLost by crashes::d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged,
        "priority is 0, not";
    a_pause_forgotten_by_a_restart:
        PauseForgotten by clocks::d30_what_is_left_of_delays_and_pauses_is_clamped_when_the_wall_clock_jumps,
        "no jump: time has passed";
    a_delay_that_a_jump_of_the_clock_prolongs:
        DeadlineUnclamped by clocks::d30_what_is_left_of_delays_and_pauses_is_clamped_when_the_wall_clock_jumps,
        "back: the whole delay";
    a_job_that_was_made_in_the_future:
        CreationUnclamped by clocks::d30_what_is_left_of_delays_and_pauses_is_clamped_when_the_wall_clock_jumps,
        "job.created <= now.mono";
}

#[test]
fn every_mistake_that_can_be_planted_is_caught() {
    let source = include_str!("../../../src/storage/plant.rs");
    let all: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.strip_suffix(','))
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .collect();
    assert!(all.len() >= 40, "{all:?}");
    for name in all {
        let is_it = |bug: &Bug| format!("{bug:?}") == name;
        assert!(CAUGHT.iter().any(is_it), "no check is named for {name}");
    }
}
