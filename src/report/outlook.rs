//! How far a search is: what it does, what of its budget is spent, and how long the rest will take.
//!
//! The time left follows from the trials so far. n trials are still to come, of the mean m and standard deviation s of the
//! last k: together n m ± z s √(n + n²/k), a 90% interval in which both the trials to come and the mean itself are uncertain.
//! A time budget is a bound on top of that. Workers share the time.

use schemars::JsonSchema;
use serde::Serialize;

use super::duration;
use crate::store::{SearchStage, Spending};

/// Trials from which the rest is estimated: earlier ones may be of another length.
const LAST: usize = 40;
/// Trials below which nothing is said.
const FEWEST: usize = 3;
/// Standard deviations of a 90% interval.
const Z: f64 = 1.645;
/// Ends of an interval that are nearer than that are told as one number.
const NEAR: f64 = 1.1;

/// How far a search is.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outlook {
    /// State of the study now; `ended` where no process runs it.
    pub stage: SearchStage,
    /// Whether the study was asked to start no further trial.
    pub paused: bool,
    /// Finished trials that the budget counts: all but variants.
    pub trials: u64,
    pub budget_trials: Option<u64>,
    /// Seconds of all that ran: trials, those under way included, and what is run behind them.
    pub spent_s: f64,
    pub budget_s: Option<f64>,
    /// Share of the budget that is spent, in [0, 1]: the larger of trials and time.
    pub share: Option<f64>,
    /// Seconds until the budget is spent; absent where too little is known, and behind the budget.
    pub left_s: Option<TimeLeft>,
    /// Time that is left, for people, such as `3m 10s to 5m 40s left for trials`.
    pub left: String,
}

/// A 90% interval of the seconds that are left; `low_s` is 0 where only a bound is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TimeLeft {
    pub low_s: f64,
    pub high_s: f64,
}

impl Outlook {
    /// How far a study is that has spent this; `running` says whether a process runs it.
    pub fn new(spending: &Spending, running: bool, paused: bool) -> Self {
        let stage = if running { spending.stage } else { SearchStage::Ended };
        let under_way: f64 = spending.under_way_s.iter().filter(|_| running).sum();
        let spent_s = spending.finished_s + under_way;
        let trials = spending.counted_s.len() as u64;
        let budget = spending.budget;
        let of_trials = budget.trials.map(|budget| trials as f64 / budget.max(1) as f64);
        let of_time = budget.seconds.map(|budget| spent_s / budget.max(1e-9));
        let shares = [of_trials, of_time].into_iter().flatten();
        let left_s = (stage == SearchStage::Trials)
            .then(|| time_left(spending, spent_s))
            .flatten();
        let mut outlook = Self {
            stage,
            paused: running && paused,
            trials,
            budget_trials: budget.trials,
            spent_s,
            budget_s: budget.seconds,
            share: shares.reduce(f64::max).map(|share| share.min(1.0)),
            left_s,
            left: String::new(),
        };
        outlook.left = outlook.left_text();
        outlook
    }

    /// Spending of the budget in words, such as `7 of 40 trials, 3m 10s of 30m 00s`.
    pub fn spent_text(&self) -> String {
        let of = |budget: Option<String>| budget.map(|budget| format!(" of {budget}")).unwrap_or_default();
        format!(
            "{}{} trials, {}{}",
            self.trials,
            of(self.budget_trials.map(|budget| budget.to_string())),
            duration(self.spent_s),
            of(self.budget_s.map(duration))
        )
    }

    fn left_text(&self) -> String {
        let is_spent = self.share.is_some_and(|share| share >= 1.0);
        match (self.stage, self.left_s) {
            (SearchStage::Ended, _) => String::new(),
            (SearchStage::MeasuringAgain, _) => {
                "the budget is spent; trials that other programs disturbed are measured again".to_owned()
            }
            (SearchStage::Confirming, _) => {
                "the trials are done; the recommendation is confirmed by repeats, how long that takes is not known"
                    .to_owned()
            }
            (SearchStage::Trials, _) if is_spent => {
                "the budget is spent; what still runs belongs to trials that matter".to_owned()
            }
            (SearchStage::Trials, None) => "time left: not known yet".to_owned(),
            (SearchStage::Trials, Some(left)) => format!("{} left for trials", left.text()),
        }
    }
}

impl TimeLeft {
    /// Text for people: `about 5m 00s`, `3m 10s to 5m 40s`, `at most 8m 00s`.
    pub fn text(self) -> String {
        if self.high_s < 1.0 {
            "less than a second".to_owned()
        } else if self.low_s * NEAR >= self.high_s {
            format!("about {}", duration((self.low_s + self.high_s) / 2.0))
        } else if self.low_s <= 0.0 {
            format!("at most {}", duration(self.high_s))
        } else {
            format!("{} to {}", duration(self.low_s), duration(self.high_s))
        }
    }
}

fn time_left(spending: &Spending, spent_s: f64) -> Option<TimeLeft> {
    let workers = spending.budget.workers.max(1) as f64;
    let by_time = spending.budget.seconds.map(|budget| (budget - spent_s).max(0.0));
    let by_trials = spending
        .budget
        .trials
        .map(|budget| seconds_of_rest(spending, budget.saturating_sub(spending.counted_s.len() as u64)));
    let (low, high) = match (by_trials, by_time) {
        (None, None) | (Some(None), None) => return None,
        (None, Some(time)) => (time, time),
        (Some(None), Some(time)) => (0.0, time),
        (Some(Some((low, high))), time) => {
            let bound = time.unwrap_or(f64::INFINITY);
            (low.min(bound), high.min(bound))
        }
    };
    Some(TimeLeft {
        low_s: low / workers,
        high_s: high / workers,
    })
}

/// The ends of the interval of the seconds that so many trials to come take, less what those under way have taken.
fn seconds_of_rest(spending: &Spending, rest: u64) -> Option<(f64, f64)> {
    let last = &spending.counted_s[spending.counted_s.len().saturating_sub(LAST)..];
    if last.len() < FEWEST {
        return None;
    }
    let known = last.len() as f64;
    let mean = last.iter().sum::<f64>() / known;
    let variance = last.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (known - 1.0);
    let rest = rest as f64;
    let half = Z * variance.sqrt() * (rest + rest * rest / known).sqrt();
    let done: f64 = spending.under_way_s.iter().map(|one| one.min(mean)).sum();
    let likely = (rest * mean - done).max(0.0);
    Some(((likely - half).max(0.0), likely + half))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SearchBudget;

    fn spending(trials: Option<u64>, seconds: Option<f64>, counted_s: &[f64]) -> Spending {
        Spending {
            budget: SearchBudget {
                trials,
                seconds,
                workers: 1,
            },
            stage: SearchStage::Trials,
            counted_s: counted_s.to_vec(),
            finished_s: counted_s.iter().sum(),
            under_way_s: Vec::new(),
        }
    }

    fn left(spending: &Spending) -> String {
        Outlook::new(spending, true, false).left
    }

    #[test]
    fn nothing_is_said_of_the_rest_before_some_trials() {
        assert_eq!(
            left(&spending(Some(40), None, &[10.0, 11.0])),
            "time left: not known yet"
        );
        assert_eq!(
            left(&spending(Some(40), Some(600.0), &[10.0])),
            "at most 9m 50s left for trials"
        );
    }

    #[test]
    fn trials_of_one_length_leave_a_number_and_others_an_interval() {
        assert_eq!(
            left(&spending(Some(40), None, &[10.0; 10])),
            "about 5m 00s left for trials"
        );
        assert_eq!(
            left(&spending(Some(40), None, &[5.0, 15.0, 5.0, 15.0, 5.0, 15.0, 5.0, 15.0])),
            "3m 29s to 7m 11s left for trials"
        );
    }

    #[test]
    fn a_time_budget_bounds_what_trials_would_take_and_workers_share_it() {
        let mut both = spending(Some(400), Some(300.0), &[10.0; 10]);
        assert_eq!(left(&both), "about 3m 20s left for trials");
        both.budget.workers = 2;
        assert_eq!(left(&both), "about 1m 40s left for trials");
        both.under_way_s = vec![4.0, 6.0];
        let outlook = Outlook::new(&both, true, false);
        assert_eq!(outlook.spent_text(), "10 of 400 trials, 1m 50s of 5m 00s");
        assert!((outlook.share.unwrap() - 110.0 / 300.0).abs() < 1e-9);
    }

    #[test]
    fn behind_the_budget_and_without_a_process_no_time_is_told() {
        let mut confirming = spending(Some(10), None, &[10.0; 10]);
        assert!(left(&confirming).starts_with("the budget is spent"));
        confirming.stage = SearchStage::Confirming;
        let outlook = Outlook::new(&confirming, true, false);
        assert_eq!((outlook.left_s, outlook.share), (None, Some(1.0)));
        let lost = Outlook::new(&confirming, false, true);
        assert_eq!(
            (lost.stage, lost.paused, lost.left.as_str()),
            (SearchStage::Ended, false, "")
        );
    }
}
