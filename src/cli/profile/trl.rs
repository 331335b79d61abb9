//! `profile --backend trl` and `unsloth`: steps of TRL's trainer, timed by PyTorch's profiler in the user's Python.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde::Deserialize;

use super::args::Args;
use crate::cli::CliError;
use crate::cli::machine::record::machine;
use crate::cli::processes::interpreter::{Interpreter, Stack};
use crate::cli::processes::printed::last_words;
use crate::cli::search::stack_refusal::refusal_of;
use crate::cli::terminal::output::tell;
use crate::report::printable;
use crate::space::Loader;
use crate::worker::{PythonWorker, PythonWorkerError, usable_cpus};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{MeasurePlan, TrialPlan};
use peft_tune_engine::profile::Profile;
use peft_tune_kernels::Kernels;

/// Steps after which the warm-up is taken as over, and steps that a plan names: the time decides how many are measured.
const PLAN: MeasurePlan = MeasurePlan {
    steps: 6,
    max_warmup_steps: 10,
    serve: None,
};
/// The processor among the names of devices.
const CPU: &str = "cpu";

/// What the Python prints.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Profiled {
        profile: Box<Profile>,
        /// Error of writing the trace, where one was asked for.
        #[serde(default)]
        trace_error: Option<String>,
    },
    Failed {
        /// Whether the recipe is at fault.
        is_invalid: bool,
        message: String,
    },
}

/// Profile of a recipe, and the error of writing its trace where one was asked for and not written.
///
/// # Errors
/// Bad input: options of the built-in engine; no Python that trains in TRL; a recipe that it does not train. Else a failure of the Python.
pub(super) fn measured(args: &Args, loader: Loader, recipe: &Recipe) -> Result<(Profile, Option<String>), CliError> {
    refuse_options(args)?;
    refuse_preferences(recipe)?;
    refuse_launched(recipe)?;
    let stack = Interpreter::find(args.python.as_deref())?.probe(loader)?;
    let device = device_of(args.compute.device.as_deref(), &stack)?;
    stack.check_device(&device)?;
    if let Some(reason) = refusal_of(recipe, loader, device == CPU, &stack.packages) {
        return Err(CliError::bad(reason));
    }
    tell(printable(&format!(
        "profiled in {}: {} (Python {}), {} on {device}",
        loader.title(),
        stack.interpreter.display(),
        stack.python,
        stack.versions()
    )));
    let worker = PythonWorker::new(&stack.interpreter, loader).map_err(CliError::bad_input)?;
    let threads = args.compute.threads().unwrap_or_else(|| usable_cpus().len());
    let command = worker.profile(&device, threads).map_err(CliError::bad_input)?;
    let output = ask(command, &request(args, recipe)?).map_err(|error| CliError::bad_input(worker.failed(error)))?;
    let (mut profile, trace_error) = answer_of(&output)?;
    let all = stack
        .gpu(&device)
        .map_or_else(|| machine().memory_bytes, |gpu| gpu.bytes);
    let limit = args.memory_limit.map_or(all, |limit| limit.0);
    profile.setting.memory_limit_bytes = (limit > 0).then_some(limit);
    profile.setting.stack = Some(stack.versions());
    Ok((profile, trace_error))
}

/// Refuses options that say something to the built-in engine alone.
fn refuse_options(args: &Args) -> Result<(), CliError> {
    let kernels = args.compute.kernels.form() != Kernels::Fused;
    let options = [
        (
            args.verify,
            "--verify",
            "the built-in engine alone runs what a diagnosis proposes",
        ),
        (args.log_every != 1, "--log-every", "TRL's trainer logs nothing here"),
        (
            kernels,
            "--kernels",
            "PyTorch has kernels of its own; choose among them in the recipe, under `torch`",
        ),
    ];
    let asked = options.into_iter().find(|(is_asked, ..)| *is_asked);
    asked.map_or(Ok(()), |(_, option, why)| {
        Err(CliError::bad(format!(
            "`{option}` does not go with steps in TRL: {why}; leave it out, or add `--backend native`"
        )))
    })
}

/// Refuses a recipe whose steps compare answers: a profile is of rows of tokens, without a reference.
fn refuse_preferences(recipe: &Recipe) -> Result<(), CliError> {
    match recipe.trainer {
        trainer if trainer.is_sft() => Ok(()),
        trainer => Err(CliError::bad(format!(
            "key `trainer`: steps in TRL are profiled of `sft` so far, and not of `{trainer}`; a search with `--backend trl` measures its \
             throughput and peak memory"
        ))),
    }
}

/// Refuses a recipe whose steps a launcher starts: a profile is of one process.
fn refuse_launched(recipe: &Recipe) -> Result<(), CliError> {
    let fields = [
        (recipe.batch.devices > 1, "batch.devices", "1"),
        (!recipe.batch.sharding.is_none(), "batch.sharding", "none"),
        (!recipe.optimizer.offload.is_none(), "optimizer.offload", "none"),
    ];
    let asked = fields.into_iter().find(|(is_asked, ..)| *is_asked);
    asked.map_or(Ok(()), |(_, field, only)| {
        Err(CliError::bad(format!(
            "key `{field}`: steps in TRL are profiled in one process, and this takes processes that a launcher starts; write {only}"
        )))
    })
}

/// The device: the one that was asked for, else the first GPU that PyTorch sees, else the processor.
fn device_of(asked: Option<&str>, stack: &Stack) -> Result<String, CliError> {
    let device = match asked {
        None | Some("auto") if stack.devices.is_empty() => CPU,
        None | Some("auto" | "cuda") => "cuda:0",
        Some(name) => name,
    };
    if !stack.has_device(device) {
        let device = device.to_owned();
        return Err(CliError::bad_input(PythonWorkerError::NoDevice { device }));
    }
    Ok(device.to_owned())
}

/// The line that the Python reads.
fn request(args: &Args, recipe: &Recipe) -> Result<String, CliError> {
    let plan = TrialPlan {
        measure: Some(PLAN),
        train: None,
    };
    // The Python works in a folder of its own choice.
    let trace = args.trace.as_deref().map(absolute).transpose()?;
    let request = serde_json::json!({
        "recipe": recipe,
        "plan": plan,
        "budget_s": args.budget.0,
        "interval": args.interval / 100.0,
        "trace": trace,
    });
    Ok(request.to_string() + "\n")
}

fn absolute(path: &Path) -> Result<String, CliError> {
    let path = std::path::absolute(path).map_err(CliError::bad_input)?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| CliError::bad("`--trace`: Python is told the file in UTF-8, and its name is none; name another"))
}

/// Starts the Python, hands it the line and waits for its end. What libraries print as errors is shown.
fn ask(mut command: Command, request: &str) -> std::io::Result<Output> {
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let told = running
        .stdin
        .take()
        .map_or(Ok(()), |mut input| input.write_all(request.as_bytes()));
    let output = running.wait_with_output()?;
    // One that ended before it read has said why.
    told.or_else(|error| if output.status.success() { Err(error) } else { Ok(()) })?;
    Ok(output)
}

/// The answer among what was printed: libraries may have printed before.
fn answer_of(output: &Output) -> Result<(Profile, Option<String>), CliError> {
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or_default();
    match serde_json::from_str(line) {
        Ok(Answer::Profiled { profile, trace_error }) => Ok((*profile, trace_error)),
        Ok(Answer::Failed {
            is_invalid: true,
            message,
        }) => Err(CliError::bad(printable(&message))),
        Ok(Answer::Failed { message, .. }) => Err(CliError::failed(anyhow::Error::msg(printable(&message)))),
        Err(_) => Err(CliError::failed(anyhow::anyhow!(
            "the Python ended with {} and printed no profile, but: {}; its errors stand above",
            output.status,
            last_words(&output.stdout).unwrap_or_else(|| "nothing".to_owned())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::cli::processes::interpreter::TorchDevice;
    use peft_tune_core::recipe::{DataSettings, OptimizerOffload, TrainerKind};

    fn stack(gpus: usize) -> Stack {
        let gpu = TorchDevice {
            name: "NVIDIA L4".to_owned(),
            bytes: 1 << 34,
            unwatched: None,
        };
        Stack {
            loader: Loader::default(),
            interpreter: "/opt/python".into(),
            python: "3.12".to_owned(),
            packages: Vec::new(),
            wanted: Vec::new(),
            devices: vec![gpu; gpus],
        }
    }

    fn answered(stdout: &str, code: i32) -> Result<(Profile, Option<String>), String> {
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.as_bytes().to_vec(),
            stderr: Vec::new(),
        };
        answer_of(&output).map_err(|error| error.to_string())
    }

    #[test]
    fn the_device_is_one_that_pytorch_sees() {
        let of = |asked, gpus| device_of(asked, &stack(gpus)).ok();
        for (asked, gpus, device) in [
            (None, 0, Some("cpu")),
            (Some("auto"), 0, Some("cpu")),
            (None, 2, Some("cuda:0")),
            (Some("cuda"), 1, Some("cuda:0")),
            (Some("cuda:1"), 2, Some("cuda:1")),
            (Some("cpu"), 2, Some("cpu")),
            (Some("cuda:1"), 1, None),
            (Some("cuda"), 0, None),
        ] {
            assert_eq!(of(asked, gpus).as_deref(), device, "{asked:?} of {gpus}");
        }
    }

    #[test]
    fn what_a_launcher_starts_is_refused_by_its_key() {
        let refused = |change: fn(&mut Recipe)| {
            let mut recipe = Recipe::new("model", DataSettings::default());
            change(&mut recipe);
            refuse_launched(&recipe).err().map(|error| error.to_string())
        };
        assert_eq!(refused(|_| {}), None);
        let several = refused(|recipe| recipe.batch.devices = 2).unwrap();
        assert!(
            several.contains("key `batch.devices`") && several.contains("write 1"),
            "{several}"
        );
        let on_host = refused(|recipe| recipe.optimizer.offload = OptimizerOffload::Host).unwrap();
        assert!(on_host.contains("key `optimizer.offload`"), "{on_host}");
    }

    #[test]
    fn steps_that_compare_answers_are_refused_by_their_trainer() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        assert!(refuse_preferences(&recipe).is_ok());
        recipe.trainer = TrainerKind::Dpo;
        let told = refuse_preferences(&recipe).err().map(|error| error.to_string());
        let told = told.unwrap();
        assert!(told.contains("key `trainer`") && told.contains("`dpo`"), "{told}");
    }

    #[test]
    fn what_is_no_profile_is_an_error_with_its_words() {
        let told = answered(
            "{\"failed\": {\"is_invalid\": true, \"message\": \"no such\\u001bmodel\"}}\n",
            0,
        )
        .unwrap_err();
        assert!(told.contains("no such") && !told.contains('\u{1b}'), "{told}");
        for (stdout, part) in [("", "nothing"), ("hello\n\n", "hello")] {
            let told = answered(stdout, 1).unwrap_err();
            assert!(told.contains(part) && told.contains("exit status: 1"), "{told}");
        }
        let profile = serde_json::to_string(&Profile::default()).unwrap();
        let line = format!("a library\n{{\"profiled\": {{\"profile\": {profile}, \"trace_error\": \"disk full\"}}}}\n");
        assert_eq!(
            answered(&line, 0).unwrap(),
            (Profile::default(), Some("disk full".to_owned()))
        );
    }
}
