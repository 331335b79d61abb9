//! Placement of a search's trials: how many side by side, on which devices, and how they are watched.

use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::options::compute::{KERNELS_VARIABLE, KernelArgs};
use crate::cli::options::device_names::device_names;
use crate::cli::processes::interpreter::Stack;
use crate::space::{Backend, QuantityError, Seconds, Study};
use crate::tune::Forecast;
use crate::worker::{
    CommandEvaluator, Evaluator, LaunchCommand, Launcher, Measuring, Placement, PoolSettings, TrainTogether,
    WorkerPool, usable_cpus,
};
use peft_tune_core::recipe::Recipe;
use peft_tune_kernels::device::DeviceError;
use peft_tune_kernels::{Kernels, device};

/// Options that say where trials run.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WorkerArgs {
    /// Trials to run side by side, each in a process of its own: on a GPU each, or with its share of the cores.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: u16,
    /// Devices to run trials on, one worker each: numbers of GPUs, or names such as `cuda:0` and `cpu`.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "workers")]
    pub devices: Vec<String>,
    /// Threads a trial computes with [default: all cores, or a worker's share of them].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Whether a profile phase has its hardware to itself while the other workers wait, or shares it and is marked so.
    #[arg(long, value_enum, default_value_t = Measure::Alone)]
    pub measure: Measure,
    /// Trials that train at the same time on each worker, over one base model, where they differ only in what adapters and optimizers
    /// may differ in and the memory is predicted to hold them. Each is profiled alone.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub together: u16,
    /// Attempts that a trial may lose with their process (killed, hung, crashed) before its setting is set aside.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub attempts: u64,
    /// Time without a step, an evaluation or a phase after which a trial counts as stuck and its process is replaced.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = patience)]
    pub stuck_after: Seconds,
    /// Time without a heartbeat after which a worker counts as dead.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = patience)]
    pub silent_after: Seconds,
    #[command(flatten)]
    pub kernels: KernelArgs,
    /// The Python that trials run in, once it was asked what it has; `None` where they run in this program or in a command.
    #[arg(skip)]
    pub stack: Option<Stack>,
}

/// A time to wait for a sign of life: no process gives one in less than a second.
fn patience(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text.parse().map_err(|error: QuantityError| error.to_string())?;
    match time.0 >= 1.0 {
        true => Ok(time),
        false => Err("every worker would count as dead at once: use at least 1s".to_owned()),
    }
}

/// How profile phases go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Measure {
    /// One at a time, with nobody else computing on the same hardware.
    Alone,
    /// Side by side; marked by the metric `neighbours`.
    Shared,
}

impl WorkerArgs {
    /// One slot for each worker.
    ///
    /// # Errors
    /// Bad input: a device that is named twice, more workers than GPUs, trials that take more GPUs than the workers have.
    pub(super) fn slots(&self, study: &Study) -> Result<Vec<Placement>, CliError> {
        let cpus = usable_cpus();
        let threads = self.threads.map(usize::from);
        if self.devices.is_empty() {
            let gpus = match study.backend {
                Backend::Native if self.workers > 1 && !study.launcher.is_elsewhere() => device::gpu_count(),
                // Which device a worker is to take is said to each: it does not ask PyTorch before it is one.
                Backend::Trl(_) => self.stack.as_ref().map_or(0, |stack| stack.devices.len()),
                // A program knows what it runs on, and other machines have GPUs of their own.
                _ => 0,
            };
            let on_gpus = self.devices_of_workers(gpus)?;
            if !on_gpus.is_empty() {
                // A worker that is the only one runs its trials on as many as they want.
                let within_reach = if self.workers == 1 { gpus } else { on_gpus.len() };
                check_gpus(study, &on_gpus, within_reach)?;
                return Ok(Placement::on_devices(&on_gpus, cpus.len(), threads));
            }
            let mut slots = Placement::side_by_side(usize::from(self.workers), &cpus, threads);
            if let Backend::Trl(_) = study.backend {
                slots.iter_mut().for_each(|slot| slot.device = Some("cpu".to_owned()));
            }
            return Ok(slots);
        }
        let devices = device_names(&self.devices, "measured trials never share a device; use `--workers`")?;
        let gpus = devices.iter().filter(|device| *device != "cpu").count();
        check_gpus(study, &devices, gpus)?;
        Ok(Placement::on_devices(&devices, cpus.len(), threads))
    }

    /// A GPU for each worker; none where there are no GPUs.
    fn devices_of_workers(&self, gpus: usize) -> Result<Vec<String>, CliError> {
        if gpus > 0 && usize::from(self.workers) > gpus {
            return Err(CliError::bad_input(anyhow::anyhow!(
                "`--workers {}`: there {} here, and measured trials never share one; write at most as many workers, or \
                 hide the GPUs to run on the processor (`CUDA_VISIBLE_DEVICES= peft-tune ...`)",
                self.workers,
                if gpus == 1 {
                    "is one GPU".to_owned()
                } else {
                    format!("are {gpus} GPUs")
                }
            )));
        }
        let workers = if gpus == 0 { 0 } else { self.workers };
        Ok((0..workers).map(|number| format!("cuda:{number}")).collect())
    }

    /// Whether every device that is named is there, and every worker's has the kernels that were asked for. Other machines' are not
    /// known. Nothing is opened.
    ///
    /// # Errors
    /// Errors of [`WorkerArgs::slots`], a device that is not there, and one without the kernels.
    pub(super) fn check_devices(&self, study: &Study) -> Result<(), CliError> {
        let slots = self.slots(study)?;
        if !study.launcher.is_elsewhere() {
            self.check_together(study, &slots)?;
        }
        let kernels = self.kernels.form();
        if let (Backend::Trl(_), Some(stack)) = (&study.backend, &self.stack) {
            return check_in(stack, &slots, kernels);
        }
        if study.backend != Backend::Native || study.launcher.is_elsewhere() {
            return Ok(());
        }
        // Forms that any device runs need no look at one that nobody named.
        let runs_anywhere = !matches!(kernels, Kernels::Tiled | Kernels::Hopper);
        for slot in slots {
            match slot.device.as_deref() {
                Some(device) => device::check_kernels(device, kernels).map_err(|error| unusable(device, error))?,
                None if runs_anywhere => {}
                None => device::check_kernels(device::default_name(), kernels).map_err(CliError::bad_input)?,
            }
        }
        Ok(())
    }

    /// Slot of the first worker, whose device and threads stand for all.
    ///
    /// # Errors
    /// Errors of [`WorkerArgs::slots`].
    pub(super) fn first_slot(&self, study: &Study) -> Result<Placement, CliError> {
        let mut slots = self.slots(study)?;
        Ok(slots.swap_remove(0))
    }

    /// Says how many trials a worker trains at the same time, where it is more than one.
    pub(super) fn together_text(&self) -> Option<String> {
        (self.together > 1).then(|| {
            format!(
                "up to {} trials train together on a worker, where they share a base model and the memory holds them",
                self.together
            )
        })
    }

    /// Refuses trainings together where a worker's trials would meet those of another.
    ///
    /// # Errors
    /// Bad input: a study that other programs train, workers that share their hardware.
    fn check_together(&self, study: &Study, slots: &[Placement]) -> Result<(), CliError> {
        let shares = |slot: &Placement| slots.iter().filter(|other| other.hardware == slot.hardware).count() > 1;
        let message = if self.together == 1 {
            return Ok(());
        } else if let Backend::Command(_) = study.backend {
            "trials of a command train by themselves; leave `--together` out, or use the native backend"
        } else if let Backend::Trl(_) = study.backend {
            "TRL's trials train by themselves; leave `--together` out, or use the native backend"
        } else if slots.iter().any(shares) {
            "workers on the same hardware have to wait for one another's profile phases, and those of trainings together cannot; give \
             one of `--workers` and `--together`"
        } else {
            return Ok(());
        };
        let together = self.together;
        Err(CliError::bad_input(anyhow::anyhow!(
            "`--together {together}`: {message}"
        )))
    }

    /// Runs a study's trials in these slots; `forecast` says which trainings the memory holds together, and nobody does without one.
    ///
    /// # Errors
    /// Errors of [`WorkerArgs::slots`], where trials cannot train together as asked, or where this program does not know its own path.
    pub(super) fn evaluator(
        &self,
        study: &Study,
        forecast: Option<&Arc<Forecast>>,
    ) -> Result<Box<dyn Evaluator>, CliError> {
        let program = std::env::current_exe().map_err(CliError::failed)?;
        let words = LaunchCommand::new(&study.launcher, &program, std::process::id());
        let slots = match study.launcher.is_elsewhere() {
            true => {
                let slots =
                    Placement::elsewhere(usize::from(self.workers), &words.hosts, self.threads.map(usize::from));
                self.check_together(study, &slots)?;
                slots
            }
            false => self.slots(study)?,
        };
        if let Backend::Command(backend) = &study.backend {
            let (command, folder, env) = (backend.command.clone(), backend.folder.clone(), backend.env.clone());
            let evaluator = CommandEvaluator::new(command, folder, env).through(words.prefix);
            return Ok(Box::new(evaluator.with_slots(slots)));
        }
        let arguments = match (&study.backend, &self.stack) {
            (Backend::Trl(_), Some(stack)) => stack.worker_words(),
            _ => self.kernels.words(),
        };
        let launcher = Launcher::with_prefix(words.prefix, words.program.into()).with_arguments(arguments);
        let mut settings = self.pool(launcher, slots);
        settings.process_per_trial = self.stack.as_ref().is_some_and(|stack| stack.loader.ends_with_trial());
        if let Some(forecast) = forecast.cloned() {
            let fits = move |recipes: &[&Recipe]| forecast.holds_together(recipes);
            settings.together = TrainTogether::new(self.together.into(), fits);
        }
        Ok(Box::new(WorkerPool::new(settings)))
    }

    fn pool(&self, launcher: Launcher, slots: Vec<Placement>) -> PoolSettings {
        let mut settings = PoolSettings::new(launcher, slots);
        settings.measuring = match self.measure {
            Measure::Alone => Measuring::Alone,
            Measure::Shared => Measuring::Shared,
        };
        let duration = |seconds: Seconds| std::time::Duration::try_from_secs_f64(seconds.0).unwrap_or_default();
        settings.stuck_after = duration(self.stuck_after);
        settings.silent_after = duration(self.silent_after);
        settings.heartbeat = settings.heartbeat.min(settings.silent_after / 4);
        settings
    }
}

/// Whether PyTorch has every device, and nothing is asked of it that only this program's engine has.
///
/// # Errors
/// Bad input: a GPU that PyTorch does not see; kernels.
fn check_in(stack: &Stack, slots: &[Placement], kernels: Kernels) -> Result<(), CliError> {
    if kernels != Kernels::default() {
        return Err(CliError::bad(format!(
            "`--kernels {}`: trials in {} compute with the kernels of its stack; leave it out (and {KERNELS_VARIABLE} unset), or use the \
             native backend",
            kernels.flag(),
            stack.loader.title()
        )));
    }
    let mut named = slots.iter().filter_map(|slot| slot.device.as_deref());
    match named.find(|name| !stack.has_device(name)) {
        None => Ok(()),
        Some(name) => Err(CliError::bad(format!(
            "`--devices`: {name} cannot be used: PyTorch in {} computes on {}",
            stack.interpreter.display(),
            stack.devices_text()
        ))),
    }
}

/// A device that was named and cannot be used.
fn unusable(device: &str, error: DeviceError) -> CliError {
    CliError::bad_input(anyhow::anyhow!("`--devices`: {device} cannot be used: {error}"))
}

/// Whether trials that take several devices can have them on those of the workers, where so many GPUs are within their reach.
///
/// # Errors
/// Bad input: not all are GPUs, or they are too few.
fn check_gpus(study: &Study, devices: &[String], within_reach: usize) -> Result<(), CliError> {
    let gpus = devices.iter().filter(|device| *device != "cpu").count();
    let most = study.most_devices();
    if study.backend.trains_recipes() && most > 1 && gpus > 0 && gpus < devices.len() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "`--devices` names `cpu` beside GPUs, and by `devices` in the space file a trial takes several of them: name GPUs only"
        )));
    }
    if study.backend.trains_recipes() && gpus > 0 && most > within_reach {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "`devices` in the space file goes up to {most}, and workers have {within_reach} of the GPUs: give them as many by \
             `--devices`, or leave `--devices` and `--workers` out, and one worker runs its trials on as many as they want, if they are \
             there"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::processes::interpreter::TorchDevice;
    use crate::space::{Loader, ReadOptions, StudyFile};

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        workers: WorkerArgs,
    }

    fn devices(workers: &str, gpus: usize) -> Result<Vec<String>, String> {
        let command = <Command as clap::Parser>::parse_from(["search", "--workers", workers]);
        let devices = command.workers.devices_of_workers(gpus);
        devices.map_err(|error| error.to_string())
    }

    #[test]
    fn workers_have_a_gpu_each_where_there_are_gpus() {
        assert_eq!(devices("4", 0).unwrap(), [""; 0]);
        assert_eq!(devices("2", 4).unwrap(), ["cuda:0", "cuda:1"]);
        let error = devices("2", 1).unwrap_err();
        assert!(error.contains("there is one GPU here"), "{error}");
        assert!(devices("3", 2).unwrap_err().contains("there are 2 GPUs"), "{error}");
    }

    #[test]
    fn one_worker_in_trl_runs_its_trials_on_all_gpus_that_pytorch_sees() {
        let text =
            "model: m\ndata: {train: [a.jsonl]}\nbackend: trl\nobjectives: [throughput]\nspace: {devices: [1, 2]}\n";
        let options = ReadOptions { check_files: false };
        let study = StudyFile::parse(std::path::Path::new("space.yaml"), text, options).unwrap();
        let slots = |words: &[&str], gpus: usize| {
            let mut workers = <Command as clap::Parser>::parse_from(["search"].iter().chain(words)).workers;
            let gpu = TorchDevice {
                name: "L4".to_owned(),
                bytes: 22 << 30,
                unwatched: None,
            };
            workers.stack = Some(Stack {
                loader: Loader::default(),
                interpreter: "python3".into(),
                python: "3.12.3".to_owned(),
                packages: Vec::new(),
                devices: vec![gpu; gpus],
                wanted: Vec::new(),
            });
            let slots = workers.slots(&study).map_err(|error| error.to_string())?;
            let devices = slots.into_iter().filter_map(|slot| slot.device);
            Ok::<_, String>(devices.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(slots(&[], 2).unwrap(), "cuda:0");
        assert_eq!(slots(&["--workers", "2"], 2).unwrap(), "cuda:0 cuda:1");
        assert_eq!(slots(&["--devices", "0,1"], 2).unwrap(), "cuda:0 cuda:1");
        assert_eq!(slots(&[], 0).unwrap(), "cpu");
        for words in [&[][..], &["--devices", "0"]] {
            let error = slots(words, 1).unwrap_err();
            assert!(
                error.contains("goes up to 2, and workers have 1 of the GPUs"),
                "{error}"
            );
        }
    }
}
