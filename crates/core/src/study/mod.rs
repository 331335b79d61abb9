//! A study and its trials as plain values: what was asked, what was run, how it ended.

mod by_name;
mod fidelity;
mod launcher;
mod metrics;
mod params;
mod plan;
mod request;
mod trial;

pub use by_name::{ByName, SharedText};
pub use fidelity::{Confirmed, Curve, Stop, with_confirmed};
pub use launcher::{KubernetesLauncher, KubernetesVolume, LauncherSettings, SlurmLauncher, SshLauncher};
pub use metrics::Metrics;
pub use params::{ParamValue, Params};
pub use plan::{MeasurePlan, TrainPlan, TrialPlan};
pub use request::StudyRequest;
pub use trial::{FailReason, Phase, Trial, TrialNumber, TrialState};
