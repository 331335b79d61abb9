//! The results database: the only SQL of the program.
//!
//! One SQLite file holds any number of studies. [`Store`] opens and closes it and begins its transactions. Everything
//! else is done by the parts behind its doors, such as `store.trials()` or `store.profiles()`: each borrows the store and
//! has the tables of one subject. `docs/database.md` lists tables and views, which are a public interface: people and
//! other programs query them.
//!
//! A process may be killed at any moment: a trial that was committed stays, a trial that was running
//! is handed back to be repeated, and the file passes `pragma integrity_check`.

mod ceilings;
mod doors;
mod error;
mod file;
mod inference_benches;
mod optuna;
mod profiles;
mod query;
mod record;
mod row;
mod study;
mod trackio;
mod trial;

pub use ceilings::CeilingRecord;
pub use error::{QueryError, StoreError};
pub use file::{ImportOutcome, ImportWish, Imported, Store, StudyLock, Vacuumed, import_studies, vacuum};
pub use inference_benches::{InferenceRecord, MeasuredForm, RequestRecord};
pub use optuna::{OptunaFile, OptunaStudy, RecommendedTrial, write_optuna};
pub use peft_tune_core::study::Confirmations;
pub use profiles::{
    DiagnosisRecord, OpRecord, PhaseRecord, ProfileId, ProfileRecord, SampleRecord, StoredProfile, TrialFinding,
};
pub use query::{NamedQuery, RowSink, SqlValue};
pub use record::{DataSetRecord, EvaluationRecord, MachineRecord, ModelRecord, StepRecord, StudyRecord};
pub use study::{
    DEVICE, EndingRecord, FINDS_LENGTH, InputRecord, OpenStudy, PRICE, RequestId, RequestOutcome, Runner, SearchBudget,
    SearchStage, Spending, SpentTime, StoredRequest, StudyId, StudyOverview, TARGET_DEVICE, TARGET_STACK,
};
pub use trackio::{TrackioFile, TrackioRow, TrackioRun};
pub use trial::{
    HeldOutRecord, InheritedValue, KernelsOfTrials, LONGER_DIVERGED_STEP, LostAttempt, Measurements, PhaseSteps,
    PrecisionRecord, PredictionRecord, TrialDetail, TrialKernels, TrialRun, TrialTimes, Variants,
};
