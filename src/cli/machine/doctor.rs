//! `peft-tune doctor`: what this machine has, what it reaches, and what is missing and why.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::anonymous::Anonymous;
use super::cpu_ceilings::{MeasuredCeilings, Measuring};
use super::cuda::Cuda;
use super::engine_check::{Asking, Beside, EngineGpu, Standing};
use super::record::machine;
use super::{cpu_ceilings, gpu_ceilings};
use crate::cli::CliError;
use crate::cli::options::backend::BackendName;
use crate::cli::options::compute::KernelArgs;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::processes::interpreter::{Interpreter, Stack, resolved};
use crate::cli::terminal::output::{tell, write_result};
use crate::report::{bytes, printable, significant};
use crate::space::Loader;
use crate::store::Store;
use peft_tune_core::plan::Vectors;
use peft_tune_core::predict::Headline;
use peft_tune_core::recipe::Precision;
use peft_tune_engine::data::cache_folder;
use peft_tune_engine::profile::CeilingSource;
use peft_tune_kernels::device;

/// Show what this machine has and what it reaches: processor, memory, GPUs, libraries, Python with TRL or unsloth, measured ceilings.
///
/// The ceilings of the processor and of the GPU are measured once, in a few seconds, and kept in the results database; `plan` and `search` predict from
/// them. Whether the built-in engine computes on the GPU what the CPU and TRL do is checked once too, where `backend: auto` or
/// --check asks, and kept in the cache.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Measure again instead of showing what the database has.
    #[arg(long)]
    measure: bool,
    /// Check the built-in engine on the GPU against the CPU, and against TRL where it is there, also where that was done: some
    /// minutes.
    #[arg(long)]
    check: bool,
    /// Threads to measure with [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Python to look for TRL and unsloth in [default: that of the active environment, else python3].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Print JSON with raw numbers.
    #[arg(long)]
    json: bool,
    /// Print what an issue needs, to be pasted there: without paths, and without names of people and machines.
    #[arg(long, conflicts_with = "json")]
    report: bool,
    #[command(flatten)]
    kernels: KernelArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Diagnosis {
    version: &'static str,
    build: &'static str,
    os: String,
    cpu: String,
    cores: u64,
    threads: usize,
    vectors: Vectors,
    features: Vec<&'static str>,
    memory_bytes: u64,
    device: &'static str,
    cuda: Cuda,
    ceilings: Vec<Headline>,
    /// Share of the ceilings' speed that may have been lost to other programs while they were measured; 0 where it was quiet.
    disturbed: f64,
    /// The GPU that would train; absent where there is none.
    gpu: Option<Gpu>,
    trl: Trl,
    unsloth: Trl,
    auto: Auto,
}

/// What `backend: auto` takes here.
#[derive(Debug, Serialize)]
struct Auto {
    /// Engine for models of the built-in engine's families; absent where there is none, and where a check is to tell.
    known_family: Option<BackendName>,
    /// Engine for other models; absent where there is none.
    other_family: Option<BackendName>,
    /// What is known of the built-in engine where it would train.
    built_in: Standing,
}

/// The Python that trials of `backend: trl`, or `unsloth`, would run in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Trl {
    /// What the Python has.
    Found(Stack),
    /// What to do to train there.
    Missing(String),
}

/// A GPU with the ceilings that it reaches.
#[derive(Debug, Serialize)]
struct Gpu {
    name: String,
    /// Whether the ceilings were measured, or are those that the maker publishes.
    from: CeilingSource,
    ceilings: Vec<Headline>,
    /// Share of the speed that may have been lost to other programs during the measurement; 0 where it was quiet.
    disturbed: f64,
}

/// Looks, measures, prints.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let engine_gpu = EngineGpu::first();
    if args.check && engine_gpu.is_none() {
        return Err(CliError::bad(
            "`--check`: the built-in engine has no GPU here to be checked on; `peft-tune doctor` without it says what is missing",
        ));
    }
    let threads = args.threads.map_or_else(rayon::current_num_threads, usize::from);
    let (found, gpu) = block_on(async {
        let store = args.database.open_for_ceilings().await?;
        let known = match &store {
            Some(store) if !args.measure => cpu_ceilings::stored(store, threads).await?,
            _ => None,
        };
        let (found, is_new) = complete(known, threads)?;
        if let Some(store) = store.as_ref().filter(|_| is_new) {
            cpu_ceilings::keep(store, threads, &found).await?;
        }
        let gpu = gpu(store.as_ref(), args.measure).await?;
        if let Some(store) = store {
            store.close().await?;
        }
        Ok((found, gpu))
    })?;
    let find = |loader| Trl::find(args.python.as_deref(), loader);
    // Each waits for a Python to import PyTorch.
    let (trl, unsloth) = rayon::join(|| find(Loader::Transformers), || find(Loader::Unsloth));
    let beside = Beside {
        kernels: args.kernels,
        stack: trl.stack(),
        asking: if args.check { Asking::Anew } else { Asking::Kept },
    };
    let auto = trl.auto(Standing::on(engine_gpu.as_slice(), beside));
    let diagnosis = diagnose(threads, &found, gpu, trl, unsloth, auto);
    let text = match args.json {
        true => serde_json::to_string_pretty(&diagnosis).map_err(CliError::failed)? + "\n",
        false if args.report => report(&diagnosis.to_text(), args.python.as_deref(), &args.database),
        false => diagnosis.to_text(),
    };
    write_result(&text)
}

/// A diagnosis as Markdown for an issue, without what tells whose machine it is.
fn report(text: &str, python: Option<&Path>, database: &DatabaseArgs) -> String {
    let paths = python.map(resolved).into_iter().chain([database.path()]);
    let anonymous = Anonymous::here(paths.chain(cache_folder()));
    format!("```text\n{}```\n", anonymous.text(text))
}

/// Ceilings of all precisions, and whether something was measured for them.
fn complete(known: Option<MeasuredCeilings>, threads: usize) -> Result<(MeasuredCeilings, bool), CliError> {
    match known {
        Some(known) if known.serves(&Precision::ALL) => Ok((known, false)),
        known => {
            tell(format_args!("measuring this machine, a few seconds"));
            let measured = cpu_ceilings::measured(known, Measuring::on(Some(threads)), &Precision::ALL)?;
            Ok((measured, true))
        }
    }
}

/// The ceilings of the GPU that would train.
async fn gpu(store: Option<&Store>, again: bool) -> Result<Option<Gpu>, CliError> {
    // Why one is not used is said elsewhere.
    let Some(device) = device::open("auto").ok().filter(|device| !device.is_cpu()) else {
        return Ok(None);
    };
    let precisions = &Precision::ALL;
    let known = match again {
        true => gpu_ceilings::measured_again(store, &device, precisions).await?,
        false => gpu_ceilings::stored_or_measured(store, &device, precisions).await?,
    };
    Ok(known.map(|known| Gpu {
        name: device::facts(&device).map_or_else(String::new, |facts| facts.name),
        from: known.from,
        ceilings: known.ceilings.headlines(),
        disturbed: known.disturbed,
    }))
}

fn diagnose(
    threads: usize,
    MeasuredCeilings { ceilings, disturbed }: &MeasuredCeilings,
    gpu: Option<Gpu>,
    trl: Trl,
    unsloth: Trl,
    auto: Auto,
) -> Diagnosis {
    let machine = machine();
    Diagnosis {
        version: env!("CARGO_PKG_VERSION"),
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        os: machine.os,
        cpu: machine.cpu,
        cores: machine.cpu_cores,
        threads,
        vectors: ceilings.host.vectors,
        features: features(),
        memory_bytes: machine.memory_bytes,
        device: device::default_name(),
        cuda: Cuda::here(),
        ceilings: ceilings.headlines(),
        disturbed: *disturbed,
        gpu,
        trl,
        unsloth,
        auto,
    }
}

/// Instruction sets that the engine makes use of.
fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let all = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("f16c", is_x86_feature_detected!("f16c")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bw", is_x86_feature_detected!("avx512bw")),
            ("avx512vl", is_x86_feature_detected!("avx512vl")),
            ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
            ("amx-bf16", peft_tune_kernels::ops::multiplies_tiles()),
        ];
        all.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

impl Diagnosis {
    fn to_text(&self) -> String {
        let mut text = format!("peft-tune {} ({} build)\n", self.version, self.build);
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<12}{}", printable(&value));
        };
        line("system", self.os.clone());
        line("processor", format!("{}, {} cores", self.cpu, self.cores));
        line("vectors", self.features.join(" "));
        line("memory", bytes(self.memory_bytes as f64));
        line("trains on", format!("{} with {} threads", self.device, self.threads));
        text.push_str("\ngpu\n");
        text.push_str(&self.cuda.to_text());
        text.push_str("\ntrl (PyTorch)\n");
        text.push_str(&self.trl.to_text());
        text.push_str(&self.auto.to_text());
        text.push_str("\nunsloth (PyTorch)\n");
        text.push_str(&self.unsloth.to_text());
        text.push_str("\nmeasured ceilings\n");
        text.push_str(&ceilings_text(&self.ceilings, self.disturbed));
        if let Some(gpu) = &self.gpu {
            if gpu.from == CeilingSource::DataSheet {
                text.push_str("  of the GPU by its data sheet, as it could not be measured\n");
            }
            text.push_str(&ceilings_text(&gpu.ceilings, gpu.disturbed));
        }
        text
    }
}

fn ceilings_text(ceilings: &[Headline], disturbed: f64) -> String {
    let mut text = String::new();
    if disturbed > 0.0 {
        let lost = 100.0 * disturbed;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  disturbed by other programs, which may have taken up to {lost:.0}% of the speed; the next start measures again"
        );
    }
    for one in ceilings {
        let value = significant((one.value * 10.0).round() / 10.0);
        let _ = writeln!(text, "  {:<24}{value:>10} {}", one.name, one.unit);
    }
    text
}

impl Trl {
    /// Looks at the Python of this name, or at the one that a search would take.
    fn find(python: Option<&Path>, loader: Loader) -> Self {
        match Interpreter::find(python).and_then(|python| python.probe(loader)) {
            Ok(stack) => Self::Found(stack),
            Err(error) => Self::Missing(error.to_string()),
        }
    }

    /// The Python's packages and devices; `None` where it lacks some.
    fn stack(&self) -> Option<&Stack> {
        match self {
            Self::Found(stack) => Some(stack),
            Self::Missing(_) => None,
        }
    }

    /// What a study with `backend: auto` is searched in here.
    fn auto(&self, built_in: Standing) -> Auto {
        let other_family = self.stack().map(|_| BackendName::Trl);
        let known_family = match (&built_in, other_family) {
            (Standing::Unchecked { .. }, _) => None,
            (Standing::Failed { .. }, other) => other,
            (_, None) => Some(BackendName::Native),
            (standing, Some(_)) => Some(standing.preferred()),
        };
        Auto {
            known_family,
            other_family,
            built_in,
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<12}{}", printable(&value));
        };
        match self {
            Self::Found(stack) => {
                line("python", format!("{} ({})", stack.interpreter.display(), stack.python));
                line("packages", stack.versions());
                line("range", stack.wanted.join(", "));
                line("trains on", stack.devices_text());
            }
            Self::Missing(missing) => line("not used", missing.clone()),
        }
        text
    }
}

impl Auto {
    fn to_text(&self) -> String {
        let other = self.other_family.map_or("nothing", BackendName::text);
        let known = match (&self.built_in, self.known_family) {
            (Standing::Unchecked { .. }, _) => {
                format!("the built-in engine where it passes its checks, else {other}")
            }
            (_, known) => known.map_or("nothing", BackendName::text).to_owned(),
        };
        let others = match known == other {
            true => String::new(),
            false => format!(", and {other} for models that it lacks"),
        };
        let because = match &self.built_in {
            Standing::Cpu => String::new(),
            standing => format!("  because     {}\n", printable(&standing.text())),
        };
        format!("  auto takes  {known}{others}\n{because}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_is_shown_with_what_it_has_or_what_it_lacks() {
        let stack = Stack {
            loader: Loader::default(),
            interpreter: "/opt/python".into(),
            python: "3.12.3".to_owned(),
            packages: Vec::new(),
            wanted: vec!["trl>=1.16,<2".to_owned()],
            devices: Vec::new(),
        };
        let found = Trl::Found(stack);
        let auto = |trl: &Trl, standing| trl.auto(standing).to_text();
        let on_cpu = auto(&found, Standing::Cpu);
        assert_eq!(
            on_cpu,
            "  auto takes  the built-in engine, and TRL for models that it lacks\n"
        );
        let beside = auto(&found, Standing::WithoutGpu);
        assert!(
            beside.starts_with("  auto takes  TRL\n  because     PyTorch has a GPU here"),
            "{beside}"
        );
        let text = found.to_text();
        assert!(text.contains("trl>=1.16,<2"), "{text}");
        assert!(
            text.contains("/opt/python (3.12.3)") && text.contains("the CPU"),
            "{text}"
        );
        let none = Trl::Missing("install it".to_owned());
        assert_eq!(none.to_text(), "  not used    install it\n");
        let alone = auto(&none, Standing::Cpu);
        assert_eq!(
            alone,
            "  auto takes  the built-in engine, and nothing for models that it lacks\n"
        );
        let passed = Standing::Passed {
            gpu: "NVIDIA L4".to_owned(),
            verdicts: Vec::new(),
        };
        assert!(auto(&none, passed).starts_with(&alone));
    }
}
