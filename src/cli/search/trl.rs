//! Searches whose trials run in TRL, or in unsloth: the Python that trains, what it can train, and its place among a study's inputs.

use super::stack_refusal::{Refusal, StackOnDevice, refusals_of};
use super::worker_args::WorkerArgs;
use crate::cli::CliError;
use crate::cli::processes::interpreter::{Interpreter, Stack};
use crate::report::printable;
use crate::space::{Loader, SpaceError, Study, TrlBackend, recipe_for};
use crate::store::InputRecord;
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::study::{ParamValue, Params};

/// Role of the packages that train among a study's inputs: other versions of them measure something else.
pub(super) const STACK: &str = "stack";

/// Values of one parameter that are looked at.
const MOST_VALUES: u64 = 64;

/// Finds the Python of a study, asks it what it has unless it was asked, and notes that for the study's workers.
///
/// # Errors
/// Bad input: no Python that trains there; devices that it does not have, or that trials are not to run on; a value that it cannot
/// train.
pub(super) fn begin(study: &Study, backend: &TrlBackend, workers: &mut WorkerArgs) -> Result<(), CliError> {
    if workers.stack.is_none() {
        workers.stack = Some(Interpreter::find(backend.python.as_deref())?.probe(backend.loader)?);
    }
    let slots = workers.slots(study)?;
    if let Some(stack) = &workers.stack {
        let mut devices = slots.iter().filter_map(|slot| slot.device.as_deref());
        devices.try_for_each(|device| stack.check_device(device))?;
    }
    let packages = workers.stack.as_ref().map(|stack| stack.packages.as_slice());
    let here = StackOnDevice {
        loader: backend.loader,
        on_cpu: slots.iter().any(|slot| slot.device.as_deref() == Some("cpu")),
        packages,
    };
    Ok(check_values(study, here)?)
}

/// Refuses what no Python trains on models of this loader as it is written, on any device: none is asked.
///
/// # Errors
/// Bad input: such a value.
pub(in crate::cli) fn check_anywhere(study: &Study, loader: Loader) -> Result<(), SpaceError> {
    check_values(study, StackOnDevice::unasked(loader))
}

/// The first line of a search: what trains, and what is not seen of it.
pub(super) fn line(stack: &Stack) -> String {
    let unseen = stack.unwatched().map_or_else(String::new, |reason| {
        format!("; other programs on it are not watched for: {reason}")
    });
    printable(&format!(
        "trials train in {}: {} (Python {}), {} on {}{unseen}",
        stack.loader.title(),
        stack.interpreter.display(),
        stack.python,
        stack.versions(),
        stack.devices_text()
    ))
}

/// The packages as an input of the study.
pub(super) fn input(stack: &Stack) -> InputRecord {
    let versions = stack.versions();
    InputRecord {
        role: STACK.to_owned(),
        path: versions.clone(),
        fingerprint: versions,
    }
}

/// Refuses values that trials would train otherwise than they say, alone and beside what the file fixes.
fn check_values(study: &Study, here: StackOnDevice<'_>) -> Result<(), SpaceError> {
    let most_devices = ParamValue::Int(study.most_devices() as i64);
    let refusals = |params: &Params| {
        let recipe = recipe_for(study, params).or_else(|_| {
            // The usual micro-batch need not divide the global batch; single rows do, and nothing is refused for either. Weights are
            // shared out on several devices, of which there is a choice.
            let mut params = params.clone();
            params.insert("micro_batch".to_owned(), ParamValue::Int(1));
            if !params.contains_key("devices") {
                params.insert("devices".to_owned(), most_devices.clone());
            }
            recipe_for(study, &params)
        });
        match recipe {
            Ok(recipe) => refusals_of(&recipe, here),
            // A trial of these values says so itself.
            Err(_) => Vec::new(),
        }
    };
    let parameters = &study.space.parameters;
    // Of what is sampled, the values are looked at, and not the one that a recipe has without them.
    let is_sampled = |field: &str| {
        let mut names = parameters.iter().map(|parameter| parameter.name.as_str());
        names.any(|name| setting(name).is_some_and(|row| row.field == field))
    };
    let mut always = refusals(&Params::new());
    always.retain(|refusal| !is_sampled(refusal.field));
    if let Some(refusal) = always.into_iter().next() {
        let mut fixed = study.fixed.keys();
        let name = fixed.find(|name| setting(name).is_some_and(|row| row.field == refusal.field));
        let keys: Vec<&str> = ["space"].into_iter().chain(name.map(String::as_str)).collect();
        return Err(study.reject(&keys, refusal.message));
    }
    for parameter in parameters {
        let values = &parameter.distribution;
        let tried: Vec<ParamValue> = match values.cardinality() {
            Some(count) => (0..count.min(MOST_VALUES))
                .filter_map(|index| values.nth(index))
                .collect(),
            // The ends of a range stand for all between them.
            None => [0.0, 1.0].map(|unit| values.value_at(unit)).into(),
        };
        for value in tried {
            let found = refusals(&[(parameter.name.clone(), value)].into());
            let row = setting(&parameter.name);
            let is_own = |refusal: &Refusal| row.is_some_and(|row| row.field == refusal.field);
            // Values may decide what another field means: `method: full` that weights are trained whole.
            let mut of_this = found.into_iter().filter(|one| is_own(one) || !is_sampled(one.field));
            if let Some(refusal) = of_this.next() {
                return Err(study.reject(&["space", &parameter.name], refusal.message));
            }
        }
    }
    // The first trial has the baseline, and that need not lie in the space.
    for refusal in refusals(&study.baseline) {
        let mut names = study.baseline.keys();
        if let Some(name) = names.find(|name| setting(name).is_some_and(|row| row.field == refusal.field)) {
            return Err(study.reject(&["baseline", name], refusal.message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::stack_refusal::{BITSANDBYTES, DEEPSPEED, KERNELS};
    use super::*;
    use crate::cli::processes::interpreter::{Package, TorchDevice};
    use crate::space::{ReadOptions, StudyFile};

    fn packages(names: &[&str]) -> Vec<Package> {
        let package = |name: &&str| Package {
            name: (*name).to_owned(),
            version: "1".to_owned(),
        };
        names.iter().map(package).collect()
    }

    /// Message about a study of these lines; none where all of it can be trained. Whatever values need is installed.
    fn refusal(lines: &str, on_cpu: bool) -> Option<String> {
        let packages = packages(&[BITSANDBYTES, DEEPSPEED, "flash-attn", "liger-kernel", "schedulefree"]);
        let here = StackOnDevice {
            on_cpu,
            packages: Some(&packages),
            ..StackOnDevice::unasked(Loader::Transformers)
        };
        refusal_at(lines, here)
    }

    fn refusal_at(lines: &str, here: StackOnDevice<'_>) -> Option<String> {
        let text = format!("model: m\ndata: {{train: [a.jsonl]}}\nbackend: trl\nobjectives: [throughput]\n{lines}\n");
        let options = ReadOptions { check_files: false };
        let study = StudyFile::parse(Path::new("space.yaml"), &text, options).unwrap();
        check_values(&study, here).err().map(|error| error.to_string())
    }

    #[test]
    fn what_trl_has_no_word_for_is_refused_at_its_value() {
        let sound = "space: {rank: [4, 8], optimizer: [adamw, sgd], gradient_checkpointing: [none, full], precision: [fp32, bf16]}";
        assert_eq!(refusal(sound, true), None);
        let sampled = refusal("space: {rank: [4, 8], gradient_checkpointing: [none, every_2]}", false).unwrap();
        assert!(
            sampled.contains("key `space.gradient_checkpointing`") && sampled.contains("`gradient_checkpointing`"),
            "{sampled}"
        );
        let fixed = refusal("space: {rank: [4, 8], loraplus_ratio: 16}", false).unwrap();
        assert!(fixed.contains("key `space.loraplus_ratio`"), "{fixed}");
        let indivisible = "space: {micro_batch: [1, 7], global_batch: 7, loraplus_ratio: 16}";
        let beside = refusal(indivisible, false).unwrap();
        assert!(beside.contains("key `space.loraplus_ratio`"), "{beside}");
        let range = refusal("space: {rank: [4, 8], loraplus_ratio: {low: 1, high: 16}}", false).unwrap();
        assert!(range.contains("key `space.loraplus_ratio`"), "{range}");
        let baseline = refusal("space: {rank: [4, 8]}\nbaseline: {optimizer: muon}", false).unwrap();
        assert!(baseline.contains("key `baseline.optimizer`"), "{baseline}");
        let paged = refusal("space: {optimizer: [adamw, paged_adamw]}", false).unwrap();
        assert!(paged.contains("managed memory"), "{paged}");
        let muon = refusal("space: {optimizer: [adamw, muon]}", false).unwrap();
        assert!(muon.contains("key `space.optimizer`"), "{muon}");
    }

    #[test]
    fn what_needs_a_gpu_is_refused_on_a_processor_alone() {
        for lines in [
            "space: {rank: [4, 8], precision: [bf16, nf4]}",
            "space: {rank: [4, 8], precision: fp16}",
            "space: {rank: [4, 8], optimizer: [adamw, adamw_8bit]}",
            "space: {rank: [4, 8], optimizer: [adamw, lion]}",
            "space: {rank: [4, 8], packing: [true, false]}",
            "space: {rank: [4, 8], gradient_checkpointing: offload}",
            "space: {rank: [4, 8], devices: 2, sharding: full}",
            "space: {devices: [2, 4], sharding: [none, full]}",
            "space: {devices: [1, 2], sharding: {choices: [none, full], when: {devices: 2}}}",
            "space: {rank: [4, 8], optimizer_offload: [none, host]}",
            "space: {rank: [4, 8], attn_implementation: [sdpa, flash_attention_2]}",
            "space: {attn_implementation: [eager, flex_attention]}",
            "space: {use_liger_kernel: [false, true]}",
        ] {
            assert_eq!(refusal(lines, false), None, "{lines}");
            let told = refusal(lines, true).unwrap();
            assert!(told.contains("GPU") && told.contains("key `space."), "{lines}: {told}");
        }
    }

    #[test]
    fn what_a_package_has_is_refused_where_it_is_not_installed() {
        fn at(packages: &[Package]) -> StackOnDevice<'_> {
            let packages = Some(packages);
            StackOnDevice {
                packages,
                ..StackOnDevice::unasked(Loader::Transformers)
            }
        }
        let (none, kernels) = (&packages(&[]), &packages(&[KERNELS]));
        for (lines, package) in [
            ("space: {rank: [4, 8], precision: nf4}", "bitsandbytes"),
            ("space: {rank: [4, 8], optimizer: [adamw, lion]}", "bitsandbytes"),
            ("space: {rank: [4, 8], optimizer_offload: host}", "deepspeed"),
            (
                "space: {rank: [4, 8], optimizer: [adamw, adamw_schedulefree]}",
                "schedulefree",
            ),
            ("space: {rank: [4, 8], use_liger_kernel: true}", "liger-kernel"),
            ("space: {rank: [4, 8], packing: true}", "flash-attn"),
            (
                "space: {attn_implementation: [sdpa, flash_attention_3]}",
                "flash-attn-3",
            ),
        ] {
            let told = refusal_at(lines, at(none)).unwrap();
            assert!(
                told.contains(&format!("pip install {package}`")) && told.contains("key `space."),
                "{lines}: {told}"
            );
            let is_of_hub = package.starts_with("flash");
            assert_eq!(refusal_at(lines, at(kernels)).is_none(), is_of_hub, "{lines}");
            // A Python that was not asked may have it.
            let unasked = StackOnDevice::unasked(Loader::Transformers);
            assert_eq!(refusal_at(lines, unasked), None, "{lines}");
        }
        for lines in [
            "space: {rank: [4, 8], optimizer: [adamw, sgd], devices: 2, sharding: full}",
            "space: {torch_compile: [false, true], attn_implementation: [eager, sdpa], dataloader_num_workers: [0, 2]}",
        ] {
            assert_eq!(refusal_at(lines, at(none)), None, "{lines}");
        }
    }

    #[test]
    fn attention_that_does_not_go_with_the_rest_is_refused() {
        let in_fp32 = refusal(
            "space: {rank: [4, 8], precision: fp32, attn_implementation: flash_attention_2}",
            false,
        );
        assert!(in_fp32.unwrap().contains("16 bits"));
        let packed = refusal(
            "space: {rank: [4, 8], packing: true, attn_implementation: eager}",
            false,
        );
        assert!(packed.unwrap().contains("packed documents attend to each other"));
    }

    #[test]
    fn what_unsloth_trains_otherwise_is_refused_by_its_value() {
        let at = |lines: &str| {
            let packages = packages(&[BITSANDBYTES, "schedulefree"]);
            let here = StackOnDevice {
                packages: Some(&packages),
                ..StackOnDevice::unasked(Loader::Unsloth)
            };
            let told = refusal_at(lines, here);
            // What is refused with all packages is refused where none was asked.
            assert_eq!(refusal_at(lines, StackOnDevice::unasked(Loader::Unsloth)), told);
            told
        };
        let sound = "space: {rank: [4, 8], dropout: [0.0, 0.1], precision: [bf16, nf4_double, int8], gradient_checkpointing: [none, full, \
                     offload], optimizer: [adamw, adamw_8bit], dataloader_num_workers: [0, 2]}";
        assert_eq!(at(sound), None);
        for (lines, key, reason) in [
            (
                "precision: [bf16, fp32]",
                "precision",
                "computes in bf16 here all the same",
            ),
            ("packing: [false, true]", "packing", "leaves packing out"),
            ("rank: [4, 8], devices: 2", "devices", "on one device"),
            ("method: [lora, full]", "method", "no adapter"),
            (
                "gradient_checkpointing: [none, every_2]",
                "gradient_checkpointing",
                "every layer",
            ),
            (
                "torch_compile: [false, true]",
                "torch_compile",
                "no key in unsloth's file",
            ),
            ("trainer: dpo", "trainer", "trainings on preferences"),
        ] {
            let told = at(&format!("space: {{{lines}, learning_rate: [1e-4, 1e-3]}}")).unwrap_or_default();
            let is_told = told.contains(&format!("key `space.{key}`")) && told.contains(reason);
            assert!(is_told && told.contains("in unsloth"), "{lines}: {told}");
        }
    }

    #[test]
    fn the_first_line_says_why_other_programs_on_a_gpu_are_not_seen() {
        let on = |unwatched: Option<&str>| {
            line(&Stack {
                loader: Loader::default(),
                interpreter: "/my/python".into(),
                python: "3.12.3".to_owned(),
                packages: packages(&["torch"]),
                wanted: Vec::new(),
                devices: vec![TorchDevice {
                    name: "NVIDIA L4".to_owned(),
                    bytes: 1 << 30,
                    unwatched: unwatched.map(str::to_owned),
                }],
            })
        };
        let seen = "trials train in TRL: /my/python (Python 3.12.3), torch 1 on NVIDIA L4 (1.00 GiB)";
        assert_eq!(on(None), seen);
        assert_eq!(
            on(Some("that takes `pip install nvidia-ml-py`")),
            format!("{seen}; other programs on it are not watched for: that takes `pip install nvidia-ml-py`")
        );
    }

    #[test]
    fn several_devices_are_trained_on_a_processor_too() {
        assert_eq!(refusal("space: {rank: [4, 8], devices: [1, 2]}", true), None);
    }
}
