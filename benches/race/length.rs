//! Forecasts of long trainings from short ones, against tables of trainings at several lengths.
//!
//! `cargo bench --bench length -- [--cases 20] [--tables NAME,..] [--by-plan] [--csv]`
//!
//! Tables are `docs/benchmarks/length.csv` (made by `scripts/measure/length.py`) and those of `benches/race/lengths` (made by
//! `scripts/measure/length_table.py`). A case has what a search would have: 12 short trainings, half of them chosen by chance
//! and half beside the best so far, then longer ones of the best, of the best with other settings, and of both at half their
//! rate. For each length beyond 5 times the short one, the setting that the program would choose by its loss is taken of those tried;
//! where it was not trained longest, it is, at most twice, as the search does.
//! It is compared with the rule before: the least loss of the longest trainings. Printed are the mean regret of both (percent
//! above the least loss of all settings whose like was tried at some rate), and how often a choice is within 1% of that, by the
//! probability stated. Last comes what `training.length: auto` says: of each setting's trainings up to a length, what a doubling is
//! expected to gain there, against what it gained on the way to the next length.

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints its results and stops on a wrong argument"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use peft_tune_core::study::{ParamValue, Params};
use peft_tune_search::{FullLength, NEAR_BEST_LOSS, PayingLength, Trained};
use rand::RngExt;
use rand_pcg::Pcg64;

const RATE: &str = "learning_rate";
/// Columns that tell settings apart beside the rate.
const OTHERS: [&str; 3] = ["rank", "global_batch", "optimizer"];
/// Short trainings of a case.
const SHORT: usize = 12;
/// Trainings behind those planned that may be made longest, so that what is chosen is one of them.
const BEHIND: usize = 2;
/// A setting is near the best of its length where its loss is at most so many times that.
const NEAR: f64 = 1.05;
/// A length is predicted where it is that many times the short one.
const LONG: u64 = 5;
/// Bounds of the printed probabilities.
const BINS: [f64; 7] = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Calibration and regret of what is said of long trainings.
#[derive(Debug, Parser)]
struct Args {
    /// Cases of each table, plan and length.
    #[arg(long, default_value_t = 20)]
    cases: u64,
    #[arg(long, value_delimiter = ',')]
    tables: Vec<String>,
    #[arg(long, default_value = "benches/race/lengths")]
    folder: PathBuf,
    /// Prints each table, length and plan.
    #[arg(long)]
    by_plan: bool,
    /// One line a case, as comma-separated values.
    #[arg(long)]
    csv: bool,
    /// Flag that `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Longer trainings that a search makes: how many of 3 times the short length, and how many of 10 times.
const PLANS: [(&str, usize, usize); 4] = [
    ("2 of 3x", 2, 0),
    ("2 of 10x", 0, 2),
    ("4 of 3x, 2 of 10x", 4, 2),
    ("4 of 10x", 0, 4),
];

/// A setting of a table: what stands beside the rate, and the number of the rate.
type Setting = (String, usize);

/// Losses by setting and tokens.
#[derive(Default)]
struct Table {
    losses: BTreeMap<(String, usize, u64), f64>,
    params: BTreeMap<String, Params>,
    /// Rates of each group, ascending.
    rates: BTreeMap<String, Vec<f64>>,
}

impl Table {
    /// Tables by name: those of the column `data`, or one of the file's name.
    fn read(path: &Path) -> BTreeMap<String, Self> {
        let fail = |error: csv::Error| -> ! { panic!("{}: {error}", path.display()) };
        let mut reader = csv::Reader::from_path(path).unwrap_or_else(|error| fail(error));
        let mut rows: Vec<BTreeMap<String, String>> = Vec::new();
        for row in reader.deserialize() {
            rows.push(row.unwrap_or_else(|error| fail(error)));
        }
        let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        rows.retain(|row| row.get("schedule").is_none_or(|schedule| schedule == "cosine"));
        let mut tables: BTreeMap<String, Self> = BTreeMap::new();
        for row in &rows {
            let table = tables.entry(row.get("data").unwrap_or(&file).clone()).or_default();
            let rates = table.rates.entry(group_of(row)).or_default();
            let rate = number(row, RATE);
            if !rates.contains(&rate) {
                rates.push(rate);
                rates.sort_by(f64::total_cmp);
            }
        }
        for row in &rows {
            let table = tables.entry(row.get("data").unwrap_or(&file).clone()).or_default();
            let group = group_of(row);
            let rate = number(row, RATE);
            let rate = table.rates[&group].iter().position(|one| *one == rate).unwrap_or(0);
            table.params.entry(group.clone()).or_insert_with(|| params_of(row));
            let tokens = number(row, "tokens") as u64;
            table.losses.insert((group, rate, tokens), number(row, "loss"));
        }
        tables
    }

    fn loss(&self, (group, rate): &Setting, tokens: u64) -> Option<f64> {
        self.losses.get(&(group.clone(), *rate, tokens)).copied()
    }

    fn params(&self, (group, rate): &Setting) -> Params {
        let mut params = self.params[group].clone();
        params.insert(RATE, ParamValue::Float(self.rates[group][*rate]));
        params
    }

    fn lengths(&self) -> Vec<u64> {
        let mut lengths: Vec<u64> = self.losses.keys().map(|(_, _, tokens)| *tokens).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    fn settings(&self, tokens: u64) -> Vec<Setting> {
        let keys = self.losses.keys().filter(|(_, _, of)| *of == tokens);
        keys.map(|(group, rate, _)| (group.clone(), *rate)).collect()
    }

    /// Settings that differ in the rate, in octaves, and in what stands beside it.
    fn distance(&self, a: &Setting, b: &Setting) -> f64 {
        let rates = (self.rates[&a.0][a.1] / self.rates[&b.0][b.1]).log2().abs();
        let (one, other) = (&self.params[&a.0], &self.params[&b.0]);
        let differ = OTHERS.iter().filter(|name| one.get(name) != other.get(name));
        rates + differ.count() as f64
    }
}

fn number(row: &BTreeMap<String, String>, name: &str) -> f64 {
    let text = row.get(name).unwrap_or_else(|| panic!("no column `{name}`"));
    text.parse()
        .unwrap_or_else(|_| panic!("`{name}` is `{text}`, not a number"))
}

fn group_of(row: &BTreeMap<String, String>) -> String {
    let texts = OTHERS.iter().filter_map(|name| row.get(*name));
    texts.map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn params_of(row: &BTreeMap<String, String>) -> Params {
    let one = |name: &&str| {
        let text = row.get(*name)?;
        let value = text
            .parse()
            .map_or_else(|_| ParamValue::from(text.as_str()), ParamValue::Float);
        Some(((*name).to_owned(), value))
    };
    OTHERS.iter().filter_map(one).collect()
}

/// Trainings that a search has made.
struct Case {
    short: Vec<Setting>,
    /// The longest training of each setting that was trained longer.
    longer: Vec<(Setting, u64)>,
}

impl Case {
    /// `None` where the table has too little for the plan.
    fn of(table: &Table, base: u64, (_, first, then): (&str, usize, usize), case: u64) -> Option<Self> {
        let mut short = searched(table, base, case)?;
        let best = |settings: &[&Setting]| -> Option<Setting> {
            let known = settings.iter().filter_map(|one| Some((table.loss(one, base)?, *one)));
            known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one.clone())
        };
        let leader = best(&short.iter().collect::<Vec<_>>())?;
        let others: Vec<&Setting> = short.iter().filter(|one| one.0 != leader.0).collect();
        let mut finalists = Vec::new();
        for one in [Some(leader.clone()), best(&others)].into_iter().flatten() {
            let half = one.1.checked_sub(1).map(|rate| (one.0.clone(), rate));
            finalists.push(one);
            if let Some(half) = half.filter(|half| table.loss(half, base).is_some()) {
                if !short.contains(&half) {
                    short.push(half.clone());
                }
                finalists.push(half);
            }
        }
        let (three, ten) = (3 * base, 10 * base);
        let mut longer: Vec<(Setting, u64)> = Vec::new();
        let mut last: Vec<Setting> = finalists;
        if first > 0 {
            last.truncate(first);
            longer.extend(last.iter().map(|one| (one.clone(), three)));
            last.sort_by(|a, b| {
                table
                    .loss(a, three)
                    .partial_cmp(&table.loss(b, three))
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
        }
        last.truncate(then);
        longer.retain(|(one, _)| !last.contains(one));
        longer.extend(last.into_iter().map(|one| (one, ten)));
        let is_known = longer.iter().all(|(one, tokens)| table.loss(one, *tokens).is_some());
        (is_known && longer.len() > 1).then_some(Self { short, longer })
    }

    fn trainings(&self, table: &Table, base: u64) -> Vec<(Params, u64, f64)> {
        let short = self.short.iter().map(|one| (one, base));
        let longer = self.longer.iter().map(|(one, tokens)| (one, *tokens));
        let of = |(one, tokens): (&Setting, u64)| Some((table.params(one), tokens, table.loss(one, tokens)?));
        short.chain(longer).filter_map(of).collect()
    }

    /// The least loss of the longest trainings.
    fn by_longest(&self, table: &Table) -> Option<&Setting> {
        let longest = self.longer.iter().map(|(_, tokens)| *tokens).max()?;
        let known = self.longer.iter().filter(|(_, tokens)| *tokens == longest);
        let known = known.filter_map(|(one, tokens)| Some((table.loss(one, *tokens)?, one)));
        known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one)
    }
}

/// Half by chance, then one after the other beside the best so far.
fn searched(table: &Table, base: u64, case: u64) -> Option<Vec<Setting>> {
    let mut random = Pcg64::new(u128::from(case), 1);
    let mut left = table.settings(base);
    if left.len() < SHORT {
        return None;
    }
    let mut found: Vec<Setting> = Vec::new();
    while found.len() < SHORT / 2 {
        found.push(left.swap_remove(random.random_range(0..left.len())));
    }
    while found.len() < SHORT {
        let best = found.iter().min_by(|a, b| {
            table
                .loss(a, base)
                .partial_cmp(&table.loss(b, base))
                .unwrap_or(std::cmp::Ordering::Equal)
        })?;
        let near: Vec<f64> = left
            .iter()
            .map(|one| table.distance(one, best) + 0.5 * random.random::<f64>())
            .collect();
        let nearest = (0..left.len()).min_by(|a, b| near[*a].total_cmp(&near[*b]))?;
        found.push(left.swap_remove(nearest));
    }
    Some(found)
}

/// Results of one case.
struct Outcome {
    probability: f64,
    regret: f64,
    /// Regret of the rule before.
    before: f64,
    seconds: f64,
}

/// The setting with the least loss at a length, as the recommendation compares them, and the model that says so.
fn choice(table: &Table, base: u64, full: u64, case: &Case) -> Option<(Setting, FullLength)> {
    let trainings = case.trainings(table, base);
    let trained: Vec<Trained<'_>> = trainings
        .iter()
        .map(|(params, tokens, loss)| Trained {
            params,
            tokens: *tokens as f64,
            loss: *loss,
        })
        .collect();
    let mut rates: Vec<f64> = table.rates.values().flatten().copied().collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let model = FullLength::among(&trained, full as f64, rates)?;
    let settings: Vec<Params> = case.short.iter().map(|one| table.params(one)).collect();
    let losses = model.prudent_losses(&settings.iter().collect::<Vec<_>>());
    let chosen = losses
        .into_iter()
        .zip(&case.short)
        .filter_map(|(loss, one)| Some((loss?, one)));
    let (_, chosen) = chosen.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((chosen.clone(), model))
}

fn outcome(table: &Table, base: u64, full: u64, mut case: Case) -> Option<Outcome> {
    let before = case.by_longest(table)?.clone();
    let longest = case.longer.iter().map(|(_, tokens)| *tokens).max()?;
    let (mut chosen, mut model) = choice(table, base, full, &case)?;
    for _ in 0..BEHIND {
        let is_known = table.loss(&chosen, longest).is_some();
        if !is_known || case.longer.contains(&(chosen.clone(), longest)) {
            break;
        }
        case.longer.retain(|(one, _)| *one != chosen);
        case.longer.push((chosen, longest));
        (chosen, model) = choice(table, base, full, &case)?;
    }
    let began = Instant::now();
    choice(table, base, full, &case)?;
    let probability = model.probability_within(&table.params(&chosen), NEAR_BEST_LOSS)?;
    let seconds = began.elapsed().as_secs_f64();
    let groups: Vec<&String> = case.short.iter().map(|(group, _)| group).collect();
    let there = table.settings(full).into_iter().filter(|one| groups.contains(&&one.0));
    let least = there.filter_map(|one| table.loss(&one, full)).min_by(f64::total_cmp)?;
    let regret = |one: &Setting| Some(table.loss(one, full)? / least - 1.0);
    Some(Outcome {
        probability,
        regret: regret(&chosen)?,
        before: regret(&before)?,
        seconds,
    })
}

fn main() {
    let args = Args::parse();
    let mut tables = Table::read(Path::new("docs/benchmarks/length.csv"));
    let files = std::fs::read_dir(&args.folder).into_iter().flatten();
    for path in files.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|ending| ending == "csv") {
            tables.extend(Table::read(&path));
        }
    }
    let mut all = Vec::new();
    let mut gains = Vec::new();
    for (name, table) in tables {
        if !args.tables.is_empty() && !args.tables.contains(&name) {
            continue;
        }
        gains.extend(gains_of(&table));
        let lengths = table.lengths();
        let base = lengths[0];
        for full in lengths.into_iter().filter(|tokens| *tokens >= LONG * base) {
            let mut of_length = Vec::new();
            for plan in PLANS {
                let cases = (0..args.cases).filter_map(|case| Case::of(&table, base, plan, case));
                let found: Vec<Outcome> = cases.filter_map(|case| outcome(&table, base, full, case)).collect();
                for one in found.iter().filter(|_| args.csv) {
                    println!(
                        "{name},{},{},{},{}",
                        full / base,
                        plan.0.replace(',', " and"),
                        one.probability,
                        one.regret
                    );
                }
                if args.by_plan && !found.is_empty() {
                    print_regrets(&format!("{name} at {}x, {}", full / base, plan.0), &found);
                }
                of_length.extend(found);
            }
            if !of_length.is_empty() {
                print_regrets(&format!("{name} at {}x", full / base), &of_length);
            }
            all.extend(of_length);
        }
    }
    print_regrets("all", &all);
    let (slowest, mean) = all.iter().fold((0.0, 0.0), |(slowest, sum): (f64, f64), one| {
        (slowest.max(one.seconds), sum + one.seconds / all.len() as f64)
    });
    println!("a case takes {:.1} ms, at most {:.1} ms", 1e3 * mean, 1e3 * slowest);
    println!("| stated | cases | mean of the stated | within 1% of the best |\n|---|---:|---:|---:|");
    for bounds in BINS.windows(2) {
        let (low, high) = (bounds[0], bounds[1]);
        let of_bin = |one: &&Outcome| one.probability >= low && (one.probability < high || high == 1.0);
        let within: Vec<&Outcome> = all.iter().filter(of_bin).collect();
        if within.is_empty() {
            continue;
        }
        let percent =
            |of: &dyn Fn(&Outcome) -> f64| 100.0 * within.iter().map(|one| of(one)).sum::<f64>() / within.len() as f64;
        println!(
            "| {:.0}-{:.0}% | {} | {:.0}% | {:.0}% |",
            100.0 * low,
            100.0 * high,
            within.len(),
            percent(&|one| one.probability),
            percent(&|one| f64::from(u8::from(one.regret <= NEAR_BEST_LOSS)))
        );
    }
    print_gains(&gains);
}

/// Gain that was expected of a doubling, and what it gained.
struct Gain {
    expected: PayingLength,
    true_gain: f64,
    is_near_best: bool,
}

impl Gain {
    fn is_held(&self) -> bool {
        (self.true_gain - self.expected.gain).abs() <= self.expected.interval
    }
}

/// Gains of all settings behind each of their lengths, by the trainings up to it.
fn gains_of(table: &Table) -> Vec<Gain> {
    let lengths = table.lengths();
    let mut gains = Vec::new();
    for setting in table.settings(lengths[0]) {
        let known = lengths
            .iter()
            .filter_map(|tokens| Some((*tokens as f64, table.loss(&setting, *tokens)?)));
        let known: Vec<(f64, f64)> = known.collect();
        for count in 2..known.len() {
            let ((tokens, loss), (next, later)) = (known[count - 1], known[count]);
            let Some(expected) = PayingLength::at(&known[..count], tokens) else {
                continue;
            };
            let of_length = table.settings(tokens as u64).into_iter();
            let least = of_length
                .filter_map(|one| table.loss(&one, tokens as u64))
                .fold(loss, f64::min);
            gains.push(Gain {
                expected,
                true_gain: 1.0 - (later / loss).powf(1.0 / (next / tokens).log2()),
                is_near_best: loss <= NEAR * least,
            });
        }
    }
    gains
}

fn print_gains(gains: &[Gain]) {
    println!(
        "| gains of a doubling | cases | in the 95% interval | said to be below 1% | of these truly |\n|---|---:|---:|---:|---:|"
    );
    for (name, is_near) in [("settings within 5% of the best", true), ("all settings", false)] {
        let of_row: Vec<&Gain> = gains.iter().filter(|gain| gain.is_near_best || !is_near).collect();
        let held = of_row.iter().filter(|gain| gain.is_held()).count();
        let said: Vec<&&Gain> = of_row
            .iter()
            .filter(|gain| gain.expected.gain < NEAR_BEST_LOSS)
            .collect();
        let truly = said.iter().filter(|gain| gain.true_gain < NEAR_BEST_LOSS).count();
        println!(
            "| {name} | {} | {:.0}% | {} | {truly} |",
            of_row.len(),
            100.0 * held as f64 / of_row.len().max(1) as f64,
            said.len()
        );
    }
}

fn print_regrets(name: &str, outcomes: &[Outcome]) {
    let mean = |of: &dyn Fn(&Outcome) -> f64| 100.0 * outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
    println!(
        "{name:<36} {:4} cases: regret {:6.2}%, by the longest trainings {:6.2}%; stated {:3.0}%, true {:3.0}%",
        outcomes.len(),
        mean(&|one| one.regret),
        mean(&|one| one.before),
        mean(&|one| one.probability),
        mean(&|one| f64::from(u8::from(one.regret <= NEAR_BEST_LOSS)))
    );
}
