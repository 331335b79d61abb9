//! Time that whole steps take beside their ops: each op is timed by itself, again and again, with its operands in the
//! caches and at its best; in a step, ops follow one another and find other things there.
//!
//! A few steps of two small random models are timed, and what they take over the sum of their ops is kept as one factor for
//! each precision: the geometric mean of both models'.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;

use super::clock::Effort;
use crate::data::{Document, MicroBatch};
use crate::{BaseModel, TrainError, Trainer};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{Ceilings, Machine, Setting, Workload};
use peft_tune_core::recipe::{AdapterSettings, DataSettings, Precision, Recipe};

/// Width of the residual stream, rows of a micro-batch, tokens of a row.
const MODELS: [[usize; 3]; 2] = [[128, 4, 48], [256, 4, 128]];
const VOCABULARY: usize = 1024;
/// Seconds after which the steps so far are enough, where they are this many behind one that warmed up.
const ENOUGH_S: f64 = 2.0;
const FEWEST: usize = 3;
/// Factors beyond these come from something else than the ops: another program, a machine that sleeps.
const BELIEVED: std::ops::RangeInclusive<f64> = 0.8..=4.0;

/// Ratio of measured to predicted seconds of whole steps; 1 where it cannot be told.
pub(super) fn factor(ceilings: &Ceilings, precision: Precision, effort: Effort) -> Result<f64, TrainError> {
    let models = match effort {
        Effort::Full => &MODELS[..],
        Effort::Coarse => &MODELS[..1],
    };
    let mut logarithms = 0.0;
    for model in models {
        logarithms += ratio(ceilings, precision, *model, effort)?.ln();
    }
    let factor = (logarithms / models.len() as f64).exp();
    Ok(if factor.is_finite() {
        factor.clamp(*BELIEVED.start(), *BELIEVED.end())
    } else {
        1.0
    })
}

fn ratio(ceilings: &Ceilings, precision: Precision, model: [usize; 3], effort: Effort) -> Result<f64, TrainError> {
    let [width, rows, tokens] = model;
    let Some(architecture) = architecture(width) else {
        return Ok(1.0);
    };
    let recipe = recipe(precision, rows, tokens);
    let measured = step_s(architecture.clone(), &recipe, effort)?;
    let predictor = crate::predictor(architecture, Machine::Measured(Box::new(ceilings.clone())));
    let workload = Workload::full(rows, tokens);
    let prediction = predictor.predict(&Setting {
        recipe: &recipe,
        workload: &workload,
    });
    Ok(prediction.map_or(1.0, |prediction| measured / prediction.seconds.total()))
}

/// A decoder of the common shape.
fn architecture(width: usize) -> Option<Architecture> {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": {width}, "intermediate_size": {}, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": {VOCABULARY},
        "max_position_embeddings": 512, "tie_word_embeddings": true}}"#,
        width * 11 / 4
    );
    Architecture::from_json(Path::new("config.json"), &config).ok()
}

fn recipe(precision: Precision, rows: usize, tokens: usize) -> Recipe {
    let mut recipe = Recipe::new("ceiling", DataSettings::default());
    recipe.precision = precision;
    recipe.batch.micro_batch = rows;
    recipe.batch.sequence_length = tokens;
    recipe.adapter = Some(AdapterSettings::default());
    recipe
}

/// Seconds of a step in the median, after a few that warm up.
fn step_s(architecture: Architecture, recipe: &Recipe, effort: Effort) -> Result<f64, TrainError> {
    let (before, counted) = match effort {
        Effort::Full => (4, 25),
        Effort::Coarse => (1, 3),
    };
    let (rows, tokens) = (recipe.batch.micro_batch, recipe.batch.sequence_length);
    let document = |row: usize| {
        let input_ids: Vec<u32> = (0..tokens)
            .map(|place| ((row * 31 + place * 17) % VOCABULARY) as u32)
            .collect();
        let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
        Document { input_ids, labels }
    };
    let documents: Vec<Document> = (0..rows).map(document).collect();
    let batch = [MicroBatch::from_documents(&documents)];
    let base = BaseModel::random(architecture, 1, recipe.precision, &Device::Cpu)?;
    let mut trainer = Trainer::new(Arc::new(base), recipe, 100)?;
    let (began, mut seconds) = (Instant::now(), Vec::with_capacity(counted));
    for step in 0..before + counted {
        let event = trainer.step(&batch)?;
        let is_enough = began.elapsed().as_secs_f64() >= ENOUGH_S;
        if step >= before || (is_enough && step > 0) {
            seconds.push(event.seconds.total);
        }
        if is_enough && seconds.len() >= FEWEST {
            break;
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}
