//! Regrets of searches: their recommendations against exhaustive tables of real trainings.
//!
//! `cargo bench --bench regret -- [--seeds 10] [--first-seed 0] [--trainings 20,40] [--tables NAME,..] [--csv]`
//!
//! Each table (`benches/race/tables`, made by `scripts/measure/tables.py`) has every setting of a small space with its
//! measured throughput, peak memory and loss, and the costs predicted before they were measured. A search proposes
//! trainings, then measures the variants of what it trained that matter. For each wish the figure is how much worse its
//! recommendation is than the table's best, in percent of that wish's own unit; a loss beyond what the wish allows counts
//! where it is the larger. The knee's is how much farther from the ideal it is, by the measure that chooses a knee, in
//! percent of the spans of the table's own choice.

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints its results and stops on a wrong argument"
)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use peft_tune_core::objective::{LOSS, LOSS_BEFORE, Objective, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::space::{Distribution, Parameter, SearchSpace};
use peft_tune_core::study::{Metrics, ParamValue, Params, Trial, TrialNumber, TrialState};
use peft_tune_search::{
    Bayes, NEAR_BEST_LOSS, Preference, Prior, Problem, Rule, Sampler, beyond_knee, next_variant, recommend,
};

/// Columns that are no parameters.
const MEASURED: [&str; 4] = [THROUGHPUT, PEAK_MEMORY, LOSS, LOSS_BEFORE];
/// Parameters that change no loss.
const FREE: [&str; 2] = ["micro_batch", "gradient_checkpointing"];

/// Regret of searches against exhaustive tables.
#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    #[arg(long, value_delimiter = ',', default_value = "20,40")]
    trainings: Vec<usize>,
    #[arg(long, value_delimiter = ',')]
    tables: Vec<String>,
    #[arg(long, default_value = "benches/race/tables")]
    folder: PathBuf,
    /// One line a seed, as comma-separated values.
    #[arg(long)]
    csv: bool,
    /// Prints every training of every search.
    #[arg(long)]
    trace: bool,
    /// Flag that `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Numbers that a setting was measured and predicted to have.
struct Row {
    params: Params,
    metrics: Metrics,
    predicted: [f64; 2],
}

struct Table {
    problem: Problem,
    rows: Vec<Row>,
    by_setting: HashMap<String, usize>,
}

fn setting(params: &Params) -> String {
    params.iter().map(|(name, value)| format!("{name}={value} ")).collect()
}

impl Table {
    fn read(path: &Path) -> Self {
        let mut reader = csv::Reader::from_path(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let names: Vec<String> = reader.headers().expect("a heading").iter().map(str::to_owned).collect();
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let (mut params, mut metrics, mut predicted) = (Params::new(), Metrics::default(), [0.0; 2]);
            for (name, text) in names.iter().zip(&record) {
                let number = text.parse::<f64>();
                if MEASURED.contains(&name.as_str()) {
                    metrics.insert(name.clone(), number.expect("metrics are numbers"));
                } else if let Some(metric) = name.strip_prefix("predicted_") {
                    predicted[usize::from(metric == PEAK_MEMORY)] = number.expect("predictions are numbers");
                } else {
                    let value = number.map_or_else(|_| ParamValue::from(text), ParamValue::Float);
                    params.insert(name.clone(), value);
                }
            }
            rows.push(Row {
                params,
                metrics,
                predicted,
            });
        }
        let parameters = names.iter().filter(|name| rows[0].params.contains_key(name));
        let problem = Problem {
            space: SearchSpace {
                parameters: parameters.map(|name| parameter(name, &rows)).collect(),
            },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        };
        let by_setting = rows
            .iter()
            .enumerate()
            .map(|(index, row)| (setting(&row.params), index))
            .collect();
        Self {
            problem,
            rows,
            by_setting,
        }
    }

    fn row(&self, params: &Params) -> Option<&Row> {
        Some(&self.rows[*self.by_setting.get(&setting(params))?])
    }

    /// Every setting as a finished trial.
    fn history(&self) -> Vec<Trial> {
        let trials = self.rows.iter().enumerate();
        trials
            .map(|(number, row)| trial(number, row.params.clone(), row))
            .collect()
    }
}

fn parameter(name: &str, rows: &[Row]) -> Parameter {
    let mut choices: Vec<ParamValue> = Vec::new();
    for row in rows {
        if !choices.contains(&row.params[name]) {
            choices.push(row.params[name].clone());
        }
    }
    choices.sort_by(|a, b| a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(std::cmp::Ordering::Equal));
    let affects: &[&str] = match name {
        _ if FREE.contains(&name) => &[THROUGHPUT, PEAK_MEMORY],
        "learning_rate" => &[LOSS],
        _ => &[THROUGHPUT, PEAK_MEMORY, LOSS],
    };
    Parameter {
        name: name.to_owned(),
        distribution: Distribution::Categorical { choices },
        condition: None,
        affects: Some(affects.iter().map(|metric| (*metric).to_owned()).collect()),
        widest: None,
    }
}

fn trial(number: usize, params: Params, row: &Row) -> Trial {
    Trial {
        number: TrialNumber(number as u64),
        params,
        state: TrialState::Complete {
            metrics: row.metrics.clone(),
        },
    }
}

impl Prior for Table {
    fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
        let predicted = self.row(params)?.predicted;
        match metric {
            THROUGHPUT => Some(predicted[0]),
            PEAK_MEMORY => Some(predicted[1]),
            _ => None,
        }
    }

    fn impossible(&self, params: &Params) -> Option<String> {
        self.row(params).is_none().then(|| "not in the table".to_owned())
    }
}

/// The four wishes: least loss, fastest and least memory with a loss at most 1% above the best, the knee.
fn wishes() -> [(&'static str, Preference); 4] {
    let of = |rule: Rule, slack: bool| Preference {
        rule,
        slack: if slack {
            vec![(LOSS.to_owned(), NEAR_BEST_LOSS)]
        } else {
            Vec::new()
        },
        ..Default::default()
    };
    [
        ("loss", of(Rule::Prefer(LOSS.to_owned()), false)),
        ("throughput", of(Rule::Prefer(THROUGHPUT.to_owned()), true)),
        ("memory", of(Rule::Prefer(PEAK_MEMORY.to_owned()), true)),
        ("knee", of(Rule::Knee, false)),
    ]
}

/// The baseline that a search begins with: the usual values, as near as the table has them.
fn baseline(table: &Table) -> Params {
    let usual: [(&str, ParamValue); 7] = [
        ("rank", 16.0.into()),
        ("target_modules", "all-linear".into()),
        // 5e-4 (2000 / 128)^0.781.
        ("learning_rate", 4.3e-3.into()),
        ("micro_batch", 4.0.into()),
        ("global_batch", 16.0.into()),
        ("gradient_checkpointing", "none".into()),
        ("optimizer", "adamw".into()),
    ];
    let parameters = table.problem.space.parameters.iter();
    let value = |parameter: &Parameter| {
        let (_, value) = usual.iter().find(|(name, _)| *name == parameter.name)?;
        Some((parameter.name.clone(), parameter.distribution.nearest(value)?))
    };
    parameters.filter_map(value).collect()
}

/// Losses of each wish, in percent.
fn regrets(table: &Table, whole: &[Trial], history: &[Trial]) -> [f64; 4] {
    let problem = &table.problem;
    let value = |trial: &Trial, metric: &str| {
        trial
            .state
            .metrics()
            .and_then(|one| one.value(metric))
            .unwrap_or(f64::NAN)
    };
    let best_loss = whole
        .iter()
        .map(|trial| value(trial, LOSS))
        .fold(f64::INFINITY, f64::min);
    wishes().map(|(name, wish)| {
        let best = recommend(problem, whole, &wish).expect("the table is whole").trial;
        let Ok(chosen) = recommend(problem, history, &wish) else {
            return 100.0;
        };
        let chosen = chosen.trial;
        let over = |limit: f64| 100.0 * (value(chosen, LOSS) / limit - 1.0);
        match name {
            "loss" => over(best_loss),
            "throughput" => {
                let slower = 100.0 * (1.0 - value(chosen, THROUGHPUT) / value(best, THROUGHPUT));
                slower.max(over(best_loss * (1.0 + NEAR_BEST_LOSS))).max(0.0)
            }
            "memory" => {
                let more = 100.0 * (value(chosen, PEAK_MEMORY) / value(best, PEAK_MEMORY) - 1.0);
                more.max(over(best_loss * (1.0 + NEAR_BEST_LOSS))).max(0.0)
            }
            _ => 100.0 * beyond_knee(problem, whole, chosen).expect("the table is whole"),
        }
    })
}

/// The trials after so many trainings, with the variants that a search measures behind them.
fn with_variants(table: &Table, mut history: Vec<Trial>) -> Vec<Trial> {
    for _ in 0..history.len() / 2 {
        let Some(params) = next_variant(&table.problem, &history, table) else {
            break;
        };
        let row = table.row(&params).expect("variants are in the table");
        history.push(trial(history.len(), params, row));
    }
    history
}

fn main() {
    let args = Args::parse();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&args.folder)
        .unwrap_or_else(|error| panic!("{}: {error}", args.folder.display()))
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "csv"))
        .collect();
    paths.sort();
    if args.csv {
        println!("table,seed,trainings,loss,throughput,memory,knee,variants");
    }
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if args.tables.is_empty() || args.tables.contains(&name) {
            of_table(&args, &name, Arc::new(Table::read(&path)));
        }
    }
}

fn of_table(args: &Args, name: &str, table: Arc<Table>) {
    let whole = table.history();
    let most = args.trainings.iter().copied().max().unwrap_or(0);
    let mut sums: Vec<([f64; 4], f64)> = vec![([0.0; 4], 0.0); args.trainings.len()];
    for seed in args.first_seed..args.first_seed + args.seeds {
        let mut sampler = Bayes::new(seed).with_prior(table.clone());
        let mut history: Vec<Trial> = Vec::new();
        while history.len() < most {
            let asked = match history.is_empty() {
                true => Some(baseline(&table)),
                false => sampler.ask(&table.problem, &history),
            };
            let Some(params) = asked else { break };
            let row = table.row(&params).expect("proposals are in the table");
            if args.trace {
                println!(
                    "{seed} {:2} {}: {:.4}",
                    history.len(),
                    setting(&params),
                    row.metrics.value(LOSS).unwrap_or(0.0)
                );
            }
            history.push(trial(history.len(), params, row));
        }
        for (count, (sum, variants)) in args.trainings.iter().zip(&mut sums) {
            let trained = history[..history.len().min(*count)].to_vec();
            let all = with_variants(&table, trained.clone());
            let regrets = regrets(&table, &whole, &all);
            let measured = (all.len() - trained.len()) as f64;
            if args.csv {
                let [loss, throughput, memory, knee] = regrets;
                println!("{name},{seed},{count},{loss:.3},{throughput:.3},{memory:.3},{knee:.3},{measured}");
            }
            *variants += measured;
            sum.iter_mut().zip(regrets).for_each(|(sum, regret)| *sum += regret);
        }
    }
    for (count, (sum, variants)) in args.trainings.iter().zip(sums).filter(|_| !args.csv) {
        let [loss, throughput, memory, knee] = sum.map(|sum| sum / args.seeds as f64);
        let variants = variants / args.seeds as f64;
        println!(
            "{name:<10} {count:3} trainings, {variants:4.1} variants: loss {loss:6.2}% throughput {throughput:6.2}% memory \
             {memory:6.2}% knee {knee:6.2}%"
        );
    }
}
