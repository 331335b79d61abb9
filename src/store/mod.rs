//! The results database: the only SQL of the program.
//!
//! One SQLite file holds any number of studies. [`Store`] opens and writes it; `docs/database.md` lists its
//! tables and views, which are a public interface: people and other programs query them.
//!
//! What is promised when the process is killed at any moment: a trial that was committed stays, a trial that was running
//! is handed back to be repeated, and the file passes `pragma integrity_check`.

mod baselines;
mod confirmation;
mod definitions;
mod detail;
mod diagnosis;
mod doors;
mod error;
mod facts;
mod fidelity;
mod files;
mod foreign_file;
mod held_out;
mod history;
mod identity;
mod import;
mod infer_bench;
mod inheritance;
mod inputs;
mod kernels;
mod lock;
mod loss;
mod measurement;
mod named;
mod open;
mod optuna;
mod overview;
mod permission;
mod precision;
mod prediction;
mod profile;
mod query;
mod record;
mod requests;
mod rescue;
mod row;
mod rows;
mod run;
mod searches;
mod spent_times;
mod state;
mod step;
mod studies;
mod timeline;
mod trackio;
mod trial;
mod vacuum;
mod warm_starts;
mod widenings;

pub use confirmation::Confirmations;
pub use detail::{PhaseSteps, TrialDetail};
pub use diagnosis::TrialFinding;
pub use error::{QueryError, StoreError};
pub use held_out::HeldOutRecord;
pub use import::{ImportOutcome, ImportWish, Imported};
pub use infer_bench::{InferenceRecord, MeasuredForm, RequestRecord};
pub use inheritance::Variants;
pub use inputs::{InputRecord, TARGET_DEVICE, TARGET_STACK};
pub use kernels::{KernelsOfTrials, TrialKernels};
pub use lock::StudyLock;
pub use loss::LostAttempt;
pub use measurement::Measurements;
pub use named::NamedQuery;
pub use open::Store;
pub use optuna::{OptunaFile, OptunaStudy, RecommendedTrial};
pub use overview::{FINDS_LENGTH, StudyOverview};
pub use precision::PrecisionRecord;
pub use prediction::{CeilingRecord, PredictionRecord};
pub use profile::{
    DiagnosisRecord, OpRecord, PhaseRecord, ProfileId, ProfileOverview, ProfileRecord, SampleRecord, StoredProfile,
};
pub use query::{RowSink, SqlValue};
pub use record::{DataSetRecord, EvaluationRecord, MachineRecord, ModelRecord, StepRecord, StudyRecord};
pub use requests::{RequestId, RequestOutcome, StoredRequest};
pub use run::TrialRun;
pub use searches::{EndingRecord, SearchBudget, SearchStage, Spending};
pub use spent_times::SpentTime;
pub use studies::{OpenStudy, Runner, StudyId};
pub use timeline::TrialTimes;
pub use trackio::{TrackioFile, TrackioRow, TrackioRun};
pub use vacuum::{Vacuumed, vacuum};
