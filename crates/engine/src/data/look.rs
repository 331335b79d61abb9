//! Rows as they are trained: each token with its text, whose message it is of and whether it is learnt; what is left out or cut,
//! and why.
//!
//! Rows go the way that training takes them, without the cache: the first ones of a large file are there at once.

use std::ops::ControlFlow;
use std::path::PathBuf;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::encode::{encode, encode_traced};
use super::encoded_row::EncodedRow;
use super::example::Example;
use super::format::RowParser;
use super::learnt::Learnt;
use super::length_limit::LengthLimit;
use super::meter::{Meter, bytes_of};
use super::notes::Notes;
use super::on_disk::on_disk;
use super::order::Permutation;
use super::prepared::{by_set, check, with_template};
use super::progress;
use super::readers::{count_rows, read_rows};
use super::row_warnings::note_warnings;
use super::seen::{RowsSeen, RowsSummary, ShownRow, ShownToken, kept_tokens, learnt, longest_sequence};
use super::split::HeldOutRows;
use super::token_trace::Trace;
use super::tokens::{NO_TARGET, RowKind, TokenRow};
use super::{BatchSource, DataError, PreparedData, RowLocation, Vocabulary};
use crate::hub::ModelFiles;
use peft_tune_core::recipe::{DataSettings, HeldOut, LongRows, Recipe};

/// Rows that are tokenised at once.
const ROWS_AT_ONCE: usize = 1024;
/// Tokens that are shown in all.
const MOST_TOKENS: usize = 100_000;
/// Bytes of files up to which their rows are counted, to know which are held out, though only the first are looked at.
const COUNTED_BYTES: u64 = 64 << 20;

/// Rows to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsWanted {
    /// Rows at the beginning of the training files; nothing behind them is read.
    First,
    /// The row of this number, from 1, counted through the training files and then the held-out ones.
    Number(u64),
    /// Rows with the most tokens.
    Longest,
    /// Rows drawn from all, by a seed.
    Random(u64),
    /// Rows that are cut or split, the first ones.
    Cut,
    /// Rows that are left out, or have nothing to learn within the sequence length, the first ones.
    WithoutTargets,
    /// Rows that a step of the training takes, which counts from 0: its micro-batches, with the documents that they
    /// hold.
    Step(u64),
}

/// Question about rows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LookAt {
    pub wanted: RowsWanted,
    pub most: usize,
    /// Held-out rows alone.
    pub held_out: bool,
}

/// A row on its way.
struct Met {
    number: u64,
    location: RowLocation,
    example: Example,
    is_held_out: Option<bool>,
}

/// Looks at the rows of a recipe.
///
/// # Errors
/// See [`DataError`]; a row that cannot be read ends the looking.
pub fn look_at_rows(recipe: &Recipe, files: &ModelFiles, asked: LookAt) -> Result<RowsSeen, DataError> {
    check(&recipe.data)?;
    if let RowsWanted::Step(step) = asked.wanted {
        return step_seen(recipe, files, step, asked.most);
    }
    let settings = &on_disk(&recipe.data)?;
    let vocabulary = with_template(&Vocabulary::open(files)?, settings)?;
    let mut look = Look {
        vocabulary: &vocabulary,
        sequence_length: recipe.batch.sequence_length,
        held_out_length: settings.held_out_length,
        long_rows: settings.long_rows,
        asked,
        seen: 0,
        kept: Vec::new(),
        notes: Notes::default(),
        summary: RowsSummary::default(),
        uses_template: false,
        waiting: Vec::new(),
        learnt: Learnt::from(settings),
        random: None,
    };
    look.summary.is_whole = true;
    'sets: for settings in by_set(settings) {
        for (files, is_held_out) in [
            (settings.train.files().cloned().collect::<Vec<_>>(), false),
            (settings.held_out.files().to_vec(), true),
        ] {
            if look
                .read(&settings, &files, is_held_out, recipe.training.seed)?
                .is_break()
            {
                look.summary.is_whole = false;
                break 'sets;
            }
        }
    }
    look.finish()
}

/// Rows that a step takes.
fn step_seen(recipe: &Recipe, files: &ModelFiles, step: u64, most: usize) -> Result<RowsSeen, DataError> {
    let data = PreparedData::make(recipe, files)?;
    let vocabulary = Vocabulary::open(files)?;
    let source = BatchSource::of_recipe(&data, recipe)?;
    let micro_batches = source.global_batch(step);
    let of_step = micro_batches.len();
    let (mut rows, mut room) = (Vec::new(), MOST_TOKENS);
    for (number, batch) in micro_batches.into_iter().enumerate().take(most) {
        let targets = std::iter::once(false).chain(batch.targets.iter().map(|target| *target >= 0));
        let shown = batch.input_ids.len().min(room);
        let tokens = batch
            .input_ids
            .iter()
            .zip(targets)
            .take(shown)
            .map(|(id, target)| ShownToken {
                id: *id,
                text: vocabulary.token_text(*id).unwrap_or_default(),
                target,
                role: None,
            });
        let inner = batch
            .offsets
            .get(1..batch.offsets.len().saturating_sub(1))
            .unwrap_or_default();
        rows.push(ShownRow {
            number: number as u64 + 1,
            location: format!("step {step}, micro-batch {}", number + 1),
            set: Some("training".to_owned()),
            tokens: tokens.collect(),
            boundaries: inner.iter().map(|at| *at as usize).collect(),
            hidden: batch.input_ids.len() - shown,
            kept: batch.input_ids.len(),
            is_running: false,
            left_out: None,
        });
        room -= shown;
    }
    Ok(RowsSeen {
        rows,
        summary: data.summary(),
        micro_batches: Some(of_step),
        warnings: data.warnings(),
    })
}

/// The looking.
struct Look<'a> {
    vocabulary: &'a Vocabulary,
    sequence_length: usize,
    /// Length of held-out rows, where it is another one.
    held_out_length: Option<usize>,
    long_rows: LongRows,
    asked: LookAt,
    /// Rows so far.
    seen: u64,
    /// Rows to show, with what they are chosen by.
    kept: Vec<(u64, Met)>,
    notes: Notes,
    summary: RowsSummary,
    uses_template: bool,
    waiting: Vec<Met>,
    learnt: Learnt,
    random: Option<Permutation>,
}

impl Look<'_> {
    fn read(
        &mut self,
        settings: &DataSettings,
        files: &[PathBuf],
        is_held_out: bool,
        seed: u64,
    ) -> Result<ControlFlow<()>, DataError> {
        let has_template = self
            .vocabulary
            .tokenizer()
            .is_some_and(|one| one.chat_template().is_some());
        let limit = if is_held_out {
            usize::MAX
        } else {
            settings.max_rows.unwrap_or(usize::MAX)
        };
        let chosen = match &settings.held_out {
            HeldOut::Fraction(fraction) if !is_held_out => self.chosen(files, *fraction, seed, limit),
            _ => Some(HeldOutRows::default()),
        };
        let mut count = 0;
        for path in files {
            if count >= limit {
                break;
            }
            let mut parser = RowParser::new(settings.format, &settings.columns, has_template);
            let mut ended = ControlFlow::Continue(());
            read_rows(path, &Meter::default(), &mut |location, record| {
                let example = parser.parse(&location, record)?;
                progress::count();
                self.seen += 1;
                let is_held_out = match (is_held_out, &chosen) {
                    (true, _) => Some(true),
                    (false, Some(chosen)) => Some(chosen.contain(count)),
                    (false, None) => None,
                };
                count += 1;
                self.waiting.push(Met {
                    number: self.seen,
                    location,
                    example,
                    is_held_out,
                });
                ended = match self.is_enough() || count >= limit {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                };
                if ended.is_break() || self.waiting.len() >= ROWS_AT_ONCE {
                    self.take()?;
                }
                Ok(ended)
            })?;
            self.take()?;
            self.summary.formats.extend(parser.recognised_as());
            self.summary.columns.extend(parser.read_columns());
            for (column, rows) in parser.unread {
                *self.notes.unread.entry(column).or_default() += rows;
            }
            if self.is_enough() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The rows of a fraction that are held out; `None` where counting them would take long for a look at a few.
    fn chosen(&self, files: &[PathBuf], fraction: f64, seed: u64, limit: usize) -> Option<HeldOutRows> {
        let is_quick = matches!(self.asked.wanted, RowsWanted::First | RowsWanted::Number(_));
        if is_quick && !self.asked.held_out && bytes_of(files.iter()) > COUNTED_BYTES {
            return None;
        }
        Some(HeldOutRows::new(count_rows(files, &[], limit), fraction, seed))
    }

    /// The length of a set's rows; of training rows where it is not known yet which are held out.
    fn limit(&self, is_held_out: Option<bool>) -> LengthLimit {
        let of_held_out = self.held_out_length.filter(|_| is_held_out == Some(true));
        LengthLimit {
            tokens: of_held_out.unwrap_or(self.sequence_length),
            long_rows: self.long_rows,
        }
    }

    /// Whether what is asked for was met.
    fn is_enough(&self) -> bool {
        let counted = |met: &&Met| !self.asked.held_out || met.is_held_out == Some(true);
        match self.asked.wanted {
            RowsWanted::First => self.kept.len() + self.waiting.iter().filter(counted).count() >= self.asked.most,
            RowsWanted::Number(number) => self.seen >= number,
            _ => false,
        }
    }

    /// Tokenises what waits, counts it, and keeps what may be shown.
    fn take(&mut self) -> Result<(), DataError> {
        let waiting = std::mem::take(&mut self.waiting);
        let (vocabulary, of_rows) = (self.vocabulary, self.learnt);
        let encoded: Vec<Result<EncodedRow, DataError>> = waiting
            .par_iter()
            .map(|met| {
                progress::count();
                encode(&met.location, &met.example, vocabulary, of_rows)
            })
            .collect();
        for (met, encoded) in waiting.into_iter().zip(encoded) {
            let EncodedRow { row, notes } = encoded?;
            self.uses_template |= met.example.is_chat();
            let limit = self.limit(met.is_held_out);
            let of_set = match met.is_held_out {
                Some(true) => (&mut self.summary.held_out, &mut self.notes.held_out),
                _ => (&mut self.summary.training, &mut self.notes.train),
            };
            of_set.1.add(&met.location, notes);
            let is_cut = of_set.0.add(row.as_ref(), limit);
            let tokens = row.as_ref().map_or(0, |row| row.ids.len()) as u64;
            let is_learnt = row.is_some_and(|row| learnt(&row, limit) > 0);
            self.offer(met, tokens, is_cut, is_learnt);
        }
        Ok(())
    }

    fn offer(&mut self, met: Met, tokens: u64, is_cut: bool, is_learnt: bool) {
        if self.asked.held_out && met.is_held_out != Some(true) {
            return;
        }
        let most = self.asked.most;
        let has_room = self.kept.len() < most;
        match self.asked.wanted {
            RowsWanted::Number(number) if met.number == number => self.kept.push((0, met)),
            RowsWanted::First if has_room => self.kept.push((0, met)),
            RowsWanted::Cut if has_room && is_cut => self.kept.push((0, met)),
            RowsWanted::WithoutTargets if has_room && !is_learnt => self.kept.push((0, met)),
            RowsWanted::Longest => self.keep_greatest(tokens, met),
            RowsWanted::Random(seed) => {
                // Each row draws a number, whatever comes behind it: the greatest are shown.
                let order = self.random.get_or_insert_with(|| Permutation::new(seed, 0, 1 << 30));
                let drawn = order.at((met.number % (1 << 30)) as usize) as u64;
                self.keep_greatest(drawn, met);
            }
            _ => {}
        }
    }

    fn keep_greatest(&mut self, key: u64, met: Met) {
        let most = self.asked.most;
        let at = self.kept.partition_point(|(other, _)| *other >= key);
        if at < most {
            self.kept.insert(at, (key, met));
            self.kept.truncate(most);
        }
    }

    fn finish(mut self) -> Result<RowsSeen, DataError> {
        let (mut rows, mut room) = (Vec::new(), MOST_TOKENS);
        for (_, met) in std::mem::take(&mut self.kept) {
            let mut row = self.shown(met)?;
            row.hidden = row.tokens.len().saturating_sub(room);
            row.tokens.truncate(room);
            room -= row.tokens.len();
            rows.push(row);
        }
        let mut summary = self.summary;
        summary.sequence_length = self.sequence_length;
        let template = self
            .vocabulary
            .tokenizer()
            .and_then(|tokenizer| tokenizer.chat_template());
        if let Some(template) = template.filter(|_| self.uses_template) {
            summary.chat_template = Some(template.origin().to_owned());
            summary.marks_answers = template.marks_answers();
        }
        summary.unread_columns = self.notes.unread.clone().into_iter().collect();
        summary.stops = self.notes.train.stops_learnt();
        let counts = [summary.training.rows, summary.held_out.rows];
        let warnings = note_warnings([(&self.notes, counts)], self.vocabulary);
        Ok(RowsSeen {
            rows,
            summary,
            micro_batches: None,
            warnings,
        })
    }

    fn shown(&self, met: Met) -> Result<ShownRow, DataError> {
        let mut trace = Trace::default();
        let encoded = encode_traced(&met.location, &met.example, self.vocabulary, self.learnt, &mut trace)?;
        let set = met
            .is_held_out
            .map(|held_out| if held_out { "held-out" } else { "training" }.to_owned());
        let refused = encoded.notes.refused.map(|reason| format!("its {reason}"));
        let empty = || "there is nothing in it to learn".to_owned();
        let Some(row) = encoded.row else {
            return Ok(ShownRow {
                number: met.number,
                location: met.location.to_string(),
                set,
                tokens: Vec::new(),
                boundaries: Vec::new(),
                hidden: 0,
                kept: 0,
                is_running: false,
                left_out: Some(refused.unwrap_or_else(empty)),
            });
        };
        let is_running = row.kind == RowKind::Running;
        let (limit, longest) = (self.limit(met.is_held_out), longest_sequence(&row));
        let left_out = match (learnt(&row, limit), learnt(&row, LengthLimit::NONE)) {
            (1.., _) => None,
            (0, 0) => Some(empty()),
            (0, _) if limit.leaves_out(row.kind, longest) => Some(format!(
                "it has {longest} tokens, more than {} (`long_rows: drop`)",
                limit.tokens
            )),
            (0, _) => Some(format!("what it teaches begins behind {} tokens", limit.tokens)),
        };
        Ok(ShownRow {
            number: met.number,
            location: met.location.to_string(),
            set,
            tokens: self.tokens(&row, &trace),
            boundaries: row.sequences().iter().skip(1).map(|sequence| sequence.start).collect(),
            hidden: 0,
            kept: kept_tokens(&row, limit),
            is_running,
            left_out,
        })
    }

    fn tokens(&self, row: &TokenRow, trace: &Trace) -> Vec<ShownToken> {
        let decode = |id: u32| self.vocabulary.token_text(id).unwrap_or_default();
        let mut before = 0;
        let mut tokens = Vec::with_capacity(row.ids.len());
        for (at, (id, label)) in row.ids.iter().zip(&row.labels).enumerate() {
            let end = trace.ends.get(at).copied();
            let written = end
                .and_then(|end| trace.text.get(before..end))
                .filter(|text| !text.is_empty());
            let role = end.filter(|end| *end > 0).and_then(|end| trace.role_at(end - 1));
            tokens.push(ShownToken {
                id: *id,
                text: written.map_or_else(|| decode(*id), str::to_owned),
                // The first token of a row is what the others follow.
                target: at > 0 && *label != NO_TARGET,
                role: role.map(str::to_owned),
            });
            before = end.unwrap_or(before).max(before);
        }
        tokens
    }
}
