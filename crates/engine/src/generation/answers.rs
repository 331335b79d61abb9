//! Answers to many prompts: each token is the most likely one, and several prompts are continued at once.
//!
//! The sequences of a batch advance together until the last has ended; what others would say behind their end is not kept. Each reads
//! its own keys and values alone, so that the answers are those that one after the other would be given, up to ties that rounding
//! breaks differently where products have more rows.

use std::sync::Arc;

use candle_core::D;

use super::generate::{Generated, Generator, TextEnd};
use super::reader::Reader;
use crate::TrainError;
use crate::parallel::{Collective, CollectiveError};
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
    /// Answers of the model as trained so far to each prompt. `on_token` is asked after each token of a batch whether
    /// to go on.
    ///
    /// Of several ranks each answers its own batches, and all know all answers; where one is asked to stop, its answers under way end as
    /// [`TextEnd::Stopped`] on each. Ranks that share out their weights read each batch together.
    ///
    /// # Errors
    /// An empty prompt, one that is longer than the model's positions or has tokens that it does not know; memory; a rank that is
    /// gone, or that could not answer.
    pub fn answers(
        &mut self,
        prompts: &[Prompt<'_>],
        settings: &AnswerSettings,
        on_token: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Generated>, TrainError> {
        let collective = Arc::clone(self.collective());
        let gathers = self.gathers_weights();
        let reader = &mut Reader::of_trainer(self);
        let size = batch_size(reader, prompts, settings);
        if !gathers {
            let parts = Parts {
                rank: collective.rank(),
                ranks: collective.ranks(),
                size,
            };
            let own = parts.own(prompts);
            let own = answers(reader, &own, size, settings, on_token);
            return parts.exchange(own, prompts.len(), settings.max_tokens, collective.as_ref());
        }
        // A rank that stopped by itself would be missing in the next gather.
        let mut gone = None;
        let mut as_one = || {
            let mut stops = [f64::from(u8::from(on_token() == Control::Stop))];
            gone = collective.highest(&mut stops).err();
            match gone.is_some() || stops[0] > 0.0 {
                true => Control::Stop,
                false => Control::Continue,
            }
        };
        let answered = answers(reader, prompts, size, settings, &mut as_one)?;
        gone.map_or(Ok(answered), |error| Err(error.into()))
    }
}

impl Generator {
    /// Answers of the model to each prompt; see [`Trainer::answers`].
    ///
    /// # Errors
    /// Errors of [`Trainer::answers`].
    pub fn answers(
        &mut self,
        prompts: &[Prompt<'_>],
        settings: &AnswerSettings,
        on_token: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Generated>, TrainError> {
        self.check_shared()?;
        let reader = &mut self.reader();
        let size = batch_size(reader, prompts, settings);
        answers(reader, prompts, size, settings, on_token)
    }
}

/// Batches of prompts that a rank answers: one of each `ranks`.
struct Parts {
    rank: usize,
    ranks: usize,
    /// Prompts of a batch.
    size: usize,
}

/// How an answer can end, by the number that ranks tell one another.
const ENDS: [TextEnd; 4] = [
    TextEnd::StopToken,
    TextEnd::MaxTokens,
    TextEnd::MaxPositions,
    TextEnd::Stopped,
];

impl Parts {
    fn is_own(&self, prompt: usize) -> bool {
        prompt / self.size % self.ranks == self.rank
    }

    fn own<'p>(&self, prompts: &[Prompt<'p>]) -> Vec<Prompt<'p>> {
        let all = prompts.iter().enumerate();
        all.filter(|(index, _)| self.is_own(*index))
            .map(|(_, prompt)| *prompt)
            .collect()
    }

    /// The answers of all ranks to `count` prompts, in the order of the prompts. A rank that failed takes part, so that nobody waits for it.
    fn exchange(
        &self,
        own: Result<Vec<Generated>, TrainError>,
        count: usize,
        max_tokens: usize,
        collective: &dyn Collective,
    ) -> Result<Vec<Generated>, TrainError> {
        if self.ranks == 1 {
            return own;
        }
        // Whether each rank failed; then of each answer its end, the number of its tokens, and these.
        let mut told = vec![0.0; self.ranks + count * (2 + max_tokens)];
        let (failed, answers) = told.split_at_mut(self.ranks);
        match &own {
            Ok(own) => {
                let places = answers.chunks_mut(2 + max_tokens).enumerate();
                let places = places.filter(|(index, _)| self.is_own(*index));
                for (answer, (_, place)) in own.iter().zip(places) {
                    let end = ENDS.iter().position(|end| *end == answer.end);
                    place[0] = end.unwrap_or_default() as f64;
                    place[1] = answer.tokens.len() as f64;
                    for (number, token) in place[2..].iter_mut().zip(&answer.tokens) {
                        *number = f64::from(*token);
                    }
                }
            }
            Err(_) => failed[self.rank] = 1.0,
        }
        let exchanged = collective.sum_numbers(&mut told);
        own?;
        exchanged?;
        let (failed, answers) = told.split_at(self.ranks);
        if let Some(rank) = failed.iter().position(|failed| *failed > 0.0) {
            let ranks = self.ranks;
            return Err(CollectiveError::Failed { rank, ranks }.into());
        }
        let answers = answers.chunks(2 + max_tokens).map(|place| Generated {
            tokens: place[2..]
                .iter()
                .take(place[1] as usize)
                .map(|token| *token as u32)
                .collect(),
            end: ENDS.get(place[0] as usize).copied().unwrap_or(TextEnd::Stopped),
        });
        Ok(answers.collect())
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

/// Answers to prompts, `size` of them at a time.
fn answers(
    reader: &mut Reader<'_>,
    prompts: &[Prompt<'_>],
    size: usize,
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
    for batch in all.chunks_mut(size) {
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
