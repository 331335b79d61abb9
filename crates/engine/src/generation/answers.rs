//! Answers to many prompts: each token is the most likely one, and several prompts are continued at once.
//!
//! The sequences of a batch advance together until the last has ended; what others would say behind their end is not kept. Each reads
//! its own keys and values alone, so that the answers are those that one after the other would be given, up to ties that rounding
//! breaks differently where products have more rows.

use candle_core::D;

use super::generate::{Generated, Generator, TextEnd};
use super::reader::Reader;
use crate::TrainError;
use crate::training::{Control, Trainer};

/// How answers are generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSettings {
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Prompts that are continued at once; 0 counts as 1.
    pub batch: usize,
}

/// A prompt and the tokens that end its answer; the one that did is no part of it.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    pub tokens: &'a [u32],
    pub stop_ids: &'a [u32],
}

impl Trainer {
    /// What the model as trained so far answers to each prompt. `on_token` is asked after each token of a batch whether to go on.
    ///
    /// # Errors
    /// An empty prompt, one that is longer than the model's positions or has tokens that it does not know; memory.
    pub fn answers(
        &mut self,
        prompts: &[Prompt<'_>],
        settings: &AnswerSettings,
        on_token: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Generated>, TrainError> {
        answers(&mut Reader::of_trainer(self), prompts, settings, on_token)
    }
}

impl Generator {
    /// What the model answers to each prompt; see [`Trainer::answers`].
    ///
    /// # Errors
    /// As for [`Trainer::answers`].
    pub fn answers(
        &mut self,
        prompts: &[Prompt<'_>],
        settings: &AnswerSettings,
        on_token: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Generated>, TrainError> {
        self.check_shared()?;
        answers(&mut self.reader(), prompts, settings, on_token)
    }
}

/// One answer under way.
struct Answer<'a> {
    prompt: Prompt<'a>,
    tokens: Vec<u32>,
    end: Option<TextEnd>,
}

impl Answer<'_> {
    fn sequence(&self) -> Vec<u32> {
        [self.prompt.tokens, &self.tokens].concat()
    }

    /// Takes the token that follows, unless it has ended.
    fn take(&mut self, token: u32, max_tokens: usize) {
        if self.end.is_some() {
            return;
        }
        if self.prompt.stop_ids.contains(&token) {
            self.end = Some(TextEnd::StopToken);
            return;
        }
        self.tokens.push(token);
        if self.tokens.len() >= max_tokens {
            self.end = Some(TextEnd::MaxTokens);
        }
    }
}

fn answers(
    reader: &mut Reader<'_>,
    prompts: &[Prompt<'_>],
    settings: &AnswerSettings,
    on_token: &mut dyn FnMut() -> Control,
) -> Result<Vec<Generated>, TrainError> {
    let begun = prompts.iter().map(|prompt| Answer {
        prompt: *prompt,
        tokens: Vec::new(),
        end: (settings.max_tokens == 0).then_some(TextEnd::MaxTokens),
    });
    let mut all: Vec<Answer<'_>> = begun.collect();
    let mut goes_on = true;
    for batch in all.chunks_mut(batch_size(reader, prompts, settings)) {
        while goes_on && batch.iter().any(|answer| answer.end.is_none()) {
            goes_on = continued(reader, batch, settings, on_token)?;
        }
    }
    let ended = all.into_iter().map(|answer| Generated {
        tokens: answer.tokens,
        end: answer.end.unwrap_or(TextEnd::Stopped),
    });
    Ok(ended.collect())
}

/// How many prompts go together: one, where the ropes of a short sequence turn otherwise beside a long one.
fn batch_size(reader: &Reader<'_>, prompts: &[Prompt<'_>], settings: &AnswerSettings) -> usize {
    let lengths = || prompts.iter().map(|prompt| prompt.tokens.len());
    let longest = lengths().max().unwrap_or(0) + settings.max_tokens;
    let turns_alike = lengths().all(|length| !reader.ropes.turns_otherwise(length, longest));
    if turns_alike { settings.batch.max(1) } else { 1 }
}

/// Continues the answers that have not ended, until all have, or one has no room, or what was kept is of no use any more. Whether to
/// go on.
fn continued(
    reader: &mut Reader<'_>,
    batch: &mut [Answer<'_>],
    settings: &AnswerSettings,
    on_token: &mut dyn FnMut() -> Control,
) -> Result<bool, TrainError> {
    let positions = reader.base.architecture().max_positions;
    let mut open: Vec<&mut Answer<'_>> = batch.iter_mut().filter(|answer| answer.end.is_none()).collect();
    let sequences: Vec<Vec<u32>> = open.iter().map(|answer| answer.sequence()).collect();
    let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let longest = sequences.iter().map(|sequence| sequence.len()).max().unwrap_or(0);
    let (mut decoding, mut logits) = reader.begin(&sequences, None, positions.min(longest + settings.max_tokens))?;
    loop {
        let tokens: Vec<u32> = logits.argmax(D::Minus1)?.to_vec1()?;
        for (answer, token) in open.iter_mut().zip(&tokens) {
            answer.take(*token, settings.max_tokens);
            if answer.end.is_none() && answer.prompt.tokens.len() + answer.tokens.len() > positions {
                answer.end = Some(TextEnd::MaxPositions);
            }
        }
        if on_token() == Control::Stop {
            return Ok(false);
        }
        let next = decoding.longest() + 1;
        let turns_otherwise = reader.ropes.turns_otherwise(decoding.longest(), next);
        if open.iter().all(|answer| answer.end.is_some()) || !decoding.has_room() || turns_otherwise {
            return Ok(true);
        }
        logits = reader.advance(&mut decoding, &tokens)?;
    }
}
