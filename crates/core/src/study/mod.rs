//! A study and its trials as plain values: what was asked, what was run, how it ended.

mod by_name;
mod causes;
mod disturbance;
mod fidelity;
mod launcher;
mod metrics;
mod plan;
mod request;
mod serve;
mod spike_cause;
mod stopped;
mod trial;

pub use crate::recipe::ParamValue;
pub use by_name::{ByName, Params, SharedText};
pub use causes::with_causes;
pub use disturbance::{
    DISTURBED, NEIGHBOURS, THROUGHPUT_INTERVAL, disturbed, in_peace, interval_of, mark_disturbed, neighbours,
};
pub use fidelity::{Confirmations, Confirmed, Curve, RunSpread, Stop, student_95, with_confirmed};
pub use launcher::{KubernetesLauncher, KubernetesVolume, LauncherSettings, SlurmLauncher, SshLauncher};
pub use metrics::Metrics;
pub use plan::{AccuracyPlan, MeasurePlan, TrainPlan, TrialPlan};
pub use request::StudyRequest;
pub use serve::{ServeMode, ServePlan};
pub use spike_cause::SpikeCause;
pub use stopped::{PLANNED_STEPS, bound_of, expected_end_deviation_of, expected_end_of};
pub use trial::{FailReason, Phase, Trial, TrialNumber, TrialState};
