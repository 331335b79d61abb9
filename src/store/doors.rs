//! The parts of the database by their subject: each has its tables, the rows that it reads and the only SQL on them.

use super::Store;
use super::ceilings::Ceilings;
use super::inference_benches::InferenceBenches;
use super::profiles::Profiles;
use super::query::queries::Queries;
use super::study::baselines::Baselines;
use super::study::definitions::Definitions;
use super::study::facts::Facts;
use super::study::inputs::Inputs;
use super::study::requests::Requests;
use super::study::searches::Searches;
use super::study::spent_times::SpentTimes;
use super::study::studies::Studies;
use super::study::warm_starts::WarmStarts;
use super::study::widenings::Widenings;
use super::trial::evaluations::Evaluations;
use super::trial::held_out_losses::HeldOutLosses;
use super::trial::history::History;
use super::trial::inheritance::Inheritance;
use super::trial::kernel_forms::KernelForms;
use super::trial::lost_attempts::LostAttempts;
use super::trial::measurements::RepeatedMeasurements;
use super::trial::precision_decisions::PrecisionDecisions;
use super::trial::predictions::Predictions;
use super::trial::proposals::Proposals;
use super::trial::repeats::Repeats;
use super::trial::reports::Reports;
use super::trial::steps::Steps;
use super::trial::stops::Stops;
use super::trial::trial_details::TrialDetails;
use super::trial::trials::Trials;

impl Store {
    /// Studies: beginning, finding, renaming and deleting them.
    pub fn studies(&self) -> Studies<'_> {
        Studies { store: self }
    }

    /// Definitions of studies: their files, settings, spaces, objectives and constraints.
    pub fn definitions(&self) -> Definitions<'_> {
        Definitions { store: self }
    }

    /// Files that the trials of a study read, and the stack that it is for.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs { store: self }
    }

    /// Trials that recommendations are compared with.
    pub fn baselines(&self) -> Baselines<'_> {
        Baselines { store: self }
    }

    /// Earlier studies that a study starts from.
    pub fn warm_starts(&self) -> WarmStarts<'_> {
        WarmStarts { store: self }
    }

    /// Ranges that searches widened.
    pub fn widenings(&self) -> Widenings<'_> {
        Widenings { store: self }
    }

    /// Runs of searches: their budgets, stages and endings.
    pub fn searches(&self) -> Searches<'_> {
        Searches { store: self }
    }

    /// Seconds that studies and their trials took.
    pub fn spent_times(&self) -> SpentTimes<'_> {
        SpentTimes { store: self }
    }

    /// Requests of people to running studies.
    pub fn requests(&self) -> Requests<'_> {
        Requests { store: self }
    }

    /// Trials on their way: starting, ending and handing them back.
    pub fn trials(&self) -> Trials<'_> {
        Trials { store: self }
    }

    /// Trials of studies, read back.
    pub fn history(&self) -> History<'_> {
        History { store: self }
    }

    /// Trials in depth.
    pub fn trial_details(&self) -> TrialDetails<'_> {
        TrialDetails { store: self }
    }

    /// Steps of running trials.
    pub fn steps(&self) -> Steps<'_> {
        Steps { store: self }
    }

    /// Evaluations of trials on the held-out set.
    pub fn evaluations(&self) -> Evaluations<'_> {
        Evaluations { store: self }
    }

    /// Metrics that running trials reported on their way.
    pub fn reports(&self) -> Reports<'_> {
        Reports { store: self }
    }

    /// Stops of trials before their end.
    pub fn stops(&self) -> Stops<'_> {
        Stops { store: self }
    }

    /// Attempts at trials that were lost with their processes.
    pub fn lost_attempts(&self) -> LostAttempts<'_> {
        LostAttempts { store: self }
    }

    /// Values that trials inherited from other trials of their studies.
    pub fn inheritance(&self) -> Inheritance<'_> {
        Inheritance { store: self }
    }

    /// Repeats of trials, and what they say together.
    pub fn repeats(&self) -> Repeats<'_> {
        Repeats { store: self }
    }

    /// Measurements of trials whose profile phase ran more than once.
    pub fn measurements(&self) -> RepeatedMeasurements<'_> {
        RepeatedMeasurements { store: self }
    }

    /// Losses of the held-out rows of the best trainings.
    pub fn held_out_losses(&self) -> HeldOutLosses<'_> {
        HeldOutLosses { store: self }
    }

    /// Forms of the ops that trials were computed with.
    pub fn kernel_forms(&self) -> KernelForms<'_> {
        KernelForms { store: self }
    }

    /// Decisions of trials on their precision.
    pub fn precision_decisions(&self) -> PrecisionDecisions<'_> {
        PrecisionDecisions { store: self }
    }

    /// Hypervolume that trials were expected to add when they were proposed.
    pub fn proposals(&self) -> Proposals<'_> {
        Proposals { store: self }
    }

    /// Metrics and parts of the peak memory that trials were expected to measure.
    pub fn predictions(&self) -> Predictions<'_> {
        Predictions { store: self }
    }

    /// Measured ceilings of machines.
    pub fn ceilings(&self) -> Ceilings<'_> {
        Ceilings { store: self }
    }

    /// Profiles of trials and recipes, with what they found.
    pub fn profiles(&self) -> Profiles<'_> {
        Profiles { store: self }
    }

    /// Measurements of how fast models answer.
    pub fn inference_benches(&self) -> InferenceBenches<'_> {
        InferenceBenches { store: self }
    }

    /// Queries of the user's own SQL.
    pub fn queries(&self) -> Queries<'_> {
        Queries { store: self }
    }

    /// Machines, models and data sets, which studies share.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts { store: self }
    }
}
