//! What `plan` and `search` need to predict a study: the model's dimensions, the lengths of the data's rows, and what is known
//! of this machine: a GPU's data sheet, or the CPU's ceilings, measured once and kept in the results database.

mod grounds;
mod predicted_model;
mod stored;
mod trial_device;

pub(super) use grounds::Grounds;
pub(super) use predicted_model::{PredictedModel, check_predicted};
pub(super) use stored::of_stored;
pub(super) use trial_device::{TrialDevice, host_sheet, precisions_of};
