//! The forms of a model that are measured, and measuring them.

use std::path::Path;
use std::sync::Arc;

use super::args::Args;
use super::prompts::Prompts;
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use peft_tune_core::recipe::{DataSettings, Recipe};
use peft_tune_engine::profile::{
    InferenceLoad, InferencePoint, RequestLoad, RequestPoint, measure_inference, measure_requests,
};
use peft_tune_engine::{BaseModel, Generator, TrainError};

/// What is measured of each form.
pub(super) struct Bench<'a> {
    pub args: &'a Args,
    pub prompts: Option<&'a Prompts>,
    /// Device bytes that were in use before the model.
    pub program_bytes: u64,
}

/// A form of the model, with its points.
pub(super) struct FormPoints {
    /// `base`, `adapter`, `merged` or `together`.
    pub form: &'static str,
    pub rank: Option<usize>,
    /// Adapters that the sequences of a batch have in turn.
    pub adapters: usize,
    pub points: Vec<InferencePoint>,
    pub requests: Vec<RequestPoint>,
}

impl FormPoints {
    /// What people call the form.
    pub(super) fn name(&self) -> String {
        name(self.form, self.rank, self.adapters)
    }
}

fn name(form: &str, rank: Option<usize>, adapters: usize) -> String {
    match (rank, adapters) {
        (Some(rank), 0) => format!("{form} r{rank}"),
        (Some(rank), adapters) => format!("{adapters} adapters, r{rank} in all"),
        (None, _) => form.to_owned(),
    }
}

impl Bench<'_> {
    /// Measures base, then adapter and merged for each rank or for the given adapter, then adapters side by side.
    pub(super) fn measure(&self, model: &str, base: Arc<BaseModel>) -> Result<Vec<FormPoints>, CliError> {
        let args = self.args;
        let new = |adapter: Option<&Path>| Generator::new(Arc::clone(&base), adapter);
        let fresh = |rank: u32, count: Option<u32>| match count {
            None => Generator::with_fresh_adapter(Arc::clone(&base), &recipe(model, rank as usize)),
            Some(count) => {
                Generator::with_fresh_adapters(Arc::clone(&base), &recipe(model, rank as usize), count as usize)
            }
        };
        let mut measured = vec![self.form("base", &mut new(None).map_err(failed)?)?];
        if !args.adapters.is_empty() {
            let folders: Vec<&Path> = args.adapters.iter().map(|folder| folder.as_path()).collect();
            let mut together = Generator::side_by_side(Arc::clone(&base), &folders).map_err(failed)?;
            measured.push(self.form("together", &mut together)?);
            return Ok(measured);
        }
        for rank in &args.ranks {
            for count in &args.together {
                let mut together = fresh(*rank, Some(*count)).map_err(failed)?;
                measured.push(self.form("together", &mut together)?);
            }
        }
        let adapted = match &args.base.adapter {
            Some(folder) => vec![new(Some(folder)).map_err(failed)?],
            None => {
                let each = args.ranks.iter().map(|rank| fresh(*rank, None));
                each.collect::<Result<_, _>>().map_err(failed)?
            }
        };
        // The merged model stands for itself: the base model is released where nothing else needs it.
        drop(base);
        for mut generator in adapted {
            measured.push(self.form("adapter", &mut generator)?);
            let rank = generator.adapter_rank();
            let mut merged = self.form("merged", &mut generator.into_merged().map_err(failed)?)?;
            merged.rank = rank;
            measured.push(merged);
        }
        Ok(measured)
    }

    /// Every batch size with every prompt length, and with the requests.
    fn form(&self, form: &'static str, generator: &mut Generator) -> Result<FormPoints, CliError> {
        let args = self.args;
        let (rank, adapters) = (generator.adapter_rank(), generator.adapters());
        let name = name(form, rank, adapters);
        let mut measured = FormPoints {
            form,
            rank,
            adapters,
            points: Vec::new(),
            requests: Vec::new(),
        };
        for prompt_tokens in &args.prompt_lengths {
            for batch in &args.batch_sizes {
                tell(format_args!("{name}: batch {batch}, prompts of {prompt_tokens} tokens"));
                let load = InferenceLoad {
                    batch: *batch as usize,
                    prompt_tokens: *prompt_tokens as usize,
                    new_tokens: args.new_tokens as usize,
                };
                let point = measure_inference(generator, load, args.budget.0, self.program_bytes);
                measured.points.push(point.map_err(failed)?);
            }
        }
        let Some(prompts) = self.prompts else {
            return Ok(measured);
        };
        for batch in &args.batch_sizes {
            tell(format_args!("{name}: batch {batch}, {} requests", prompts.texts.len()));
            let load = RequestLoad {
                prompts: &prompts.texts,
                batch: *batch as usize,
                new_tokens: args.new_tokens as usize,
                budget_s: args.budget.0,
                program_bytes: self.program_bytes,
            };
            let point = measure_requests(generator, &prompts.tokenizer, &load);
            measured.requests.push(point.map_err(failed)?);
        }
        Ok(measured)
    }
}

fn failed(error: TrainError) -> CliError {
    match error.out_of_memory() {
        true => CliError::failed(error),
        false => CliError::bad_input(error),
    }
}

/// A recipe whose only purpose is its adapter.
fn recipe(model: &str, rank: usize) -> Recipe {
    let mut recipe = Recipe::new(model, DataSettings::default());
    if let Some(adapter) = &mut recipe.adapter {
        (adapter.rank, adapter.alpha) = (rank, 2.0 * rank as f64);
    }
    recipe
}

/// Refuses prompts and answers that are longer than the model has positions.
pub(super) fn check_lengths(args: &Args, base: &BaseModel) -> Result<(), CliError> {
    let positions = base.architecture().max_positions;
    let longest = args.prompt_lengths.iter().max().map_or(0, |length| *length as usize);
    let needed = longest + args.new_tokens as usize;
    if needed <= positions {
        return Ok(());
    }
    let message = format!(
        "prompts of {longest} tokens and {} new ones need {needed} positions, and this model has {positions}; lower \
         `--prompt-lengths` or `--new-tokens`",
        args.new_tokens
    );
    Err(CliError::bad_input(anyhow::anyhow!(message)))
}
