//! What the tool itself printed: settings that are not its file's, what it went on without, memory that it could not have.

use super::cause::Cause;
use crate::cli::watch::evidence::Evidence;
use crate::cli::watch::printed::{PrintedSetting, Told};
use crate::cli::watch::progress::Phase;

/// Messages that are quoted.
const QUOTED: usize = 3;

/// Memory that the tool asked for and could not have.
pub(super) fn out_of_memory(evidence: &Evidence) -> Option<Cause> {
    let found = evidence.told.iter().find_map(|(at_s, phase, told)| match told {
        Told::OutOfMemory(line) => Some((at_s, phase, line)),
        _ => None,
    });
    let (at_s, phase, line) = found?;
    let during = match phase {
        Phase::Starting => "before the first step",
        Phase::Steps => "in a step",
        Phase::Evaluation => "in an evaluation",
        Phase::Ending => "behind the last step",
    };
    let advice = match phase {
        Phase::Evaluation => "evaluate in smaller batches (`per_device_eval_batch_size`), or keep only the loss",
        _ => "`peft-tune plan --check` with the tool's file says what would save memory",
    };
    Some(Cause::new(
        "out_of_memory",
        format!("{during}, {at_s:.0} s after the command began: {line}"),
        advice,
    ))
}

/// Settings that the tool prints and its file does not say.
pub(super) fn other_setting(evidence: &Evidence) -> Option<Cause> {
    let asked = evidence.asked?;
    // Where nobody told how many devices train, their number is no setting that differs.
    let rows = asked.rows().zip(asked.devices);
    let rows = rows.map(|(rows, devices)| rows.saturating_mul(devices));
    let wanted = [
        (PrintedSetting::MicroBatch, asked.micro_batch),
        (PrintedSetting::Accumulation, asked.accumulation),
        (PrintedSetting::GlobalBatch, rows),
    ];
    let others: Vec<String> = wanted
        .into_iter()
        .filter_map(|(setting, wanted)| {
            let (printed, wanted) = (*evidence.settings.get(&setting)?, wanted?);
            let name = setting.words();
            (printed != wanted).then(|| format!("{name} is {printed} and not {wanted}"))
        })
        .collect();
    (!others.is_empty()).then(|| {
        Cause::new(
            "other_setting",
            format!("the tool says that {}", others.join(", ")),
            "look for a default, an environment or a launcher's file that overrides the settings; --devices says how many share the work",
        )
    })
}

/// Messages that the tool goes on otherwise than it was asked.
pub(super) fn fallback(evidence: &Evidence) -> Option<Cause> {
    let mut said: Vec<String> = Vec::new();
    for (_, _, told) in &evidence.told {
        if let Told::Fallback(means, line) = told {
            let text = format!("{means} (\"{line}\")");
            if said.len() < QUOTED && !said.contains(&text) {
                said.push(text);
            }
        }
    }
    (!said.is_empty()).then(|| {
        Cause::new(
            "fallback",
            said.join("; "),
            "install what is missing, or ask for what there is, so that the prediction counts with it",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::AskedStep;
    use crate::cli::watch::evidence::made::clean;

    #[test]
    fn memory_that_could_not_be_had_is_told_with_its_phase() {
        let mut evidence = clean(5);
        let line = "torch.OutOfMemoryError: CUDA out of memory.".to_owned();
        evidence.told.push((3.2, Phase::Evaluation, Told::OutOfMemory(line)));
        let found = out_of_memory(&evidence).unwrap();
        assert!(found.evidence.starts_with("in an evaluation, 3 s after"), "{found:?}");
    }

    #[test]
    fn settings_that_the_file_does_not_say_are_named() {
        let mut evidence = clean(5);
        evidence.asked = Some(AskedStep {
            micro_batch: Some(2),
            accumulation: Some(4),
            devices: Some(1),
        });
        evidence.settings.insert(PrintedSetting::Accumulation, 4);
        assert_eq!(other_setting(&evidence), None);
        evidence.settings.insert(PrintedSetting::Accumulation, 8);
        evidence.settings.insert(PrintedSetting::GlobalBatch, 16);
        let found = other_setting(&evidence).unwrap();
        assert!(
            found
                .evidence
                .contains("gradient accumulation is 8 and not 4, rows of a step is 16 and not 8"),
            "{found:?}"
        );
    }

    #[test]
    fn what_the_file_does_not_say_is_no_other_setting() {
        let mut evidence = clean(5);
        evidence.asked = Some(AskedStep {
            micro_batch: Some(2),
            ..AskedStep::default()
        });
        evidence.settings.insert(PrintedSetting::MicroBatch, 2);
        evidence.settings.insert(PrintedSetting::Accumulation, 8);
        evidence.settings.insert(PrintedSetting::GlobalBatch, 64);
        assert_eq!(other_setting(&evidence), None);
        // Nobody told how many devices share the work.
        evidence.asked = evidence.asked.map(|asked| AskedStep {
            accumulation: Some(8),
            ..asked
        });
        assert_eq!(other_setting(&evidence), None);
    }

    #[test]
    fn the_same_message_is_quoted_once() {
        let mut evidence = clean(5);
        for _ in 0..5 {
            let line = "Falling back to eager attention".to_owned();
            evidence
                .told
                .push((1.0, Phase::Starting, Told::Fallback("another attention runs", line)));
        }
        let found = fallback(&evidence).unwrap();
        assert_eq!(found.evidence.matches("Falling back").count(), 1, "{found:?}");
    }
}
