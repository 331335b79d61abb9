//! Words at the end of a search about its time: what it went to, and why trainings are missing.

use crate::report::about_duration;
use crate::store::SpentTime;
use crate::tune::Lack;

/// Seconds below which nothing is said.
const NOTHING_S: f64 = 0.5;

/// `spent 44 min of 45 min: 31 min trials, 4 min measuring again, 9 min confirming (3 repeats, 1 longer training)`; `None` where
/// next to nothing was spent.
pub(super) fn spent_text(spent: &SpentTime, budget_s: Option<f64>) -> Option<String> {
    if spent.total_s() < NOTHING_S {
        return None;
    }
    let of_budget = budget_s.map(|budget| format!(" of {}", about_duration(budget)));
    let parts = [
        (spent.trials_s, "trials".to_owned()),
        (spent.measuring_again_s, "measuring again".to_owned()),
        (spent.confirming_s, format!("confirming{}", runs_text(spent))),
    ];
    let parts = parts.into_iter().filter(|(seconds, _)| *seconds >= NOTHING_S);
    let parts: Vec<String> = parts
        .map(|(seconds, what)| format!("{} {what}", about_duration(seconds)))
        .collect();
    Some(format!(
        "spent {}{}: {}",
        about_duration(spent.total_s()),
        of_budget.unwrap_or_default(),
        parts.join(", ")
    ))
}

/// ` (3 repeats, 1 longer training)`.
fn runs_text(spent: &SpentTime) -> String {
    let counted = |count: u64, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let runs = [
        counted(spent.repeats, "repeat"),
        counted(spent.longer_trainings, "longer training"),
    ];
    let runs: Vec<String> = runs.into_iter().flatten().collect();
    match runs.is_empty() {
        true => String::new(),
        false => format!(" ({})", runs.join(", ")),
    }
}

/// Says which longer trainings are missing, and what would give them.
pub(super) fn lack_text(lack: &Lack) -> String {
    match *lack {
        Lack::Time { longest, planned } => {
            let what = match longest {
                None => {
                    format!("no finalist was trained longer (for {planned} tokens): the choice goes by short trainings")
                }
                Some(longest) if longest < planned => {
                    format!("finalists were trained for {longest} tokens, not the {planned} of a whole comparison")
                }
                Some(_) => format!("not every finalist was trained longer (for {planned} tokens)"),
            };
            format!("{what}; the budget's time is spent, and `--time TIME` gives it more")
        }
        Lack::Trainings {
            made,
            enough,
            enough_with_time,
        } => {
            let or_time = enough_with_time.map(|trainings| format!(", or {trainings} with a `budget: {{time: ..}}`,"));
            format!(
                "no finalist was trained longer: the choice goes by {made} short trainings, and {enough} are enough{} for \
                 longer ones",
                or_time.unwrap_or_default()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_no_time_is_left_out() {
        let mut spent = SpentTime {
            trials_s: 31.0 * 60.0,
            ..SpentTime::default()
        };
        assert_eq!(spent_text(&spent, None).as_deref(), Some("spent 31 min: 31 min trials"));
        (spent.measuring_again_s, spent.confirming_s) = (240.0, 540.0);
        (spent.repeats, spent.longer_trainings) = (3, 1);
        assert_eq!(
            spent_text(&spent, Some(2700.0)).as_deref(),
            Some(
                "spent 44 min of 45 min: 31 min trials, 4 min measuring again, 9 min confirming (3 repeats, 1 longer training)"
            )
        );
        assert_eq!(spent_text(&SpentTime::default(), Some(60.0)), None);
    }

    #[test]
    fn a_lack_of_time_says_what_is_missing() {
        let said = |longest| {
            let lack = Lack::Time { longest, planned: 4000 };
            lack_text(&lack)
        };
        assert!(said(None).starts_with("no finalist was trained longer (for 4000 tokens)"));
        assert!(said(Some(2000)).starts_with("finalists were trained for 2000 tokens, not the 4000"));
        assert!(said(Some(4000)).starts_with("not every finalist"));
    }

    #[test]
    fn a_study_that_is_too_small_for_longer_trainings_says_what_is_enough() {
        let said = |enough, enough_with_time| {
            lack_text(&Lack::Trainings {
                made: 3,
                enough,
                enough_with_time,
            })
        };
        assert_eq!(
            said(16, Some(4)),
            "no finalist was trained longer: the choice goes by 3 short trainings, and 16 are enough, or 4 with a \
             `budget: {time: ..}`, for longer ones"
        );
        assert!(said(4, None).ends_with("the choice goes by 3 short trainings, and 4 are enough for longer ones"));
    }
}
