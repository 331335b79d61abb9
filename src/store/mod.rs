//! The results database: the only SQL of the program.
//!
//! One SQLite file holds any number of studies. [`Store`] opens and closes it and begins its transactions. Everything
//! else is done by the parts behind its doors, such as `store.trials()` or `store.profiles()`: each borrows the store and
//! has the tables of one subject. `docs/database.md` lists tables and views, which are a public interface: people and
//! other programs query them.
//!
//! A process may be killed at any moment: a trial that was committed stays, a trial that was running
//! is handed back to be repeated, and the file passes `pragma integrity_check`.

mod baselines;
mod ceilings;
mod definitions;
mod doors;
mod error;
mod evaluations;
mod facts;
mod files;
mod foreign_file;
mod held_out_losses;
mod history;
mod identity;
mod import;
mod inference_benches;
mod inheritance;
mod inputs;
mod kernel_forms;
mod lock;
mod lost_attempts;
mod measurements;
mod named;
mod open;
mod optuna;
mod overview;
mod permission;
mod precision_decisions;
mod predictions;
mod profiles;
mod proposals;
mod query;
mod record;
mod repeats;
mod reports;
mod requests;
mod rescue;
mod row;
mod rows;
mod searches;
mod spent_times;
mod state;
mod steps;
mod stops;
mod studies;
mod trackio;
mod trial_details;
mod trials;
mod vacuum;
mod warm_starts;
mod widenings;

pub use ceilings::CeilingRecord;
pub use error::{QueryError, StoreError};
pub use held_out_losses::HeldOutRecord;
pub use history::{TrialRun, TrialTimes};
pub use import::{ImportOutcome, ImportWish, Imported, import_studies};
pub use inference_benches::{InferenceRecord, MeasuredForm, RequestRecord};
pub use inheritance::Variants;
pub use inputs::{InputRecord, TARGET_DEVICE, TARGET_STACK};
pub use kernel_forms::{KernelsOfTrials, TrialKernels};
pub use lock::StudyLock;
pub use lost_attempts::LostAttempt;
pub use measurements::Measurements;
pub use named::NamedQuery;
pub use open::Store;
pub use optuna::{OptunaFile, OptunaStudy, RecommendedTrial, write_optuna};
pub use overview::{FINDS_LENGTH, StudyOverview};
pub use precision_decisions::PrecisionRecord;
pub use predictions::PredictionRecord;
pub use profiles::{
    DiagnosisRecord, OpRecord, PhaseRecord, ProfileId, ProfileRecord, SampleRecord, StoredProfile, TrialFinding,
};
pub use query::{RowSink, SqlValue};
pub use record::{DataSetRecord, EvaluationRecord, MachineRecord, ModelRecord, StepRecord, StudyRecord};
pub use repeats::Confirmations;
pub use requests::{RequestId, RequestOutcome, StoredRequest};
pub use searches::{EndingRecord, SearchBudget, SearchStage, Spending};
pub use spent_times::SpentTime;
pub use studies::{OpenStudy, Runner, StudyId};
pub use trackio::{TrackioFile, TrackioRow, TrackioRun};
pub use trial_details::{PhaseSteps, TrialDetail};
pub use vacuum::{Vacuumed, vacuum};
