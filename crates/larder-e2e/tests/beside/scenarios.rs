//! The scenarios, in the order in which they run.

mod delivery;
mod deploy;
mod disk;
mod faults;
mod hooks;
mod identity;
mod kubelet;
mod measures;
mod soak;
mod sub_paths;

use crate::Scenario;

macro_rules! scenarios {
    ($($module:ident::$name:ident,)*) => {
        [$(Scenario {
            name: stringify!($name),
            on_demand: ["measures", "soak"].contains(&stringify!($module)),
            run: |bed| Box::pin($module::$name(bed)),
        }),*]
    };
}

pub(crate) fn all() -> impl Iterator<Item = Scenario> {
    let all = scenarios![
        kubelet::a_touch_makes_the_kubelet_write_at_once,
        kubelet::torn_down_volume_leaves_the_container_without_its_files,
        identity::node_may_touch_its_own_pods_and_no_more,
        identity::account_under_the_policy_may_touch_and_nothing_else,
        identity::account_without_a_bound_token_may_not_touch,
        deploy::account_as_deployed_delivers,
        deploy::daemon_set_delivers_from_its_container,
        deploy::missing_right_is_named_and_not_asked_for_again,
        delivery::change_arrives_with_one_touch,
        delivery::burst_of_changes_ends_with_the_last_content,
        delivery::touch_serves_all_volumes_of_a_pod,
        delivery::required_object_that_is_missing_is_no_reason_to_touch,
        delivery::optional_object_comes_changes_and_goes,
        delivery::pod_whose_first_mount_waits_is_not_touched,
        delivery::container_that_waits_for_its_environment_starts_after_a_touch,
        delivery::immutable_object_made_again_waits_for_the_last_of_its_pods,
        delivery::volume_with_all_annotations_causes_no_loop,
        delivery::mirror_pod_is_never_touched,
        delivery::what_only_a_restart_brings_is_listed_until_then,
        delivery::pod_that_crashes_gets_its_volume_and_no_restart,
        delivery::touches_change_nothing_of_a_pod_with_probes,
        delivery::secret_arrives_and_nothing_stays_open,
        disk::volume_that_is_not_visible_is_unverified,
        disk::later_mounts_are_visible_with_propagation,
        disk::verification_never_keeps_a_volume_from_being_unmounted,
        disk::volume_that_was_torn_down_under_its_container_is_detached,
        disk::larder_cannot_write_to_volumes_that_were_mounted_later,
        hooks::runtime_and_control_groups_name_the_same_main_process,
        hooks::signal_is_sent_once_after_the_bytes,
        hooks::container_that_was_restarted_after_the_swap_gets_no_signal,
        sub_paths::sub_path_of_a_config_map_shows_each_change,
        sub_paths::sub_path_of_a_secret_keeps_owner_and_mode,
        sub_paths::sub_path_of_a_pod_that_does_not_ask_is_pinned_until_it_does,
        sub_paths::sub_path_follows_through_restarts,
        sub_paths::sub_paths_of_all_shapes_follow,
        sub_paths::sub_path_whose_key_is_gone_or_comes_later,
        sub_paths::sub_path_that_the_container_has_covered_is_left_alone,
        sub_paths::sub_path_survives_a_killed_larder,
        sub_paths::hook_of_a_sub_path_fires_once_after_it_can_be_read,
        sub_paths::ephemeral_container_is_no_obstacle_to_sub_paths,
        deploy::daemon_set_without_the_component_says_what_is_missing,
        deploy::daemon_set_with_the_component_replaces_mounts_by_sub_path,
        faults::kubelet_that_caches_delivers_after_the_ttl,
        faults::kubelet_that_asks_each_time_delivers_at_once,
        faults::kubelet_that_stands_still_is_touched_three_times_at_most,
        faults::kubelet_that_is_down_is_not_touched,
        faults::policy_that_refuses_is_shown_and_asked_once,
        faults::rotated_certificate_costs_no_watch_and_shows_no_error,
        measures::measure_changes_with_and_without_larder,
        measures::measure_the_cost_of_a_touch,
        measures::measure_pods_that_share_a_config_map,
        measures::measure_changes_by_sub_path,
        measures::measure_pods_that_share_a_sub_path,
        soak::soak_of_fifty_pods,
        soak::renewed_token_is_seen_by_sub_path,
    ];
    all.into_iter()
}
