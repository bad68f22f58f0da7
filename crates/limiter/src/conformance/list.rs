//! The list of all cases, with the algorithms that each applies to.

/// Calls the macro `$call` for a module of cases (or for `all_modules`), with `$with` in brackets,
/// the name of the module, and its cases with their rules, grouped by algorithm.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    (all_modules, $call:tt, $with:tt) => {
        $crate::conformance_cases! { every_algorithm, $call, $with }
        $crate::conformance_cases! { against_memory, $call, $with }
        $crate::conformance_cases! { each_alone, $call, $with }
        $crate::conformance_cases! { reports, $call, $with }
        $crate::conformance_cases! { refunds, $call, $with }
        $crate::conformance_cases! { overrides, $call, $with }
        $crate::conformance_cases! { request_ids, $call, $with }
        $crate::conformance_cases! { projects, $call, $with }
        $crate::conformance_cases! { fixed_window, $call, $with }
        $crate::conformance_cases! { sliding_window_log, $call, $with }
        $crate::conformance_cases! { sliding_window_counter, $call, $with }
        $crate::conformance_cases! { buckets, $call, $with }
        $crate::conformance_cases! { promise, $call, $with }
        $crate::conformance_cases! { changed_rules, $call, $with }
        $crate::conformance_cases! { many_rules, $call, $with }
    };
    (every_algorithm, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with every_algorithm;
            all {
                ids_do_not_share(per(1, Micros::from_secs(1)))
                remaining_retry_after_and_reset_agree(per(2, Micros::from_secs(60)))
                the_whole_limit_fits_and_one_more_is_impossible(per(7, Micros::from_secs(60)))
                retry_after_is_exact(per(5, Micros::from_secs(7)))
                peeking_changes_nothing(per(3, Micros::from_secs(60)))
                the_shortest_window_works(per(3, Micros::from_millis(1)))
                the_longest_window_works(per(3, Micros::from_secs(366 * 86_400)))
                the_year_2100_works(per(3, Micros::from_secs(60)))
                every_key_expires(per(3, Micros::from_secs(60)))
                a_denial_takes_nothing(per(5, Micros::from_secs(60)))
                a_clock_that_goes_back_a_day_blocks_nobody_for_longer_than_a_window(per(3, Micros::from_secs(60)))
            }
        }
    };
    (against_memory, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with against_memory;
            all { several_hits_of_one_key(against_memory::ten) }
        }
    };
    (each_alone, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with each_alone;
            all {
                a_denied_hit_takes_the_remaining_units(per(5, Micros::from_secs(60)))
                an_allowed_hit_takes_its_cost(per(5, Micros::from_secs(60)))
            }
        }
    };
    (reports, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with reports;
            all {
                a_report_counts_in_full_above_the_limit(reports::ten)
                debt_is_bounded(reports::owing_three)
                a_refund_does_not_erase_debt(reports::ten)
                a_report_counts_beside_a_denied_take(reports::ten)
                reports_of_one_step_add_up(reports::ten)
                takes_of_one_key_are_decided_in_order(reports::ten)
                each_alone_is_decided_in_order(reports::ten)
                a_lowered_debt_limit_forgives_the_excess(reports::ten)
            }
            sliding_window_log {
                a_log_denies_a_report_that_it_counts_in_part(reports::more_than_a_request_writes)
            }
        }
    };
    (overrides, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with overrides;
            all {
                an_equal_grant_is_told(overrides::three)
                a_record_is_gone_with_its_last_part(overrides::three)
                ids_of_any_text_have_their_own_overrides(overrides::three)
                random_steps_agree_with_memory(overrides::three)
                random_steps_agree_with_memory_in_debt(overrides::owing_three)
            }
            mixed {
                a_rule_keeps_its_overrides_to_itself(overrides::several)
            }
        }
    };
    (refunds, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with refunds;
            all {
                a_denial_and_a_peek_refund_nothing(per(5, Micros::from_secs(60)))
                nothing_is_refunded_once_windows_have_passed(per(5, Micros::from_secs(60)))
                a_second_refund_changes_nothing(per(5, Micros::from_secs(60)))
            }
            mixed {
                every_hit_of_a_request_is_refunded(|_| refunds::one_of_each())
            }
            buckets {
                units_refilled_since_are_not_refunded(refunds::five_and_one_a_second)
            }
            fixed_window {
                attempts_at_a_full_window_are_not_refunded(per(5, Micros::from_secs(60)))
            }
            sliding_window_counter {
                a_refunded_counter_starts_afresh_after_two_windows(per(5, Micros::from_secs(60)))
            }
        }
    };
    (request_ids, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with request_ids;
            all {
                the_same_request_takes_its_units_once(per(5, Micros::from_secs(60)))
                a_reply_is_repeated_8_times(per(5, Micros::from_secs(60)))
                another_request_under_the_id_is_an_error(per(5, Micros::from_secs(60)))
                users_do_not_share_ids(per(5, Micros::from_secs(60)))
                a_denial_is_decided_afresh(per(5, Micros::from_secs(60)))
                a_look_remembers_nothing(per(5, Micros::from_secs(60)))
                a_reply_is_forgotten_after_its_time(per(5, Micros::from_secs(366 * 86_400)))
                an_id_of_64_bytes_of_any_text_works(per(5, Micros::from_secs(60)))
                a_replay_has_no_receipts(per(5, Micros::from_secs(60)))
                a_replay_asks_no_override(overrides::three)
            }
            mixed {
                every_decision_is_repeated(|_| request_ids::one_of_each())
                a_change_of_the_rules_does_not_take_twice(|_| request_ids::one_of_each())
            }
        }
    };
    (projects, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with projects;
            all {
                projects_share_no_units(projects::two)
                a_ban_and_a_reset_stay_in_their_project(projects::two)
                a_request_id_counts_once_in_each_project(projects::two)
                units_are_refunded_in_their_project(projects::two)
            }
            mixed {
                a_project_has_its_own_rules(projects::two)
                ids_of_any_text_stay_in_their_project(projects::two)
            }
        }
    };
    (fixed_window, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with fixed_window;
            fixed_window {
                a_full_window_denies_and_goes_on_counting(fixed_window::five_a_minute)
                windows_are_aligned_to_unix_time(fixed_window::five_a_minute)
                two_limits_fit_around_a_boundary(fixed_window::five_a_minute)
                the_count_starts_again_in_the_next_window(fixed_window::five_a_minute)
                ttl_and_reset_shrink(fixed_window::five_a_minute)
                retry_after_is_exact(fixed_window::five_a_minute)
                ids_do_not_share(fixed_window::five_a_minute)
                windows_of_a_second(per(1, Micros::from_secs(1)))
                numbers_match_gorl(per(3, Micros::from_secs(60)))
                windows_of_a_millisecond(per(2, Micros::from_millis(1)))
                a_denied_cost_takes_nothing(fixed_window::five_a_minute)
                a_cost_above_the_limit_is_impossible(fixed_window::five_a_minute)
                a_peek_at_the_limit_takes_nothing(fixed_window::five_a_minute)
                a_clock_that_steps_back_mints_nothing(fixed_window::five_a_minute)
                a_clock_that_jumps_back_blocks_nobody_for_longer_than_a_window(fixed_window::five_a_minute)
                a_count_of_another_window_with_the_same_index_is_not_taken(per(5, Micros::from_secs(277 * 86_400)))
            }
        }
    };
    (sliding_window_log, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with sliding_window_log;
            sliding_window_log {
                the_sixth_is_denied(sliding_window_log::five_a_minute)
                the_wait_ends_when_the_oldest_entry_leaves(sliding_window_log::five_a_minute)
                there_is_no_boundary_burst(sliding_window_log::five_a_minute)
                a_thousand_in_one_millisecond(sliding_window_log::five_a_minute)
                the_log_lives_two_windows_from_the_last_request(sliding_window_log::five_a_minute)
                the_log_expires_after_two_windows(sliding_window_log::five_a_minute)
                never_more_entries_than_the_limit(per(100, Micros::from_secs(60)))
                retry_after_is_exact_to_the_millisecond_of_the_entry(sliding_window_log::five_a_minute)
                a_cost_waits_for_as_many_entries(sliding_window_log::five_a_minute)
                a_large_cost_writes_as_many_entries(per(5_000, Micros::from_secs(60)))
                a_cost_above_the_limit_is_impossible(sliding_window_log::five_a_minute)
                a_peek_at_the_limit_takes_nothing(sliding_window_log::five_a_minute)
                a_clock_that_steps_back_mints_nothing(sliding_window_log::five_a_minute)
                hostile_ids_are_ids(sliding_window_log::five_a_minute)
            }
        }
    };
    (sliding_window_counter, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with sliding_window_counter;
            sliding_window_counter {
                numbers_match_gorl(per(5, Micros::from_secs(60)))
                windows_of_a_tenth_of_a_second(per(2, Micros::from_millis(100)))
                the_count_starts_afresh_after_two_idle_windows(per(5, Micros::from_secs(60)))
                retry_after_over_two_windows_is_exact(per(10, Micros::from_secs(60)))
                a_full_previous_window_weighs_less_with_time(per(5, Micros::from_secs(60)))
            }
        }
    };
    (buckets, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with buckets;
            buckets {
                a_burst_then_one_a_second(buckets::refilled(1, 5))
                refilled_to_the_burst_and_no_further(buckets::refilled(1, 5))
                no_part_of_a_unit_is_lost(buckets::refilled(10, 100))
                a_large_burst_at_one_instant(buckets::refilled(25_000, 25_000))
                costs_above_one(buckets::refilled(1, 5))
                a_cost_above_the_burst_is_impossible(buckets::refilled(1, 5))
                no_refill_by_expiry(buckets::refilled(1, 1_000))
                the_pattern_matches_gorl(per(5, Micros::from_secs(5)))
                partly_refilled(per(3, Micros::from_secs(3)))
                a_burst_apart_from_the_limit(buckets::refilled(2, 6))
                three_million_a_second_is_exact(buckets::refilled(3_000_000, 3_000_000))
                an_odd_number_a_day_is_exact(per(999_983, Micros::from_secs(86_400)))
                the_largest_and_slowest_are_exact(per(1_000_000_000, Micros::from_secs(366 * 86_400)))
                a_clock_that_steps_back_mints_and_burns_nothing(buckets::refilled(1, 5))
                a_clock_that_jumps_back_a_day_blocks_nobody_for_longer_than_a_window(buckets::refilled(1, 5))
            }
            leaky_bucket {
                requests_are_spaced_evenly(per(5, Micros::from_secs(5)))
            }
        }
    };
    (promise, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with promise;
            all {
                never_more_than_the_promise(promise::promised)
                time_that_steps_back_mints_nothing(promise::promised)
            }
        }
    };
    (changed_rules, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with changed_rules;
            all {
                a_lowered_limit_holds_at_once(per(10, Micros::from_secs(60)))
                a_raised_limit_grants_what_it_adds(per(10, Micros::from_secs(60)))
                a_shorter_window_forgets_sooner_and_a_longer_one_later(per(10, Micros::from_secs(60)))
                a_changed_algorithm_starts_afresh(per(10, Micros::from_secs(60)))
                many_changes_do_not_add_up(per(10, Micros::from_secs(60)))
            }
            gcra {
                a_lowered_burst_announces_waits_that_hold(changed_rules::one_a_second(10))
            }
        }
    };
    (many_rules, [$($call:tt)+], $with:tt) => {
        $($call)+! { $with many_rules;
            mixed {
                a_denial_by_one_rule_takes_nothing_from_the_others(|_| many_rules::three_rules())
                many_clients_neither_lose_nor_create_units(|_| many_rules::three_rules())
                a_shadow_rule_counts_but_denies_nothing(|_| many_rules::shadow_and_real())
                quotas_deny_a_request_together(|_| many_rules::two_quotas())
                the_closest_override_applies(|_| many_rules::with_overrides())
                the_default_rule_applies_where_no_other_is_enforced(|_| many_rules::free_and_trial())
                the_default_rule_by_resource_and_user(|_| many_rules::by_resource_and_user())
                a_jump_for_a_short_window_is_a_step_back_for_a_long_one(|_| many_rules::long_and_short())
                sixty_four_rules_on_one_request(|_| many_rules::sixty_four())
                hostile_values_never_reach_another_state(|_| many_rules::by_tenant_and_user())
            }
        }
    };
}
