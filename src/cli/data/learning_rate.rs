//! A learning rate that is fixed where it should be searched: told before anything runs.

use crate::space::Study;

/// Settings whose best learning rate differs from value to value.
const MOVING: &[&str] = &["rank", "alpha", "global_batch", "micro_batch", "gradient_accumulation"];

/// What the offered range reaches to, in times of the fixed rate.
const REACH: f64 = 5.0;

/// What to write into the study's file, and why; `None` where the learning rate is searched, or nothing that moves it.
pub(in crate::cli) fn warning(study: &Study) -> Option<String> {
    let base = study.base.as_ref().filter(|_| study.plan.train.is_some())?;
    let is_searched = |name: &str| study.space.parameters.iter().any(|parameter| parameter.name == name);
    if is_searched("learning_rate") {
        return None;
    }
    // A global batch that is given stays as it is, however it is divided.
    let divides = |name: &str| matches!(name, "micro_batch" | "gradient_accumulation");
    let keeps = study.fixed.contains_key("global_batch") || is_searched("global_batch");
    let moving: Vec<String> = MOVING
        .iter()
        .filter(|name| is_searched(name) && !(keeps && divides(name)))
        .map(|name| format!("`{name}`"))
        .collect();
    if moving.is_empty() {
        return None;
    }
    let rate = base.optimizer.learning_rate;
    Some(format!(
        "{} searched and `learning_rate` is not: one that is too low for all makes their losses look equal, one too \
         high makes the small values win. Write into `space:`\n  learning_rate: {{low: {}, high: {}, scale: log}}",
        match &moving[..] {
            [one] => format!("{one} is"),
            several => format!("{} are", several.join(", ")),
        },
        short(rate / REACH),
        short(rate * REACH)
    ))
}

/// A number with two digits, as YAML reads it.
fn short(number: f64) -> String {
    let rounded: f64 = format!("{number:.1e}").parse().unwrap_or(number);
    format!("{rounded:e}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::space::{ReadOptions, StudyFile};

    fn warning_of(space: &str) -> Option<String> {
        let text = format!("model: m\ndata: {{train: [a.jsonl]}}\nspace:\n{space}");
        warning(&StudyFile::parse(Path::new("space.yaml"), &text, ReadOptions { check_files: false }).unwrap())
    }

    #[test]
    fn the_line_that_is_offered_ends_the_warning() {
        for space in [
            "  rank: [4, 8]\n",
            "  alpha: [4, 8]\n  learning_rate: 0.003\n",
            "  global_batch: [8, 16]\n",
            "  micro_batch: [1, 2]\n",
        ] {
            let text = warning_of(space).unwrap();
            let line = text.lines().last().unwrap();
            let others = space.replace("  learning_rate: 0.003\n", "");
            assert_eq!(warning_of(&format!("{others}{line}\n")), None, "{text}");
        }
        let text = warning_of("  rank: [4, 8]\n  alpha: [8, 16]\n  learning_rate: 2e-4\n").unwrap();
        assert!(text.starts_with("`rank`, `alpha` are searched"), "{text}");
        assert!(
            text.ends_with("  learning_rate: {low: 4e-5, high: 1e-3, scale: log}"),
            "{text}"
        );
    }

    #[test]
    fn settings_that_do_not_move_the_best_rate_need_none() {
        assert_eq!(warning_of("  precision: [bf16, nf4]\n"), None);
        assert_eq!(warning_of("  micro_batch: [1, 2]\n  global_batch: 8\n"), None);
    }
}
