//! What is predicted of a trial in the stack that its study is for, beside what was measured.

use super::number::{bytes, metric_heading, metric_value};
use crate::space::Target;
use peft_tune_core::objective::{
    PEAK_MEMORY, TARGET_PEAK_MEMORY, TARGET_SHORTFALL, TARGET_THROUGHPUT, THROUGHPUT, measured_of,
};
use peft_tune_core::study::Metrics;

/// A trial in both stacks: `predicted for trl on A100 40GB: tokens/s 4,512, peak memory 12.30 GiB; measured here: tokens/s 840,
/// peak memory 1.02 GiB`. `None` where nothing was predicted.
pub fn target_text(target: Option<Target>, metrics: &Metrics) -> Option<String> {
    let target = target?;
    let values = |names: [&str; 2]| {
        let known = names.iter().filter_map(|name| Some((*name, metrics.value(name)?)));
        let texts = known.map(|(name, value)| {
            let heading = metric_heading(measured_of(name).unwrap_or(name));
            format!("{heading} {}", metric_value(name, value))
        });
        texts.collect::<Vec<_>>().join(", ")
    };
    metrics.value(TARGET_PEAK_MEMORY)?;
    let mut text = format!(
        "predicted for {target}: {}",
        values([TARGET_THROUGHPUT, TARGET_PEAK_MEMORY])
    );
    let here = values([THROUGHPUT, PEAK_MEMORY]);
    if !here.is_empty() {
        text += &format!("; measured here: {here}");
    }
    if let Some(shortfall) = metrics.value(TARGET_SHORTFALL) {
        text += &format!(
            "; whether it fits there is uncertain: {} of the prediction's reserve are missing",
            bytes(shortfall)
        );
    }
    Some(text)
}

/// What is said of the columns of such a study.
pub fn target_note(target: Target) -> String {
    format!("{target}; what a heading calls predicted was predicted of it and never ran, the rest was measured here")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Tool;
    use peft_tune_core::predict::stack::StackDevice;

    #[test]
    fn what_was_guessed_says_so_and_of_what() {
        let sheet = peft_tune_core::predict::device("T4").unwrap();
        let target = Target {
            stack: Tool::Trl,
            device: Some(StackDevice { sheet }),
        };
        let gib = f64::from(1 << 30);
        let metrics: Metrics = [
            (TARGET_THROUGHPUT, 4512.0),
            (TARGET_PEAK_MEMORY, 12.3 * gib),
            (TARGET_SHORTFALL, 0.25 * gib),
            (THROUGHPUT, 840.0),
        ]
        .into();
        assert_eq!(
            target_text(Some(target), &metrics).unwrap(),
            "predicted for trl on T4: tokens/s 4,512, peak memory 12.30 GiB; measured here: tokens/s 840; whether it fits there \
             is uncertain: 256.0 MiB of the prediction's reserve are missing"
        );
        assert_eq!(target_text(None, &metrics), None);
        assert_eq!(target_text(Some(target), &[(THROUGHPUT, 1.0)].into()), None);
    }
}
