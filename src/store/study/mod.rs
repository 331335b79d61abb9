//! Parts of a store that have the tables of studies.

pub(super) mod baselines;
pub(super) mod definitions;
pub(super) mod facts;
pub(super) mod identity;
pub(super) mod inputs;
pub(super) mod overview;
pub(super) mod requests;
pub(super) mod searches;
pub(super) mod spent_times;
pub(super) mod studies;
mod study_id;
pub(super) mod warm_starts;
pub(super) mod widenings;

pub use inputs::{DEVICE, InputRecord, TARGET_DEVICE, TARGET_STACK};
pub use overview::{FINDS_LENGTH, PRICE, StudyOverview};
pub use requests::{RequestId, RequestOutcome, StoredRequest};
pub use searches::{EndingRecord, SearchBudget, SearchStage, Spending};
pub use spent_times::SpentTime;
pub use studies::{OpenStudy, Runner};
pub use study_id::StudyId;
