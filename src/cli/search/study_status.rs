//! Status of a study, as `status` and `attach` tell it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::{Outlook, duration, minute, unsaid_length};
use crate::store::{EndingRecord, Store, StoreError, StudyOverview};

/// Kind of the ending of a search that somebody ended.
const INTERRUPTED: &str = "interrupted";

/// Status of a study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct StudyStatus {
    pub study: String,
    /// Whether a process runs the study.
    pub running: bool,
    /// Number of the process that runs the study.
    pub process: Option<u32>,
    /// Whether the study's search was asked to start no further trial.
    pub paused: bool,
    /// Trials that ended, however they did.
    pub finished: u64,
    /// Trials that took their loss over from another.
    pub variants: u64,
    /// Trials by state.
    pub states: std::collections::BTreeMap<String, u64>,
    /// Seconds of finished trials.
    pub trial_s: f64,
    /// Spending of the budget, and how long the rest takes; null for studies whose last search told no budget.
    pub outlook: Option<Outlook>,
    pub under_way: Vec<UnderWay>,
    /// Ending of the study's last search; `None` while it runs, and where its process was lost.
    pub ending: Option<EndingRecord>,
    /// Attempts that were lost with their process.
    pub lost_attempts: u64,
    /// Ranges that the study's searches widened by themselves, each with the reason.
    pub widened: Vec<String>,
    /// What its trainings say of the length of `training.length: auto`; null for other studies.
    pub length: Option<String>,
}

/// A trial under way.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct UnderWay {
    pub trial: u64,
    /// Number of this attempt at the trial; 1 for the first.
    pub attempt: u64,
    /// Phase that the trial is in; none until it says so.
    pub phase: Option<String>,
    /// Seconds since the attempt began, by this machine's clock.
    pub since_s: f64,
}

impl StudyStatus {
    /// Reads the status of a study.
    pub(super) async fn read(store: &Store, study: &StudyOverview) -> Result<Self, StoreError> {
        let runner = store.studies().live_runner(study.id);
        let times = store.history().times(study.id).await?;
        let running = times
            .iter()
            .filter(|times| times.ended_at.is_none() && runner.is_some());
        let paused = runner.is_some() && store.requests().is_paused(study.id).await?;
        let spending = store.searches().spending(study.id).await?;
        let widened = store.widenings().of(study.id).await?;
        let length = match study.finds_length {
            true => {
                let (trials, _) = store.history().confirmed_trials(study.id).await?;
                unsaid_length("", true, &trials)
            }
            false => None,
        };
        let finished = |state: &str| !["waiting", "running"].contains(&state);
        Ok(Self {
            study: study.name.clone(),
            running: runner.is_some(),
            process: runner.map(|runner| runner.process),
            paused,
            outlook: spending.map(|spending| Outlook::new(&spending, runner.is_some(), paused)),
            finished: study
                .states
                .iter()
                .filter(|(state, _)| finished(state.as_str()))
                .map(|(_, count)| *count)
                .sum(),
            variants: study.variants,
            states: study.states.clone(),
            trial_s: study.wall_s,
            under_way: running
                .map(|times| UnderWay {
                    trial: times.number.0,
                    attempt: times.attempt,
                    phase: times.phase.clone(),
                    since_s: times.since_start_s,
                })
                .collect(),
            ending: match runner {
                Some(_) => None,
                None => store.searches().last_ending(study.id).await?,
            },
            lost_attempts: store.lost_attempts().count(study.id).await?,
            widened: widened.iter().map(ToString::to_string).collect(),
            length,
        })
    }

    /// The status for people, a few lines.
    /// `resume` is the command that continues it, `dashboard` the one whose page lets it go on.
    pub(super) fn to_text(&self, resumed_at: &str, resume: &str, dashboard: &str) -> String {
        let mut text = format!("study {}: ", self.study);
        text += &match (self.process, self.paused, &self.ending) {
            (Some(process), true, _) => format!("paused, in process {process}"),
            (Some(process), false, _) => format!("running, in process {process}"),
            (None, _, Some(ending)) => format!("not running; its last search ended: {}", ending.reason),
            (None, _, None) => "not running; its last search did not finish".to_owned(),
        };
        text += &format!(
            "\n  {} trials finished{}, {} of trials; last started {} UTC\n",
            self.finished,
            match self.variants {
                0 => String::new(),
                variants => format!(" ({variants} of all are variants of a training)"),
            },
            duration(self.trial_s),
            minute(resumed_at)
        );
        if let Some(outlook) = &self.outlook {
            let left = match outlook.left.as_str() {
                "" => String::new(),
                left => format!("; {left}"),
            };
            text += &format!("  budget: {}{left}\n", outlook.spent_text());
        }
        let is_done = self.ending.as_ref().is_some_and(|ending| ending.kind != INTERRUPTED);
        if !self.running && !is_done {
            text += &format!("  `{resume}` continues it\n");
        }
        if self.paused {
            text += &format!("  `{dashboard}` lets it go on\n");
        }
        if self.lost_attempts > 0 {
            text += &format!("  {} attempts were lost with their process\n", self.lost_attempts);
        }
        for widened in &self.widened {
            text += &format!("  {widened}\n");
        }
        if let Some(length) = &self.length {
            text += &format!("  length: {length}\n");
        }
        for one in &self.under_way {
            let attempt = match one.attempt {
                0 | 1 => String::new(),
                attempt => format!(", attempt {attempt}"),
            };
            let phase = one.phase.as_deref().unwrap_or("started");
            text += &format!(
                "  trial {}: {phase}, for {}{attempt}\n",
                one.trial,
                duration(one.since_s)
            );
        }
        text
    }
}
