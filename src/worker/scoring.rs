//! Answers of a trained model to held-out prompts, and their scores.

use std::time::Instant;

use super::scorer::{AnsweredRow, Scorer, ScorerError};
use peft_tune_core::objective::EXACT_MATCH;
use peft_tune_core::score::{ExtractError, ScoreCommand, ScorePlan, wilson};
use peft_tune_core::study::{Metrics, interval_of};
use peft_tune_engine::data::{DataError, DocumentSet, Question, Vocabulary};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::tokenizer::{Tokenizer, TokenizerError};
use peft_tune_engine::{AnswerSettings, Control, Prompt, TextEnd, TrainError, Trainer};

/// Reason why answers could not be scored.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScoringError {
    #[error(
        "no held-out row has a prompt and a whole answer: `score` needs rows of messages, or of prompt and completion"
    )]
    NoQuestions,
    #[error("the model has no tokenizer, and answers are compared as texts; remove `score`")]
    NoTokenizer,
    #[error(transparent)]
    Data(#[from] Box<DataError>),
    #[error(transparent)]
    Tokenizer(#[from] Box<TokenizerError>),
    #[error("the model could not answer: {0}")]
    Generation(#[from] TrainError),
    #[error("`extract`: {0}")]
    Extract(#[from] ExtractError),
    #[error(transparent)]
    Scorer(#[from] ScorerError),
    #[error("asked to stop")]
    Stopped,
}

/// A trained model, and the held-out rows that it answers.
pub(super) struct AnsweringModel<'a> {
    pub(super) trainer: &'a mut Trainer,
    pub(super) held_out: &'a DocumentSet,
    pub(super) files: &'a ModelFiles,
}

/// Generates answers with a trained model and scores them, with `command` too where there is one; the metrics that are known are in
/// `metrics` however it ends. `is_stopped` is asked again and again.
///
/// # Errors
/// See [`ScoringError`].
pub(super) fn score(
    plan: &ScorePlan,
    model: AnsweringModel<'_>,
    command: Option<&ScoreCommand>,
    is_stopped: &dyn Fn() -> bool,
    metrics: &mut Metrics,
) -> Result<(), ScoringError> {
    let AnsweringModel {
        trainer,
        held_out,
        files,
    } = model;
    let vocabulary = Vocabulary::open(files).map_err(Box::new)?;
    let tokenizer = vocabulary.tokenizer().ok_or(ScoringError::NoTokenizer)?;
    let questions = held_out.questions(plan.rows);
    if questions.is_empty() {
        return Err(ScoringError::NoQuestions);
    }
    let rows = answered(plan, trainer, tokenizer, &questions, is_stopped, metrics)?;
    if let Some(exact_match) = &plan.exact_match {
        let matcher = exact_match.matcher()?;
        let right = rows
            .iter()
            .filter(|row| matcher.matches(&row.generation, &row.reference));
        keep_share(right.count() as u64, rows.len() as u64, metrics);
    }
    if let Some(command) = command {
        let began = Instant::now();
        let scored = Scorer::start(command, &rows)?.finish(is_stopped);
        metrics.insert("score_s", began.elapsed().as_secs_f64());
        for (name, value) in scored? {
            metrics.insert(name, value);
        }
    }
    Ok(())
}

fn answered(
    plan: &ScorePlan,
    trainer: &mut Trainer,
    tokenizer: &Tokenizer,
    questions: &[Question],
    is_stopped: &dyn Fn() -> bool,
    metrics: &mut Metrics,
) -> Result<Vec<AnsweredRow>, ScoringError> {
    let began = Instant::now();
    let text = |ids: &[u32], skips_special| tokenizer.decode(ids, skips_special).map_err(Box::new);
    let mut stop_ids = Vec::with_capacity(questions.len());
    for question in questions {
        stop_ids.push(stops(tokenizer, question)?);
    }
    let prompts: Vec<Prompt<'_>> = questions
        .iter()
        .zip(&stop_ids)
        .map(|(question, stop_ids)| Prompt {
            tokens: &question.prompt,
            stop_ids,
        })
        .collect();
    let settings = AnswerSettings {
        max_tokens: plan.max_new_tokens,
        batch: plan.batch,
    };
    let generated = trainer.answers(&prompts, &settings, &mut || match is_stopped() {
        true => Control::Stop,
        false => Control::Continue,
    })?;
    // Whichever of several ranks was asked to.
    if generated.iter().any(|answer| answer.end == TextEnd::Stopped) {
        return Err(ScoringError::Stopped);
    }
    let mut rows = Vec::with_capacity(questions.len());
    for (index, (question, answer)) in questions.iter().zip(&generated).enumerate() {
        // What a template has behind the end of an answer is none of it.
        let reference = question.answer.split(|id| stop_ids[index].contains(id)).next();
        rows.push(AnsweredRow {
            index,
            prompt: text(&question.prompt, false)?,
            reference: text(reference.unwrap_or_default(), true)?,
            generation: text(&answer.tokens, true)?,
        });
    }
    let cut = generated
        .iter()
        .filter(|answer| answer.end != TextEnd::StopToken)
        .count();
    let tokens: usize = generated.iter().map(|answer| answer.tokens.len()).sum();
    metrics.insert("answers", rows.len() as f64);
    metrics.insert("answers_cut", cut as f64);
    metrics.insert("generated_tokens", tokens as f64);
    metrics.insert("generate_s", began.elapsed().as_secs_f64());
    Ok(rows)
}

/// Tokens that end an answer: those that the tokenizer names, and the special token that ends the row's own, as a chat
/// template may have one.
fn stops(tokenizer: &Tokenizer, question: &Question) -> Result<Vec<u32>, Box<TokenizerError>> {
    let mut stops = tokenizer.stop_ids();
    for id in question.answer.iter().rev() {
        let is_special = tokenizer.decode(&[*id], true)?.is_empty() && !tokenizer.decode(&[*id], false)?.is_empty();
        if !is_special && !tokenizer.decode(&[*id], true)?.trim().is_empty() {
            break;
        }
        if is_special && !stops.contains(id) {
            stops.push(*id);
        }
    }
    Ok(stops)
}

/// Keeps the share of right answers with its 95% interval.
fn keep_share(right: u64, all: u64, metrics: &mut Metrics) {
    let Some(interval) = wilson(right, all) else {
        return;
    };
    let share = right as f64 / all as f64;
    metrics.insert(EXACT_MATCH, share);
    metrics.insert("exact_match_right", right as f64);
    metrics.insert("exact_match_low", *interval.start());
    metrics.insert("exact_match_high", *interval.end());
    let farther = (share - interval.start()).max(interval.end() - share);
    // A share of nothing has no relative width; a number that is not finite is not kept.
    metrics.insert(interval_of(EXACT_MATCH), farther / share);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_its_counts_and_its_interval() {
        let mut metrics = Metrics::default();
        keep_share(8, 10, &mut metrics);
        assert_eq!(
            (metrics.value(EXACT_MATCH), metrics.value("exact_match_right")),
            (Some(0.8), Some(8.0))
        );
        let low = metrics.value("exact_match_low").unwrap();
        assert!((low - 0.490_162).abs() < 1e-6);
        assert!((metrics.value("exact_match_interval").unwrap() - (0.8 - low) / 0.8).abs() < 1e-9);
        let mut none = Metrics::default();
        keep_share(0, 10, &mut none);
        assert_eq!(
            (none.value(EXACT_MATCH), none.value("exact_match_interval")),
            (Some(0.0), None)
        );
    }
}
