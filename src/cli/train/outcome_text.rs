//! How a training went, as text and JSON.

use super::spike_text::returned;
use crate::report::duration;
use peft_tune_engine::run::{Ending, Outcome, RunProgress};

/// The last object of `--json`, or of a training.
pub(super) fn end_line(outcome: &Outcome, output: &str) -> String {
    let mut line = serde_json::json!({"event": "end"});
    if let (Some(line), Ok(serde_json::Value::Object(ending))) =
        (line.as_object_mut(), serde_json::to_value(&outcome.ending))
    {
        line.extend(ending);
        let progress = &outcome.progress;
        let evaluation = progress.last_evaluation.as_ref();
        line.insert("steps".into(), progress.trainer.step.into());
        line.insert("total_steps".into(), outcome.total_steps.into());
        line.insert("tokens".into(), progress.trainer.tokens.into());
        line.insert("training_loss".into(), progress.last_loss.into());
        line.insert(
            "held_out_loss".into(),
            evaluation.map(|evaluation| evaluation.loss).into(),
        );
        line.insert("best_step".into(), progress.best.map(|best| best.step).into());
        line.insert("best_held_out_loss".into(), progress.best.map(|best| best.loss).into());
        if !progress.precision_decisions.is_empty() {
            let decisions = serde_json::to_value(&progress.precision_decisions).unwrap_or_default();
            line.insert("precision_decisions".into(), decisions);
        }
        if !progress.back_offs.is_empty() {
            let back_offs = serde_json::to_value(&progress.back_offs).unwrap_or_default();
            line.insert("back_offs".into(), back_offs);
        }
        line.insert("seconds".into(), progress.seconds.into());
        let beside = progress.beside;
        line.insert("evaluation_s".into(), beside.evaluation_s.into());
        line.insert("checkpoint_s".into(), beside.checkpoint_s.into());
        line.insert("logging_s".into(), beside.logging_s.into());
        if progress.shared_with > 0 {
            line.insert("shared_with".into(), progress.shared_with.into());
        }
        line.insert("output".into(), output.into());
    }
    format!("{line}\n")
}

/// The outcome for people.
pub(super) fn summary(outcome: &Outcome, output: &str) -> String {
    let progress = &outcome.progress;
    let tokens_per_s = progress.trainer.tokens as f64 / progress.seconds;
    let beside = match progress.shared_with {
        0 => "evaluations included".to_owned(),
        others => format!("beside up to {others} other trainings, whose time is in it"),
    };
    let mut text = format!(
        "trained {} of {} steps, {} tokens in {} ({tokens_per_s:.0} tokens/s, {beside})\n",
        progress.trainer.step,
        outcome.total_steps,
        progress.trainer.tokens,
        duration(progress.seconds),
    );
    if let Ending::StoppedEarly { evaluations } = outcome.ending {
        text += &format!("stopped early: {evaluations} evaluations without a lower held-out loss\n");
    }
    for back_off in &progress.back_offs {
        text += &format!("backed off {}\n", returned(back_off));
    }
    if let (Some(loss), Some(evaluation)) = (progress.last_loss, &progress.last_evaluation) {
        text += &format!("training loss {loss:.4}, held-out loss {:.4}\n", evaluation.loss);
    }
    text += &beside_the_steps(progress);
    text += &format!("written to {output}\n");
    if let (Some(folder), Some(best)) = (&outcome.best_folder, progress.best) {
        let folder = folder.display();
        text += &format!(
            "lowest held-out loss {:.4} after step {}, kept in {folder}\n",
            best.loss, best.step
        );
    }
    text
}

/// What the training did beside its steps, as parts of all of its time.
fn beside_the_steps(progress: &RunProgress) -> String {
    let beside = progress.beside;
    let all = (progress.seconds + beside.checkpoint_s + beside.logging_s).max(f64::MIN_POSITIVE);
    let percent = |seconds: f64| 100.0 * seconds / all;
    format!(
        "time spent: evaluations {:.1}%, checkpoints {:.1}%, logging {:.1}%\n",
        percent(beside.evaluation_s),
        percent(beside.checkpoint_s),
        percent(beside.logging_s)
    )
}
