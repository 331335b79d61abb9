//! Predicted against measured throughput and memory on settings of a study file, and how both are ranked.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use peft_tune::space::{ReadOptions, Study, StudyFile, recipe_for};
use peft_tune::tune::{Forecast, TrainingRows};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{Machine, Prediction, RowLengths};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_core::study::Params;
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::ceilings;
use peft_tune_engine::profile::ceilings::Effort;
use peft_tune_engine::profile::{HostMemory, Throughput};
use peft_tune_engine::{BaseModel, Trainer};
use peft_tune_kernels::device;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// One setting: what was predicted before any trial, and what was measured.
struct Row {
    params: Params,
    prediction: Prediction,
    tokens_per_s: f64,
    peak_bytes: f64,
}

/// Draws `count` settings of the study in `path`, predicts and measures each, and prints the errors.
pub(crate) fn run(path: &Path, count: usize, seed: u64) {
    let text = std::fs::read_to_string(path).expect("the study file can be read");
    let study = StudyFile::parse(path, &text, ReadOptions::default()).expect("the study file is sound");
    let base = study.base.clone().expect("a study of the native backend");
    let files = ModelFiles::resolve_weights(&base.model, &mut ()).expect("the model is there");
    let data = PreparedData::of_recipe(&base, &files).expect("the data is there");
    let started = std::time::Instant::now();
    let measured = ceilings::measure(&[Precision::Fp32, Precision::Bf16], Effort::of_this_build()).expect("ceilings");
    println!("ceilings measured in {:.1} s", started.elapsed().as_secs_f64());
    for one in measured.headlines() {
        println!("  {:<24}{:>10.1} {}", one.name, one.value, one.unit);
    }
    let source = BatchSource::new(data.train().clone(), &base.batch, RowOrder::File).expect("rows");
    let mut rows = TrainingRows::default();
    rows.insert(&base.batch, RowLengths::new(source.row_documents()));
    let predictor = peft_tune_engine::predictor(
        Architecture::from_config(&files.config).expect("a known architecture"),
        Machine::Measured(Box::new(measured)),
    );
    let forecast = Forecast::new(&study, predictor, rows);
    let mut random = Pcg64::seed_from_u64(seed);
    let mut table = Vec::new();
    for _ in 0..count {
        let point: Vec<f64> = (0..study.space.dimensions()).map(|_| random.random()).collect();
        let params = study.space.params_at(&point);
        let prediction = forecast.predict(&params).expect("the space holds recipes only");
        let (tokens_per_s, peak_bytes) = measure(&study, &params, &files, &data);
        table.push(Row {
            params: forecast.cost_params(&params),
            prediction,
            tokens_per_s,
            peak_bytes,
        });
    }
    print(&forecast, &table);
}

/// Steps as a trial's profile phase takes them: the worst case, a warm-up, then measured ones.
fn measure(study: &Study, params: &Params, files: &ModelFiles, data: &PreparedData) -> (f64, f64) {
    let recipe: Recipe = recipe_for(study, params).expect("the space holds recipes only");
    let order = RowOrder::Shuffled { seed: 1 };
    let source = BatchSource::new(data.train().clone(), &recipe.batch, order);
    let source = source.expect("rows").of_full_steps();
    let pool = rayon::ThreadPoolBuilder::new().build().expect("threads");
    pool.install(|| {
        ceilings::warm_threads().expect("a small op runs");
        device::forget_scratch();
        let before = HostMemory::in_use_bytes();
        let base = BaseModel::load(&files.folder, recipe.precision, &Device::Cpu).expect("the model loads");
        HostMemory::reset_peak();
        let mut trainer = Trainer::new(Arc::new(base), &recipe, 100).expect("the recipe fits");
        trainer.step(&[source.longest_micro_batch()]).expect("a step");
        let mut steps = Vec::new();
        for step in 0..9 {
            let event = trainer.step(&source.global_batch(step)).expect("a step");
            if step >= 2 {
                steps.push((event.seconds.total, event.tokens));
            }
        }
        let throughput = Throughput::from_steps(&steps).map_or(0.0, |found| found.tokens_per_s);
        (throughput, (HostMemory::peak_bytes() - before) as f64)
    })
}

fn print(forecast: &Forecast, table: &[Row]) {
    let mut correction = forecast.correction();
    let mut after = Vec::new();
    for (index, row) in table.iter().enumerate() {
        let expected = correction.tokens_per_s(&row.prediction);
        let params: Vec<String> = row
            .params
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let off = |predicted: f64, measured: f64| 100.0 * (predicted / measured - 1.0);
        println!(
            "{:>3} predicted {:>7.0} corrected {:>7.0} +-{:>2.0}% measured {:>7.0} ({:+.1}%, {:+.1}%) memory {:+.1}% | {}",
            index,
            row.prediction.tokens_per_s(),
            expected.value,
            100.0 * expected.deviation,
            row.tokens_per_s,
            off(row.prediction.tokens_per_s(), row.tokens_per_s),
            off(expected.value, row.tokens_per_s),
            off(row.prediction.peak_bytes() as f64, row.peak_bytes),
            params.join(", ")
        );
        if index >= 5 {
            after.push((expected.value / row.tokens_per_s - 1.0).abs());
        } else {
            correction.learn(&row.prediction, Some(row.tokens_per_s), Some(row.peak_bytes));
        }
    }
    let errors = |of: fn(&Row) -> f64| table.iter().map(|row| of(row).abs()).collect::<Vec<f64>>();
    let before = errors(|row| row.prediction.tokens_per_s() / row.tokens_per_s - 1.0);
    let memory = errors(|row| row.prediction.peak_bytes() as f64 / row.peak_bytes - 1.0);
    for (name, mut errors) in [
        ("throughput before any trial", before),
        ("throughput after five trials", after),
        ("peak memory", memory),
    ] {
        errors.sort_by(f64::total_cmp);
        let at = |share: f64| 100.0 * errors[((errors.len() - 1) as f64 * share) as usize];
        println!(
            "{name}: median error {:.1}%, 90% within {:.1}%, largest {:.1}%",
            at(0.5),
            at(0.9),
            at(1.0)
        );
    }
    let predicted: Vec<f64> = table.iter().map(|row| row.prediction.tokens_per_s()).collect();
    let measured: Vec<f64> = table.iter().map(|row| row.tokens_per_s).collect();
    println!("Spearman of throughput: {:.3}", spearman(&predicted, &measured));
    let predicted: Vec<f64> = table.iter().map(|row| row.prediction.peak_bytes() as f64).collect();
    let measured: Vec<f64> = table.iter().map(|row| row.peak_bytes).collect();
    println!("Spearman of peak memory: {:.3}", spearman(&predicted, &measured));
}

/// Rank correlation; equal values share the mean of their ranks.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: &f64| {
            let below = values.iter().filter(|other| *other < value).count() as f64;
            let equal = values.iter().filter(|other| *other == value).count() as f64;
            below + (equal - 1.0) / 2.0
        };
        values.iter().map(rank).collect()
    };
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}
