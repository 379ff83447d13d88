//! The common parts of all workers, in either mode: the plan of the pod, the inbox, the inputs of its parts, and the
//! published status.
//!
//! ```text
//!  plan: parts, and what each reads ─┐
//!  inbox: changes ───────────────────┼─► worker ─► status, journal
//!  gathering: fetched inputs ────────┘
//! ```

mod fetch;
pub(crate) mod gathering;
pub(crate) mod inbox;
pub(crate) mod inputs;
pub(crate) mod journal;
pub(crate) mod kept_pods;
pub(crate) mod max_ages;
pub(crate) mod plan;
pub(crate) mod pod_parts;
pub(crate) mod pod_statuses;
pub(crate) mod readers;
pub(crate) mod steps;
pub(crate) mod sub_path_settings;
pub(crate) mod sub_paths;
pub(crate) mod worker;
