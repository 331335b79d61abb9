//! Commands that show a study of the results database, or follow it.

mod answers;
pub(super) mod compare;
pub(super) mod costs;
pub(super) mod dashboard;
pub(super) mod delete;
pub(super) mod explain;
pub(super) mod pareto;
pub(super) mod report;
pub(super) mod scaling;
pub(super) mod show;
pub(super) mod stored_profile;
pub(super) mod studies;
pub(super) mod track;
