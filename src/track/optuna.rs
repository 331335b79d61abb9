//! A storage of Optuna, kept up to date.

use std::path::{Path, PathBuf};

use tokio::runtime::{Builder, Runtime};

use super::{Recommended, TrackError, TrackedStudy, TrackedTrial, Tracker};
use crate::store::{OptunaFile, OptunaStudy, TrialRun};

/// A file that Optuna and optuna-dashboard open.
#[derive(Debug)]
pub(super) struct OptunaTracker {
    path: PathBuf,
    open: Option<(Runtime, OptunaFile)>,
}

impl OptunaTracker {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }
}

impl Tracker for OptunaTracker {
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError> {
        // Opened anew after a failure: the file may be another one.
        let (runtime, mut file) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        let mark = study.mark();
        let kept = OptunaStudy {
            overview: &study.overview,
            mark: &mark,
            space: study.space.as_ref(),
            runs: &study.runs,
            recommended: study.recommended.as_ref().map(Recommended::in_optuna),
        };
        let changed: Vec<&TrialRun> = trials.iter().map(|trial| &trial.run).collect();
        runtime.block_on(file.put(&kept, &changed))?;
        self.open = Some((runtime, file));
        Ok(())
    }
}

fn open(path: &Path) -> Result<(Runtime, OptunaFile), TrackError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(TrackError::writing(folder))?;
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(TrackError::writing(path))?;
    let file = runtime.block_on(OptunaFile::open(path))?;
    Ok((runtime, file))
}
