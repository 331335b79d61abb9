//! What heads a profile that was read from a trace of PyTorch's profiler.

use super::{batch, percent, time};
use peft_tune_engine::profile::{Profile, TraceFile};

/// The file, the steps that it has, and what it does not tell.
pub(super) fn trace_lines(profile: &Profile, trace: &TraceFile) -> Vec<(&'static str, Option<String>)> {
    let attention = profile.setting.attention.as_ref();
    let attention = attention.map_or_else(String::new, |kind| format!(", attention: {kind}"));
    let mut lines = vec![
        ("trace", Some(trace.path.clone())),
        ("device", Some(format!("{}{attention}", profile.setting.device))),
        ("steps", Some(steps_line(profile))),
    ];
    lines.extend(trace.notes.iter().map(|note| ("note", Some(note.clone()))));
    lines
}

fn steps_line(profile: &Profile) -> String {
    let (steps, setting) = (&profile.steps, &profile.setting);
    let batch = match setting.micro_batch {
        0 => String::new(),
        _ => format!(", {}, {:.0} tokens in all", batch(setting), steps.tokens_per_step),
    };
    format!(
        "{} in the trace, {} each ± {}{batch}",
        steps.measured_steps,
        time(steps.step_s),
        percent(steps.interval)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{ProfileText, profile_text};
    use peft_tune_engine::profile::fixtures::sound_profile;

    #[test]
    fn a_trace_says_what_it_does_not_tell_and_shows_no_zeros() {
        let mut profile = sound_profile();
        profile.trace = Some(TraceFile {
            path: "run/trace.json".to_owned(),
            notes: vec!["no memory".to_owned()],
        });
        (profile.setting.gradient_accumulation, profile.setting.micro_batch) = (1, 2);
        let text = profile_text(&profile, &ProfileText::default());
        assert!(text.contains(", batch 1 x 2 rows, "), "{text}");
        profile.steps.tokens_per_s = 0.0;
        profile.setting.micro_batch = 0;
        let text = profile_text(&profile, &ProfileText::default());
        assert!(text.starts_with("trace       run/trace.json\n"), "{text}");
        assert!(text.contains("20 in the trace, 100.00 ms each"), "{text}");
        assert!(text.contains("note        no memory\n"), "{text}");
        for absent in ["throughput", "arithmetic", "memory at the peak", "checkpointing"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }
}
