//! The parts of the database by their subject: each has its tables, the rows that it reads and the only SQL on them.

use super::Store;
use super::baselines::Baselines;
use super::definitions::Definitions;
use super::facts::Facts;
use super::inputs::Inputs;
use super::requests::Requests;
use super::searches::Searches;
use super::spent_times::SpentTimes;
use super::studies::Studies;
use super::warm_starts::WarmStarts;
use super::widenings::Widenings;

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

    /// Machines, models and data sets, which studies share.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts { store: self }
    }
}
